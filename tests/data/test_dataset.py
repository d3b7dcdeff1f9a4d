"""Digests of data, whatever file they came from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from cldnet.data.dataset import Dataset, Part

X = torch.arange(24, dtype=torch.uint8).reshape(4, 2, 3)
Y = np.array(["a", "b", "a", "b"])


def test_whatever_differs_shows_in_the_digest() -> None:
    changed = X.clone()
    changed[2, 1, 1] += 1
    parts = [
        Part(X, Y),
        Part(changed, Y),
        Part(X.reshape(4, 3, 2), Y),
        Part(X.view(torch.int8), Y),
        Part(X, np.array(["a", "b", "a", "c"])),
        Part(X[:2], Y[:2]),
    ]
    assert len({part.digest for part in parts}) == len(parts)
    assert len({Dataset("d", Part(X, Y)).digest, Dataset("d", Part(X, Y), Part(X, Y)).digest}) == 2


def test_how_values_lie_in_memory_does_not_matter() -> None:
    strided = torch.empty(4, 3, 2, dtype=torch.uint8).permute(0, 2, 1)
    strided.copy_(X)
    wide = Y.astype("<U9")
    assert Part(strided, wide).digest == Part(X, Y).digest


def test_inputs_and_labels_must_be_as_many() -> None:
    with pytest.raises(ValueError, match="4 samples and 3 labels"):
        Part(X, Y[:3])
