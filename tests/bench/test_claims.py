"""One cell, one owner, whoever else is at it."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from cldnet.bench.claims import Claims


def test_a_claim_is_held_by_one_and_given_back(tmp_path: Path) -> None:
    claims = Claims(tmp_path / "claims")
    with claims.hold("cell") as mine:
        assert mine
        with claims.hold("cell") as other, claims.hold("another") as free:
            assert (other, free) == (False, True)
        assert claims.owner("cell") is not None
        assert str(os.getpid()) in str(claims.owner("cell"))
    assert list((tmp_path / "claims").iterdir()) == []
    assert claims.owner("cell") is None


def test_a_claim_is_given_back_when_the_cell_fails(tmp_path: Path) -> None:
    claims = Claims(tmp_path)
    with pytest.raises(KeyboardInterrupt), claims.hold("cell"):
        raise KeyboardInterrupt
    with claims.hold("cell") as mine:
        assert mine


def _eight_at_once(claims: Claims) -> list[bool]:
    """Who of eight that claim a cell at the same moment gets it."""
    start, stop = threading.Barrier(8), threading.Barrier(8)
    held: list[bool] = []

    def try_it() -> None:
        start.wait()
        with claims.hold("cell") as mine:
            held.append(mine)
            stop.wait()

    threads = [threading.Thread(target=try_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return held


def test_many_at_once_make_one_claim(tmp_path: Path) -> None:
    assert _eight_at_once(Claims(tmp_path)).count(True) == 1
    assert list(tmp_path.iterdir()) == []


def _foreign(folder: Path, age: float) -> Path:
    """A claim of another machine, whose last sign of life is so many seconds old."""
    claim = folder / "cell.0"
    claim.write_text(json.dumps({"host": "elsewhere", "where": "elsewhere/1", "process": "1", "born": "1"}))
    os.utime(claim, (time.time() - age,) * 2)
    return claim


def test_the_claim_of_another_machine_holds_for_a_minute_and_no_longer(tmp_path: Path) -> None:
    claims = Claims(tmp_path, doubt=0)
    _foreign(tmp_path, age=50)
    assert claims.owner("cell") == "process 1 on elsewhere"
    with claims.hold("cell") as mine:
        assert not mine
    _foreign(tmp_path, age=70)
    assert claims.owner("cell") is None
    with claims.hold("cell") as mine:
        assert mine


def test_many_at_once_follow_a_stale_claim_with_one(tmp_path: Path) -> None:
    _foreign(tmp_path, age=70)
    assert _eight_at_once(Claims(tmp_path, doubt=0.1)).count(True) == 1
    assert list(tmp_path.iterdir()) == []


def test_whoever_slept_too_long_leaves_the_claim_of_his_follower_alone(tmp_path: Path) -> None:
    claims = Claims(tmp_path, stale=0.05, beat=1000, doubt=0)  # no sign of life comes in time
    with claims.hold("cell") as sleeper:
        time.sleep(0.1)
        follower = claims.hold("cell")
        assert sleeper
        assert follower.__enter__()
    assert [path.name for path in tmp_path.iterdir()] == ["cell.1"]
    follower.__exit__(None, None, None)
    assert list(tmp_path.iterdir()) == []


def test_signs_of_life_keep_a_claim_fresh(tmp_path: Path) -> None:
    claims = Claims(tmp_path, stale=0.5, beat=0.05)
    with claims.hold("cell"):
        time.sleep(1.0)
        assert claims.owner("cell") is not None


def test_an_owner_that_wakes_up_in_time_keeps_its_claim(tmp_path: Path) -> None:
    claim = _foreign(tmp_path, age=70)
    waking = threading.Timer(0.2, os.utime, [claim])
    waking.start()
    with Claims(tmp_path, doubt=1.0).hold("cell") as mine:
        assert not mine
    waking.join()


def _hold_for_ever(folder: Path, pipe: Any) -> None:
    with Claims(folder).hold("cell"):
        pipe.send("held")
        time.sleep(1000)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux tells whether a process is the same one")
def test_the_claim_of_a_killed_process_of_this_machine_is_free_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_hold_for_ever, args=(tmp_path, theirs))
    process.start()
    assert ours.recv() == "held"
    claims = Claims(tmp_path)
    with claims.hold("cell") as mine:
        assert not mine
    process.kill()
    process.join()
    with claims.hold("cell") as mine:
        assert mine
