from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from benchmarks.speed import say
from benchmarks.speed.page import write_page
from benchmarks.speed.record import NotRun
from benchmarks.speed.result import Result

Make = Callable[..., Any]
HOSTILE = "<script>alert(1)</script>\"'&\x00\u202e | $x$"


@pytest.fixture(scope="module")
def run(a_result: Make, a_finding: Make, a_curve: Make) -> Result:
    seconds = {"above": {"wall": [2.0, 4.0], "cpu": [2.0, 4.0]}, "below": {"wall": [1.0, 1.0], "cpu": [1.0, 1.0]}}
    peer = {"images_per_second": 12_000.0, "accuracy": 0.9312}
    return a_result(
        a_finding("met", 1.2, target=1.5, title="A step", details={"seconds": seconds, "share_of_sgemm": 0.62}),
        a_finding("missed", 7.77, target=1.5, threads=2, title="A step", details={"peer": peer}),
        a_finding("fast", 30.0, target=10, higher_is_better=True),
        a_finding("free", 0.02, details={"data": HOSTILE}),
        a_finding("nothing", 0.0, title="A ratio of zero"),
        a_curve("line", 1.02, title="Time to learn", expected=1),
        a_curve("flat", 0.0, title="Time to answer"),
        NotRun("other", "beside another library", HOSTILE),
    )


@pytest.fixture(scope="module")
def page(run: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speed")
    write_page(run, folder / "docs" / "index.html", folder / "results" / "speed.json")
    return folder / "docs" / "index.html"


def rows(page: str, table: str) -> list[list[str]]:
    body = re.search(rf'<table id="{table}".*?<tbody>(.*?)</tbody>', page, re.DOTALL)
    assert body is not None
    found = re.findall("<tr>(.*?)</tr>", body[1])
    return [[re.sub("<.*?>", "", cell) for cell in re.findall(r"<t[hd].*?</t[hd]>", row)] for row in found]


def test_a_missed_target_is_seen_at_once(page: Path) -> None:
    words = page.read_text("utf-8")
    assert "2 of 3 targets are met" in words
    assert '<li><span class="missed">Not met</span>: A step, 2 threads: 7.77, where the target is ≤ 1.5.</li>' in words
    shown = rows(words, "all-targets")
    assert [row[-1] for row in shown] == ["✓ met", "✗ not met", "✓ met"]
    assert shown[1] == ["A step", "2", "7.77 (7.69–7.85)", "8.55 (8.46–8.63)", "≤ 1.5", "✗ not met"]
    assert shown[2][-2] == "≥ 10"


def test_what_a_part_has_noted_stands_beside_its_ratios(page: Path) -> None:
    words = page.read_text("utf-8")
    head = re.findall(
        r"<th scope=\"col\".*?>(.*?)</th>", words.partition('id="steps-ratios"')[2].partition("</thead>")[0]
    )
    first, second = rows(words, "steps-ratios")[:2]
    assert dict(zip(head, first, strict=True))["Seconds, both sides"] == "3.00 / 1.00"
    assert dict(zip(head, first, strict=True))["Share of sgemm"] == "0.620"
    assert dict(zip(head, second, strict=True))["Peer images per second"] == "12,000"
    assert dict(zip(head, second, strict=True))["Peer accuracy"] == "0.931"


def test_curves_show_the_exponent_beside_the_expected_one(page: Path) -> None:
    words = page.read_text("utf-8")
    assert "exponent 1.02 (expected 1)" in words
    assert "exponent 0.00<" in words
    assert [row[1:3] for row in rows(words, "growth-growth")] == [["1.02", "1"], ["0.00", "–"]]


def test_the_page_says_what_it_stands_on_and_what_was_not_run(page: Path) -> None:
    words = page.read_text("utf-8")
    for fact in (
        "Some Processor",
        "0123456789abcdef",
        "2025-01-02T03:04:05",
        "python -m benchmarks.speed",
        "torch 2.8",
    ):
        assert fact in words
    assert 'href="./../results/speed.json"' in words
    assert "beside another library" in words
    assert "180.0 GFLOP/s" in words
    assert "Parts that were not asked for: before, parts, exact, peers, memory, startup." in words


def test_strange_text_stays_text_and_nothing_is_fetched(page: Path) -> None:
    words = page.read_text("utf-8")
    assert "<script" not in words
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in words
    assert "\x00" not in words
    assert "\u202e" not in words
    assert re.findall(r"(?:src|href)=\"(?!#|\./)", words) == []


def test_plots_are_also_files_that_stand_alone(page: Path) -> None:
    files = sorted(page.parent.glob("*.svg"))
    assert [file.name for file in files] == ["growth-growth.svg", "steps-ratios.svg"]
    for file in files:
        ElementTree.parse(file)
    assert "7.77 (7.69–7.85) ✗" in files[1].read_text("utf-8")


def test_a_run_that_found_nothing_still_has_a_page(a_result: Make, tmp_path: Path) -> None:
    write_page(a_result(dirty=True, commit=None), tmp_path / "index.html", tmp_path / "speed.json")
    words = (tmp_path / "index.html").read_text("utf-8")
    assert "0 of 0 targets" in words
    assert "unknown</code> with uncommitted changes" in words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (0.0, "0"),
        (1.234, "1.23"),
        (0.01234, "0.0123"),
        (1234.5, "1,234"),
        (99.96, "100"),
        (1e-7, "1.00e-07"),
        (9.999, "10.0"),
    ],
)
def test_figures_have_three_digits_that_count(value: float, words: str) -> None:
    assert say.figure(value) == words


def test_a_target_is_shown_with_the_limit_by_arithmetic_but_not_with_bytes(a_finding: Make) -> None:
    steps = a_finding("step", 1.2, target=1.5, details={"limit": 1.4112, "seconds": {}})
    assert say.target(steps) == "≤ 1.5 (limit 1.41)"
    memory = a_finding("memory", 0.5, target=1.0, details={"limit": 2**30})
    assert say.target(memory) == "≤ 1"
