"""What all tests share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_weights_every_time() -> None:
    """A user's module takes its first weights from torch's global generator; a test should meet the same ones each time."""
    torch.manual_seed(0)
