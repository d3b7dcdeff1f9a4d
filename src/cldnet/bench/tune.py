"""Choose settings on a validation part of the training data, with the same number of trials for every method.

A search goes in rounds: every method proposes one setting, all of them run with every seed, and the methods' studies learn the
accuracies. Runs are result files and are not repeated: a search that was stopped or killed continues where it was, and ends
as it would have ended if runs have the same number of threads. The stream's test part is never used.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from math import prod
from pathlib import Path
from statistics import fmean
from typing import Any

from cldnet.bench.cell import Cell
from cldnet.bench.machine import versions
from cldnet.bench.preset import Settings, common_settings, preset, preset_name, with_methods
from cldnet.bench.results import read_result
from cldnet.bench.run import Record, RunSpec
from cldnet.bench.workers import Event, Outcome, execute
from cldnet.data.streams import SOURCES, StreamSpec, read_outside, stream_by_name
from cldnet.methods import build_learner, read_method
from cldnet.methods.config import Choice, LogUniform, Range, check_ranges, config_from_json, config_to_json
from cldnet.methods.learner import Setting
from cldnet.storage import write_atomically

#: Name of the file with all trials.
TRIALS = "trials.json"
SAMPLER = "Optuna TPE, a new sampler for every trial"
#: The comment at the head of a new preset file.
_HEAD = """\
# Chosen by `cldnet tune` on a validation part of the training data; test data were not looked at. "validation" is the mean
# over seeds that the options reached there, and a method's provenance tells how to repeat the search.

"""
_ATTEMPTS = 20


@dataclass(frozen=True)
class Search:
    """What to search: methods on the training data of a stream, all with the same number of trials and the same budget.

    Examples
    --------
    >>> search = Search("split-digits", ("ewc",), first=2)
    >>> search.text, search.protocol
    ('split-digits,validation=0.2,until=2', 'first 2 tasks')
    """

    stream: str  # a stream's name with its options
    methods: tuple[str, ...]
    trials: int = 24  # for each method; one that has fewer settings gets all of them
    seeds: tuple[int, ...] = (10, 11)  # of weights and class order; a trial's score is the mean over them
    share: float = 0.2  # part of every class's training data that is set aside for validation
    first: int | None = None  # score after this many tasks, without using the later ones; None for the whole sequence
    epochs: int | None = None  # the budget; None for that of the preset's [common]
    batch_size: int | None = None
    of: float = 1.0  # part of the rest that trials learn from
    outside: str = ""  # data from outside the stream, instead of what a preset names for the methods that use such data

    def __post_init__(self) -> None:
        given = StreamSpec.parse(self.stream, SOURCES).options
        for option in ("validation", "until", *(("train",) if self.of < 1 else ())):
            if option in given:
                raise ValueError(f"{self.stream!r} says {option}=…, which a search sets itself: leave it out.")
        if not 0 < self.share < 1:
            raise ValueError(f"share={self.share} should be between 0 and 1.")
        if not 0 < self.of <= 1:
            raise ValueError(f"of={self.of} should be more than 0 and at most 1.")
        for name in ("trials", "first", "epochs", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} should be at least 1.")
        for what, values in (("methods", self.methods), ("seeds", self.seeds)):
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{what}={values} should be one or more, all different.")

    @property
    def text(self) -> str:
        """The stream that trials run on: its test part is cut from the training data."""
        fewer = "" if self.of == 1 else f",train={self.of:g}"
        until = "" if self.first is None else f",until={self.first}"
        return f"{self.stream},validation={self.share:g}{fewer}{until}"

    @property
    def protocol(self) -> str:
        """After which tasks trials are scored."""
        return "whole sequence" if self.first is None else f"first {self.first} tasks"

    def command(self, jobs: int) -> str:
        """Return the command that repeats the search with the same number of processes."""
        options = [
            *(("--methods", method) for method in self.methods),
            ("--trials", self.trials),
            *(("--seeds", seed) for seed in self.seeds),
            ("--on", "whole" if self.first is None else f"first={self.first}"),
            ("--share", f"{self.share:g}"),
            ("--of", None if self.of == 1 else f"{self.of:g}"),
            ("--outside", self.outside or None),
            ("--epochs", self.epochs),
            ("--batch-size", self.batch_size),
            ("--jobs", jobs),
        ]
        words = [str(word) for name, value in options if value is not None for word in (name, value)]
        return shlex.join(["cldnet", "tune", self.stream, *words])


@dataclass(frozen=True)
class Trial:
    """One setting of one method, and the result of every seed (None if it failed; ``why`` says why)."""

    method: str
    number: int
    options: Mapping[str, Any]
    seeds: tuple[int, ...]
    results: tuple[Mapping[str, Any] | None, ...]
    why: str = ""

    @property
    def scores(self) -> list[float | None]:
        """Average accuracies after the last task; task-IL accuracies of a method that needs the task."""
        key = "task_il_accuracy" if read_method(self.method).traits.needs_task_id else "average_accuracy"
        return [None if result is None else result["scores"][key] for result in self.results]

    @property
    def accuracy(self) -> float | None:
        """Mean over seeds; None if one of them failed."""
        known = [score for score in self.scores if score is not None]
        return fmean(known) if len(known) == len(self.results) else None

    @property
    def threads(self) -> list[int | None]:
        """Number of threads that each run had."""
        return [None if result is None else result.get("threads") for result in self.results]

    def to_json(self, search: Search) -> dict[str, Any]:
        """Give the trial as ``trials.json`` has it."""
        return {
            "method": self.method,
            "number": self.number,
            "stream": search.text,
            "of": search.of,
            "options": self.options,
            "seeds": self.seeds,
            "scores": self.scores,
            "accuracy": self.accuracy,
            "files": [None if result is None else result["file"] for result in self.results],
            "threads": self.threads,
            "state": "failed" if self.accuracy is None else "finished",
            "why": self.why,
        }


@dataclass
class MethodSearch:
    """One method's part of a search: what is fixed (``base``), what is searched, how many trials, and those so far."""

    method: str
    base: RunSpec
    ranges: Mapping[str, Range]
    count: int
    needs_task: bool
    trials: list[Trial] = field(default_factory=list)

    @property
    def best(self) -> Trial | None:
        """The trial with the highest mean, the earliest of several; None if all failed."""
        finished = [trial for trial in self.trials if trial.accuracy is not None]
        return max(finished, key=lambda trial: trial.accuracy or 0.0, default=None)

    @property
    def threads(self) -> list[int]:
        """Numbers of threads that runs had; several if a search was continued with another number of processes."""
        return sorted({count for trial in self.trials for count in trial.threads if count is not None})

    @property
    def failed(self) -> int:
        """Number of trials that failed."""
        return sum(trial.accuracy is None for trial in self.trials)


