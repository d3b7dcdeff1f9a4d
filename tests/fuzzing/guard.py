"""One file, one process: forked from a warm one, with bounds on time and memory, and a watch on all that it does."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Memory that a load may take on top of what the process had, and on top of that for each byte of the file.
MEMORY, COPIES = 1 << 29, 4
#: What a sentence has at least.
WORDS = 4
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
#: What no reader of data has to do with, whatever it reads.
_FORBIDDEN = {
    *("exec", "code.__new__", "import", "marshal.loads", "pickle.find_class", "subprocess.Popen", "sys.addaudithook"),
    *("os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile", "pty.spawn"),
    *("ctypes.dlopen", "webbrowser.open", "sys._getframe.f_trace", "builtins.input"),
}
#: Where Linux says how much memory there is.
_ABOUT_THE_MACHINE = ("/proc/", "/sys/fs/cgroup/")
#: What changes the disk: within a folder that it may write to.
_CHANGING = {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.link", "os.symlink", "os.truncate"}
#: What torch, numpy, pyarrow, C and C++ say where no memory is left; what is refused before it is asked for has other words.
_NO_MEMORY = re.compile(
    r"can(?:no|')t allocate|cannot allocate|unable to allocate|fail\w* to allocate|allocation fail|bad_alloc|\bmalloc\b|"
    r"not enough memory|out of memory|no memory for",
    re.IGNORECASE,
)


class ViolationError(Exception):
    """Something that must not happen, in words."""


@dataclass
class Watch:
    """What was done while it was on, that whoever reads a file has no business with."""

    folder: Path | None = None
    reads: Path | None = None
    on: bool = False
    seen: list[str] = field(default_factory=list)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on and self._odd(event, arguments):
            self.on = False  # so that its own words are no event
            self.seen.append(f"{event} {arguments!r:.200}")
            self.on = True

    def _odd(self, event: str, arguments: tuple[Any, ...]) -> bool:
        if event == "compile":
            return arguments[1] != "<unknown>"  # what ast.literal_eval calls its text, which is parsed and never run
        if event == "open":
            path, mode, flags = arguments
            writes = bool(set(mode or "") & set("wax+")) or bool((flags or 0) & _WRITING)
            return not isinstance(path, int) and not (self._within(path) if writes else self._readable(path))
        if event in _CHANGING:
            folder = next((each for each in arguments[1:] if isinstance(each, int) and each > 2), None)
            return not self._within(arguments[0], "" if folder is None else os.readlink(f"/proc/self/fd/{folder}"))
        return event in _FORBIDDEN or event.startswith("socket.")

    def _readable(self, path: Any) -> bool:
        # Not where a link leads: whoever names a link wants to read what it leads to.
        place = os.path.abspath(os.fsdecode(path))
        return self.reads is None or place.startswith((f"{os.path.abspath(self.reads)}{os.sep}", *_ABOUT_THE_MACHINE))

    def _within(self, path: Any, below: str = "") -> bool:
        place = os.path.realpath(os.path.join(below, os.fsdecode(path)))
        return self.folder is not None and (place + os.sep).startswith(os.path.realpath(self.folder) + os.sep)


@dataclass(frozen=True)
class Outcome:
    """What became of a file: a verdict (``"refused"``, ``"equal"``, …), or None and why."""

    verdict: str | None
    detail: str


def causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and all that it was made of."""
    waiting, seen = [error], set()
    while waiting:
        found = waiting.pop()
        if id(found) not in seen:
            seen.add(id(found))
            yield found
            waiting += [each for each in (found.__cause__, found.__context__) if each is not None]


def wanted_memory(error: BaseException) -> bool:
    """Whether memory was asked for beyond the bound, whatever became of that later: no file may make anybody ask."""
    return any(
        isinstance(each, MemoryError)
        or (isinstance(each, OSError) and each.errno == errno.ENOMEM)
        or _NO_MEMORY.search(str(each)) is not None
        for each in causes(error)
    )


def refusal(error: BaseException) -> str:
    """The sentence of a refusal; anything else than a sentence is a violation, and so is one for want of memory."""
    text = str(error)
    if wanted_memory(error):
        last = list(causes(error))[-1]
        raise ViolationError(f"asked for memory beyond the bound: {type(last).__name__}: {last!s:.200}") from error
    if not isinstance(error, ValueError | OSError) or len(text.split()) < WORDS or isinstance(error, UnicodeError):
        raise ViolationError(f"{type(error).__name__}: {text:.300}") from error
    return text


def watched(load: Callable[[], Any], watch: Watch) -> tuple[bool, Any]:
    """Load something under a watch; tell whether it was refused, in a sentence, and what was loaded if not."""
    watch.on = True
    try:
        return False, load()
    except ViolationError:
        raise
    except BaseException as error:
        watch.on = False
        refusal(error)
        return True, None
    finally:
        watch.on = False


@dataclass(frozen=True)
class Bounds:
    """What one file may take: where it may write and read, seconds of processor time and of waiting, its size in bytes."""

    writes: Path | None = None
    reads: Path | None = None
    seconds: int = 5
    patience: int = 60
    size: int = 0

    @property
    def memory(self) -> int:
        """Bytes on top of what the process had."""
        return MEMORY + COPIES * self.size


def judge(work: Callable[[Watch], str], bounds: Bounds) -> Outcome:
    """Let a process of its own come to a verdict."""
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        os.close(reader)
        _serve(work, bounds, writer)
    os.close(writer)
    try:
        return _answer(reader, process, bounds)
    finally:
        os.close(reader)


def _answer(reader: int, process: int, bounds: Bounds) -> Outcome:
    until, said = time.monotonic() + bounds.patience, b""
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)
            return Outcome(None, f"hang: no answer in {bounds.patience} s")
        part = os.read(reader, 1 << 16)
        if not part:
            break
        said += part
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        return Outcome(None, f"hang: more than {bounds.seconds} s of processor time")
    if os.WIFSIGNALED(status):
        return Outcome(None, f"crash: ended by {signal.Signals(os.WTERMSIG(status)).name}")
    if not said:
        return Outcome(None, f"crash: ended with {os.WEXITSTATUS(status)} and without a word")
    return Outcome(*json.loads(said))


def _serve(work: Callable[[Watch], str], bounds: Bounds, writer: int) -> None:
    """Come to a verdict, say it, and end without any of the parent's cleaning up."""
    watch = Watch(bounds.writes, bounds.reads)
    warnings.simplefilter("ignore")
    # Addresses are bounded, and not pages: who asks for memory and does not use it has asked for it all the same.
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + bounds.memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CPU, (bounds.seconds, bounds.seconds + 1))
    sys.addaudithook(watch)
    verdict: str | None = None
    try:
        verdict, detail = work(watch), ""
    except ViolationError as error:
        detail = str(error)
    except BaseException as error:  # whatever it is, it has to be told
        detail = f"{type(error).__name__}: {error!s:.300}"
    if watch.seen:
        verdict, detail = None, f"did {watch.seen[0]}"
    os.write(writer, json.dumps([verdict, detail]).encode())
    os._exit(0)
