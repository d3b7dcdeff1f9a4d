"""From result files to one line for each method, configuration and stream; pure, and shared by table, pictures and page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from cldnet.bench.apart import Result, identity, variants
from cldnet.bench.checked import is_number
from cldnet.bench.results import Planned
from cldnet.bench.wording import NOT_RUN, OUTSIDE_MARK, clip, display_name, percent_pm

__all__ = ["Matrix", "Result", "Summary", "seen_accuracy", "summarise"]

Matrix = list[list[float]]


@dataclass(frozen=True)
class Summary:
    """What the runs of one method, with one configuration, on one stream, say together.

    Class-incremental numbers (`accuracy`, `incremental_accuracy`, `forgetting`, `matrix`) are None for a method that must
    be told the task, and all numbers where nothing was run; `accuracy_std` is also None after a single run.

    Attributes
    ----------
    stream, method, label : str
        The label is the configuration's name, empty where it has none.
    variant : str
        What sets the configuration apart from others of the same name, on any stream; most often empty.
    results : tuple of mapping
        The result of each run, by seed.
    missing : tuple of int
        Seeds that were planned and have no result.
    set_aside : tuple of mapping
        Results of seeds that count already, with other accuracies than those that count.
    outside : str
        Name of the unlabelled data from outside the stream that were learned from besides; most often empty.
    """

    stream: str
    method: str
    label: str
    variant: str
    results: tuple[Result, ...]
    missing: tuple[int, ...]
    accuracy: float | None
    accuracy_std: float | None
    incremental_accuracy: float | None
    forgetting: float | None
    task_il_accuracy: float | None
    seconds: float | None
    bytes_kept: float | None
    grows: bool
    keeps_data: bool
    matrix: Matrix | None
    run_curves: list[list[float]]
    set_aside: tuple[Result, ...] = ()
    outside: str = ""

    @property
    def runs(self) -> int:
        """Number of runs."""
        return len(self.results)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Seeds that were run."""
        return tuple(int(result["seed"]) for result in self.results)

    @property
    def name(self) -> str:
        """The name to show to people."""
        name = self.label or display_name(self.method)
        return f"{name} ({self.variant})" if self.variant else name

    @property
    def marked_name(self) -> str:
        """The name for a table, with a mark if a footnote is to tell of data from outside."""
        return f"{self.name}{OUTSIDE_MARK if self.outside else ''}"

    @property
    def rests_on_data(self) -> bool:
        """Whether there is data beyond the task's own: examples that are kept, or data from outside the stream."""
        return self.keeps_data or bool(self.outside)

    @property
    def curve(self) -> list[float] | None:
        """Mean accuracy over what was seen so far, after each task."""
        return None if self.matrix is None else seen_accuracy(self.matrix)

    @property
    def accuracy_text(self) -> str:
        """Mean and standard deviation as per cent, or why there is none."""
        return percent_pm(self.accuracy, self.accuracy_std) if self.runs else NOT_RUN


def summarise(results: Sequence[Result], planned: Sequence[Planned] = ()) -> list[Summary]:
    """Group results by stream, method and configuration, and average each group.

    Runs that differ in anything but the seed never share a mean. What was planned and not run has its place as well.

    Parameters
    ----------
    results : sequence of mapping
        Result dicts as a run writes them.
    planned : sequence of Planned
        What the results should be; see `cldnet.bench.results`.

    Returns
    -------
    list of Summary
        In the order of the plan, or in that in which the groups first appear.

    Raises
    ------
    ValueError
        If a number is not finite, or if runs of one method have different numbers of tasks.
    """
    place = {cell.file: number for number, cell in enumerate(planned)}
    groups: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda result: place.get(result.get("file"), len(place))):
        groups.setdefault(identity(result), []).append(result)
    filled = [_once_a_seed(runs) for runs in groups.values()]
    apart = variants([runs[0] for runs, _ in filled])
    files = {result.get("file") for result in results}
    unrun: dict[tuple[str, str, str], list[int]] = {}
    for cell in planned:
        seeds = unrun.setdefault((cell.stream, cell.method, cell.label), [])
        if cell.file not in files:
            seeds.append(cell.seed)
    summaries = [
        _summary(runs, variant, tuple(unrun.pop(_planned_as(runs[0]), ())), set_aside)
        for (runs, set_aside), variant in zip(filled, apart, strict=True)
    ]
    # A stream's text may name its options in another order, or a whole path: where a run tells its name, take that.
    known = {_planned_as(result)[0]: str(result["stream"]["name"]) for result in results}
    empty = [
        _nothing(known.get(text, text), method, label, tuple(seeds))
        for (text, method, label), seeds in unrun.items()
        if seeds
    ]
    order = {(known.get(c.stream, c.stream), c.method, c.label): n for n, c in reversed([*enumerate(planned)])}
    return sorted([*summaries, *empty], key=lambda s: order.get((s.stream, s.method, s.label), -1))


