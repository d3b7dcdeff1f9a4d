from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from cldnet.bench.report import write_report

Writer = Callable[..., Path]
PLOTS = {"memory", "accuracy", "forgetting", "time", "matrices", "ranks", "features"}


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
    assert "4 of 4 runs are not there yet." in page
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
    assert "1 of 3 runs is not there yet." in page
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
    assert report.missing == "PNG files of the plots need matplotlib: pip install 'cldnet[plots]'"
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
    with pytest.raises(ValueError, match=r"split-digits_owm_seed0_00.json has .* that cannot be read"):
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
