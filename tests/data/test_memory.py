"""Rows that fit into memory stay there; more than that is mapped from disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cldnet.data.dataset import gather, open_array
from cldnet.device import memory_limit


def no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CLDNET_MEMORY_SHARE", "0")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.float64])
def test_rows_are_the_same_in_memory_and_in_a_file(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    x = torch.randint(256, (1000, 3, 5)).to(dtype)
    index = torch.randperm(1000)[:700]
    resident = gather(x, index)
    no_memory(monkeypatch)
    mapped = gather(x, index)
    assert torch.equal(mapped, resident)
    assert torch.equal(resident, x[index])


def test_no_file_is_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    no_memory(monkeypatch)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    mapped = gather(torch.ones(10, 3), torch.arange(10))
    assert mapped.sum() == 30
    assert not list(tmp_path.iterdir())


def test_an_opened_array_is_read_or_mapped_and_its_file_never_changes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    values = np.arange(24, dtype=np.int16)
    path = tmp_path / "values"
    path.write_bytes(b"head" + values.tobytes())
    resident = open_array(path, 4, values.dtype, (4, 6))
    no_memory(monkeypatch)
    mapped = open_array(path, 4, values.dtype, (4, 6))
    assert torch.equal(mapped, resident)
    assert resident.flatten().tolist() == list(range(24))
    mapped[0] = 99
    assert path.read_bytes() == b"head" + values.tobytes()


def test_the_share_of_memory_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    quarter = memory_limit()
    monkeypatch.setenv("CLDNET_MEMORY_SHARE", "0.5")
    assert memory_limit() == pytest.approx(2 * quarter, abs=2)
    for wrong in ("2", "much", "-1"):
        monkeypatch.setenv("CLDNET_MEMORY_SHARE", wrong)
        with pytest.raises(ValueError, match=f"CLDNET_MEMORY_SHARE='{wrong}' should be a share of memory from 0 to 1"):
            memory_limit()
