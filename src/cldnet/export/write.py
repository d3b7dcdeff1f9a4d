"""Write a classifier to an ONNX file or a torch program: trace it, compare it with the original, and only then write it."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted
from torch import Tensor
from torch.nn import functional as F

from cldnet.data.images.decode import cut_from
from cldnet.device import generator, threads
from cldnet.estimator.classifier import CLDNetClassifier
from cldnet.estimator.model import Model
from cldnet.export.graph import export_errors, quiet, trace
from cldnet.nets.features import InputScale, ScaledMap
from cldnet.storage.disk import check_new, write_atomically
from cldnet.version import __version__

#: Largest difference allowed of a probability, and of a score relative to the largest.
TOLERANCE = 1e-4
_BATCH = 64  # inputs compared at a time
_MAX_NUMBERS, _MAX_RANDOM = 10_000_000, 256  # of random inputs: 64 photos of 224 pixels, or 256 small inputs
_METADATA_FILE = "cldnet.json"  # in a torch program
_RESIZE_RULE = (
    "turned as EXIF says, RGB; the shorter side brought to `resize`, bicubic; a square of `side` cut out of the middle; "
    "channels first"
)

#: Runs an exported file: inputs to probabilities, scores and labels.
Runner = Callable[[NDArray[Any]], tuple[NDArray[np.float64], NDArray[np.float64], NDArray[Any]]]
_Progress = Callable[[int, int], None] | None


@dataclass(frozen=True)
class Agreement:
    """How well an exported file agrees with its original."""

    rows: int  # inputs compared
    labels: int  # inputs for which both predict the same label
    probability: float  # largest difference of a probability
    score: float  # largest difference of a score, relative to the largest score
    ties: int = 0  # inputs with different labels that the original itself finds equally likely

    @property
    def holds(self) -> bool:
        """Whether the differences are within the tolerance."""
        near = self.probability <= TOLERANCE and self.score <= TOLERANCE  # false for NaN
        return near and self.labels + self.ties == self.rows

    def __str__(self) -> str:
        return (
            f"{self.labels:,} of {self.rows:,} labels are the same, probabilities within {self.probability:.1e}, "
            f"scores within {self.score:.1e} of the largest"
        )


class Disagreement(ValueError):
    """The exported file does not agree with its original, and was not written."""

    def __init__(self, agreement: Agreement) -> None:
        super().__init__(
            f"The exported model does not agree with its original: {agreement}, where {TOLERANCE:.0e} is allowed. Nothing was "
            "written."
        )
        self.agreement = agreement


def to_onnx(
    clf: CLDNetClassifier, path: str | os.PathLike[str], X: Any = None, *, on_progress: _Progress = None
) -> Agreement:
    """Write a classifier to an ONNX file that needs neither this library nor torch.

    The graph takes ``input``, any number of samples, in uint8 for a model of uint8 images and in float64 for others. It returns
    ``label``, ``probabilities`` and ``scores``, columns in the order of ``classes_``. The metadata have the labels as JSON, and
    what else there is to know about the model.

    Parameters
    ----------
    clf : CLDNetClassifier
        A fitted classifier.
    path : path-like
        A new file.
    X : array-like, optional
        Inputs on which onnxruntime is compared with the original; random ones by default.
    on_progress : callable, optional
        Called with the number of inputs compared, and the total.

    Returns
    -------
    Agreement

    Raises
    ------
    Disagreement
        If a probability differs by more than 1e-4 or a label differs. Nothing is written then.

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
    try:
        import onnx  # noqa: F401, PLC0415  (optional dependencies)
        import onnxruntime  # noqa: F401, PLC0415
        import onnxscript  # noqa: F401, PLC0415
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            'Exporting to ONNX needs onnx, onnxscript and onnxruntime: pip install ".[onnx]" in a clone of CLDNet.'
        ) from error
    return _export(clf, path, X, _onnx_file, on_progress)


