"""Check the arrays that users pass, samples, labels and weights, and serve them to learners as tasks and batches."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cldnet.data.frames import check_columns, columns_that_lack, from_arrow, is_arrow
from cldnet.data.labels import Inputs, LabelTable, as_labels, other_columns
from cldnet.data.sentences import encode_sentences, is_sentences
from cldnet.data.sparse import WIDTH, Projection, is_sparse

_CHANNELS = (1, 3, 4)
#: Weights outside this range vanish beside others, or overflow when they are multiplied.
_WEIGHTS = (1e-12, 1e12)
_NUMBERS = (
    "X should hold numbers: drop that column, or encode it, for example with sklearn.preprocessing.OneHotEncoder."
)
#: Advice to add to scikit-learn's messages, which only say what is wrong.
_ADVICE = {
    "contains NaN": "Drop those samples, or fill in the values, for example with sklearn.impute.SimpleImputer.",
    "contains infinity": "Drop those samples, or rescale X.",
    "could not convert string": _NUMBERS,
    "argument must be": _NUMBERS,
    "bytes/strings": "X should hold numbers: convert it to numeric values, for example with X.astype(float), or encode it, "
    "for example with sklearn.preprocessing.OneHotEncoder.",
    "Complex data": "Give real numbers, for example X.real.",
    "setting an array element": "All samples in X should have the same length: cut or pad them.",
    "0 sample(s)": "X should have at least one sample: skip the call if there is none.",
    "0 feature(s)": "X should have at least one column: check how its columns were chosen.",
}
#: Numbers of an array up to which scikit-learn's checks take a good part of the time of learning it.
_SMALL = 1 << 18
#: What follows in a message of scikit-learn: the array itself, or its own advice.
_END = re.compile(r"\n|\.Convert")


def as_inputs(X: Any, copy: bool = True, projection: Projection | None = None) -> Tensor:
    """Convert inputs (numpy, scipy, torch, pandas, lists) to a tensor of numbers, samples first, or raise.

    uint8 stays uint8 and means 0 to 255; other numbers become float32 if that loses nothing, else float64. Without ``copy``
    the tensor may share the memory of X, which may take gigabytes: read it only, and only during the call. With a
    ``projection`` rows are projected, sparse or not; without one, sparse rows of more than `WIDTH` columns are refused.
    """
    array = _numbers(X)
    if projection is not None:
        if array.shape[1:] != (projection.columns,):
            raise ValueError(other_columns(array.shape, projection.columns))
        return projection.project(array)
    if is_sparse(array):
        if array.shape[1] > WIDTH:
            raise ValueError(
                f"X is sparse and has {array.shape[1]:,} columns; without a projection expected at most {WIDTH:,}, or dense "
                "rows. Train a new model that starts with sparse rows, or pass small pieces: X[i:j].toarray()."
            )
        array = array.toarray()
    if array.ndim > 4:
        raise ValueError(
            f"X has shape {array.shape}; expected (n, features), (n, height, width) or (n, height, width, channels): "
            "reshape it."
        )
    if 0 in array.shape:
        raise ValueError(f"X has shape {array.shape}: a side of 0 holds no numbers.")
    dtype: type[np.generic] = np.float64
    if array.dtype in (np.float16, np.float32, np.bool_, np.int8, np.int16, np.uint16):
        dtype = np.float32
    elif array.dtype == np.uint8:
        dtype = np.uint8
    with np.errstate(over="ignore"):  # a long double may overflow, which is found next
        array = array.astype(dtype, order="C" if copy else "K", copy=copy)
    # Contiguous, because rounding depends on the layout; writable, because torch has no read-only tensors.
    array = np.require(array, requirements=["C", "A", "W", "E"])
    if dtype is np.float64 and max(array.max(), -array.min()) > np.finfo(np.float32).max:
        raise ValueError("Input X contains infinity or a value too large for float32. Rescale X.")
    return torch.from_numpy(array)


def _numbers(X: Any) -> Any:
    """Convert inputs to a numpy array of numbers, or to rows of scipy if they are sparse; raise for what is neither."""
    X = from_arrow(X)
    plain_rows = type(X) is np.ndarray and X.ndim == 2 and X.dtype in (np.float32, np.float64)
    if plain_rows and 0 < X.size <= _SMALL and np.isfinite(X).all():
        return X  # scikit-learn would find out the same, in ten times the time
    # scikit-learn's checks and messages are what users of arrays know; imported late because it is heavy.
    from sklearn.utils import check_array  # noqa: PLC0415

    X = plain(X, "X")
    check_columns(X)
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # it looks for NaN in the sum, which large numbers overflow
            array: Any = check_array(X, accept_sparse="csr", dtype="numeric", allow_nd=True, input_name="X")
    except (ValueError, TypeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(_explained(str(error), X)) from error
    if array.dtype.kind not in "biuf":
        raise ValueError(f"X has dtype {array.dtype}, which is not a number type. Convert it, for example to float32.")
    return array


def _explained(fault: str, X: Any) -> str:
    """Shorten a message of scikit-learn, and add what was expected and what to do."""
    if "Expected 2D array, got 1D" in fault:
        return (
            "Expected 2D array, got 1D array instead: X should have one row per sample. Reshape your data: "
            "X.reshape(1, -1) if it is one sample, X.reshape(-1, 1) if each number is a sample."
        )
    if "Expected 2D input" in fault:
        return "Expected 2D input, got one row of a sparse array: X should have one row per sample. Keep its shape: X[i:i+1]."
    if "Expected 2D array" in fault:  # numpy takes whatever it does not know for one value
        what = "None" if X is None else f"a {type(X).__name__}"
        how = "list(X)" if isinstance(X, Iterator) else "an array, a tensor, a table or a list of rows"
        return f"Expected 2D array, got {what} instead: X should have one row per sample. Give {how}."
    advice = next((advice for words, advice in _ADVICE.items() if words in fault), None)
    return fault if advice is None else f"{_END.split(fault)[0].rstrip(' .:')}{columns_that_lack(X)}. {advice}"


def plain(values: Any, name: str) -> Any:
    """Convert torch tensors to numpy arrays, and raise for values that numpy cannot see, such as masked ones."""
    missing, size = _masked(values)
    if missing:
        what, each = ("is a masked array", name) if isinstance(values, np.ndarray) else ("has masked arrays", "row")
        raise ValueError(
            f"{name} {what} in which {missing} of {size} values are missing: drop those samples, or fill in the values "
            f"({each}.filled(…))."
        )
    if isinstance(values, np.ma.MaskedArray):
        return np.asarray(values)
    if not isinstance(values, Tensor):
        return values
    tensor = values.detach()
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
        raise ValueError(
            f"{name} is a tensor that is sparse, quantised, nested or without data; expected plain numbers: convert it, for "
            f"example with {name}.to_dense()."
        )
    try:
        if tensor.is_floating_point() and tensor.element_size() <= 2:
            tensor = tensor.float()  # numpy lacks most of those types, and float32 has all their numbers
        return tensor.resolve_conj().resolve_neg().cpu().numpy()
    except (TypeError, NotImplementedError) as error:
        raise ValueError(
            f"{name} is a tensor of type {tensor.dtype}, which numpy cannot read; expected plain numbers: convert it, for "
            f"example with {name}.to(torch.float32)."
        ) from error


def _masked(values: Any) -> tuple[int, int]:
    """Count masked values, and all values of masked arrays; numpy ignores the masks of arrays in a list."""
    if isinstance(values, np.ma.MaskedArray):
        return int(np.ma.getmaskarray(values).sum()), values.size
    if not isinstance(values, list | tuple) or (values and isinstance(values[0], int | float | str)):
        return 0, 0  # no need to look at plain numbers one by one
    parts = [_masked(value) for value in values if isinstance(value, np.ma.MaskedArray | list | tuple)]
    return sum(missing for missing, _ in parts), sum(size for _, size in parts)


def as_targets(y: Any, rows: int) -> NDArray[Any]:
    """Convert labels to a one-dimensional array, and raise unless there is one per sample."""
    from sklearn.utils import column_or_1d  # noqa: PLC0415

    y = plain(y, "y")
    if hasattr(y, "to_numpy") and getattr(y, "ndim", 1) == 1:
        y = np.array(list(y), dtype=object)  # pandas would convert integers with NA to floats
    shape: tuple[int, ...] = getattr(y, "shape", ())
    if len(shape) == 2 and shape[1] == 1 and np.asarray(y).dtype.kind in "ObiufUS":
        y = column_or_1d(y, warn=True)
    labels = as_labels(y)
    if len(labels) != rows:
        raise ValueError(f"X has {rows} samples and y has {len(labels)} labels; expected one label per sample.")
    return labels


def as_weights(sample_weight: Any, rows: int) -> NDArray[np.float64]:
    """Convert sample weights to a new array, one per sample; a single number is the weight of each."""
    values = plain(sample_weight, "sample_weight")
    try:
        given = np.asarray(values)
        weights = np.array(given, dtype=np.float64) if given.dtype.kind in "biufO" else None
    except (ValueError, TypeError, OverflowError):
        weights = None
    if weights is None:
        raise ValueError(
            f"sample_weight is not an array of numbers; expected one weight of at least 0 for each of {rows} samples: convert "
            "it, for example with np.asarray(sample_weight, dtype=float)."
        )
    if weights.ndim == 0:
        weights = np.full(rows, weights)
    if weights.shape != (rows,):
        raise ValueError(
            f"sample_weight has shape {weights.shape}; expected ({rows},), one weight per sample. Reshape it, or leave it out."
        )
    if not (np.abs(weights) <= np.finfo(np.float32).max).all():
        raise ValueError(
            "sample_weight contains NaN, infinity or a value too large for float32; expected finite weights of at least 0. "
            "Drop those samples, or give them the weight 0."
        )
    if (weights < 0).any():
        raise ValueError(
            f"sample_weight has negative values (the smallest is {weights.min():g}); expected weights of at least 0. To remove "
            "samples from a model, use forget."
        )
    least, most = _WEIGHTS
    strange = weights[(weights > 0) & ((weights < least) | (weights > most))]
    if len(strange):
        raise ValueError(
            f"sample_weight has the value {strange[0]:g}; expected 0, or {least:g} to {most:g}, about 1 on average. Divide the "
            "weights by their mean, and use 0 for samples that should not count."
        )
    if not weights.any():
        raise ValueError("All sample weights are zero: there is nothing to learn. Skip the call.")
    return weights


def layout(x: Tensor, input_shape: tuple[int, ...] | None) -> Tensor:
    """Convert inputs to the layout of the nets: ``(n, d)``, ``(n, height, width)`` or ``(n, channels, height, width)``.

    A last dimension of 1, 3 or 4 means channels last. ``input_shape``, in either layout, reshapes flat inputs; images must
    already have it.
    """
    if input_shape is None:
        return _channels_first(x)
    if x.ndim == 2 and x.shape[1] == prod(input_shape):
        return _channels_first(x.reshape(len(x), *input_shape))
    images, wanted = _channels_first(x), _channels_first(x.new_empty(0, *input_shape)).shape[1:]
    if [side for side in images.shape[1:] if side > 1] != [side for side in wanted if side > 1]:
        raise ValueError(
            f"X has samples of shape {tuple(x.shape[1:])}, {prod(x.shape[1:])} numbers, but input_shape={input_shape} "
            f"holds {prod(input_shape)}. Reshape X, or change input_shape."
        )
    return images.reshape(len(x), *wanted)


def _channels_first(x: Tensor) -> Tensor:
    if x.ndim == 4 and x.shape[1] not in _CHANNELS and x.shape[3] in _CHANNELS:
        return x.permute(0, 3, 1, 2).contiguous()
    return x


def read_inputs(X: Any, input_shape: tuple[int, ...] | None, inputs: Inputs) -> Tensor:
    """Convert what is to be predicted to the layout of the nets, as a model's first ``inputs`` were; see `as_inputs`."""
    inputs.check_text(X)
    return (
        encode_sentences(X)
        if inputs.text
        else layout(as_inputs(X, copy=False, projection=inputs.projection), input_shape)
    )


