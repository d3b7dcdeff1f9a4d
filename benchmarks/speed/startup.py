"""How long it takes until something can be done: fresh processes that import torch, CLDNet and its classifier, or show help.

They run in an environment with what `pip install .` brings and nothing else: scikit-learn imports pandas where it is.
Processes are started in turns. Times over torch are differences within a turn between the whole time of two processes; beside
them stands what the process itself measured between the two imports, which a shared machine disturbs less.
"""

from __future__ import annotations

import re
import resource
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from benchmarks.speed.apart import ROOT, environment
from benchmarks.speed.environments import NEWCOMER, NotInstalledError
from benchmarks.speed.record import Finding, NotRun, Spread
from benchmarks.speed.turns import Taken, in_turns

#: What is not to be imported for a page of help.
HEAVY = frozenset({"matplotlib", "numpy", "optuna", "pandas", "PIL", "pyarrow", "scipy", "sklearn", "torch"})
_LISTED = 12
_LINE = re.compile(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)")
_TIMED = "import torch, time; begun = time.perf_counter(); {}; print(time.perf_counter() - begun)"
_CLASSIFIER = "from cldnet import CLDNetClassifier"
_HELP = "from cldnet.cli import main; main()"
Command = Sequence[str]


def commands(python: str) -> dict[str, Command]:
    """What is run, by name."""
    run = {
        "python": "pass",
        "torch": "import torch",
        "cldnet": _TIMED.format("import cldnet"),
        "classifier": _TIMED.format(_CLASSIFIER),
    }
    return {**{name: [python, "-c", code] for name, code in run.items()}, "help": [python, "-c", _HELP, "--help"]}


def measure(quick: bool) -> Iterator[Finding | NotRun]:
    """Whole times, times over torch, and what is imported meanwhile."""
    try:
        python = str(NEWCOMER.python())
    except NotInstalledError as error:
        yield NotRun("startup", "Start-up in an environment with CLDNet's own dependencies", str(error))
        return
    repeats, warm = (1, 0) if quick else (7, 1)
    taken, said = run_in_turns(commands(python), repeats, warm)
    whole = {name: {"wall": one.wall, "cpu": one.cpu} for name, one in taken.items()}
    inside = _as_json(Spread.of([float(text) for text in said["cldnet"]]))
    yield over(
        "startup/import", "`import cldnet` over `import torch`", taken["cldnet"], taken["torch"], 0.3,
        inside=inside, whole=whole,
    )  # fmt: skip
    own, until_there = taken["classifier"], [float(text) for text in said["classifier"]]
    yield _seconds(
        "startup/classifier", "`from cldnet import CLDNetClassifier` after `import torch`, until it is there",
        Taken(until_there, until_there), 1.3, imports=slowest(imported(python, _CLASSIFIER)),
    )  # fmt: skip
    title = "`from cldnet import CLDNetClassifier` over `import torch`, whole processes with their end"
    yield over("startup/classifier/process", title, own, taken["torch"], None)
    yield _seconds("startup/classifier/whole", "`from cldnet import CLDNetClassifier`, the whole process", own)
    for_help = imported(python, _HELP, "--help")
    yield _seconds("startup/help", "`cldnet --help`, the whole process", taken["help"], 0.5, imports=slowest(for_help))
    yield _seconds("startup/python", "`python -c pass`, the whole process", taken["python"])
    yield light(for_help)


def run_in_turns(run: Mapping[str, Command], repeats: int, warm: int) -> tuple[dict[str, Taken], dict[str, list[str]]]:
    """Seconds of processes, on the clock and of their own cores, and what they printed, turn by turn."""
    said: dict[str, list[str]] = {name: [] for name in run}
    cores: dict[str, list[float]] = {name: [] for name in run}

    def start(name: str) -> None:
        before = _children()
        said[name].append(_output(run[name]))
        cores[name].append(_children() - before)

    taken = in_turns({name: partial(start, name) for name in run}, repeats, warm)
    return (
        {name: Taken(one.wall, cores[name][warm:]) for name, one in taken.items()},
        {name: texts[warm:] for name, texts in said.items()},
    )


def _children() -> float:
    """Seconds of all cores that finished processes took; those of a process of its own are not this one's."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _output(command: Command) -> str:
    return subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True).stdout


def over(name: str, title: str, above: Taken, below: Taken, target: float | None, **details: Any) -> Finding:
    """Seconds that one process takes longer than another, turn by turn."""
    longer = Taken(
        [a - b for a, b in zip(above.wall, below.wall, strict=True)],
        [a - b for a, b in zip(above.cpu, below.cpu, strict=True)],
    )
    return _seconds(name, title, longer, target, **details)


def _seconds(name: str, title: str, taken: Taken, target: float | None = None, **details: Any) -> Finding:
    spreads = Spread.of(taken.wall), Spread.of(taken.cpu)
    return Finding(name, f"{title}: seconds", 1, *spreads, False, target, {"unit": "s", **details})


def _as_json(spread: Spread) -> dict[str, float]:
    return {"median": spread.median, "low": spread.low, "high": spread.high}


def imported(python: str, code: str, *arguments: str) -> dict[str, float]:
    """Modules that some code imports, with the seconds that each took by itself."""
    command = [python, "-X", "importtime", "-c", code, *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=True)
    return parsed(done.stderr)


def parsed(report: str) -> dict[str, float]:
    """Read what ``python -X importtime`` writes: modules, and microseconds of each without those that it imports."""
    found: Counter[str] = Counter()
    for line in report.splitlines():
        match = _LINE.match(line)
        if match:
            found[match[2]] += int(match[1])
    return {name: microseconds / 1e6 for name, microseconds in found.items()}


def slowest(imports: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The packages and the modules that take longest, in seconds."""
    packages: Counter[str] = Counter()
    for name, seconds in imports.items():
        packages[name.partition(".")[0]] += seconds  # type: ignore[assignment]  # typeshed counts in whole numbers
    modules = sorted(imports.items(), key=lambda item: -item[1])[:_LISTED]
    return {"packages": dict(packages.most_common(_LISTED)), "modules": dict(modules)}


def light(imports: Mapping[str, float]) -> Finding:
    """Count the heavy packages that are among the imports."""
    heavy = sorted(HEAVY & {name.partition(".")[0] for name in imports})
    count = Spread.of([float(len(heavy))])
    title = "Heavy packages that `cldnet --help` imports"
    details = {"unit": "packages", "found": heavy, "looked_for": sorted(HEAVY), "modules": len(imports)}
    return Finding("startup/help/heavy", title, 1, count, count, False, 0.0, details)
