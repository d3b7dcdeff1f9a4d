from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cldnet.bench.results import FAILURES, PLAN, BenchPlan, Planned, read_folder, write_plan

MakeRun = Callable[..., dict[str, Any]]
ROOT = Path(__file__).parents[2]
SCORES = dict.fromkeys(("average_accuracy", "average_incremental_accuracy", "forgetting", "task_il_accuracy"), 0.5)


def write(folder: Path, name: str, content: object) -> None:
    (folder / name).write_text(json.dumps(content))


def test_without_a_plan_every_result_counts_and_other_files_do_not(tmp_path: Path, make_run: MakeRun) -> None:
    write(tmp_path, "b.json", make_run())
    write(tmp_path, "a.json", make_run())
    write(tmp_path, "settings.json", {"lr": 0.1})
    write(tmp_path, "list.json", [1, 2])
    (tmp_path / "within").mkdir()
    write(tmp_path / "within", "c.json", make_run())
    found = read_folder(tmp_path)
    assert [result["file"] for result in found.results] == ["a.json", "b.json"]
    assert (found.title, found.planned, found.ignored, found.failures) == (tmp_path.name, (), [], {})


def test_a_plan_says_what_counts_what_is_left_out_and_what_failed(tmp_path: Path, make_run: MakeRun) -> None:
    cells = (
        Planned("s", "owm", "", 0, "a.json"),
        Planned("s", "owm", "", 1, "b.json"),
        Planned("s", "ewc", "", 0, None, "There is no MNIST."),
    )
    write_plan(BenchPlan("table1", "Table 1", cells), tmp_path)
    for name in ("a.json", "old.json"):
        write(tmp_path, name, make_run())
    (tmp_path / "notes.json").write_text("no JSON, and nobody's business")
    write(tmp_path, "settings.json", {"lr": 0.1})
    (tmp_path / FAILURES).mkdir(parents=True)
    (tmp_path / FAILURES / "b.txt").write_text("Too little memory.")
    found = read_folder(tmp_path)
    assert (found.title, found.planned) == ("Table 1", cells)
    assert [result["file"] for result in found.results] == ["a.json"]
    assert found.ignored == ["notes.json", "old.json"]
    assert found.failures == {"b.json": "Too little memory."}
    assert [found.why_missing(cell) for cell in found.planned] == ["", "Too little memory.", "There is no MNIST."]


def test_a_folder_that_is_not_there_is_said() -> None:
    with pytest.raises(ValueError, match=r"no folder 'nowhere' with results. `cldnet bench"):
        read_folder("nowhere")


@pytest.mark.parametrize("content", ["{", '{"a": ', "\udce4", "[" * 100_000])
def test_half_a_file_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "half.json").write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=r"half.json is not JSON"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": 99}, "schema 99"),
        ({"config": 5}, "not a complete result: config=5 should be a table"),
        ({"seed": "0"}, "seed='0' should be an integer"),
        ({"stream": {"name": "s", "class_order": []}}, r"stream\.hash is missing"),
        ({"stream": {"name": "s", "hash": "h", "class_order": 5}}, r"stream\.class_order=5 should be a list"),
        ({"stream": {"name": [], "hash": "h", "class_order": []}}, r"stream\.name=\[\] should be a string"),
        ({"scores": {}}, r"scores\.average_accuracy is missing"),
        (
            {"scores": {**SCORES, "task_il_accuracy": 1.5}},
            r"scores\.task_il_accuracy=1\.5 should be less than or equal to 1",
        ),
        (
            {"scores": {**SCORES, "average_accuracy": -0.1}},
            r"average_accuracy=-0\.1 should be greater than or equal to 0",
        ),
        ({"scores": {**SCORES, "forgetting": -1.1}}, r"forgetting=-1\.1 should be greater than or equal to -1"),
        ({"scores": {**SCORES, "forgetting": float("nan")}}, r"forgetting=nan should be a finite number"),
        ({"scores": {**SCORES, "forgetting": True}}, r"forgetting=True should be a number"),
        *(({"seconds": {"total": bad}}, r"seconds\.total=") for bad in (float("nan"), "0.5", True, 10**400, 1e308)),
        *(({"matrix": bad}, "row i") for bad in ([[0.9, 0.1], [0.8, 0.7]], [])),
        *(({"matrix": bad}, "should be a list") for bad in ([0.9], 5, {})),
        ({"cell": []}, r"cell=\[\] should be a table"),
        ({"cell": {"stream": ["s"]}}, r"cell\.stream=\['s'\] should be a string"),
        ({"label": None}, "label=None should be a string"),
        ({"code": ["c"]}, "code=.* should be a string"),
        ({"config": json.loads('{"a":' * 100 + "1" + "}" * 100)}, "config is nested too deeply"),
    ],
)
def test_a_strangers_file_is_checked_before_anything_is_made_of_it(
    tmp_path: Path, make_run: MakeRun, change: dict[str, Any], said: str
) -> None:
    write(tmp_path, "a.json", make_run() | change)
    with pytest.raises(ValueError, match=said):
        read_folder(tmp_path)


@pytest.mark.parametrize("score", [0, 1, -1, 0.5, None])
def test_scores_at_their_bounds_and_scores_that_are_none_are_read(
    tmp_path: Path, make_run: MakeRun, score: float | None
) -> None:
    write(tmp_path, "a.json", make_run() | {"scores": {**SCORES, "forgetting": score}})
    assert read_folder(tmp_path).results[0]["scores"]["forgetting"] == score


@pytest.mark.parametrize("wrong", [{"title": ["T"]}, {"name": 5}])
def test_a_plan_whose_title_is_no_text_is_refused(tmp_path: Path, wrong: dict[str, Any]) -> None:
    write(tmp_path, PLAN, {"name": "", "title": "", "cells": [], **wrong})
    with pytest.raises(ValueError, match="should be a string"):
        read_folder(tmp_path)


@pytest.mark.parametrize("plan", [[], {}, {"cells": [{"strem": "s"}]}, {"cells": [{"stream": 1}]}, {"cells": 5}])
def test_a_plan_that_is_none_is_refused(tmp_path: Path, plan: Any) -> None:
    filled = {"method": "owm", "label": "", "seed": 0}
    if isinstance(plan, dict) and isinstance(plan.get("cells"), list):
        plan = {"name": "", "title": "", "cells": [{**filled, **cell} for cell in plan["cells"]]}
    write(tmp_path, PLAN, plan)
    with pytest.raises(ValueError, match=r"is not a plan"):
        read_folder(tmp_path)


@pytest.mark.parametrize("folder", ["docs/demo", "results/exact", "results/exact/curve", "results/ablation"])
def test_the_results_of_earlier_versions_are_still_read(folder: str) -> None:
    assert read_folder(ROOT / folder).results
