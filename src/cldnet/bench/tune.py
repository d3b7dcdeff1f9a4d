"""Choose settings on a validation part of the training data, with as many trials for one method as for another.

The search goes in rounds: every method is asked for one setting, all of these are run with every seed, and the figures are
told to the method's study. A round's runs are result files, and what is there is not run again: a search that was stopped,
or killed, goes on where it was and ends as it would have ended, if runs have as many threads. The stream's test part is never
looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from cldnet.bench.cell import Cell
from cldnet.bench.events import Event, Failed, Finished, Outcome, Progressed
from cldnet.bench.proposals import load_optuna, next_setting
from cldnet.bench.provenance import write_presets
from cldnet.bench.recording import Record
from cldnet.bench.results import read_result
from cldnet.bench.trials import Found, MethodPlan, Search, Trial, plan_methods, read_trials, write_trials
from cldnet.bench.workers import execute
from cldnet.data.outside import read_outside
from cldnet.data.streams import stream_by_name
from cldnet.methods import build_learner, read_method
from cldnet.methods.config import config_from_json, config_to_json
from cldnet.methods.learner import Setting

__all__ = ["Executor", "tune"]

OnProgress = Callable[[str, int, float], None]
OnTrial = Callable[[Trial], None]


class Executor(Protocol):
    """What runs cells and writes their result files; see `cldnet.bench.workers.execute`."""

    def __call__(
        self,
        cells: Sequence[Cell],
        folder: Path,
        *,
        jobs: int,
        data: Path | None = None,
        on_event: Callable[[Event], None],
    ) -> Outcome:
        """Run the cells that have no file yet."""


def tune(
    search: Search,
    folder: Path,
    presets: Path,
    *,
    jobs: int = 1,
    data: Path | None = None,
    on_progress: OnProgress = lambda method, number, share: None,
    on_trial: OnTrial = lambda trial: None,
    run_cells: Executor = execute,
) -> tuple[list[Found], Path]:
    """Run a search, and write its trials and the preset of the stream.

    Parameters
    ----------
    search : Search
    folder : Path
        For result files and for the list of all trials.
    presets : Path
        Folder of the preset file, which keeps what it says of other methods.
    jobs : int
        Processes side by side; each has its share of the cores as threads.
    data : Path, optional
        Folder in which data sets are looked for first.
    on_progress : callable
        Told a method, the number of its trial, and the share of it that is done.
    on_trial : callable
        Told every trial as soon as it has ended.
    run_cells : callable
        What runs cells.

    Returns
    -------
    found : list of Found
        One a method.
    path : Path
        The preset file.
    """
    load_optuna()  # before hours have gone by
    plans = plan_methods(search, presets)
    _check(search, plans, data)
    others = [trial for trial in read_trials(folder) if trial["method"] not in search.methods]
    for needed in (folder, presets):
        needed.mkdir(parents=True, exist_ok=True)
    trials: dict[str, list[Trial]] = {plan.method: [] for plan in plans}
    for number in range(max(plan.trials for plan in plans)):
        due = [plan for plan in plans if number < plan.trials]
        settings = [_setting(plan, trials[plan.method], search) for plan in due]
        asked = _Round(search, folder, number, due, settings, on_progress, on_trial)
        asked.close(run_cells(asked.cells, folder, jobs=jobs, data=data, on_event=asked.hear))
        for plan, trial in zip(due, asked.trials, strict=True):
            trials[plan.method].append(trial)
        write_trials(folder, search, (trial for told in trials.values() for trial in told), others)
    found = [Found(plan, trials[plan.method]) for plan in plans]
    return found, write_presets(search, found, presets, jobs)


def _check(search: Search, plans: Sequence[MethodPlan], data: Path | None) -> None:
    """Refuse what could not run, before anything is run."""
    stream = stream_by_name(search.text, search.seeds[0], data=data)
    if stream.online is not None and (search.epochs, search.batch_size) != (None, None):
        raise ValueError(
            f"{stream.name} is passed once, in batches of {stream.online}: leave epochs and batch size out."
        )
    setting = Setting(stream.input_shape, capacity=len(stream.class_order), seed=search.seeds[0])
    for plan in plans:
        base = plan.base
        base.check_outside()
        if base.outside:
            read_outside(base.outside, stream, data)
        build_learner(plan.method, setting, config_from_json(base.options), base.backbone, base.backbone_options)


def _setting(plan: MethodPlan, trials: Sequence[Trial], search: Search) -> dict[str, Any]:
    """The next setting of a method's searched options: its defaults at first, unless they are out of its own ranges."""
    if not trials:
        default = config_to_json(read_method(plan.method).config_class())
        if all(default[name] in span for name, span in plan.ranges.items()):
            return {name: default[name] for name in plan.ranges}
    tried = [({name: trial.options[name] for name in plan.ranges}, trial.accuracy) for trial in trials]
    return next_setting(plan.ranges, tried, seed=f"{search.seeds[0]}/{plan.method}")


