"""A session on disk while it is learned: whoever was interrupted goes on from the last file, and ends in the same bits."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import cldnet.store as store
from cldnet.fit import Midway
from cldnet.plausible import MODULES, check_numbers, whole
from cldnet.version import __version__

__all__ = ["MidwayFile"]

_KIND = "session"
_log = logging.getLogger("cldnet")
_TENSORS = ("order", "chance", "losses", "total")


class MidwayFile:
    """A file that is written now and then while a session is learned, and removed when the model that learned it is saved.

    Parameters
    ----------
    path : path-like
    every : float
        Seconds from the end of one writing to the next.
    """

    def __init__(self, path: str | os.PathLike[str], every: float) -> None:
        if isinstance(every, bool) or not isinstance(every, int | float) or not 0 <= every < float("inf"):
            raise ValueError(f"every={every!r} should be a number of seconds, 0 or more.")
        self.path, self.every = Path(path), every
        with store.reading(self.path):
            there = self.path.absolute().parent.is_dir()
        if not there:
            raise FileNotFoundError(
                f"There is no folder {os.fspath(self.path.parent)!r} for the checkpoint: make it first."
            )
        self._call, self._seed, self._written = "", 0, time.monotonic()

    @property
    def seed(self) -> int | None:
        """Seed of the model whose session is in the file; nothing if there is no file, or none of a session."""
        found = self._read()
        return None if found is None else _seed_in(found[1].get("seed"))

    def begun(self, call: str, seed: int, rows: int, finished: str | None = None) -> Midway | None:
        """Find where the call with this digest stands: nowhere if there is no file, or one of a finished call.

        Parameters
        ----------
        call : str
            Digest of everything that the session depends on.
        seed : int
            Seed of the model, which is written beside it: a first session may have drawn it by chance.
        rows : int
            Examples of the session.
        finished : str, optional
            Digest of the session that the model learned last: a file that is still there of that one is of no use any more.
        """
        self._call, self._seed, self._written = call, seed, time.monotonic()
        found = self._read()
        if found is None:
            return None
        tensors, manifest = found
        if finished is not None and manifest.get("call") == finished:
            return None
        if manifest.get("call") != call:
            raise ValueError(
                f"{os.fspath(self.path)!r} belongs to another session (other data, another model or other settings): delete "
                "it if that one is not to be gone on with, or name another file."
            )
        with whole(self.path, "a whole session", "delete it, and begin again"):
            state, running = (
                {key.removeprefix(part): tensor for key, tensor in tensors.items() if key.startswith(part)}
                for part in ("state/", "running/")
            )
            order, chance, losses, total = (tensors[key] for key in _TENSORS)
            midway = Midway(state, running, order, chance, losses, total, manifest["epoch"], manifest["batches"])
            if len(tensors) > len(state) + len(running) + len(_TENSORS):
                raise ValueError("it has something that no session has")
            _check(midway, rows)
        return midway

    def _read(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        with store.reading(self.path):
            there = self.path.exists()
        if not there:
            return None
        tensors, manifest = store.read(self.path)
        if manifest.get("kind") != _KIND:
            name = os.fspath(self.path)
            raise ValueError(f"{name!r} holds no session that was interrupted: name another file for the checkpoint.")
        return tensors, manifest

    def __call__(self, midway: Callable[[], Midway]) -> None:
        """Write the session as it stands, if it is time."""
        if time.monotonic() - self._written < self.every:
            return
        now = midway()
        try:
            _check(now, len(now.order))
        except ValueError:  # it has diverged, as the session's end is going to say: the last sound file is worth more
            return
        tensors = {
            f"{part}/{key}": tensor for part in ("state", "running") for key, tensor in getattr(now, part).items()
        }
        tensors |= {key: getattr(now, key) for key in _TENSORS}
        manifest = {
            "kind": _KIND,
            "version": __version__,
            "call": self._call,
            "seed": self._seed,
            "epoch": now.epoch,
            "batches": now.batches,
        }
        store.write(self.path, tensors, manifest)
        self._written = time.monotonic()

    def remove(self, saved: str | os.PathLike[str]) -> None:
        """Remove the file: the session is learned and saved, even if the disk will not let go of the file.

        If the model was saved in the file's very place, there is nothing left to remove.
        """
        try:
            if not (self.path.exists() and self.path.samefile(saved)):
                self.path.unlink(missing_ok=True)
            store.sweep(self.path)  # what a writer left that was killed may have the session's inputs in it, too
        except OSError as error:
            _log.warning(
                "The session is learned and saved, but its checkpoint %s could not be removed (%s): delete it.",
                self.path,
                error.strerror or error,
            )


def _seed_in(seed: Any) -> int | None:
    """A seed as a file has it, if it is one: files of before did not say."""
    return seed if type(seed) is int and 0 <= seed < 2**32 else None


def _check(midway: Midway, rows: int) -> None:
    """Refuse what no session can have come to; whether its state goes with the learner shows when the task has begun."""
    order, losses = midway.order, midway.losses
    if not all(type(count) is int and count >= least for count, least in ((midway.epoch, 0), (midway.batches, 1))):
        raise ValueError(f"it says {midway.epoch!r:.80} epochs and {midway.batches!r:.80} batches")
    ordered = order.dtype == torch.int64 and order.ndim == 1 and torch.equal(order.sort()[0], torch.arange(len(order)))
    if not ordered or len(order) != rows:
        raise ValueError("its order of rows is none")
    if (losses.dtype, tuple(losses.shape)) != (torch.float64, (midway.epoch,)) or midway.total.shape != ():
        raise ValueError(f"it has no loss for each of its {midway.epoch} epochs")
    check_numbers({**midway.state, "chance": midway.chance}, foreign=MODULES)