@dataclass(frozen=True)
class Samples:
    """Checked samples: inputs in the layout of the nets, labels, weights, column names, and how inputs were projected.

    The inputs may share the caller's memory: copy them to keep them beyond the call.
    """

    x: Tensor
    y: NDArray[Any]
    weight: NDArray[np.float64] | None
    names: tuple[str, ...] | None
    projection: Projection | None = None
    text: bool = False  # whether inputs are sentences

    @classmethod
    def checked(
        cls,
        X: Any,
        y: Any,
        sample_weight: Any,
        input_shape: tuple[int, ...] | None,
        table: LabelTable,
        classes: Any = None,
        *,
        inputs: Inputs | None = None,
        width: int = WIDTH,
    ) -> Samples:
        """Check the arguments of a call, and the labels against a table; raise if something is wrong.

        ``inputs`` are those of the model or session that the samples are for. Without one, sparse rows of more columns
        than ``width`` are projected to so many.
        """
        from sklearn.utils.validation import _get_feature_names  # noqa: PLC0415

        if y is None:
            raise ValueError(
                "This classifier requires y to be passed, but the target y is None. Give a list, an array or a column of "
                "labels, one per sample."
            )
        if inputs is not None:
            inputs.check_text(X)
        if is_sentences(X):
            return cls._of_sentences(X, y, sample_weight, table, classes)
        projection = Projection.of(X, width) if inputs is None else inputs.projection
        if projection is not None and input_shape is not None:
            raise ValueError(
                f"X is sparse with {projection.columns:,} columns, which are projected to {projection.width:,}, and "
                f"input_shape={input_shape} is for dense inputs: leave it out."
            )
        x = layout(as_inputs(X, copy=False, projection=projection), input_shape)
        labels, weight = _checked_labels(y, sample_weight, len(x), table, classes)
        names = None if type(X) is np.ndarray else X.column_names if is_arrow(X) else _get_feature_names(X)
        return cls(x, labels, weight, None if names is None else tuple(names), projection)

    @classmethod
    def _of_sentences(cls, X: Any, y: Any, sample_weight: Any, table: LabelTable, classes: Any) -> Samples:
        x = encode_sentences(X)
        labels, weight = _checked_labels(y, sample_weight, len(x), table, classes)
        return cls(x, labels, weight, None, text=True)

    def counts(self) -> dict[Any, int]:
        """Number of samples by label; those of weight 0 do not count."""
        counts = dict.fromkeys(self.y.tolist(), 0)
        for label in (self.y if self.weight is None else self.y[self.weight > 0]).tolist():
            counts[label] += 1
        return counts

    @property
    def at_most_once(self) -> bool:
        """Whether no sample counts as more than one."""
        return self.weight is None or bool((self.weight <= 1).all())

    def copied(self) -> Samples:
        """Copy the inputs and labels, to keep them beyond the call."""
        return replace(self, x=self.x.clone(), y=self.y.copy())

    @staticmethod
    def joined(pieces: Sequence[Samples]) -> Samples:
        """All pieces together; samples without weights weigh 1."""
        weight = None
        if len(pieces) == 1:
            return pieces[0]
        if any(piece.weight is not None for piece in pieces):
            weight = np.concatenate([np.ones(len(p.y)) if p.weight is None else p.weight for p in pieces])
        y = np.concatenate([piece.y for piece in pieces])
        x = torch.cat([piece.x for piece in pieces])
        return Samples(x, y, weight, pieces[0].names, pieces[0].projection, pieces[0].text)

    @property
    def inputs(self) -> Inputs:
        """The `Inputs` of a model that starts with these samples."""
        least, most = (float(end) for end in self.x.aminmax())
        shape, pixels = tuple(self.x.shape[1:]), self.x.dtype == torch.uint8
        return Inputs(shape, self.names, pixels, max(most, -least), self.projection, self.text)