def tune(
    search: Search,
    folder: Path,
    presets: Path,
    *,
    jobs: int = 1,
    data: Path | None = None,
    on_progress: Callable[[str, int, float], None] = lambda method, number, share: None,
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> tuple[list[MethodSearch], Path]:
    """Run a search, and write its trials and the preset file of the stream.

    Parameters
    ----------
    search : Search
    folder : Path
        For result files and for the list of all trials.
    presets : Path
        Folder of the preset file, whose tables of other methods stay as they are.
    jobs : int
        Number of processes; they share the cores.
    data : Path, optional
        Folder in which data sets are looked for first.
    on_progress : callable
        Receives a method, the number of its trial, and the share of it that is done.
    on_trial : callable
        Receives every trial of a round when the round has ended.

    Returns
    -------
    found : list of MethodSearch
        One per method.
    path : Path
        The preset file.
    """
    load_optuna()  # before hours have gone by
    found = plan_methods(search, presets)
    _check(search, found, data)
    others = [trial for trial in read_trials(folder) if trial["method"] not in search.methods]
    for needed in (folder, presets):
        needed.mkdir(parents=True, exist_ok=True)
    run = partial(execute, folder=folder, jobs=jobs, data=data)
    for number in range(max(one.count for one in found)):
        due = [one for one in found if number < one.count]
        for one, trial in zip(due, _round(search, number, due, run, on_progress), strict=True):
            one.trials.append(trial)
            on_trial(trial)
        trials = [trial.to_json(search) for one in found for trial in one.trials]
        content = {"schema": 1, "trials": [*others, *trials]}
        write_atomically(folder / TRIALS, json.dumps(content, indent=1, ensure_ascii=False).encode())
    return found, _write_presets(search, found, presets, jobs)


def plan_methods(search: Search, presets: Path | None) -> list[MethodSearch]:
    """Plan the search for each method: fixed settings, and ranges to search.

    Settings of the preset that have no range stay fixed, such as the backbone. The budget is the same for all methods.
    """
    common = common_settings(preset_name(search.stream), presets)
    budget: dict[str, Any] = {
        "epochs": search.epochs or common.get("epochs", RunSpec.epochs),
        "batch_size": search.batch_size or common.get("batch_size", RunSpec.batch_size),
    }
    if search.outside and not any(read_method(method).traits.outside_data for method in search.methods):
        raise ValueError(f"None of these methods uses outside data: leave outside={search.outside!r} out.")
    plans = []
    for method in search.methods:
        learner = read_method(method)
        check_ranges(method, learner.ranges, learner.config_class)
        spec = preset(search.stream, method, search.seeds[0], folder=presets)
        fixed = {key: value for key, value in spec.options.items() if key not in learner.ranges}
        outside = search.outside if search.outside and learner.traits.outside_data else spec.outside
        base = replace(spec, options=fixed, outside=outside, **budget)
        counts = [span.count for span in learner.ranges.values()]
        count = search.trials if None in counts else min(prod(filter(None, counts)), search.trials)
        plans.append(MethodSearch(method, base, learner.ranges, count, learner.traits.needs_task_id))
    return plans


def _check(search: Search, plans: Sequence[MethodSearch], data: Path | None) -> None:
    """Refuse what could not run, before anything runs."""
    stream = stream_by_name(search.text, search.seeds[0], data=data)
    if stream.online is not None and (search.epochs, search.batch_size) != (None, None):
        raise ValueError(f"{stream.name} has one pass, in batches of {stream.online}: leave epochs and batch size out.")
    setting = Setting(stream.input_shape, capacity=len(stream.class_order), seed=search.seeds[0])
    for plan in plans:
        base = plan.base
        base.check_outside()
        if base.outside:
            read_outside(base.outside, stream, data)
        build_learner(plan.method, setting, config_from_json(base.options), base.backbone, base.backbone_options)


def read_trials(folder: Path) -> list[dict[str, Any]]:
    """Read the trials that a folder lists; none if there is no such file."""
    path = folder / TRIALS
    try:
        trials: list[dict[str, Any]] = json.loads(path.read_bytes())["trials"] if path.is_file() else []
        if all(isinstance(trial["method"], str) for trial in trials):
            return trials
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ValueError(f"{path} is not a list of trials: delete it, and start the search again; finished runs are kept.")


def _round(
    search: Search,
    number: int,
    found: Sequence[MethodSearch],
    run: Callable[..., Outcome],
    on_progress: Callable[[str, int, float], None],
) -> list[Trial]:
    """Run one trial of each method, with every seed."""
    count = len(search.seeds)
    options = [{**one.base.options, **_propose(one, search)} for one in found]
    cells = [
        Cell(search.text, replace(one.base, options=chosen, seed=seed), record=Record(leaky=False))
        for one, chosen in zip(found, options, strict=True)
        for seed in search.seeds
    ]
    shares = [0.0] * len(cells)

    def on_event(event: Event) -> None:
        if event.kind in ("progress", "finished"):
            shares[event.number] = event.share if event.kind == "progress" else 1.0
            place = event.number // count
            on_progress(found[place].method, number, fmean(shares[place * count : (place + 1) * count]))

    outcome = run(cells, on_event=on_event)
    trials = []
    for place, (one, chosen) in enumerate(zip(found, options, strict=True)):
        results, reasons = [], []
        for index, seed in enumerate(search.seeds, start=place * count):
            file = outcome.files[index]
            results.append(None if file is None else read_result(file))
            if results[-1] is None:
                why = outcome.failures.get(index, "It was not run.") if file is None else f"{file.name} is not a result"
                reasons.append(f"seed {seed}: {why}")
        trials.append(Trial(one.method, number, chosen, search.seeds, tuple(results), "; ".join(reasons)))
    return trials


def _propose(found: MethodSearch, search: Search) -> dict[str, Any]:
    """The next setting of a method's searched options: at first its defaults, unless they are outside its ranges."""
    ranges = found.ranges
    if not found.trials:
        default = config_to_json(read_method(found.method).config_class())
        if all(default[name] in span for name, span in ranges.items()):
            return {name: default[name] for name in ranges}
    tried = [({name: trial.options[name] for name in ranges}, trial.accuracy) for trial in found.trials]
    return next_setting(ranges, tried, seed=f"{search.seeds[0]}/{found.method}")


def load_optuna() -> Any:
    """Import Optuna, or say how to install it."""
    try:
        import optuna  # noqa: PLC0415  (optional)
    except (ImportError, RuntimeError) as error:
        raise ImportError('Tuning needs Optuna: pip install ".[tune]" in a clone of CLDNet.') from error
    return optuna


def next_setting(
    ranges: Mapping[str, Range], tried: Sequence[tuple[Mapping[str, Any], float | None]], seed: str
) -> dict[str, Any]:
    """Propose a setting that was not tried before, by Optuna's TPE.

    ``tried`` has the options and the score (None if it failed) of all earlier trials. Every proposal comes from a new study of
    those, with a sampler seeded by ``seed`` and the trial's number. So a search that was killed continues exactly as if it had
    not been.
    """
    known = [dict(options) for options, _ in tried]
    for attempt in range(_ATTEMPTS):
        number = int.from_bytes(hashlib.sha256(f"{seed}/{len(tried)}/{attempt}".encode()).digest()[:4])
        # Three digits are enough for a person; only a very narrow range needs more to find something new.
        options = _ask_optuna(ranges, tried, number, digits=3 if attempt < _ATTEMPTS // 2 else 17)
        if options not in known:
            return options
    # A sampler that prefers one corner may never propose the last few of a small number of settings.
    if any(isinstance(span, LogUniform) for span in ranges.values()):
        return options
    values = [span.values if isinstance(span, Choice) else range(span.low, span.high + 1) for span in ranges.values()]  # type: ignore[arg-type]
    settings = (dict(zip(ranges, setting, strict=True)) for setting in itertools.product(*values))
    return next((setting for setting in settings if setting not in known), options)


def _ask_optuna(
    ranges: Mapping[str, Range], tried: Sequence[tuple[Mapping[str, Any], float | None]], number: int, digits: int
) -> dict[str, Any]:
    optuna = load_optuna()
    kinds = optuna.distributions

    def distribution(span: Range) -> Any:
        if isinstance(span, Choice):
            return kinds.CategoricalDistribution(range(span.count))  # Optuna accepts no tables as values
        if isinstance(span, LogUniform):
            return kinds.FloatDistribution(span.low, span.high, log=True)
        return kinds.IntDistribution(span.low, span.high, log=span.log)

    def value(span: Range, found: Any) -> Any:
        if isinstance(span, Choice):
            return span.values[found]
        return min(max(float(f"{found:.{digits}g}"), span.low), span.high) if isinstance(span, LogUniform) else found

    distributions = {name: distribution(span) for name, span in ranges.items()}
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)  # it would announce every study
    try:
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=number))
    finally:
        optuna.logging.set_verbosity(verbosity)
    for options, score in tried:
        parameters = {
            name: span.values.index(options[name]) if isinstance(span, Choice) else options[name]
            for name, span in ranges.items()
        }
        state = {"state": optuna.trial.TrialState.FAIL} if score is None else {"value": score}
        study.add_trial(optuna.trial.create_trial(params=parameters, distributions=distributions, **state))
    found = study.ask(distributions).params
    return {name: value(span, found[name]) for name, span in ranges.items()}


