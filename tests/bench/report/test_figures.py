from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest

from cldnet.bench.report.drawing import Box, Group, Label, Line, Marks, Plot, Shape, sheet
from cldnet.bench.report.figures import (
    accuracy,
    buffers,
    confusion_map,
    features,
    forgetting,
    matrices,
    memory,
    neighbour_agreement,
    ranks,
    series_style,
    series_styles,
    time,
)
from cldnet.bench.summary import Summary, summarise

Maker = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def summaries(made_up: Maker) -> list[Summary]:
    methods = ("finetune", "ewc", "er", "pnn", "cldnet", "joint")
    return summarise([made_up("digits", method, seed) for method in methods for seed in range(3)])


def shapes(plot: Plot | None, kind: type[Shape]) -> list[Any]:
    assert plot is not None
    return [shape for panel in plot.panels for shape in panel.shapes if isinstance(shape, kind)]


def test_memory_has_a_mark_a_method_hollow_where_data_is_kept(summaries: list[Summary]) -> None:
    marks = {mark.title.split(":")[0]: mark for mark in shapes(memory(summaries, series_styles(summaries)), Marks)}
    assert "PNN" not in marks  # it needs the task
    assert {name for name, mark in marks.items() if mark.hollow} == {"ER (replay)", "Joint training"}
    (left, low), (right, high) = (marks[name].points[0] for name in ("Fine-tuning", "Joint training"))
    assert left < right
    assert low > high  # pixels count downwards


def test_memory_says_which_methods_grow(made_up: Maker) -> None:
    grown = summarise([made_up("digits", "ewc", 0) | {"constant_size": False}])
    plot = memory(grown, series_styles(grown))
    assert "EWC (grows)" in [label.text for label in shapes(plot, Label)]


@pytest.fixture(scope="module")
def replayed(made_up: Maker) -> list[Summary]:
    """Two methods with two sizes of their buffers each, named in two ways, and three without buffers."""

    def kept(method: str, memory: int, label: str, accuracy: float) -> dict[str, Any]:
        run = made_up("digits", method, 0, label=label)
        run["scores"]["average_accuracy"], run["bytes"] = accuracy, {"exemplars": 1000 * memory}
        return run | {"rehearsal_free": False, "config": {"method": {"memory": memory}}}

    runs = [kept("er", 2000, "ER, buffer 2,000", 0.6), kept("er", 200, "ER, buffer 200", 0.3)]
    runs += [kept("er-ace", 200, "", 0.4), kept("er-ace", 500, "", 0.5)]
    return summarise([*runs, *(made_up("digits", method, 0) for method in ("cldnet", "finetune", "pnn"))])


def test_buffers_are_a_line_a_method_and_level_lines_for_methods_without(replayed: list[Summary]) -> None:
    plot = buffers(replayed)
    lines = [line.points for line in shapes(plot, Line) if line.role == "mean"]
    level = [points for points in lines if points[0][1] == points[-1][1]]
    rising = [points for points in lines if points[0][0] < points[-1][0] and points[0][1] > points[-1][1]]
    assert (len(level), len(rising), len(lines)) == (2, 2, 4)  # PNN needs the task
    marks = {mark.title.split(":")[0]: mark for mark in shapes(plot, Marks)}
    assert {name for name, mark in marks.items() if not mark.hollow} == {"CLDNet (hbo)", "Fine-tuning"}
    assert marks["ER, buffer 200"].points[0][0] == marks["ER-ACE (memory=200)"].points[0][0]
    assert plot is not None
    assert plot.head == ("Method", "without", "200", "500", "2,000")
    rows = {row[0]: row[1:] for row in plot.rows}
    assert rows["ER"] == ("–", "30.00%", "–", "60.00%")
    assert rows["ER-ACE"] == ("–", "40.00%", "50.00%", "–")
    assert rows["CLDNet (hbo)"][1:] == ("–", "–", "–")
    assert "ER, buffer 2,000 60.00%" in plot.panels[0].alternative
    assert {"ER", "ER-ACE", "CLDNet (hbo)"} <= {label.text for label in shapes(plot, Label) if label.role == "name"}


