"""How figures and names are written, in the table, on the page and on the terminal alike."""

from __future__ import annotations

__all__ = [
    "NEEDS_THE_TASK",
    "NOT_RUN",
    "OUTSIDE_MARK",
    "clip",
    "counted",
    "display_name",
    "duration",
    "human_bytes",
    "percent",
    "percent_pm",
    "yes_no",
]

DISPLAY_NAMES = {
    "finetune": "Fine-tuning",
    "joint": "Joint training",
    "ewc": "EWC",
    "ewc-batched": "EWC (batched Fisher)",
    "oewc": "Online EWC",
    "si": "SI",
    "mas": "MAS",
    "lwf": "LwF",
    "dmc": "DMC",
    "owm": "OWM",
    "aop": "AOP",
    "er": "ER (replay)",
    "pnn": "PNN",
    "icnet": "ICNet",
    "crnet": "CRNet",
    "slda": "SLDA",
    "cldnet": "CLDNet (hbo)",
    "cldnet-paper": "CLDNet (paper)",
    "cldnet-hybrid": "CLDNet (hybrid)",
    "exact": "CLDNet (exact)",
}
NEEDS_THE_TASK = "needs the task"
NOT_RUN = "not run"
#: Behind the name of a method that learned from data of outside the stream.
OUTSIDE_MARK = "†"


def display_name(method: str) -> str:
    """Name of a method as people write it; an unknown method keeps its own name.

    Examples
    --------
    >>> display_name("er"), display_name("mine")
    ('ER (replay)', 'mine')
    """
    return DISPLAY_NAMES.get(method, method)


def percent(x: float | None) -> str:
    """Show a fraction as per cent; None means that the method needs the task.

    Examples
    --------
    >>> percent(0.95123), percent(-0.00001), percent(None)
    ('95.12%', '0.00%', 'needs the task')
    """
    return NEEDS_THE_TASK if x is None else f"{_hundredths(x)}%"


def percent_pm(mean: float | None, std: float | None) -> str:
    """Show a mean and its standard deviation as per cent; without a deviation, the mean alone.

    Examples
    --------
    >>> percent_pm(0.95123, 0.004), percent_pm(0.95123, None), percent_pm(None, None)
    ('95.12 ± 0.40%', '95.12%', 'needs the task')
    """
    if mean is None or std is None:
        return percent(mean)
    return f"{_hundredths(mean)} ± {_hundredths(std)}%"


def human_bytes(n: float) -> str:
    """Show a number of bytes with a decimal unit.

    Examples
    --------
    >>> human_bytes(999), human_bytes(1_234_567), human_bytes(999_999)
    ('999 B', '1.2 MB', '1.0 MB')
    """
    if round(n) < 1000:
        return f"{n:.0f} B"
    for unit in ("kB", "MB", "GB"):
        n /= 1000
        if round(n, 1) < 1000:
            return f"{n:.1f} {unit}"
    return f"{n / 1000:.1f} TB"


def duration(seconds: float) -> str:
    """Show a time as a person would say it.

    Examples
    --------
    >>> duration(0.4), duration(75), duration(7_260), duration(200_000)
    ('under 1 s', '1 min 15 s', '2 h 1 min', '2 d 7 h')
    """
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
    """Show a truth value as a word.

    Examples
    --------
    >>> yes_no(True), yes_no(False)
    ('yes', 'no')
    """
    return "yes" if b else "no"


def counted(count: int, one: str, many: str) -> str:
    """A number with its word.

    Examples
    --------
    >>> counted(1, "class", "classes"), counted(2000, "class", "classes")
    ('1 class', '2,000 classes')
    """
    return f"{count:,} {one if count == 1 else many}"


def clip(text: str, limit: int = 32) -> str:
    """Shorten a name for a place of fixed width.

    Examples
    --------
    >>> clip("a method with a very long name", 10)
    'a method …'
    """
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _hundredths(x: float) -> str:
    # Adding 0.0 turns a rounded "-0.00" into "0.00"; the true minus sign is as wide as a digit.
    return f"{round(100 * x, 2) + 0.0:.2f}".replace("-", "−")
