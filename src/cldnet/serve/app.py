"""The service: one model over HTTP. Each route is a few lines over `ModelService`; errors are answered in a sentence."""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import os
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from html import escape
from typing import Any, TypeVar
from urllib.parse import quote

from anyio import to_thread
from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from pydantic import BaseModel
from sklearn.exceptions import NotFittedError
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cldnet.estimator.classifier import CLDNetClassifier
from cldnet.serve.guard import Guard, Limits, Refused
from cldnet.serve.schemas import (
    MOST_LETTERS,
    MOST_SAMPLES,
    AuditAnswer,
    Changed,
    ClassAnswer,
    Forgot,
    Forgotten,
    Learned,
    Lesson,
    LessonAnswer,
    LikelyClass,
    Prediction,
    Predictions,
    Problem,
    Promise,
    Question,
    Renamed,
    Samples,
    Status,
    Undone,
    UndoneAnswer,
)
from cldnet.serve.service import Answers, Busy, Change, ModelService, Repeated
from cldnet.serve.uploads import Read, Upload, check_labels, decoded, labels_of, read_request, validated
from cldnet.version import __version__

#: Side of photos for a model that is made when the first ones come; that of its default net.
_SIDE = 224
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>CLDNet service</title>
<h1>CLDNet service</h1>
<p>All schemas: <a href="openapi.json">openapi.json</a>. Send the header <code>Authorization: Bearer TOKEN</code>.
What is wrong is answered as <code>{error}</code>.</p>
<table><thead><tr><th scope="col">Route</th><th scope="col">What it does</th><th scope="col">JSON fields</th></tr></thead>
<tbody>{rows}</tbody></table></html>
"""
#: Samples that an audit compares, drawn at random: each photo takes seconds, with all its turns and patches.
_AUDITED = 8
_log = logging.getLogger("cldnet.serve")
_Result = TypeVar("_Result")


class Metrics:
    """What the service counts, for Prometheus."""

    def __init__(self, service: ModelService) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "cldnet_requests", "Requests by route and status.", ("route", "status"), registry=self.registry
        )
        self.seconds = Histogram("cldnet_request_seconds", "Seconds of a request.", ("route",), registry=self.registry)
        self.predictions = Counter("cldnet_predictions", "Samples predicted.", registry=self.registry)
        self.lessons = Counter("cldnet_lessons", "Lessons learned.", registry=self.registry)
        self.classes = Gauge("cldnet_classes", "Classes that the model knows.", registry=self.registry)
        self.classes.set_function(lambda: _size(service.classifier)["classes"])
        self.bytes = Gauge("cldnet_model_bytes", "Bytes that the model keeps.", registry=self.registry)
        self.bytes.set_function(lambda: _size(service.classifier)["bytes"])


def _size(clf: CLDNetClassifier | None) -> dict[str, int]:
    """The number of classes of a model, its bytes, and beside them those of the lessons that can be undone."""
    kinds = {} if clf is None else dict(clf.footprint().bytes)
    undo = kinds.pop("kept lessons", 0)
    return {"classes": 0 if clf is None else len(clf.model_.labels), "bytes": sum(kinds.values()), "undo_bytes": undo}


def make_app(
    service: ModelService,
    *,
    token: str | None = None,
    hosts: frozenset[str] | None = None,
    limits: Limits | None = None,
    kinds: dict[str, str | None] | None = None,
) -> FastAPI:
    """Make the application that serves a model.

    Parameters
    ----------
    service : ModelService
        It is closed when the application ends.
    token : str, optional
        What every request but ``/health`` has to bear.
    hosts : frozenset of str, optional
        Names by which the service may be called; by default any.
    limits : Limits, optional
    kinds : dict, optional
        Why a new model cannot be made of photos or of sentences, by the word for one; None where it can.
    """

    @asynccontextmanager
    async def closing(app: FastAPI) -> AsyncIterator[None]:
        yield
        await to_thread.run_sync(service.close)

    bounds = limits or Limits()
    app = FastAPI(
        title="CLDNet",
        version=__version__,
        description="A classifier that learns new classes, keeps no samples and does not forget.",
        docs_url=None,
        redoc_url=None,
        lifespan=closing,
        redirect_slashes=False,
        responses={"4XX": {"model": Problem, "description": "What was wrong, and what to do."}},
    )
    app.state.service, app.state.metrics, app.state.open_paths = service, Metrics(service), {"/health"}
    app.state.kinds, app.state.limits = kinds or {}, bounds
    _answer_errors(app)
    _add_questions(app, service)
    _add_changes(app, service)
    _add_descriptions(app, service)
    app.add_middleware(Guard, limits=bounds, token=token, open_paths=app.state.open_paths, hosts=hosts)
    app.add_middleware(Observed, metrics=app.state.metrics)
    return app


class Observed:
    """Count and log every request, also those that are refused."""

    # Not Starlette's BaseHTTPMiddleware: a `Refused` that comes up while a body is read would leave it in an exception group.
    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self.app, self.metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["X-Content-Type-Options"] = "nosniff"
            await send(message)

        try:
            await self.app(scope, receive, sending)
        finally:
            self._note(scope, status, time.perf_counter() - begun)

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "other")
        self.metrics.requests.labels(route, status).inc()
        self.metrics.seconds.labels(route).observe(seconds)
        about = {"method": scope["method"], "route": route, "status": status, "seconds": round(seconds, 4)}
        _log.info("%s %s %d in %.3f s", *about.values(), extra={"request": about})


def _answer_errors(app: FastAPI) -> None:
    """Answer what goes wrong with a status and a sentence."""

    def said(status: int, sentence: str, headers: Any = None) -> JSONResponse:
        return JSONResponse({"error": sentence}, status, headers)

    @app.exception_handler(HTTPException)
    def http(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error, Refused) or error.status_code not in (404, 405):
            return said(error.status_code, str(error.detail), error.headers)
        what = "There is nothing here" if error.status_code == 404 else f"{request.method} is not possible here"
        return said(error.status_code, f"{what}. See /docs for what there is.", error.headers)

    statuses: dict[type[Exception], int] = {NotFittedError: 409, Repeated: 409, Busy: 503, ValueError: 422}
    for kind, status in statuses.items():
        app.add_exception_handler(kind, lambda _, error, status=status: said(status, str(error)))

    @app.exception_handler(ImportError)
    def missing(request: Request, error: ImportError) -> JSONResponse:
        return said(501, str(error))

    @app.exception_handler(OSError)
    def disk(request: Request, error: OSError) -> JSONResponse:
        _log.error("%s", error)
        return said(507, f"{str(error.strerror or error).rstrip('.')}. Nothing was learned.")

    @app.exception_handler(Exception)
    def unexpected(request: Request, error: Exception) -> JSONResponse:
        _log.exception("unexpected error", exc_info=error)
        return said(500, "Something went wrong in the service. Nothing was changed; its log says more.")


async def _result(future: Future[_Result]) -> _Result:
    """Wait for a change or an answer. A client that leaves does not stop a change."""
    return await asyncio.shield(asyncio.wrap_future(future))


def _side(service: ModelService) -> int:
    clf = service.classifier
    return _SIDE if clf is None else clf.model_.inputs.shape[-1]


async def _read(service: ModelService, upload: Upload) -> Read:
    read = await to_thread.run_sync(decoded, upload, _side(service))
    if not read.inputs and read.skipped:
        reasons = "; ".join(f"{each.name} ({each.reason})" for each in [*read.skipped.values()][:5])
        raise Refused(422, f"None of the photos can be read: {reasons}.")
    return read


def _add_questions(app: FastAPI, service: ModelService) -> None:
    """Add the routes that predict."""

    @app.post(
        "/predict",
        response_model=Predictions,
        response_model_exclude_unset=True,
        openapi_extra=_body(Question, files=True),
    )
    async def predict(request: Request) -> Predictions:
        """Predict photos, sentences or rows, in their order. With `reject`, what looks unknown has the label null."""
        asked, upload = await read_request(request, Question, service.noun)
        clf = service.usable()
        if asked.reject is not None and not clf.model_.learner.keeps_sums:
            raise Refused(422, "Only models of the exact solver can reject samples: leave reject out.")
        read = await _read(service, upload)
        if not read.inputs:
            raise Refused(422, "There are no inputs: send at least one sample.")
        answers = await _result(service.predict(read.inputs))
        app.state.metrics.predictions.inc(len(read.inputs))
        return Predictions(predictions=_in_order(read, len(upload.inputs), answers, asked))

    @app.post("/audit", openapi_extra=_body(Samples, files=True))
    async def audit(request: Request) -> AuditAnswer:
        """Test the model's promises, and compare what it keeps with samples that it was taught, if there are some."""
        _, upload = await read_request(request, Samples, service.noun)
        read = await _read(service, upload)
        X = _stacked(read.inputs, upload.noun) if len(read.inputs) else None
        found = await to_thread.run_sync(partial(copy.copy(service.usable()).audit, X, rows=_AUDITED))
        promises = [Promise(name=each.name, holds=each.holds, reason=each.reason) for each in found.promises]
        kept = found.footprint.bytes.get("exemplars", 0)
        return AuditAnswer(holds=found.holds, samples_kept=kept, compared=found.compared, promises=promises)