def test_memory_joins_the_sizes_of_a_methods_buffer_and_the_key_names_it(replayed: list[Summary]) -> None:
    plot = memory(replayed, series_styles(replayed))
    [er, ace] = [line for line in shapes(plot, Line) if line.role == "run"]
    marks = {mark.title.split(":")[0]: mark for mark in shapes(plot, Marks)}
    assert er.points == [marks[f"ER, buffer {size}"].points[0] for size in ("200", "2,000")]
    assert er.style == marks["ER, buffer 200"].style == marks["ER, buffer 2,000"].style != ace.style
    assert plot is not None
    assert [name for _, name in plot.key].count("ER") == 1
    assert not plot.named
    assert "2,000" in [label.text for label in shapes(plot, Label)]


def test_one_size_of_buffers_is_no_line(replayed: list[Summary], summaries: list[Summary]) -> None:
    assert buffers(summaries) is None
    assert buffers([s for s in replayed if s.memory in (None, 200)]) is None


def test_accuracy_has_a_strong_line_a_method_and_a_thin_one_a_run(summaries: list[Summary]) -> None:
    lines = shapes(accuracy(summaries, series_styles(summaries)), Line)
    assert [line.role for line in lines].count("mean") == 5
    assert [line.role for line in lines].count("run") == 15


def test_with_many_methods_the_key_names_them(made_up: Maker) -> None:
    many = summarise([made_up("digits", f"method {number}", 0) for number in range(30)])
    plot = accuracy(many, series_styles(many))
    assert plot is not None
    assert not plot.named
    assert len(plot.key) == 30
    (whole,) = sheet(plot, "all").shapes
    assert isinstance(whole, Group)
    assert sum(isinstance(shape, Marks) for shape in whole.shapes) == 30  # those of the key


def test_forgetting_and_time_put_the_least_first(summaries: list[Summary]) -> None:
    looks = series_styles(summaries)
    for plot, key in ((forgetting(summaries, looks), "forgetting"), (time(summaries, looks), "seconds")):
        names = [label.text for label in shapes(plot, Label) if label.role == "name"]
        known = [s for s in summaries if getattr(s, key) is not None]
        assert names == [s.name for s in sorted(known, key=lambda s: getattr(s, key))]


def test_a_bar_of_time_is_as_long_as_training_and_evaluation(summaries: list[Summary]) -> None:
    boxes = shapes(time(summaries, series_styles(summaries)), Box)
    solid, pale = boxes[-2:]
    run = max(summaries, key=lambda s: s.seconds or 0).results
    train, evaluate = (sum(sum(result["seconds"][what]) for result in run) for what in ("train", "evaluate"))
    assert pale.width / solid.width == pytest.approx(evaluate / train)


@pytest.mark.parametrize("tasks", [1, 5, 10, 20, 30])
def test_a_matrix_has_a_cell_for_each_task_learned(made_up: Maker, tasks: int) -> None:
    plot = matrices(summarise([made_up("digits", "ewc", 0, tasks)]))
    assert len(shapes(plot, Box)) == tasks * (tasks + 1) // 2
    assert plot is not None
    assert plot.panels[0].alternative.count("task ") == tasks


def test_shades_of_a_matrix_follow_its_values(made_up: Maker) -> None:
    result = made_up("digits", "ewc", 0, 2) | {"matrix": [[1.0], [0.0, 0.5]]}
    assert [box.role for box in shapes(matrices(summarise([result])), Box)] == ["h10", "h0", "h5"]


def test_ranks_are_shares_of_the_width_averaged_over_runs(made_up: Maker) -> None:
    def run(seed: int, rank: int) -> dict[str, Any]:
        tasks = [{"first": {"width": 10, "rank": rank, "trace": rank / 20}}] * 2
        return made_up("digits", "owm", seed, 2) | {"ranks": {"threshold": 0.25, "tasks": tasks}}

    plot = ranks(summarise([run(0, 4), run(1, 8)]))
    assert plot is not None
    assert plot.rows == [
        ("OWM, first, rank / width", "60.00%", "60.00%"),
        ("OWM, first, tr P / width", "30.00%", "30.00%"),
    ]
    assert "above 0.25" in plot.caption


