"""Data from outside the stream, from the setting that names them to the footnote that tells of them."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.streams import split_digits
from typer.testing import CliRunner

from cldnet.bench.cell import Cell, cell_of_result, file_names, hashes_of, result_text, run_cell
from cldnet.bench.preset import preset
from cldnet.bench.report import write_report
from cldnet.bench.results import Folder, read_folder
from cldnet.bench.run import RunSpec, run
from cldnet.bench.spec import read_spec
from cldnet.bench.summary import summarise
from cldnet.bench.table import build_table
from cldnet.bench.table_formats import as_csv, as_markdown
from cldnet.bench.tune import Search, plan_methods, tune
from cldnet.cli import app
from cldnet.cli.show import result_tables
from cldnet.methods import read_method

MakeRun = Callable[..., dict[str, Any]]
DEMO = Path(__file__).parents[2] / "docs" / "demo"
SPEC = RunSpec("dmc", epochs=1, batch_size=64, backbone_options={"widths": [16]}, threads=1, outside="noise")
CELL = Cell("split-digits,until=2", SPEC)
FMNIST = {"name": "fmnist", "hash": "abc", "data": "def", "rows": 60000}
runner = CliRunner()


@cache
def a_result() -> dict[str, Any]:
    result: dict[str, Any] = json.loads(result_text(run_cell(CELL, CELL.load())))
    return result


# Running


def test_a_result_tells_which_data_from_outside_it_rests_on() -> None:
    outside = a_result()["outside"]
    assert (outside["name"], outside["hash"], outside["rows"]) == ("noise", "noise", 2000)
    assert len(outside["data"]) == 16
    assert run(RunSpec("exact", backbone_options={"features": 20}), split_digits(0)[:1])["outside"] is None


@pytest.mark.parametrize(
    ("spec", "complaint"),
    [
        (replace(SPEC, outside=""), "dmc needs unlabelled data .*: name them, as outside='fmnist' or outside='noise'"),
        (RunSpec("ewc", outside="noise"), "ewc does not use outside data: leave outside='noise' out"),
        (replace(SPEC, outside="fminst"), "There is no data set 'fminst'. Did you mean 'fmnist'"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_runs(spec: RunSpec, complaint: str) -> None:
    for refuse in (spec.check, lambda: run(spec, split_digits(0))):
        with pytest.raises(ValueError, match=complaint):
            refuse()


def test_data_of_another_shape_are_refused_with_a_sentence(small_data: Path) -> None:
    with pytest.raises(
        ValueError, match=r"outside='fmnist' has inputs of shape \(28, 28\), and split-digits of \(8, 8\)"
    ):
        run(replace(SPEC, outside="fmnist"), split_digits(0), data=small_data)


# Keys


def test_keys_of_results_from_before_this_setting_are_what_they_were() -> None:
    results = [json.loads(path.read_text()) for path in DEMO.glob("*_seed*.json")]
    current = [
        result for result in results
        if read_method(result["method"]).version == result["cell"]["method_version"]
        and {"finetune", "joint"} & {result["method"]}
    ]  # fmt: skip
    assert current
    for result in current:
        assert cell_of_result(result).key(*hashes_of(result)) == result["key"]


def test_a_key_depends_on_the_name_and_on_the_data_from_outside() -> None:
    keys = {
        CELL.key("s"),
        CELL.key("s", "a"),
        CELL.key("s", "b"),
        replace(CELL, spec=replace(SPEC, outside="x")).key("s"),
    }
    assert len(keys) == 4


def test_a_result_is_found_under_the_name_that_a_bench_looks_for_and_can_be_run_again() -> None:
    result = a_result()
    assert CELL.file(*hashes_of(result)) == file_names([CELL])[0]
    assert result["key"] == CELL.key(*hashes_of(result))
    again = cell_of_result(result)
    assert again == CELL
    assert run_cell(again, again.load())["matrix"] == result["matrix"]


def test_a_path_to_data_from_outside_is_not_told() -> None:
    cell = replace(CELL, spec=replace(SPEC, outside="folder:/home/me/secret/photos,size=8"))
    assert "secret" not in json.dumps([cell.to_json(), cell.file("s", "o")])


def test_data_that_are_not_there_are_the_reason_why_a_cell_has_no_file(tmp_path: Path) -> None:
    (name,) = file_names([replace(CELL, spec=replace(SPEC, outside=f"arrays:{tmp_path / 'no.npz'}"))])
    assert isinstance(name, Exception)
    assert "no.npz" in str(name)


# Presets, specifications and searches


def test_what_a_preset_names_for_all_is_for_those_that_take_it(tmp_path: Path) -> None:
    (tmp_path / "split-digits.toml").write_text('[common]\nepochs = 2\noutside = "mnist"\n\n[methods.dmc]\n')
    assert preset("split-digits", "dmc", 0, folder=tmp_path).outside == "mnist"
    assert preset("split-digits", "ewc", 0, folder=tmp_path).outside == ""
    assert preset("split-digits", "dmc", 0).outside == "noise"  # so that it runs with nothing to download


def test_a_specification_names_it_for_the_methods_that_take_it(tmp_path: Path) -> None:
    path = tmp_path / "s.toml"
    head = 'streams = ["split-digits"]\nmethods = ["ewc", "dmc"]\n'
    path.write_text(head + '[run]\noutside = "mnist"\n')
    assert [cell.spec.outside for cell in read_spec(path).cells()] == ["", "mnist"]
    path.write_text(head + '[[configurations]]\nname = "o"\nmethods = ["dmc"]\noutside = "cifar10"\n')
    assert [cell.spec.outside for cell in read_spec(path).cells()] == ["", "cifar10"]
    path.write_text(head + '[[configurations]]\nname = "o"\noutside = "cifar10"\n')
    with pytest.raises(ValueError, match="ewc does not use outside data: leave outside='cifar10' out"):
        read_spec(path)
    path.write_text(head + '[run]\noutside = "cifar1O"\n')
    with pytest.raises(ValueError, match="There is no data set 'cifar1O'"):
        read_spec(path)


def test_a_search_hands_it_to_the_methods_that_take_it(tmp_path: Path) -> None:
    search = Search("split-digits", ("ewc", "dmc"), outside="mnist")
    assert [plan.base.outside for plan in plan_methods(search, None)] == ["", "mnist"]
    assert "--outside mnist" in search.command(jobs=1)
    assert [plan.base.outside for plan in plan_methods(Search("split-digits", ("dmc",)), None)] == ["noise"]
    with pytest.raises(ValueError, match="None of these methods uses outside data: leave outside='mnist' out"):
        plan_methods(Search("split-digits", ("ewc",), outside="mnist"), None)


def test_a_search_refuses_what_could_not_run_before_it_makes_a_folder(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 3))
    np.savez(tmp_path / "own.npz", X=x, y=np.arange(40) % 4)
    own = f"arrays:{tmp_path / 'own.npz'}"
    for outside, complaint in (("", "dmc needs unlabelled data"), ("digits", r"inputs of shape \(8, 8\)")):
        with pytest.raises(ValueError, match=complaint):
            tune(Search(own, ("dmc",), outside=outside), tmp_path / "o", tmp_path / "p")
    assert not (tmp_path / "o").exists()


# What is shown


def outsider(make_run: MakeRun, **changes: Any) -> dict[str, Any]:
    return make_run("dmc", outside=FMNIST, **changes)


def test_runs_on_other_data_from_outside_share_no_row(make_run: MakeRun) -> None:
    noise = outsider(make_run) | {"outside": {**FMNIST, "name": "noise"}}
    first, second = summarise([outsider(make_run), noise])
    assert (first.name, second.name) == ("DMC (outside=fmnist)", "DMC (outside=noise)")
    assert summarise([make_run("dmc", outside=None), make_run("dmc", seed=1)])[0].runs == 2  # from before the setting


def test_a_table_marks_the_method_and_says_what_it_uses(make_run: MakeRun) -> None:
    elsewhere = outsider(make_run, stream="split-mnist") | {"outside": {**FMNIST, "name": "mnist"}}
    results = [make_run("ewc"), outsider(make_run), elsewhere]
    table = build_table([Folder(Path(), "", results)], published=False)
    assert [row.title for row in table.rows] == ["EWC", "DMC†"]
    shown = as_markdown(table)
    assert (
        "† DMC uses unlabelled images from outside the stream (fmnist on split-digits, mnist on split-mnist)." in shown
    )
    lines = list(csv.DictReader(io.StringIO(as_csv(table))))
    assert {(line["row"], line["outside"]) for line in lines} >= {("EWC", ""), ("DMC", "fmnist"), ("DMC", "mnist")}


def test_the_page_counts_it_among_those_that_have_data(make_run: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "ewc.json").write_text(json.dumps(make_run("ewc")))
    without = write_report(tmp_path).page.read_text("utf-8")
    assert "outside" not in without.partition("<body>")[2].partition("<script")[0]
    (tmp_path / "dmc.json").write_text(json.dumps(outsider(make_run)))
    page = write_report(tmp_path).page.read_text("utf-8")
    names = re.findall(r'<tr data-summary="\d"[^>]*?( data-rests-on-data)?><th scope="row">(.*?)</th>', page)
    assert set(names) == {(" data-rests-on-data", "DMC†"), ("", "EWC")}
    assert "† DMC uses unlabelled images from outside the stream (fmnist)." in page
    assert "or learn from data outside the stream (†)" in page


def test_the_terminal_shows_mark_and_note(make_run: MakeRun) -> None:
    (table,) = result_tables(summarise([outsider(make_run)]))
    assert table.columns[0]._cells == ["DMC†"]
    assert table.caption == "† DMC uses unlabelled images from outside the stream (fmnist)."
    (table,) = result_tables(summarise([make_run("ewc")]))
    assert table.caption is None


@pytest.mark.parametrize("wrong", ["fmnist", {"name": 3, "hash": "a"}, {"name": "fmnist"}, ["fmnist"]])
def test_a_strangers_result_with_another_kind_of_thing_is_refused(
    make_run: MakeRun, tmp_path: Path, wrong: Any
) -> None:
    (tmp_path / "a.json").write_text(json.dumps(make_run("dmc", outside=wrong)))
    with pytest.raises(ValueError, match=r"outside.* (should be a|is missing)"):
        read_folder(tmp_path)


# Commands


def test_a_run_names_it_and_can_be_repeated(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 17, (40, 8, 8)).astype(np.uint8)
    file = tmp_path / "other.npz"
    np.savez(file, X=x, y=np.arange(40) % 2)
    arguments = ["run", "--stream", "split-digits,until=2", "--method", "dmc", "--epochs", "1", "--threads", "1"]
    out = tmp_path / "out"
    answer = runner.invoke(app, [*arguments, "--outside", f"arrays:{file}", "--out", str(out)], env={"COLUMNS": "120"})
    assert answer.exit_code == 0, answer.output
    assert "† DMC uses unlabelled images from outside the stream (arrays:other.npz)." in " ".join(answer.output.split())
    (path,) = out.glob("*.json")
    result = json.loads(path.read_text())
    assert result["outside"]["name"] == "arrays:other.npz"
    assert path.name.endswith(f"_{result['key']}.json")
    again = runner.invoke(app, ["run", "--again", str(path), "--outside", f"arrays:{file}"])
    assert "The same accuracy matrix" in again.output
    np.savez(file, X=x + 1, y=np.arange(40) % 2)
    changed = runner.invoke(app, ["run", "--again", str(path), "--outside", f"arrays:{file}"])
    assert isinstance(changed.exception, ValueError)
    assert "has changed" in str(changed.exception)


def test_a_run_of_a_method_that_takes_none_refuses_it(tmp_path: Path) -> None:
    answer = runner.invoke(app, ["run", "--stream", "split-digits", "--method", "ewc", "--outside", "noise"])
    assert isinstance(answer.exception, ValueError)
    assert "ewc does not use outside data: leave outside='noise' out" in str(answer.exception)
