"""Files are tried in processes forked from a warm one, with bounds on time and memory, and a watch on all that is done."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Memory that a load may take on top of what the process had, and on top of that for each byte of the file.
MEMORY, COPIES = 1 << 29, 4
#: Files that one process tries, as long as nothing is wrong with one: a fork may take longer than a file.
TOGETHER = 25
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


@dataclass(frozen=True)
class Trial:
    """One file: its kind, what was done to it, what it may take, and how it is tried."""

    kind: str
    note: str
    bounds: Bounds
    work: Callable[[Watch], str]


@dataclass(frozen=True)
class Outcome:
    """What became of a file: a verdict (``"refused"``, ``"equal"``, …), or None and why."""

    kind: str
    note: str
    verdict: str | None
    detail: str


def judge(numbers: range, make: Callable[[int], Trial]) -> Iterator[tuple[int, Outcome]]:
    """Try files by their numbers, a few in one process, until one of them is wrong: the next is tried in a new process."""
    while numbers:
        done = 0
        for outcome in _together(numbers[:TOGETHER], make):
            yield numbers[done], outcome
            done += 1
        numbers = numbers[done:]


def _together(numbers: range, make: Callable[[int], Trial]) -> Iterator[Outcome]:
    reader, writer = os.pipe()
    process = os.fork()
    if not process:
        os.close(reader)
        _serve(numbers, make, writer)
    os.close(writer)
    kind, note, patience, told, said = "unknown", "while it was made", Bounds.patience, True, b""
    while answers := select.select([reader], [], [], patience)[0]:
        if not (part := os.read(reader, 1 << 16)):
            break
        *lines, said = (said + part).split(b"\n")
        for line in map(json.loads, lines):
            told = len(line) == 2
            if told:
                yield Outcome(kind, note, *line)
            else:
                kind, note, patience = line
    if not answers:  # one that is just ending must not look as if it had hung
        os.kill(process, signal.SIGKILL)
    status = os.waitpid(process, 0)[1]
    os.close(reader)
    if not told or status:
        yield Outcome(kind, note, None, _ended(status, patience))


def _ended(status: int, patience: int) -> str:
    if not os.WIFSIGNALED(status):
        return f"crash: ended with {os.WEXITSTATUS(status)} and without a word"
    number = os.WTERMSIG(status)
    if number == signal.SIGKILL:
        return f"hang: no answer in {patience} s"
    if number == signal.SIGPROF:
        return "hang: too much processor time"
    return f"crash: ended by {signal.Signals(number).name}"


def _serve(numbers: range, make: Callable[[int], Trial], writer: int) -> None:
    """Come to a verdict on each file, say it, and end without any of the parent's cleaning up."""
    watch = Watch()
    warnings.simplefilter("ignore")
    sys.addaudithook(watch)
    for number in numbers:
        trial = make(number)
        said = [trial.kind, trial.note[:1000], trial.bounds.patience]
        os.write(writer, json.dumps(said).encode() + b"\n")
        verdict, detail = _tried(trial, watch)
        os.write(writer, json.dumps([verdict, detail]).encode() + b"\n")
        if verdict is None:
            break
    os._exit(0)


def _tried(trial: Trial, watch: Watch) -> tuple[str | None, str]:
    bounds, verdict = trial.bounds, None
    watch.folder, watch.reads, watch.seen = bounds.writes, bounds.reads, []
    # Addresses are bounded, and not pages: who asks for memory and does not use it has asked for it all the same.
    limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + bounds.memory
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    signal.setitimer(signal.ITIMER_PROF, bounds.seconds)  # ends the process
    try:
        verdict, detail = trial.work(watch), ""
    except ViolationError as error:
        detail = str(error)
    except BaseException as error:  # whatever it is, it has to be told
        detail = f"{type(error).__name__}: {error!s:.300}"
    signal.setitimer(signal.ITIMER_PROF, 0)
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return (None, f"did {watch.seen[0]}") if watch.seen else (verdict, detail[:1000])
