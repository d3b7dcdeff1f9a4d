"""A search for settings: what is asked for, what each method's part of it is, and every trial as it is written down."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from cldnet.bench.preset import common_settings, preset, preset_name
from cldnet.bench.proposals import count_settings
from cldnet.bench.run import RunSpec
from cldnet.data.spec import StreamSpec
from cldnet.data.streams import SOURCES
from cldnet.methods import read_method
from cldnet.methods.ranges import Range, check_ranges
from cldnet.store import write_atomically

__all__ = ["TRIALS", "Found", "MethodPlan", "Search", "Trial", "plan_methods", "read_trials", "write_trials"]

#: Name of the file that tells of every trial.
TRIALS = "trials.json"


@dataclass(frozen=True)
class Search:
    """What is searched: methods on the training data of a stream, all with the same number of trials and the same budget.

    Attributes
    ----------
    stream : str
        A stream's name with its options.
    methods : tuple of str
    trials : int
        For each method; one that has fewer settings gets all of them.
    seeds : tuple of int
        Seeds of weights and class order; a trial's figure is the mean over them.
    share : float
        Part of every class's training data that is set aside to score on.
    of : float
        Part of what is left that trials learn from; 1 is all of it.
    outside : str
        Data from outside the stream for the methods that learn from such, instead of what a preset names for them.
    first : int or None
        Score after this many tasks, without a look at the later ones; by default after the whole sequence.
    epochs, batch_size : int or None
        The budget; by default that of the preset's ``[common]``.

    Examples
    --------
    >>> search = Search("split-digits", ("ewc",), first=2)
    >>> search.text, search.protocol
    ('split-digits,validation=0.2,until=2', 'first 2 tasks')
    """

    stream: str
    methods: tuple[str, ...]
    trials: int = 24
    seeds: tuple[int, ...] = (10, 11)
    share: float = 0.2
    first: int | None = None
    epochs: int | None = None
    batch_size: int | None = None
    of: float = 1.0
    outside: str = ""

    def __post_init__(self) -> None:
        given = StreamSpec.parse(self.stream, SOURCES).options
        for option in ("validation", "until", *(("train",) if self.of < 1 else ())):
            if option in given:
                raise ValueError(f"{self.stream!r} says {option}=…, which a search sets itself: leave it out.")
        if not 0 < self.share < 1:
            raise ValueError(f"share={self.share} should lie between 0 and 1.")
        if not 0 < self.of <= 1:
            raise ValueError(f"of={self.of} should be more than 0, and 1 at most.")
        for name in ("trials", "first", "epochs", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} should be at least 1.")
        for what, values in (("methods", self.methods), ("seeds", self.seeds)):
            if not values or len(set(values)) < len(values):
                raise ValueError(f"{what}={values} should be one or more, each of them once.")

    @property
    def text(self) -> str:
        """The stream that trials run on: its test part is cut from the training data."""
        fewer = "" if self.of == 1 else f",train={self.of:g}"
        until = "" if self.first is None else f",until={self.first}"
        return f"{self.stream},validation={self.share:g}{fewer}{until}"

    @property
    def protocol(self) -> str:
        """What trials are scored by."""
        return "whole sequence" if self.first is None else f"first {self.first} tasks"

    def command(self, jobs: int) -> str:
        """Give the command that repeats the search, with as many processes.

        Examples
        --------
        >>> Search("split-digits", ("ewc",), seeds=(10,)).command(jobs=2)
        'cldnet tune split-digits --methods ewc --trials 24 --seeds 10 --on whole --share 0.2 --jobs 2'
        """
        words = ["cldnet", "tune", self.stream]
        words += [word for method in self.methods for word in ("--methods", method)]
        words += ["--trials", str(self.trials), *(word for seed in self.seeds for word in ("--seeds", str(seed)))]
        words += ["--on", "whole" if self.first is None else f"first={self.first}", "--share", f"{self.share:g}"]
        words += [] if self.of == 1 else ["--of", f"{self.of:g}"]
        words += ["--outside", self.outside] if self.outside else []
        budget = {"--epochs": self.epochs, "--batch-size": self.batch_size}
        words += [word for name, value in budget.items() if value is not None for word in (name, str(value))]
        return shlex.join([*words, "--jobs", str(jobs)])


@dataclass(frozen=True)
class MethodPlan:
    """One method's part of a search: what is fixed (``base`` and its options), what is searched, and how many trials."""

    method: str
    base: RunSpec
    ranges: Mapping[str, Range]
    trials: int
    needs_task: bool

    @property
    def measure(self) -> str:
        """The figure that trials are compared by."""
        if self.needs_task:
            return "task-IL accuracy after the last task (the method needs the task)"
        return "average accuracy after the last task"


