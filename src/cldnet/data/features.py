"""Vectors that frozen nets made of images, remembered on disk: a second method, seed or class order costs no time on them.

Everything goes by content. A net is known by the digest of all that its vectors follow from, an image by that of its pixels; so
nothing can be out of date, and rows may come in any order, from any data set. Vectors tell a lot about their images: the cache
is for benches, whose data lie on the same disk anyway. `cldnet learn` keeps nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cldnet.data.find import cache_folder
from cldnet.nets.pretrained import Adapted, Pretrained

__all__ = ["FeatureCache", "default_features", "remembering"]

#: Rows that are written together.
_PORTION = 2048
_DIGEST = 16  # bytes
_log = logging.getLogger("cldnet")


def default_features() -> Path:
    """Return the folder for remembered vectors: ``cldnet/features`` in ``$XDG_CACHE_HOME`` or ``~/.cache``."""
    return cache_folder().with_name("features")


class FeatureCache:
    """Vectors of images in a folder, one folder a net within it, in files that are complete or not there.

    Parameters
    ----------
    folder : Path
        Where they lie. Whoever deletes it loses time and nothing else.

    Attributes
    ----------
    computed, recalled : int
        Images that a net had to look at, and those that it was spared.
    seconds : float
        What the net took for the former.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> cache, images = FeatureCache(Path(folder.name)), torch.arange(24.0).reshape(2, 3, 2, 2)
    >>> first = cache.vectors("some-net", images, lambda x: x.flatten(1))
    >>> torch.equal(cache.vectors("some-net", images.flip(0), lambda x: x.flatten(1)), first.flip(0))
    True
    >>> cache.computed, cache.recalled
    (2, 2)
    >>> folder.cleanup()
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.computed, self.recalled, self.seconds = 0, 0, 0.0
        self._known: dict[str, _OfNet] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> FeatureCache:
        return self  # copies of a learner share it

    def vectors(self, body: str, images: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Vectors of images ``(n, …)``, as ``compute`` would give them, to the bit."""
        digests = [_digest(image) for image in _as_bytes(images)]
        known = self._known.setdefault(body, _OfNet(self.folder / body))
        missing = known.missing(digests)
        if missing:
            begun = time.perf_counter()
            made = compute(images[missing])
            self.seconds += time.perf_counter() - begun
            known.add([digests[row] for row in missing], made.float().cpu().numpy())
        self.computed += len(missing)
        self.recalled += len(digests) - len(missing)
        return torch.from_numpy(known.rows(digests)).to(images.device)

    def to_json(self) -> dict[str, Any]:
        """Say how many vectors were computed, how many were known, and what the former took."""
        return {"computed": self.computed, "recalled": self.recalled, "seconds": self.seconds}

    def flush(self) -> None:
        """Write what is not on disk yet."""
        for known in self._known.values():
            known.flush()


class _OfNet:
    """Vectors of one net: pieces on disk, mapped into memory, and rows that wait to be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._pieces: dict[str, NDArray[np.uint8]] = {}
        self._place: dict[bytes, tuple[str, int]] = {}
        self._waiting: dict[bytes, NDArray[np.float32]] = {}

    def missing(self, digests: list[bytes]) -> list[int]:
        """Places of images without a vector. Other processes may have written some since the last look."""
        absent = self._absent(digests)
        if absent:
            self._look()
            absent = self._absent(digests)
        return absent

    def _absent(self, digests: list[bytes]) -> list[int]:
        return [row for row, digest in enumerate(digests) if digest not in self._place and digest not in self._waiting]

    def add(self, digests: list[bytes], vectors: NDArray[np.float32]) -> None:
        """Keep vectors; many enough are written at once."""
        self._waiting.update(zip(digests, vectors, strict=True))
        if len(self._waiting) >= _PORTION:
            self.flush()

    def rows(self, digests: list[bytes]) -> NDArray[np.float32]:
        """Vectors of images that are all known."""
        return np.stack([self._row(digest) for digest in digests]) if digests else np.empty((0, 0), np.float32)

    def _row(self, digest: bytes) -> NDArray[np.float32]:
        if digest in self._waiting:
            return self._waiting[digest]
        name, row = self._place[digest]
        return np.frombuffer(self._pieces[name][row, _DIGEST:].tobytes(), np.float32)

    def flush(self) -> None:
        """Write the waiting rows as one piece. A disk that is full costs time later on, and nothing now."""
        if not self._waiting:
            return
        keys = np.frombuffer(b"".join(self._waiting), np.uint8).reshape(-1, _DIGEST)
        numbers = np.stack(list(self._waiting.values())).view(np.uint8)
        piece = np.concatenate([keys, numbers], axis=1)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._write(piece)
        except OSError as error:
            _log.warning("Vectors cannot be remembered in %s (%s): they will be computed again.", self.folder, error)
            return
        self._waiting.clear()

    def _write(self, piece: NDArray[np.uint8]) -> None:
        name = f"{_content(piece)}.npy"
        draft = self.folder / f"{secrets.token_hex(8)}.tmp"
        try:
            with draft.open("xb") as file:
                np.save(file, piece, allow_pickle=False)
            draft.replace(self.folder / name)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        self._take(name, piece)

    def _look(self) -> None:
        """Take in what is new in the folder; a piece that is not what its name says is removed."""
        names = [
            entry for entry in sorted(_listed(self.folder)) if entry.endswith(".npy") and entry not in self._pieces
        ]
        for name in names:
            try:
                piece = np.load(self.folder / name, mmap_mode="r", allow_pickle=False)
                whole = piece.ndim == 2 and piece.dtype == np.uint8 and f"{_content(piece)}.npy" == name
            except (OSError, ValueError, EOFError):
                whole = False
            if whole:
                self._take(name, piece)
            else:
                _log.warning("%s is damaged, and removed: its vectors will be computed again.", self.folder / name)
                with suppress(OSError):
                    (self.folder / name).unlink()

    def _take(self, name: str, piece: NDArray[np.uint8]) -> None:
        self._pieces[name] = piece
        keys = np.ascontiguousarray(piece[:, :_DIGEST]).tobytes()
        for row in range(len(piece)):
            self._place.setdefault(keys[row * _DIGEST : (row + 1) * _DIGEST], (name, row))


@contextmanager
def remembering(learner: nn.Module, folder: Path) -> Iterator[FeatureCache | None]:
    """Have the frozen nets of a learner remember vectors while the block runs; yields nothing if it has none.

    Examples
    --------
    >>> with remembering(nn.Linear(2, 2), Path("unused")) as cache:
    ...     print(cache)
    None
    """
    nets = [part for part in learner.modules() if isinstance(part, Pretrained) and not isinstance(part, Adapted)]
    cache = FeatureCache(folder) if nets else None
    for net in nets:
        net.memory = cache
    try:
        yield cache
    finally:
        for net in nets:
            net.memory = None
        if cache is not None:
            cache.flush()


def _as_bytes(images: Tensor) -> Tensor:
    """Images of whole numbers from 0 to 255 in bytes, in whatever type they come: they have the same vectors."""
    if not images.is_floating_point():
        return images
    as_bytes = images.clamp(0, 255).to(torch.uint8)
    return as_bytes if torch.equal(as_bytes.to(images.dtype), images) else images


def _digest(image: Tensor) -> bytes:
    numbers = image.detach().cpu().contiguous().numpy()
    head = f"{numbers.dtype}{numbers.shape}".encode()
    return hashlib.blake2b(head + numbers.tobytes(), digest_size=_DIGEST).digest()


def _content(piece: NDArray[np.uint8]) -> str:
    return hashlib.blake2b(np.ascontiguousarray(piece).data, digest_size=_DIGEST).hexdigest()


def _listed(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # not there, or not to be read: nothing is known
        return []