def _checked_labels(
    y: Any, sample_weight: Any, rows: int, table: LabelTable, classes: Any
) -> tuple[NDArray[Any], NDArray[np.float64] | None]:
    """Check labels against a table and those allowed, and weights; both have one entry per row."""
    labels = as_targets(y, rows)
    table.check(labels)
    if classes is not None:
        unexpected = sorted(set(labels.tolist()) - set(as_labels(classes).tolist()))
        if unexpected:
            raise ValueError(f"y has labels {unexpected} that are not in classes. Add them, or leave classes out.")
    return labels, None if sample_weight is None else as_weights(sample_weight, rows)


class Session:
    """Samples that arrive in pieces and are learned as one task; new labels go to a copy of ``table``."""

    def __init__(self, table: LabelTable) -> None:
        self.table = copy.deepcopy(table)
        self.pieces: list[Samples] = []
        self.inputs: Inputs | None = None

    def add(self, samples: Samples) -> None:
        """Add a copy of a piece, or raise if its inputs do not match those of the first one."""
        if self.inputs is None:
            self.inputs = samples.inputs
        self.inputs.check(samples.x)
        if samples.names != self.inputs.names:
            raise ValueError("The columns have other names than in the session's first piece: use the same names.")
        self.table.learn(samples.y)
        self.pieces.append(samples.copied())

    @property
    def samples(self) -> Samples:
        """All pieces together."""
        return Samples.joined(self.pieces)


