from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import pytest

from cldnet.bench.report import write_report

Writer = Callable[..., Path]
VOID = {"meta", "col", "input"}
PLOTS = {"memory", "accuracy", "forgetting", "time", "matrices", "ranks", "features"}
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
def _no_png() -> Iterator[None]:
    """These tests read the page; painting PNG files beside it would take most of their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cldnet.bench.report.page.png_file", lambda plot, heading: b"")
        yield


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory, write_results: Writer, _no_png: None) -> str:
    methods, streams = ("finetune", "owm", "exact", "joint"), ("split-digits", "split-mnist")
    folder = write_results(tmp_path_factory.mktemp("results"), methods=methods, streams=streams, seeds=2)
    return write_report(folder).page.read_text("utf-8")


def rows_of(page: str, table: str) -> dict[str, list[str]]:
    body = re.search(rf'<table id="{table}".*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    assert body is not None
    found = re.findall(r'<tr[^>]*><th scope="row">(.*?)</th>(.*?)</tr>', body[1])
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
    bold = re.findall(r'<th scope="row">([^<]*)</th><td class="words">([^<]*)</td><td[^>]*><strong>', page)
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
        assert "Show as a table" in figure
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
    assert "Epochs with a NaN or infinite loss" in page
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
        (([0, 1], [1, 0], [2, 1]), "over runs, each with its own class order."),
        (([0, 1], [0, 1], [0, 1]), "over runs, all with the same class order."),
        (([0, 1], [1, 0], [0, 1]), "over runs, some with the same class order."),
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


def test_only_many_runs_are_put_in_a_box(write_results: Writer, tmp_path: Path) -> None:
    for seeds, tall in ((40, False), (41, True)):
        folder = write_results(tmp_path / str(seeds), methods=("ewc",), seeds=seeds, tasks=1)
        assert ('<div class="scroll runs tall"' in write_report(folder).page.read_text("utf-8")) == tall


def plots_in(folder: Path) -> set[str]:
    return {path.name for path in (folder / "plots").iterdir()}


def test_a_report_is_a_page_and_every_plot_as_svg_and_png(write_results: Writer, tmp_path: Path) -> None:
    folder = write_results(tmp_path / "results", methods=("ewc", "owm"), seeds=2)
    told: list[tuple[int, int]] = []
    report = write_report(folder, on_progress=lambda done, total: told.append((done, total)))
    assert report.page == folder / "index.html"
    assert report.missing is None
    assert plots_in(folder) == {f"split-digits-{name}.{kind}" for name in PLOTS for kind in ("svg", "png")}
    assert {path.name for path in report.plots} == plots_in(folder)
    assert told == [(done, 14) for done in range(1, 15)]


def test_equal_results_give_equal_bytes(write_results: Writer, tmp_path: Path) -> None:
    folder = write_results(tmp_path / "results", methods=("ewc", "owm"), seeds=2, plan=True)
    first, second = (write_report(folder, tmp_path / name) for name in ("a", "b"))
    assert first.page.read_bytes() == second.page.read_bytes()
    for one, other in zip(first.plots, second.plots, strict=True):
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("out", ["results", "elsewhere/deep", "results/report"])
def test_every_link_leads_to_a_file_wherever_the_page_is(write_results: Writer, tmp_path: Path, out: str) -> None:
    folder = write_results(tmp_path / "results", methods=("ewc", "er"), seeds=2)
    page = write_report(folder, tmp_path / out).page
    targets = re.findall(r'href="(\./.*?)"', page.read_text("utf-8"))
    assert len(targets) == 4 + 2 * len(PLOTS - {"ranks"})
    assert all((page.parent / unquote(target)).is_file() for target in targets)


def test_an_empty_folder_makes_no_page(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="There are no results to show in"):
        write_report(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_was_planned_and_not_run_has_its_place(write_results: Writer, tmp_path: Path) -> None:
    everything = [("split-digits", method, seed) for method in ("ewc", "owm") for seed in range(2)]
    folder = write_results(tmp_path, methods=("ewc", "owm"), seeds=2, plan=True, missing=everything)
    report = write_report(folder)
    page = report.page.read_text("utf-8")
    assert report.plots == []
    assert "4 of 4 runs have no result yet." in page
    assert "Nothing was run on this stream yet." in page
    assert page.count("not run</td>") == 2 * 4 + 4 * 2  # four scores a method, two a run


def test_the_head_says_what_is_missing_what_failed_and_what_was_left_out(write_results: Writer, tmp_path: Path) -> None:
    folder = write_results(tmp_path, methods=("ewc",), plan=True, missing=[("split-digits", "ewc", 1)])
    (folder / "older.json").write_text((folder / "split-digits_ewc_seed0_00.json").read_text())
    failures = folder / ".bench" / "failures"
    failures.mkdir(parents=True)
    (failures / "split-digits_ewc_seed1_00.txt").write_text("MemoryError: <no room>")
    (failures / "split-digits_ewc_seed0_00.txt").write_text("it ran well the second time")
    page = write_report(folder).page.read_text("utf-8")
    assert "<h1>A plan of mine</h1>" in page
    assert "1 of 3 runs has no result yet." in page
    assert "<code>split-digits_ewc_seed1_00.json</code>. MemoryError: &lt;no room&gt;" in page
    assert "the second time" not in page
    assert "<code>older.json</code>" in page
    assert '<td class="none">failed</td>' in page


def test_a_single_run_is_a_report(write_results: Writer, tmp_path: Path) -> None:
    page = write_report(write_results(tmp_path, methods=("ewc",), seeds=1)).page.read_text("utf-8")
    assert "1 method learned split-digits, one task after the other, in 1 class order: 1 run." in page


def test_a_method_that_needs_the_task_has_words_for_numbers_and_no_class_incremental_plot(
    write_results: Writer, tmp_path: Path
) -> None:
    folder = write_results(tmp_path, methods=("pnn",), seeds=2)
    page = write_report(folder).page.read_text("utf-8")
    assert "PNN needs the task: it has no class-incremental accuracy to draw." in page
    assert plots_in(folder) == {"split-digits-time.svg", "split-digits-time.png"}


def test_the_demo_of_the_first_layout_can_be_shown(tmp_path: Path) -> None:
    demo = Path(__file__).parents[3] / "docs" / "demo"
    page = write_report(demo, tmp_path).page.read_text("utf-8")
    assert "6 methods learned split-digits, one task after the other, in 3 class orders: 18 runs." in page


def test_the_first_layout_has_neither_ranks_nor_features_to_show(write_results: Writer, tmp_path: Path) -> None:
    later = ("label", "key", "cell", "code", "growth", "ranks", "features", "diagnostics")

    def older(result: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in result.items() if key not in later} | {"schema": 1}

    folder = write_results(tmp_path, methods=("owm",), change=older)
    page = write_report(folder).page.read_text("utf-8")
    assert {name.split("-")[2].split(".")[0] for name in plots_in(folder)} == PLOTS - {"ranks", "features"}
    assert "--again" not in page
    assert "leaks" not in page.split("</style>")[1].split("<script>")[0]


def test_without_matplotlib_there_are_svg_files_and_a_sentence(
    write_results: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    report = write_report(write_results(tmp_path, methods=("ewc",), seeds=1))
    assert report.missing == 'PNG files of the plots need matplotlib: pip install ".[plots]" in a clone of CLDNet.'
    assert {path.suffix for path in report.plots} == {".svg"}
    assert ".png" not in report.page.read_text("utf-8")


def test_streams_whose_names_look_alike_have_files_of_their_own(write_results: Writer, tmp_path: Path) -> None:
    def odd(result: dict[str, Any]) -> dict[str, Any]:
        return result | {"stream": result["stream"] | {"name": f"a{'/:'[result['seed']]}b"}}

    folder = write_results(tmp_path, methods=("ewc",), seeds=2, change=odd)
    report = write_report(folder)
    assert len({path.name for path in report.plots}) == len(report.plots) == 2 * 2 * 6
    assert all(path.parent == folder / "plots" for path in report.plots)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("ranks", {"threshold": 0.5, "tasks": [{"0": {"width": 0, "rank": "x", "trace": 1}}]}),
        ("ranks", {"threshold": 0.5, "tasks": [{"0": {"width": 9, "rank": float("nan"), "trace": 1}}]}),
        ("ranks", {"threshold": 0.5, "tasks": []}),
        ("ranks", {"threshold": 0.5, "tasks": [{"0": {"width": 0, "rank": 0, "trace": 1}}]}),
        ("ranks", {"threshold": 0.5, "tasks": [{"0": {"width": 9, "rank": 9, "trace": 1e90}}]}),
        ("ranks", {"tasks": [{"0": {"width": 9, "rank": 9, "trace": 1}}]}),
        ("ranks", {"threshold": 10**400, "tasks": [{"0": {"width": 9, "rank": 9, "trace": 1}}]}),
        ("features", {"classes": ["a"], "tasks": [{"points": [[0, 1e99]], "rows": [0]}]}),
        ("matrix", [[1.5]]),
        ("matrix", [[10**400]]),
        ("matrix", [[True]]),
        ("growth", "much"),
        ("bytes", {"weights": 1e99}),
        ("bytes", {"weights": -1}),
        ("seconds", {"total": 1e99}),
        ("seconds", {"total": 1, "train": [-1]}),
        ("parameters", 10**400),
        ("features", {"classes": ["a"], "tasks": [{"points": [[0, 1]], "rows": [3]}]}),
        ("features", {"classes": ["a"], "tasks": [{"points": [[0, float("inf")]], "rows": [0]}]}),
        ("features", {"classes": ["a"], "tasks": [{"points": [[0, 1]], "rows": []}]}),
        ("diagnostics", {"leaky": {"task_known": "<b>"}}),
        ("diagnostics", {"leaky": {"task_known": 7}}),
        ("losses", [["high"]]),
        ("threads", "<b>"),
        ("versions", None),
    ],
)
def test_a_part_that_cannot_be_read_is_named_and_nothing_is_written(
    write_results: Writer, tmp_path: Path, part: str, value: Any
) -> None:
    folder = write_results(tmp_path, methods=("owm",), seeds=1, change=lambda result: result | {part: value})
    with pytest.raises(ValueError, match=rf"split-digits_owm_seed0_00.json is not a complete result: {part}"):
        write_report(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("score", "value"), [("average_accuracy", 1.5), ("forgetting", -1.5), ("task_il_accuracy", -1)]
)
def test_a_score_that_cannot_be_is_refused_by_the_name_of_its_file(
    write_results: Writer, tmp_path: Path, score: str, value: float
) -> None:
    def impossible(result: dict[str, Any]) -> dict[str, Any]:
        return result | {"scores": result["scores"] | {score: value}}

    folder = write_results(tmp_path, methods=("owm",), seeds=1, change=impossible)
    with pytest.raises(ValueError, match=rf"split-digits_owm_seed0_00.json .*{score}"):
        write_report(folder)


def test_a_stream_without_its_class_order_is_refused_by_the_name_of_its_file(
    write_results: Writer, tmp_path: Path
) -> None:
    def without(result: dict[str, Any]) -> dict[str, Any]:
        return result | {"stream": {key: value for key, value in result["stream"].items() if key != "class_order"}}

    folder = write_results(tmp_path, methods=("owm",), seeds=1, change=without)
    with pytest.raises(ValueError, match=r"split-digits_owm_seed0_00.json .*class_order"):
        write_report(folder)


def test_a_fact_that_is_nested_too_deeply_is_said_in_words(
    write_results: Writer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    folder = write_results(tmp_path, methods=("ewc",), seeds=1, change=lambda result: result | {"machine": deep})
    dumps = json.dumps

    def shallow(value: Any, **options: Any) -> str:
        if value == deep:
            raise RecursionError
        return dumps(value, **options)

    monkeypatch.setattr("cldnet.bench.report.page.json.dumps", shallow)
    assert "(nested too deeply to show)" in write_report(folder).page.read_text("utf-8")


def test_features_without_a_task_are_not_drawn(write_results: Writer, tmp_path: Path) -> None:
    empty = {"features": {"classes": ["a"], "tasks": []}}
    write_report(write_results(tmp_path, methods=("ewc",), seeds=1, change=lambda result: result | empty))
    assert not [name for name in plots_in(tmp_path) if "features" in name]


def test_a_run_of_no_time_and_of_no_bytes_can_be_drawn(write_results: Writer, tmp_path: Path) -> None:
    nothing = {"seconds": {"total": 5e-324}, "bytes": {}}
    assert write_report(write_results(tmp_path, methods=("ewc",), seeds=1, change=lambda r: r | nothing)).plots


def test_plots_of_streams_that_are_gone_are_removed_and_nothing_else(write_results: Writer, tmp_path: Path) -> None:
    folder, out = (
        write_results(tmp_path / "a", methods=("ewc",), seeds=1, streams=("one", "two,tasks=2")),
        tmp_path / "out",
    )
    write_report(folder, out)
    kept = {"mine.png", "two-memory.svg", "notes.txt"}
    for name in kept:
        (out / "plots" / name).write_text("mine")
    for file in folder.glob("two*"):
        file.unlink()
    report = write_report(folder, out)
    assert plots_in(out) == kept | {path.name for path in report.plots}
    assert {name.split("-")[0] for name in plots_in(out) - kept} == {"one"}


def test_a_page_of_somebody_else_does_not_say_what_to_remove(write_results: Writer, tmp_path: Path) -> None:
    folder = write_results(tmp_path / "a", methods=("ewc",), seeds=1)
    (folder / "thesis-memory.svg").write_text("mine")
    links = ("plots/../thesis-memory.svg", "plots/%2E%2E%2Fthesis-memory.svg", "thesis-memory.svg")
    (folder / "index.html").write_text("".join(f'<a href="./{link}">SVG</a>' for link in links))
    write_report(folder)
    assert (folder / "thesis-memory.svg").read_text() == "mine"
