from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cldnet.bench.report import write_report
from cldnet.bench.report.style import DARK, LIGHT, SHADES, ink_on, luminance
from cldnet.bench.report.svg import clean

Writer = Callable[..., Path]
VOID = {"meta", "col", "input"}
HOSTILE = "<script>alert(1)</script>\"'&\x00\u202e $x$"


class Reader(HTMLParser):
    """Keeps the tags and the text, and fails on a tag that does not close."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in {"style", "script"}:
            self.words += data


@pytest.fixture(autouse=True, scope="module")
def _no_pictures() -> Iterator[None]:
    """These tests read the page; painting PNG files beside it would take most of their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cldnet.bench.report.write.png_file", lambda plot, heading: b"")
        yield


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, write_results: Writer, _no_pictures: None) -> str:
    methods, streams = ("finetune", "owm", "exact", "joint"), ("split-digits", "split-mnist")
    folder = write_results(tmp_path_factory.mktemp("results"), methods=methods, streams=streams, seeds=2)
    return write_report(folder).page.read_text("utf-8")


def rows_of(page: str, table: str) -> dict[str, list[str]]:
    body = re.search(rf'<table id="{table}".*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    assert body is not None
    found = re.findall(r'<tr><th scope="row">(.*?)</th>(.*?)</tr>', body[1])
    return {name: [re.sub("<.*?>", "", cell) for cell in re.findall("<td.*?</td>", cells)] for name, cells in found}


def test_the_table_shows_each_method(write_results: Writer, tmp_path: Path) -> None:
    def known(result: dict[str, Any]) -> dict[str, Any]:
        scores = {"average_accuracy": 0.93 + 0.01 * result["seed"], "average_incremental_accuracy": 0.95}
        scores |= {"forgetting": 0.05, "task_il_accuracy": 0.9876}
        return result | {"scores": scores, "seconds": {"total": 3.25}, "bytes": {"weights": 4000, "exemplars": 800}}

    folder = write_results(tmp_path, methods=("ewc", "er"), change=known)
    rows = rows_of(write_report(folder).page.read_text("utf-8"), "results")
    assert rows["EWC"] == ["94.00 ± 1.00%", "95.00%", "5.00%", "98.76%", "3.2", "4.8 kB", "no", "no", "3"]
    assert rows["ER (replay)"][-3:] == ["no", "yes", "3"]


def test_the_best_between_the_bounds_of_each_stream_is_bold(page: str) -> None:
    bold = re.findall(r'<th scope="row">([^<]*)</th><td class="words">([^<]*)</td><td><strong>', page)
    assert bold == [("CLDNet (exact)", "split-digits"), ("CLDNet (exact)", "split-mnist")]


def test_every_run_has_a_row_with_its_file(page: str) -> None:
    links = re.findall(r'<a href="\./([^"/]*\.json)">JSON</a>', page)
    assert len(links) == len(set(links)) == 2 * 4 * 2


def test_diagnostics_come_last_folded_and_are_not_called_results(page: str) -> None:
    tail = page[page.index('<details class="leaks">') :]
    assert "<h2" not in tail.split("</h2>", 1)[1]
    assert "None of these is a result." in tail
    assert "–" in tail  # the exact solver has no best epoch


def test_a_script_runs_only_by_its_hash_and_nothing_is_loaded(page: str) -> None:
    policy = re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', page)
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)
    assert policy is not None
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert policy[1].startswith("default-src 'none'; ")
    assert f"script-src 'sha256-{digest}';" in policy[1]
    reader = Reader(page)
    assert not {"link", "img", "iframe", "object", "base"} & {tag for tag, _ in reader.tags}
    targets = [attrs[name] for _, attrs in reader.tags for name in ("src", "href", "xlink:href") if name in attrs]
    assert all(target is not None and target.startswith(("./", "#")) for target in targets)
    for word in ("url(", "@import", "eval(", "innerHTML"):
        assert word not in page


