from __future__ import annotations

import csv
import io
import json
import shutil
import webbrowser
from pathlib import Path
from statistics import fmean, stdev

import pytest
from typer.testing import CliRunner, Result

from cldnet.bench.results import read_folder
from cldnet.bench.table import build_table
from cldnet.bench.table_formats import lines
from cldnet.cli import app

DEMO = Path(__file__).parents[2] / "docs" / "demo"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def shown(row: str) -> str:
    """What a table says of a row of the demo."""
    [(_, text)] = [cells for cells in lines(build_table([read_folder(DEMO)])) if cells[0] == row]
    return text


def test_where_there_is_no_terminal_a_table_is_markdown() -> None:
    answer = run("table", DEMO)
    assert answer.exit_code == 0, answer.output
    folder = read_folder(DEMO)
    assert answer.output.startswith(f"**{folder.title}**\n\n| method | split-digits |\n| --- | --: |\n")
    assert f"| CLDNet (hbo) | {shown('CLDNet (hbo)')} |" in answer.output
    assert "\x1b" not in answer.output


def test_a_table_can_be_csv_with_differences() -> None:
    answer = run("table", DEMO, "--as", "csv", "--against", "joint")
    found = {line["row"]: line for line in csv.DictReader(io.StringIO(answer.stdout))}
    scores = {
        method: [
            json.loads(file.read_text())["scores"]["average_accuracy"] for file in sorted(DEMO.glob(f"*_{method}_*"))
        ]
        for method in ("owm", "joint")
    }
    more = [100 * (a - b) for a, b in zip(scores["owm"], scores["joint"], strict=True)]
    assert found["OWM"]["difference"] == f"{fmean(more):.2f}"
    assert found["OWM"]["difference_sd"] == f"{stdev(more):.2f}"
    assert found["OWM"]["pairs"] == "3"


def test_a_table_can_show_what_methods_cost() -> None:
    assert "| split-digits, kept in all | split-digits, training |" in run("table", DEMO, "--cost").output


def test_a_table_can_be_of_one_stream() -> None:
    assert run("table", DEMO, "--stream", "split-digits").output == run("table", DEMO).output
    refused = run("table", DEMO, "--stream", "split-mnist")
    assert "no results of the stream 'split-mnist'. Did you mean 'split-digits'?" in str(refused.exception)


def test_a_file_is_written_whole_as_its_name_says_with_links_from_where_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    shutil.copytree(DEMO, folder)
    answer = run("table", folder, "--out", tmp_path / "docs" / "table.md", "--score", "forgetting")
    assert answer.output == f"Written to {tmp_path / 'docs' / 'table.md'}\n"
    text = (tmp_path / "docs" / "table.md").read_text()
    assert "Forgetting (%)" in text
    [file] = DEMO.glob("*_owm_seed0_*.json")
    assert f"(../results/{file.name})" in text
    assert run("table", folder, "--out", tmp_path / "table.tex").exit_code == 0
    assert r"\toprule" in (tmp_path / "table.tex").read_text()


def test_a_file_that_does_not_say_its_format_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    answer = run("table", DEMO, "--out", tmp_path / "new" / "table.txt")
    assert isinstance(answer.exception, ValueError)
    assert "use .md, .csv or .tex" in str(answer.exception)
    assert not (tmp_path / "new").exists()
    assert run("table", DEMO, "--as", "md", "--out", tmp_path / "table.txt").exit_code == 0


def test_on_a_terminal_a_table_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    answer = run("table", DEMO)
    assert answer.exit_code == 0, answer.output
    assert "| method" not in answer.output
    assert shown("CLDNet (hbo)") in answer.output
    assert "mean ± sample standard deviation over 3 seeds; a seed has its own class order" in answer.output


def test_a_drawn_table_has_a_stream_under_another_and_no_commands_to_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, stream in (("a", "split-mnist"), ("b", "mine\x1b[2J[red]")):
        result = json.loads(next(DEMO.glob("*_owm_seed0_*")).read_text())
        result["stream"]["name"] = stream
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    drawn = run("table", tmp_path).stdout
    assert drawn.index("91.60 ± 0.13") < drawn.index("mine[2J[red]")
    assert "\x1b[2J" not in drawn
    assert drawn.count("CRNet") == 1  # it has no published figure on the second stream


def test_a_report_says_where_page_and_plots_are_and_opens_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", lambda address: opened.append(address) or True)
    answer = run("report", DEMO, "--out", tmp_path, "--open")
    assert answer.exit_code == 0, answer.output
    assert f"page   {tmp_path / 'index.html'}" in answer.output
    assert f"plots  {tmp_path / 'plots'}" in answer.output
    assert opened == [(tmp_path / "index.html").as_uri()]
    assert list((tmp_path / "plots").glob("*.svg"))


def test_a_report_says_when_there_is_no_browser(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda address: False)
    answer = run("report", DEMO, "--out", tmp_path, "--open")
    assert answer.exit_code == 0
    assert "No browser" in answer.output
