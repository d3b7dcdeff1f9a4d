"""Small models to serve, requests of them, and the real service in a thread of the test's process."""

from __future__ import annotations

import http.client
import io
import json
import socket
import threading
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
import uvicorn

from cldnet import CLDNetClassifier
from cldnet.nets import RandomReLU
from cldnet.serve.app import make_app
from cldnet.serve.guard import LOOPBACK
from cldnet.serve.protocol import Protocol
from cldnet.serve.service import ModelService
from cldnet.serve.studio import add_studio

__all__ = [
    "SECRET",
    "SIDE",
    "Answer",
    "Served",
    "birds",
    "form",
    "photos",
    "png",
    "read_raw",
    "sheep",
    "stored",
    "table",
]
__all__ += ["zip_of"]

SECRET = "token-of-the-tests"
#: Side of the photos, and the colour of each bird: photos of one class are noise around it.
SIDE = 16
COLOURS = {"owl": (200, 40, 40), "wren": (40, 200, 40), "emu": (40, 40, 200), "rhea": (200, 200, 40)}
#: Classes of rows lie around these.
CENTRES = dict(zip(("cat", "dog", "emu", "owl"), 5 * np.random.default_rng(7).normal(size=(4, 8)), strict=True))


def photos(*labels: str, count: int = 6, seed: int = 0) -> tuple[np.ndarray[Any, Any], list[str]]:
    """Photos of birds, so many of each, and their labels."""
    draw = np.random.default_rng([seed, count, *(sum(map(ord, label)) for label in labels)])
    y = [label for label in labels for _ in range(count)]
    base = np.array([COLOURS[label] for label in y], dtype=np.int64)[:, :, None, None]
    return (base + draw.integers(-40, 40, (len(y), 3, SIDE, SIDE))).clip(0, 255).astype(np.uint8), y


def table(*labels: str, count: int = 10, seed: int = 0) -> tuple[np.ndarray[Any, Any], list[str]]:
    """Rows of eight numbers, so many of each class, and their labels."""
    draw = np.random.default_rng([seed, count, *(sum(map(ord, label)) for label in labels)])
    y = [label for label in labels for _ in range(count)]
    return np.stack([CENTRES[label] for label in y]) + draw.normal(size=(len(y), 8)), y


def png(photo: np.ndarray[Any, Any], format: str = "PNG") -> bytes:
    """The file of a photo (3, H, W)."""
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(photo.transpose(1, 2, 0)).save(file, format=format)
    return file.getvalue()


@cache
def _map(*shape: int) -> RandomReLU:
    """A map that was fitted on data of nobody's."""
    fitted = RandomReLU(shape, features=60, seed=0)
    draw = np.random.default_rng(0)
    fitted.fit(torch.from_numpy(draw.normal(size=(50, 8)) * 5 if len(shape) == 1 else photos(*COLOURS)[0]))
    return fitted


def birds(**parameters: Any) -> CLDNetClassifier:
    """A classifier of tiny photos, which knows nothing yet."""
    return CLDNetClassifier(backbone=_map(3, SIDE, SIDE), **{"capacity": 8, "random_state": 0, **parameters})


def sheep(**parameters: Any) -> CLDNetClassifier:
    """A classifier of rows, which knows nothing yet."""
    return CLDNetClassifier(backbone=_map(8), **{"capacity": 8, "random_state": 0, "keep_lessons": 2, **parameters})


