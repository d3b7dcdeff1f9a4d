"""Files that are there whole or not at all, and what a disk says, in sentences."""

from __future__ import annotations

import errno
import logging
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

__all__ = [
    "LOCK_PROTECTED",
    "behind_links",
    "check_new",
    "check_place",
    "reading",
    "sweep",
    "write_atomically",
    "write_parts",
    "writing",
]

#: Bytes that are compared at a time.
_PART = 1 << 20
#: Seconds after which a half-written file is nobody's, where a disk knows no locks.
_ABANDONED = 3600.0
_PROTECTED = "the file that is there is write-protected"
LOCK_PROTECTED = "you may not write to its lock file"
#: What to do about the errors that a disk has.
_ADVICE: dict[int | str | None, str] = {
    errno.ENOENT: "make the folder first",
    errno.ENOTDIR: "what should be a folder is a file: choose another path",
    errno.EISDIR: "this is a folder: name a file in it",
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.EROFS: "choose a folder that you may write to",
    errno.ENOSPC: "make room on the disk, or choose another one",
    errno.EDQUOT: "make room within your quota, or choose another disk",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EEXIST: "name a file of its own",
    errno.ENOMEM: "close other programs, or use a larger machine",
    errno.ELOOP: "remove the link, or name another file",
    _PROTECTED: "allow writing to it, or choose another name",
    LOCK_PROTECTED: "ask the owner of the lock file to allow it, or choose another name",
}
_log = logging.getLogger("cldnet")


def check_new(path: str | os.PathLike[str]) -> None:
    """Refuse to write over a file, or into a folder that is not there, before any work is done for it.

    Examples
    --------
    >>> check_new("/")
    Traceback (most recent call last):
    ...
    ValueError: '/' is there already: name a file that is not, or remove it first.
    """
    if os.path.lexists(path):
        raise ValueError(f"{os.fspath(path)!r} is there already: name a file that is not, or remove it first.")
    if not Path(path).parent.is_dir():
        raise ValueError(f"There is no folder {str(Path(path).parent)!r}: make it first.")


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that it is there whole or not at all, whatever happens meanwhile; what was there before stays until then.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> write_atomically(Path(folder.name) / "note.txt", b"whole")
    >>> (Path(folder.name) / "note.txt").read_bytes()
    b'whole'
    >>> folder.cleanup()
    """
    write_parts(path, [memoryview(content)])


def write_parts(path: str | os.PathLike[str], parts: Sequence[memoryview]) -> None:
    """Write a file as `write_atomically` does, one part behind the other, so that nobody has to join what may be a gigabyte.

    A file that takes another one's place has its rights. Where the path is a link, the file that it leads to is written.
    """
    with writing(path):
        target = behind_links(Path(path))
        check_place(target)
        sweep(target)  # first of all: on a disk that is full of it nothing could be written
        with _drafted(target) as (draft, file):
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
            file.close()
            if not _holds(draft, parts):
                raise OSError(errno.EIO, "the disk gave back other bytes than were written")
            draft.replace(target)
    _keep_name(target)  # from here on the file is written: whatever fails must not say otherwise


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Say what to do about an error of the disk that kept a file from being written.

    Examples
    --------
    >>> with writing("model"):
    ...     raise OSError(errno.ENOSPC, "No space left on device")
    Traceback (most recent call last):
    ...
    OSError: [Errno 28] It could not be written (No space left on device), ...: make room on the disk, ...: 'model'
    """
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.strerror) or _ADVICE.get(error.errno, "try again, or choose another disk")
        reason = (
            f"It could not be written ({error.strerror or error}), and what was there before is as it was: {advice}."
        )
        raise OSError(error.errno or errno.EIO, reason, os.fspath(path)) from error


def sweep(path: str | os.PathLike[str]) -> None:
    """Remove what writers of a file left half-written when they were killed. Those that are at work hold a lock on theirs.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = (Path(folder.name) / ".model.0123456789abcdef.tmp").write_bytes(b"half of a mo")
    >>> sweep(Path(folder.name) / "model")
    >>> os.listdir(folder.name)
    []
    >>> folder.cleanup()
    """
    with suppress(OSError):  # litter is a pity, and no reason not to write
        target = behind_links(Path(path))
        draft = re.compile(re.escape(_draft_of(target)) + "[0-9a-f]{16}[.]tmp")
        with os.scandir(target.parent) as entries:
            found = [
                entry.name for entry in entries if draft.fullmatch(entry.name) and entry.is_file(follow_symlinks=False)
            ]
        for name in found:
            with suppress(OSError):
                _remove_abandoned(target.with_name(name))


