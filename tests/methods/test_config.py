"""What may be searched: every method's own ranges, and what a range is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cldnet.methods import METHODS, read_method
from cldnet.methods.config import Choice, LogUniform, Range, Whole, check_ranges, config_from_json, config_to_json, edge


def ends(span: Range) -> Iterator[Any]:
    yield from span.values if isinstance(span, Choice) else (span.low, span.high)


@pytest.mark.parametrize("method", METHODS)
def test_a_methods_ranges_are_fields_of_its_configuration_which_takes_all_their_values(method: str) -> None:
    learner = read_method(method)
    check_ranges(method, learner.ranges, learner.config_class)
    for name, span in learner.ranges.items():
        for value in ends(span):
            config = replace(learner.config_class(), **config_from_json({name: value}))
            assert config_to_json(config)[name] == value


@pytest.mark.parametrize("method", METHODS)
def test_a_methods_defaults_lie_within_its_ranges(method: str) -> None:
    learner = read_method(method)
    default = config_to_json(learner.config_class())
    assert all(default[name] in span for name, span in learner.ranges.items())


def test_the_budget_is_searched_by_none() -> None:
    searched = {name for method in METHODS for name in read_method(method).ranges}
    assert searched.isdisjoint({"epochs", "batch_size", "memory", "widths"})
    assert read_method("exact").ranges == {}


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (lambda: Choice(()), "one or more different values"),
        (lambda: Choice((1, 2, 1)), "one or more different values"),
        (lambda: Choice((object(),)), "JSON values"),
        (lambda: Choice((float("nan"),)), "JSON values"),
        (lambda: LogUniform(0.0, 1.0), "0 < low < high"),
        (lambda: LogUniform(1.0, 0.1), "0 < low < high"),
        (lambda: LogUniform(1.0, float("inf")), "0 < low < high"),
        (lambda: Whole(3, 3), "low < high"),
        (lambda: Whole(0.5, 3), "integers"),  # type: ignore[arg-type]
        (lambda: Whole(0, 3, log=True), "positive low"),
    ],
)
def test_a_range_that_cannot_be_is_refused(make: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        make()


def test_ranges_know_what_lies_within_them_and_how_much() -> None:
    assert 0.1 in LogUniform(0.1, 1.0)
    assert 1.1 not in LogUniform(0.1, 1.0)
    assert True not in LogUniform(0.1, 1.0)
    assert 8 in Whole(1, 8)
    assert 8.0 not in Whole(1, 8)
    assert {"kind": "a"} in Choice(({"kind": "a"}, {"kind": "b"}))
    assert (LogUniform(0.1, 1.0).count, Whole(1, 8).count, Choice((1, 2)).count) == (None, 8, 2)


@pytest.mark.parametrize(
    ("span", "value", "end"),
    [
        (LogUniform(0.001, 1.0), 0.001, "lower"),
        (LogUniform(0.001, 1.0), 0.0014, "lower"),  # 4.9 % of three decades
        (LogUniform(0.001, 1.0), 0.0015, None),
        (LogUniform(0.001, 1.0), 0.9, "upper"),
        (Whole(0, 100), 95, "upper"),
        (Whole(0, 100), 94, None),
        (Whole(8, 128, log=True), 9, "lower"),  # 8·16^0.05 = 9.2
        (Whole(8, 128, log=True), 10, None),
        (Choice((1, 2)), 1, None),
        (LogUniform(0.1, 1.0), 5.0, None),
    ],
)
def test_the_ends_of_a_range_are_seen_on_its_own_scale(span: Range, value: float, end: str | None) -> None:
    assert edge(span, value) == end


def test_what_is_no_range_is_refused_with_the_methods_name() -> None:
    config = read_method("ewc").config_class
    with pytest.raises(ValueError, match=r"range of 'lr' in method 'mine' is \(0.1, 0.2\); expected Choice"):
        check_ranges("mine", {"lr": (0.1, 0.2)}, config)  # type: ignore[dict-item]
