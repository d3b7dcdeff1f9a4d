"""A service in a process of its own, its clients on bare sockets, and what they ask and teach."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

TOKEN = "benchmark-token"
CLASSES = ("dune", "forest", "meadow", "shore")
#: Memory in MB for the matrix to solve: the default of `cldnet learn` and of the library, and a small model.
DEFAULT, SMALL = 128, 8
_BOUNDARY = "benchmarks-serve"
#: The type of a form.
FORM = f"multipart/form-data; boundary={_BOUNDARY}"


def photo(number: int, width: int = 640, height: int = 480) -> bytes:
    """A JPEG of smooth colours, alike within a class, with noise of its own; of the class ``number % 4``."""
    from PIL import Image

    own, of_class = np.random.default_rng((1, number)), np.random.default_rng((0, number % len(CLASSES)))
    colours = of_class.integers(0, 256, (8, 8, 3)) + own.normal(0, 40, (8, 8, 3))
    smooth = Image.fromarray(colours.clip(0, 255).astype(np.uint8)).resize((width, height), Image.Resampling.BICUBIC)
    pixels = np.asarray(smooth) + own.normal(0, 8, (height, width, 3))
    file = io.BytesIO()
    Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=85)
    return file.getvalue()


def row(number: int) -> list[float]:
    """Sixteen numbers around the mean of the class ``number % 4``."""
    means = np.random.default_rng((0, number % len(CLASSES))).normal(0, 2, 16)
    numbers = (means + np.random.default_rng((1, number)).normal(size=16)).round(4)
    return [float(each) for each in numbers]


def write_model(path: Path, noun: str, memory: int = DEFAULT, each: int = 10) -> dict[str, Any]:
    """Teach a new model ``each`` samples of every class; say what it is."""
    from cldnet.data.images.decode import cut_from, read_photos
    from cldnet.estimator.teaching import new_classifier, save_solved

    clf, count = new_classifier(noun, memory=memory), each * len(CLASSES)
    x: Any = np.array([row(number) for number in range(count)])
    if noun == "photo":
        x = read_photos([photo(number) for number in range(count)], 224, cut_from(224)).x
    with clf.lesson("before"):
        clf.partial_fit(x, [CLASSES[number % len(CLASSES)] for number in range(count)])
    save_solved(clf, path)
    features: Any = clf.model_.learner.features
    return {
        "samples": noun,
        "features": features.out_features,
        "classes": len(CLASSES),
        "taught": count,
        "file": path.stat().st_size,
    }


def request(method: str, path: str, body: bytes = b"", kind: str = "application/json", **headers: Any) -> bytes:
    """The bytes of a request; an underscore in a header's name stands for a hyphen, and None leaves a header out."""
    usual = {"Host": "127.0.0.1", "Authorization": f"Bearer {TOKEN}", "Content-Type": kind, "Content-Length": len(body)}
    given = usual | {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in given.items() if value is not None)]
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + b"\r\n\r\n" + body


def form(files: Sequence[tuple[str, bytes]], **fields: str) -> tuple[bytes, str]:
    """The body of a form, and its type."""
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
    for name, content in files:
        head = f'Content-Disposition: form-data; name="files"; filename="{name}"\r\nContent-Type: image/jpeg\r\n\r\n'
        parts.append(head.encode() + content)
    line = f"--{_BOUNDARY}".encode()
    return b"".join(line + b"\r\n" + part + b"\r\n" for part in parts) + line + b"--\r\n", FORM


def photo_question(number: int) -> bytes:
    return request("POST", "/predict", *form([("photo.jpg", photo(number))]))


def photo_lesson(number: int) -> bytes:
    about = {"label": CLASSES[number % len(CLASSES)], "name": f"lesson {number:05d}", "once": "true"}
    return request("POST", "/learn", *form([("photo.jpg", photo(number))], **about))


def row_question(number: int) -> bytes:
    return request("POST", "/predict", json.dumps({"inputs": [row(number)]}).encode())


def row_lesson(number: int) -> bytes:
    about = {"label": CLASSES[number % len(CLASSES)], "name": f"lesson {number:05d}", "once": True}
    return request("POST", "/learn", json.dumps({**about, "inputs": [row(number)]}).encode())


