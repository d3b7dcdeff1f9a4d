"""Days on which labels were learned."""

from __future__ import annotations

from typing import Any

import pytest

from cldnet.days import Days


def test_the_first_and_the_last_day_are_kept_whatever_the_order() -> None:
    days, others = Days(), Days({"cat": ("2024-05-05", "2025-02-02"), "owl": ("2024-01-01", "2024-01-01")})
    for day in ("2025-01-01", "2026-11-17", "2025-06-06"):
        days.note(["cat"], day)
    assert days == {"cat": ("2025-01-01", "2026-11-17")}
    days.take_over(others)
    assert days == {"cat": ("2024-05-05", "2026-11-17"), "owl": ("2024-01-01", "2024-01-01")}


@pytest.mark.parametrize(
    "state", [[], ["2026-11-17"], [["2026-11-17", "2025-01-01"]], [["today", "today"]], [[1, 2]], 5]
)
def test_what_cannot_be_is_refused(state: Any) -> None:
    with pytest.raises(ValueError, match="a first and a last day"):
        Days.from_json(state, ["cat"])
