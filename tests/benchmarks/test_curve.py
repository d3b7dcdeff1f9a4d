"""Accuracy against features: runs are averaged, a folder becomes a table and a picture."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import curve


def result(filters: int, accuracy: float, stream: str = "split-a", **changes: Any) -> dict[str, Any]:
    return {
        "backbone": "patches",
        "stream": {"name": stream},
        "scores": {"average_accuracy": accuracy},
        "config": {"backbone_options": {"filters": filters, "windows": 3}},
        "seconds": {"total": 10.0 * filters},
        "peak_rss": 1e9,
        "bytes": {"sums": 4_000_000, "feature map": 1_000_000},
        **changes,
    }


def test_runs_are_averaged_by_stream_and_filters() -> None:
    runs = [result(20, 0.8), result(10, 0.5), result(10, 0.7), result(10, 0.1, "split-b")]
    found = curve.points([*runs, result(10, 0.9, backbone="mlp")])
    assert [(p.stream, p.filters, p.features, round(p.accuracy, 6)) for p in found] == [
        ("split-a", 10, 181, 0.6),
        ("split-a", 20, 361, 0.8),
        ("split-b", 10, 181, 0.1),
    ]
    rows = curve.table(found).splitlines()
    assert rows[2] == "| split-a | 10 | 181 | 60.00 ± 14.14 | 2 | 100 | 1.0 GB | 5 MB |"
    assert rows[3] == "| split-a | 20 | 361 | 80.00 | 1 | 200 | 1.0 GB | 5 MB |"


def test_a_folder_becomes_a_table_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for filters in (10, 20):
        (tmp_path / f"{filters}.json").write_text(json.dumps(result(filters, 0.5)))
    picture = tmp_path / "docs" / "curve.png"
    monkeypatch.setattr(sys, "argv", ["curve", str(tmp_path), "--out", str(picture)])
    curve.main()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "| split-a | 20 |" in capsys.readouterr().out


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    for found in ([], curve.points([result(10, 0.5), result(10, 0.6)])):  # a point is no curve
        with pytest.raises(ValueError, match="no results over whitened patches with several"):
            curve.draw_curves(found, tmp_path / "curve.png")
