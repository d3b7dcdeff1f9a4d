"""The cache of decoded images: where it lies, what it was made of, and whether it is still good."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cldnet.data.files.regular import check_file
from cldnet.data.images.decode import BadImage, pillow
from cldnet.data.images.photos import read_photos
from cldnet.data.images.scan import Photo
from cldnet.data.images.tree import Tree

__all__ = ["Cache", "Entry", "default_cache", "in_parts", "saying_what_to_do"]

#: Version of the files' layout and of what is done to an image.
FORMAT = 1

_DIGEST = re.compile("[0-9a-f]{64}")
_logger = logging.getLogger("cldnet")


def default_cache() -> Path:
    """Return the folder for caches of images: ``$XDG_CACHE_HOME`` or ``~/.cache``, then ``cldnet/images``."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "cldnet" / "images"
    except RuntimeError as error:
        raise ValueError(
            "There is no home folder for the cache of decoded images: name one with cache=… or XDG_CACHE_HOME."
        ) from error


@contextmanager
def saying_what_to_do(folder: Path) -> Iterator[None]:
    """Turn a failure to write the cache into a sentence."""
    try:
        yield
    except OSError as error:
        raise OSError(
            f"The cache of decoded images cannot be written to {str(folder)!r} ({error.strerror or error}). "
            "Make room there, or name another folder with cache=… or the environment variable XDG_CACHE_HOME."
        ) from error


@dataclass(frozen=True)
class Entry:
    """What is known of decoded images.

    Attributes
    ----------
    photos : tuple of Photo
        Those that have a row, in the order of the rows: the training ones, then the test ones.
    bad : tuple of BadImage
        Those that have none, by name.
    digests : tuple of str
        `Part.digest` of the training part and, if there is one, of the test part.
    """

    photos: tuple[Photo, ...]
    bad: tuple[BadImage, ...]
    digests: tuple[str, ...]


class Cache:
    """One folder's decoded images: a file of pixels, ``(n, 3, size, size)`` bytes, and beside it what they are, as JSON.

    Parameters
    ----------
    folder : Path
        Where caches lie.
    tree : Tree
        The photos.
    size, resize : int
        What they are cut and brought to.
    """

    def __init__(self, folder: Path, tree: Tree, size: int, resize: int) -> None:
        self.folder, self.tree, self.size, self.resize = folder, tree, size, resize
        self.source = os.path.abspath(tree.folder)
        self.place = _sha256([self.source, size, resize])[:16]
        photos = [vars(photo) for photo in sorted(tree.photos, key=lambda photo: photo.name)]
        self.key = _sha256([FORMAT, size, resize, photos])
        self.pixels = folder / f"{self.place}-{self.key[:32]}.u8"
        self.index = self.pixels.with_suffix(".json")

    def load(self) -> Entry | None:
        """Return what an earlier call decoded; nothing if that is not there, not whole, or not the whole truth any more."""
        try:
            check_file(self.index)
            entry = self._checked(json.loads(self.index.read_bytes()))
            if self.pixels.stat().st_size != len(entry.photos) * 3 * self.size**2:
                return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None
        paths = [os.path.join(self.tree.folder, bad.path) for bad in entry.bad if bad.passing]
        # What could not be opened may have been made readable, without a trace in its size and time.
        mended = bool(paths) and len(read_photos(paths, self.size, self.resize).places) > 0
        return None if mended else entry

    def save(self, entry: Entry, pixels: Path) -> None:
        """Put a finished file of pixels in its place, and then the index that makes it count."""
        state = {
            "format": FORMAT,
            "key": self.key,
            "folder": self.source,
            "size": self.size,
            "resize": self.resize,
            "pillow": pillow().__version__,
            "parts": [
                {"digest": digest, "names": [p.name for p in photos], "labels": [p.label for p in photos]}
                for digest, photos in zip(entry.digests, in_parts(entry.photos), strict=True)
            ],
            "bad": [asdict(bad) for bad in entry.bad],
        }
        temporary = self.temporary()
        try:
            with temporary.open("xb") as file:
                file.write(json.dumps(state, indent=1).encode())
                file.flush()
                os.fsync(file.fileno())
            pixels.replace(self.pixels)
            temporary.replace(self.index)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def temporary(self) -> Path:
        """Return a name for a file that is not finished, in the same folder because a rename is atomic only there."""
        return self.folder / f"{self.place}-{secrets.token_hex(8)}.tmp"

    def sweep(self, ending: str = "") -> None:
        """Remove what earlier runs left for this folder: files that were never finished, or caches of what it held before."""
        for name in os.listdir(self.folder):
            ours = name in (self.pixels.name, self.index.name)
            if name.startswith(f"{self.place}-") and name.endswith(ending) and not ours:
                with suppress(OSError):  # somebody else's, perhaps; it only takes room
                    (self.folder / name).unlink()

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """Wait until no other process builds this folder's cache; yields False where the system has no locks for that."""
        # About the lock alone: whoever fails while holding it has words of his own.
        with saying_what_to_do(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / f"{self.place}.lock").open("ab")
        with lock:
            yield _lock(lock.fileno())

    def _checked(self, state: Mapping[str, Any]) -> Entry:
        """Read an index as the work of a stranger: whatever does not follow from the photos has to look right."""
        bad = tuple(BadImage(str(b["path"]), str(b["reason"]), bool(b["passing"])) for b in state["bad"])
        missing = {each.path for each in bad}
        photos = tuple(photo for photo in self.tree.photos if photo.name not in missing)
        parts = in_parts(photos)
        digests = tuple(part["digest"] for part in state["parts"])
        whole = (
            state["key"] == self.key
            and {photo.name for photo in self.tree.photos if photo.fault} <= missing
            and missing <= {photo.name for photo in self.tree.photos}
            and [part["names"] for part in state["parts"]] == [[photo.name for photo in part] for part in parts]
            and [part["labels"] for part in state["parts"]] == [[photo.label for photo in part] for part in parts]
            and all(_DIGEST.fullmatch(digest) for digest in digests)
        )
        if not whole:
            raise ValueError("The index does not fit the photos.")
        return Entry(photos, bad, digests)


def in_parts(photos: Sequence[Photo]) -> list[list[Photo]]:
    """Cut photos into the training part and the test part; a part without a photo is left out.

    Examples
    --------
    >>> [len(part) for part in in_parts([Photo("a/1.jpg", "a"), Photo("a/2.jpg", "a", test=True), Photo("b/3.jpg", "b")])]
    [2, 1]
    """
    parts = [photo for photo in photos if not photo.test], [photo for photo in photos if photo.test]
    return [part for part in parts if part]


def _sha256(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _lock(descriptor: int) -> bool:
    try:
        import fcntl  # noqa: PLC0415  (not on every system)
    except ImportError:
        return False
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _logger.info("Another process is decoding the same images: waiting for it.")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError:  # some network file systems
        return False
    return True
