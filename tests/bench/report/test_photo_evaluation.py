"""Figures of an evaluation: what counts, what is left out, and how it is said."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cldnet.bench.report.model_pages import Evaluation, Prediction, evaluation_page


def evaluation(*answers: Prediction, classes: int = 3, **more: Any) -> Evaluation:
    about = {
        "model": "m",
        "digest": "sha256:0",
        "folder": "f",
        "unread": {},
        "day": "2026-01-01",
        "versions": {},
    } | more
    return Evaluation(classes=classes, answers=answers, **about)


def answered(label: str, answer: str, probability: float = 0.5, rank: int | None = -1) -> Prediction:
    rank = (0 if label == answer else 1) if rank == -1 else rank
    return Prediction(f"{label}/1.jpg", label, answer, probability, rank)


MIXED = (
    *[answered("wren", "wren", 0.9)] * 6,
    *[answered("wren", "robin", 0.7)] * 2,
    answered("robin", "kite", 0.8, rank=3),
    answered("robin", "robin", 0.6),
    *[answered("owl", "wren", 0.3, rank=None)] * 2,
    answered("owl", "robin", 0.3, rank=None),
)


def test_every_figure_of_known_classes_leaves_out_unknown_ones() -> None:
    found = evaluation(*MIXED, classes=4)
    assert found.accuracy == 0.7
    assert found.balanced_accuracy == (0.75 + 0.5) / 2
    assert found.top3_accuracy == 0.9
    assert found.mean_probability == pytest.approx((6 * 0.9 + 2 * 0.7 + 0.8 + 0.6) / 10)
    assert found.labels == ["kite", "robin", "wren"]  # a class may have no photo, and be an answer
    assert found.matrix.tolist() == [[0, 0, 0], [1, 1, 0], [0, 2, 6]]
    assert [(one.label, one.samples, one.right) for one in found.by_class] == [("robin", 2, 1), ("wren", 8, 6)]
    assert [tuple(pair) for pair in found.confusions] == [("wren", "robin", 2, 8), ("robin", "kite", 1, 2)]
    assert [tuple(one) for one in found.unknown_classes] == [("owl", 3, {"wren": 2, "robin": 1})]


def test_text_says_the_figures() -> None:
    said = str(evaluation(*MIXED, classes=4, unread={"wren/9.jpg": "empty"}))
    for words in (
        "10 of 2 classes that the model knows",
        "70.00% of photos, 62.50% as a mean over classes",
        "90.00% have their class among the three most likely",
        "82.00% on average, accuracy 70.00%: 12.0 points overconfident",
        "'robin' 50.00% of 2, 'wren' 75.00% of 8",
        "2 of 8 'wren' classified as 'robin'",
        "1 of 2 'robin' classified as 'kite'",
        "3 photos of 1 class that the model does not know, not counted above",
        "2 of 3 'owl' classified as 'wren'",
        "1 photo left out",
    ):
        assert words in said


def test_what_is_perfect_has_no_worst_and_no_confusion() -> None:
    said = str(evaluation(answered("wren", "wren", 1.0), classes=1))
    assert [line.split()[0] for line in said.splitlines()] == ["photos", "accuracy", "sure"]


def test_three_classes_have_no_top_three() -> None:
    assert evaluation(*MIXED, classes=3).top3_accuracy is None
    assert "top 3" not in str(evaluation(*MIXED, classes=3))


def test_many_unknown_classes_are_named_in_part_and_counted() -> None:
    unknown = [answered(f"unknown {n}", "wren", rank=None) for n in range(8)]
    said = str(evaluation(answered("wren", "wren"), *unknown))
    assert "8 photos of 8 classes" in said
    assert said.count("classified as") == 5
    assert said.splitlines()[-1].strip() == "and 3 classes more"


def test_the_label_of_an_unknown_class_cannot_move_the_cursor() -> None:
    assert "\x1b" not in str(evaluation(answered("a\x1b[2J", "b\x1b[2J"), answered("c\x1b[2J", "d", rank=None)))


def test_nothing_to_measure_is_said() -> None:
    with pytest.raises(ValueError, match="No readable photo under 'f' is of a class that the model knows"):
        evaluation(answered("owl", "wren", rank=None))


def test_json_has_all_figures_and_every_answer() -> None:
    found = evaluation(*MIXED, classes=4, unread={"wren/9.jpg": "empty"})
    read = json.loads(json.dumps(found.to_json()))
    assert read["photos"] == {"known": 10, "unknown": 3, "unread": 1}
    assert read["accuracy"] == found.accuracy
    assert read["by_class"][0] == {"label": "robin", "photos": 2, "right": 1, "accuracy": 0.5}
    assert read["confusion"] == {"labels": found.labels, "matrix": found.matrix.tolist()}
    assert sum(map(sum, read["confusion"]["matrix"])) == 10
    assert read["unknown"] == [{"label": "owl", "photos": 3, "taken_for": {"wren": 2, "robin": 1}}]
    assert read["unread"] == [{"photo": "wren/9.jpg", "reason": "empty"}]
    answers = [{"name": answer.pop("photo"), **answer} for answer in read["answers"]]
    assert [Prediction(**answer) for answer in answers] == list(MIXED)


def test_json_and_text_call_samples_what_they_are() -> None:
    found = evaluation(*MIXED, classes=4, noun="text")
    read = found.to_json()
    assert read["texts"] == {"known": 10, "unknown": 3, "unread": 0}
    assert {"text", "label"} <= read["answers"][0].keys()
    assert "photo" not in str(found) + json.dumps(read)
    assert "photo" not in evaluation_page(found, [(MIXED[0], "hello <there>")]).lower()
    assert "hello &lt;there&gt;" in evaluation_page(found, [(MIXED[0], "hello <there>")])