def zip_of(files: Mapping[str, bytes] | Iterable[tuple[str, bytes]], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    """An archive of files by their names."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", method) as archive:
        for name, content in files.items() if isinstance(files, Mapping) else files:
            archive.writestr(name, content)
    return made.getvalue()


def form(files: Iterable[tuple[str, bytes]], **fields: str) -> tuple[bytes, dict[str, str]]:
    """A form with files, as a browser sends it, and its headers."""
    parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}'.encode() for name, value in fields.items()]
    for name, content in files:
        head = f'Content-Disposition: form-data; name="files"; filename="{name}"\r\nContent-Type: image/png\r\n\r\n'
        parts.append(head.encode() + content)
    body = b"".join(b"--border\r\n" + part + b"\r\n" for part in parts) + b"--border--\r\n"
    return body, {"Content-Type": "multipart/form-data; boundary=border"}


@dataclass
class Answer:
    """What came back, and after how many seconds."""

    status: int
    headers: Mapping[str, str]
    content: bytes
    seconds: float

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def error(self) -> str:
        """The sentence of an answer that is nothing but one."""
        found = self.json
        assert found.keys() == {"error"}, found
        sentence = found["error"]
        assert isinstance(sentence, str)
        assert len(sentence) < 1000
        assert sentence.isprintable()
        assert "Traceback" not in sentence
        return sentence


class Served:
    """The service with uvicorn, on a port of its own, in a thread."""

    def __init__(
        self, service: ModelService, *, token: str | None = SECRET, studio: bool = False, **options: Any
    ) -> None:
        self.service, self.token = service, token
        self.app = make_app(service, token=token, **{"hosts": LOOPBACK, **options})
        if studio:
            add_studio(self.app)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._server = uvicorn.Server(
            uvicorn.Config(self.app, http=Protocol, log_config=None, access_log=False, timeout_graceful_shutdown=5)
        )
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listener]})
        self._thread.start()

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join(30)
        assert not self._thread.is_alive()
        self._listener.close()

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None, token: str | None = ""
    ) -> Answer:
        """Send one request: ``body`` is bytes, or something to send as JSON; None as ``token`` sends none."""
        sent = {"Connection": "close"}
        chosen = self.token if token == "" else token
        if chosen is not None:
            sent["Authorization"] = f"Bearer {chosen}"
        if body is not None and not isinstance(body, bytes):
            body, sent["Content-Type"] = json.dumps(body).encode(), "application/json"
        begun = time.monotonic()
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)) as line:
            line.request(method, path, body, {**sent, **(headers or {})})
            with line.getresponse() as found:
                content = found.read()
                return Answer(found.status, found.headers, content, time.monotonic() - begun)

    def get(self, path: str, **options: Any) -> Answer:
        return self.ask("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        return self.ask("POST", path, body, **options)

    def form(self, path: str, files: Iterable[tuple[str, bytes]], **fields: str) -> Answer:
        return self.ask("POST", path, *form(files, **fields))

    def predict(self, X: Iterable[Any], **more: Any) -> list[Any]:
        """The labels of samples that JSON can hold."""
        answer = self.post("/predict", {"inputs": [*X], **more})
        assert answer.status == 200, answer.content
        return [each["label"] for each in answer.json["predictions"]]

    def raw(self, content: bytes, then: Callable[[socket.socket], None] = lambda line: None) -> Answer:
        """Send bytes as they are, then do something with the connection, and read what is answered."""
        begun = time.monotonic()
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as line:
            line.sendall(content)
            then(line)
            return read_raw(line, begun)

    def head(self, path: str = "/predict", **headers: str) -> bytes:
        """The beginning of a POST request; ``Content_Length="3"`` is a header."""
        lines = {"Host": f"127.0.0.1:{self.port}", "Authorization": f"Bearer {self.token}", "Connection": "close"}
        lines |= {"Content-Type": "application/json"} | {name.replace("_", "-"): text for name, text in headers.items()}
        return "\r\n".join([f"POST {path} HTTP/1.1", *map(": ".join, lines.items()), "", ""]).encode("latin-1")


def read_raw(line: socket.socket, begun: float) -> Answer:
    """Read an answer to its end."""
    answer = http.client.HTTPResponse(line)
    try:
        answer.begin()
        content = answer.read()
        return Answer(answer.status, answer.headers, content, time.monotonic() - begun)
    finally:
        answer.close()


def stored(path: Any) -> CLDNetClassifier:
    """The model on disk."""
    return CLDNetClassifier.load(path)