#: Varies a batch of inputs with a random generator, keeping shape and type.
Augmentation = Callable[[Tensor, torch.Generator], Tensor]


class Batch(NamedTuple):
    """The samples of one step: inputs, class rows, weights or None, and the step's place among the task's steps and epochs.

    Inputs may be augmented. Methods that store samples store `plain`, and replay them with `joined`.
    """

    x: Tensor
    y: Tensor
    weight: Tensor | None
    step: int
    steps: int
    epoch: int
    original: Tensor | None = None
    augment: Augmentation | None = None

    def augmented(self, augment: Augmentation, source: torch.Generator) -> Batch:
        """Augment the inputs, keeping the original ones."""
        return self._replace(x=augment(self.x, source), original=self.x, augment=augment)

    @property
    def plain(self) -> Tensor:
        """The inputs before augmentation."""
        return self.x if self.original is None else self.original

    def joined(self, x: Tensor, y: Tensor, source: torch.Generator) -> Batch:
        """Add stored samples of weight one, augmented if this batch is."""
        varied = x if self.augment is None else self.augment(x, source)
        weight = None if self.weight is None else torch.cat([self.weight, self.weight.new_ones(len(x))])
        original = None if self.original is None else torch.cat([self.original, x.to(self.original)])
        inputs = torch.cat([self.x, varied.to(self.x)])
        return self._replace(x=inputs, y=torch.cat([self.y, y]), weight=weight, original=original)

    def without_zeros(self) -> Batch:
        """Drop samples of weight zero, which should not reach a projector or a kernel either."""
        if self.weight is None or bool((self.weight > 0).all()):
            return self
        kept = self.weight > 0
        original = None if self.original is None else self.original[kept]
        return self._replace(x=self.x[kept], y=self.y[kept], weight=self.weight[kept], original=original)

    @property
    def progress(self) -> float:
        """Progress of the task, from 0 at its first step to 1 at its last."""
        return self.step / max(self.steps - 1, 1)


