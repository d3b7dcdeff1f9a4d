"""Tables of results: rows are methods and configurations, columns are streams."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from math import floor, log10
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Literal

from cldnet.bench.formatting import NEEDS_THE_TASK, NOT_RUN, OUTSIDE_MARK, clip, counted
from cldnet.bench.published import Published, published_figures
from cldnet.bench.results import Folder, Planned
from cldnet.bench.summary import Result, Summary, summarise
from cldnet.methods import display_name
from cldnet.text import nearest_names

#: Whether seeds have class orders of their own, all the same, or some the same; empty for a single seed.
ClassOrders = Literal["own", "same", "some the same", ""]

#: Methods that are not rivals, but show what is easy and what is possible.
BOUNDS: Mapping[str, str] = {"finetune": "lower bound", "joint": "upper bound"}
#: The runs have no such number: nothing can be forgotten after one task.
NO_FIGURE = "no figure"
#: Neither a run nor a published figure is expected.
NOTHING = "–"


@dataclass(frozen=True)
class Score:
    """A number of a result that a table can show."""

    name: str
    heading: str
    unit: str
    path: str  # where a result has it, as "scores.forgetting"; if that is a table, its values are added up
    scale: float = 1.0  # from the result's unit to the table's
    published: str = ""  # which published figures to show beside it: those of a reading, or "capacity"
    digits: int = 0  # significant digits of a mean; 0 for two digits behind the point

    def value(self, result: Mapping[str, Any]) -> float | None:
        """The number of a result, None if it has none."""
        value: Any = result
        for key in self.path.split("."):
            value = value.get(key) if isinstance(value, Mapping) else None
        if value is None:
            return None
        return float(self.scale * (sum(value.values()) if isinstance(value, Mapping) else value))

    def decimals(self, mean: float) -> int:
        """Number of decimals of a mean and its standard deviation."""
        if not self.digits or not mean:
            return 2
        return max(0, self.digits - 1 - floor(log10(abs(mean))))

    def quote(self, figure: Published) -> tuple[Decimal, Decimal | None] | None:
        """The same number, and its standard deviation, of a published figure; None if it has none."""
        if self.published == "capacity":
            return None if figure.capacity is None else (figure.capacity, None)
        return (figure.mean, figure.std) if figure.reading == self.published else None


_LEAK = "no result, but what it would seem to be if"
_LEAK_STATISTICS = f"{_LEAK} each task's test images were normalised by their own mean and spread"
_LEAK_EPOCH = f"{_LEAK} the last task's best epoch were chosen by test data"
#: The scores by name.
SCORES: Mapping[str, Score] = {
    score.name: score
    for score in (
        Score("accuracy", "average accuracy after the last task", "%", "scores.average_accuracy", 100, "class-il"),
        Score("incremental", "average incremental accuracy", "%", "scores.average_incremental_accuracy", 100),
        Score("forgetting", "forgetting", "%", "scores.forgetting", 100),
        Score("task-il", "average accuracy with the task known", "%", "scores.task_il_accuracy", 100, "task-il"),
        Score("capacity", "the paper's Capacity", "×", "capacity_paper", published="capacity"),
        Score("kept", "everything that the learner keeps", "MB", "bytes", 1e-6, digits=3),
        Score("seconds", "time of a run", "s", "seconds.total"),
        Score("leak-statistics", _LEAK_STATISTICS, "%", "diagnostics.leaky.own_test_statistics", 100),
        Score("leak-epoch", _LEAK_EPOCH, "%", "diagnostics.leaky.best_epoch", 100),
    )
}


@dataclass(frozen=True)
class Difference:
    """Mean and sample standard deviation of the differences to the reference's runs of the same seed and data."""

    mean: float
    std: float | None
    pairs: int


@dataclass(frozen=True)
class Cost:
    """What a configuration keeps and how long it trains: means over its runs.

    ``memory`` is the number of exemplars that it has room for, None if it has no such option. ``seconds`` is None for results
    without times of training.
    """

    memory: int | None
    kept: float  # bytes of everything
    exemplars: float  # bytes of that
    teacher: float
    seconds: float | None


