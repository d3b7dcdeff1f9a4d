"""Decode image files to pixels of one size, under limits of pixels, time and memory.

The processes that decode import this module, so it imports neither torch nor, before it is needed, Pillow.
"""

from __future__ import annotations

import io
import multiprocessing
import os
import re
import signal
import stat
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

#: Formats that are read, recognised by a file's content and not by its name.
FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
#: Pixels that may be held at once; an image with more is refused before it is decoded.
MAX_PIXELS = 64_000_000
#: Times that a decoder may read from one file. Photos take a few hundred; a large PNG in pieces of 8 kB takes 100,000.
MAX_READS = 1_000_000
#: Scans that a JPEG may have. Encoders write about ten; decoding time is proportional to scans × pixels.
MAX_SCANS = 100
#: Segments of a JPEG that are examined. Photos have some twenty, and one for every 64 kB of a colour profile or of XMP data.
MAX_SEGMENTS = 1000
#: Seconds of processor time for one image. Images of `MAX_PIXELS` take one or two, whatever the load on the machine.
MAX_SECONDS = 10
#: Seconds by the clock for one image: for a disk that does not answer, and where processor time cannot be limited (Windows).
MAX_WAIT = 60
#: Bytes that a worker may allocate for images (Linux). Images of `MAX_PIXELS` take at most 1 GiB.
MAX_MEMORY = 3 << 29
#: Up to this many images are decoded in this process if they are quick to decode: starting workers would take longer.
FEW = 64

#: A JPEG is decoded at a lower scale as long as that leaves this many times the wanted sides.
_DRAFT_GAP = 2
_REASON_LENGTH = 120
_PATIENCE = 5.0
_TICK = 1.0

_START = b"\xff\xd8"
_SOS, _EOI, _APP1 = 0xDA, 0xD9, 0xE1
_SOF = set(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}  # frame headers; these three are tables
_SEQUENTIAL = (0xC0, 0xC1)
#: The start of a segment, or the end of the picture: not a stuffed byte, a restart or a fill byte.
_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd9-\xfe]", re.DOTALL)
_BLOCK = 1 << 16
#: An image: the path of its file, or its content.
Source = str | bytes


@dataclass(frozen=True)
class Limits:
    """How much time an image may take. Those of more scans × pixels than ``quick`` are decoded in a process of their own."""

    quick: int = 200_000_000
    small: int = 1 << 16  # bytes of a file, a JPEG aside, that is quick whatever is in it
    seconds: int = MAX_SECONDS  # of processor time
    wait: float = MAX_WAIT  # seconds by the clock


_LIMITS = Limits()


@dataclass(frozen=True)
class BadImage:
    """An image that could not be read, and why. ``passing`` reasons, such as a missing permission, are temporary.

    The path is empty if the image was given by its content.
    """

    path: str
    reason: str
    passing: bool = False


class _Refused(Exception):
    """A reason of our own."""


def pillow() -> ModuleType:
    """Return ``PIL.Image``, or say how to install it."""
    try:
        from PIL import Image  # noqa: PLC0415  (an optional dependency)
    except (ImportError, RuntimeError) as error:
        raise ImportError('Reading images needs Pillow: pip install ".[images]" in a clone of CLDNet.') from error
    return Image


def cut_from(side: int) -> int:
    """The shorter side of a photo before its centre is cropped to ``side``, as ImageNet nets are tested."""
    return round(side * 8 / 7)


def decode(source: Source, size: int, resize: int) -> NDArray[np.uint8] | BadImage:
    """Read an image as ``(3, size, size)`` bytes: its shorter side resized to ``resize``, its centre cropped.

    Takes the first picture of an animation, applies the EXIF orientation, converts grey, palette and CMYK to RGB and 16
    bits to 8, and drops transparency. The resize is bicubic, antialiased, and done only for what the crop keeps, so that a
    long strip takes no more memory than a square.

    A JPEG is decoded at 1/2, 1/4 or 1/8 of its size if both sides stay at least twice as long as wanted. `MAX_PIXELS`
    limits the size after that, or the full size of a progressive JPEG, which has to be held whole. `MAX_SCANS` and
    `MAX_READS` are limits, too. No file content raises: the answer is then a `BadImage`. Time is limited by `decode_all`.
    """
    pillow()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow warns of large images and odd metadata
            with _opened(source) as raw, _Metered(raw) as file:
                return _decode(file, size, resize)
    except Exception as error:  # hostile files make Pillow raise nearly anything
        passing = isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno is not None)
        return BadImage(_path(source), _reason(error), passing)


