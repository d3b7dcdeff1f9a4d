"""Checkpoints of a session while it is learned: an interrupted session resumes from the last one, bit for bit."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import cldnet.storage as store
from cldnet.methods.fit import TaskCheckpoint
from cldnet.storage.validation import USER_MODULES, check_values, describe_error
from cldnet.version import __version__

_KIND = "session"
#: Names of tensors in a file, and of the fields that they are read into.
_TENSORS = {"order": "order", "chance": "rng_state", "losses": "losses", "total": "total"}
_log = logging.getLogger("cldnet")


class SessionCheckpoint:
    """A file that is written from time to time during a session, and removed when the model that learned it is saved."""

    def __init__(self, path: str | os.PathLike[str], every: float) -> None:
        if isinstance(every, bool) or not isinstance(every, int | float) or not 0 <= every < float("inf"):
            raise ValueError(f"every={every!r} should be a number of seconds, 0 or more.")
        self.path, self.every = Path(path), every
        with store.reading(self.path):
            exists = self.path.absolute().parent.is_dir()
        if not exists:
            raise FileNotFoundError(f"There is no folder {os.fspath(self.path.parent)!r}: create it first.")
        self._session, self._seed, self._written = "", 0, time.monotonic()

    @property
    def seed(self) -> int | None:
        """Seed of the model whose session is in the file, if there is one."""
        found = self._read()
        seed = None if found is None else found[1].get("seed")  # older files have none
        return seed if type(seed) is int and 0 <= seed < 2**32 else None

    def resume(self, session: str, seed: int, samples: int, finished: str | None = None) -> TaskCheckpoint | None:
        """Find where a session stands: None if there is no file, or one of the session that the model ``finished`` last.

        ``session`` is a digest of everything that the outcome depends on. The model's ``seed`` is written to the file: a first
        session may have drawn it at random.
        """
        self._session, self._seed, self._written = session, seed, time.monotonic()
        found = self._read()
        if found is None:
            return None
        tensors, manifest = found
        if finished is not None and manifest.get("call") == finished:
            return None
        if manifest.get("call") != session:
            raise ValueError(
                f"{os.fspath(self.path)!r} belongs to another session (other data, another model or other settings): delete "
                "it if you do not need that session, or name another file."
            )
        with describe_error(self.path, "checkpoint", "delete it, and begin again"):
            progress = task_from_file(tensors, manifest)
            if len(progress.order) != samples:
                raise ValueError("its order of samples is invalid")
        return progress

    def _read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        return read_checkpoint(self.path, _KIND, "a checkpoint")

    def __call__(self, progress: Callable[[], TaskCheckpoint]) -> None:
        """Write the session as it stands, if it is time."""
        if time.monotonic() - self._written < self.every:
            return
        now = progress()
        try:
            tensors, counts = task_to_file(now)
        except ValueError:  # it has diverged, as the end of the session will report: keep the last valid checkpoint
            return
        manifest = {"kind": _KIND, "version": __version__, "call": self._session, "seed": self._seed}
        store.write(self.path, tensors, manifest | counts)
        self._written = time.monotonic()

    def remove(self, saved: str | os.PathLike[str]) -> None:
        """Remove the file after its session was learned and saved, unless the model was saved in its place."""
        remove_checkpoint(self.path, saved, "session is learned")


def read_checkpoint(path: Path, kind: str, what: str) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """Read the tensors and the manifest of a checkpoint; None if there is no file, an error if it is of another kind."""
    with store.reading(path):
        exists = path.exists()
    if not exists:
        return None
    tensors, manifest = store.read(path)
    if manifest.get("kind") != kind:
        raise ValueError(f"{os.fspath(path)!r} is not {what}: name another file.")
    return tensors, manifest


def task_to_file(progress: TaskCheckpoint) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Turn a task that is partly learned into tensors and counts for a file; raise a ValueError if it has diverged."""
    _check(progress)
    tensors = {f"{part}/{key}": each for part in ("state", "running") for key, each in getattr(progress, part).items()}
    tensors |= {key: getattr(progress, field) for key, field in _TENSORS.items()}
    return tensors, {"epoch": progress.epoch, "batches": progress.batches}


def task_from_file(tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> TaskCheckpoint:
    """Validate a file's tensors and manifest, and make a task that is partly learned."""
    state, running = (
        {key.removeprefix(part): tensor for key, tensor in tensors.items() if key.startswith(part)}
        for part in ("state/", "running/")
    )
    order, rng_state, losses, total = (tensors[key] for key in _TENSORS)
    progress = TaskCheckpoint(state, running, order, rng_state, losses, total, manifest["epoch"], manifest["batches"])
    if len(tensors) > len(state) + len(running) + len(_TENSORS):
        raise ValueError("it has tensors that no checkpoint has")
    _check(progress)
    return progress


def remove_checkpoint(path: Path, saved: str | os.PathLike[str], done: str) -> None:
    """Remove a checkpoint after what it belongs to was ``done`` and saved, unless that was saved in its place."""
    try:
        if not (path.exists() and path.samefile(saved)):
            path.unlink(missing_ok=True)
        store.sweep(path)  # temporary files of killed writers may contain the session's inputs, too
    except OSError as error:
        _log.warning(
            "The %s and saved, but its checkpoint %s could not be removed (%s): delete it.",
            done,
            path,
            error.strerror or error,
        )


def _check(progress: TaskCheckpoint) -> None:
    """Refuse what no session can contain; whether its state fits the learner shows when the task has begun."""
    order, losses = progress.order, progress.losses
    if not all(type(count) is int and count >= least for count, least in ((progress.epoch, 0), (progress.batches, 1))):
        raise ValueError(f"it has {progress.epoch!r:.80} epochs and {progress.batches!r:.80} batches")
    ordered = order.dtype == torch.int64 and order.ndim == 1 and torch.equal(order.sort()[0], torch.arange(len(order)))
    if not ordered:
        raise ValueError("its order of samples is invalid")
    if (losses.dtype, tuple(losses.shape)) != (torch.float64, (progress.epoch,)) or progress.total.shape != ():
        raise ValueError(f"it does not have one loss for each of its {progress.epoch} epochs")
    check_values({**progress.state, "chance": progress.rng_state}, foreign=USER_MODULES)
