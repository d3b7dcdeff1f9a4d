"""The edge: arrays of any make become tensors here, or a sentence says what is wrong with them."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["as_inputs", "layout"]

_CHANNELS = (1, 3, 4)


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
    ValueError: Input X contains NaN...
    """
    # scikit-learn's checks and messages are what users of arrays know; imported late because it is heavy.
    from sklearn.utils import check_array  # noqa: PLC0415

    if isinstance(X, Tensor):
        tensor = X.detach().cpu()
        X = (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    array = check_array(X, dtype="numeric", allow_nd=True, input_name="X")
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
