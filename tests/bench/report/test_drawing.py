from __future__ import annotations

import math
import re
import struct
import sys
from collections.abc import Callable, Sequence
from itertools import combinations, pairwise
from random import Random
from typing import Any

import pytest

from cldnet.bench.report.drawing import (
    COLOURS,
    LIGHT,
    SHADES,
    Axis,
    clean,
    label_box,
    linear_axis,
    log_axis,
    place_names,
    png_file,
    read_file,
    sheet,
    spread_labels,
)
from cldnet.bench.report.figures import accuracy, matrices, memory, series_styles
from cldnet.bench.summary import summarise

Maker = Callable[..., dict[str, Any]]


def test_labels_keep_their_distance_and_order() -> None:
    places = [50.0, 51.0, 10.0, 52.0, 75.0]
    moved = sorted(zip(places, spread_labels(places, gap=20), strict=True))
    assert all(b - a >= 20 - 1e-9 for a, b in pairwise(y for _, y in moved))


Boxes = Sequence[tuple[float, float, float, float]]


def check_names(places: Sequence[tuple[float, float]], found: Sequence[Any]) -> Boxes:
    """No name touches another or a mark, each is nearest to its own mark, and has a lead unless it is right beside it."""
    marks = [(x - 7, y - 7, x + 7, y + 7) for x, y in places]
    boxes = []
    for number, name in enumerate(found):
        if name is None:
            continue
        label, lead = name
        box = label_box(label)
        boxes.append(box)
        distances = [
            math.dist(place, (min(max(place[0], box[0]), box[2]), min(max(place[1], box[1]), box[3])))
            for place in places
        ]
        assert distances[number] == min(distances)
        assert (lead is None) == (label.point[1] == places[number][1] + 4)
        for left, top, right, bottom in marks:
            assert box[2] <= left or right <= box[0] or box[3] <= top or bottom <= box[1]
    for one, other in combinations(boxes, 2):
        assert one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
    return boxes


def test_names_beside_marks_do_not_touch() -> None:
    places = [(100.0, 100.0), (110.0, 104.0), (105.0, 96.0)]
    assert len(check_names(places, place_names(places, ["one", "two", "three"], (0, 0), (400, 200)))) >= 2
    assert place_names([(5.0, 5.0)], ["no room at all"], (0, 0), (20, 20)) == [None]


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
    found = place_names(list(marks.values()), list(marks), (56, 18), (540, 260))
    assert None not in found
    check_names(list(marks.values()), found)


@pytest.mark.parametrize("seed", range(20))
def test_names_of_a_crowd_are_right_or_are_left_to_the_key(seed: int) -> None:
    draw = Random(seed)
    places = [(draw.uniform(60, 400), draw.gauss(80, 30)) for _ in range(12)]
    check_names(places, place_names(places, [f"method {number}" for number in range(12)], (56, 18), (540, 260)))


def test_a_lead_does_not_cross_another_mark_or_name() -> None:
    draw = Random(3)
    places = [(draw.uniform(100, 160), draw.uniform(80, 140)) for _ in range(8)]
    found = place_names(places, ["name"] * 8, (0, 0), (400, 260))
    led = [(number, name[1]) for number, name in enumerate(found) if name and name[1]]
    assert led
    for number, ((x, y), (right, down)) in led:
        on_it = [(x + (right - x) * k / 50, y + (down - y) * k / 50) for k in range(50)]
        for other, place in enumerate(places):
            if other != number and max(abs(place[0] - x), abs(place[1] - y)) > 7:
                assert min(math.dist(place, at) for at in on_it) > 5


def test_a_scale_of_ratios_puts_the_geometric_mean_in_the_middle() -> None:
    assert Axis(1, 10_000, 0, 200, log=True)(100) == pytest.approx(100)


@pytest.mark.parametrize("values", [[1], [5, 5.1], [900, 2e6], [1, 1e12], [1e9, 4e9]])
def test_an_axis_of_ratios_holds_its_values_and_has_some_ticks(values: list[float]) -> None:
    axis = log_axis(values, 0, 100, "", str)
    assert all(0 < axis(value) < 100 for value in values)
    assert 2 <= len(axis.ticks) <= 6
    assert all(0 <= axis(tick) <= 100 for tick, _ in axis.ticks)


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0, 0.05), (0.4, 1), (-0.1, 0.7), (0, 654.3), (0.9, 1), (3, 3)])
def test_an_axis_has_three_to_seven_round_ticks(low: float, high: float) -> None:
    axis = linear_axis(low, high, 0, 100, "", "{:g}".format)
    assert 1 <= len(axis.ticks) <= 7
    if high > low:
        assert len(axis.ticks) >= 3


def size(picture: bytes) -> tuple[int, int]:
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    assert picture.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", picture[16:24])
    return width, height


def test_a_picture_shows_the_whole_sheet_at_twice_its_size(made_up: Maker) -> None:
    plot = matrices(summarise([made_up("digits", method, 0) for method in ("ewc", "owm", "cldnet")]))
    assert plot is not None
    scene = sheet(plot, "Matrices")
    assert size(png_file(plot, "Matrices")) == pytest.approx((2 * scene.width, 2 * scene.height), abs=2)


@pytest.mark.parametrize("name", [r"$\frac{", "_$x$", "a long name " * 100, "名前", "a\x00b\u202e", "می\u200cخواهم"])
def test_odd_names_can_be_drawn(made_up: Maker, name: str) -> None:
    summaries = summarise([made_up("digits", "ewc", 0, label=name)])
    for make in (memory, accuracy):
        plot = make(summaries, series_styles(summaries))
        assert plot is not None
        size(png_file(plot, name[:40]))


def test_the_same_plot_gives_the_same_bytes_and_leaves_pyplot_alone(
    made_up: Maker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    plot = matrices(summarise([made_up("digits", "ewc", 0)]))
    assert plot is not None
    assert png_file(plot, "A") == png_file(plot, "A")
    assert "matplotlib.pyplot" not in sys.modules


def test_joined_letters_stay_joined_and_nothing_turns_the_text() -> None:
    for word in ("\U0001f469\u200d\U0001f52c", "می\u200cخواهم"):
        assert clean(word) == word
    for turn in "\u200e\u200f\u202a\u202e\u2066\u2069\u061c\ufeff\x00":
        assert clean(f"a{turn}b") == "a\ufffdb"


def luminance(colour: str) -> float:
    """Relative luminance of an sRGB colour, as WCAG 2.2 defines it."""
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


DARK = dict(re.findall(r"--(\w+):(#\w+)", read_file("page.css")))


@pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_can_be_read(palette: dict[str, str]) -> None:
    def contrast(one: str, other: str) -> float:
        low, high = sorted((luminance(palette[one]), luminance(palette[other])))
        return (high + 0.05) / (low + 0.05)

    assert palette.keys() == LIGHT.keys()
    for name in ("ink", "soft", "link"):
        assert contrast(name, "paper") >= 4.5
        assert contrast(name, "wash") >= 4.5
    for number in range(COLOURS):  # marks and lines are not text: 3:1 is asked of them
        assert contrast(f"s{number}", "paper") >= 4.5
    for step in range(SHADES):
        assert contrast(f"h{step}", f"t{step}") >= 4.5
