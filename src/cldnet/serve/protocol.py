"""HTTP as the service speaks it: what is no HTTP is answered in JSON as well, and a request's headers may not drip in."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Seconds that the headers of a request may take, a new connection may be silent, and a refusal is left to be read.
_HEADERS, _SILENCE, _LEAVE = 1.5, 5.0, 1.0


class Protocol(H11Protocol):
    """Uvicorn's protocol on h11, which answers malformed requests as text, and waits for headers without end."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._refused = self._spoken = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, which should ask something."""
        super().connection_made(transport)
        self._timer = self.loop.call_later(_SILENCE, transport.close)

    def data_received(self, data: bytes) -> None:
        """Read on. The time for headers begins with their first byte."""
        if self._refused:
            return
        first, self._spoken = not self._spoken, True
        super().data_received(data)
        waits_for_headers = self.conn.their_state is h11.IDLE and not self._refused
        if self._timer is not None and (first or not waits_for_headers):
            self._timer.cancel()
            self._timer = None
        if waits_for_headers and self._timer is None:
            self._timer = self.loop.call_later(
                _HEADERS, self._answer, 408, "The headers did not come: send them at once."
            )

    def connection_lost(self, exc: Exception | None) -> None:
        """Leave nothing behind."""
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be read as a request."""
        self._answer(400, "This is not a valid request of HTTP/1.1, or its headers are too long.")

    def _answer(self, status: int, sentence: str) -> None:
        """Refuse, if nothing was answered yet, and leave the client a moment to read that: it may still be sending."""
        self._refused = True
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.close()
            return
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        body = json.dumps({"error": sentence}).encode()
        head = f"HTTP/1.1 {status} Refused\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        self.transport.write(f"{head}Connection: close\r\n\r\n".encode() + body)
        self.transport.write_eof()
        self.loop.call_later(_LEAVE, self.transport.close)
