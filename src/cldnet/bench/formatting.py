"""How names and numbers are written, in the table, on the page and on the terminal alike."""

from __future__ import annotations

NEEDS_THE_TASK = "needs the task"
NOT_RUN = "not run"
#: After the name of a method that used data from outside the stream.
OUTSIDE_MARK = "†"


def percent(x: float | None) -> str:
    """Show a fraction as per cent; None means that the method needs the task."""
    return NEEDS_THE_TASK if x is None else f"{_hundredths(x)}%"


def percent_pm(mean: float | None, std: float | None) -> str:
    """Show a mean and its standard deviation as per cent; without a deviation, the mean alone."""
    return percent(mean) if mean is None or std is None else f"{_hundredths(mean)} ± {_hundredths(std)}%"


def _hundredths(x: float) -> str:
    # Adding 0.0 turns a rounded "-0.00" into "0.00"; the true minus sign is as wide as a digit.
    return f"{round(100 * x, 2) + 0.0:.2f}".replace("-", "−")


def human_bytes(n: float) -> str:
    """Show a number of bytes with a decimal unit."""
    if round(n) < 1000:
        return f"{n:.0f} B"
    for unit in ("kB", "MB", "GB"):
        n /= 1000
        if round(n, 1) < 1000:
            return f"{n:.1f} {unit}"
    return f"{n / 1000:.1f} TB"


def duration(seconds: float) -> str:
    """Show a time in two units at most."""
    whole = round(seconds)
    if seconds < 1:
        return "under 1 s"
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def yes_no(b: bool) -> str:
    """Show a truth value as a word."""
    return "yes" if b else "no"


def counted(count: int, one: str, many: str) -> str:
    """Show a number with its noun, as "1 class" or "2,000 classes"."""
    return f"{count:,} {one if count == 1 else many}"


def clip(text: str, limit: int = 32) -> str:
    """Shorten a text to a number of characters."""
    return text if len(text) <= limit else text[: limit - 1] + "…"