@dataclass(frozen=True)
class Quote:
    """A published figure in the table, with the number of its footnote."""

    mean: Decimal
    std: Decimal | None
    what: str
    footnote: int


@dataclass(frozen=True)
class Entry:
    """What a table says about one row on one stream.

    ``state`` is empty if there is a figure, else it says why there is none. Mean and standard deviation are over the runs, in
    the score's unit; ``seeds`` and ``files`` are those of the runs, ``missing`` the seeds that were planned and have no result.
    ``outside`` names data from outside the stream that the method used. ``beside`` has an entry for each further score.
    """

    state: str
    mean: float | None = None
    std: float | None = None
    seeds: tuple[int, ...] = ()
    files: tuple[Path, ...] = ()
    missing: tuple[int, ...] = ()
    difference: Difference | None = None
    published: tuple[Quote, ...] = ()
    outside: str = ""
    cost: Cost | None = None
    beside: tuple[Entry, ...] = ()


@dataclass(frozen=True)
class Row:
    """One method or configuration, with an entry per stream."""

    name: str
    method: str
    entries: tuple[Entry, ...]

    @property
    def bound(self) -> str:
        """Which bound the method is; usually empty."""
        return BOUNDS.get(self.method, "")

    @property
    def title(self) -> str:
        """The name as a table shows it, with a mark that a note explains, and which bound it is."""
        mark = OUTSIDE_MARK if any(entry.outside for entry in self.entries) else ""
        return f"{self.name}{mark}{f' ({self.bound})' if self.bound else ''}"


@dataclass(frozen=True)
class Table:
    """A table of one score, and of further ones ``beside`` it.

    ``against`` names the row that others are compared with, or is empty. ``footnotes`` are the sources of published figures,
    ``notes`` what else a reader should know: failures, files left out, mixed versions. ``cost`` says whether to show what the
    rows cost.
    """

    title: str
    score: Score
    against: str
    streams: tuple[str, ...]
    class_orders: tuple[ClassOrders, ...]
    rows: tuple[Row, ...]
    footnotes: tuple[str, ...]
    notes: tuple[str, ...]
    cost: bool = False
    beside: tuple[Score, ...] = ()

    @property
    def entries(self) -> Iterator[tuple[str, Row, Entry]]:
        """All entries, stream by stream."""
        for number, stream in enumerate(self.streams):
            for row in self.rows:
                yield stream, row, row.entries[number]

    @property
    def usual_runs(self) -> int:
        """Number of runs of most complete entries."""
        counts = Counter(len(entry.seeds) for _, _, entry in self.entries if entry.seeds and not entry.missing)
        return counts.most_common(1)[0][0] if counts else 0


