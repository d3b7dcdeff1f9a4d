"""A session on disk while it is learned: whoever was interrupted goes on from the last file, and ends in the same bits."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import cldnet.store as store
from cldnet.fit import Midway
from cldnet.version import __version__

__all__ = ["MidwayFile"]

_KIND = "session"
_TENSORS = ("order", "chance", "losses", "total")


class MidwayFile:
    """A file that is written now and then while a session is learned, and removed when it is.

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
        if not self.path.absolute().parent.is_dir():
            raise FileNotFoundError(
                f"There is no folder {os.fspath(self.path.parent)!r} for the checkpoint: make it first."
            )
        self._call, self._written = "", time.monotonic()

    def begun(self, call: str) -> Midway | None:
        """Find where the call with this digest stands; nowhere if there is no file."""
        self._call, self._written = call, time.monotonic()
        if not self.path.exists():
            return None
        tensors, manifest = store.read(self.path)
        name = os.fspath(self.path)
        if manifest.get("kind") != _KIND:
            raise ValueError(f"{name!r} holds no session that was interrupted: name another file for the checkpoint.")
        if manifest.get("call") != call:
            raise ValueError(
                f"{name!r} belongs to another session (other data, another model, other settings, or a first session without "
                "random_state): delete it if that one is not to be gone on with, or name another file."
            )
        state, running = (
            {key.removeprefix(part): tensor for key, tensor in tensors.items() if key.startswith(part)}
            for part in ("state/", "running/")
        )
        try:
            order, chance, losses, total = (tensors[key] for key in _TENSORS)
            epoch, batches = int(manifest["epoch"]), int(manifest["batches"])
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{name!r} does not hold a whole session ({error}): delete it, and begin again."
            ) from error
        return Midway(state, running, order, chance, losses, total, epoch, batches)

    def __call__(self, midway: Callable[[], Midway]) -> None:
        """Write the session as it stands, if it is time."""
        if time.monotonic() - self._written < self.every:
            return
        now = midway()
        tensors = {
            f"{part}/{key}": tensor for part in ("state", "running") for key, tensor in getattr(now, part).items()
        }
        tensors |= {key: getattr(now, key) for key in _TENSORS}
        manifest = {
            "kind": _KIND,
            "version": __version__,
            "call": self._call,
            "epoch": now.epoch,
            "batches": now.batches,
        }
        store.write(self.path, tensors, manifest)
        self._written = time.monotonic()

    def remove(self) -> None:
        """Remove the file: the session is learned."""
        self.path.unlink(missing_ok=True)