@dataclass(frozen=True)
class TaskData:
    """The samples of one task, in memory."""

    x: Tensor
    y: Tensor
    weight: Tensor | None = None

    def __len__(self) -> int:
        return len(self.x)

    @property
    def class_rows(self) -> Tensor:
        """The class rows of this task, sorted."""
        rows: Tensor = self.y.unique()
        return rows

    def batches(self, size: int) -> Iterator[Batch]:
        """Yield all samples in order."""
        yield from self.epoch(torch.arange(len(self), device=self.x.device), size, 0, 1)

    def epoch(self, order: Tensor, size: int, epoch: int, epochs: int) -> Iterator[Batch]:
        """Yield the samples in a given order, as one of several epochs.

        A single sample that is left over joins the batch before it: a batch of one has no variance.
        """
        parts = list(order.split(size))
        if len(parts) > 1 and size > 1 and len(parts[-1]) == 1:
            parts[-2:] = [torch.cat(parts[-2:])]
        for number, index in enumerate(parts):
            # index_select copies whole rows, many times faster than x[index].
            weight = None if self.weight is None else self.weight.index_select(0, index)
            x, y = self.x.index_select(0, index), self.y.index_select(0, index)
            yield Batch(x, y, weight, epoch * len(parts) + number, epochs * len(parts), epoch)