@dataclass(frozen=True)
class Trial:
    """One setting of one method, run with every seed; ``why`` tells what went wrong, if something did.

    Scores, files, hashes of streams and numbers of threads are those of the seeds, with nothing for a seed that failed.
    """

    method: str
    number: int
    options: Mapping[str, Any]
    seeds: tuple[int, ...]
    scores: tuple[float | None, ...]
    files: tuple[str | None, ...]
    hashes: tuple[str | None, ...]
    threads: tuple[int | None, ...]
    why: str = ""

    @property
    def accuracy(self) -> float | None:
        """Mean over seeds; nothing if one of them failed."""
        known = [score for score in self.scores if score is not None]
        return fmean(known) if len(known) == len(self.scores) else None


@dataclass(frozen=True)
class Found:
    """What a search found for one method; trials are in their order."""

    plan: MethodPlan
    trials: Sequence[Trial]

    @cached_property
    def best(self) -> Trial | None:
        """The trial with the highest mean, the earliest of several; nothing if all have failed."""
        return max(
            (trial for trial in self.trials if trial.accuracy is not None),
            key=lambda trial: trial.accuracy or 0.0,
            default=None,
        )

    @property
    def threads(self) -> list[int]:
        """Numbers of threads that runs had; several where a search went on with another number of processes."""
        return sorted({count for trial in self.trials for count in trial.threads if count is not None})

    @property
    def failed(self) -> int:
        """Number of trials that failed."""
        return sum(trial.accuracy is None for trial in self.trials)


def plan_methods(search: Search, presets: Path | None) -> list[MethodPlan]:
    """Find out what is fixed and what is searched for each method.

    What a preset says and no range names stays as it is: the backbone, for example. The budget is the same for all.

    Examples
    --------
    >>> (plan,) = plan_methods(Search("split-digits", ("cldnet",), epochs=3), None)
    >>> sorted(plan.ranges), plan.base.options, plan.base.epochs, plan.trials
    (['alpha', 'hidden_share', 'lr'], {'embed_dim': 100}, 3, 24)
    """
    common = common_settings(preset_name(search.stream), presets)
    default = RunSpec("")
    epochs = search.epochs or common.get("epochs", default.epochs)
    batch_size = search.batch_size or common.get("batch_size", default.batch_size)
    if search.outside and not any(read_method(method).traits.outside_data for method in search.methods):
        raise ValueError(
            f"outside={search.outside!r} is for methods that learn from such data, and none of these does."
        )
    plans = []
    for method in search.methods:
        learner = read_method(method)
        check_ranges(method, learner.ranges, learner.config_class)
        spec = preset(search.stream, method, search.seeds[0], folder=presets)
        fixed = {key: value for key, value in spec.options.items() if key not in learner.ranges}
        base = replace(spec, options=fixed, epochs=epochs, batch_size=batch_size)
        if search.outside and learner.traits.outside_data:
            base = replace(base, outside=search.outside)
        settings = count_settings(learner.ranges)
        trials = search.trials if settings is None else min(settings, search.trials)
        plans.append(MethodPlan(method, base, learner.ranges, trials, learner.traits.needs_task_id))
    return plans


def read_trials(folder: Path) -> list[dict[str, Any]]:
    """Read the trials that a folder tells of; none if there is no such file."""
    path = folder / TRIALS
    if not path.is_file():
        return []
    try:
        trials: list[dict[str, Any]] = json.loads(path.read_bytes())["trials"]
        if all(isinstance(trial["method"], str) for trial in trials):
            return trials
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise ValueError(f"{path} is not a list of trials: delete it, and start the search again; finished runs are kept.")


def write_trials(folder: Path, search: Search, trials: Iterable[Trial], others: Sequence[Mapping[str, Any]]) -> None:
    """Write down every trial of a search, behind those of other methods."""
    told = [
        {
            "method": trial.method,
            "number": trial.number,
            "stream": search.text,
            "of": search.of,
            "options": trial.options,
            "seeds": trial.seeds,
            "scores": trial.scores,
            "accuracy": trial.accuracy,
            "files": trial.files,
            "threads": trial.threads,
            "state": "failed" if trial.accuracy is None else "finished",
            "why": trial.why,
        }
        for trial in trials
    ]
    content = {"schema": 1, "trials": [*others, *told]}
    write_atomically(folder / TRIALS, json.dumps(content, indent=1, ensure_ascii=False).encode())
