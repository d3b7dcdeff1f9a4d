"""From result files to one line per method; pure, and shared by the table, the picture and the page."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

Matrix = list[list[float]]

DISPLAY_NAMES = {
    "finetune": "Fine-tuning",
    "joint": "Joint training",
    "ewc": "EWC",
    "owm": "OWM",
    "er": "ER (replay)",
    "pnn": "PNN",
    "cldnet": "CLDNet (hbo)",
    "exact": "CLDNet (exact)",
}
NEEDS_THE_TASK = "needs the task"


@dataclass(frozen=True)
class MethodSummary:
    """What the runs of one method say together.

    Class-incremental numbers (`accuracy`, `incremental_accuracy`, `forgetting`, `matrix`) are None for a
    method that must be told the task; `accuracy_std` is also None after a single run.
    """

    method: str
    runs: int
    accuracy: float | None
    accuracy_std: float | None
    incremental_accuracy: float | None
    forgetting: float | None
    task_il_accuracy: float | None
    seconds: float
    bytes_kept: float
    grows: bool
    keeps_data: bool
    matrix: Matrix | None
    run_curves: list[list[float]]

    @property
    def name(self) -> str:
        """The name to show to people."""
        return display_name(self.method)

    @property
    def curve(self) -> list[float] | None:
        """Mean accuracy over what was seen so far, after each task."""
        return None if self.matrix is None else seen_accuracy(self.matrix)


def summarise(results: Sequence[Mapping[str, Any]]) -> list[MethodSummary]:
    """Group the results by method and average each group.

    Parameters
    ----------
    results : sequence of mapping
        Result dicts as a run writes them.

    Returns
    -------
    list of MethodSummary
        One per method, in the order in which the methods first appear.

    Raises
    ------
    ValueError
        If a number is not finite, or if runs of one method have different numbers of tasks.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for result in results:
        groups.setdefault(str(result["method"]), []).append(result)
    return [_summarise_method(method, runs) for method, runs in groups.items()]


def seen_accuracy(matrix: Sequence[Sequence[float]]) -> list[float]:
    """Mean accuracy over the tasks seen so far, after each task.

    Examples
    --------
    >>> seen_accuracy([[1.0], [0.5, 1.0]])
    [1.0, 0.75]
    """
    return [fmean(row) for row in matrix]


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


def yes_no(b: bool) -> str:
    """Show a truth value as a word.

    Examples
    --------
    >>> yes_no(True), yes_no(False)
    ('yes', 'no')
    """
    return "yes" if b else "no"


def clip(text: str, limit: int = 32) -> str:
    """Shorten a name for a place of fixed width.

    Examples
    --------
    >>> clip("a method with a very long name", 10)
    'a method …'
    """
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _summarise_method(method: str, runs: Sequence[Mapping[str, Any]]) -> MethodSummary:
    accuracies = [_number(run["scores"]["average_accuracy"]) for run in runs]
    matrices = [_matrix(run["matrix"]) for run in runs]
    known = [matrix for matrix in matrices if matrix is not None]
    return MethodSummary(
        method=method,
        runs=len(runs),
        accuracy=_mean(accuracies),
        accuracy_std=_std(accuracies),
        incremental_accuracy=_mean_score(runs, "average_incremental_accuracy"),
        forgetting=_mean_score(runs, "forgetting"),
        task_il_accuracy=_mean_score(runs, "task_il_accuracy"),
        seconds=fmean(_finite(run["seconds"]["total"]) for run in runs),
        bytes_kept=fmean(sum(map(_finite, run["bytes"].values())) for run in runs),
        grows=not all(run["constant_size"] for run in runs),
        keeps_data=not all(run["rehearsal_free"] for run in runs),
        matrix=_mean_matrix(method, known) if len(known) == len(runs) else None,
        run_curves=[seen_accuracy(matrix) for matrix in known],
    )


def _mean_score(runs: Sequence[Mapping[str, Any]], score: str) -> float | None:
    return _mean([_number(run["scores"][score]) for run in runs])


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    # A mean over only those runs that have the number would compare different things.
    return fmean(known) if len(known) == len(values) else None


def _std(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return stdev(known) if len(known) == len(values) > 1 else None


def _mean_matrix(method: str, matrices: Sequence[Matrix]) -> Matrix:
    if len({tuple(map(len, matrix)) for matrix in matrices}) > 1:
        raise ValueError(f"The runs of {method!r} have different numbers of tasks; summarise them apart.")
    return [[fmean(cells) for cells in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]


def _matrix(value: Any) -> Matrix | None:
    if value is None:
        return None
    matrix = [[_finite(cell) for cell in row] for row in value]
    if not matrix or any(len(row) != i for i, row in enumerate(matrix, start=1)):
        raise ValueError("An accuracy matrix has i entries in its row i.")
    return matrix


def _number(value: Any) -> float | None:
    return None if value is None else _finite(value)


def _finite(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"A result holds {value!r} in the place of a finite number.")
    return float(value)


def _hundredths(x: float) -> str:
    # Adding 0.0 turns a rounded "-0.00" into "0.00"; the true minus sign is as wide as a digit.
    return f"{round(100 * x, 2) + 0.0:.2f}".replace("-", "−")