def _path(source: Source) -> str:
    return source if isinstance(source, str) else ""


@contextmanager
def _opened(source: Source) -> Iterator[io.RawIOBase]:
    """Open an image that is not empty, and is a regular file."""
    if isinstance(source, bytes):
        if not source:
            raise _Refused("an empty file")
        with io.BytesIO(source) as raw:
            yield raw  # type: ignore[misc]  # it reads like a raw file
        return
    with open(source, "rb", buffering=0, opener=_open_at_once) as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise _Refused("not a regular file")
        if about.st_size == 0:
            raise _Refused("an empty file")
        yield file


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without blocking, in case it has become a pipe without a writer."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def is_quick(source: Source, limits: Limits = _LIMITS) -> bool:
    """Tell, without decoding, whether `decode` takes at most a second or two: a small file, or a JPEG of few scans × pixels.

    Everything else is better decoded in a process that can be killed.
    """
    try:
        with _opened(source) as raw, io.BufferedReader(raw) as file:
            if file.read(len(_START)) != _START:
                return file.seek(0, io.SEEK_END) <= limits.small
            frame = read_frame(file)
            if frame is None:
                return False
            scans = 1 if frame.one_scan else count_scans(file)
            return scans * frame.width * frame.height <= limits.quick
    except (OSError, _Refused):
        return True


class _Metered(io.BufferedReader):
    """A file that may be read `MAX_READS` times, which bounds the cost of a header in many small pieces."""

    def __init__(self, raw: io.RawIOBase) -> None:
        super().__init__(raw)
        self._left = MAX_READS

    def read(self, size: int | None = -1) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise _Refused(f"takes more than {MAX_READS:,} reads to decode")
        return super().read(size)


def _decode(file: BinaryIO, size: int, resize: int) -> NDArray[np.uint8]:
    module = pillow()
    with module.open(file, formats=FORMATS) as image:
        pixels = _pixels_to_hold(image, file, resize)
        if pixels > MAX_PIXELS:
            raise _Refused(f"{pixels / 1e6:,.0f} million pixels, more than the {MAX_PIXELS / 1e6:.0f} allowed")
        image.load()
        _turn(image)
        upright = _rgb(image)
        small = upright.resize((size, size), module.Resampling.BICUBIC, box=_box(*upright.size, size, resize))
    return np.ascontiguousarray(np.asarray(small, dtype=np.uint8).transpose(2, 0, 1))


