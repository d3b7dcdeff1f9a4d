from __future__ import annotations

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cldnet.bench.page import render_page, write_page
from cldnet.bench.style import DARK_SCALE, LIGHT_SCALE, luminance, shades
from cldnet.bench.svg import spread

VOID = {"meta"}
HOSTILE = "<script>alert(1)</script>\"'&\x00\u202e\ud800 $x$"


def run(method: str, seed: int, tasks: int = 3) -> dict[str, Any]:
    known = method != "pnn"
    matrix = [[0.99 - 0.05 * (i - j) - 0.01 * seed for j in range(i + 1)] for i in range(tasks)]
    order = [(c + seed) % (2 * tasks) for c in range(2 * tasks)]
    accuracy = sum(matrix[-1]) / tasks
    stream = {"name": "split-digits", "hash": f"9f2c{seed}", "class_order": order}
    stream["tasks"] = [order[2 * t : 2 * t + 2] for t in range(tasks)]
    return {
        "method": method,
        "backbone": "mlp",
        "stream": stream,
        "seed": seed,
        "config": {"lr": 0.25, "layers": [64, 32]},
        "scores": {
            "average_accuracy": accuracy if known else None,
            "average_incremental_accuracy": accuracy if known else None,
            "forgetting": 0.05 if known else None,
            "task_il_accuracy": 0.9876,
        },
        "matrix": matrix if known else None,
        "bytes": {"weights": 4000, "projectors": 800},
        "rehearsal_free": method != "er",
        "constant_size": known,
        "seconds": {"total": 3.25},
        "threads": 2,
        "versions": {"cldnet": "0.1.0", "torch": "2.9.0"},
        "machine": "a computer",
        "file": f"{method}-{seed}.json",
    }


def results(*methods: str, runs: int = 3) -> list[dict[str, Any]]:
    return [run(method, seed) for method in methods for seed in range(runs)]


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
        if self.open and self.open[-1] != "style":
            self.words += data


def row(page: str, name: str) -> list[str]:
    [cells] = re.findall(rf'<tr><th scope="row">{re.escape(name)}</th>(.*?)</tr>', page.split("<h2>")[0])
    return [re.sub("<.*?>", "", cell) for cell in re.findall("<td.*?</td>", cells)]


def test_the_table_shows_each_method() -> None:
    page = render_page(results("ewc", "er"), "Digits")
    assert row(page, "EWC") == ["93.00 ± 1.00%", "5.00%", "98.76%", "3.2", "4.8 kB", "no", "no"]
    assert row(page, "ER (replay)")[-2:] == ["no", "yes"]


def test_a_method_that_needs_the_task_has_words_for_numbers_and_no_drawing() -> None:
    page = render_page(results("pnn", "ewc"), "Digits")
    assert row(page, "PNN")[:3] == ["needs the task", "needs the task", "98.76%"]
    assert page.count('class="heat"') == 1
    assert "PNN needs the task" in page


def test_a_page_of_only_such_methods_is_still_a_page() -> None:
    page = render_page(results("pnn"), "Digits")
    assert "<svg" not in page
    Reader(page)


def test_the_best_rival_is_marked_but_not_the_bounds() -> None:
    better = run("owm", 0) | {"scores": run("owm", 0)["scores"] | {"average_accuracy": 0.97}}
    page = render_page([*results("joint", "ewc", runs=1), better], "Digits")
    assert re.findall("<strong>(.*?)</strong>", page) == ["97.00%"]


def test_every_run_says_what_it_takes_to_repeat_it() -> None:
    words = Reader(render_page(results("ewc"), "Digits")).words
    for fact in ("9f2c2", "[2, 3, 4, 5, 0, 1]", '"lr": 0.25', "torch 2.9.0", "a computer", "ewc-2.json"):
        assert fact in words


def test_a_run_without_a_file_has_no_link() -> None:
    result = run("ewc", 0)
    del result["file"]
    assert "<a " not in render_page([result], "Digits")


def test_the_page_loads_nothing_and_runs_nothing() -> None:
    reader = Reader(render_page(results("ewc", "cldnet", "pnn"), "Digits"))
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in reader.tags}
    targets = [attrs[name] for _, attrs in reader.tags for name in ("src", "href", "xlink:href") if name in attrs]
    assert len(targets) == 9
    assert all(target is not None and target.startswith("./") for target in targets)
    page = render_page(results("ewc"), "Digits")
    assert "http" not in page
    assert "url(" not in page
    assert "@import" not in page


