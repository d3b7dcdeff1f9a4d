"""A cell has a key that tells it from every other, and its result tells how to run it again."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from cldnet.bench.cell import Cell, cell_of_result, code_digest, result_text, run_cell
from cldnet.bench.run import Record, RunSpec
from cldnet.methods.ewc import EWC

SPEC = RunSpec("finetune", seed=1, epochs=1, backbone_options={"widths": [8]}, threads=1)
CELL = Cell("split-digits,until=2", SPEC, "Fine-tuning, narrow", Record(features=3))


@pytest.mark.parametrize(
    "other",
    [
        replace(CELL, spec=replace(SPEC, epochs=2)),
        replace(CELL, spec=replace(SPEC, options={"lr": 0.1})),
        replace(CELL, spec=replace(SPEC, seed=2)),
        replace(CELL, record=Record()),
    ],
)
def test_cells_that_differ_in_what_they_do_have_other_keys(other: Cell) -> None:
    assert other.key("hash") != CELL.key("hash")


def test_the_key_depends_on_the_stream_and_on_the_methods_version(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("split-digits", RunSpec("ewc"))
    before = cell.key("one")
    assert cell.key("another") != before
    monkeypatch.setattr(EWC, "version", EWC.version + 1)
    assert cell.key("one") != before


def test_threads_and_names_are_no_part_of_the_key() -> None:
    assert replace(CELL, spec=replace(SPEC, threads=None), label="").key("hash") == CELL.key("hash")


def test_a_result_tells_how_to_run_it_again_and_gives_the_same_matrix() -> None:
    stream = CELL.load()
    first = json.loads(result_text(run_cell(CELL, stream)))
    assert first["key"] == CELL.key(stream.hash)
    again = cell_of_result(first)
    assert again == CELL
    second = json.loads(result_text(run_cell(again, again.load())))
    assert second["matrix"] == first["matrix"]
    assert second["losses"] == first["losses"]
    assert second["features"] == first["features"]


def test_a_result_is_run_again_with_the_defaults_of_its_time() -> None:
    cell = Cell(
        "split-digits,until=2", RunSpec("exact", backbone="patches", backbone_options={"filters": 9, "size": 4})
    )
    recorded = {"filters": 9, "size": 4, "windows": 3, "threshold": 0.25, "mirror": "auto"}
    now = {"cell": cell.to_json(), "config": {"backbone_options": recorded}}
    assert cell_of_result(now) == cell
    then = cell_of_result({**now, "config": {"backbone_options": {**recorded, "mirror": True}}})
    assert then.spec.backbone_options == {"filters": 9, "size": 4, "mirror": True}
    assert then.key("hash") != cell.key("hash")


def test_a_cell_whose_map_chooses_has_another_key_than_when_maps_mirrored_by_default() -> None:
    cell = Cell("split-digits,until=2", RunSpec("exact", backbone="patches"), record=Record())
    assert cell.key("hash") == replace(cell, spec=replace(cell.spec, backbone_options={"mirror": "auto"})).key("hash")
    former = hashlib.sha256(json.dumps([_of_before(cell), "hash"], sort_keys=True).encode()).hexdigest()[:12]
    assert cell.key("hash") != former


def _of_before(cell: Cell) -> dict[str, Any]:
    """What a key was made of when the option was not a part of it."""
    what = cell.to_json()
    del what["label"], what["stream"], what["spec"]["threads"], what["spec"]["outside"]
    return what


def test_a_result_of_an_older_version_says_that_it_cannot_be_run_again() -> None:
    with pytest.raises(ValueError, match="an older version of cldnet wrote it"):
        cell_of_result({"schema": 1, "method": "ewc"})


def test_the_file_of_a_result_is_json_with_its_lists_on_one_line() -> None:
    result = {"matrix": [[0.5], [0.25, 1.0]], "text": "[ a,  b ]", "empty": [], "none": None, "é": {"x": [1, 2]}}
    written = result_text(result).decode()
    assert json.loads(written) == result
    assert "  [0.25, 1.0]" in written


def test_file_names_have_nothing_that_a_file_system_minds() -> None:
    long = replace(CELL, stream="split-x,order=" + "+".join(["標籤"] * 99))
    assert len(long.file("hash").encode()) < 200
    name = replace(CELL, stream="folder:/home/me/my pets,size=64", label="").file("hash")
    assert name.startswith("folder-my-pets,size=64_finetune_seed1_")


def test_the_path_to_the_data_is_nobody_elses_business() -> None:
    cell = replace(CELL, stream="table:/home/me/secret/pets.csv,label=kind,until=2")
    told = json.dumps([cell.to_json(), cell.file("hash"), cell.name, cell.title])
    assert "secret" not in told
    assert "pets.csv,label=kind,until=2" in told


def test_the_digest_of_a_methods_code_minds_no_comment() -> None:
    assert code_digest("ewc") == code_digest("cldnet.methods.ewc:EWC")
    assert code_digest("ewc") != code_digest("owm")


def test_a_run_that_diverges_is_a_result_in_strict_json() -> None:
    spec = RunSpec("finetune", epochs=2, options={"lr": 1e30, "clip": 1e30}, threads=1)
    cell = Cell("split-digits,until=2", spec, record=Record(features=3))
    result = json.loads(result_text(run_cell(cell, cell.load())), parse_constant=pytest.fail)
    assert None in result["losses"][-1]
    assert result["features"]["tasks"][-1] == {"points": [], "rows": []}


def test_the_digest_of_the_code_is_the_same_in_every_process() -> None:
    command = [sys.executable, "-c", "from cldnet.bench.cell import code_digest; print(code_digest('ewc'))"]
    env = {**os.environ, "PYTHONHASHSEED": "1"}
    assert (
        subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout == code_digest("ewc") + "\n"
    )