def build_table(
    folders: Sequence[Folder],
    *,
    score: str = "accuracy",
    against: str | None = None,
    published: bool = True,
    cost: bool = False,
    only: Sequence[str] = (),
    beside: Sequence[str] = (),
) -> Table:
    """Make a table from folders of results.

    Runs of the same configuration share a row, whatever their folder. ``against`` names a method, or a row, that all others are
    compared with, seed by seed; ``published`` says whether to show published figures, and methods that have only those;
    ``cost`` says whether to show bytes and seconds beside the score, ``beside`` names further scores to show, and ``only`` the
    streams to show, by default all.
    """
    for name in (score, *beside):
        if name not in SCORES:
            raise ValueError(f"There is no score {name!r}. {nearest_names(name, SCORES)}")
    results = [{**result, "path": folder.path / result["file"]} for folder in folders for result in folder.results]
    summaries = summarise(results, _planned(folders))
    if not summaries:
        raise ValueError(f"There are no results in {', '.join(str(folder.path) for folder in folders) or 'no folder'}.")
    streams = tuple(dict.fromkeys(summary.stream for summary in summaries))
    for stream in only:
        if stream not in streams:
            raise ValueError(f"There are no results of the stream {stream!r}. {nearest_names(stream, streams)}")
    if only:
        streams = tuple(stream for stream in streams if stream in only)
        summaries = [summary for summary in summaries if summary.stream in streams]
    groups = _group_rows(summaries)
    reference = None if against is None else _reference(against, groups)
    others = tuple(SCORES[name] for name in beside)
    rows = [_row(group, streams, SCORES[score], others, reference) for group in groups]
    footnotes: list[str] = []
    if published:
        rows, footnotes = _with_published(rows, groups, streams, SCORES[score])
    return Table(
        title=", ".join(dict.fromkeys(folder.title for folder in folders)),
        score=SCORES[score],
        against="" if reference is None else _first(reference).name,
        streams=streams,
        class_orders=tuple(class_orders(summaries, stream) for stream in streams),
        rows=tuple(rows),
        footnotes=tuple(footnotes),
        notes=tuple(_notes(folders, summaries, streams if footnotes else ())),
        cost=cost,
        beside=others,
    )


def _planned(folders: Iterable[Folder]) -> list[Planned]:
    """All plans as one. A folder without the data cannot name a result's file; another folder may."""
    cells = dict.fromkeys(cell for folder in folders for cell in folder.planned)
    known = {replace(cell, file=None) for cell in cells if cell.file is not None}
    return [cell for cell in cells if cell.file is not None or replace(cell, why="") not in known]


def _group_rows(summaries: Sequence[Summary]) -> list[Mapping[str, Summary]]:
    """Put the summaries of one configuration into one row, by stream.

    A summary without runs has no known configuration: it joins all of that name that lack the stream.
    """
    rows: dict[tuple[str, str, str], dict[str, Summary]] = {}
    for summary in summaries:
        if summary.runs:
            rows.setdefault((summary.method, summary.label, summary.variant), {})[summary.stream] = summary
    for summary in summaries:
        if not summary.runs:
            own = (summary.method, summary.label, "")
            alike = [row for key, row in rows.items() if key[:2] == own[:2]]
            for row in alike or [rows.setdefault(own, {})]:
                row.setdefault(summary.stream, summary)
    places = {id(summary): place for place, summary in enumerate(summaries)}
    return sorted(rows.values(), key=lambda row: min(places[id(summary)] for summary in row.values()))


def class_orders(summaries: Sequence[Summary], stream: str) -> ClassOrders:
    """Whether each seed of a stream has its own class order."""
    runs = [result for summary in summaries if summary.stream == stream for result in summary.results]
    pairs = {(int(result["seed"]), json.dumps(result["stream"]["class_order"], default=str)) for result in runs}
    orders = {order for _, order in pairs}
    if len({seed for seed, _ in pairs}) < 2:
        return ""
    return "own" if len(orders) == len(pairs) else "same" if len(orders) == 1 else "some the same"


def _first(group: Mapping[str, Summary]) -> Summary:
    return next(iter(group.values()))


def _reference(against: str, groups: Sequence[Mapping[str, Summary]]) -> Mapping[str, Summary]:
    """Find the row to compare with, by its name, else by its method."""
    wanted = against.casefold()
    by_name = [group for group in groups if _first(group).name.casefold() == wanted]
    rows = by_name or [group for group in groups if _first(group).method.casefold() == wanted]
    if not rows:
        known = dict.fromkeys(name for group in groups for name in (_first(group).method, _first(group).name))
        raise ValueError(f"There is no row {against!r} to compare with. {nearest_names(against, known)}")
    if len(rows) > 1:
        names = ", ".join(repr(_first(group).name) for group in rows)
        raise ValueError(f"There are several rows of {against!r}: name one of {names}.")
    return rows[0]


