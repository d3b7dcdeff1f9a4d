from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from benchmarks.speed.compare import Comparison, compare, report
from benchmarks.speed.record import Curve, Finding, NotRun, Spread
from benchmarks.speed.result import Result

Make = Callable[..., Any]


def said(found: Comparison) -> str:
    return "\n".join(report(found))


@pytest.fixture
def runs(a_result: Callable[..., Result], a_finding: Callable[..., Finding]) -> Callable[..., Comparison]:
    def of(then: float, now: float, **options: Any) -> Comparison:
        return compare(a_result(a_finding("a", then, **options)), a_result(a_finding("a", now, **options)))

    return of


@pytest.mark.parametrize(
    ("then", "now", "higher_is_better", "slowed"),
    [
        *((1.0, 1.25, False, True), (1.0, 1.15, False, False), (1.25, 1.0, False, False)),
        *((10.0, 8.0, True, True), (10.0, 9.0, True, False), (8.0, 10.0, True, False)),
        *((0.0, 0.0, False, False), (0.0, 1.0, False, True)),
    ],
)
def test_a_ratio_that_got_worse_by_more_than_a_fifth_is_named(
    runs: Callable[..., Comparison], then: float, now: float, higher_is_better: bool, slowed: bool
) -> None:
    found = runs(then, now, higher_is_better=higher_is_better)
    assert found.failed == slowed
    assert ("worse  a " in said(found)) == slowed


def test_one_within_the_spread_is_told_but_does_not_fail(a_result: Make, a_finding: Make) -> None:
    wide = replace(a_finding("a", 1.0), ratio=Spread(1.0, 0.8, 1.4))
    found = compare(a_result(wide), a_result(a_finding("a", 1.3)))
    assert not found.failed
    assert "unsure a " in said(found)


def test_a_curve_that_grows_more_steeply_is_named(a_result: Make, a_curve: Callable[..., Curve]) -> None:
    found = compare(a_result(a_curve("g", 1.0), a_curve("h", 1.0)), a_result(a_curve("g", 1.3), a_curve("h", 1.1)))
    assert [now.name for _, now in found.grown] == ["g"]
    assert found.failed
    assert "exponent 1.30; it was 1.00" in said(found)


def test_what_vanished_is_named_with_its_reason(a_result: Make, a_finding: Make) -> None:
    old = a_result(a_finding("a", 1.0), a_finding("b", 1.0), a_finding("c", 1.0))
    new = a_result(a_finding("a", 1.0), NotRun("b", "beside b", "it is not installed"))
    found = compare(old, new)
    assert found.vanished == [("b", "it is not installed"), ("c", "the later run does not measure it")]
    assert not found.failed


def test_parts_that_were_not_asked_for_have_not_vanished(a_result: Make, a_finding: Make) -> None:
    new = a_result()
    del new.seconds["steps"]
    found = compare(a_result(a_finding("a", 1.0)), new)
    assert found.vanished == []
    assert "Not run this time, and not compared: steps." in said(found)


def test_another_machine_and_other_versions_are_noted(a_result: Make, a_finding: Make) -> None:
    old = a_result(a_finding("a", 1.0))
    new = a_result(a_finding("a", 1.0), machine="a better one", versions={"cldnet": "0.1", "torch": "9"})
    words = said(compare(old, new))
    assert "Nothing is slower" in words
    assert "now a better one. Ratios can still be compared" in words
    assert "torch 2.8 → 9." in words
    assert said(compare(old, old)).count("\n") == 0
