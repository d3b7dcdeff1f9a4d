"""Read a folder of photos as a data set, decoded once and cached for as long as no file changes."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from filelock import FileLock, Timeout

from cldnet.data.catalog import cache_folder
from cldnet.data.dataset import Dataset, Part, check_file, map_file, open_array
from cldnet.data.images.decode import BadImage, cut_from, decode_all, pillow, read_photos, usable_cpus
from cldnet.data.images.folders import Photo, Tree, list_photos

#: Version of the files' layout and of the image processing.
FORMAT = 1
#: Bad files that a message names; it counts the others.
_NAMED = 10

_DIGEST = re.compile("[0-9a-f]{64}")
_LOGGER = logging.getLogger("cldnet")
#: Called with the number of files done, and of all files.
_Progress = Callable[[int, int], None]


def read_images(
    folder: Path,
    *,
    name: str | None = None,
    size: int = 224,
    resize: int | None = None,
    on_bad: Literal["skip", "stop"] = "stop",
    cache: Path | None = None,
    workers: int | None = None,
    on_progress: _Progress | None = None,
) -> Dataset:
    """Read a folder of photos as uint8 images ``(n, 3, size, size)``, with class names as labels.

    Images are decoded once, in ``workers`` processes, and kept in the folder ``cache`` for as long as no file changes.
    ``resize`` is the length of the shorter side before the centre is cropped; by default 256/224 of ``size``, as ViT needs.
    Unreadable files raise an error that names them, or with ``on_bad="skip"`` are left out with a warning.
    ``on_progress`` is called with the number of files decoded, and of all.
    """
    resize = cut_from(size) if resize is None else resize
    if not 1 <= size <= resize:
        raise ValueError(f"size={size} should be at least 1, and at most resize={resize}.")
    if on_bad not in ("skip", "stop"):
        raise ValueError(f"on_bad={on_bad!r} is not known; use 'skip' or 'stop'.")
    pillow()
    tree = list_photos(Path(folder).expanduser())
    if tree.ignored:
        _LOGGER.info("%d files under %r were ignored: not named like images.", tree.ignored, str(folder))
    if tree.empty or tree.untested:
        _report(f"{str(tree.folder)!r} is incomplete: {_some([*tree.empty, *tree.untested])}.", on_bad)
    place = Cache(cache or cache_folder().with_name("images"), tree, size, resize)
    entry = place.load() or place.build(workers or usable_cpus(), on_progress)
    if entry.bad:
        named = _some([f"{bad.path!r} ({bad.reason})" for bad in entry.bad])
        count = f"{len(entry.bad)} of {len(tree.photos)}"
        _report(f"{count} images under {str(tree.folder)!r} cannot be read: {named}.", on_bad)
    _check_lost_classes(tree, entry)
    train, *test = _open_parts(place.pixels, entry.photos, size, entry.digests)
    # In characters that every file can hold.
    folder_name = os.fsencode(tree.folder.resolve().name).decode("utf-8", "replace")
    return Dataset(name or folder_name or "images", train, test[0] if test else None)


@dataclass(frozen=True)
class _Entry:
    """The photos that have a row of pixels, training ones first, the bad ones, and the digest of each part."""

    photos: tuple[Photo, ...]
    bad: tuple[BadImage, ...]
    digests: tuple[str, ...]


class Cache:
    """One folder's decoded images: a file of pixels, ``(n, 3, size, size)`` bytes, and an index of them as JSON."""

    def __init__(self, folder: Path, tree: Tree, size: int, resize: int) -> None:
        self.folder, self.tree, self.size, self.resize = folder, tree, size, resize
        self.source = os.path.abspath(tree.folder)
        self.place = _sha256([self.source, size, resize])[:16]
        photos = [vars(photo) for photo in sorted(tree.photos, key=lambda photo: photo.name)]
        self.key = _sha256([FORMAT, size, resize, photos])
        self.pixels = folder / f"{self.place}-{self.key[:32]}.u8"
        self.index = self.pixels.with_suffix(".json")

    def load(self) -> _Entry | None:
        """Return what an earlier call decoded; None if it is missing, damaged or out of date."""
        try:
            check_file(self.index)
            state = json.loads(self.index.read_bytes())
            bad = tuple(BadImage(str(b["path"]), str(b["reason"]), bool(b["passing"])) for b in state["bad"])
            missing = {each.path for each in bad}
            photos = tuple(photo for photo in self.tree.photos if photo.name not in missing)
            digests = tuple(part["digest"] for part in state["parts"])
            complete = self.pixels.stat().st_size == len(photos) * 3 * self.size**2
            valid = len(digests) == len(_in_parts(photos)) and all(map(_DIGEST.fullmatch, digests))
            if state["key"] != self.key or not complete or not valid or any(photo.fault for photo in photos):
                return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        # A file that could not be opened may be readable now, with the same size and time.
        retry = [os.path.join(self.tree.folder, each.path) for each in bad if each.passing]
        readable = bool(retry) and len(read_photos(retry, self.size, self.resize).places) > 0
        return None if readable else _Entry(photos, bad, digests)

    def build(self, workers: int, on_progress: _Progress | None) -> _Entry:
        """Decode the photos into the cache, unless another process has done so meanwhile. Interruptions leave no cache."""
        with self.locked():
            entry = self.load()
            if entry is not None:
                return entry
            self._sweep(".tmp")
            # In the same folder, because a rename is atomic only there.
            temporary = self.folder / f"{self.place}-{secrets.token_hex(8)}.tmp"
            try:
                entry = self._decode(temporary, workers, on_progress)
                with _explaining(self.folder):
                    temporary.replace(self.pixels)
                    self._write_index(entry)
            finally:
                temporary.unlink(missing_ok=True)
            self._sweep("")
        return entry

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Wait until no other process builds this folder's cache."""
        lock = FileLock(self.folder / f"{self.place}.lock")
        with _explaining(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            try:
                lock.acquire(blocking=False)
            except Timeout:
                _LOGGER.info("Another process is decoding the same images: waiting for it.")
                lock.acquire()
            except NotImplementedError:  # a file system without locks
                pass
        try:
            yield
        finally:
            lock.release()

    def _decode(self, path: Path, workers: int, on_progress: _Progress | None) -> _Entry:
        """Decode every photo into a row of its own, then close the gaps that bad ones left."""
        photos = [photo for photo in self.tree.photos if photo.fault is None]
        bad = [BadImage(photo.name, photo.fault) for photo in self.tree.photos if photo.fault is not None]
        with _explaining(self.folder), path.open("xb+") as file:
            pixels = map_file(file, (max(1, len(photos)), 3, self.size, self.size), np.dtype(np.uint8))
        rows = []
        paths = [os.path.join(self.tree.folder, photo.name) for photo in photos]
        with closing(decode_all(paths, self.size, self.resize, workers)) as decoded:
            for row, image in decoded:
                if isinstance(image, BadImage):
                    bad.append(BadImage(photos[row].name, image.reason, image.passing))
                else:
                    pixels[row] = image
                    rows.append(row)
                if on_progress is not None:
                    on_progress(len(bad) + len(rows), len(self.tree.photos))
        for place, row in enumerate(sorted(rows)):
            if place != row:
                pixels[place] = pixels[row]
        del pixels
        os.truncate(path, len(rows) * 3 * self.size**2)
        kept = tuple(photos[row] for row in sorted(rows))
        digests = tuple(part.digest for part in _open_parts(path, kept, self.size, (None, None)))
        return _Entry(kept, tuple(sorted(bad, key=lambda each: each.path)), digests)

    def _write_index(self, entry: _Entry) -> None:
        """Write the index that makes the pixels count; if this is interrupted, it is no JSON and counts as missing."""
        state = {
            "format": FORMAT,
            "key": self.key,
            "folder": self.source,
            "size": self.size,
            "resize": self.resize,
            "pillow": pillow().__version__,
            "parts": [
                {"digest": digest, "names": [p.name for p in photos], "labels": [p.label for p in photos]}
                for digest, photos in zip(entry.digests, _in_parts(entry.photos), strict=True)
            ],
            "bad": [asdict(bad) for bad in entry.bad],
        }
        self.index.write_bytes(json.dumps(state, indent=1).encode())

    def _sweep(self, ending: str) -> None:
        """Remove this folder's unfinished files and outdated caches."""
        for name in os.listdir(self.folder):
            ours = name in (self.pixels.name, self.index.name)
            if name.startswith(f"{self.place}-") and name.endswith(ending) and not ours:
                with suppress(OSError):  # perhaps somebody else's; it only takes space
                    (self.folder / name).unlink()


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


@contextmanager
def _explaining(folder: Path) -> Iterator[None]:
    """Explain a failure to write the cache."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"The cache of decoded images cannot be written to {str(folder)!r} ({error.strerror or error}). "
            "Free some space there, or name another folder with the environment variable XDG_CACHE_HOME."
        ) from error


def _in_parts(photos: Sequence[Photo]) -> list[list[Photo]]:
    """Split photos into the training part and the test part; an empty part is left out."""
    parts = [photo for photo in photos if not photo.test], [photo for photo in photos if photo.test]
    return [part for part in parts if part]


def _open_parts(path: Path, photos: Sequence[Photo], size: int, digests: Sequence[str | None]) -> list[Part]:
    parts, first = [], 0
    for part, digest in zip(_in_parts(photos), digests, strict=False):
        x = open_array(path, first * 3 * size**2, np.dtype(np.uint8), (len(part), 3, size, size))
        parts.append(Part(x, np.array([photo.label for photo in part]), digest))
        first += len(part)
    return parts


def _some(faults: Sequence[str]) -> str:
    return ", ".join(faults[:_NAMED]) + (f", and {len(faults) - _NAMED} more" if len(faults) > _NAMED else "")


def _report(message: str, on_bad: str) -> None:
    if on_bad == "stop":
        raise ValueError(f'{message} Fix or remove them, or continue without them: --on-bad skip (on_bad="skip").')
    _LOGGER.warning("%s Continuing without them.", message)


def _check_lost_classes(tree: Tree, entry: _Entry) -> None:
    """Raise if a class has no training image left, or the test part none at all."""
    for test in (False, True):
        kept = {photo.label for photo in entry.photos if photo.test is test}
        lost = sorted({photo.label for photo in tree.photos if photo.test is test} - kept)
        if lost and (not test or not kept):
            part = "test" if test else "training"
            raise ValueError(
                f"No {part} image of class {lost[0]!r} in {str(tree.folder)!r} can be read"
                f"{f', nor of {len(lost) - 1} other classes' if lost[1:] else ''}: fix the files, or remove the class."
            )
        if lost:
            _LOGGER.warning(
                "No test image of %d classes can be read, such as %r: they are not tested.", len(lost), lost[0]
            )
