"""A web server that cuts, corrupts, stalls and lies as a test wants it to."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


class BadServer(ThreadingHTTPServer):
    """Serves `files` honestly, once the `plan`, or the plan of a path, is done.

    A step of a plan is the name of a method of `Answer`, perhaps with a word behind it.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files: dict[str, bytes] = {}
        self.plan: list[str] = []
        self.plans: dict[str, list[str]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.sent = 0
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """A client that hangs up is what these tests are about."""


class Answer(BaseHTTPRequestHandler):
    """One answer, as the plan wants it."""

    server: BadServer

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers)))
        self.body = self.server.files.get(self.path, b"")
        plan = self.server.plans.get(self.path) or self.server.plan
        step, _, word = (plan.pop(0) if plan else "honest").partition(" ")
        getattr(self, step)(*([word] if word else []))

    def honest(self, end: str | None = None) -> None:
        """Serve as the standard says, but nothing behind byte `end` of the file."""
        start = 0
        if "Range" in self.headers:
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            if start >= len(self.body):
                return self._begin(416, Content_Range=f"bytes */{len(self.body)}")
            spread = f"bytes {start}-{len(self.body) - 1}/{len(self.body)}"
            self._begin(206, Content_Range=spread, Content_Length=len(self.body) - start)
        else:
            self._begin(200 if self.path in self.server.files else 404, Content_Length=len(self.body))
        self._send(self.body[start : None if end is None else int(end)])
        return None

    def cut(self) -> None:
        self.honest(str(len(self.body) // 2))

    def stall(self) -> None:
        self.cut()
        self.server.over.wait(5)

    def silent(self) -> None:
        self.server.over.wait(5)

    def corrupt(self) -> None:
        half = len(self.body) // 2
        self.body = self.body[:half] + b"?" + self.body[half + 1 :]
        self.honest()

    def claims(self, length: str) -> None:
        self._begin(200, Content_Length=length)
        self._send(self.body)

    def whole_without_range(self) -> None:
        self.claims(str(len(self.body)))

    def half_without_range(self) -> None:
        self._begin(200, Content_Length=len(self.body))
        self._send(self.body[: len(self.body) // 2])

    def another_range(self) -> None:
        rest = len(self.body) - len(self.body) // 2
        self._begin(206, Content_Range="bytes 5-9/10", Content_Length=rest)
        self._send(self.body[5 : 5 + rest])

    def chunked(self, end: str | None = None) -> None:
        self.protocol_version = "HTTP/1.1"
        self._begin(200, Transfer_Encoding="chunked", Connection="close")
        self._send(b"%x\r\n%s\r\n0\r\n\r\n" % (len(self.body), self.body) if end is None else b"fffff\r\nabc")

    def endless(self) -> None:
        self._begin(200)
        while not self.server.over.is_set():
            self._send(bytes(1 << 16))

    def no_http(self) -> None:
        self.wfile.write(b"220 smtp.example.org\r\n\r\n")

    def hang_up(self) -> None:
        self.connection.close()

    def status(self, code: str) -> None:
        self._begin(int(code))

    def redirect(self, address: str) -> None:
        self._begin(302, Location=address)

    def _begin(self, status: int, **headers: object) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def _send(self, content: bytes) -> None:
        self.server.sent += len(content)  # before the client can have it, so that a test never counts too little
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[BadServer]:
    """A bad server that runs; all of its files are those that a test gives it."""
    monkeypatch.setenv("no_proxy", "*")
    with BadServer() as bad:
        thread = threading.Thread(target=bad.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield bad
        bad.over.set()
        bad.shutdown()
        thread.join()


@pytest.fixture
def nowhere() -> str:
    """An address at which nobody answers."""
    with BadServer() as closed:
        return closed.url
