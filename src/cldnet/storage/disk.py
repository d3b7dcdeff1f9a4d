"""Atomic writes and locks: other processes see the old file or the new one, and one process at a time changes it."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import platform
import re
import secrets
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from filelock import BaseFileLock, FileLock, Timeout

if sys.platform != "win32":
    import fcntl

#: Bytes compared at a time when a file is read back.
_CHUNK = 1 << 20
#: Age in seconds from which a temporary file counts as abandoned where the disk has no locks.
_ABANDONED = 3600.0
_PROTECTED = "the file is write-protected"
_LOCK_PROTECTED = "you may not write to its lock file"
#: What to do about each error of the disk.
_ADVICE: dict[int | str | None, str] = {
    errno.ENOENT: "create the folder first",
    errno.ENOTDIR: "part of the path is a file, not a folder: choose another path",
    errno.EISDIR: "this is a folder: name a file in it",
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.EROFS: "choose a folder that you may write to",
    errno.ENOSPC: "free some space on the disk, or choose another one",
    errno.EDQUOT: "free some space within your quota, or choose another disk",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.EEXIST: "choose another name",
    errno.ENOMEM: "close other programs, or use a larger machine",
    errno.ELOOP: "remove the link, or choose another name",
    _PROTECTED: "allow writing to it, or choose another name",
    _LOCK_PROTECTED: "ask the owner of the lock file for permission, or choose another name",
}
#: Seconds between two looks at who holds a lock.
_POLL = 1.0
#: What file systems without locks answer.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}
#: Bytes of a file name that all common file systems allow, less those that a lock file's name adds.
_LONGEST_NAME = 255 - len("..lock")
#: Locks that the disk did not release. They are kept, or this process would wait for itself.
_unreleased: list[BaseFileLock] = []
_log = logging.getLogger("cldnet")


def check_new(path: str | os.PathLike[str]) -> None:
    """Refuse an existing file, or a folder that does not exist, before any work is done."""
    if os.path.lexists(path):
        raise ValueError(f"{os.fspath(path)!r} already exists: choose another name, or remove it first.")
    if not Path(path).parent.is_dir():
        raise ValueError(f"There is no folder {str(Path(path).parent)!r}: create it first.")


def write_atomically(path: str | os.PathLike[str], *parts: bytes | memoryview) -> None:
    """Write a file completely or not at all; the previous file stays until the new one is complete.

    A file that replaces another one gets its permissions. If the path is a link, the file that it points to is written.
    Content that comes in several parts is not joined, since it may take gigabytes.
    """
    with writing(path):
        target = _follow_link(Path(path))
        _check_replaceable(target)
        sweep(target)  # first: abandoned files may have filled the disk
        with _temporary_file(target) as (temporary, file):
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())
            file.close()
            if not _has_content(temporary, parts):
                raise OSError(errno.EIO, "the disk returned other bytes than were written")
            temporary.replace(target)
    _sync_folder(target)  # the file is written now: a failure from here on must not say otherwise


@contextmanager
def writing(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add advice to disk errors: what the user can do."""
    try:
        yield
    except OSError as error:
        advice = _ADVICE.get(error.strerror) or _ADVICE.get(error.errno, "try again, or choose another disk")
        reason = f"Writing failed ({error.strerror or error}). The previous file, if any, is unchanged: {advice}."
        raise OSError(error.errno or errno.EIO, reason, os.fspath(path)) from error


def sweep(path: str | os.PathLike[str]) -> None:
    """Remove temporary files of a file whose writers were killed. Writers at work hold a lock on theirs."""
    with suppress(OSError):  # a left-over file is no reason not to write
        target = _follow_link(Path(path))
        pattern = re.compile(re.escape(_temporary_prefix(target)) + "[0-9a-f]{16}[.]tmp")
        for each in target.parent.iterdir():
            if pattern.fullmatch(each.name) and each.is_file() and not each.is_symlink():
                with suppress(OSError):
                    _remove_abandoned(each)


