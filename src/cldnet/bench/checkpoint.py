"""Checkpoints of a run: an interrupted run resumes from its last one when it is started again, bit for bit."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

import cldnet.storage as store
from cldnet.bench.validation import StrictTable, validate
from cldnet.methods.fit import TaskCheckpoint
from cldnet.methods.learner import Learner
from cldnet.storage.checkpoint import read_checkpoint, remove_checkpoint, task_from_file, task_to_file
from cldnet.storage.validation import USER_MODULES, check_shapes, check_values, describe_error
from cldnet.version import __version__

_KIND = "run"
_BEFORE = "before/"


class Spent(StrictTable):
    """What a run had spent before it was interrupted."""

    elapsed: float = 0.0  # seconds
    trained: float = 0.0  # seconds of training on the task that was interrupted
    peak_rss: int = 0


class Recorded(StrictTable):
    """What a run has recorded so far; see `cldnet.bench.run.Recorder`."""

    matrix: list[list[float]]
    task_il_matrix: list[list[float]]
    losses: list[list[float | None]]
    seconds: dict[str, list[float]]
    sizes: list[int]
    growth: list[int | None]
    ranks: list[dict[str, dict[str, float]]]
    features: list[dict[str, Any]]
    epoch_accuracies: list[float]
    epoch_seconds: float
    first: tuple[int, int] | None
    spent: Spent

    def check_complete(self, tasks: int) -> None:
        """Refuse a record that does not have one entry for each task that was learned."""
        lengths = {len(self.matrix), len(self.task_il_matrix), len(self.losses), len(self.sizes), len(self.ranks)}
        lengths |= {len(seconds) for seconds in self.seconds.values()}
        complete = lengths == {tasks} and len(self.growth) >= tasks and (tasks > 0) == (self.first is not None)
        if not complete or {*self.seconds} != {"train", "evaluate", "diagnose"}:
            raise ValueError(f"it does not have one record for each of its {tasks} tasks")


@dataclass(frozen=True)
class Standing:
    """Where a run stands: so many tasks were learned, and perhaps part of the next."""

    tasks: int
    recorded: Recorded
    task: TaskCheckpoint | None


class RunCheckpoint:
    """A file that is written after every task and from time to time during one.

    Parameters
    ----------
    path : path-like
        The file.
    every : float
        Seconds between two checkpoints during a task.
    writes : bool
        Whether this process writes the file. Of several ranks that train together the first one does; all read it.
    """

    def __init__(self, path: str | os.PathLike[str], every: float = 30.0, *, writes: bool = True) -> None:
        self.path, self.every, self.writes = Path(path), every, writes
        with store.reading(self.path):
            folder = self.path.absolute().parent.is_dir()
        if not folder:
            raise FileNotFoundError(f"There is no folder {os.fspath(self.path.parent)!r}: create it first.")
        self._run, self._written = "", time.monotonic()
        self._before: dict[str, Tensor] = {}
        self._tasks = 0

    def resume(self, run: str, learner: Learner, tasks: int) -> Standing | None:
        """Load what a run has learned into a new learner; None if there is no file.

        ``run`` is a digest of all that the result depends on, ``tasks`` the number of tasks of its stream.
        """
        self._run, self._written = run, time.monotonic()
        found = read_checkpoint(self.path, _KIND, "the checkpoint of a run")
        if found is None:
            return None
        tensors, manifest = found
        if manifest.get("run") != run:
            raise ValueError(
                f"{os.fspath(self.path)!r} belongs to another run (another stream, method or setting, another number of ranks "
                "or threads, or another version of cldnet): delete it if you do not need that run, or name another file."
            )
        with describe_error(self.path, "checkpoint", "delete it, and begin again"):
            return _standing(tensors, manifest, learner, tasks)

    def begin_task(self, learner: Learner, tasks: int) -> None:
        """Take a copy of the state between two tasks, from which a task that is interrupted begins again."""
        self._tasks = tasks
        if self.writes:
            self._before = {f"{_BEFORE}{name}": each.detach().clone() for name, each in learner.state_dict().items()}

    def write(self, recorded: Callable[[], Recorded], task: Callable[[], TaskCheckpoint] | None = None) -> None:
        """Write where the run stands: between two tasks at once, during one if it is time."""
        if not self.writes or (task is not None and time.monotonic() - self._written < self.every):
            return
        try:
            check_values(_without_prefix(self._before), foreign=USER_MODULES)
            tensors, counts = ({}, {}) if task is None else task_to_file(task())
        except ValueError:  # it has diverged, as the result will show: keep the last valid checkpoint
            return
        head = {"kind": _KIND, "version": __version__, "run": self._run, "tasks": self._tasks}
        store.write(self.path, {**self._before, **tensors}, {**head, **counts, "recorded": recorded().model_dump()})
        self._written = time.monotonic()

    def remove(self, saved: str | os.PathLike[str]) -> None:
        """Remove the file after the result was saved."""
        if self.writes:
            remove_checkpoint(self.path, saved, "run is finished")


def _standing(tensors: Mapping[str, Tensor], manifest: Mapping[str, Any], learner: Learner, most: int) -> Standing:
    """Validate a file's content, and load the state between two tasks."""
    before = _without_prefix({name: tensor for name, tensor in tensors.items() if name.startswith(_BEFORE)})
    during = {name: tensor for name, tensor in tensors.items() if not name.startswith(_BEFORE)}
    tasks, recorded = manifest["tasks"], validate(Recorded, _tuples(manifest["recorded"]))
    if type(tasks) is not int or not 0 <= tasks <= most:
        raise ValueError(f"it has {tasks!r:.80} tasks")
    recorded.check_complete(tasks)
    check_shapes(before, learner)
    check_values(before, foreign=USER_MODULES)
    if int(before["counters"][0]) != tasks or int(before["counters"][1]) > learner.setting.capacity:
        raise ValueError("its model has learned other tasks")
    learner.load_state(before)
    task = task_from_file(during, manifest) if during and tasks < most else None
    return Standing(tasks, recorded, task)


def _tuples(recorded: Any) -> Any:
    """JSON has lists where a record has a tuple."""
    if isinstance(recorded, dict) and isinstance(recorded.get("first"), list):
        return {**recorded, "first": tuple(recorded["first"])}
    return recorded


def _without_prefix(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(_BEFORE): tensor for name, tensor in tensors.items()}
