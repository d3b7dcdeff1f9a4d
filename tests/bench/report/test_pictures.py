from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from typing import Any

import pytest

from cldnet.bench.report.figures import accuracy, looks_of, matrices, memory
from cldnet.bench.report.pictures import png_file
from cldnet.bench.report.scene import sheet
from cldnet.bench.summary import summarise

Maker = Callable[..., dict[str, Any]]


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
        plot = make(summaries, looks_of(summaries))
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
