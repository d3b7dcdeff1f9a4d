"""What a reader of a table should know beside its figures: what failed, what was left out or set aside, what was mixed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cldnet.bench.results import Folder
from cldnet.bench.summary import Summary
from cldnet.bench.wording import OUTSIDE_MARK, clip, display_name

__all__ = ["outside_notes", "table_notes"]


def table_notes(folders: Sequence[Folder], summaries: Sequence[Summary], quoted: Sequence[str] = ()) -> Iterator[str]:
    """Say in sentences what a table's figures do not say.

    Parameters
    ----------
    folders : sequence of Folder
        Where the results come from.
    summaries : sequence of Summary
        What the table shows.
    quoted : sequence of str
        Streams beside which published figures may stand.

    Examples
    --------
    >>> from pathlib import Path
    >>> list(table_notes([Folder(Path("quick"), "Quick", [], left_out=["old.json"])], []))
    ['1 result file in quick is of another plan or of an older version of a method, and left out: old.json.']
    """
    yield from outside_notes(summaries)
    for stream in quoted:
        base, comma, _ = stream.partition(",")
        if comma:
            yield f"Published figures beside {stream} are of {base} without options."
    for folder in folders:
        yield from _left_out(folder)
        yield from _failures(folder)
    for summary in summaries:
        yield from _set_aside(summary)
    by_row: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for summary in summaries:
        by_row.setdefault((summary.method, summary.name), []).extend(summary.results)
    for (_, name), results in by_row.items():
        yield from _mixed(name, results)


def outside_notes(summaries: Sequence[Summary]) -> Iterator[str]:
    """Say of each marked name from where its method had data besides the stream's."""
    names: dict[str, dict[str, list[str]]] = {}
    for summary in summaries:
        if summary.outside:
            names.setdefault(summary.name, {}).setdefault(summary.outside, []).append(summary.stream)
    for name, sets in names.items():
        said = [outside if len(sets) == 1 else f"{outside} on {' and '.join(on)}" for outside, on in sets.items()]
        yield f"{OUTSIDE_MARK} {name} uses unlabelled images from outside the stream ({', '.join(said)})."


def _left_out(folder: Folder) -> Iterator[str]:
    files = folder.left_out
    if files:
        some = ", ".join(files[:5]) + (f" and {len(files) - 5} more" if len(files) > 5 else "")
        what = "1 result file in {} is" if len(files) == 1 else f"{len(files)} result files in {{}} are"
        yield f"{what.format(folder.path)} of another plan or of an older version of a method, and left out: {some}."


def _failures(folder: Folder) -> Iterator[str]:
    """Why planned runs failed, unless they succeeded since; said once of all runs that lack the same data."""
    there = {result["file"] for result in folder.results}
    unread: dict[tuple[str, str], None] = {}
    for cell in folder.planned:
        failure = "" if cell.file in there else folder.why_not(cell)
        if not failure:
            continue
        why = clip(" ".join(failure.split()).rstrip("."), 300)
        if cell.file is None:
            unread[cell.stream, why] = None
        else:
            yield f"{cell.label or display_name(cell.method)} failed on {cell.stream}, seed {cell.seed}: {why}."
    for stream, why in unread:
        yield f"{stream} could not be read: {why}."


def _set_aside(summary: Summary) -> Iterator[str]:
    """Say which runs of a seed do not count, though they came out otherwise than the one that does."""
    counted = {(result["seed"], result["stream"]["hash"]): result for result in summary.results}
    for result in summary.set_aside:
        first = counted[result["seed"], result["stream"]["hash"]]
        yield (
            f"{summary.name} on {summary.stream} has two runs of seed {result['seed']} with different accuracies: "
            f"{_place(first)} counts, and {_place(result)} does not."
        )


def _place(result: Mapping[str, Any]) -> str:
    return str(result.get("path", result.get("file", "one")))


def _mixed(name: str, results: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Say on what different grounds the runs of a row rest."""
    grounds: dict[str, dict[str, None]] = {}
    for result in results:
        versions = result.get("versions")
        told = {"threads": result.get("threads"), "machine": result.get("machine")}
        told |= versions if isinstance(versions, Mapping) else {}
        for what, value in told.items():
            if value is not None:
                grounds.setdefault(str(what), {})[str(value)] = None
    different = [f"{what} {' and '.join(sorted(values))}" for what, values in grounds.items() if len(values) > 1]
    if len({str(result["code"]) for result in results if "code" in result}) > 1:
        different.append("code of the method")
    if different:
        yield f"{name} rests on runs with different {'; '.join(different)}."
