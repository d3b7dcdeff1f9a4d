"""An archive becomes a folder, whole or not at all; one that was made to do harm is refused."""

from __future__ import annotations

import gzip
import secrets
import shutil
import stat
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Any, cast

__all__ = ["MAX_BYTES", "MAX_MEMBERS", "unpack"]

#: Bytes that the content of an archive may take, unless told otherwise: three times the largest known set.
MAX_BYTES = 8 << 30
#: Files and folders that an archive may hold, unless told otherwise.
MAX_MEMBERS = 500_000

_BLOCK = 512
_CHUNK = 1 << 20
#: `zipfile` raises RuntimeError for a kind of compression that it does not know.
_DAMAGES = (tarfile.TarError, zipfile.BadZipFile, zlib.error, gzip.BadGzipFile, EOFError, RuntimeError)


def unpack(archive: Path, into: Path, *, max_bytes: int = MAX_BYTES, max_members: int = MAX_MEMBERS) -> None:
    """Unpack a ``.tar``, ``.tar.gz`` or ``.zip`` archive into a new folder.

    The content grows in a hidden folder beside it, which is renamed at the end, and removed if anything goes wrong.

    Parameters
    ----------
    archive : Path
        The archive; its kind is seen from its content.
    into : Path
        The folder to make. It must not be there yet.
    max_bytes, max_members : int
        What the content may take, in bytes and in files and folders.

    Raises
    ------
    ValueError
        If the archive is damaged, has more than was allowed, or holds anything but plain files and folders below `into`.
    OSError
        If it cannot be read, or the folder cannot be written: a full disk, for example.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> archive, into = Path(folder.name) / "notes.zip", Path(folder.name) / "notes"
    >>> with zipfile.ZipFile(archive, "w") as file:
    ...     file.writestr("a/b.txt", "hello")
    >>> unpack(archive, into)
    >>> (into / "a" / "b.txt").read_text()
    'hello'
    >>> folder.cleanup()
    """
    if not archive.is_file():
        raise FileNotFoundError(f"There is no archive {archive}. Check the path, or download it first.")
    if into.exists():
        raise FileExistsError(f"{into} is there already: move it away before {archive} is unpacked into it.")
    growing = into.with_name(f".{into.name[:64]}.{secrets.token_hex(8)}.tmp")
    room = _Room(archive, growing, max_bytes, max_members)
    try:
        growing.mkdir(parents=True)
        with archive.open("rb") as file:
            start = file.read(4)
            file.seek(0)
            (_unpack_zip if start.startswith(b"PK") else _unpack_tar)(file, room)
        growing.rename(into)
    except _DAMAGES as error:
        raise ValueError(
            f"{archive} is damaged, or neither a tar, a tar.gz nor a zip archive ({error}). "
            "Delete it and download it again."
        ) from error
    except OSError as error:
        raise OSError(f"{archive} cannot be unpacked into {into}: {error.strerror or error}.") from error
    finally:
        shutil.rmtree(growing, ignore_errors=True)  # gone already if all went well


class _Room:
    """The folder that an archive may fill, and how much of it is taken."""

    def __init__(self, archive: Path, folder: Path, max_bytes: int, max_members: int) -> None:
        self.archive = archive
        self.folder = folder
        self.max_bytes = max_bytes
        self.max_members = max_members
        self._bytes = self._members = 0

    def refuse(self, what: str) -> ValueError:
        return ValueError(f"{self.archive} was not unpacked: {what}. Take the archive from its official address.")

    def place(self, name: str, size: int) -> Path:
        """Where a member may go, once its name and size have been checked."""
        self._members += 1
        self._bytes += size
        if self._members > self.max_members:
            raise self.refuse(f"it has more than {self.max_members:,} members")
        if size < 0 or self._bytes > self.max_bytes:
            raise self.refuse(f"it would take more than {self.max_bytes:,} bytes")
        path = PurePosixPath(name)
        leaves = path.is_absolute() or ".." in path.parts or bool(PureWindowsPath(name).drive)
        if leaves or "\\" in name or "\0" in name:
            raise self.refuse(f"its member {name!r} would lie outside of the folder")
        return self.folder / path

    def write(self, source: IO[bytes], size: int, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as file:
            shutil.copyfileobj(source, file, _CHUNK)
            if file.tell() != size:
                raise EOFError(f"{target.name} ends after {file.tell():,} of {size:,} bytes")


class _Forward:
    """A stream that goes forward only, remembers its last block, and never gives more than an honest archive has."""

    def __init__(self, file: IO[bytes], room: _Room) -> None:
        self._file = file
        self._room = room
        # Each member has a header, perhaps with a long name, and is filled up to whole blocks.
        self._most = room.max_bytes + 8 * _BLOCK * room.max_members + _CHUNK
        self._position = 0
        self.last = b""

    def read(self, count: int) -> bytes:
        if count > 16 * _CHUNK:  # members are read in smaller pieces: this is a header that claims to be huge
            raise self._room.refuse(f"it has a header of {count:,} bytes")
        data = self._file.read(count)
        self._position += len(data)
        if self._position > self._most:
            raise self._room.refuse(f"it holds more than {self._room.max_bytes:,} bytes")
        self.last = data[-_BLOCK:]
        return data

    def tell(self) -> int:
        return self._position

    def seek(self, position: int) -> None:
        if position < self._position:
            raise EOFError("its members overlap")
        while self._position < position and self.read(min(_CHUNK, position - self._position)):
            pass


def _unpack_tar(file: IO[bytes], room: _Room) -> None:
    zipped = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    forward = _Forward(gzip.GzipFile(fileobj=file) if zipped else file, room)  # type: ignore[arg-type]
    with tarfile.TarFile(fileobj=cast(Any, forward), mode="r") as archive:
        for member in archive:
            target = room.place(member.name, member.size)
            if not (member.isreg() or member.isdir()) or member.issparse():
                raise room.refuse(f"its member {member.name!r} is neither a plain file nor a folder")
            if hasattr(tarfile, "data_filter"):  # Python's own opinion, beside ours, which 3.11.3 and older do not have
                try:
                    tarfile.data_filter(member, str(room.folder))
                except tarfile.FilterError as error:
                    raise room.refuse(f"Python refuses a member: {error}") from error
            content = archive.extractfile(member)
            if content is None:
                target.mkdir(parents=True, exist_ok=True)
            else:
                room.write(content, member.size, target)
    if forward.last != bytes(_BLOCK):  # tarfile itself takes a cut or a broken header for the end
        raise EOFError("its end is missing")
    while forward.read(_CHUNK):  # up to gzip's checksum
        pass


def _unpack_zip(file: IO[bytes], room: _Room) -> None:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            target = room.place(member.filename, member.file_size)
            if member.flag_bits & 1:
                raise room.refuse(f"its member {member.filename!r} is encrypted")
            kind = stat.S_IFMT(member.external_attr >> 16)
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise room.refuse(f"its member {member.filename!r} is neither a plain file nor a folder")
            if member.is_dir():
                target.mkdir(parents=True, exist_ok=True)
                continue
            with archive.open(member) as content:
                room.write(content, member.file_size, target)