def to_torch(
    clf: CLDNetClassifier, path: str | os.PathLike[str], X: Any = None, *, on_progress: _Progress = None
) -> Agreement:
    """Write a classifier to a file that ``torch.export.load`` reads without this library.

    ``load(path, extra_files={"cldnet.json": ""}).module()(inputs)`` returns probabilities and scores; the extra file has the
    labels of their columns and the other metadata of `to_onnx`.

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
    return _export(clf, path, X, _torch_file, on_progress)


def _export(
    clf: CLDNetClassifier,
    path: str | os.PathLike[str],
    X: Any,
    convert: Callable[[Model, torch.export.ExportedProgram], tuple[bytes, Runner]],
    on_progress: _Progress,
) -> Agreement:
    """Convert a classifier to a file's content, compare that with the original, and write it."""
    check_is_fitted(clf)
    model = clf.model_
    if not len(model.labels.classes):
        raise NotFittedError("This model has forgotten all its classes: teach it some with partial_fit first.")
    if model.inputs.projection is not None:
        raise ValueError(
            "This model learned sparse rows that were projected, and an exported file takes the model's inputs as they are, "
            "dense: save it with save and load it with cldnet."
        )
    check_new(path)
    x = random_inputs(model) if X is None else clf.check_inputs(X)
    if X is not None and not model.inputs.pixels:
        x = x.double()
    if model.inputs.pixels and x.dtype != torch.uint8:
        raise ValueError(
            f"The model was trained on uint8 inputs, and X is {x.dtype}. Pass uint8: the exported file takes it."
        )
    content, run = convert(model, trace(model))
    with threads(clf.n_threads):
        agreement = compare(model, run, x, on_progress)
    write_atomically(path, content)
    return agreement


def compare(model: Model, run: Runner, x: Tensor, on_progress: _Progress = None) -> Agreement:
    """Compare a model with its exported file on inputs; raises `Disagreement` where they differ."""
    column = {label: place for place, label in enumerate(model.labels.classes.tolist())}
    largest = score = size = 0.0
    labels = ties = done = 0
    for part in x.split(_BATCH):
        probabilities, scores, predicted = run(part.numpy())
        ours = model.scores(part)
        expected = model.probabilities(ours)
        same = np.asarray(predicted == model.labels.classes[ours.argmax(1)], dtype=bool)  # strings come as objects
        labels += int(same.sum())
        places = [column.get(label) for label in predicted.tolist()]
        theirs = np.array([0.0 if at is None else row[at] for at, row in zip(places, expected, strict=True)])
        ties += int((~same & (expected.max(1) - theirs <= TOLERANCE)).sum())
        # np.max propagates NaN, max does not
        largest = float(np.max([largest, np.abs(probabilities - expected).max()]))
        score, size = float(np.max([score, np.abs(scores - ours).max()])), max(size, float(np.abs(ours).max()))
        done += len(part)
        if on_progress is not None:
            on_progress(done, len(x))
    agreement = Agreement(len(x), labels, largest, score / max(size, 1.0), ties)
    if not agreement.holds:
        raise Disagreement(agreement)
    return agreement


