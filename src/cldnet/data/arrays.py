"""The edge: arrays of any make become tensors here, or a sentence says what is wrong with them."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cldnet.labels import as_labels

__all__ = ["as_inputs", "as_targets", "layout", "plain"]

_CHANNELS = (1, 3, 4)
#: What to do about what scikit-learn finds wrong; it says itself what is.
_ADVICE = {
    "contains NaN": "Drop those rows, or fill the gaps, for example with sklearn.impute.SimpleImputer.",
    "contains infinity": "Drop those rows, or bring X into a smaller range.",
    "could not convert string": "X should hold numbers: leave that column out, or encode it, for example with "
    "sklearn.preprocessing.OneHotEncoder.",
    "Complex data": "Give real numbers, for example X.real.",
    "setting an array element": "The rows of X should be equally long: cut or pad them.",
}


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
    # scikit-learn's checks and messages are what users of arrays know; imported late because it is heavy.
    from sklearn.utils import check_array  # noqa: PLC0415

    X = plain(X, "X")
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # it looks for NaN in the sum, which large numbers overflow
            array = check_array(X, dtype="numeric", allow_nd=True, input_name="X")
    except ValueError as error:
        advice = next((advice for fault, advice in _ADVICE.items() if fault in str(error)), "")
        raise ValueError(f"{error} {advice}".rstrip()) from error
    if array.ndim > 4:
        raise ValueError(
            f"X has shape {array.shape}; expected (n, features), (n, height, width) or (n, height, width, channels)."
        )
    if array.dtype.kind not in "biuf":
        raise ValueError(f"X has dtype {array.dtype}, which is not a number type. Convert it, for example to float32.")
    if 0 in array.shape:
        raise ValueError(f"X has shape {array.shape}: a side of 0 holds no numbers.")
    if array.dtype != np.uint8:
        exact = array.dtype in (np.float16, np.float32, np.bool_, np.int8, np.int16, np.uint16)
        with np.errstate(over="ignore"):  # a long double may overflow
            array = array.astype(np.float32 if exact else np.float64)
        if np.abs(array).max() > np.finfo(np.float32).max:
            raise ValueError(
                "Input X contains infinity or a value too large for float32. Bring X into a smaller range."
            )
    return torch.from_numpy(np.array(array))


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
    if isinstance(values, np.ma.MaskedArray):
        missing = int(np.ma.getmaskarray(values).sum())
        if missing:
            raise ValueError(
                f"{name} is a masked array in which {missing} of {values.size} values are missing: drop those rows, or give "
                f"them values ({name}.filled(…))."
            )
        return np.asarray(values)
    if not isinstance(values, Tensor):
        return values
    tensor = values.detach()
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_nested or tensor.is_meta:
        raise ValueError(
            f"{name} is a tensor that is sparse, quantised, nested or without data; expected plain numbers, a row an example: "
            f"convert it, for example with {name}.to_dense()."
        )
    return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).cpu().numpy()


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
    if isinstance(y, np.ndarray) or hasattr(y, "to_numpy"):
        y = column_or_1d(y, warn=True)
    labels = as_labels(y)
    if len(labels) != rows:
        raise ValueError(f"X has {rows} rows and y has {len(labels)} labels: they should be as many.")
    return labels


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
