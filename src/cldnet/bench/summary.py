"""Summarise results: one summary per method, configuration and stream, shared by table, plots and page."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any

from cldnet.bench.formatting import NOT_RUN, OUTSIDE_MARK, percent_pm
from cldnet.bench.results import Planned
from cldnet.methods import display_name

Result = Mapping[str, Any]
Matrix = list[list[float]]


@dataclass(frozen=True)
class Summary:
    """The runs of one method with one configuration on one stream.

    All numbers are None without a run. `accuracy_std` needs two runs or more. A method that needs the task has no
    class-incremental numbers: `accuracy`, `incremental_accuracy`, `forgetting` and `matrix` are None.
    """

    stream: str
    method: str
    label: str  # the configuration's name, or empty
    variant: str = ""  # how the configuration differs from others of the same name, on any stream
    results: tuple[Result, ...] = ()  # of each run, by seed
    missing: tuple[int, ...] = ()  # seeds that were planned and have no result
    accuracy: float | None = None
    accuracy_std: float | None = None
    incremental_accuracy: float | None = None
    forgetting: float | None = None
    task_il_accuracy: float | None = None
    seconds: float | None = None
    bytes_kept: float | None = None
    grows: bool = False
    keeps_data: bool = False
    matrix: Matrix | None = None
    run_curves: list[list[float]] = field(default_factory=list)
    conflicting: tuple[Result, ...] = ()  # further results of seeds that count already, with different accuracies
    outside: str = ""  # name of the unlabelled data from outside the stream that the method used

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
        """Name for display."""
        name = self.label or display_name(self.method)
        return f"{name} ({self.variant})" if self.variant else name

    @property
    def marked_name(self) -> str:
        """Name for a table, with a mark if a footnote mentions outside data."""
        return f"{self.name}{OUTSIDE_MARK if self.outside else ''}"

    @property
    def memory(self) -> int | None:
        """Number of exemplars that the method has room for, by its option ``memory``; None if it has none."""
        options = self.results[0]["config"].get("method") if self.results else None
        size = options.get("memory") if isinstance(options, Mapping) else None
        return size if type(size) is int and 0 < size < 1e9 else None  # results are untrusted; True is an int as well

    @property
    def rests_on_data(self) -> bool:
        """Whether the method uses data beyond the current task: stored samples, or data from outside the stream."""
        return self.keeps_data or bool(self.outside)

    @property
    def curve(self) -> list[float] | None:
        """Mean accuracy over the tasks seen so far, after each task."""
        return None if self.matrix is None else [fmean(row) for row in self.matrix]

    @property
    def accuracy_text(self) -> str:
        """Mean and standard deviation in percent, or the reason why the accuracy is missing."""
        return percent_pm(self.accuracy, self.accuracy_std) if self.runs else NOT_RUN


def summarise(results: Sequence[Result], planned: Sequence[Planned] = ()) -> list[Summary]:
    """Group results by stream, method and configuration, and average each group.

    Runs that differ in anything but the seed are never averaged. What was planned and not run gets a summary as well. The order
    is that of the plan, or that in which the groups first appear.
    """
    place = {cell.file: number for number, cell in enumerate(planned)}
    groups: dict[str, list[Result]] = {}
    for result in sorted(results, key=lambda result: place.get(result.get("file"), len(place))):
        groups.setdefault(_identity(result), []).append(result)
    files = {result.get("file") for result in results}
    missing: dict[tuple[str, str, str], list[int]] = {}
    for cell in planned:
        seeds = missing.setdefault((cell.stream, cell.method, cell.label), [])
        if cell.file not in files:
            seeds.append(cell.seed)
    summaries = [
        _summary(runs, variant, tuple(missing.pop(_planned_as(runs[0]), ())))
        for runs, variant in zip(groups.values(), variants([runs[0] for runs in groups.values()]), strict=True)
    ]
    # A plan may write a stream's options in another order, or with a whole path: prefer the name that its runs have.
    known = {_planned_as(result)[0]: str(result["stream"]["name"]) for result in results}
    summaries += [
        Summary(known.get(stream, stream), method, label, missing=tuple(seeds))
        for (stream, method, label), seeds in missing.items()
        if seeds
    ]
    order = {(known.get(c.stream, c.stream), c.method, c.label): n for n, c in reversed([*enumerate(planned)])}
    return sorted(summaries, key=lambda s: order.get((s.stream, s.method, s.label), -1))


def _identity(result: Result) -> str:
    """Everything that defines a run except its seed and the class order, which follows from it."""
    stream, outside = result["stream"], result.get("outside") or {}
    names = [stream["name"], stream.get("data"), result["method"], result.get("label", ""), _version(result)]
    parts = [*names, outside.get("name"), outside.get("hash"), result["backbone"], result["config"]]
    return json.dumps(parts, sort_keys=True, default=str)


def _version(result: Result) -> Any:
    return result.get("cell", {}).get("method_version", 1)


def _planned_as(result: Result) -> tuple[str, str, str]:
    text = result.get("cell", {}).get("stream", result["stream"]["name"])
    return text, str(result["method"]), str(result.get("label", ""))


def _summary(runs: Sequence[Result], variant: str, missing: tuple[int, ...]) -> Summary:
    once: dict[tuple[int, str], Result] = {}  # the same run may be in several folders, or recorded in more detail
    differing = []
    for run in runs:
        first = once.setdefault((int(run["seed"]), str(run["stream"]["hash"])), run)
        if any(first.get(matrix) != run.get(matrix) for matrix in ("matrix", "task_il_matrix")):
            differing.append(run)
    runs = [once[key] for key in sorted(once)]
    first = runs[0]

    def mean(name: str) -> float | None:
        values = [run["scores"][name] for run in runs]
        # A mean over only those runs that have the number would compare different things.
        return None if None in values else fmean(values)

    accuracy = mean("average_accuracy")
    several = accuracy is not None and len(runs) > 1
    matrices = [run["matrix"] for run in runs if run["matrix"] is not None]
    return Summary(
        stream=str(first["stream"]["name"]),
        method=str(first["method"]),
        label=str(first.get("label", "")),
        variant=variant,
        results=tuple(runs),
        missing=missing,
        accuracy=accuracy,
        accuracy_std=stdev(run["scores"]["average_accuracy"] for run in runs) if several else None,
        incremental_accuracy=mean("average_incremental_accuracy"),
        forgetting=mean("forgetting"),
        task_il_accuracy=mean("task_il_accuracy"),
        seconds=fmean(run["seconds"]["total"] for run in runs),
        bytes_kept=fmean(sum(run["bytes"].values()) for run in runs),
        grows=not all(run["constant_size"] for run in runs),
        keeps_data=not all(run["rehearsal_free"] for run in runs),
        matrix=_mean_matrix(str(first["method"]), matrices) if len(matrices) == len(runs) else None,
        run_curves=[[fmean(row) for row in matrix] for matrix in matrices],
        conflicting=tuple(differing),
        outside=(first.get("outside") or {}).get("name", ""),
    )


def _mean_matrix(method: str, matrices: Sequence[Matrix]) -> Matrix:
    if len({len(matrix) for matrix in matrices}) > 1:
        raise ValueError(f"The runs of {method!r} have different numbers of tasks: summarise them separately.")
    return [[fmean(cells) for cells in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]


def variants(results: Sequence[Result]) -> list[str]:
    """Name how configurations, one result of each, differ from others of the same name.

    A setting that differs within one stream is shown on all streams, so that a configuration has the same name everywhere.
    Settings that differ only between streams, such as the budget, are not shown.
    """
    settings = [_settings(result) for result in results]
    groups: dict[str, dict[str, list[int]]] = {}  # by name, by stream
    for number, result in enumerate(results):
        streams = groups.setdefault(str(result.get("label") or result["method"]), {})
        streams.setdefault(str(result["stream"]["name"]), []).append(number)
    names = [""] * len(results)
    for streams in groups.values():
        differing = dict.fromkeys(
            key for numbers in streams.values() for key in _differing([settings[number] for number in numbers])
        )
        for numbers in streams.values():
            seen: Counter[str] = Counter()
            for number in numbers:
                own = settings[number]
                name = ", ".join(f"{key}={own[key]}" for key in differing if key in own)
                seen[name] += 1  # some differences do not show, as between 1 and "1"
                names[number] = name if seen[name] == 1 else f"{name}, no. {seen[name]}".removeprefix(", ")
    return names


def _settings(result: Result) -> dict[str, Any]:
    """Everything in which runs of one name on one stream may differ, under short names."""
    outside = {"outside": result["outside"]["name"]} if result.get("outside") else {}
    method = {"of": result["method"], "version": _version(result)}
    data = {"data": result["stream"].get("data")}
    flat = _flatten({"backbone": result["backbone"], **result["config"], **method, **outside, **data})
    return {key.removeprefix("method."): value for key, value in flat.items()}


def _flatten(value: Any, name: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {name: value}
    return {key: v for k, item in value.items() for key, v in _flatten(item, f"{name}.{k}" if name else str(k)).items()}


def _differing(tables: Sequence[Mapping[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for table in tables for key in table)
    return [key for key in keys if len({repr(table.get(key)) for table in tables}) > 1]