def seen_accuracy(matrix: Sequence[Sequence[float]]) -> list[float]:
    """Mean accuracy over the tasks seen so far, after each task.

    Examples
    --------
    >>> seen_accuracy([[1.0], [0.5, 1.0]])
    [1.0, 0.75]
    """
    return [fmean(row) for row in matrix]


def _planned_as(result: Result) -> tuple[str, str, str]:
    text = result.get("cell", {}).get("stream", result["stream"]["name"])
    return text, str(result["method"]), str(result.get("label", ""))


def _once_a_seed(runs: Sequence[Result]) -> tuple[list[Result], tuple[Result, ...]]:
    """Runs by seed, the first of each, and those later ones that came out otherwise.

    The same run may be there twice, recorded in more detail or in another folder: it counts once.
    """
    once: dict[tuple[int, str], Result] = {}
    differing = []
    for run in runs:
        first = once.setdefault((int(run["seed"]), str(run["stream"]["hash"])), run)
        if any(first.get(matrix) != run.get(matrix) for matrix in ("matrix", "task_il_matrix")):
            differing.append(run)
    return [once[key] for key in sorted(once)], tuple(differing)


def _summary(runs: Sequence[Result], variant: str, missing: tuple[int, ...], set_aside: tuple[Result, ...]) -> Summary:
    first = runs[0]
    accuracies = [_number(run["scores"]["average_accuracy"]) for run in runs]
    known = [matrix for run in runs if (matrix := _matrix(run["matrix"])) is not None]
    return Summary(
        stream=str(first["stream"]["name"]),
        method=str(first["method"]),
        label=str(first.get("label", "")),
        variant=variant,
        results=tuple(runs),
        missing=missing,
        accuracy=_mean(accuracies),
        accuracy_std=_std(accuracies),
        incremental_accuracy=_mean_score(runs, "average_incremental_accuracy"),
        forgetting=_mean_score(runs, "forgetting"),
        task_il_accuracy=_mean_score(runs, "task_il_accuracy"),
        seconds=fmean(_finite(run["seconds"]["total"]) for run in runs),
        bytes_kept=fmean(sum(map(_finite, run["bytes"].values())) for run in runs),
        grows=not all(run["constant_size"] for run in runs),
        keeps_data=not all(run["rehearsal_free"] for run in runs),
        matrix=_mean_matrix(str(first["method"]), known) if len(known) == len(runs) else None,
        run_curves=[seen_accuracy(matrix) for matrix in known],
        set_aside=set_aside,
        outside=(first.get("outside") or {}).get("name", ""),
    )


def _nothing(stream: str, method: str, label: str, missing: tuple[int, ...]) -> Summary:
    unknown: dict[str, Any] = dict.fromkeys(
        ("accuracy", "accuracy_std", "incremental_accuracy", "forgetting", "task_il_accuracy", "seconds", "bytes_kept")
    )
    return Summary(
        stream, method, label, "", (), missing, **unknown, grows=False, keeps_data=False, matrix=None, run_curves=[]
    )


def _mean_score(runs: Sequence[Result], score: str) -> float | None:
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
    rows = value if isinstance(value, list | tuple) else []
    matrix = [[_finite(cell) for cell in row] if isinstance(row, list | tuple) else [] for row in rows]
    if not matrix or any(len(row) != i for i, row in enumerate(matrix, start=1)):
        raise ValueError("An accuracy matrix has i entries in its row i.")
    return matrix


def _number(value: Any) -> float | None:
    return None if value is None else _finite(value)


def _finite(value: Any) -> float:
    if not is_number(value):
        raise ValueError(f"A result holds {clip(repr(value))} in the place of a finite number.")
    return float(value)