def behind_links(path: Path) -> Path:
    """Follow a link to the file that is meant: renaming would put a file in the link's place, and leave the other as it was."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def check_place(path: Path) -> None:
    """Refuse what must not be replaced: a folder, a device such as the system's /dev/null, a file that is write-protected."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "the links lead nowhere")
    if path.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not path.exists():
        return
    if not path.is_file():
        raise OSError(errno.EEXIST, "what is there is no file")
    # The bits as well, since whoever is root may write whatever they say; they say that nobody should.
    if not path.stat().st_mode & 0o222 or not os.access(path, os.W_OK):
        raise OSError(errno.EACCES, _PROTECTED)


def _draft_of(path: Path) -> str:
    """How the names of half-written files begin that are to become this one."""
    return f".{path.name[:64]}."


@contextmanager
def _drafted(target: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Make an empty file beside another one, with that one's rights, locked while the block runs and gone if it fails."""
    old = target.stat() if target.exists() else None
    while True:
        # In the same folder, because a rename is atomic only within one file system.
        draft = target.parent / f"{_draft_of(target)}{secrets.token_hex(8)}.tmp"
        try:
            with _created(draft, old) as file, _locked(file.fileno()) as has_name:
                if has_name:
                    _take_rights(file.fileno(), old)
                    yield draft, file
                    return
        except BaseException:
            with suppress(OSError):  # what is wrong already is what the user has to hear of
                draft.unlink(missing_ok=True)
            raise


def _created(draft: Path, old: os.stat_result | None) -> IO[bytes]:
    """Create a file that nobody may read, not even while it is empty, who could not read the old one."""
    mode = 0o666 if old is None else stat.S_IMODE(old.st_mode) & 0o666
    return open(draft, "xb", opener=lambda name, flags: os.open(name, flags, mode))


def _take_rights(handle: int, old: os.stat_result | None) -> None:
    """Give a new file the rights of the old one, and its owner and group where the system lets us."""
    if old is None or sys.platform == "win32":
        return
    new, mode = os.fstat(handle), stat.S_IMODE(old.st_mode)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        with suppress(OSError):
            os.fchown(handle, old.st_uid, old.st_gid)
        new = os.fstat(handle)
    if new.st_gid != old.st_gid:
        mode &= ~0o070  # what its group could do, another one could now
    if stat.S_IMODE(new.st_mode) != mode:
        os.fchmod(handle, mode)


@contextmanager
def _locked(handle: int) -> Iterator[bool]:
    """Lock a file until the block ends, even if it is closed within; tell whether a sweeper had not been there before."""
    if sys.platform == "win32":  # where nobody can remove a file that is open
        yield True
        return
    import fcntl  # noqa: PLC0415  (not on every system)

    lock = os.dup(handle)
    try:
        with suppress(OSError):  # a disk without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield os.fstat(lock).st_nlink > 0
    finally:
        with suppress(OSError):  # the file may have its name by now
            os.close(lock)


def _remove_abandoned(draft: Path) -> None:
    """Remove a half-written file if nobody writes it any more; with its lock in hand, so that nobody begins meanwhile."""
    old = time.time() - draft.stat().st_mtime > _ABANDONED
    if sys.platform == "win32":
        if old:
            draft.unlink()
        return
    import fcntl  # noqa: PLC0415  (not on every system)

    handle = os.open(draft, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        draft.unlink()
    except BlockingIOError:
        pass  # its writer is at work
    except OSError:  # a disk without locks
        if old:
            draft.unlink()
    finally:
        os.close(handle)


def _holds(path: Path, parts: Sequence[memoryview]) -> bool:
    """Tell whether a file has this content, a piece at a time: a model may have a gigabyte."""
    with path.open("rb") as file:
        return all(
            file.read(len(piece)) == piece
            for part in parts
            for piece in (part[start : start + _PART] for start in range(0, len(part), _PART))
        ) and not file.read(1)


def _keep_name(path: Path) -> None:
    """Have the folder's new entry on disk too, where the system can: after a loss of power the name leads to the new file."""
    if os.name != "posix":
        return
    try:
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        _log.warning(
            "%s is written, but its folder could not be brought to disk (%s): after a loss of power the name may lead to the "
            "file before, which is whole, too.",
            path,
            error.strerror or error,
        )


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what a disk says while a file is looked for or read into a sentence.

    Examples
    --------
    >>> with reading("model"):
    ...     raise PermissionError(errno.EACCES, "Permission denied")
    Traceback (most recent call last):
    ...
    PermissionError: [Errno 13] It could not be read (Permission denied): see that you may read it, and that ...: 'model'
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOMEM:  # no fault of the disk
            raise MemoryError(os.strerror(errno.ENOMEM)) from error
        reason = (
            f"It could not be read ({error.strerror or error}): see that you may read it, and that the disk is whole."
        )
        raise OSError(error.errno or errno.EIO, reason, os.fspath(path)) from error