def test_readers_without_sight_find_structure(page: str) -> None:
    tags = Reader(page).tags
    assert next(attrs for tag, attrs in tags if tag == "html")["lang"] == "en"
    levels = [int(tag[1]) for tag, _ in tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all(attrs["scope"] in {"row", "col"} for tag, attrs in tags if tag == "th")
    names = [tag for tag, _ in tags]
    assert names.count("caption") == names.count("table")


def test_every_plot_says_its_figures_and_has_them_as_a_table(page: str) -> None:
    figures = re.split(r'(?=<div class="figure)|<section', page)[1:]
    figures = [figure for figure in figures if figure.startswith('<div class="figure')]
    assert len(figures) == 2 * 7
    for figure in figures:
        assert "The same as numbers" in figure
        assert all("%" in label or " s" in label for label in re.findall('aria-label="(.*?)"', figure)[:1])
    for drawing in re.findall("<svg.*?</svg>", page, re.DOTALL):
        assert ElementTree.fromstring(drawing).get("role") == "img" or 'aria-hidden="true"' in drawing


def hostile(value: Any) -> Any:
    if isinstance(value, str):
        return HOSTILE
    if isinstance(value, list):
        return [hostile(item) for item in value]
    if isinstance(value, dict):
        return {key: hostile(item) for key, item in value.items()}
    return value


def test_strangers_cannot_put_markup_into_the_page(write_results: Writer, tmp_path: Path) -> None:
    def stranger(result: dict[str, Any]) -> dict[str, Any]:
        stream = hostile(result["stream"]) | {"class_order": [HOSTILE], "tasks": [[HOSTILE]]}
        ranks = {"threshold": 0.5, "tasks": [{HOSTILE: {"width": 4, "rank": 2, "trace": 0.5}}]}
        own = {"stream": stream, "config": {HOSTILE: [HOSTILE]}, "versions": {HOSTILE: HOSTILE}, "ranks": ranks}
        return hostile(result) | own | {"bytes": {HOSTILE: 9}, "seconds": result["seconds"]}

    folder = write_results(tmp_path, methods=("owm",), seeds=1, change=stranger)
    report = write_report(folder)
    page = report.page.read_text("utf-8")
    reader = Reader(page)
    assert [attrs for tag, attrs in reader.tags if tag == "script"] == [{"type": "application/json", "id": "data"}, {}]
    assert not any(name.startswith("on") for _, attrs in reader.tags for name in attrs)
    assert reader.words.count("<script>alert(1)</script>") >= 8
    data = re.search(r'id="data">(.*?)</script>', page)
    assert data is not None
    assert "<" not in data[1]
    assert any("<script>alert(1)</script>" in words for words in json.loads(data[1])["texts"])
    assert "\x00" not in page
    assert "\u202e" not in page
    assert "\\u202e" not in page
    for plot in report.plots:
        if plot.suffix == ".svg":
            assert "script" not in {element.tag.rpartition("}")[2] for element in ElementTree.parse(plot).iter()}


@pytest.mark.parametrize("name", ["javascript:alert(1)", "a b?c#d", "\\\\evil", "data:x", 'a"><b>'])
def test_a_link_stays_beside_the_page_whatever_a_file_is_called(
    write_results: Writer, tmp_path: Path, name: str
) -> None:
    (file,) = write_results(tmp_path, methods=("ewc",), seeds=1).glob("*.json")
    file.rename(tmp_path / f"{name}.json")
    [target] = re.findall(r'href="(\./[^"]*json)"', write_report(tmp_path).page.read_text("utf-8"))
    assert not set(target) & set(':?#\\<>" ')


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_can_be_read(palette: dict[str, str]) -> None:
    def contrast(one: str, other: str) -> float:
        low, high = sorted((luminance(one), luminance(other)))
        return (high + 0.05) / (low + 0.05)

    for name in ("ink", "soft", "link"):
        assert contrast(palette[name], palette["paper"]) >= 4.5
        assert contrast(palette[name], palette["wash"]) >= 4.5
    for number in range(10):  # marks and lines are not text: 3:1 is asked of them
        assert contrast(palette[f"s{number}"], palette["paper"]) >= 4.5
    for step in range(SHADES):
        assert contrast(palette[f"h{step}"], ink_on(palette[f"h{step}"])) >= 4.5


def test_streams_that_could_not_be_read_and_losses_that_are_no_numbers_are_told(
    tmp_path: Path, write_results: Writer
) -> None:
    def diverged(result: dict[str, Any]) -> dict[str, Any]:
        return result | {"losses": [[1.0, None], [None, None]]}

    folder = write_results(tmp_path, methods=("owm",), seeds=1, plan=True, change=diverged)
    plan = json.loads((folder / "plan.json").read_text())
    plan["cells"].append(
        {"stream": "split-mnist", "method": "owm", "label": "", "seed": 0, "file": None, "why": "There is no <MNIST>."}
    )
    (folder / "plan.json").write_text(json.dumps(plan))
    page = write_report(folder).page.read_text("utf-8")
    assert "split-mnist could not be read: There is no &lt;MNIST&gt;." in page
    assert "Epochs with a loss that is no number" in page
    assert '"losses":[[1.0],[]]' in page


def test_a_method_without_forgetting_does_not_need_the_task(write_results: Writer, tmp_path: Path) -> None:
    def one_task(result: dict[str, Any]) -> dict[str, Any]:
        return result | {"scores": result["scores"] | {"forgetting": None}}

    folder = write_results(tmp_path, methods=("ewc", "pnn"), seeds=1, tasks=1, change=one_task)
    page = write_report(folder).page.read_text("utf-8")
    assert rows_of(page, "results")["EWC"][2] == "no figure"
    assert rows_of(page, "runs")["EWC"][2] == "no figure"
    assert rows_of(page, "results")["PNN"][:3] == ["needs the task"] * 3
    assert rows_of(page, "runs")["PNN"][1:3] == ["needs the task"] * 2
    assert "EWC needs the task" not in page


def with_orders(*orders: list[int]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    def change(result: dict[str, Any]) -> dict[str, Any]:
        return result | {"stream": result["stream"] | {"class_order": orders[result["seed"]]}}

    return change


@pytest.mark.parametrize(
    ("orders", "said"),
    [
        (([0, 1], [1, 0], [2, 1]), "over runs, each with a class order of its own."),
        (([0, 1], [0, 1], [0, 1]), "over runs, all in the same class order."),
        (([0, 1], [1, 0], [0, 1]), "over runs, some of them in the same class order."),
    ],
)
def test_the_note_says_whether_seeds_have_class_orders_of_their_own(
    write_results: Writer, tmp_path: Path, orders: tuple[list[int], ...], said: str
) -> None:
    folder = write_results(tmp_path, methods=("ewc",), change=with_orders(*orders))
    assert said in write_report(folder).page.read_text("utf-8")


def test_a_single_run_has_no_deviation_to_explain(write_results: Writer, tmp_path: Path) -> None:
    page = write_report(write_results(tmp_path, methods=("ewc",), seeds=1)).page.read_text("utf-8")
    assert "±" not in Reader(page).words


def test_joined_letters_stay_joined_and_nothing_turns_the_text() -> None:
    for word in ("\U0001f469\u200d\U0001f52c", "می\u200cخواهم"):
        assert clean(word) == word
    for turn in "\u200e\u200f\u202a\u202e\u2066\u2069\u061c\ufeff\x00":
        assert clean(f"a{turn}b") == "a\ufffdb"


def test_only_many_runs_are_put_in_a_box(write_results: Writer, tmp_path: Path) -> None:
    for seeds, tall in ((40, False), (41, True)):
        folder = write_results(tmp_path / str(seeds), methods=("ewc",), seeds=seeds, tasks=1)
        assert ('<div class="scroll runs tall"' in write_report(folder).page.read_text("utf-8")) == tall