def _stacked(inputs: Any, noun: str) -> Any:
    import numpy as np  # noqa: PLC0415

    return list(inputs) if noun == "text" else np.stack([*inputs])


def _in_order(read: Read, count: int, answers: Answers, asked: Question) -> list[Prediction]:
    """One answer for each sample of the request, also for those that could not be read."""
    rows = {place: row for row, place in enumerate(read.places)}
    return [
        _prediction(answers, rows[place], asked) if place in rows else Prediction(error=read.skipped[place].reason)
        for place in range(count)
    ]


def _prediction(answers: Answers, row: int, asked: Question) -> Prediction:
    shares = answers.probabilities[row]
    top = [
        LikelyClass(label=answers.classes[column], probability=float(shares[column]))
        for column in shares.argsort()[::-1][: asked.top]
    ]
    known = None if answers.known is None else float(answers.known[row])
    unknown = asked.reject is not None and known is not None and known < asked.reject
    return Prediction(label=None if unknown else top[0].label, known=known, top=top)


def _add_changes(app: FastAPI, service: ModelService) -> None:
    """Add the routes that change the model. Each answers when the change is safe on disk."""

    def changed(change: Change) -> dict[str, Any]:
        return {**_size(change.classifier), "notes": list(change.notes)}

    @app.post("/learn", openapi_extra=_body(Lesson, files=True))
    async def learn(request: Request) -> Learned:
        """Learn labelled samples as one lesson: new classes, more of old ones, or both. No sample is kept."""
        asked, upload = await read_request(request, Lesson, service.noun)
        labels = labels_of(asked, upload, service.classifier)
        if service.classifier is None and (why := app.state.kinds.get(upload.noun)):
            raise Refused(501, why)
        read = await _read(service, upload)
        if not read.inputs:
            raise Refused(422, "There are no inputs: send at least one sample.")
        y = [labels[place] for place in read.places]
        if asked.name is not None:
            check_labels([asked.name], "name")
        done = await _result(
            service.learn(
                _stacked(read.inputs, upload.noun),
                y,
                upload.noun,
                name=asked.name,
                once=asked.once,
                duplicates=asked.allow_duplicates,
            )
        )
        assert done.lesson is not None
        app.state.metrics.lessons.inc(not done.repeated)
        return Learned(
            **changed(done),
            lesson=LessonAnswer.of(done.lesson),
            new=list(done.new),
            skipped=[*read.skipped.values()],
            repeated=done.repeated,
        )

    @app.post("/forget", openapi_extra=_body(Forgotten, files=True))
    async def forget(request: Request) -> Forgot:
        """Remove samples exactly, as if they had never been learned; or drop a class without its samples."""
        asked, upload = await read_request(request, Forgotten, service.noun)
        if (asked.class_ is None) == (not upload.inputs):
            raise Refused(
                422, "Send the samples to forget with their labels, or class for a class without its samples."
            )
        if asked.class_ is not None:
            done = await _result(service.forget_class(asked.class_))
            return Forgot(**changed(done), forgot=asked.class_, gone=list(done.gone))
        labels = labels_of(asked, upload, service.usable())
        read = await _read(service, upload)
        y = [labels[place] for place in read.places]
        done = await _result(service.forget(_stacked(read.inputs, upload.noun), y))
        return Forgot(**changed(done), forgot=len(y), gone=list(done.gone))

    @app.post("/undo", openapi_extra=_body(Undone))
    async def undo(request: Request) -> UndoneAnswer:
        """Take a lesson back without its data, as if it had never been given. The model keeps the sums of its last lessons."""
        asked: Undone = await validated(request, Undone)
        done = await _result(service.undo(asked.lesson))
        assert done.lesson is not None
        return UndoneAnswer(**changed(done), undone=LessonAnswer.of(done.lesson), gone=list(done.gone))

    @app.post("/rename", openapi_extra=_body(Renamed))
    async def rename(request: Request) -> Changed:
        """Give a class another label."""
        asked: Renamed = await validated(request, Renamed)
        check_labels([asked.new])
        return Changed(**changed(await _result(service.rename(asked.old, asked.new))))


