"""How fast CLDNet is, beside what people use today and beside what the machine can do.

    python -m benchmarks.speed [PART …]          measure, and write a JSON file and a page
    python -m benchmarks.speed compare OLD NEW   name what has become slower by more than 20 %
    python -m benchmarks.speed page FILE         draw the page of a file anew
    python -m benchmarks.speed table FILE        print the table of the docs

Everything is written as it is found. A run that is stopped goes on when the same command is given again, as long as the
source, the machine, the versions and the settings are the same; until it is complete it stands in OUT.part.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.speed import result as files
from benchmarks.speed import run
from benchmarks.speed.compare import compare, report
from benchmarks.speed.result import Result
from benchmarks.speed.show import Show
from benchmarks.speed.table import markdown
from rich.console import Console

OUT, PAGE = Path("results/benchmarks/speed.json"), Path("docs/speed/index.html")
#: For runs that are not whole: nothing that git knows is replaced by them.
ELSEWHERE = Path("build/speed")


def main(arguments: Sequence[str]) -> int:
    """Do what the command line says; return 1 if something has become slower."""
    console = Console()
    commands = {"compare": _compare, "page": _page, "table": _table}
    try:
        if arguments and arguments[0] in commands:
            return commands[arguments[0]](arguments[1:], console)
        return _measure(arguments, console)
    except ValueError as error:
        Console(stderr=True).print(f"Error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        return 2


def _measure(arguments: Sequence[str], console: Console) -> int:
    options = _options(arguments)
    parts = [part for part in run.PARTS if part in options.part or not options.part]
    whole = not options.quick and parts == list(run.PARTS)
    out = options.out or (OUT if whole else ELSEWHERE / "speed.json")
    page = options.page or (PAGE if whole else ELSEWHERE / "index.html")
    earlier = None if options.against is None else files.read(options.against)  # before it may be replaced
    command = shlex.join(["python", "-m", "benchmarks.speed", *arguments])
    settings = {"parts": parts, "quick": options.quick, "data": None if options.data is None else str(options.data)}
    result = files.resumed(files.draft(out), files.describe(command, settings))
    measures = {part: run.load(part, options.data, options.quick) for part in parts}
    try:
        with Show(console) as show:
            run.carry_out(result, lambda: run.machine_limits(options.quick), measures, out, show)
    except KeyboardInterrupt:
        done = sum(part in result.seconds for part in parts)
        _say(console, f"Stopped: {done} of {len(parts)} parts are done and kept. The same command goes on from there.")
        return 130
    _draw(result, page, out)
    _say(console, f"Written: {out}, {page}. {_summary(result)}")
    return 0 if earlier is None else _compared(earlier, result, console)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.speed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "part", nargs="*", metavar="PART", help=f"what to measure, by default all: {', '.join(run.PARTS)}"
    )
    parser.add_argument("--quick", action="store_true", help="less of everything: to see that it works")
    parser.add_argument(
        "--data", type=Path, help="where data sets lie; else CLDNET_DATA and the places that cldnet knows"
    )
    parser.add_argument("--out", type=Path, help=f"by default {OUT}; of a quick or partial run {ELSEWHERE}/speed.json")
    parser.add_argument("--page", type=Path, help=f"by default {PAGE}; of such a run {ELSEWHERE}/index.html")
    parser.add_argument("--against", type=Path, metavar="FILE", help="an earlier run, to be compared with")
    options = parser.parse_args(arguments)
    unknown = [part for part in options.part if part not in run.PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(run.PARTS)}")
    return options


def _compare(arguments: Sequence[str], console: Console) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.speed compare")
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    options = parser.parse_args(arguments)
    return _compared(files.read(options.old), files.read(options.new), console)


def _compared(old: Result, new: Result, console: Console) -> int:
    found = compare(old, new)
    for line in report(found):
        _say(console, line)
    return int(found.failed)


def _page(arguments: Sequence[str], console: Console) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.speed page")
    parser.add_argument("file", type=Path, nargs="?", default=OUT)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    _draw(files.read(options.file), options.page, options.file)
    _say(console, f"Written: {options.page}")
    return 0


def _draw(result: Result, page: Path, file: Path) -> None:
    from benchmarks.speed.page import write_page  # brings torch, which a table does not need

    write_page(result, page, file)


def _table(arguments: Sequence[str], console: Console) -> int:
    parser = argparse.ArgumentParser("python -m benchmarks.speed table")
    parser.add_argument("file", type=Path, nargs="?", default=OUT)
    path = parser.parse_args(arguments).file
    _say(console, f"# Speed\n\n{markdown(files.read(path) if path.exists() else None)}")
    return 0


def _summary(result: Result) -> str:
    verdicts = [finding.met for finding in result.findings if finding.met is not None]
    return f"{sum(verdicts)} of {len(verdicts)} targets are met."


def _say(console: Console, words: str) -> None:
    console.print(words, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
