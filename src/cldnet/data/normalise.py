"""Constants that images are normalised by, in the units of the images: 0 to 255 for uint8."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["CONSTANTS", "FIRST_TASK", "constants"]

#: Mean and spread from the first task's training data: nothing of later tasks and nothing of the test part.
FIRST_TASK = "first-task"

#: Mean and standard deviation a channel, as papers use them. Those of a data set are over all of its training images, so
#: they know a little of later tasks; ImageNet's know nothing of any other set.
CONSTANTS: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "half": ((127.5,), (127.5,)),
    "mnist": ((33.32,), (78.57,)),
    "fashion-mnist": ((72.94,), (90.02,)),
    "cifar-10": ((125.31, 122.95, 113.87), (62.99, 62.09, 66.70)),
    "cifar-100": ((129.30, 124.07, 112.43), (68.17, 65.39, 70.42)),
    "imagenet": ((123.675, 116.28, 103.53), (58.395, 57.12, 57.375)),
}


def constants(
    text: str, input_shape: tuple[int, ...], pixels: bool = True
) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Read how to normalise: ``None`` for the first task's statistics, else mean and spread, one a channel.

    Parameters
    ----------
    text : str
        ``"first-task"``, a name out of `CONSTANTS`, or ``MEAN:SPREAD`` with pluses between channels.
    input_shape : tuple of int
        Shape of one input; a single constant serves all channels.
    pixels : bool
        Whether inputs are uint8, 0 to 255: then constants that only fit 0 to 1 are refused.

    Examples
    --------
    >>> constants("half", (3, 32, 32))
    ((127.5, 127.5, 127.5), (127.5, 127.5, 127.5))
    >>> constants("33.3:78.6", (28, 28))
    ((33.3,), (78.6,))
    """
    if text == FIRST_TASK:
        return None
    if len(input_shape) < 2:
        raise ValueError(f"normalise={text!r} is for images; columns of a table take {FIRST_TASK!r}.")
    try:
        mean, spread = CONSTANTS[text] if text in CONSTANTS else _numbers(text)
    except ValueError:
        raise ValueError(
            f"normalise={text!r} should be {FIRST_TASK}, one of {', '.join(CONSTANTS)}, or numbers as "
            "125.3+123.0+113.9:63.0+62.1+66.7 (means, then spreads, in the units of the images)."
        ) from None
    if pixels and max(spread) <= 1:
        raise ValueError(
            f"normalise={text!r} is for pixels from 0 to 1, and these are from 0 to 255: multiply it by 255."
        )
    channels = input_shape[0] if len(input_shape) == 3 else 1
    if {len(mean), len(spread)} - {1, channels}:
        raise ValueError(
            f"normalise={text!r} has {len(mean)} means and {len(spread)} spreads; the images have {channels} channels."
        )
    return mean * (channels // len(mean)), spread * (channels // len(spread))


def _numbers(text: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    mean, spread = (tuple(float(number) for number in part.split("+")) for part in text.split(":"))
    return mean, spread
