"""Cells in processes: each once, whatever happens to the processes, and with one owner."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cldnet.bench.cell import Cell, file_names
from cldnet.bench.results import read_folder
from cldnet.bench.run import RunSpec
from cldnet.bench.workers import Claims, Event, execute, run_job

CELLS = [
    Cell("split-digits,until=2", RunSpec("exact", seed=seed, threads=1, backbone_options={"features": 30}))
    for seed in (0, 1, 2)
]


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cldnet.bench.workers._RETRY", 0.1)


def of_kind(events: list[Event], kind: str) -> list[Event]:
    return [event for event in events if event.kind == kind]


def test_cells_in_processes_give_the_same_as_in_this_one_and_are_not_run_again(tmp_path: Path) -> None:
    events: list[Event] = []
    outcome = execute(CELLS, tmp_path / "apart", jobs=2, on_event=events.append)
    assert outcome.failures == {}
    assert sorted(event.number for event in of_kind(events, "finished") if event.ran) == [0, 1, 2]
    assert {event.number for event in of_kind(events, "started")} == {0, 1, 2}
    assert any(0 < event.share < 1 for event in of_kind(events, "progress"))
    (tmp_path / "here").mkdir()
    for cell, path in zip(CELLS, outcome.files, strict=True):
        assert path is not None
        here = tmp_path / "here" / path.name
        assert run_job(cell, here, None) == ("finished", True)
        assert json.loads(here.read_text())["matrix"] == json.loads(path.read_text())["matrix"]
    events.clear()
    written = [path.stat().st_mtime_ns for path in outcome.files if path is not None]
    assert execute(CELLS, tmp_path / "apart", jobs=2, on_event=events.append).files == outcome.files
    assert [event.ran for event in of_kind(events, "finished")] == [False] * 3
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
    assert [event.retry for event in of_kind(events, "failed")] == [False, False]  # it would fail in the same way again
    (reason,) = (tmp_path / ".bench" / "failures").iterdir()
    assert "lr=-1" in reason.read_text()
    assert read_folder(tmp_path).results[0]["method"] == "exact"


def kill_worker() -> None:
    for process in multiprocessing.active_children():
        os.kill(process.pid or 0, signal.SIGKILL)


def test_a_killed_process_is_replaced_and_its_cell_run_again_with_the_reason_said(tmp_path: Path) -> None:
    events: list[Event] = []

    def kill_the_first(event: Event) -> None:
        events.append(event)
        if event.kind == "started" and len(of_kind(events, "started")) == 1:
            kill_worker()

    outcome = execute(CELLS[:1], tmp_path, jobs=1, on_event=kill_the_first)
    assert outcome.failures == {}
    (failed,) = of_kind(events, "failed")
    assert failed.retry
    assert "SIGKILL" in failed.text
    assert outcome.files[0] is not None


def test_a_process_that_dies_every_time_is_given_up(tmp_path: Path) -> None:
    def kill_all(event: Event) -> None:
        if event.kind == "started":
            kill_worker()

    outcome = execute(CELLS[:1], tmp_path, jobs=1, retries=1, on_event=kill_all)
    assert "SIGKILL" in outcome.failures[0]
    assert outcome.files == [None]
    assert list(tmp_path.glob("*.json")) == []


def test_a_cell_that_another_process_is_running_is_waited_for(tmp_path: Path) -> None:
    name = str(file_names(CELLS)[0])
    events: list[Event] = []
    with Claims(tmp_path / ".bench" / "claims") as claims:
        assert claims.acquire(Path(name).stem)

        def on_event(event: Event) -> None:
            events.append(event)
            if event.kind == "elsewhere":  # the other one finishes
                run_job(CELLS[0], tmp_path / name, None)
                claims.release(Path(name).stem)

        outcome = execute(CELLS[:1], tmp_path, jobs=2, on_event=on_event)
    assert outcome.files == [tmp_path / name]
    assert [event.ran for event in of_kind(events, "finished")] == [False]
    (elsewhere,) = of_kind(events, "elsewhere")
    assert elsewhere.text.startswith(f"process {os.getpid()} on ")


def test_stopping_ends_the_processes_and_gives_their_claims_back(tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        if event.kind == "started":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        execute(CELLS, tmp_path, jobs=1, on_event=stop)
    assert list((tmp_path / ".bench" / "claims").iterdir()) == []
    assert list(tmp_path.glob("*.json")) == []
    assert multiprocessing.active_children() == []


def test_a_result_that_another_machine_wrote_meanwhile_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"

    def finished_by_another(*_: object) -> dict[str, object]:
        path.write_text("the other one's")
        return {}

    monkeypatch.setattr("cldnet.bench.workers.run_cell", finished_by_another)
    assert run_job(CELLS[0], path, None) == ("finished", False)
    assert path.read_text() == "the other one's"


def test_a_method_that_breaks_leaves_its_traceback_until_it_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_method.py").write_text(
        "from cldnet.methods.finetune import Finetune\n"
        "class Broken(Finetune):\n"
        "    def observe(self, batch):\n"
        "        return {}['nothing']\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    cell, folder = Cell("split-digits,until=1", RunSpec("broken_method:Broken")), tmp_path / "out"
    outcome = execute([cell], folder, jobs=1)
    (trace,) = (folder / ".bench" / "failures").glob("*.trace")
    assert outcome.failures == {0: f"KeyError: 'nothing' (traceback in {trace})"}
    assert "return {}['nothing']" in trace.read_text()
    (folder / f"{trace.stem}.json").write_text("{}")
    execute([cell], folder, jobs=1)
    assert list((folder / ".bench" / "failures").iterdir()) == []


def test_failures_that_cannot_be_written_down_stop_nothing(tmp_path: Path) -> None:
    (tmp_path / ".bench").mkdir()
    (tmp_path / ".bench" / "failures").write_text("no folder can be made here")
    wrong = Cell("split-digits,until=2", RunSpec("finetune", options={"lr": -1}))
    outcome = execute([wrong, CELLS[0]], tmp_path, jobs=1)
    assert "lr=-1" in outcome.failures[0]
    assert outcome.files[1] is not None


def test_a_claim_is_held_by_one_and_given_back(tmp_path: Path) -> None:
    with Claims(tmp_path) as mine, Claims(tmp_path) as others:
        assert mine.acquire("cell")
        assert not mine.acquire("cell")
        assert not others.acquire("cell")
        assert others.acquire("another")
        assert others.owner("cell").startswith(f"process {os.getpid()} on ")
        mine.release("cell")
        assert others.acquire("cell")
    assert list(tmp_path.iterdir()) == []


def eight_at_once(folder: Path, stale: float) -> int:
    """How many of eight that claim a cell at the same moments get it."""
    barrier = threading.Barrier(8)
    acquired: list[bool] = []

    def try_it() -> None:
        with Claims(folder, stale) as claims:
            barrier.wait()
            first = claims.acquire("cell")
            barrier.wait()
            time.sleep(2 * stale)
            barrier.wait()
            acquired.append(first or claims.acquire("cell"))
            barrier.wait()

    threads = [threading.Thread(target=try_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(acquired)


def test_many_at_once_make_one_claim(tmp_path: Path) -> None:
    assert eight_at_once(tmp_path, 0.0) == 1
    assert list(tmp_path.iterdir()) == []


def foreign(folder: Path) -> Path:
    """A claim of another machine."""
    claim = folder / "cell.0"
    claim.write_text(json.dumps({"host": "elsewhere", "where": "elsewhere/1", "process": "1", "born": "1"}))
    return claim


def test_many_at_once_follow_a_stale_claim_with_one(tmp_path: Path) -> None:
    foreign(tmp_path)
    assert eight_at_once(tmp_path, 0.1) == 1
    assert list(tmp_path.iterdir()) == []


def test_another_machines_claim_holds_as_long_as_it_is_touched(tmp_path: Path) -> None:
    claim = foreign(tmp_path)
    with Claims(tmp_path, stale=0.2) as claims:
        assert claims.owner("cell") == "process 1 on elsewhere"
        for stamp in range(4):
            os.utime(claim, (stamp, stamp))  # whatever its clock says
            assert not claims.acquire("cell")
            time.sleep(0.1)
        time.sleep(0.2)
        assert claims.acquire("cell")


def test_whoever_slept_too_long_leaves_the_claim_of_its_follower_alone(tmp_path: Path) -> None:
    with Claims(tmp_path, heartbeat=1000) as sleeper:
        assert sleeper.acquire("cell")
        (tmp_path / "cell.1").write_text("the follower's")
    assert [path.name for path in tmp_path.iterdir()] == ["cell.1"]


def test_a_claim_is_touched_again_and_again(tmp_path: Path) -> None:
    with Claims(tmp_path, heartbeat=0.05) as claims:
        assert claims.acquire("cell")
        os.utime(tmp_path / "cell.0", (0, 0))
        time.sleep(0.5)
        assert (tmp_path / "cell.0").stat().st_mtime > 0


def hold_for_ever(folder: Path, pipe: Any) -> None:
    with Claims(folder) as claims:
        pipe.send(claims.acquire("cell"))
        time.sleep(1000)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells whether a process is the same one")
def test_the_claim_of_a_killed_process_of_this_machine_is_free_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=hold_for_ever, args=(tmp_path, theirs))
    process.start()
    assert ours.recv()
    with Claims(tmp_path) as claims:
        assert not claims.acquire("cell")
        process.kill()
        process.join()
        assert claims.acquire("cell")
