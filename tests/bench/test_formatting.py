from __future__ import annotations

import pytest

from cldnet.bench.formatting import clip, duration, human_bytes, percent, percent_pm


def test_negative_forgetting_has_a_true_minus_sign_and_nothing_is_minus_zero() -> None:
    assert percent(-0.0123) == "−1.23%"
    assert percent_pm(-0.0123, 0.5) == "−1.23 ± 50.00%"
    assert percent(-1e-6) == "0.00%"


def test_a_number_that_is_not_there_says_why() -> None:
    assert percent(None) == percent_pm(None, 0.1) == "needs the task"
    assert percent_pm(0.5, None) == "50.00%"


@pytest.mark.parametrize(
    ("n", "shown"),
    [(0, "0 B"), (999.6, "1.0 kB"), (1000, "1.0 kB"), (999_949, "999.9 kB"), (3.2e15, "3200.0 TB")],
)
def test_bytes_have_a_unit_that_fits(n: float, shown: str) -> None:
    assert human_bytes(n) == shown


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.99, "under 1 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3599.7, "1 h 0 min"), (86_399.9, "1 d 0 h")],
)
def test_a_time_is_rounded_before_it_is_taken_apart(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_a_clipped_name_is_as_long_as_there_is_room() -> None:
    assert clip("12345", 5) == "12345"
    assert clip("123456", 5) == "1234…"
