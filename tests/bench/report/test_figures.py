from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from random import Random
from typing import Any

import pytest

from cldnet.bench.report.axes import Scale, linear_axis, log_axis
from cldnet.bench.report.bars import forgetting, time
from cldnet.bench.report.figures import accuracy, look_of, looks_of, matrices, memory
from cldnet.bench.report.insides import features, own_company, ranks
from cldnet.bench.report.names import Name, beside, box_of, spread
from cldnet.bench.report.scene import Box, Label, Line, Marks, Plot, Shape, sheet
from cldnet.bench.summary import Summary, summarise

Maker = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def summaries(made_up: Maker) -> list[Summary]:
    methods = ("finetune", "ewc", "er", "pnn", "cldnet", "joint")
    return summarise([made_up("digits", method, seed) for method in methods for seed in range(3)])


def shapes(plot: Plot | None, kind: type[Shape]) -> list[Any]:
    assert plot is not None
    return [shape for panel in plot.panels for shape in panel.scene.shapes if isinstance(shape, kind)]


def test_memory_has_a_mark_a_method_hollow_where_data_is_kept(summaries: list[Summary]) -> None:
    marks = {mark.title.split(":")[0]: mark for mark in shapes(memory(summaries, looks_of(summaries)), Marks)}
    assert "PNN" not in marks  # it needs the task
    assert {name for name, mark in marks.items() if mark.hollow} == {"ER (replay)", "Joint training"}
    (left, low), (right, high) = (marks[name].places[0] for name in ("Fine-tuning", "Joint training"))
    assert left < right
    assert low > high  # pixels count downwards


def test_memory_says_which_methods_grow(made_up: Maker) -> None:
    grown = summarise([made_up("digits", "ewc", 0) | {"constant_size": False}])
    plot = memory(grown, looks_of(grown))
    assert "EWC (grows)" in [label.text for label in shapes(plot, Label)]


def test_accuracy_has_a_strong_line_a_method_and_a_thin_one_a_run(summaries: list[Summary]) -> None:
    lines = shapes(accuracy(summaries, looks_of(summaries)), Line)
    assert [line.role for line in lines].count("mean") == 5
    assert [line.role for line in lines].count("run") == 15


def test_with_many_methods_the_key_names_them(made_up: Maker) -> None:
    many = summarise([made_up("digits", f"method {number}", 0) for number in range(30)])
    plot = accuracy(many, looks_of(many))
    assert plot is not None
    assert not plot.named
    assert len(plot.key) == 30
    assert sum(isinstance(shape, Marks) for shape in sheet(plot, "all").shapes) == 30 * 5 + 30


def test_forgetting_and_time_put_the_least_first(summaries: list[Summary]) -> None:
    looks = looks_of(summaries)
    for plot, key in ((forgetting(summaries, looks), "forgetting"), (time(summaries, looks), "seconds")):
        names = [label.text for label in shapes(plot, Label) if label.role == "name"]
        known = [s for s in summaries if getattr(s, key) is not None]
        assert names == [s.name for s in sorted(known, key=lambda s: getattr(s, key))]


def test_a_bar_of_time_is_as_long_as_training_and_evaluation(summaries: list[Summary]) -> None:
    boxes = shapes(time(summaries, looks_of(summaries)), Box)
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
    assert plot.table.rows == (
        ("OWM, first, rank / width", "60.00%", "60.00%"),
        ("OWM, first, tr P / width", "30.00%", "30.00%"),
    )
    assert "above 0.25" in plot.caption


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


def test_own_company_is_what_a_slow_search_finds() -> None:
    draw = Random(0)
    points = [[draw.random(), draw.random()] for _ in range(60)]
    names = [draw.choice("abc") for _ in points]
    found = 0
    for i, (x, y) in enumerate(points):
        others = [j for j in range(60) if j != i]
        nearest = min(others, key=lambda j: (points[j][0] - x) ** 2 + (points[j][1] - y) ** 2)
        found += names[nearest] == names[i]
    assert own_company(points, names) == pytest.approx(found / 60)


@pytest.mark.parametrize("colours", [7, 10])
def test_no_two_of_fifty_series_look_alike(colours: int) -> None:
    assert len({look_of(rank, colours) for rank in range(50)}) == 50


def test_nothing_to_plot_is_no_plot(made_up: Maker) -> None:
    only = summarise([made_up("digits", "pnn", 0)])
    looks = looks_of(only)
    assert [plot(only, looks) for plot in (memory, accuracy, forgetting)] == [None] * 3
    assert [plot(only) for plot in (matrices, ranks, features)] == [None] * 3


def test_labels_keep_their_distance_and_order() -> None:
    places = [50.0, 51.0, 10.0, 52.0, 75.0]
    moved = sorted(zip(places, spread(places, gap=20), strict=True))
    assert all(b - a >= 20 - 1e-9 for a, b in pairwise(y for _, y in moved))


Boxes = Sequence[tuple[float, float, float, float]]