def _row(
    group: Mapping[str, Summary],
    streams: Sequence[str],
    score: Score,
    others: Sequence[Score],
    reference: Mapping[str, Summary] | None,
) -> Row:
    entries = []
    for stream in streams:
        entry = _entry(group.get(stream), score)
        entry = replace(entry, beside=tuple(_entry(group.get(stream), other) for other in others))
        if reference is not None and reference is not group and stream in group and stream in reference:
            entry = replace(entry, difference=_difference(group[stream], reference[stream], score))
        entries.append(entry)
    return Row(_first(group).name, _first(group).method, tuple(entries))


def _entry(summary: Summary | None, score: Score) -> Entry:
    if summary is None or not summary.runs:
        return Entry(NOT_RUN, missing=() if summary is None else summary.missing)
    values = [score.value(result) for result in summary.results]
    known = [value for value in values if value is not None]
    files = tuple(result["path"] for result in summary.results)
    entry = Entry(
        "", seeds=summary.seeds, files=files, missing=summary.missing, outside=summary.outside, cost=_cost(summary)
    )
    if len(known) < len(values):  # a mean over some of the runs would compare different things
        return replace(entry, state=NEEDS_THE_TASK if summary.matrix is None else NO_FIGURE)
    return replace(entry, mean=fmean(known), std=stdev(known) if len(known) > 1 else None)


def _cost(summary: Summary) -> Cost:
    def kept(kind: str) -> float:
        return fmean(result["bytes"].get(kind, 0) for result in summary.results)

    times = [result["seconds"].get("train") for result in summary.results]
    seconds = fmean(map(sum, times)) if all(times) else None
    return Cost(summary.memory, summary.bytes_kept or 0, kept("exemplars"), kept("teacher"), seconds)


def _difference(summary: Summary, reference: Summary, score: Score) -> Difference | None:
    def values(results: Sequence[Result]) -> dict[tuple[int, str], float | None]:
        return {(int(result["seed"]), str(result["stream"]["hash"])): score.value(result) for result in results}

    ours, theirs = values(summary.results), values(reference.results)
    more = [mine - other for key, mine in ours.items() if mine is not None and (other := theirs.get(key)) is not None]
    return Difference(fmean(more), stdev(more) if len(more) > 1 else None, len(more)) if more else None


def _with_published(
    rows: Sequence[Row], groups: Sequence[Mapping[str, Summary]], streams: Sequence[str], score: Score
) -> tuple[list[Row], list[str]]:
    """Put published figures beside the rows that they belong to, or into rows of their own; with the footnotes."""
    footnotes: dict[str, int] = {}
    entries = [list(row.entries) for row in rows]
    alone: dict[tuple[str, str], list[Entry]] = {}
    for number, stream in enumerate(streams):
        for figure in published_figures():
            value = score.quote(figure) if figure.stream == stream.partition(",")[0] else None
            if value is None:
                continue
            text = f"{figure.source}. {figure.note}" if figure.note else f"{figure.source}."
            quote = Quote(*value, figure.what, footnotes.setdefault(text, len(footnotes) + 1))
            places = [entries[row] for row, group in enumerate(groups) if _belongs(figure, group, stream)]
            if not places:
                own = alone.setdefault((figure.method, figure.name), [Entry(NOTHING)] * len(streams))
                own[number] = replace(own[number], state=NOT_RUN)
                places = [own]
            for place in places:
                place[number] = replace(place[number], published=(*place[number].published, quote))
    shown = [replace(row, entries=tuple(own)) for row, own in zip(rows, entries, strict=True)]
    present = {row.method for row in rows}
    for (method, name), own in alone.items():
        shown.append(Row(f"{name}, as published" if method in present else name, method, tuple(own)))
    return shown, list(footnotes)


def _belongs(figure: Published, group: Mapping[str, Summary], stream: str) -> bool:
    """Whether a row shows the figure's configuration: the plain method, one with the figure's name, or its options."""
    first = _first(group)
    if first.method != figure.method:
        return False
    if figure.what and first.label.endswith(f", {figure.what}"):
        return True
    if not figure.where:
        return not first.label
    results = group[stream].results if stream in group else ()
    options: Any = results[0]["config"].get("method") if results else None
    return isinstance(options, Mapping) and all(options.get(key) == value for key, value in figure.where.items())