def _add_descriptions(app: FastAPI, service: ModelService) -> None:
    """Add the routes that describe the model and the service."""

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Tell that the service is there; needs no token."""
        return {"status": "ok"}

    @app.get("/status")
    async def status() -> Status:
        """Describe the model, and what the service takes."""
        clf = service.classifier
        labels = None if clf is None else clf.model_.labels
        room = None if labels is None or labels.capacity is None else labels.capacity - len(labels)
        bounds = {"body": app.state.limits.body, "samples": MOST_SAMPLES, "label": MOST_LETTERS}
        return Status(
            version=__version__,
            model=service.path.name,
            noun=service.noun,
            **_size(clf),
            room=room,
            solver=None if clf is None else clf.solver,
            rejects=clf is not None and clf.model_.learner.keeps_sums,
            keeps_lessons=0 if clf is None else clf.keep_lessons,
            lessons=0 if clf is None else clf.model_.history.count,
            kinds=app.state.kinds,
            limits=bounds,
        )

    @app.get("/classes")
    async def classes() -> list[ClassAnswer]:
        """List the classes with counts and dates."""
        if service.classifier is None:
            return []
        labels = service.classifier.model_.labels
        return [
            ClassAnswer(label=label, samples=count, first=first, last=last)
            for label, count in sorted(labels.counts.items())
            for first, last in [labels.dates.get(label, (None, None))]
        ]

    @app.get("/lessons")
    async def lessons() -> list[LessonAnswer]:
        """List the lessons that the model remembers, oldest first."""
        return [] if service.classifier is None else [LessonAnswer.of(record) for record in service.classifier.lessons_]

    @app.get("/model")
    def model() -> StreamingResponse:
        """Download the model's file."""
        try:
            file = service.path.open("rb")  # a lesson puts another file in its place
        except FileNotFoundError:
            raise Refused(409, "There is no model yet: teach it something first.") from None
        about = {
            "Content-Length": str(os.fstat(file.fileno()).st_size),
            "Content-Disposition": f"attachment; filename*=utf-8''{quote(service.path.name)}",
        }

        def chunks() -> Iterator[bytes]:
            with file:
                yield from iter(partial(file.read, 1 << 20), b"")

        return StreamingResponse(chunks(), 200, about, "application/octet-stream")

    @app.get("/metrics")
    async def metrics() -> Response:
        """Counts for Prometheus, as text."""
        return Response(generate_latest(app.state.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(_documentation(app.openapi()))


def _body(schema: type[BaseModel], files: bool = False) -> dict[str, Any]:
    """Describe a body that a route reads itself, for OpenAPI."""
    content: dict[str, Any] = {"application/json": {"schema": schema.model_json_schema()}}
    if files:
        fields = {name: each for name, each in schema.model_json_schema()["properties"].items() if name != "inputs"}
        many = {"type": "array", "items": {"type": "string", "format": "binary"}}
        content["multipart/form-data"] = {"schema": {"type": "object", "properties": {"files": many, **fields}}}
    return {"requestBody": {"content": content, "required": True}}


def _documentation(schema: dict[str, Any]) -> str:
    """A page of the routes, which needs nothing from elsewhere."""
    rows = []
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            content = about.get("requestBody", {}).get("content", {}).get("application/json", {})
            fields = content.get("schema", {}).get("properties", {})
            takes = ", ".join(f"<code>{escape(name)}</code>" for name in fields) or "–"
            title = f"<code>{method.upper()} {escape(path)}</code>"
            rows.append(
                f"<tr><th scope='row'>{title}</th><td>{escape(about.get('description', ''))}</td><td>{takes}</td></tr>"
            )
    return _PAGE.format(error=escape(json.dumps({"error": "a sentence"})), rows="".join(rows))
