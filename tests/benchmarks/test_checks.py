"""The table of external checks: which results are ours, and what is said of them."""

from __future__ import annotations

import json
import runpy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from benchmarks.checks import CHECKS, FROM_MEMORY, Check, main, read_checks, table

from cldnet.bench.published import read_published

ROOT = Path(__file__).parents[2]
ENTRY = """
[[checks]]
title = "OWM"
setting = "Digits."
mean = 90.0
std = %s
source = "Somebody, Table 1"
verified = %s
method = "owm"
folder = "digits"
stream = "split-digits"
label = "small"
differs = "A self-made net."
"""


def check(std: float = 0.5, verified: str = "true") -> Check:
    [found] = read_checks(ENTRY % (std, verified))
    return found


def write(folder: Path, seed: int, accuracy: float, **changes: Any) -> None:
    """Write a result like one of the demo, as a bench would leave it."""
    result = json.loads(next((ROOT / "docs" / "demo").glob("*_owm_seed0_*")).read_text())
    result["scores"]["average_accuracy"] = accuracy
    result |= {"seed": seed, "label": "OWM, small"} | changes
    folder.mkdir(exist_ok=True)
    (folder / f"{len(list(folder.iterdir()))}.json").write_text(json.dumps(result))


@pytest.mark.parametrize(
    ("ours", "std", "verdict"),
    [
        ((92.0, 91.9), 0.5, "agrees"),
        ((88.0,), 0.5, "agrees"),
        ((87.0, 88.8), 0.5, "differs by −2.10 points. A self-made net."),
        ((93.0,), 0.5, "differs by +3.00 points. A self-made net."),
        ((93.0,), 1.5, "agrees"),
        ((93.1,), 1.5, "differs by +3.10 points. A self-made net."),
        ((), 0.5, "not run"),
    ],
)
def test_figures_agree_within_two_points_or_two_published_deviations(
    ours: Sequence[float], std: float, verdict: str
) -> None:
    assert check(std).verdict(ours) == verdict


def test_a_figure_from_memory_gives_no_verdict() -> None:
    assert check(verified="false").verdict([90.0]) == FROM_MEMORY
    assert check(verified="false").verdict([]) == "not run"


def test_ours_are_the_runs_of_that_method_configuration_and_stream(tmp_path: Path) -> None:
    digits = tmp_path / "digits"
    write(digits, 1, 0.8)
    write(digits, 0, 0.9)
    write(digits, 2, 0.1, method="aop")
    write(digits, 3, 0.1, label="OWM, not so small")
    [other] = [json.loads(path.read_text())["stream"] for path in digits.glob("0.json")]
    write(digits, 4, 0.1, stream=other | {"name": "split-mnist"})
    assert check().accuracies(tmp_path) == [90.0, 80.0]
    assert check().accuracies(tmp_path / "nowhere") == []


def test_the_table_has_what_was_published_what_is_ours_and_the_sources(tmp_path: Path) -> None:
    write(tmp_path / "digits", 0, 0.9)
    write(tmp_path / "digits", 1, 0.92)
    title, body = table([check()], tmp_path).split("\n\n", 1)
    assert title == "**External checks**"
    assert "| OWM | Digits | 90.0 ± 0.5 \\[1\\] | 91.00 ± 1.41 (2 seeds) | agrees |" in body
    assert "1. Somebody, Table 1" in body
    write(tmp_path / "one", 0, 0.9)
    alone = check().model_copy(update={"folder": "one"})
    assert "| 90.00 (1 seed) | agrees |" in table([alone], tmp_path)


def test_the_epoch_that_test_data_would_choose_is_shown_apart_and_gives_no_verdict(tmp_path: Path) -> None:
    write(tmp_path / "digits", 0, 0.8, diagnostics={"leaky": {"best_epoch": 0.9}})
    shown = table([check().model_copy(update={"best_epoch": True})], tmp_path)
    assert "| 80.00 (1 seed); best epoch on test data: 90.00 | differs by −10.00 points." in shown


def test_every_check_of_the_file_is_there_once_and_fits_the_published_figures() -> None:
    checks = read_checks(CHECKS.read_text("utf-8"))
    assert len({(one.method, one.folder, one.stream, one.label) for one in checks}) == len(checks) == 23
    assert {one.folder for one in checks if not one.verified} == {"r11", "ocm-mnist"}
    figures = read_published((ROOT / "src/cldnet/bench/published.toml").read_text("utf-8"))
    [aop] = [one for one in checks if one.title == "AOP"]
    assert (aop.mean, aop.std) in [(f.mean, f.std) for f in figures if (f.stream, f.method) == ("split-mnist", "aop")]


def test_the_command_prints_the_table_and_the_docs_know_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["table", str(tmp_path)]) == 0
    assert capsys.readouterr().out.count("| not run | not run |") == 23
    assert main(["tabel"]) == 2
    block = runpy.run_path(str(ROOT / "docs" / "tables.py"))["BLOCK"]
    for command in ("python -m benchmarks.checks table results/checks", "python -m benchmarks.speed table a.json"):
        assert block.search(f"<!-- {command} -->\nold\n<!-- end -->")[2] == command
