"""A model as an ONNX file: any runtime makes probabilities, scores and labels of inputs as they come."""

from __future__ import annotations

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
from cldnet.export.graph import quiet, translating
from cldnet.model import Model

__all__ = ["to_onnx"]

_OUTPUTS = ("label", "probabilities", "scores")


def to_onnx(
    clf: Answers,
    path: str | os.PathLike[str],
    X: Any = None,
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> Agreement:
    """Write a classifier to an ONNX file that needs neither this library nor torch.

    The graph takes ``input``, as many rows as there are, in uint8 for a model of uint8 images and in float64 for others. It
    gives ``label``, ``probabilities`` and ``scores``, columns in the order of ``classes_``, which the metadata have as JSON
    beside what else there is to know (`cldnet.export.about`).

    Parameters
    ----------
    clf : CLDNetClassifier
        With a class at least.
    path : path-like
        A file that is not there yet.
    X : array-like, optional
        Inputs on which onnxruntime is held against the original; without them some are drawn.
    on_progress : callable, optional
        Told how many inputs are compared, and of how many.

    Returns
    -------
    Agreement

    Raises
    ------
    Disagreement
        If a probability differs by more than 1e-4 or a label is another. Nothing is written then.

    Examples
    --------
    >>> import tempfile
    >>> from cldnet import CLDNetClassifier
    >>> clf = CLDNetClassifier(random_state=0).fit([[0.0, 0.1], [0.1, 0.0], [5.0, 5.1], [5.2, 5.0]], list("aabb"))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     agreement = to_onnx(clf, f"{folder}/letters.onnx")
    >>> agreement.rows, agreement.labels
    (256, 256)
    """
    _check_installed()
    return write_compared(clf, path, X, _translated, on_progress)


def _check_installed() -> None:
    try:
        import onnx  # noqa: F401, PLC0415  (optional dependencies)
        import onnxruntime  # noqa: F401, PLC0415
        import onnxscript  # noqa: F401, PLC0415
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            'Exporting to ONNX needs onnx, onnxscript and onnxruntime: pip install "cldnet[onnx]".'
        ) from error


def _translated(model: Model, program: torch.export.ExportedProgram) -> tuple[bytes, Ask]:
    """A file's content, and what asks it."""
    with quiet(), translating("torch.onnx"):
        made = torch.onnx.export(
            program,
            dynamo=True,
            input_names=["input"],
            output_names=[*_OUTPUTS[1:]],
            verbose=False,
            external_data=False,
        )
    if made is None:
        raise ValueError("torch.onnx gave no model: install torch 2.6 or newer.")
    proto = made.model_proto
    _add_label(proto.graph, model.labels.classes)
    for name, value in about(model).items():
        proto.metadata_props.add(key=name, value=value)
    content: bytes = proto.SerializeToString()
    return content, _asking(content)


def _add_label(graph: Any, classes: NDArray[Any]) -> None:
    """Let the graph say the label itself, in its own type."""
    from onnx import TensorProto, helper  # noqa: PLC0415

    kinds = {"b": TensorProto.BOOL, "i": TensorProto.INT64, "f": TensorProto.DOUBLE, "U": TensorProto.STRING}
    kind, labels = kinds[classes.dtype.kind], classes.tolist()
    values = [label.encode() for label in labels] if kind == TensorProto.STRING else labels
    graph.initializer.append(helper.make_tensor("labels", kind, [len(labels)], values))
    graph.node.append(helper.make_node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0))
    graph.node.append(helper.make_node("Gather", ["labels", "best"], ["label"], axis=0))
    rows = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    graph.output.insert(0, helper.make_tensor_value_info("label", kind, [rows]))


def _asking(content: bytes) -> Ask:
    """Ask a file's content by onnxruntime."""
    from onnxruntime import InferenceSession, SessionOptions  # noqa: PLC0415

    options = SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with translating("onnxruntime"):
        session = InferenceSession(content, options, providers=["CPUExecutionProvider"])
    taught = json.loads(session.get_modelmeta().custom_metadata_map["labels"])

    def ask(x: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[Any]]:
        label, probabilities, scores = session.run(_OUTPUTS, {"input": x})
        if label.tolist() != [taught[best] for best in scores.argmax(1)]:
            raise ValueError("The labels in the exported file are not those of its metadata: please report this.")
        return probabilities, scores, label

    return ask
