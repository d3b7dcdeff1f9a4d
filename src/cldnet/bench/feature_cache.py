"""A cache of the features that frozen nets compute, so that a second method, seed or class order costs no time on them.

Entries are keyed by content: a net by the digest of all that its features depend on, an image by the digest of its pixels. So
nothing can be out of date. Features reveal a lot about their images: the cache is for benchmarks, `cldnet learn` keeps nothing.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from cldnet.data.catalog import cache_folder
from cldnet.nets.pretrained import frozen_nets
from cldnet.storage import write_atomically

#: Images that are written to one file.
_PORTION = 2048
_DIGEST = 16  # bytes
_LOGGER = logging.getLogger("cldnet")


class FeatureCache:
    """Features of images in a folder, one folder per net within it. Deleting it costs time and nothing else.

    ``computed`` and ``recalled`` count images; ``seconds`` is what the net took for the former.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.computed, self.recalled, self.seconds = 0, 0, 0.0
        self._nets: dict[str, _NetCache] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> FeatureCache:
        return self  # copies of a learner share it

    def vectors(self, body: str, images: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Return the features of images ``(n, …)``, exactly as ``compute`` gives them."""
        digests = [_digest(image) for image in _as_bytes(images)]
        net = self._nets.setdefault(body, _NetCache(self.folder / body))
        missing = net.missing(digests)
        if missing:
            begun = time.perf_counter()
            made = compute(images[missing])
            self.seconds += time.perf_counter() - begun
            net.waiting.update(zip((digests[row] for row in missing), made.float().cpu().numpy(), strict=True))
            if len(net.waiting) >= _PORTION:
                net.flush()
        self.computed += len(missing)
        self.recalled += len(digests) - len(missing)
        return torch.from_numpy(net.rows(digests)).to(images.device)

    def to_json(self) -> dict[str, Any]:
        """Return the counts and the seconds for a result file."""
        return {"computed": self.computed, "recalled": self.recalled, "seconds": self.seconds}

    def flush(self) -> None:
        """Write what is not on disk yet."""
        for net in self._nets.values():
            net.flush()


class _NetCache:
    """Features of one net: memory-mapped files, and rows that wait to be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, NDArray[np.uint8]] = {}
        self._place: dict[bytes, tuple[str, int]] = {}
        self.waiting: dict[bytes, NDArray[np.float32]] = {}

    def missing(self, digests: list[bytes]) -> list[int]:
        """Indices of images without features, after looking for new files of other processes."""
        if not all(digest in self._place or digest in self.waiting for digest in digests):
            self._refresh()
        return [n for n, digest in enumerate(digests) if digest not in self._place and digest not in self.waiting]

    def rows(self, digests: list[bytes]) -> NDArray[np.float32]:
        """Features of known images."""
        found = []
        for digest in digests:
            if digest in self.waiting:
                found.append(self.waiting[digest])
            else:
                name, row = self._place[digest]
                found.append(np.frombuffer(self._files[name][row, _DIGEST:].tobytes(), np.float32))
        return np.stack(found) if found else np.empty((0, 0), np.float32)

    def flush(self) -> None:
        """Write the waiting rows to one file. A full disk only costs time later."""
        if not self.waiting:
            return
        keys = np.frombuffer(b"".join(self.waiting), np.uint8).reshape(-1, _DIGEST)
        content = np.concatenate([keys, np.stack(list(self.waiting.values())).view(np.uint8)], axis=1)
        name, file = f"{_checksum(content)}.npy", io.BytesIO()
        np.save(file, content, allow_pickle=False)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self.folder / name, file.getvalue())
        except OSError as error:
            _LOGGER.warning("Features cannot be cached in %s (%s): they will be computed again.", self.folder, error)
            return
        self._take(name, content)
        self.waiting.clear()

    def _refresh(self) -> None:
        """Open new files of the folder; a file whose content does not match its name is removed."""
        names = os.listdir(self.folder) if self.folder.is_dir() else []
        for name in sorted(name for name in names if name.endswith(".npy") and name not in self._files):
            try:
                content = np.load(self.folder / name, mmap_mode="r", allow_pickle=False)
                valid = content.ndim == 2 and content.dtype == np.uint8 and f"{_checksum(content)}.npy" == name
            except (OSError, ValueError, EOFError):
                valid = False
            if valid:
                self._take(name, content)
            else:
                _LOGGER.warning("Removed damaged %s: its features will be computed again.", self.folder / name)
                with suppress(OSError):
                    (self.folder / name).unlink()

    def _take(self, name: str, content: NDArray[np.uint8]) -> None:
        self._files[name] = content
        keys = np.ascontiguousarray(content[:, :_DIGEST]).tobytes()
        for row in range(len(content)):
            self._place.setdefault(keys[row * _DIGEST : (row + 1) * _DIGEST], (name, row))


@contextmanager
def remembering(learner: nn.Module, folder: Path | None = None) -> Iterator[FeatureCache | None]:
    """Cache the features of a learner's frozen networks while the block runs. Yields None if it has no frozen network.

    It lies in ``cldnet/features`` in ``$XDG_CACHE_HOME`` or ``~/.cache``, unless another folder is given.
    """
    nets = frozen_nets(learner)
    cache = FeatureCache(folder or cache_folder().with_name("features")) if nets else None
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
    """Convert images of integers from 0 to 255 to uint8, whatever their type: they have the same features."""
    if not images.is_floating_point():
        return images
    as_bytes = images.clamp(0, 255).to(torch.uint8)
    return as_bytes if torch.equal(as_bytes.to(images.dtype), images) else images


def _digest(image: Tensor) -> bytes:
    numbers = image.detach().cpu().contiguous().numpy()
    head = f"{numbers.dtype}{numbers.shape}".encode()
    return hashlib.blake2b(head + numbers.tobytes(), digest_size=_DIGEST).digest()


def _checksum(content: NDArray[np.uint8]) -> str:
    return hashlib.blake2b(np.ascontiguousarray(content).data, digest_size=_DIGEST).hexdigest()
