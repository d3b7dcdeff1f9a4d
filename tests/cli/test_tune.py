"""``cldnet tune``, as a person sees it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cldnet.bench.cell import Cell, file_names, run_cell
from cldnet.bench.preset import load_presets
from cldnet.bench.run import RunSpec
from cldnet.bench.workers import Event, Outcome
from cldnet.cli import app

runner = CliRunner()


@cache
def a_result() -> dict[str, Any]:
    cell = Cell("split-digits,until=1", RunSpec("exact", backbone_options={"features": 20}))
    return run_cell(cell, cell.load())


class Made:
    """Writes made-up results: the higher the rate the better. It may fail, or be stopped in its third round."""

    def __init__(self, fails: bool = False, stopped: bool = False) -> None:
        self.fails, self.stopped, self.rounds = fails, stopped, 0

    def __call__(
        self, cells: Sequence[Cell], folder: Path, *, on_event: Callable[[Event], None], **others: Any
    ) -> Outcome:
        self.rounds += 1
        if self.stopped and self.rounds == 3:
            raise KeyboardInterrupt
        if self.fails:
            for number in range(len(cells)):
                on_event(Event("failed", number, text="It ran away."))
            return Outcome([None] * len(cells), dict.fromkeys(range(len(cells)), "It ran away."))
        paths: list[Path | None] = []
        for number, (cell, name) in enumerate(zip(cells, file_names(cells), strict=True)):
            path = folder / str(name)
            scores = {**a_result()["scores"], "average_accuracy": 0.5 + cell.spec.options.get("lr", 0.0)}
            path.write_text(json.dumps({**a_result(), "scores": scores}))
            on_event(Event("finished", number, path=path, ran=True))
            paths.append(path)
        return Outcome(paths)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def invoke(monkeypatch: pytest.MonkeyPatch, made: Made, *arguments: str) -> Any:
    monkeypatch.setattr("cldnet.bench.tune.execute", made)
    return runner.invoke(app, ["tune", "split-digits", *arguments], env={"COLUMNS": "120"})


def test_a_search_tells_of_every_trial_and_ends_with_a_table(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = invoke(monkeypatch, Made(), "--methods", "finetune", "--methods", "exact", "--trials", "12")
    assert answer.exit_code == 0, answer.output
    best = load_presets("split-digits", folder / "presets")["methods"]["finetune"]
    rate = best["options"]["lr"]
    assert "13 trials on split-digits,validation=0.2, 2 seeds each" in answer.output
    assert "finetune, trial 1 of 12: 55.00% with lr=0.05" in answer.output
    assert "exact, trial 1 of 1: 50.00% with its defaults" in answer.output
    assert f"{100 * best['validation']:.2f}%" in answer.output
    assert (
        f"finetune: lr={rate:g} is at the upper end of its range (0.003 to 0.3, logarithmic): widen it."
        in answer.output
    )
    assert "preset  presets/split-digits.toml" in answer.output
    assert len(json.loads((folder / "results/tune/split-digits/trials.json").read_text())["trials"]) == 13
    assert "\x1b" not in answer.output


def test_options_reach_the_search(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = "--methods ewc --trials 1 --seeds 3 --on first=2 --share 0.3 --of 0.5 --epochs 4 --batch-size 8 --jobs 3"
    answer = invoke(monkeypatch, Made(), *expected.split(), "--out", "o", "--presets", "p")
    assert answer.exit_code == 0, answer.output
    (trial,) = json.loads(Path("o/trials.json").read_text())["trials"]
    assert (trial["stream"], trial["of"], trial["seeds"]) == ("split-digits,validation=0.3,train=0.5,until=2", 0.5, [3])
    presets = load_presets("split-digits", Path("p"))
    assert presets["common"] == {"epochs": 4, "batch_size": 8}
    provenance = presets["methods"]["ewc"]["provenance"]
    assert provenance["command"] == f"cldnet tune split-digits {expected}"
    assert provenance["of"] == 0.5


def test_stopping_says_what_is_kept_and_the_same_command_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ["--methods", "finetune", "--methods", "ewc", "--trials", "4"]
    answer = invoke(monkeypatch, Made(stopped=True), *arguments)
    assert answer.exit_code == 130
    assert "Stopped. 4 trials are kept in results/tune/split-digits; run the same command to resume." in answer.output
    assert not (folder / "presets" / "split-digits.toml").exists()
    assert invoke(monkeypatch, Made(), *arguments).exit_code == 0


def test_a_method_whose_trials_all_fail_is_said_to_have_no_settings(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = invoke(monkeypatch, Made(fails=True), "--methods", "finetune", "--trials", "2")
    assert answer.exit_code == 1
    assert "finetune, trial 2 of 2: failed (seed 10: It ran away.; seed 11: It ran away.)" in answer.output
    assert "finetune has no settings" in answer.output
    assert not (folder / "presets" / "split-digits.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--on", "last=2"], "--on 'last=2' should be whole, or a number of first tasks such as first=2"),
        (["--on", "first=0"], "first=0 should be at least 1"),
        (["--share", "2"], "share=2.0 should be between 0 and 1"),
        (["--of", "1.5"], "of=1.5 should be more than 0 and at most 1"),
        (["--methods", "ewcc"], "Did you mean 'ewc'"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], complaint: str
) -> None:
    answer = invoke(monkeypatch, Made(), *arguments)
    assert isinstance(answer.exception, ValueError)
    assert complaint in str(answer.exception)
    assert list(folder.iterdir()) == []