@contextmanager
def locked(
    path: str | os.PathLike[str], *, wait: bool = True, tell: Callable[[str], object] | None = None
) -> Iterator[None]:
    """Keep other processes from changing a model's file while the block runs.

    Use it around load, change and save. The ``cldnet`` commands that change a file and `CLDNetClassifier.save` take the same
    lock; reading a file needs none. A thread may take a lock that it already holds.

    The lock belongs to the operating system, on a hidden file ``.NAME.lock`` beside the model. When a process ends, however
    it ends, its lock is free at once. The lock file itself stays: deleting it could let two processes in. On a file system
    without locks a warning is logged, and the block runs without one.

    Parameters
    ----------
    path : path-like
        The model's file. It need not exist yet. A symbolic link stands for the file that it points to.
    wait : bool
        Whether to wait while another process holds the lock. If not, a `BlockingIOError` names that process.
    tell : callable, optional
        Called with a sentence that names the process to wait for. By default it goes to the logger ``cldnet``.

    Examples
    --------
    >>> import tempfile
    >>> from cldnet import CLDNetClassifier, locked
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "birds.cldnet"
    ...     CLDNetClassifier(random_state=0).fit([[0.0, 0.1], [5.0, 5.1]], ["robin", "wren"]).save(path)
    ...     with locked(path):
    ...         CLDNetClassifier.load(path).partial_fit([[9.0, 0.1]], ["owl"]).save(path)
    ...     CLDNetClassifier.load(path).classes_
    array(['owl', 'robin', 'wren'], dtype='<U5')
    """
    with writing(path):
        target = _follow_link(Path(path))
        _check_replaceable(target)
        if not target.absolute().parent.is_dir():  # filelock would create it
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        name = target.name
        if len(os.fsencode(name)) > _LONGEST_NAME:
            name = hashlib.sha256(os.fsencode(name)).hexdigest()
        lock_file = target.absolute().with_name(f".{name}.lock")
        # One instance per file, so that save can take the lock inside of a block that holds it.
        lock = FileLock(lock_file, is_singleton=True, preserve_lock_file=True, on_acquired=_write_holder)
    told = None
    while not _acquire(lock, path, _POLL if told else 0.0):
        holder = _read_holder(lock_file)
        if not wait:
            reason = f"The file is locked by {holder}: try again when that has finished, or wait for it."
            raise BlockingIOError(errno.EAGAIN, reason, os.fspath(path))
        if holder != told:
            (tell or _log.warning)(f"Waiting for {holder} to finish with {target.name} …")
            told = holder
    try:
        with suppress(OSError):  # those who may write the model's file may take its lock, too
            mode = stat.S_IMODE(target.stat().st_mode) & 0o666 | 0o600
            if stat.S_IMODE(lock_file.stat().st_mode) != mode:
                lock_file.chmod(mode)
        yield
    finally:
        try:
            lock.release()
        except OSError as error:  # the file is saved by now, so this is only logged
            _unreleased.append(lock)
            _log.warning("The lock of %s stays until this process ends (%s).", target, error.strerror or error)


