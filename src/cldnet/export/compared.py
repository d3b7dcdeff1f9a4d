"""The way of every export: translate, compare with the original, and only then write."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from cldnet.answers import Answers
from cldnet.export.agreement import Agreement, Ask, compare, drawn_rows
from cldnet.export.graph import traced
from cldnet.model import Model
from cldnet.store.disk import check_new, write_atomically

__all__ = ["Translate", "write_compared"]

#: Turns a traced model into a file's content, and into what asks that content.
Translate = Callable[[Model, torch.export.ExportedProgram], tuple[bytes, Ask]]


def write_compared(
    clf: Answers,
    path: str | os.PathLike[str],
    X: Any,
    translate: Translate,
    on_progress: Callable[[int, int], None] | None,
) -> Agreement:
    """Write what ``translate`` makes of a classifier, if it agrees with it on ``X``, or on rows that are drawn."""
    model = clf._able()
    check_new(path)
    x = drawn_rows(model) if X is None else _real_rows(clf, X, model)
    content, ask = translate(model, traced(model))
    with clf._threads():
        agreement = compare(model, ask, x, on_progress)
    write_atomically(path, content)
    return agreement


def _real_rows(clf: Answers, X: Any, model: Model) -> Tensor:
    x = clf._checked(X, model)
    if not model.inputs.pixels:
        return x.double()
    if x.dtype != torch.uint8:
        raise ValueError(
            f"The model learned uint8 inputs, and X is {x.dtype}: give uint8, which the exported file takes."
        )
    return x
