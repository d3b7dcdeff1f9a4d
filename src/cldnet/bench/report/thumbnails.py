"""Small copies of the photos that a model is surest of and wrong about, small enough to be part of a page."""

from __future__ import annotations

import base64
import heapq
import io

import numpy as np
from numpy.typing import NDArray

from cldnet.bench.photo_evaluation import Answered
from cldnet.data.images.decode import pillow

__all__ = ["SurestMistakes", "data_uri"]

_SIDE = 144  # pixels: sharp on a screen with two to a point, in a frame of 96
_QUALITY = 80


class SurestMistakes:
    """The wrong answers with the highest probabilities, with the pixels of their photos: those of no other are kept.

    Parameters
    ----------
    most : int
        How many to keep.

    Examples
    --------
    >>> mistakes = SurestMistakes(1)
    >>> for sure in (0.6, 0.9, 0.7):
    ...     mistakes.offer(Answered("a/1.jpg", "a", "b", sure, 1), np.zeros((3, 8, 8), np.uint8))
    >>> [(answer.probability, pixels.shape) for answer, pixels in mistakes.found]
    [(0.9, (3, 8, 8))]
    """

    def __init__(self, most: int = 24) -> None:
        self.most = most
        self._heap: list[tuple[float, int, Answered, NDArray[np.uint8]]] = []
        self._offered = 0

    def offer(self, answer: Answered, pixels: NDArray[np.uint8]) -> None:
        """Look at an answer, and keep a copy of its photo's pixels, shape ``(3, side, side)``, if it is a sure mistake."""
        if not answer.wrong:
            return
        self._offered += (
            1  # no two are equal, so answers and pixels are never compared; of equally sure ones the first stays
        )
        if len(self._heap) < self.most or answer.probability > self._heap[0][0]:
            heapq.heappush(self._heap, (answer.probability, -self._offered, answer, pixels.copy()))
            if len(self._heap) > self.most:
                heapq.heappop(self._heap)

    @property
    def found(self) -> list[tuple[Answered, NDArray[np.uint8]]]:
        """What is kept, the surest first."""
        return [(answer, pixels) for *_, answer, pixels in sorted(self._heap, key=lambda kept: (-kept[0], -kept[1]))]


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """A small JPEG of pixels of shape ``(3, side, side)``, as the address of an image; nothing else of a file is in it.

    Examples
    --------
    >>> data_uri(np.zeros((3, 8, 8), np.uint8))[:23]
    'data:image/jpeg;base64,'
    """
    image = pillow().fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    image.thumbnail((_SIDE, _SIDE))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_QUALITY)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