class _Round:
    """One trial of every method that has one left. A trial is told as soon as all of its seeds have ended."""

    def __init__(
        self,
        search: Search,
        folder: Path,
        number: int,
        plans: Sequence[MethodPlan],
        settings: Sequence[Mapping[str, Any]],
        on_progress: OnProgress,
        on_trial: OnTrial,
    ) -> None:
        self.folder, self.number, self.plans, self.seeds = folder, number, plans, search.seeds
        self.on_progress, self.on_trial = on_progress, on_trial
        self.options = [{**plan.base.options, **setting} for plan, setting in zip(plans, settings, strict=True)]
        self.cells = [
            Cell(search.text, replace(plan.base, options=options, seed=seed), record=Record(leaky=False))
            for plan, options in zip(plans, self.options, strict=True)
            for seed in search.seeds
        ]
        self._shares = [0.0] * len(self.cells)
        self._ends: dict[int, Path | str] = {}
        self._trials: dict[int, Trial] = {}

    @property
    def trials(self) -> list[Trial]:
        """The trials, in the order of the methods."""
        return [self._trials[place] for place in range(len(self.plans))]

    def hear(self, event: Event) -> None:
        """Take in what the runner tells of a cell."""
        if isinstance(event, Progressed):
            self._shares[event.number] = event.share
            place = event.number // len(self.seeds)
            cells = self._cells(place)
            share = sum(self._shares[cell] for cell in cells) / len(cells)
            self.on_progress(self.plans[place].method, self.number, share)
        elif isinstance(event, Finished):
            self._end(event.number, event.path)
        elif isinstance(event, Failed) and not event.again:
            self._end(event.number, event.why)

    def close(self, outcome: Outcome) -> None:
        """Take in what nobody told of: cells that were there before, or that others have run."""
        for number, file in enumerate(outcome.files):
            if number not in self._ends:
                self._end(number, outcome.failures.get(number, "It was not run.") if file is None else file)

    def _cells(self, place: int) -> range:
        return range(place * len(self.seeds), (place + 1) * len(self.seeds))

    def _end(self, number: int, end: Path | str) -> None:
        self._ends[number], self._shares[number] = end, 1.0
        place = number // len(self.seeds)
        cells = self._cells(place)
        if place not in self._trials and all(cell in self._ends for cell in cells):
            self._trials[place] = self._trial(place, [self._ends[cell] for cell in cells])
            self.on_trial(self._trials[place])

    def _trial(self, place: int, ends: Sequence[Path | str]) -> Trial:
        results = [None if isinstance(end, str) else read_result(end) for end in ends]
        reasons = {
            seed: end if isinstance(end, str) else f"{end.name} is no result"
            for seed, end, result in zip(self.seeds, ends, results, strict=True)
            if result is None
        }
        return Trial(
            self.plans[place].method,
            self.number,
            self.options[place],
            self.seeds,
            tuple(None if result is None else _score(result["scores"]) for result in results),
            tuple(None if result is None else result["file"] for result in results),
            tuple(None if result is None else result["stream"]["hash"] for result in results),
            tuple(None if result is None else _threads(result) for result in results),
            "; ".join(f"seed {seed}: {why}" for seed, why in reasons.items()),
        )


def _threads(result: Mapping[str, Any]) -> int | None:
    threads = result.get("threads")
    return threads if type(threads) is int else None


def _score(scores: Mapping[str, float | None]) -> float | None:
    """Average accuracy after the last task; of a method that needs the task, its task-IL accuracy."""
    class_il = scores["average_accuracy"]
    return scores["task_il_accuracy"] if class_il is None else class_il
