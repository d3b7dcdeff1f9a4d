"""Classifiers of photos, sentences and rows, as the commands and the service make and save them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cldnet.estimator.classifier import CLDNetClassifier
    from cldnet.nets import FeatureMap


def new_classifier(
    noun: str,
    *,
    backbone: str | None = None,
    memory: int = 128,
    size: int | None = None,
    capacity: int | None = None,
    receipts: bool = False,
    keep_lessons: int = 0,
) -> CLDNetClassifier:
    """Make a classifier that knows nothing yet.

    Parameters
    ----------
    noun : str
        What it will learn: ``"photo"``, ``"text"`` or ``"row"``.
    backbone : str, optional
        Name or folder of a pretrained net; by default efficientnet-lite0 for photos, and minilm for sentences.
    memory : int
        Megabytes for the matrix to solve. Rows choose their map themselves.
    size : int, optional
        Side of photos in pixels; by default the net's own.
    capacity, receipts, keep_lessons
        As those of `CLDNetClassifier`.

    Examples
    --------
    >>> new_classifier("row").backbone
    'auto'
    """
    from cldnet.estimator.classifier import CLDNetClassifier  # noqa: PLC0415  (commands that predict do without it)
    from cldnet.nets.frozen import features_within  # noqa: PLC0415

    made: FeatureMap | str = "auto"
    if noun == "photo":
        made = _photo_map(backbone or "efficientnet-lite0", features_within(memory * 10**6), size)
    elif noun == "text":
        made = _sentence_map(backbone or "minilm", features_within(memory * 10**6))
    return CLDNetClassifier(
        backbone=made, capacity=capacity or "auto", random_state=0, receipts=receipts, keep_lessons=keep_lessons
    )


def _photo_map(backbone: str, features: int, size: int | None) -> FeatureMap:
    from cldnet.nets import Expanded, ExpandedNet  # noqa: PLC0415
    from cldnet.nets.efficientnet import VERSIONS  # noqa: PLC0415
    from cldnet.nets.frozen import EFFICIENT  # noqa: PLC0415
    from cldnet.nets.transformer import read_source  # noqa: PLC0415
    from cldnet.text import nearest_names  # noqa: PLC0415

    if backbone in EFFICIENT:
        version = EFFICIENT[backbone]
        side = VERSIONS[version][2] if size is None else size
        return ExpandedNet((3, side, side), features, seed=0, version=version, size=side)
    if "/" not in backbone and not Path(backbone).is_dir():  # neither a folder nor a name on the hub
        raise ValueError(f"There is no backbone {backbone!r} for photos. {nearest_names(backbone, EFFICIENT)}")
    if size is not None:
        raise ValueError(f"{backbone} has a size of its own: leave --size out.")
    side = read_source(backbone)[1].size
    return Expanded((3, side, side), features, seed=0, bodies=[backbone])


def _sentence_map(backbone: str, features: int) -> FeatureMap:
    from cldnet.data.sentences import TEXT_BYTES  # noqa: PLC0415
    from cldnet.nets import Expanded  # noqa: PLC0415

    if backbone != "minilm" and "/" not in backbone and not Path(backbone).is_dir():
        raise ValueError(
            f"There is no backbone {backbone!r} for sentences. Use minilm, the folder of another BERT encoder, or its name on "
            "the hub."
        )
    return Expanded((TEXT_BYTES,), features, seed=0, bodies=[backbone])


def save_solved(clf: CLDNetClassifier, path: Path) -> None:
    """Save a model with its solution, so that predictions need not solve."""
    if clf.solver == "exact" and len(clf.classes_):
        clf.refresh()
    clf.save(path)


def label_of(clf: CLDNetClassifier, text: str) -> Any:
    """A label given as text, in the type of the model's labels; raise if there is none."""
    return label_as(text, clf.model_.labels.kind, clf.classes_.tolist())


def label_as(text: str, kind: str | None, known: Sequence[Any] = ()) -> Any:
    """A label given as text, in a type of labels: "str", "int", "float" or "bool". ``known`` are some, for the error."""
    if kind in (None, "str"):
        return text
    if kind == "bool" and text in ("True", "False"):
        return text == "True"
    try:
        value = {"int": int, "float": float}[kind or ""](text)
    except (KeyError, ValueError):
        value = None
    if value is None or (kind == "int" and str(value) != text):  # 01 is not 1
        such = f", such as {known[0]!r}" if known else ""
        raise ValueError(
            f"{text!r:.80} cannot be a label of this model: its labels are of type {kind}{such}, and a model's labels have "
            "one type. Give such a label, or teach a new model whose first labels are text."
        )
    return value