def _notes(folders: Sequence[Folder], summaries: Sequence[Summary], quoted: Sequence[str]) -> Iterator[str]:
    """What a reader should know beside the figures; ``quoted`` are the streams with published figures."""
    yield from outside_notes(summaries)
    for stream in quoted:
        base, comma, _ = stream.partition(",")
        if comma:
            yield f"Published figures beside {stream} are of {base} without options."
    for folder in folders:
        if folder.ignored:
            files = folder.ignored
            some = ", ".join(files[:5]) + (f" and {len(files) - 5} more" if len(files) > 5 else "")
            count = counted(len(files), "result file", "result files")
            are = "is" if len(files) == 1 else "are"
            yield f"{count} in {folder.path} {are} of another plan or of an older version of a method, and left out: {some}."
        yield from _failure_notes(folder)
    by_row: dict[tuple[str, str], list[Result]] = {}
    for summary in summaries:
        yield from _conflict_notes(summary)
        by_row.setdefault((summary.method, summary.name), []).extend(summary.results)
    for (_, name), results in by_row.items():
        yield from _mixed_notes(name, results)


def outside_notes(summaries: Sequence[Summary]) -> Iterator[str]:
    """Say for each marked name which outside data its method used."""
    names: dict[str, dict[str, list[str]]] = {}
    for summary in summaries:
        if summary.outside:
            names.setdefault(summary.name, {}).setdefault(summary.outside, []).append(summary.stream)
    for name, sets in names.items():
        used = [outside if len(sets) == 1 else f"{outside} on {' and '.join(on)}" for outside, on in sets.items()]
        yield f"{OUTSIDE_MARK} {name} uses unlabelled images from outside the stream ({', '.join(used)})."


def _failure_notes(folder: Folder) -> Iterator[str]:
    """Why planned runs failed, unless they succeeded since; once for all runs that lack the same data."""
    present = {result["file"] for result in folder.results}
    unread: dict[str, None] = {}
    for cell in folder.planned:
        failure = "" if cell.file in present else folder.why_missing(cell)
        why = clip(" ".join(failure.split()).rstrip("."), 300)
        if failure and cell.file is None:
            unread[f"{cell.stream} could not be read: {why}."] = None
        elif failure:
            yield f"{cell.label or display_name(cell.method)} failed on {cell.stream}, seed {cell.seed}: {why}."
    yield from unread


def _conflict_notes(summary: Summary) -> Iterator[str]:
    """Name runs that do not count, since another run of their seed has different accuracies."""
    counted_runs = {(result["seed"], result["stream"]["hash"]): result for result in summary.results}
    for result in summary.conflicting:
        first = counted_runs[result["seed"], result["stream"]["hash"]]
        yield (
            f"{summary.name} on {summary.stream} has two runs of seed {result['seed']} with different accuracies: "
            f"{first['path']} counts, and {result['path']} does not."
        )


def _mixed_notes(name: str, results: Sequence[Result]) -> Iterator[str]:
    """Say in which versions, threads or machines the runs of a row differ."""
    found: dict[str, dict[str, None]] = {}
    for result in results:
        versions = result.get("versions")
        conditions = {"threads": result.get("threads"), "machine": result.get("machine")}
        for what, value in (conditions | (dict(versions) if isinstance(versions, Mapping) else {})).items():
            if value is not None:
                found.setdefault(str(what), {})[str(value)] = None
    different = [f"{what} {' and '.join(sorted(values))}" for what, values in found.items() if len(values) > 1]
    if len({str(result["code"]) for result in results if "code" in result}) > 1:
        different.append("code of the method")
    if different:
        yield f"{name} rests on runs with different {'; '.join(different)}."