def _follow_link(path: Path) -> Path:
    """The file that a link points to: renaming a file onto the link would replace the link itself."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def _check_replaceable(path: Path) -> None:
    """Refuse to replace a folder, a device such as /dev/null, or a write-protected file."""
    if path.is_symlink():
        raise OSError(errno.ELOOP, "the links lead nowhere")
    if path.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not path.exists():
        return
    if not path.is_file():
        raise OSError(errno.EEXIST, "it is not a regular file")
    # The permission bits as well: root may write to anything, but the bits say that nobody should.
    if not path.stat().st_mode & 0o222 or not os.access(path, os.W_OK):
        raise OSError(errno.EACCES, _PROTECTED)


def _temporary_prefix(path: Path) -> str:
    return f".{path.name[:64]}."


@contextmanager
def _temporary_file(target: Path) -> Iterator[tuple[Path, IO[bytes]]]:
    """Create an empty file beside another one with its permissions; locked in the block, removed if that fails."""
    old = target.stat() if target.exists() else None
    mode = 0o666 if old is None else stat.S_IMODE(old.st_mode) & 0o666  # never readable by more than the old one
    while True:
        # In the same folder, because a rename is atomic only within one file system.
        temporary = target.parent / f"{_temporary_prefix(target)}{secrets.token_hex(8)}.tmp"
        try:
            file = open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, mode))  # noqa: SIM115
            with file, _lock_handle(file.fileno()) as still_there:
                if still_there:
                    _take_permissions(file.fileno(), old)
                    yield temporary, file
                    return
        except BaseException:
            with suppress(OSError):  # the first error is the one to report
                temporary.unlink(missing_ok=True)
            raise


def _take_permissions(handle: int, old: os.stat_result | None) -> None:
    """Give a new file the mode of the old one, and its owner and group where the system permits."""
    if old is None or sys.platform == "win32":
        return
    with suppress(OSError):
        os.fchown(handle, old.st_uid, old.st_gid)
    new, mode = os.fstat(handle), stat.S_IMODE(old.st_mode)
    if new.st_gid != old.st_gid:
        mode &= ~0o070  # the permissions were meant for another group
    if stat.S_IMODE(new.st_mode) != mode:
        os.fchmod(handle, mode)


@contextmanager
def _lock_handle(handle: int) -> Iterator[bool]:
    """Lock an open file until the block ends, even if it is closed within; False if `sweep` has removed it before."""
    if sys.platform == "win32":  # where nobody can remove an open file
        yield True
        return
    lock = os.dup(handle)
    try:
        with suppress(OSError):  # a disk without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield os.fstat(lock).st_nlink > 0
    finally:
        with suppress(OSError):  # the file may have its final name by now
            os.close(lock)


def _remove_abandoned(temporary: Path) -> None:
    """Remove a temporary file if no process is writing it, holding its lock so that none can start."""
    old = time.time() - temporary.stat().st_mtime > _ABANDONED
    if sys.platform == "win32":
        if old:
            temporary.unlink()
        return
    handle = os.open(temporary, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        temporary.unlink()
    except BlockingIOError:
        pass  # its writer is at work
    except OSError:  # a disk without locks
        if old:
            temporary.unlink()
    finally:
        os.close(handle)


def _has_content(path: Path, parts: Sequence[bytes | memoryview]) -> bool:
    """Compare a file with what was written, chunk by chunk: a model may have gigabytes."""
    with path.open("rb") as file:
        return all(
            file.read(len(chunk)) == chunk
            for part in parts
            for chunk in (part[start : start + _CHUNK] for start in range(0, len(part), _CHUNK))
        ) and not file.read(1)


def _sync_folder(path: Path) -> None:
    """Flush the folder's new entry to disk where the system can, so that it survives a loss of power."""
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
            "%s is written, but its folder could not be flushed to disk (%s): after a loss of power the previous file may be "
            "there again.",
            path,
            error.strerror or error,
        )


def _acquire(lock: BaseFileLock, path: str | os.PathLike[str], seconds: float) -> bool:
    """Try to take the lock within a timeout. If the file system has no locks, warn and continue."""
    with writing(path):
        try:
            lock.acquire(timeout=seconds)
        except Timeout:
            return False
        except PermissionError as error:
            if not os.path.lexists(lock.lock_file):
                raise
            raise PermissionError(error.errno, _LOCK_PROTECTED) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            _log.warning(
                "The file system of %s has no locks (%s): do not let two processes change it at the same time.",
                os.fspath(path),
                error.strerror,
            )
    return True


def _write_holder(handle: int) -> None:
    """Write into the lock file who holds it. If that fails, as on a full disk, others only miss the name."""
    program = Path(sys.argv[0]).name if sys.argv else ""
    command = " ".join([program, *sys.argv[1:2]]) if program == "cldnet" else program or "python"
    holder = {"pid": os.getpid(), "host": platform.node(), "command": command, "since": time.time()}
    with suppress(OSError):
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, json.dumps(holder).encode())


def _read_holder(lock_file: Path) -> str:
    """Name the process that holds a lock. The file is untrusted, so only what `_write_holder` writes is accepted."""
    try:
        with lock_file.open("rb") as file:
            holder = json.loads(file.read(4096))
        start, now = time.localtime(float(holder["since"])), time.localtime()
        since = time.strftime("%H:%M" if start[:3] == now[:3] else "%Y-%m-%d %H:%M", start)
        text = f"process {int(holder['pid'])} on {holder['host']} ({holder['command']}, since {since})"
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return "another process"
    return "".join(letter if letter.isprintable() else "?" for letter in text)
