"""A client of the service in Python's standard library."""

from __future__ import annotations

import base64
import http.client
import io
import json
import os
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

#: Seconds between attempts to reach a service that does not answer.
_PAUSES = (0.2, 0.5, 1.0, 2.0, 5.0)


class ServiceError(RuntimeError):
    """The service refused a request. ``status`` is the HTTP status, the message its sentence."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Client:
    """Use a model that `cldnet serve` or `cldnet studio` serves.

    If the service cannot be reached or ends in the middle of a request, the request is sent again, up to five times. A lesson
    that was learned before its answer got lost is not learned twice.

    Parameters
    ----------
    url : str
        Address of the service, such as ``"http://127.0.0.1:8321"``.
    token : str, optional
        The service's token.
    timeout : float
        Seconds to wait for an answer.

    Examples
    --------
    >>> client = Client("http://127.0.0.1:8321", token="secret")
    >>> client.learn(["my card is gone", "I lost my card"], "lost card")  # doctest: +SKIP
    >>> client.predict(["where is my card?"], reject=0.05)  # doctest: +SKIP
    ['lost card']
    """

    def __init__(self, url: str, token: str | None = None, timeout: float = 60.0) -> None:
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url={url!r} should begin with http:// or https://.")
        self.url, self.token, self.timeout = url.rstrip("/"), token, timeout

    def predict(self, X: Iterable[Any], reject: float | None = None) -> list[Any]:
        """Predict the label of every sample; None for those that ``reject`` turns away, and for files that cannot be read.

        Parameters
        ----------
        X : iterable
            Sentences, rows of numbers, or photos: paths (`pathlib.Path`), bytes of their files, or uint8 arrays ``(H, W, 3)``.
        reject : float, optional
            The share of known samples that may be rejected.
        """
        return [each.get("label") for each in self.predict_top(X, 1, reject)]

    def predict_top(self, X: Iterable[Any], top: int = 3, reject: float | None = None) -> list[dict[str, Any]]:
        """Predict the most probable classes of every sample, with their probabilities, as the service answers."""
        asked = {"top": top} | ({} if reject is None else {"reject": reject})
        answers: list[dict[str, Any]] = self._send("/predict", {**_encoded(X), **asked})["predictions"]
        return answers

    def learn(
        self, X: Iterable[Any], y: Any, name: str | None = None, *, allow_duplicates: bool = False
    ) -> dict[str, Any]:
        """Teach labelled samples as one lesson; it is on disk when this returns.

        Parameters
        ----------
        X : iterable
            Samples, as `predict` takes them.
        y : label or sequence of labels
            One label for all samples, or one each.
        name : str, optional
            Name of the lesson. The service remembers it: a lesson of the same name is not learned again.
        allow_duplicates : bool
            Learn samples that were learned before; each then counts twice.
        """
        labels = np.asarray(y).tolist()
        given = {"labels" if isinstance(labels, list) else "label": labels}
        about = {"name": name or f"client {secrets.token_hex(6)}", "once": True, "allow_duplicates": allow_duplicates}
        answer: dict[str, Any] = self._send("/learn", {**_encoded(X), **given, **about})
        return answer

    def forget_class(self, label: Any) -> dict[str, Any]:
        """Drop a class without its samples."""
        answer: dict[str, Any] = self._send("/forget", {"class": label}, again=False)
        return answer

    def undo(self, lesson: int | str | None = None) -> dict[str, Any]:
        """Take a lesson back, by default the last one.

        The request is not sent again if its answer gets lost: see `lessons` for what there is.
        """
        asked = {} if lesson is None else {"lesson": lesson}
        answer: dict[str, Any] = self._send("/undo", asked, again=False)
        return answer

    def classes(self) -> list[dict[str, Any]]:
        """The classes with counts and dates."""
        answer: list[dict[str, Any]] = self._send("/classes")
        return answer

    def lessons(self) -> list[dict[str, Any]]:
        """The lessons that the model remembers."""
        answer: list[dict[str, Any]] = self._send("/lessons")
        return answer

    def status(self) -> dict[str, Any]:
        """What the service says of its model."""
        answer: dict[str, Any] = self._send("/status")
        return answer

    def save(self, path: str | os.PathLike[str]) -> None:
        """Download the model's file, complete or not at all."""
        from cldnet.storage import write_atomically  # noqa: PLC0415  (the rest needs nothing of the library)

        write_atomically(path, self._request("/model", None))

    def _send(self, path: str, body: dict[str, Any] | None = None, *, again: bool = True) -> Any:
        """Send a request, and again if no answer comes and that does no harm."""
        content = None if body is None else json.dumps(body).encode()
        for pause in (*_PAUSES, None):
            try:
                return json.loads(self._request(path, content))
            except ServiceError as error:
                if error.status != 503 or pause is None:
                    raise
            except OSError as error:
                if pause is None or not again:
                    raise ConnectionError(f"No answer from {self.url}: {error}. Is the service running?") from error
            time.sleep(pause)
        raise AssertionError  # the last attempt raises or returns

    def _request(self, path: str, content: bytes | None) -> bytes:
        headers = {"Content-Type": "application/json"} if content is not None else {}
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        request = urllib.request.Request(self.url + path, content, headers)
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                if "Content-Length" not in answer.headers:  # the rest of them has not come
                    raise http.client.IncompleteRead(b"")
                found: bytes = answer.read()
                return found
        except urllib.error.HTTPError as error:
            with error:
                raise ServiceError(error.code, _sentence(error.read()) or error.reason) from None
        except http.client.HTTPException as error:  # the service ended in the middle of its answer
            raise ConnectionResetError(str(error)) from error


def _sentence(content: bytes) -> str:
    try:
        return str(json.loads(content)["error"])
    except (ValueError, KeyError, TypeError):
        return ""


def _encoded(X: Iterable[Any]) -> dict[str, Any]:
    """Samples as JSON: sentences as they are, rows as lists, photos as base64."""
    samples = list(X)
    if not samples:
        raise ValueError("X has no samples: give at least one.")
    if all(isinstance(each, str) for each in samples):
        return {"inputs": samples}
    if all(isinstance(each, bytes | Path) or getattr(each, "ndim", 1) == 3 for each in samples):
        contents = map(_content, samples)
        return {"inputs": [base64.b64encode(each).decode() for each in contents], "kind": "photo"}
    return {"inputs": np.asarray(samples, dtype=np.float64).tolist(), "kind": "row"}


def _content(photo: Any) -> bytes:
    """The bytes of a photo's file."""
    if isinstance(photo, bytes):
        return photo
    if isinstance(photo, Path):
        return photo.read_bytes()
    from cldnet.data.images.decode import pillow  # noqa: PLC0415  (needs Pillow)

    file = io.BytesIO()
    pillow().fromarray(np.asarray(photo)).save(file, format="PNG")
    return file.getvalue()
