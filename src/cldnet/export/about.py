"""What an exported file says of itself: its labels, what it takes, and where it comes from."""

from __future__ import annotations

import json
from typing import Any

from cldnet.data.images.decode import cut_from
from cldnet.methods.exact import Exact
from cldnet.model import Model
from cldnet.version import __version__

__all__ = ["about"]

_RULE = (
    "turned as EXIF says, RGB; the shorter side brought to `resize`, bicubic; a square of `side` cut out of the middle; "
    "channels first"
)


def about(model: Model) -> dict[str, str]:
    """Describe a model in strings, as the metadata of ONNX are; lists are JSON.

    Examples
    --------
    >>> from cldnet import CLDNetClassifier
    >>> told = about(CLDNetClassifier(random_state=0).fit([[0.0, 0.1], [5.0, 5.1]], ["cat", "dog"])._fitted())
    >>> told["labels"], told["label_type"], told["input_shape"], told["input_type"]
    ('["cat", "dog"]', 'str', '[2]', 'float64')
    """
    shape, labels = model.inputs.shape, model.labels
    told: dict[str, Any] = {
        "cldnet_version": __version__,
        "labels": json.dumps(labels.classes.tolist(), ensure_ascii=False),
        "label_type": labels.kind,
        "input_shape": json.dumps(list(shape)),
        "input_type": "uint8" if model.inputs.pixels else "float64",
    }
    if isinstance(model.learner, Exact):
        told["map_id"] = model.map_id
    if model.inputs.names is not None:
        told["columns"] = json.dumps(list(model.inputs.names), ensure_ascii=False)
    if len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2] and model.inputs.pixels:
        told |= {"side": shape[1], "resize": cut_from(shape[1]), "resize_rule": _RULE}
    return {name: str(value) for name, value in told.items()}
