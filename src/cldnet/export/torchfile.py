"""A model as a program of torch.export: a file that torch alone can run."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cldnet.answers import Answers
from cldnet.export.about import about
from cldnet.export.agreement import Agreement, Ask
from cldnet.export.compared import write_compared
from cldnet.export.graph import quiet
from cldnet.model import Model

__all__ = ["to_torch"]

#: The name under which a program says what it is.
_ABOUT = "cldnet.json"


def to_torch(
    clf: Answers,
    path: str | os.PathLike[str],
    X: Any = None,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> Agreement:
    """Write a classifier to a file that ``torch.export.load`` reads without this library.

    ``load(path, extra_files={"cldnet.json": ""}).module()(inputs)`` gives probabilities and scores; the extra file has the
    labels of their columns, and what else `to_onnx` puts into metadata.

    Parameters
    ----------
    clf, path, X, on_progress
        As for `to_onnx`.

    Examples
    --------
    >>> import tempfile
    >>> from cldnet import CLDNetClassifier
    >>> clf = CLDNetClassifier(random_state=0).fit([[0.0, 0.1], [0.1, 0.0], [5.0, 5.1], [5.2, 5.0]], list("aabb"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     agreement = to_torch(clf, f"{folder}/letters.pt2")
    >>> agreement.rows, agreement.labels
    (256, 256)
    """
    return write_compared(clf, path, X, _translated, on_progress)


def _translated(model: Model, program: torch.export.ExportedProgram) -> tuple[bytes, Ask]:
    """A file's content, and what asks it."""
    file = io.BytesIO()
    with quiet():
        torch.export.save(program, file, extra_files={_ABOUT: json.dumps(about(model), ensure_ascii=False)})
        content, told = file.getvalue(), {_ABOUT: ""}
        answering = torch.export.load(io.BytesIO(content), extra_files=told).module()
    labels = np.array(json.loads(json.loads(told[_ABOUT])["labels"]))

    @torch.no_grad()
    def ask(x: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[Any]]:
        probabilities, scores = (answers.numpy() for answers in answering(torch.from_numpy(x)))
        return probabilities, scores, labels[scores.argmax(1)]

    return content, ask
