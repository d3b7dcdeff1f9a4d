"""Cells in processes: each once, whatever happens to the processes."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import pytest

from cldnet.bench.cell import Cell
from cldnet.bench.claims import Claims
from cldnet.bench.events import Began, Elsewhere, Event, Failed, Finished, Progressed
from cldnet.bench.results import read_folder
from cldnet.bench.run import RunSpec
from cldnet.bench.worker import Job, answer, perform
from cldnet.bench.workers import execute, file_names

CELLS = [
    Cell("split-digits,until=2", RunSpec("exact", seed=seed, backbone_options={"features": 30})) for seed in (0, 1, 2)
]


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cldnet.bench.workers._REST", 0.1)


def silently(message: object) -> None:
    """Take no notice."""


def test_cells_in_processes_give_what_they_give_in_this_one_and_are_not_run_again(tmp_path: Path) -> None:
    events: list[Event] = []
    outcome = execute(CELLS, tmp_path / "apart", jobs=2, on_event=events.append)
    assert outcome.failures == {}
    assert sorted(event.number for event in events if isinstance(event, Finished) and event.ran) == [0, 1, 2]
    assert {event.number for event in events if isinstance(event, Began)} == {0, 1, 2}
    assert any(isinstance(event, Progressed) and 0 < event.share < 1 for event in events)
    for cell, path in zip(CELLS, outcome.files, strict=True):
        assert path is not None
        here = tmp_path / "here" / path.name
        assert perform(Job(cell, here, threads=1, data=None), silently) == ("done", None)
        assert json.loads(here.read_text())["matrix"] == json.loads(path.read_text())["matrix"]
    events.clear()
    written = [path.stat().st_mtime_ns for path in outcome.files if path is not None]
    assert execute(CELLS, tmp_path / "apart", jobs=2, on_event=events.append).files == outcome.files
    assert [event.ran for event in events if isinstance(event, Finished)] == [False] * 3
    assert [path.stat().st_mtime_ns for path in outcome.files if path is not None] == written
    assert list((tmp_path / "apart" / ".bench" / "claims").iterdir()) == []


def test_a_cell_that_fails_says_why_and_the_others_go_on(tmp_path: Path) -> None:
    wrong = Cell("split-digits,until=2", RunSpec("finetune", options={"lr": -1}))
    missing = Cell("arrays:/nowhere/at/all.npz", RunSpec("exact"))
    events: list[Event] = []
    outcome = execute([wrong, missing, CELLS[0]], tmp_path, jobs=1, on_event=events.append)
    assert outcome.files[2] is not None
    assert "lr=-1 should be a positive number" in outcome.failures[0]
    assert "/nowhere/at/all.npz" in outcome.failures[1]
    failed = [event for event in events if isinstance(event, Failed)]
    assert [event.again for event in failed] == [False, False]  # it would fail alike again
    (reason,) = (tmp_path / ".bench" / "failures").iterdir()
    assert "lr=-1" in reason.read_text()
    assert read_folder(tmp_path).results[0]["method"] == "exact"


def test_a_killed_process_is_replaced_and_its_cell_run_again_with_the_reason_said(tmp_path: Path) -> None:
    killed: list[int] = []
    events: list[Event] = []

    def kill_the_first(event: Event) -> None:
        events.append(event)
        if isinstance(event, Began) and not killed:
            owner = Claims(tmp_path / ".bench" / "claims").owner(Path(str(file_names(CELLS)[event.number])).stem)
            killed.append(int(str(owner).split()[1]))
            os.kill(killed[0], signal.SIGKILL)

    outcome = execute(CELLS[:1], tmp_path, jobs=1, on_event=kill_the_first)
    assert outcome.failures == {}
    (failed,) = (event for event in events if isinstance(event, Failed))
    assert failed.again
    assert "SIGKILL" in failed.why
    assert outcome.files[0] is not None


def test_a_process_that_dies_every_time_is_given_up(tmp_path: Path) -> None:
    def kill_all(event: Event) -> None:
        if isinstance(event, Began):
            owner = Claims(tmp_path / ".bench" / "claims").owner(Path(str(file_names(CELLS)[event.number])).stem)
            os.kill(int(str(owner).split()[1]), signal.SIGKILL)

    outcome = execute(CELLS[:1], tmp_path, jobs=1, retries=1, on_event=kill_all)
    assert "SIGKILL" in outcome.failures[0]
    assert outcome.files == [None]
    assert list(tmp_path.glob("*.json")) == []


def test_a_cell_that_another_is_running_is_waited_for(tmp_path: Path) -> None:
    name = str(file_names(CELLS)[0])
    release = threading.Event()
    events: list[Event] = []

    def other() -> None:
        with Claims(tmp_path / ".bench" / "claims").hold(Path(name).stem):
            release.wait()
            perform(Job(CELLS[0], tmp_path / "elsewhere" / name, 1, None), silently)
            (tmp_path / "elsewhere" / name).rename(tmp_path / name)

    thread = threading.Thread(target=other)
    thread.start()

    def on_event(event: Event) -> None:
        events.append(event)
        if isinstance(event, Elsewhere):
            release.set()

    outcome = execute(CELLS[:1], tmp_path, jobs=2, on_event=on_event)
    thread.join()
    assert outcome.files == [tmp_path / name]
    assert [event.ran for event in events if isinstance(event, Finished)] == [False]
    assert len([event for event in events if isinstance(event, Elsewhere)]) == 1


def test_stopping_ends_the_processes_and_gives_their_claims_back(tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if isinstance(event, Began):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(CELLS, tmp_path, jobs=1, on_event=stop)
    assert list((tmp_path / ".bench" / "claims").iterdir()) == []
    assert list(tmp_path.glob("*.json")) == []


def test_what_killed_processes_left_half_written_is_swept_away(tmp_path: Path) -> None:
    claims = tmp_path / ".bench" / "claims"
    claims.mkdir(parents=True)
    old, fresh = (tmp_path / f".split_exact_seed{n}_ab.json.0123456789abcdef.tmp" for n in (0, 1))
    older, other = claims / ".34.draft", tmp_path / ".of another program.tmp"
    for path in (old, older, fresh, other):
        path.write_text("half")
    for path in (old, older, other):
        os.utime(path, (path.stat().st_mtime - 100,) * 2)
    execute([], tmp_path, jobs=1)
    assert [path.exists() for path in (old, older, fresh)] == [
        False,
        False,
        True,
    ]  # somebody may be writing the last one


def test_whoever_slept_while_another_ran_its_cell_leaves_the_result_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"

    def finished_by_another(*_: object) -> dict[str, object]:
        path.write_text("the other one's")
        return {}

    monkeypatch.setattr("cldnet.bench.worker.run_cell", finished_by_another)
    assert perform(Job(CELLS[0], path, 1, None), silently) == ("present", None)
    assert path.read_text() == "the other one's"


def test_a_method_that_breaks_leaves_its_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_method.py").write_text(
        "from cldnet.methods.finetune import Finetune\n"
        "class Broken(Finetune):\n"
        "    def observe(self, batch):\n"
        "        return {}['nothing']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    job = Job(Cell("split-digits,until=1", RunSpec("broken_method:Broken")), tmp_path / "a.json", 1, None)
    kind, (why, may_pass) = answer(job, silently)
    assert (kind, may_pass) == ("failed", False)
    assert why == f"KeyError: 'nothing' (traceback in {job.trace})"
    assert "return {}['nothing']" in job.trace.read_text()


def test_a_failure_that_cannot_be_written_down_does_not_stop_the_others(tmp_path: Path) -> None:
    (tmp_path / ".bench").mkdir()
    (tmp_path / ".bench" / "failures").write_text("no folder can be made here")
    wrong = Cell("split-digits,until=2", RunSpec("finetune", options={"lr": -1}))
    assert "lr=-1" in execute([wrong], tmp_path, jobs=1).failures[0]


def test_a_result_counts_even_where_an_older_traceback_cannot_be_removed(tmp_path: Path) -> None:
    (tmp_path / ".bench").mkdir()
    (tmp_path / ".bench" / "failures").write_text("not a folder")
    assert answer(Job(CELLS[0], tmp_path / "a.json", 1, None), silently) == ("done", None)
