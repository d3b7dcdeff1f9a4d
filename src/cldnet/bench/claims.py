"""Who is running what, in a folder that several processes and machines may share.

A claim is a file that only one can make (``O_EXCL``). Its owner renews the file's time again and again; a claim whose time is
over a minute old is stale, as is one of a process of this machine that is gone. A stale claim is not deleted, since two could
do so at once and the second one would delete the first one's new claim: it is followed by one with the next number, which
again only one can make. All times are the file system's own, so that clocks of machines need not agree.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

__all__ = ["BEAT", "STALE", "Claims"]

#: Seconds between two signs of life, and seconds without one until a claim is anybody's.
BEAT, STALE = 5.0, 60.0
_UNKNOWN = "unknown"


class Claims:
    """The claims of one folder.

    Parameters
    ----------
    folder : Path
        It is made when the first claim is.
    stale, beat, doubt : float
        Seconds: see `STALE` and `BEAT`; and how long a claim that looks stale is watched before it is taken over, since a
        machine that wakes up finds the claims of its own processes old until their next sign of life.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     claims = Claims(Path(folder))
    ...     with claims.hold("cell") as mine, claims.hold("cell") as again:
    ...         print(mine, again)
    True False
    """

    def __init__(self, folder: Path, stale: float = STALE, beat: float = BEAT, doubt: float = 2 * BEAT) -> None:
        self.folder, self.stale, self.beat, self.doubt = folder, stale, beat, doubt

    @contextmanager
    def hold(self, name: str) -> Iterator[bool]:
        """Claim a name for the time of a block, with signs of life; False if somebody else has it."""
        claim = self._claim(name)
        if claim is None:
            yield False
            return
        done = threading.Event()
        heart = threading.Thread(target=self._live, args=(claim, done), daemon=True)
        heart.start()
        try:
            yield True
        finally:
            done.set()
            heart.join()
            self._clear(name, claim)

    def owner(self, name: str) -> str | None:
        """Who holds a name now, as "process 12 on laptop"; None if nobody does."""
        numbers = self._numbers(name)
        if not numbers or self._is_stale(self._file(name, numbers[-1])):
            return None
        told = _read(self._file(name, numbers[-1]))
        return f"process {told.get('process', '?')} on {told.get('host', 'another machine')}"

    def sweep(self, folder: Path, pattern: str) -> None:
        """Delete drafts that a killed process left in a folder: files of a pattern that are as old as a stale claim."""
        for path in folder.glob(pattern):
            if self._age(path) > self.stale:
                path.unlink(missing_ok=True)

    def _claim(self, name: str) -> Path | None:
        self.folder.mkdir(parents=True, exist_ok=True)
        numbers = self._numbers(name)
        if numbers and not self._is_dead(self._file(name, numbers[-1])):
            return None
        claim = self._file(name, numbers[-1] + 1 if numbers else 0)
        # Written under another name and linked: a claim is never seen without its owner.
        draft = self.folder / f".{secrets.token_hex(8)}.draft"
        try:
            draft.write_text(json.dumps(_me()))
            _link(draft, claim)
        except FileExistsError:
            return None
        finally:
            draft.unlink(missing_ok=True)
        return claim

    def _live(self, claim: Path, done: threading.Event) -> None:
        while not done.wait(self.beat):
            try:
                os.utime(claim)
            except OSError:  # the folder is out of reach for now; the next beat may find it again
                continue

    def _clear(self, name: str, claim: Path) -> None:
        """Give a claim back, with the stale ones before it. One that followed, since we slept too long, is not ours."""
        for number in self._numbers(name):
            if self._file(name, number) == claim or number < int(claim.suffix[1:]):
                self._file(name, number).unlink(missing_ok=True)

    def _file(self, name: str, number: int) -> Path:
        return self.folder / f"{name}.{number}"

    def _numbers(self, name: str) -> list[int]:
        endings = (path.name.removeprefix(f"{name}.") for path in self.folder.glob(f"{name}.*"))
        return sorted(int(ending) for ending in endings if ending.isdigit())

    def _is_dead(self, claim: Path) -> bool:
        """Whether a claim's owner is gone for good; one that was only silent for long gets a moment to show itself."""
        if _is_gone(_read(claim)):
            return True
        if not self._is_stale(claim):
            return False
        time.sleep(self.doubt)
        return self._is_stale(claim)

    def _is_stale(self, claim: Path) -> bool:
        return _is_gone(_read(claim)) or self._age(claim) > self.stale

    def _age(self, path: Path) -> float:
        """Seconds since a file was written or renewed, by the clock of the file system; 0 if it is gone this very moment."""
        probe = self.folder / f".{secrets.token_hex(8)}.draft"
        try:
            probe.touch()
            return probe.stat().st_mtime - path.stat().st_mtime
        except FileNotFoundError:
            return 0.0
        finally:
            probe.unlink(missing_ok=True)


def _is_gone(told: dict[str, str]) -> bool:
    """Whether a claim is of a process of this machine that is no more."""
    if told.get("where") != _here()[1]:
        return False
    now = _born(told.get("process"))
    return now is None or (_UNKNOWN not in (now, told.get("born")) and now != told.get("born"))


def _link(draft: Path, claim: Path) -> None:
    try:
        os.link(draft, claim)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        with claim.open("x") as file:
            file.write(draft.read_text())


def _read(claim: Path) -> dict[str, str]:
    try:
        told = json.loads(claim.read_text())
    except (OSError, ValueError):
        return {}
    return told if isinstance(told, dict) else {}


@cache
def _here() -> tuple[str, str]:
    """Name of this machine, and what tells it and its processes from others of the same name (containers)."""
    marks = [Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")]
    known = [mark.readlink().name if mark.is_symlink() else mark.read_text().strip() for mark in marks if mark.exists()]
    return socket.gethostname(), "/".join([socket.gethostname(), *known])


def _me() -> dict[str, str]:
    host, where = _here()
    process = str(os.getpid())
    return {"host": host, "where": where, "process": process, "born": _born(process) or _UNKNOWN}


def _born(process: str | None) -> str | None:
    """When a process of this machine began, which tells it from a later one of the same number; None if it is gone."""
    if not process or not process.isdigit():
        return None
    stat = Path(f"/proc/{process}/stat")
    try:
        fields = stat.read_text().rpartition(")")[2].split()
    except OSError:
        return _UNKNOWN if not Path("/proc/self/stat").exists() or _is_hidden(int(process)) else None
    return None if fields[0] == "Z" else fields[19]


def _is_hidden(process: int) -> bool:
    """Whether a process of another user exists of which we are shown nothing: only its signs of life can tell."""
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except OSError:
        return False
    return False
