"""The benchmark of shards: parts in their smallest form, and what the tables say of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks.cluster.table import table

from benchmarks import distributed

pytest.importorskip("pyarrow")
SMALL = {
    "equal": ["--samples", "120", "--features", "30", "--orders", "1"],
    "kill": ["--rows", "4000", "--features", "30"],
    "speed": ["--rows", "2000", "--columns", "20", "--features", "60", "--shards", "4", "--repeats", "1"],
    "stream": [
        "--rows",
        "60000",
        "--columns",
        "5",
        "--features",
        "30",
        "--chunk",
        "5000",
        "--fewer",
        "20000",
        "--repeats",
        "1",
    ],
    "scale": ["--features", "100"],
}


def measured(part: str, out: Path) -> Any:
    assert distributed.main([part, "--out", str(out), *SMALL[part]]) == 0
    return json.loads(out.read_text())[part]


def test_a_stream_is_measured_and_shown(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    found = measured("stream", out)
    assert found["learned"] == 60_000
    assert found["memory"][0]["chunks"] == 10
    tenth, end = found["memory"][0]["bytes"], found["memory"][-1]["bytes"]
    assert found["growth"] == pytest.approx(end / tenth - 1)
    rates = {size: each[0] for size, each in found["chunks"]["rates"].items()}
    assert found["ratio"] == pytest.approx(rates["1000"] / rates["5000"])
    assert "60,000 rows of 5 columns from Parquet" in table(out)
    assert "kill: not run" in table(out)


def test_the_projection_follows_the_formula(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    section = measured("scale", out)
    assert section["measured"][0]["features"] == 100
    each = {
        "features": 9,
        "rows_per_cpu_second": 1e4,
        "bytes": 1.25e9,
        "seconds": {"pickle": 0.0, "add": 0.5, "solve": 30.0},
    }
    out.write_text(json.dumps({"scale": section | {"measured": [each]}}))
    # 10⁹ / (64 · 10⁴) s, then 6 · (1 + 0.5) s, then 30 s
    assert "| 9 | 64 | 26.0 min | 9.0 s | 30.0 s | 26.7 min |" in table(out, "projection")


@pytest.mark.slow
def test_every_engine_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    pytest.importorskip("ray")
    out = tmp_path / "found.json"
    runs = measured("equal", out)["runs"]
    assert len(runs) == 3 * 2 * 3 + 2
    assert all(run[what] for run in runs for what in ("sums", "predictions", "scores"))
    killed = measured("kill", out)
    assert all(each == {"killed": True, "sums": True} for each in killed["workers"].values())
    assert killed["driver"]["sums"]
    assert killed["twice"]["unchanged"]
    assert "learned before" in killed["twice"]["refused"]
    speed = measured("speed", out)
    assert {*speed["ratios"]} == {"local", "dask", "ray"}
    assert "2,000 rows of 20 uint8 columns" in table(out)
