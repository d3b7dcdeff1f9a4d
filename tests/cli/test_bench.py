"""``cldnet bench`` as a person sees it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cldnet.bench.cell import stream_hash
from cldnet.bench.results import read_folder
from cldnet.bench.workers import Event
from cldnet.cli import app

runner = CliRunner()
SPEC = """
title = "Two digits"
streams = ["split-digits,until=2"]
methods = ["exact", "finetune"]
seeds = [0, 1]
[run]
epochs = 1
[[configurations]]
name = "small"
methods = ["exact"]
backbone_options = { features = 40 }
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "two.toml"
    path.write_text(SPEC)
    return path


def bench(spec: Path, *more: str) -> str:
    answer = runner.invoke(app, ["bench", str(spec), "--out", str(spec.parent / "out"), *more], env={"COLUMNS": "140"})
    assert answer.exit_code == 0, answer.output
    return " ".join(answer.output.split())


def test_a_bench_runs_once_and_tells_what_is_left(spec: Path) -> None:
    before = bench(spec, "--dry-run")
    assert "0 of 4 cells" in before
    assert "4 would run, 1 at a time" in bench(spec, "--dry-run", "--jobs", "1")
    assert "duration unknown" in before
    assert not (spec.parent / "out").exists()
    part = bench(spec, "--only", "exact", "--only", "*/finetune/seed1", "--jobs", "1")
    assert "3 cells, 0 of them finished" in part
    assert "CLDNet (exact), small" in part
    then = bench(spec, "--dry-run", "--jobs", "1")
    assert re.search(r"split-digits,until=2/finetune/seed0: (under 1|\d+) s", then)
    assert "3 of 4 cells are in" in then
    all_of_it = bench(spec, "--jobs", "1")
    assert "4 cells, 3 of them finished" in all_of_it
    assert "Fine-tuning, split-digits,until=2, seed 0:" in all_of_it
    assert "seed 1:" not in all_of_it  # not run again
    plan = json.loads((spec.parent / "out" / "plan.json").read_text())
    assert {cell["file"] for cell in plan["cells"]} == {p.name for p in (spec.parent / "out").glob("split*.json")}


def test_failures_are_told_and_the_command_fails(spec: Path) -> None:
    spec.write_text(
        SPEC.replace('"finetune"]', '"finetune", "ewc"]')
        + "[[configurations]]\nname = 'wrong'\nmethods = ['ewc']\nbackbone_options = { widths = [-1] }\n"
    )
    answer = runner.invoke(app, ["bench", str(spec), "--out", str(spec.parent / "out"), "--jobs", "1"])
    assert answer.exit_code == 1
    shown = " ".join(answer.output.split())
    assert "EWC, wrong/seed0 was not run: RuntimeError:" in shown
    assert "not run" in shown
    assert len(list((spec.parent / "out").glob("split*.json"))) == 4


def test_cells_whose_data_are_missing_are_planned_and_told(spec: Path, small_data: Path) -> None:
    spec.write_text(SPEC.replace("split-digits,until=2", "arrays:/no/such/file.npz"))
    assert "cannot run:" in bench(spec, "--dry-run")
    answer = runner.invoke(app, ["bench", str(spec), "--out", str(spec.parent / "out")])
    assert answer.exit_code == 1
    plan = json.loads((spec.parent / "out" / "plan.json").read_text())
    assert {cell["file"] for cell in plan["cells"]} == {None}
    assert "/no/such/file.npz" in plan["cells"][0]["why"]


def test_an_unknown_cell_is_refused(spec: Path) -> None:
    answer = runner.invoke(app, ["bench", str(spec), "--only", "owm"])
    assert "--only 'owm' matches no cell; cells are named like 'split-digits,until=2/" in str(answer.exception)


def test_stopping_says_what_is_kept(spec: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(*_: object, on_event: object, **__: object) -> None:
        on_event(Event("started", 0))  # type: ignore[operator]
        raise KeyboardInterrupt

    monkeypatch.setattr("cldnet.bench.workers.execute", stopped)
    answer = runner.invoke(app, ["bench", str(spec), "--out", str(spec.parent / "out")])
    assert answer.exit_code == 130
    assert "Stopped. 0 of 4 cells are in" in " ".join(answer.output.split())


def test_cells_of_other_code_are_told_of(spec: Path) -> None:
    bench(spec, "--only", "finetune", "--jobs", "1")
    for path in (spec.parent / "out").glob("split*.json"):
        result = json.loads(path.read_text())
        path.write_text(json.dumps({**result, "code": "other"}))
    assert "2 finished cells of finetune were made by other code of the same version" in bench(
        spec, "--only", "finetune"
    )


def test_two_benches_on_one_folder_share_the_cells_and_make_each_once(spec: Path) -> None:
    out = spec.parent / "out"
    command = [
        sys.executable,
        "-c",
        "from cldnet.cli import main; main()",
        "bench",
        str(spec),
        "--out",
        str(out),
        "--jobs",
        "1",
    ]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    ran = [line.split(": ")[0] for text in told for line in text.splitlines() if "% in " in line]
    assert len(ran) == 4
    assert len(set(ran)) == 4  # no cell was run by both
    assert len(list(out.glob("split*.json"))) == 4
    assert list((out / ".bench" / "claims").iterdir()) == []


def test_what_was_finished_where_the_data_are_stays_in_the_plan_where_they_are_not(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    np.savez(tmp_path / "toy.npz", X=generator.normal(size=(80, 5)), y=np.arange(80) % 4)
    spec = tmp_path / "toy.toml"
    spec.write_text(f'streams = ["arrays:{tmp_path}/toy.npz"]\nmethods = ["exact"]\nseeds = [0]')
    bench(spec, "--jobs", "1")
    (tmp_path / "toy.npz").rename(tmp_path / "elsewhere.npz")
    stream_hash.cache_clear()  # another process would not remember it
    assert "1 cell, 1 of them finished" in bench(spec, "--jobs", "1")
    found = read_folder(tmp_path / "out")
    assert [result["file"] for result in found.results] == [found.planned[0].file]
    assert found.ignored == []


def test_settings_that_no_stream_could_run_are_refused_before_anything_runs(spec: Path) -> None:
    for old, new, answer in (
        ("features = 40", "feature = 40", "The backbone random-relu has no option 'feature'"),
        ("epochs = 1", "epochs = 1\noptions = { lr = 0.1 }", "Method 'exact' does not take lr"),
        ("epochs = 1", 'epochs = 1\naugment = "crpo=4"', "crpo"),
        ("epochs = 1", 'epochs = 1\nnormalise = "imgnet"', "normalise='imgnet' should be"),
    ):
        spec.write_text(SPEC.replace(old, new, 1))
        said = runner.invoke(app, ["bench", str(spec), "--out", str(spec.parent / "out")])
        assert answer in str(said.exception)
        assert not (spec.parent / "out").exists()
