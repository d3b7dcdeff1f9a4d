"""Which files a model has been loaded from or saved to, and what was in them then."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cldnet.store.disk import writing

__all__ = ["FileChangedError", "SeenFiles"]

#: Files that are remembered; the oldest go first, so that saving under ever new names takes no ever growing memory.
_MOST = 1000
#: Bytes of a header at most, as in `cldnet.store.layout`.
_MOST_HEADER = 100_000_000


class FileChangedError(OSError):
    """A model's file has changed since it was loaded: replacing it would lose what was saved there meanwhile."""


@dataclass(frozen=True)
class SeenFiles:
    """The files that a model has been loaded from or saved to.

    A file is known by its own path and by the one that it leads to, so that neither another spelling of a path nor a link
    that leads elsewhere by now hides a change. Paths are kept as digests: a pickled model does not tell where its files are.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "model"
    ...     _ = path.write_bytes(bytes(9))
    ...     seen = SeenFiles().noted(path)
    ...     seen.check_unchanged(path)
    ...     path.unlink()
    ...     seen.check_unchanged(path)
    """

    versions: Mapping[str, str] = field(default_factory=dict)

    def noted(self, path: str | os.PathLike[str]) -> SeenFiles:
        """Remember a file as it is now; one that cannot be read stays as it was remembered."""
        version = None
        with suppress(OSError):
            version = _version(path)
        if version is None:
            return self
        names = _names(path)
        others = [(name, known) for name, known in self.versions.items() if name not in names]
        return SeenFiles(dict([*others, *((name, version) for name in names)][-_MOST:]))

    def check_unchanged(self, path: str | os.PathLike[str]) -> None:
        """Refuse a file that is remembered as another one. To be called with the file's lock held."""
        known = {self.versions[name] for name in _names(path) if name in self.versions}
        with writing(path):
            version = _version(path) if known else None
        if version is not None and version not in known:
            raise FileChangedError(
                f"{os.fspath(path)!r} has changed since this model was loaded from it or saved to it, and saving would undo "
                "that change. Load the file again and repeat what you did since, save under another name, or replace the "
                "file with save(path, overwrite=True)."
            )


def _names(path: str | os.PathLike[str]) -> set[str]:
    paths = {os.path.abspath(path), os.path.realpath(path)}
    return {hashlib.sha256(os.fsencode(each)).hexdigest() for each in paths}


def _version(path: str | os.PathLike[str]) -> str | None:
    """Digest of the header of a file, or nothing if there is no file.

    The header has a digest of all content, so two files with one header are the same model. Inode, time and size could be
    those of another file: inodes are used again, times are as coarse as two seconds, and a model's size never changes. (Files
    of the first layout have no digest. Whatever this library puts in their place has one.)
    """
    if not Path(path).is_file():
        return None
    with suppress(FileNotFoundError), open(path, "rb") as file:
        length = file.read(8)
        return hashlib.sha256(length + file.read(min(int.from_bytes(length, "little"), _MOST_HEADER))).hexdigest()
    return None
