"""One process at a time changes a model's file: a lock from loading it to saving it again."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import platform
import stat
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from cldnet.store.disk import LOCK_PROTECTED, behind_links, check_place, writing

__all__ = ["locked"]

#: Seconds after which a waiting process looks again who holds the lock.
_LOOK = 1.0
#: What file systems without locks answer.
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}
#: Bytes of a file name that all common file systems allow, less those that the lock file's name has in addition.
_LONGEST_NAME = 255 - len("..lock")
#: Locks that the disk did not release. They are kept, or this process would wait for itself.
_unreleased: list[BaseFileLock] = []
_log = logging.getLogger("cldnet")


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
        target = behind_links(Path(path))
        check_place(target)
        if not target.absolute().parent.is_dir():  # filelock would make it
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        side = _lock_file(target)
        # One instance per file, so that save can take the lock inside of a block that holds it.
        lock = FileLock(side, is_singleton=True, preserve_lock_file=True, on_acquired=_sign)
    told = None
    while not _taken(lock, path, _LOOK if told else 0.0):
        holder = _holder(side)
        if not wait:
            reason = f"It is being changed by {holder}: try again when that has finished, or wait for it."
            raise BlockingIOError(errno.EAGAIN, reason, os.fspath(path))
        if holder != told:
            (tell or _log.warning)(f"Waiting for {holder} to finish with {target.name} …")
            told = holder
    try:
        _share(side, target)
        yield
    finally:
        _let_go(lock, target)


def _lock_file(target: Path) -> Path:
    name = target.name
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return target.absolute().with_name(f".{name}.lock")


def _taken(lock: BaseFileLock, path: str | os.PathLike[str], seconds: float) -> bool:
    """Try to take the lock for so long. Where there are no locks, say so and go on."""
    with writing(path):
        try:
            lock.acquire(timeout=seconds)
        except Timeout:
            return False
        except PermissionError as error:
            if not os.path.lexists(lock.lock_file):
                raise
            raise PermissionError(error.errno, LOCK_PROTECTED) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            _log.warning(
                "The file system of %s has no locks (%s): do not let two processes change it at the same time.",
                os.fspath(path),
                error.strerror,
            )
    return True


def _let_go(lock: BaseFileLock, target: Path) -> None:
    """Release the lock. What was saved is saved, so a disk that fails now must not say otherwise."""
    try:
        lock.release()
    except OSError as error:
        _unreleased.append(lock)
        _log.warning("The lock of %s is free only when this process ends (%s).", target, error.strerror or error)


def _sign(handle: int) -> None:
    """Write into the lock file who holds it. A failure, as on a full disk, costs those who wait no more than the name."""
    program = Path(sys.argv[0]).name if sys.argv else ""
    command = " ".join([program, *sys.argv[1:2]]) if program == "cldnet" else program or "python"
    said = {"pid": os.getpid(), "host": platform.node(), "command": command, "since": time.time()}
    with suppress(OSError):
        os.ftruncate(handle, 0)
        os.lseek(handle, 0, os.SEEK_SET)
        os.write(handle, json.dumps(said).encode())


def _holder(side: Path) -> str:
    """Who holds a lock, in words. The file may be anybody's: what is not as `_sign` wrote it is not believed."""
    try:
        with side.open("rb") as file:
            said = json.loads(file.read(4096))
        day, now = time.localtime(float(said["since"])), time.localtime()
        since = time.strftime("%H:%M" if day[:3] == now[:3] else "%Y-%m-%d %H:%M", day)
        text = f"process {int(said['pid'])} on {said['host']} ({said['command']}, since {since})"
    except (OSError, ValueError, KeyError, TypeError, OverflowError):
        return "another process"
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _share(side: Path, target: Path) -> None:
    """Let those who may write the model's file take its lock, too: the file's rights may have been changed since."""
    with suppress(OSError):
        mode = stat.S_IMODE(target.stat().st_mode) & 0o666 | 0o600
        if stat.S_IMODE(side.stat().st_mode) != mode:
            side.chmod(mode)