def _write_presets(search: Search, found: Sequence[MethodSearch], folder: Path, jobs: int) -> Path:
    """Write the best settings of each method, and how they were found, into the stream's preset file.

    A method whose trials all failed keeps the settings that it had.
    """
    name = preset_name(search.stream)
    path = folder / f"{name}.toml"
    best = [(one, one.best) for one in found if one.best is not None]
    if not best:
        return path
    common, text = common_settings(name, folder), _HEAD
    if path.is_file():
        text = path.read_text("utf-8")
    else:
        budget = _budget(found[0].base)
        common |= budget
        text += "[common]\n" + "".join(f"{key} = {value}\n" for key, value in budget.items())
    tables = {}
    for one, trial in best:
        base, default = one.base, RunSpec(one.method)
        values = {key: getattr(base, key) for key in Settings.model_fields}
        tables[one.method] = {
            "validation": round(trial.accuracy or 0.0, 6),
            **{key: value for key, value in values.items() if value != common.get(key, getattr(default, key))},
            "options": dict(trial.options),
            "provenance": _provenance(search, one, trial, jobs),
        }
    write_atomically(path, with_methods(text, tables).encode("utf-8", "replace"))  # a path may hold half of a letter
    return path


def _budget(base: RunSpec) -> dict[str, int]:
    return {"epochs": base.epochs, "batch_size": base.batch_size}


def _provenance(search: Search, found: MethodSearch, best: Trial, jobs: int) -> dict[str, Any]:
    """Everything needed to repeat the search."""
    measure = "task-IL accuracy after the last task (the method needs the task)"
    runs = zip(best.seeds, best.results, strict=True)
    return {
        "command": search.command(jobs),
        "date": datetime.now(UTC).date().isoformat(),
        "stream": search.text,
        "stream_hash": {str(seed): result["stream"]["hash"] for seed, result in runs if result is not None},
        "protocol": search.protocol,
        "share": search.share,
        "of": search.of,
        "seeds": list(search.seeds),
        "score": f"mean over seeds of the {measure if found.needs_task else 'average accuracy after the last task'}",
        "budget": _budget(found.base),
        "trials": len(found.trials),
        "failed": found.failed,
        "best_trial": best.number,
        "threads": found.threads,
        "sampler": SAMPLER,
        "ranges": {name: str(span) for name, span in found.ranges.items()},
        "versions": {**versions(), "optuna": load_optuna().__version__},
    }
