"""Builds the cache of decoded images: whole or not at all."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from cldnet.data.dataset import Part
from cldnet.data.images.cache import Cache, Entry, in_parts, saying_what_to_do
from cldnet.data.images.decode import BadImage
from cldnet.data.images.scan import Photo
from cldnet.data.images.workers import Target, decode_into
from cldnet.data.memory import open_array

__all__ = ["Progress", "build", "open_parts"]

#: Called with the number of files that are done, and of all.
Progress = Callable[[int, int], None]


def build(cache: Cache, workers: int, on_progress: Progress | None) -> Entry:
    """Decode a folder's photos into its cache, unless another process has done so meanwhile.

    An interrupted run leaves nothing that a later one would take for whole.
    """
    with cache.alone() as alone:
        entry = cache.load()
        if entry is not None:
            return entry
        if alone:
            cache.sweep(".tmp")
        temporary = cache.temporary()
        try:
            entry = _decode_all(cache, temporary, workers, on_progress)
            with saying_what_to_do(cache.folder):
                cache.save(entry, temporary)
        finally:
            temporary.unlink(missing_ok=True)
        if alone:
            cache.sweep()
    return entry


def open_parts(path: Path, photos: Sequence[Photo], size: int, digests: Sequence[str | None]) -> list[Part]:
    """Open the rows of a file of pixels as a training part and, if there is one, a test part."""
    parts, first = [], 0
    for part, digest in zip(in_parts(photos), digests, strict=False):
        x = open_array(path, first * 3 * size**2, np.dtype(np.uint8), (len(part), 3, size, size))
        parts.append(Part(x, np.array([photo.label for photo in part]), digest))
        first += len(part)
    return parts


def _decode_all(cache: Cache, path: Path, workers: int, on_progress: Progress | None) -> Entry:
    """Decode every photo into a row of its own, then close the gaps that bad ones left."""
    photos = [photo for photo in cache.tree.photos if photo.fault is None]
    faults = [BadImage(photo.name, photo.fault) for photo in cache.tree.photos if photo.fault is not None]
    target = Target(str(path), cache.size, cache.resize)
    with saying_what_to_do(cache.folder):
        _make_room(path, len(photos) * target.row_bytes)
    bad: dict[int, BadImage] = {}
    done = len(faults)
    paths = [os.path.join(cache.tree.folder, photo.name) for photo in photos]
    with closing(decode_into(target, paths, workers)) as replies:
        for row, reply in replies:
            if isinstance(reply, OSError):
                with saying_what_to_do(cache.folder):
                    raise reply
            if reply is not None:
                bad[row] = BadImage(photos[row].name, reply.reason, reply.passing)
            done += 1
            if on_progress is not None:
                on_progress(done, len(cache.tree.photos))
    rows = [row for row in range(len(photos)) if row not in bad]
    with saying_what_to_do(cache.folder):
        _close_gaps(path, rows, target.row_bytes)
    kept = tuple(photos[row] for row in rows)
    digests = tuple(part.digest for part in open_parts(path, kept, cache.size, (None, None)))
    return Entry(kept, tuple(sorted([*faults, *bad.values()], key=lambda each: each.path)), digests)


def _make_room(path: Path, size: int) -> None:
    """Make a file of a size, if the disk can take it: better now than after an hour of decoding."""
    if shutil.disk_usage(path.parent).free < size:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}: it takes {size / 1e9:.1f} GB")
    with path.open("xb") as file:
        file.truncate(size)


def _close_gaps(path: Path, rows: Sequence[int], row_bytes: int) -> None:
    """Move the rows of good images together and cut off the rest."""
    with path.open("r+b") as file:
        for place, row in enumerate(rows):
            if place != row:
                file.seek(row * row_bytes)
                pixels = file.read(row_bytes)
                file.seek(place * row_bytes)
                file.write(pixels)
        file.truncate(len(rows) * row_bytes)
        file.flush()
        os.fsync(file.fileno())
