"""What no request gets past: the token, the address it was sent to, and limits of size and time."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Addresses that only this machine can reach.
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True)
class Limits:
    """Bounds of requests."""

    body: int = 64 << 20  # bytes of one
    held: int = 256 << 20  # bytes of all at the same time
    patience: float = 1.5  # seconds without a byte; after as many, `rate` counts
    rate: int = 16 << 10  # bytes per second at least


class Refused(HTTPException):
    """A request that is refused with a sentence."""

    def __init__(self, status_code: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(status_code, sentence, headers)


class Guard:
    """Refuse requests before anything reads them, and bound those that are read.

    Parameters
    ----------
    app : ASGIApp
    limits : Limits
    token : str or None
        What a request must bear, but for those of ``open_paths``.
    open_paths : collection of str
        Paths, and beginnings of paths that end in a slash, which need no token.
    hosts : collection of str, optional
        Names that this server may be called by. On a loopback address this keeps web sites out, which can give the address a
        name of theirs.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        token: str | None = None,
        open_paths: Collection[str] = (),
        hosts: Collection[str] | None = None,
    ) -> None:
        self.app, self.limits, self.hosts, self.open_paths = app, limits, hosts, open_paths
        self._token = None if token is None else token.encode()
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        body = _Body(self, receive, {"content-length", "transfer-encoding"}.isdisjoint(request.headers))
        sending = body.read_before_end(send)
        try:
            self._check(request)
        except Refused as refused:
            await JSONResponse({"error": refused.detail}, refused.status_code, refused.headers)(scope, receive, sending)
            return
        try:
            await self.app(scope, body.receive, sending)
        finally:
            self._held -= body.count

    def _check(self, request: HTTPConnection) -> None:
        name = _host_name(request.headers.get("host", ""))
        if self.hosts is not None and name not in self.hosts:
            raise Refused(
                421, f"This service does not answer to the name {name!r:.80}. Call it at {sorted(self.hosts)[0]}."
            )
        origin = request.headers.get("origin")
        if origin is not None and origin.partition("://")[2] != request.headers.get("host"):
            raise Refused(403, "Pages of other sites may not use this service.")
        if not self._is_open(request.scope["path"]) and not self._bears_token(request.headers.get("authorization", "")):
            challenge = {"WWW-Authenticate": "Bearer"}
            raise Refused(401, "The token is missing or wrong: send the header Authorization: Bearer TOKEN.", challenge)
        length = request.headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 15:
            raise Refused(400, "The header Content-Length is not a number.")
        self.check_size(int(length))

    def check_size(self, size: int) -> None:
        """Refuse a body that is too large."""
        if size > self.limits.body:
            raise Refused(413, f"A request may have {self.limits.body >> 20} MB at most: send fewer samples at a time.")

    def hold(self, size: int) -> None:
        """Count bytes that are held in memory, or refuse them."""
        if self._held + size > self.limits.held:
            raise Refused(503, "The service has too many large requests at the moment: try again in a few seconds.")
        self._held += size

    def _is_open(self, path: str) -> bool:
        return any(
            path.startswith(each) if each.endswith("/") and each != "/" else path == each for each in self.open_paths
        )

    def _bears_token(self, authorization: str) -> bool:
        kind, _, given = authorization.partition(" ")
        if self._token is None:
            return True
        return kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token)


class _Body:
    """The body of one request, which has to come at a reasonable pace."""

    def __init__(self, guard: Guard, receive: Receive, empty: bool) -> None:
        self.guard, self._receive = guard, receive
        self.count, self._complete, self._begun = 0, empty, 0.0

    async def receive(self) -> Message:
        """Receive a part of it; once it is complete, wait for the client to leave."""
        if self._complete:
            return await self._receive()
        limits, self._begun = self.guard.limits, self._begun or time.monotonic()
        # When the pace will be too slow if nothing comes until then.
        due = self._begun + max(limits.patience, self.count / limits.rate) - time.monotonic()
        try:
            message = await asyncio.wait_for(self._receive(), min(limits.patience, due))
        except TimeoutError:
            if due < limits.patience and self.count:
                raise self._too_slow() from None
            raise Refused(408, f"Nothing came for {limits.patience:g} s: send the whole request at once.") from None
        if message["type"] == "http.request":
            size = len(message.get("body", b""))
            self.guard.check_size(self.count + size)
            self.guard.hold(size)
            self.count += size
            self._complete = not message.get("more_body", False)
            seconds = time.monotonic() - self._begun
            if not self._complete and seconds > limits.patience and self.count < limits.rate * seconds:
                raise self._too_slow()
        return message

    def _too_slow(self) -> Refused:
        rate = self.guard.limits.rate >> 10
        return Refused(408, f"The request came with less than {rate} kB per second: send it faster.")

    def read_before_end(self, send: Send) -> Send:
        """Send an answer, and read what is left of the request before its end: a client that still sends would not see it."""

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.body" and not (message.get("more_body") or self._complete):
                await send({**message, "more_body": True})
                await self._read_rest()
                message = {"type": "http.response.body"}
            await send(message)

        return sending

    async def _read_rest(self) -> None:
        """Read the rest and drop it, for a moment."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.guard.limits.patience):
                while not self._complete:
                    self._complete = not (await self._receive()).get("more_body", False)


def _host_name(host: str) -> str:
    """The name in a Host header, without the port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower()
