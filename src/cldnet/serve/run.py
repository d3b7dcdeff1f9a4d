"""Run the service: which address it may listen on, its log, and how it stops."""

from __future__ import annotations

import json
import logging
import socket
import warnings
from collections.abc import Callable
from pathlib import Path
from time import gmtime, strftime
from typing import Any

import uvicorn
from fastapi import FastAPI

from cldnet.estimator.classifier import MapTraceWarning
from cldnet.serve.app import make_app
from cldnet.serve.guard import LOOPBACK
from cldnet.serve.protocol import Protocol
from cldnet.serve.service import ModelService
from cldnet.serve.studio import add_studio, missing_kinds, studio_classifier

#: Connections at the same time; more are answered with 503.
_MOST_CONNECTIONS = 256
#: Seconds that requests have to finish when the service is stopped. A lesson under way is always finished.
_GRACE = 10


class JSONLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record; that of a request has its parts."""
        when = strftime("%Y-%m-%dT%H:%M:%S", gmtime(record.created)) + f".{int(record.msecs):03d}Z"
        said = {"time": when, "level": record.levelname.lower(), "message": record.getMessage()}
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        return json.dumps({**said, **getattr(record, "request", {})}, ensure_ascii=True)


def check_address(host: str, token: str | None) -> None:
    """Refuse to listen where other machines can reach the service without a token."""
    if token is None and host not in LOOPBACK:
        raise ValueError(
            f"Without a token the service listens on this machine only (127.0.0.1), not on {host}: anybody could teach your "
            "model. Give a token: --token, or the environment variable CLDNET_TOKEN."
        )
    if token is not None and (len(token) < 8 or not token.isascii() or not token.isprintable() or " " in token):
        raise ValueError(
            "A token should have at least 8 ASCII characters without spaces, such as `openssl rand -hex 16` gives."
        )


def run_service(
    model: Path,
    *,
    host: str,
    port: int,
    token: str | None,
    studio: bool = False,
    json_log: bool = False,
    on_start: Callable[[str], Any] = lambda url: None,
) -> None:
    """Serve a model until the process is asked to stop; ``on_start`` is called with the address.

    A port of 0 is any that is free. The model's file is locked as long as it is served.
    """
    check_address(host, token)
    with _listening(host, port) as listener:
        service = ModelService(model, studio_classifier if studio else None)
        app = _application(service, host, token, studio)
        shown = f"[{host}]" if ":" in host else host
        config = uvicorn.Config(
            app,
            http=Protocol,
            log_config=None,
            access_log=False,
            server_header=False,
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=_GRACE,
        )
        _start_log(json_log)
        on_start(f"http://{shown}:{listener.getsockname()[1]}")
        uvicorn.Server(config).run(sockets=[listener])


def _application(service: ModelService, host: str, token: str | None, studio: bool) -> FastAPI:
    hosts = LOOPBACK if host in LOOPBACK else None
    app = make_app(service, token=token, hosts=hosts, kinds=missing_kinds() if studio else None)
    if studio:
        add_studio(app)
    return app


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(_MOST_CONNECTIONS)  # from here on, who comes waits until the service is ready
    except OSError as error:
        listener.close()
        advice = f"{error.strerror}: choose another port with --port, or stop what uses it"
        raise OSError(error.errno, advice, f"{host}:{port}") from error
    return listener


def _start_log(as_json: bool) -> None:
    logging.captureWarnings(True)
    warnings.simplefilter("ignore", MapTraceWarning)  # answers have it as a note
    handler = logging.StreamHandler()
    handler.setFormatter(JSONLines() if as_json else logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    for name, level in (("cldnet", logging.INFO), ("uvicorn.error", logging.WARNING), ("py.warnings", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.setLevel(level)
        logger.propagate = False