def test_ranks_of_different_layers_are_not_averaged(made_up: Maker) -> None:
    layer = {"width": 10, "rank": 4, "trace": 0.5}
    runs = [
        made_up("digits", "owm", seed) | {"ranks": {"threshold": 0.5, "tasks": [{name: layer}]}}
        for seed, name in enumerate("ab")
    ]
    with pytest.raises(ValueError, match="The runs of 'OWM' on 'digits' have ranks of different layers"):
        ranks(summarise(runs))


def test_features_are_of_the_lowest_seed_one_panel_a_task(summaries: list[Summary]) -> None:
    plot = features(summaries)
    assert plot is not None
    assert [panel.group for panel in plot.panels[::5]] == [f"{s.name}, seed 0" for s in summaries if s.method != "pnn"]
    assert len(plot.key) == 10
    assert len({(look.colour, look.mark) for look, _ in plot.key}) == 10


def test_features_without_points_can_be_drawn(made_up: Maker) -> None:
    empty = {"classes": ["a"], "tasks": [{"points": [], "rows": []}, {"points": [[1, 1]], "rows": [0]}]}
    plot = features(summarise([made_up("digits", "ewc", 0) | {"features": empty}]))
    assert plot is not None
    assert len(plot.panels) == 2


def test_neighbour_agreement_is_what_a_slow_search_finds() -> None:
    draw = Random(0)
    points = [[draw.random(), draw.random()] for _ in range(60)]
    names = [draw.choice("abc") for _ in points]
    found = 0
    for i, (x, y) in enumerate(points):
        others = [j for j in range(60) if j != i]
        nearest = min(others, key=lambda j: (points[j][0] - x) ** 2 + (points[j][1] - y) ** 2)
        found += names[nearest] == names[i]
    assert neighbour_agreement(points, names) == pytest.approx(found / 60)


@pytest.mark.parametrize("colours", [7, 10])
def test_no_two_of_fifty_series_look_alike(colours: int) -> None:
    assert len({series_style(rank, colours) for rank in range(50)}) == 50


def test_nothing_to_plot_is_no_plot(made_up: Maker) -> None:
    only = summarise([made_up("digits", "pnn", 0)])
    looks = series_styles(only)
    assert [plot(only, looks) for plot in (memory, accuracy, forgetting)] == [None] * 3
    assert [plot(only) for plot in (matrices, ranks, features)] == [None] * 3


def test_more_series_than_looks_have_no_key_but_a_sentence(made_up: Maker) -> None:
    for count, alike in ((56, False), (57, True)):
        many = summarise([made_up("digits", f"method {number}", 0) for number in range(count)])
        for make in (memory, accuracy):
            plot = make(many, series_styles(many))
            assert plot is not None
            assert not plot.named
            assert len(plot.key) == (0 if alike else count)
            assert ("the table below names the marks" in plot.caption) == alike


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_the_words_along_a_matrix_fit(made_up: Maker, tasks: int) -> None:
    long = [method + "n" * 28 for method in ("ewc", "owm")]
    plot = matrices(summarise([made_up("digits", method, 0, tasks) for method in long]))
    assert plot is not None
    panel = plot.panels[0]
    assert panel.width >= 150
    assert panel.height >= 34 + 65  # "after task" is turned, and ends at 34
    (whole,) = sheet(plot, "").shapes
    assert isinstance(whole, Group)
    places = {label.text: label.point[0] for label in whole.shapes if isinstance(label, Label)}
    assert places[long[1]] - places[long[0]] >= 31 * 7


def test_cells_of_a_confusion_matrix_say_what_they_count() -> None:
    drawing = confusion_map(np.array([[3, 1], [0, 2]]), ["cat", "dog"])
    titles = [shape.title for shape in drawing.shapes if isinstance(shape, Box) and shape.title]
    assert titles == ["cat: 3 of 4 correct", "cat: 1 of 4 classified as dog", "dog: 2 of 2 correct"]
