from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any

import pytest

from cldnet.bench.pictures import draw_png


def run(method: str, seed: int = 0, tasks: int = 3) -> dict[str, Any]:
    known = method != "pnn"
    matrix = [[0.95 - 0.1 * (i - j) / tasks - 0.01 * seed for j in range(i + 1)] for i in range(tasks)]
    number = 0.9 if known else None
    scores = dict.fromkeys(("average_accuracy", "average_incremental_accuracy", "forgetting"), number)
    return {
        "method": method,
        "scores": scores | {"task_il_accuracy": 0.99},
        "matrix": matrix if known else None,
        "bytes": {"weights": 1000},
        "rehearsal_free": True,
        "constant_size": True,
        "seconds": {"total": 1.0},
    }


def size(path: Path) -> tuple[int, int]:
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert data.endswith(b"IEND\xaeB`\x82")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def test_a_picture_of_sensible_size_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    draw_png([run(method, seed) for method in ("ewc", "pnn", "cldnet") for seed in range(2)], path)
    width, height = size(path)
    assert 1000 <= width <= 3000
    assert 600 <= height <= 3000
    assert list(tmp_path.iterdir()) == [path]


def test_more_methods_make_a_higher_picture(tmp_path: Path) -> None:
    draw_png([run("ewc")], tmp_path / "few.png")
    draw_png([run(f"method {k}") for k in range(9)], tmp_path / "many.png")
    assert size(tmp_path / "many.png")[0] == size(tmp_path / "few.png")[0]
    assert size(tmp_path / "many.png")[1] > size(tmp_path / "few.png")[1]


def test_the_same_results_give_the_same_bytes(tmp_path: Path) -> None:
    draw_png([run("ewc")], tmp_path / "a.png")
    draw_png([run("ewc")], tmp_path / "b.png")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


@pytest.mark.parametrize("tasks", [1, 25])
def test_any_number_of_tasks_can_be_drawn(tasks: int, tmp_path: Path) -> None:
    draw_png([run("ewc", tasks=tasks)], tmp_path / "picture.png")
    size(tmp_path / "picture.png")


@pytest.mark.parametrize("method", ["pnn", r"$\frac{", "_$x$", "a long name " * 100])
def test_odd_methods_can_be_drawn(method: str, tmp_path: Path) -> None:
    draw_png([run(method)], tmp_path / "picture.png")
    size(tmp_path / "picture.png")


def test_an_old_picture_survives_a_failure(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(b"old")
    with pytest.raises(ValueError, match="no results"):
        draw_png([], path)
    assert path.read_bytes() == b"old"


def test_without_matplotlib_a_sentence_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"Pictures need matplotlib: pip install 'cldnet\[plots\]'"):
        draw_png([run("ewc")], tmp_path / "picture.png")
    assert list(tmp_path.iterdir()) == []


def test_pyplot_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    draw_png([run("ewc")], tmp_path / "picture.png")
    assert "matplotlib.pyplot" not in sys.modules
