"""The edge: arrays of any make become tensors here, or a sentence says what is wrong with them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cldnet.labels import as_labels

__all__ = ["as_inputs", "as_targets", "as_weights", "layout", "plain", "seen_as_inputs"]

_CHANNELS = (1, 3, 4)
#: Weights beyond these are lost beside others, or overflow when they are multiplied.
_WEIGHTS = (1e-12, 1e12)
_NUMBERS = (
    "X should hold numbers: leave that column out, or encode it, for example with sklearn.preprocessing.OneHotEncoder."
)
#: What was expected, and what to do, where scikit-learn finds something wrong: in its own words it says no more than what.
_ADVICE = {
    "contains NaN": "Drop those rows, or fill the gaps, for example with sklearn.impute.SimpleImputer.",
    "contains infinity": "Drop those rows, or bring X into a smaller range.",
    "could not convert string": _NUMBERS,
    "argument must be": _NUMBERS,
    "bytes/strings": "X should hold numbers: convert it to numeric values, for example with X.astype(float), or encode it, "
    "for example with sklearn.preprocessing.OneHotEncoder.",
    "Complex data": "Give real numbers, for example X.real.",
    "setting an array element": "The rows of X should be equally long: cut or pad them.",
    "0 sample(s)": "X should have a row an example: leave the call out where there are none.",
    "0 feature(s)": "X should have one column or more: look at how its columns were chosen.",
}
#: Where scikit-learn's words end that are worth keeping: the array itself follows, or advice of its own.
_END = re.compile(r"\n|\.Convert")


def as_inputs(X: Any) -> Tensor:
    """Turn inputs (numpy, torch, pandas, lists) into a new tensor of numbers, rows first.

    uint8 stays uint8 and means 0 to 255; other numbers become float32 where that loses nothing, else float64.
    What is not finite, not numeric, empty or ragged is refused with a sentence.

    Examples
    --------
    >>> as_inputs([[1, 2], [3, 4]]).dtype, as_inputs(np.zeros((2, 3), np.uint8)).dtype
    (torch.float64, torch.uint8)
    >>> as_inputs([[1.0, float("nan")]])
    Traceback (most recent call last):
    ...
    ValueError: Input X contains NaN. Drop those rows, or fill the gaps, for example with sklearn.impute.SimpleImputer.
    """
    array = _checked(X)
    return torch.from_numpy(_in_range(array.astype(_number_type(array), order="C", subok=False)))


def seen_as_inputs(X: Any) -> Tensor:
    """`as_inputs`, but in the caller's own memory where it is fit for that: for reading only, and only while a call lasts.

    Data may have gigabytes, of which a copy may not find room.

    Examples
    --------
    >>> X = np.zeros((2, 3), np.float32)
    >>> x = seen_as_inputs(X)
    >>> X[0, 0] = 1
    >>> x[0].tolist()
    [1.0, 0.0, 0.0]
    """
    array = _checked(X)
    # Without gaps, as a copy would lie: products round by how a matrix lies. torch has no tensors that nobody may write to.
    fit = np.require(array.astype(_number_type(array), copy=False), requirements=["C", "A", "W", "E"])
    return torch.from_numpy(_in_range(fit))


def _checked(X: Any) -> NDArray[Any]:
    """Find what is wrong with inputs, or return them as an array of their own number type."""
    # scikit-learn's checks and messages are what users of arrays know; imported late because it is heavy.
    from sklearn.utils import check_array  # noqa: PLC0415

    X = plain(X, "X")
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # it looks for NaN in the sum, which large numbers overflow
            array: NDArray[Any] = check_array(X, dtype="numeric", allow_nd=True, input_name="X")
    except (ValueError, TypeError) as error:
        kind = TypeError if isinstance(error, TypeError) else ValueError
        raise kind(_explained(str(error), X)) from error
    if array.ndim > 4:
        raise ValueError(
            f"X has shape {array.shape}; expected (n, features), (n, height, width) or (n, height, width, channels): "
            "reshape it."
        )
    if array.dtype.kind not in "biuf":
        raise ValueError(f"X has dtype {array.dtype}, which is not a number type. Convert it, for example to float32.")
    if 0 in array.shape:
        raise ValueError(f"X has shape {array.shape}: a side of 0 holds no numbers.")
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        with np.errstate(over="ignore"):  # a long double may overflow, which is found next
            return array.astype(np.float64)
    return array


def _number_type(array: NDArray[Any]) -> type[np.generic]:
    """The type that loses nothing: bytes stay bytes."""
    if array.dtype == np.uint8:
        return np.uint8
    return np.float32 if array.dtype in (np.float16, np.float32, np.bool_, np.int8, np.int16, np.uint16) else np.float64


def _in_range(array: NDArray[Any]) -> NDArray[Any]:
    if array.dtype == np.float64 and max(array.max(), -array.min()) > np.finfo(np.float32).max:
        raise ValueError("Input X contains infinity or a value too large for float32. Bring X into a smaller range.")
    return array


def _explained(fault: str, X: Any) -> str:
    """Say what scikit-learn found wrong, what was expected and what to do; without the array, which may be long."""
    if "Expected 2D array, got 1D" in fault:
        return (
            "Expected 2D array, got 1D array instead: X should have a row of numbers an example. Reshape your data: "
            "X.reshape(1, -1) if it is one example, X.reshape(-1, 1) if each number is an example."
        )
    if "Expected 2D array" in fault:  # numpy takes whatever it does not know for one value
        what = "None" if X is None else f"a {type(X).__name__}"
        how = "list(X)" if isinstance(X, Iterator) else "an array, a tensor, a table or a list of rows"
        return f"Expected 2D array, got {what} instead: X should have a row of numbers an example. Give {how}."
    advice = next((advice for words, advice in _ADVICE.items() if words in fault), None)
    return fault if advice is None else f"{_END.split(fault)[0].rstrip(' .:')}. {advice}"


def plain(values: Any, name: str) -> Any:
    """Make numpy's arrays of torch's tensors, and refuse what hides some of its values from numpy.

    Examples
    --------
    >>> plain(torch.tensor([1, 2]), "y")
    array([1, 2])
    >>> plain(np.ma.masked_array([1, 2], mask=[True, False]), "y")
    Traceback (most recent call last):
    ...
    ValueError: y is a masked array in which 1 of 2 values are missing: drop those rows, or give them values (y.filled(…)).
    """
    missing, size = _masked(values)
    if missing:
        what, each = ("is a masked array", name) if isinstance(values, np.ndarray) else ("has masked arrays", "row")
        raise ValueError(
            f"{name} {what} in which {missing} of {size} values are missing: drop those rows, or give them values "
            f"({each}.filled(…))."
        )
    if isinstance(values, np.ma.MaskedArray):
        return np.asarray(values)
    if not isinstance(values, Tensor):
        return values
    tensor = values.detach()
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
        raise ValueError(
            f"{name} is a tensor that is sparse, quantised, nested or without data; expected plain numbers, a row an example: "
            f"convert it, for example with {name}.to_dense()."
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
    """Count the values that masked arrays hide, and all of theirs; numpy reads what is behind the mask of a row in a list."""
    if isinstance(values, np.ma.MaskedArray):
        return int(np.ma.getmaskarray(values).sum()), values.size
    if not isinstance(values, list | tuple) or (values and isinstance(values[0], int | float | str)):
        return 0, 0  # plain numbers need not be looked at one by one
    parts = [_masked(value) for value in values if isinstance(value, np.ma.MaskedArray | list | tuple)]
    return sum(missing for missing, _ in parts), sum(size for _, size in parts)


def as_targets(y: Any, rows: int) -> NDArray[Any]:
    """Turn labels of any make into a one-dimensional array, one for each of so many rows of inputs.

    Examples
    --------
    >>> as_targets(torch.tensor([3, 1]), rows=2)
    array([3, 1])
    >>> as_targets(["a"], rows=2)
    Traceback (most recent call last):
    ...
    ValueError: X has 2 rows and y has 1 labels: they should be as many.
    """
    from sklearn.utils import column_or_1d  # noqa: PLC0415

    y = plain(y, "y")
    if hasattr(y, "to_numpy") and getattr(y, "ndim", 1) == 1:
        y = np.array(list(y), dtype=object)  # pandas would turn its whole numbers with NA into floats
    shape: tuple[int, ...] = getattr(y, "shape", ())
    if len(shape) == 2 and shape[1] == 1 and np.asarray(y).dtype.kind in "ObiufUS":
        y = column_or_1d(y, warn=True)
    labels = as_labels(y)
    if len(labels) != rows:
        raise ValueError(f"X has {rows} rows and y has {len(labels)} labels: they should be as many.")
    return labels


def as_weights(sample_weight: Any, rows: int) -> NDArray[np.float64]:
    """Turn weights of any make into a new array, one for each of so many rows of inputs; one number is the weight of each.

    Examples
    --------
    >>> as_weights([1, 0.5], rows=2), as_weights(2, rows=3)
    (array([1. , 0.5]), array([2., 2., 2.]))
    >>> as_weights([1, -2], rows=2)
    Traceback (most recent call last):
    ...
    ValueError: sample_weight has negative values (-2 is the least); expected 0 or more a row. To take rows out, use forget.
    """
    values = plain(sample_weight, "sample_weight")
    try:
        given = np.asarray(values)
        weights = np.array(given, dtype=np.float64) if given.dtype.kind in "biufO" else None
    except (ValueError, TypeError, OverflowError):
        weights = None
    if weights is None:
        raise ValueError(
            f"sample_weight is no array of numbers; expected one number, 0 or more, for each of the {rows} rows: convert it, "
            "for example with np.asarray(sample_weight, dtype=float)."
        )
    if weights.ndim == 0:
        weights = np.full(rows, weights)
    if weights.shape != (rows,):
        raise ValueError(
            f"sample_weight has shape {weights.shape}; expected ({rows},), one weight a row of X. Give each row its weight, or "
            "leave sample_weight out."
        )
    if not (np.abs(weights) <= np.finfo(np.float32).max).all():
        raise ValueError(
            "sample_weight contains NaN, infinity or a value too large for float32; expected a finite number of 0 or more a "
            "row. Drop those rows, or give them the weight 0."
        )
    if (weights < 0).any():
        raise ValueError(
            f"sample_weight has negative values ({weights.min():g} is the least); expected 0 or more a row. To take rows out, "
            "use forget."
        )
    least, most = _WEIGHTS
    strange = weights[(weights > 0) & ((weights < least) | (weights > most))]
    if len(strange):
        raise ValueError(
            f"sample_weight has values of {strange[0]:g}; expected 0, or {least:g} to {most:g}, about 1 on average. Divide the "
            "weights by their mean, and give rows that should not count the weight 0."
        )
    if not weights.any():
        raise ValueError("All sample weights are zero: there is nothing to learn. Leave the call out.")
    return weights


def layout(x: Tensor, input_shape: tuple[int, ...] | None) -> Tensor:
    """Bring inputs into the layout that nets take: ``(n, d)``, ``(n, height, width)`` or ``(n, channels, height, width)``.

    Images with their channels last are recognised by 1, 3 or 4 of them. A given ``input_shape``, of either layout, folds
    flat rows; images must have it already.

    Examples
    --------
    >>> layout(torch.zeros(2, 8, 9, 3), None).shape, layout(torch.zeros(2, 64), (8, 8)).shape
    (torch.Size([2, 3, 8, 9]), torch.Size([2, 8, 8]))
    """
    if input_shape is None:
        return _channels_first(x)
    if x.ndim == 2 and x.shape[1] == prod(input_shape):
        return _channels_first(x.reshape(len(x), *input_shape))
    images, wanted = _channels_first(x), _channels_first(x.new_empty(0, *input_shape)).shape[1:]
    if [side for side in images.shape[1:] if side > 1] != [side for side in wanted if side > 1]:
        raise ValueError(
            f"X has rows of shape {tuple(x.shape[1:])}, {prod(x.shape[1:])} numbers, but input_shape={input_shape} "
            f"holds {prod(input_shape)}. Reshape X, or change input_shape."
        )
    return images.reshape(len(x), *wanted)


def _channels_first(x: Tensor) -> Tensor:
    if x.ndim == 4 and x.shape[1] not in _CHANNELS and x.shape[3] in _CHANNELS:
        return x.permute(0, 3, 1, 2).contiguous()
    return x