def hostile(value: Any) -> Any:
    if isinstance(value, str):
        return HOSTILE
    if isinstance(value, list):
        return [hostile(item) for item in value]
    if isinstance(value, dict):
        return {key: hostile(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize("method", ["ewc", "pnn"])
def test_strangers_cannot_put_markup_into_the_page(method: str, tmp_path: Path) -> None:
    result = hostile(run(method, 0))
    result |= {"seed": HOSTILE, "threads": HOSTILE}
    result["config"] = {HOSTILE: [HOSTILE]}
    result["versions"] = {HOSTILE: HOSTILE}
    result["stream"]["class_order"] = [HOSTILE]
    write_page([result], tmp_path / "page.html", title=HOSTILE)
    page = (tmp_path / "page.html").read_text("utf-8")
    reader = Reader(page)
    assert "script" not in {tag for tag, _ in reader.tags}
    assert not any(name.startswith("on") for _, attrs in reader.tags for name in attrs)
    assert reader.words.count("<script>alert(1)</script>") >= 10
    for drawing in re.findall("<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(drawing)


@pytest.mark.parametrize(
    "name", ["javascript:alert(1)", "//evil.example/x", "https://evil.example", "\\\\evil", "data:x"]
)
def test_a_link_stays_beside_the_page(name: str) -> None:
    page = render_page([run("ewc", 0) | {"file": name}], "Digits")
    [target] = re.findall('href="(.*?)"', page)
    assert target.startswith("./")
    assert ":" not in target
    assert "\\" not in target


def test_drawings_are_well_formed_and_have_names() -> None:
    page = render_page(results("ewc", "cldnet", "exact"), "Digits")
    drawings = [ElementTree.fromstring(d) for d in re.findall("<svg.*?</svg>", page, re.DOTALL)]
    pictures = [d for d in drawings if d.get("aria-hidden") != "true"]
    assert len(pictures) == 4
    for picture in pictures:
        assert picture.get("role") == "img"
        assert picture.get("aria-label")
        assert picture.find("title") is not None
    cells = [g for g in pictures[1].iter("g") if g.find("rect") is not None]
    assert [cell.findtext("text") for cell in cells] == ["98.0", "93.0", "98.0", "88.0", "93.0", "98.0"]
    assert cells[1].findtext("title") == "After task 2, task 1: 93.00%"


def test_readers_without_sight_find_structure() -> None:
    reader = Reader(render_page(results("ewc"), "Digits"))
    tags = reader.tags
    assert next(attrs for tag, attrs in tags if tag == "html")["lang"] == "en"
    assert [tag for tag, _ in tags if tag in {"h1", "h2", "h3"}] == ["h1", "h2", "h2", "h2", "h3"]
    assert all(attrs["scope"] in {"row", "col"} for tag, attrs in tags if tag == "th")
    names = [tag for tag, _ in tags]
    assert names.count("caption") == names.count("table") == 2


@pytest.mark.parametrize("scale", [LIGHT_SCALE, DARK_SCALE])
def test_numbers_in_heat_maps_can_be_read(scale: Any) -> None:
    pairs = re.findall("fill: #(......); .*fill: #(......);", shades(*scale))
    assert len(pairs) == 11
    for pair in pairs:
        low, high = sorted(luminance((int(c[:2], 16), int(c[2:4], 16), int(c[4:], 16))) for c in pair)
        assert (high + 0.05) / (low + 0.05) >= 4.5


def test_equal_results_give_an_equal_file_and_leave_nothing_else(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    write_page(results("ewc"), page)
    first = page.read_bytes()
    write_page(results("ewc"), page)
    assert page.read_bytes() == first
    assert list(tmp_path.iterdir()) == [page]


def test_no_results_make_no_page(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no results"):
        write_page([], tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_labels_keep_their_distance_and_order() -> None:
    places = [50.0, 51.0, 10.0, 52.0, 75.0]
    moved = sorted(zip(places, spread(places, gap=20), strict=True))
    ys = [y for _, y in moved]
    assert all(b - a >= 20 - 1e-9 for a, b in pairwise(ys))


@pytest.mark.parametrize("tasks", [1, 8, 20])
def test_any_number_of_tasks_can_be_drawn(tasks: int) -> None:
    page = render_page([run("ewc", seed, tasks) for seed in range(2)], "Digits")
    for drawing in re.findall("<svg.*?</svg>", page, re.DOTALL):
        ElementTree.fromstring(drawing)
    assert "nan" not in page.split("</style>")[1]