@dataclass
class Server:
    """`cldnet serve` in a process of its own, which can be killed and started again at the same address."""

    model: Path
    port: int = field(default_factory=lambda: _free_port())

    def start(self) -> None:
        """Start it, and wait until it listens."""
        run = [sys.executable, "-c", "from cldnet.cli import main; main()", "serve", str(self.model)]
        with self.model.with_suffix(".log").open("ab") as log:
            self.process = subprocess.Popen(
                [*run, "--port", str(self.port), "--token", TOKEN], stdout=log, stderr=log, start_new_session=True
            )
        while self.process.poll() is None:
            with socket.socket() as line:
                if not line.connect_ex(("127.0.0.1", self.port)):
                    return
            time.sleep(0.02)
        raise RuntimeError(f"The server did not start:\n{self.model.with_suffix('.log').read_text()[-2000:]}")

    def stop(self) -> None:
        """Ask it to end, and wait for that."""
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(60)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def bytes(self, what: str = "VmRSS") -> int:
        """Resident memory now, or with ``VmHWM`` at its peak, in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return next(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith(what))

    def seconds(self) -> float:
        """Processor time that it has used."""
        parts = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(parts[11]) + int(parts[12])) / os.sysconf("SC_CLK_TCK")

    def get(self, path: str) -> Any:
        """What a route answers to GET."""
        return json.loads(asyncio.run(asked_once(self.port, request("GET", path)))[1])


@contextmanager
def serving(model: Path) -> Iterator[Server]:
    server = Server(model)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _free_port() -> int:
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        return int(line.getsockname()[1])


class Connection:
    """One connection of a client, which is kept for the next request."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, raw: bytes, rest: Sequence[bytes] = (), pause: float = 0.0) -> tuple[int, bytes]:
        """Send a request, ``rest`` in pieces with pauses before each; return status and body as soon as they are there."""
        try:
            if self._writer is None:
                self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
            self._writer.write(raw)
            if not rest:
                return await self._answer()
            sending = asyncio.create_task(self._send(rest, pause))
            try:
                return await self._answer()
            finally:
                sending.cancel()
        except BaseException:
            self.close()
            raise

    async def _send(self, rest: Sequence[bytes], pause: float) -> None:
        assert self._writer is not None
        for piece in rest:
            await asyncio.sleep(pause)
            self._writer.write(piece)
            await self._writer.drain()

    async def _answer(self) -> tuple[int, bytes]:
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = head.partition("content-length:")[2].partition("\r\n")[0]
        body = await (self._reader.readexactly(int(length)) if length else self._reader.read())
        if "connection: close" in head:
            self.close()
        return int(head.split(" ", 2)[1]), body

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None


async def asked_once(port: int, raw: bytes) -> tuple[int, bytes]:
    """The answer to one request, on a connection of its own."""
    connection = Connection(port)
    try:
        return await connection.ask(raw)
    finally:
        connection.close()


@dataclass
class Clients:
    """Clients that predict one sample per request, each the next one as soon as the last is answered."""

    port: int
    questions: Sequence[bytes]
    until: Callable[[Clients], bool]
    patient: bool = False  # whether a connection that ends is opened again
    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    broken: int = 0

    async def predict(self, first: int) -> None:
        """Be one of them; they begin at different questions."""
        connection = Connection(self.port)
        for number in itertools.count(first):
            if self.until(self):
                return connection.close()
            begun = time.perf_counter()
            try:
                status, body = await connection.ask(self.questions[number % len(self.questions)])
            except (OSError, EOFError) as error:
                if not self.patient:
                    self.failed.append(repr(error))
                self.broken += 1
                await asyncio.sleep(0.05)
                continue
            self.seconds.append(time.perf_counter() - begun)
            if status != 200 or b'"label"' not in body:
                self.failed.append(f"{status} {body[:200]!r}")


@dataclass
class Teacher:
    """A client that teaches one sample per request, and sends it again until that is acknowledged."""

    port: int
    lesson: Callable[[int], bytes]
    until: Callable[[Teacher], bool]
    pause: float = 0.0  # seconds from the beginning of one lesson to that of the next, at least
    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    sent_again: int = 0
    known: int = 0  # lessons that were on disk although the answer got lost

    async def teach(self, first: int) -> None:
        connection = Connection(self.port)
        for number in itertools.count(first):
            if self.until(self):
                return connection.close()
            begun = time.perf_counter()
            while not await self._acknowledged(connection, self.lesson(number)):
                await asyncio.sleep(0.05)
            self.seconds.append(time.perf_counter() - begun)
            await asyncio.sleep(max(0.0, begun + self.pause - time.perf_counter()))

    async def _acknowledged(self, connection: Connection, lesson: bytes) -> bool:
        try:
            status, body = await connection.ask(lesson)
        except (OSError, EOFError):
            self.sent_again += 1
            return False
        if status != 200:
            self.failed.append(f"{status} {body[:200]!r}")
        self.known += status == 200 and json.loads(body)["repeated"]
        return True


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    """In milliseconds."""
    return {f"p{share}": round(1000 * float(np.percentile(seconds, share)), 1) for share in (50, 95, 99)}