def random_inputs(model: Model) -> Tensor:
    """Random inputs for a comparison: images of blobs, or vectors with the model's mean and std."""
    inputs, random = model.inputs, generator(0)
    count = max(8, min(_MAX_RANDOM, _MAX_NUMBERS // inputs.count))
    if len(inputs.shape) > 1:
        channels, sides = (1 if len(inputs.shape) == 2 else inputs.shape[0]), inputs.shape[-2:]
        images = torch.zeros(count, channels, *sides)
        for places in (2, 5, 17):  # large and small blobs
            coarse = torch.rand(count, channels, places, places, generator=random)
            images += F.interpolate(coarse, sides, mode="bilinear", align_corners=False) / 3
        shares = ((images - 0.5) * 2.5 + 0.5).clamp(0, 1).reshape(count, *inputs.shape)
        return (shares * 255).round().to(torch.uint8) if inputs.pixels else shares.double() * inputs.largest
    # Mean and std of the inputs of the first task, as far as the model knows them.
    features = model.exact.features if model.learner.keeps_sums else None
    scale = features.scale if isinstance(features, ScaledMap) and features.net is None else model.learner.scale
    if isinstance(scale, InputScale):
        mean, std = scale.mean.cpu(), scale.spread.cpu()
    else:
        size = torch.full(inputs.shape, inputs.largest, dtype=torch.float64)
        mean, std = torch.zeros_like(size), size / 2
    x = mean + 2 * std * torch.randn(count, *inputs.shape, generator=random, dtype=torch.float64)
    return x.clamp(0, 255).round().to(torch.uint8) if inputs.pixels else x


def metadata(model: Model) -> dict[str, str]:
    """Describe a model in strings, as the metadata of ONNX are; lists are JSON."""
    shape, labels = model.inputs.shape, model.labels
    fields: dict[str, Any] = {
        "cldnet_version": __version__,
        "labels": json.dumps(labels.classes.tolist(), ensure_ascii=False),
        "label_type": labels.kind,
        "input_shape": json.dumps(list(shape)),
        "input_type": "uint8" if model.inputs.pixels else "float64",
    }
    if model.learner.keeps_sums:
        fields["map_id"] = model.map_id
    if model.inputs.names is not None:
        fields["columns"] = json.dumps(list(model.inputs.names), ensure_ascii=False)
    if len(shape) == 3 and shape[0] == 3 and shape[1] == shape[2] and model.inputs.pixels:
        fields |= {"side": shape[1], "resize": cut_from(shape[1]), "resize_rule": _RESIZE_RULE}
    return {name: str(value) for name, value in fields.items()}


def _onnx_file(model: Model, program: torch.export.ExportedProgram) -> tuple[bytes, Runner]:
    """An ONNX file's content, and a function that runs it by onnxruntime."""
    from onnxruntime import InferenceSession, SessionOptions  # noqa: PLC0415

    outputs = ["label", "probabilities", "scores"]
    with quiet(), export_errors("torch.onnx"):
        made = torch.onnx.export(
            program,
            dynamo=True,
            input_names=["input"],
            output_names=outputs[1:],
            verbose=False,
            external_data=False,
        )
    assert made is not None  # torch.onnx returns None only without dynamo
    proto = made.model_proto
    _add_label(proto.graph, model.labels.classes)
    for name, value in metadata(model).items():
        proto.metadata_props.add(key=name, value=value)
    content: bytes = proto.SerializeToString()
    options = SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    with export_errors("onnxruntime"):
        session = InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def run(x: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[Any]]:
        label, probabilities, scores = session.run(outputs, {"input": x})
        return probabilities, scores, label

    return content, run


def _add_label(graph: Any, classes: NDArray[Any]) -> None:
    """Let the graph return the label itself, in its own type."""
    from onnx import TensorProto, helper  # noqa: PLC0415

    kinds = {"b": TensorProto.BOOL, "i": TensorProto.INT64, "f": TensorProto.DOUBLE, "U": TensorProto.STRING}
    kind, labels = kinds[classes.dtype.kind], classes.tolist()
    values = [label.encode() for label in labels] if kind == TensorProto.STRING else labels
    graph.initializer.append(helper.make_tensor("labels", kind, [len(labels)], values))
    graph.node.append(helper.make_node("ArgMax", ["scores"], ["best"], axis=1, keepdims=0))
    graph.node.append(helper.make_node("Gather", ["labels", "best"], ["label"], axis=0))
    rows = graph.input[0].type.tensor_type.shape.dim[0].dim_param
    graph.output.insert(0, helper.make_tensor_value_info("label", kind, [rows]))


def _torch_file(model: Model, program: torch.export.ExportedProgram) -> tuple[bytes, Runner]:
    """A torch program's content, and a function that runs it."""
    file, extra = io.BytesIO(), {_METADATA_FILE: ""}
    with quiet():
        torch.export.save(program, file, extra_files={_METADATA_FILE: json.dumps(metadata(model), ensure_ascii=False)})
        content = file.getvalue()
        module = torch.export.load(io.BytesIO(content), extra_files=extra).module()
    labels = np.array(json.loads(json.loads(extra[_METADATA_FILE])["labels"]))

    @torch.no_grad()
    def run(x: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[Any]]:
        probabilities, scores = (output.numpy() for output in module(torch.from_numpy(x)))
        return probabilities, scores, labels[scores.argmax(1)]

    return content, run
