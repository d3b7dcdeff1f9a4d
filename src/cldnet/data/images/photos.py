"""Photos for one call, decoded into memory: who learns from photos may not be allowed to keep them anywhere."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cldnet.data.images.decode import BadImage, pillow
from cldnet.data.images.scan import SUFFIXES, scan_folder
from cldnet.data.images.workers import Target, decode_into, usable_cpus

__all__ = ["Photos", "find_photos", "read_photos"]


@dataclass(frozen=True)
class Photos:
    """Decoded photos.

    Attributes
    ----------
    x : ndarray, shape (n, 3, size, size)
        Their pixels, from 0 to 255.
    places : ndarray of int
        Which of the paths that were asked for each row is.
    bad : tuple of BadImage
        Those that could not be read, and why.
    """

    x: NDArray[np.uint8]
    places: NDArray[np.int64]
    bad: tuple[BadImage, ...]


def read_photos(paths: Sequence[str | os.PathLike[str]], size: int, resize: int) -> Photos:
    """Decode photos, each brought to one size (`cldnet.data.images.decode.decode`). What cannot be read is named, not raised.

    Examples
    --------
    >>> photos = read_photos(["no-such-file.jpg"], 16, 18)
    >>> photos.x.shape, photos.bad[0].reason
    ((0, 3, 16, 16), 'No such file or directory')
    """
    pillow()
    names = [os.fspath(path) for path in paths]
    bad: dict[int, BadImage] = {}
    with _scratch() as place:
        target = Target(place, size, resize)
        os.truncate(place, len(names) * target.row_bytes)
        with closing(decode_into(target, names, usable_cpus())) as replies:
            for row, reply in replies:
                if isinstance(reply, OSError):
                    raise reply
                if reply is not None:
                    bad[row] = reply
        rows = np.fromfile(place, np.uint8).reshape(len(names), 3, size, size)
    places = np.array([row for row in range(len(names)) if row not in bad], dtype=np.int64)
    return Photos(rows[places] if bad else rows, places, tuple(bad[row] for row in sorted(bad)))


@contextmanager
def _scratch() -> Iterator[str]:
    """A file for the processes that decode: in memory alone where the system has that, so that not even a kill leaves it."""
    if hasattr(os, "memfd_create") and os.path.isdir("/proc/self/fd"):
        descriptor = os.memfd_create("cldnet")
        try:
            yield f"/proc/{os.getpid()}/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    with tempfile.NamedTemporaryFile(prefix="cldnet-") as file:
        yield file.name


def find_photos(paths: Sequence[Path]) -> list[Path]:
    """Files as they are named, and for every folder the images in it and in those within it, sorted; hidden ones are left out.

    Examples
    --------
    >>> find_photos([Path("one.jpg")])
    [PosixPath('one.jpg')]
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(path / photo.name for photo in scan_folder(path, ".", "")[0])
        if not inside:
            raise ValueError(f"{str(path)!r} has no images (files named like {', '.join(sorted(SUFFIXES)[:4])}, …).")
        found += inside
    return found
