"""A download that is not whole yet: it grows beside its target, outlives its process, and takes its place when whole."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["PartFile", "file_checksum"]

_LENGTHS = {"md5": 32, "sha256": 64}
_CHUNK = 1 << 20


def file_checksum(path: Path, algorithm: str) -> str:
    """Checksum of a file, as ``"md5:…"`` or ``"sha256:…"``.

    Examples
    --------
    >>> file_checksum(Path(os.devnull), "md5")
    'md5:d41d8cd98f00b204e9800998ecf8427e'
    """
    with path.open("rb") as file:
        # MD5 guards against accidents here, and is what most sets are published with.
        found = hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False))
    return f"{algorithm}:{found.hexdigest()}"


class PartFile:
    """``target.part``, with a note ``target.part.json`` about the version of the file that it is a part of.

    Used as a context manager, it is locked against other processes. What has come is kept when the block is left, however
    that happens.

    Parameters
    ----------
    target : Path
    checksum : str
        ``"md5:…"`` or ``"sha256:…"`` of the whole file.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> target = Path(folder.name) / "abc.txt"
    >>> with PartFile(target, "md5:900150983cd24fb0d6963f7d28e17f72") as part:
    ...     part.append(b"ab")
    >>> with PartFile(target, "md5:900150983cd24fb0d6963f7d28e17f72") as part:
    ...     part.append(b"c")
    ...     part.length, part.whole
    ...     part.finish()
    (3, True)
    >>> target.read_text()
    'abc'
    >>> folder.cleanup()
    """

    def __init__(self, target: Path, checksum: str) -> None:
        self.algorithm, _, digits = checksum.partition(":")
        if not re.fullmatch(f"[0-9a-f]{{{_LENGTHS.get(self.algorithm, 0)}}}", digits) or not digits:
            raise ValueError(f"{checksum!r} is not a checksum: expected 'md5:' or 'sha256:' and its digits.")
        self.target = target
        self.checksum = checksum
        self.path = target.with_name(f"{target.name}.part")
        self._note = target.with_name(f"{target.name}.part.json")
        self._file: FileIO
        self.length = 0

    def __enter__(self) -> Self:
        with _writing(self.path):
            self.target.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab+", buffering=0)  # so that closing has nothing left to write
        try:
            _lock(self._file, self.target)
            self._hash = hashlib.new(self.algorithm, usedforsecurity=False)
            self._file.seek(0)
            self.length = 0
            while chunk := self._file.read(_CHUNK):
                self._hash.update(chunk)
                self.length += len(chunk)
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file.closed:
            return
        self._file.close()
        if not self.length:
            self._remove()

    @property
    def found(self) -> str:
        """Checksum of what has come so far."""
        return f"{self.algorithm}:{self._hash.hexdigest()}"

    @property
    def whole(self) -> bool:
        """Whether all has come, and come right."""
        return self.found == self.checksum

    def append(self, chunk: bytes) -> None:
        """Add bytes at the end."""
        with _writing(self.path):
            rest = memoryview(chunk)
            while rest:
                rest = rest[self._file.write(rest) :]
        self._hash.update(chunk)
        self.length += len(chunk)

    def restart(self) -> None:
        """Drop what has come."""
        self._file.truncate(0)
        self._hash = hashlib.new(self.algorithm, usedforsecurity=False)
        self.length = 0
        self._note.unlink(missing_ok=True)

    def remember(self, address: str, validator: str | None) -> None:
        """Note which version of the file at an address this is a part of: its ETag or its date."""
        with _writing(self._note):
            self._note.write_text(json.dumps({"address": address, "validator": validator}), "utf-8")

    def validator(self, address: str) -> str | None:
        """What `remember` was told about an address, if anything."""
        try:
            note = json.loads(self._note.read_text("utf-8"))
        except (OSError, ValueError):
            return None
        text = note.get("validator") if isinstance(note, dict) and note.get("address") == address else None
        return text if isinstance(text, str) and text.isascii() and text.isprintable() else None

    def finish(self) -> None:
        """Let the file, which must be whole, take the place of its target."""
        if not self.whole:
            raise ValueError(f"{self.path} is {self.found} and should be {self.checksum}.")
        with _writing(self.target):
            os.fsync(self._file.fileno())
            self._file.close()
            self.path.replace(self.target)
        self._remove()

    def _remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self._note.unlink(missing_ok=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OSError(
            f"{path} cannot be written: {error.strerror}. Mend that, and try again: what came is kept."
        ) from error


def _lock(file: FileIO, target: Path) -> None:
    """Refuse a file that another process is filling; the lock goes when the file is closed or the process dies."""
    if sys.platform == "win32":
        return
    import fcntl  # noqa: PLC0415  (not on every system)

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise OSError(f"Another process is downloading {target}: wait for it, or stop it.") from error
    except OSError:  # a file system without locks
        return
