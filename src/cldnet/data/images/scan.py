"""Which files lie in a folder of class folders; the order does not depend on that of the file system."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path

__all__ = ["SUFFIXES", "Found", "Photo", "look", "scan_classes", "scan_folder", "subfolders"]

#: Endings of the names of images, in small letters. What is in a file is found out when it is opened.
SUFFIXES = frozenset({".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm"})


@dataclass(frozen=True)
class Photo:
    """A file that should hold an image.

    Attributes
    ----------
    name : str
        Path relative to the data's folder, with ``/`` between its parts.
    label : str
        Name of its class.
    size, time : int
        Bytes, and the time of the last change in nanoseconds; -1 where the file could not be looked at.
    fault : str or None
        Why it cannot be read, as far as that shows without opening it.
    test : bool
        Whether it belongs to the test part.
    """

    name: str
    label: str
    size: int = -1
    time: int = -1
    fault: str | None = None
    test: bool = False


@dataclass
class Found:
    """What a search came upon: photos, the number of files that were passed over, and what is missing."""

    photos: list[Photo] = field(default_factory=list)
    ignored: int = 0
    gaps: list[str] = field(default_factory=list)

    def add(self, other: Found, *, test: bool = False) -> None:
        """Take over what another search found, as training or as test photos."""
        self.photos += [replace(photo, test=test) for photo in other.photos]
        self.ignored += other.ignored
        self.gaps += other.gaps


def look(root: Path, name: str, label: str) -> Photo:
    """Describe a file without opening it: a pipe, a folder or a link to nothing is at fault.

    Examples
    --------
    >>> look(Path("nowhere"), "cat/one.jpg", "cat").fault
    'No such file or directory'
    """
    path = os.path.join(root, name)
    try:
        found = os.stat(path)
    except OSError as error:
        dangling = isinstance(error, FileNotFoundError) and os.path.islink(path)
        return Photo(name, label, fault="a link to nothing" if dangling else (error.strerror or str(error)))
    fault = None
    if not stat.S_ISREG(found.st_mode):
        fault = "a folder, not a file" if stat.S_ISDIR(found.st_mode) else "not a regular file"
    return Photo(name, label, found.st_size, found.st_mtime_ns, fault)


def subfolders(folder: Path) -> list[str]:
    """Names of the visible folders in a folder, sorted; links are followed unless they lead back to where we came from.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     for name in ("b", "a", ".git"):
    ...         Path(place, name).mkdir()
    ...     subfolders(Path(place))
    ['a', 'b']
    """
    above = _above(folder)
    names = sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith((".", "__MACOSX")))
    return [name for name in names if (found := _identity(folder / name)) is not None and found not in above]


def scan_classes(root: Path, place: str = "") -> Found:
    """Find the photos in the class folders of ``root/place``; the folders' names are the labels."""
    folder, found = root / place, Found()
    classes = subfolders(folder)
    found.ignored = sum(1 for _ in os.scandir(folder)) - len(classes)
    for label in classes:
        inner = f"{place}/{label}" if place else label
        photos, ignored = scan_folder(root, inner, label)
        found.photos += photos
        found.ignored += ignored
        if not photos:
            found.gaps.append(f"{inner!r} holds no image")
    return found


def scan_folder(root: Path, place: str, label: str) -> tuple[list[Photo], int]:
    """Find the photos of ``root/place`` and of the folders within it, and count the files that are passed over.

    Each folder is entered once, so links in a circle do no harm.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     for name in ("two.jpg", "notes.txt", ".one.jpg"):
    ...         Path(place, name).touch()
    ...     photos, passed_over = scan_folder(Path(place), ".", "cat")
    >>> [photo.name for photo in photos], passed_over
    (['./two.jpg'], 2)
    """
    photos: list[Photo] = []
    ignored, seen, waiting = 0, _above(root) - {_identity(root / place)}, [place]
    while waiting:
        folder = waiting.pop()
        identity = _identity(root / folder)
        if identity in seen:
            continue
        seen.add(identity)
        try:
            names = sorted(entry.name for entry in os.scandir(root / folder))
        except OSError as error:
            photos.append(Photo(folder, label, fault=f"a folder that cannot be read: {error.strerror}"))
            continue
        for name in names:
            inner = f"{folder}/{name}"
            if name.startswith((".", "__MACOSX")):  # what a Mac puts into its archives
                ignored += 1
            elif os.path.splitext(name)[1].lower() in SUFFIXES:
                photos.append(look(root, inner, label))
            elif _identity(root / inner) is not None:
                waiting.append(inner)
            else:
                ignored += 1
    return photos, ignored


def _identity(path: Path) -> tuple[int, int] | None:
    """What tells a folder from all others, whatever links lead to it; none for what is not a folder."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISDIR(found.st_mode) else None


def _above(folder: Path) -> set[tuple[int, int] | None]:
    """A folder and those around it: a link to one of them leads in a circle."""
    real = Path(os.path.realpath(folder))
    return {_identity(path) for path in (real, *real.parents)}
