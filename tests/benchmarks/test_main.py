from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.speed import __main__ as command
from benchmarks.speed import run
from benchmarks.speed.record import NotRun
from benchmarks.speed.result import Found, write

Make = Callable[..., Any]


class Parts:
    """Made-up parts: each finds one ratio; counts how often each was run, and stops where it is told to."""

    def __init__(self, a_finding: Make) -> None:
        self.runs: list[str] = []
        self.stop: str | None = None
        self.slowness = 1.0
        self.a_finding = a_finding

    def load(self, part: str, data: Path | None, quick: bool) -> Callable[[], Iterator[Found]]:
        def measure() -> Iterator[Found]:
            self.runs.append(part)
            yield self.a_finding(f"{part}/first", self.slowness, target=1.5)
            if part == self.stop:
                raise KeyboardInterrupt
            yield NotRun(f"{part}/peer", "beside a peer", "it is not installed")

        return measure


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, a_finding: Make) -> Parts:
    made = Parts(a_finding)
    monkeypatch.setattr(run, "load", made.load)
    rates = {"sgemm": {"median": 1e11, "low": 9e10, "high": 1.1e11}}
    monkeypatch.setattr(run, "machine_limits", lambda quick: {"1": rates})
    monkeypatch.chdir(tmp_path)  # nothing of the project is replaced
    return made


def test_a_whole_run_writes_the_file_and_the_page_and_says_each_finding(
    parts: Parts, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main([]) == 0
    assert parts.runs == list(run.PARTS)
    raw = json.loads(command.OUT.read_text())
    assert raw["complete"]
    assert [one["name"] for one in raw["findings"]] == [f"{part}/first" for part in run.PARTS]
    assert "steps/first" in (shown := capsys.readouterr().out)
    assert "1.00 (0.990–1.01)" in shown
    assert "✓" in shown
    assert "not run: it is not installed" in shown
    assert "8 of 8 targets are met" in shown
    assert "the title of steps/first" in command.PAGE.read_text()


def test_a_stopped_run_loses_nothing_and_goes_on(parts: Parts, capsys: pytest.CaptureFixture[str]) -> None:
    parts.stop = "peers"
    assert command.main([]) == 130
    assert not command.OUT.exists()
    raw = json.loads(Path(f"{command.OUT}.part").read_text())
    assert not raw["complete"]
    assert "peers/first" in {one["name"] for one in raw["findings"]}
    assert "4 of 8 parts are done" in capsys.readouterr().out
    parts.stop, parts.runs = None, []
    assert command.main([]) == 0
    assert parts.runs == ["peers", "growth", "memory", "startup"]
    assert len(json.loads(command.OUT.read_text())["findings"]) == 8
    assert list(command.OUT.parent.iterdir()) == [command.OUT]


def test_other_settings_begin_anew(parts: Parts) -> None:
    parts.stop = "parts"
    assert command.main(["steps", "parts"]) == 130
    parts.stop, parts.runs = None, []
    assert command.main(["steps", "parts", "--quick"]) == 0
    assert parts.runs == ["steps", "parts"]


def test_a_partial_or_quick_run_does_not_replace_the_whole_one(parts: Parts) -> None:
    command.main([])
    before = command.OUT.read_bytes(), command.PAGE.read_bytes()
    command.main(["startup", "steps"])
    assert parts.runs[-2:] == ["steps", "startup"]
    command.main(["--quick"])
    assert (command.OUT.read_bytes(), command.PAGE.read_bytes()) == before
    assert (command.ELSEWHERE / "speed.json").exists()


def test_a_run_is_compared_with_an_earlier_one_even_in_its_place(
    parts: Parts, capsys: pytest.CaptureFixture[str]
) -> None:
    command.main([])
    assert command.main(["--against", str(command.OUT)]) == 0
    parts.slowness = 1.4
    assert command.main(["--against", str(command.OUT)]) == 1
    assert "worse  memory/first" in capsys.readouterr().out


def test_two_files_are_compared(
    parts: Parts, a_result: Make, a_finding: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, ratio in (("old", 1.0), ("new", 2.0)):
        write(a_result(a_finding("a", ratio)), Path(f"{name}.json"))
    assert command.main(["compare", "old.json", "new.json"]) == 1
    assert "+100%" in capsys.readouterr().out
    assert command.main(["compare", "new.json", "old.json"]) == 0
    assert command.main(["compare", "none.json", "old.json"]) == 2
    assert "none.json cannot be read" in capsys.readouterr().err


def test_an_unknown_part_is_refused_and_the_known_ones_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["stairs"])
    assert "there is no part 'stairs'; there are steps, before, parts" in capsys.readouterr().err


@pytest.mark.parametrize(("part", "told"), [("peers", (Path("data"), True)), ("growth", (True,))])
def test_parts_are_told_what_they_need(monkeypatch: pytest.MonkeyPatch, part: str, told: tuple[object, ...]) -> None:
    module = SimpleNamespace(measure=lambda *arguments: iter([arguments]))
    monkeypatch.setitem(sys.modules, f"benchmarks.speed.{part}", module)
    assert list(run.load(part, Path("data"), quick=True)()) == [told]


def test_a_part_that_cannot_be_imported_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(run.PARTS, "nothing_of_this_name", "made up")
    with pytest.raises(ImportError):
        run.load("nothing_of_this_name", None, quick=True)


def test_the_table_of_the_docs_follows_the_file(
    parts: Parts, a_result: Make, a_finding: Make, a_curve: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["table", "speed.json"]) == 0
    assert "Nothing has been measured yet" in capsys.readouterr().out
    met, missed = a_finding("a", 1.0, target=1.5, title="a | b <i>"), a_finding("b", 2.0, target=1.5)
    write(a_result(met, missed, a_curve("g", 1.0, expected=1)), Path("speed.json"))
    assert command.main(["table", "speed.json"]) == 0
    shown = capsys.readouterr().out
    assert "1 of 2 targets are met" in shown
    assert "| a \\| b &lt;i> | 1 | 1.00 (0.990–1.01) | 1.10 (1.09–1.11) | ≤ 1.5 | ✓ met |" in shown
    assert "| ≤ 1.5 | **✗ not met** |" in shown
    assert "| 1.00 | 1 |" in shown
    assert "(speed/growth-growth.svg)" in shown