def check_names(places: Sequence[tuple[float, float]], found: Sequence[Name | None]) -> Boxes:
    """No name touches another or a mark, each is nearest to its own mark, and has a lead unless it is right beside it."""
    marks = [(x - 7, y - 7, x + 7, y + 7) for x, y in places]
    boxes = []
    for number, name in enumerate(found):
        if name is None:
            continue
        box = box_of(name.label)
        boxes.append(box)
        distances = [
            math.dist(place, (min(max(place[0], box[0]), box[2]), min(max(place[1], box[1]), box[3])))
            for place in places
        ]
        assert distances[number] == min(distances)
        assert (name.lead is None) == (name.label.place[1] == places[number][1] + 4)
        for left, top, right, bottom in marks:
            assert box[2] <= left or right <= box[0] or box[3] <= top or bottom <= box[1]
    for one, other in combinations(boxes, 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    return boxes


def test_names_beside_marks_do_not_touch() -> None:
    places = [(100.0, 100.0), (110.0, 104.0), (105.0, 96.0)]
    assert len(check_names(places, beside(places, ["one", "two", "three"], (0, 0), (400, 200)))) >= 2
    assert beside([(5.0, 5.0)], ["no room at all"], (0, 0), (20, 20)) == [None]


def test_names_of_marks_that_touch_are_not_taken_for_each_others() -> None:
    # The demo: names of two methods once stood beside each other's marks.
    marks = {
        "CLDNet (exact)": (352.1, 45.8),
        "CLDNet (hbo)": (360.5, 52.7),
        "OWM": (348.6, 55.2),
        "Joint training (grows)": (196.1, 47.0),
        "EWC": (235.9, 218.0),
        "Fine-tuning": (107.5, 236.0),
    }
    found = beside(list(marks.values()), list(marks), (56, 18), (540, 260))
    assert None not in found
    check_names(list(marks.values()), found)


@pytest.mark.parametrize("seed", range(20))
def test_names_of_a_crowd_are_right_or_are_left_to_the_key(seed: int) -> None:
    draw = Random(seed)
    places = [(draw.uniform(60, 400), draw.gauss(80, 30)) for _ in range(12)]
    check_names(places, beside(places, [f"method {number}" for number in range(12)], (56, 18), (540, 260)))


def test_a_lead_does_not_cross_another_mark_or_name() -> None:
    draw = Random(3)
    places = [(draw.uniform(100, 160), draw.uniform(80, 140)) for _ in range(8)]
    found = beside(places, ["name"] * 8, (0, 0), (400, 260))
    led = [(number, name) for number, name in enumerate(found) if name and name.lead]
    assert led
    for number, name in led:
        assert name.lead is not None
        (x, y), (right, down) = name.lead
        on_it = [(x + (right - x) * k / 50, y + (down - y) * k / 50) for k in range(50)]
        for other, place in enumerate(places):
            if other != number and max(abs(place[0] - x), abs(place[1] - y)) > 7:
                assert min(math.dist(place, at) for at in on_it) > 5


def test_more_series_than_looks_have_no_key_but_a_sentence(made_up: Maker) -> None:
    for count, alike in ((56, False), (57, True)):
        many = summarise([made_up("digits", f"method {number}", 0) for number in range(count)])
        for make in (memory, accuracy):
            plot = make(many, looks_of(many))
            assert plot is not None
            assert not plot.named
            assert len(plot.key) == (0 if alike else count)
            assert ("the numbers below name the marks" in plot.caption) == alike


@pytest.mark.parametrize("tasks", [1, 2, 5])
def test_the_words_along_a_matrix_fit(made_up: Maker, tasks: int) -> None:
    long = [method + "n" * 28 for method in ("ewc", "owm")]
    plot = matrices(summarise([made_up("digits", method, 0, tasks) for method in long]))
    assert plot is not None
    scene = plot.panels[0].scene
    assert scene.width >= 150
    assert scene.height >= 34 + 65  # "after task" is turned, and ends at 34
    places = {label.text: label.place[0] for label in sheet(plot, "").shapes if isinstance(label, Label)}
    assert places[long[1]] - places[long[0]] >= 31 * 7


def test_a_scale_of_ratios_puts_the_geometric_mean_in_the_middle() -> None:
    assert Scale(1, 10_000, 0, 200, log=True)(100) == pytest.approx(100)


@pytest.mark.parametrize("values", [[1], [5, 5.1], [900, 2e6], [1, 1e12], [1e9, 4e9]])
def test_an_axis_of_ratios_holds_its_values_and_has_some_ticks(values: list[float]) -> None:
    axis = log_axis(values, 0, 100, "", str)
    assert all(0 < axis.scale(value) < 100 for value in values)
    assert 2 <= len(axis.ticks) <= 6
    assert all(0 <= axis.scale(tick) <= 100 for tick, _ in axis.ticks)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 0.05), (0.4, 1), (-0.1, 0.7), (0, 654.3), (0.9, 1), (3, 3)])
def test_an_axis_has_three_to_seven_round_ticks(low: float, high: float) -> None:
    axis = linear_axis(low, high, 0, 100, "", "{:g}".format)
    assert 1 <= len(axis.ticks) <= 7
    if high > low:
        assert len(axis.ticks) >= 3