def _pixels_to_hold(image: Image, file: BinaryIO, resize: int) -> int:
    """Choose the scale of a JPEG, and count the pixels that decoding will hold in memory."""
    width, height = image.size
    if image.format not in ("JPEG", "MPO"):
        return width * height
    here = file.tell()
    frame = read_frame(file)
    row_by_row = frame is not None and frame.one_scan
    if not row_by_row and count_scans(file) > MAX_SCANS:
        raise _Refused(f"more than {MAX_SCANS} scans or {MAX_SEGMENTS:,} segments")
    file.seek(here)
    short, wanted = min(width, height), _DRAFT_GAP * resize
    image.draft(None, (-(-wanted * width // short), -(-wanted * height // short)))
    return image.size[0] * image.size[1] if row_by_row else width * height


def _turn(image: Image) -> None:
    """Apply the EXIF orientation; an invalid one is ignored."""
    from PIL import ImageOps  # noqa: PLC0415  (as `pillow`)

    try:
        ImageOps.exif_transpose(image, in_place=True)
    except MemoryError:
        raise
    except Exception:  # damaged metadata do not make an image unreadable
        return


def _rgb(image: Image) -> Image:
    """Convert any mode to RGB; 16 bits are scaled, which Pillow's own conversion would clip."""
    if image.mode == "F":
        raise _Refused("floating-point pixels of unknown range")
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise _Refused("32-bit pixels of unknown range")
        scaled = np.minimum(values, 65535 - 128).astype(np.uint16)  # so that nothing runs over
        scaled += 128
        scaled //= 257  # v · 255 / 65535, to the nearest whole number
        image = pillow().fromarray(scaled.astype(np.uint8))
    return image if image.mode == "RGB" else image.convert("RGB")


def _box(width: int, height: int, size: int, resize: int) -> tuple[float, float, float, float]:
    """Return the part of an image, in its own pixels, that a resize and a crop keep."""
    short = min(width, height)
    edges = []
    for side in (width, height):
        resized = resize * side // short
        first = round((resized - size) / 2)
        edges.append((first * side / resized, min(side, (first + size) * side / resized)))
    (left, right), (top, bottom) = edges
    return left, top, right, bottom


def _reason(error: Exception) -> str:
    if isinstance(error, pillow().UnidentifiedImageError):
        return f"not an image ({', '.join(FORMATS)})"
    if isinstance(error, MemoryError):
        return "not enough memory to decode it"
    text = (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())[:_REASON_LENGTH]


@dataclass(frozen=True)
class Frame:
    """The frame header of a JPEG, and whether its first scan holds the whole picture."""

    width: int
    height: int
    one_scan: bool


def read_frame(file: BinaryIO) -> Frame | None:
    """Read a JPEG's header up to its first scan, or return None if it is not as encoders write it.

    With `Frame.one_scan` a decoder reads that scan, row by row, and ignores all others. A second EXIF block or a second
    frame header gives None, because decoders differ in how they treat it.
    """
    file.seek(len(_START))
    frames, exif = [], 0
    for marker, content in islice(_segments(file), MAX_SEGMENTS):
        if marker in _SOF:
            frames.append((marker, content))
        exif += marker == _APP1 and content.startswith(b"Exif")
        if marker == _SOS:
            if len(frames) != 1 or exif > 1 or len(frames[0][1]) < 6 or not content:
                return None
            kind, frame = frames[0]
            width, height = int.from_bytes(frame[3:5]), int.from_bytes(frame[1:3])
            return Frame(width, height, kind in _SEQUENTIAL and content[0] == frame[5])
    return None


def count_scans(file: BinaryIO) -> int:
    """Count the scans of a JPEG, up to one more than `MAX_SCANS`. More than `MAX_SEGMENTS` segments count as too many."""
    file.seek(len(_START))
    scans = 0
    for _ in range(MAX_SEGMENTS):
        if scans > MAX_SCANS or not _skip_to_marker(file):
            return scans
        marker, _ = next(_segments(file), (_EOI, b""))
        if marker == _EOI:
            return scans
        scans += marker == _SOS
    return MAX_SCANS + 1


def _segments(file: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield markers with their contents, as long as one segment follows the other."""
    while len(start := file.read(4)) == 4:
        marker, size = start[1], int.from_bytes(start[2:]) - 2
        if not _MARKER.match(start) or marker == _EOI or size < 0:
            return
        content = file.read(size)
        if len(content) < size:
            return
        yield marker, content


def _skip_to_marker(file: BinaryIO) -> bool:
    """Move to the next marker, past compressed data and fill bytes; False if there is none."""
    start = file.tell()
    while block := file.read(_BLOCK):
        if found := _MARKER.search(block):
            file.seek(start + found.start())
            return True
        start += max(1, len(block) - 1)  # a marker may lie across two blocks
        file.seek(start)
    return False


@dataclass(frozen=True)
class Photos:
    """Decoded photos: pixels ``(n, 3, size, size)``, the index of each in the given paths, and the unreadable ones."""

    x: NDArray[np.uint8]
    places: NDArray[np.int64]
    bad: tuple[BadImage, ...]


def usable_cpus() -> int:
    """Number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_photos(
    sources: Sequence[str | os.PathLike[str] | bytes],
    size: int,
    resize: int,
    limits: Limits = _LIMITS,
    *,
    workers: int | None = None,
) -> Photos:
    """Decode photos to one size, in memory (see `decode_all`), with a worker per processor unless their number is given.

    Unreadable ones are reported, not raised.
    """
    pillow()
    named = [source if isinstance(source, bytes) else os.fspath(source) for source in sources]
    x = np.empty((len(named), 3, size, size), np.uint8)
    bad: dict[int, BadImage] = {}
    with closing(decode_all(named, size, resize, workers or usable_cpus(), limits)) as decoded:
        for row, pixels in decoded:
            if isinstance(pixels, BadImage):
                bad[row] = pixels
            else:
                x[row] = pixels
    places = np.array([row for row in range(len(named)) if row not in bad], dtype=np.int64)
    return Photos(x[places] if bad else x, places, tuple(bad[row] for row in sorted(bad)))


def decode_all(
    sources: Sequence[Source], size: int, resize: int, workers: int, limits: Limits = _LIMITS
) -> Generator[tuple[int, NDArray[np.uint8] | BadImage], None, None]:
    """Decode images, in any order; yield the position of each with its pixels.

    Many images are decoded in ``workers`` processes, each within the limits of time and `MAX_MEMORY`; an image that takes
    more is bad. Of a few images, or with one worker, those that `is_quick` are decoded in this process. Close the
    iterator (``contextlib.closing``) if you leave it early: that ends the workers.
    """
    jobs = list(enumerate(sources))
    # A daemon, such as a worker of somebody's pool, may not have children: it decodes everything itself, without limits.
    may_start = not multiprocessing.current_process().daemon
    if workers > 1 and len(jobs) > FEW and may_start:
        yield from _in_workers(jobs, size, resize, workers, limits)
        return
    slow = []
    for row, source in jobs:
        if is_quick(source, limits) or not may_start:
            yield row, decode(source, size, resize)
        else:
            slow.append((row, source))
    yield from _in_workers(slow, size, resize, 1, limits)


def _in_workers(
    jobs: Sequence[tuple[int, Source]], size: int, resize: int, count: int, limits: Limits
) -> Iterator[tuple[int, NDArray[np.uint8] | BadImage]]:
    """Decode images, given with their positions, in processes, which can be killed."""
    waiting = deque(jobs)
    idle: list[_Worker] = []
    busy: dict[_Worker, tuple[int, Source]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < count:
                worker = idle.pop() if idle else _Worker(size, resize, limits.seconds)
                busy[worker] = waiting.popleft()
                worker.give(busy[worker][1])
            before = time.monotonic()
            left = limits.wait - max(worker.waited for worker in busy)
            ready = wait([worker.line for worker in busy], min(_TICK, max(0.0, left) + 0.01))
            waited = min(_TICK, time.monotonic() - before)  # more if this process was suspended for a while
            for worker, (row, source) in list(busy.items()):
                worker.waited += waited
                if worker.line in ready:
                    image = worker.reply(source)
                elif worker.waited > limits.wait:
                    image = BadImage(_path(source), f"took longer than {limits.wait:g} s to read", passing=True)
                    worker.end()
                else:
                    continue
                del busy[worker]
                if not worker.ended:
                    idle.append(worker)
                yield row, image
    finally:
        for worker in (*idle, *busy):
            worker.end()


class _Worker:
    """A process that decodes one image at a time and can be killed."""

    def __init__(self, size: int, resize: int, seconds: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.seconds = seconds
        self.line, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, size, resize, seconds, MAX_MEMORY), daemon=True)
        self.waited = 0.0
        self.ended = False
        with theirs, _hidden_main():
            self.process.start()

    def give(self, source: Source) -> None:
        """Send it an image."""
        self.waited = 0.0
        with suppress(OSError):  # if it has died, `reply` finds out why
            self.line.send(source)

    def reply(self, source: Source) -> NDArray[np.uint8] | BadImage:
        """Receive its reply, or find out why it died."""
        try:
            image: NDArray[np.uint8] | BadImage = self.line.recv()
            return image
        except (EOFError, OSError):
            self.process.join(_PATIENCE)
        code = self.process.exitcode
        self.end()
        if resource is not None and code == -signal.SIGXCPU:
            return BadImage(_path(source), f"took longer than {self.seconds} s to decode")
        if code in (-signal.SIGSEGV, -signal.SIGABRT):
            return BadImage(_path(source), "made the decoder crash")
        raise ChildProcessError(
            f"The process that decoded {_path(source) or 'an image'!r} died (exit code {code}), perhaps for lack of memory. "
            "Use fewer workers, or move that file away."
        )

    def end(self) -> None:
        """Kill it, whatever it is doing."""
        self.ended = True
        self.process.kill()
        self.process.join()
        self.line.close()


_main_lock = threading.Lock()


@contextmanager
def _hidden_main() -> Iterator[None]:
    """Hide the user's script from a new process, which would run it again, endlessly without a ``__main__`` guard."""
    with _main_lock:
        main = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = main


def _serve(line: Connection, size: int, resize: int, seconds: int, memory: int) -> None:
    """Decode what is sent until the line is closed, which also happens when the other process dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started us receives it, and ends us
    pillow()
    with suppress(OSError):  # not Linux
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _set_limit(resource.RLIMIT_AS, pages * resource.getpagesize() + memory)
        _set_limit(resource.RLIMIT_CORE, 0)  # a photo must not end up in a core dump
    with suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            source = line.recv()
            if resource is not None:
                _set_limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + seconds)
            line.send(decode(source, size, resize))


def _set_limit(kind: int, value: int) -> None:
    hard = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))
