"""A table as Markdown, CSV or TeX. Names come from strangers, so every format writes them as text and as nothing else."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from cldnet.bench.table.escape import csv_text, markdown, markdown_paragraph, plain, tex
from cldnet.bench.table.parts import NOTHING, Difference, Entry, Row, Table

__all__ = ["as_csv", "as_markdown", "as_tex", "columns", "lines", "remarks"]

_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_SEVERAL = " | "


def columns(table: Table) -> list[tuple[str, str]]:
    """List the columns behind the row's name: a stream, and what is said of it ("" for the score itself)."""
    named = []
    for number, stream in enumerate(table.streams):
        entries = [row.entries[number] for row in table.rows]
        named.append((stream, ""))
        if table.against:
            named.append((stream, f"against {table.against}"))
        if any(entry.published for entry in entries):
            named.append((stream, "published"))
    return named


def lines(table: Table) -> Iterator[list[str]]:
    """Write every row as texts, the row's name first, then one for each of `columns`."""
    places = {stream: number for number, stream in enumerate(table.streams)}
    for row in table.rows:
        cells = [row.title]
        for stream, what in columns(table):
            entry = row.entries[places[stream]]
            if what == "published":
                cells.append(_published(entry))
            else:
                cells.append(_difference(table, row, entry) if what else _figure(table, entry))
        yield cells


def remarks(table: Table) -> list[str]:
    """Sentences that belong under the table, without the footnotes."""
    usual = f"over {table.usual_runs} seeds" if table.usual_runs > 1 else "over seeds"
    said = [
        f"{table.score.heading[0].upper()}{table.score.heading[1:]} ({table.score.unit}): mean ± sample standard deviation "
        f"{usual}{_class_orders(table)}."
    ]
    if table.against:
        said.append(f"Differences to {table.against} are taken seed by seed, on the same data in the same class order.")
    if table.footnotes:
        said.append("Published figures are as printed; their footnotes name the source, and what is doubtful.")
    return [*said, *table.notes]


def as_markdown(table: Table, start: Path | None = None) -> str:
    """Write a table as Markdown, with links to the file of every run under it.

    Parameters
    ----------
    table : Table
    start : Path, optional
        Folder that links are relative to; by default the current one.
    """
    heads = ["method", *(f"{stream}, {what}" if what else stream for stream, what in columns(table))]
    rows = [heads, ["---", *["--:"] * (len(heads) - 1)], *lines(table)]
    grid = [f"| {' | '.join(row if n == 1 else map(markdown, row))} |" for n, row in enumerate(rows)]
    said = [markdown_paragraph(remark) for remark in remarks(table)]
    notes = [f"{number}. {markdown_paragraph(text)}" for number, text in enumerate(table.footnotes, start=1)]
    files = []
    for stream, row, entry in table.entries:
        links = (f"[seed {seed}]({_link(path, start)})" for seed, path in zip(entry.seeds, entry.files, strict=True))
        if entry.files:
            files.append(f"- **{markdown(stream)}**, {markdown(row.name)}: {', '.join(links)}")
    sources = ["Sources of published figures:", "", *notes, ""] if notes else []
    runs = ["Files:", "", *files, ""] if files else []
    return "\n".join([f"**{markdown(table.title)}**", "", *grid, "", *_spaced(said), *sources, *runs])


def as_csv(table: Table, start: Path | None = None) -> str:
    """Write a table as tidy CSV: one line for every stream and row. See `as_markdown` for ``start``."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    told = "stream row method bound score unit state mean sd n seeds missing outside against difference difference_sd pairs"
    writer.writerow([*told.split(), "published", "published_sd", "published_what", "source", "files"])
    for stream, row, entry in table.entries:
        if entry.state == NOTHING:
            continue
        more = entry.difference or Difference(float("nan"), None, 0)
        names = [stream, row.name, row.method, row.bound, table.score.name, table.score.unit, entry.state]
        files = _SEVERAL.join(_relative(path, start) for path in entry.files)
        writer.writerow(
            [
                *map(csv_text, names),
                *_numbers(table, entry.mean, entry.std),
                len(entry.seeds),
                " ".join(map(str, entry.seeds)),
                " ".join(map(str, entry.missing)),
                csv_text(entry.outside),
                csv_text(table.against),
                *(_numbers(table, more.mean, more.std) if more.pairs else ("", "")),
                more.pairs or "",
                _SEVERAL.join(figure.mean.text for figure in entry.published),
                _SEVERAL.join("-" if figure.std is None else figure.std.text for figure in entry.published),
                csv_text(_SEVERAL.join(figure.what or "as it is" for figure in entry.published)),
                csv_text(_SEVERAL.join(table.footnotes[figure.footnote - 1] for figure in entry.published)),
                csv_text(files),
            ]
        )
    return out.getvalue()


def as_tex(table: Table, start: Path | None = None) -> str:
    """Write a table as TeX (package booktabs), with the files of the runs as comments. See `as_markdown` for ``start``."""
    named = columns(table)
    spans = [(stream, sum(1 for other, _ in named if other == stream)) for stream in table.streams]
    streams = " & ".join(f"\\multicolumn{{{width}}}{{c}}{{{tex(stream)}}}" for stream, width in spans)
    heads = [f"method & {streams} \\\\"]
    if len(named) > len(spans):
        units = " & ".join(tex(what) if what else tex(table.score.unit) for _, what in named)
        heads.append(f" & {units} \\\\")
    body = [" & ".join(map(tex, row)) + r" \\" for row in lines(table)]
    notes = [f"\\textsuperscript{{{number}}}{tex(text)}" for number, text in enumerate(table.footnotes, start=1)]
    under = [*map(tex, remarks(table)), *notes]
    comments = [
        f"% {plain(stream)}, {plain(row.name)}, seed {seed}: {plain(_relative(path, start))}"
        for stream, row, entry in table.entries
        for seed, path in zip(entry.seeds, entry.files, strict=True)
    ]
    text = [
        "% \\usepackage{booktabs}",
        r"\begin{table}",
        r"\centering",
        f"\\caption{{{tex(table.title)}}}",
        f"\\begin{{tabular}}{{l{'r' * len(named)}}}",
        r"\toprule",
        *heads,
        r"\midrule",
        *body,
        r"\bottomrule",
        r"\end{tabular}",
        r"\par\smallskip",
        r"\begin{minipage}{\linewidth}\footnotesize",
        *(f"{sentence}\\par" for sentence in under),
        r"\end{minipage}",
        r"\end{table}",
        *comments,
    ]
    return "\n".join(text) + "\n"


def _figure(table: Table, entry: Entry) -> str:
    if entry.state:
        return entry.state
    runs = len(entry.seeds)
    seeds = ""
    if entry.missing:
        seeds = f" ({runs} of {runs + len(entry.missing)} seeds)"
    elif runs != table.usual_runs:
        seeds = f" ({runs} seeds)" if runs > 1 else " (1 seed)"
    return _plus_minus(*_numbers(table, entry.mean, entry.std)) + seeds


def _difference(table: Table, row: Row, entry: Entry) -> str:
    if entry.difference is None:
        return "reference" if row.name == table.against else NOTHING
    pairs = "1 pair" if entry.difference.pairs == 1 else f"{entry.difference.pairs} pairs"
    mean, std = _numbers(table, entry.difference.mean, entry.difference.std)
    return f"{'' if mean.startswith('-') else '+'}{_plus_minus(mean, std)} ({pairs})"


def _published(entry: Entry) -> str:
    texts = []
    for figure in entry.published:
        mark = str(figure.footnote).translate(_SUPERSCRIPTS)
        what = f" ({figure.what})" if figure.what else ""
        std = "" if figure.std is None else figure.std.text
        texts.append(f"{_plus_minus(figure.mean.text, std)}{mark}{what}")  # with the digits that were printed
    return "; ".join(texts) or NOTHING


def _class_orders(table: Table) -> str:
    """Say what a seed stands for, of all streams at once where it is the same."""
    say = {
        "own": "a seed has its own class order and weights",
        "same": "all in the same class order, a seed has its own weights",
        "some the same": "a seed has its own weights, and some seeds the same class order",
    }
    streams: dict[str, list[str]] = {}
    for stream, orders in zip(table.streams, table.class_orders, strict=True):
        if orders:
            streams.setdefault(say[orders], []).append(stream)
    if len(streams) < 2:
        return "".join(f"; {said}" for said in streams)
    return "".join(f"; on {' and '.join(names)}, {said}" for said, names in streams.items())


def _plus_minus(mean: str, std: str) -> str:
    text = f"{mean} ± {std}" if std else mean
    return text.replace("-", "−")  # as wide as a digit


def _numbers(table: Table, mean: float | None, std: float | None) -> tuple[str, str]:
    """A mean and a standard deviation with as many digits behind the point, in texts; empty where there is none."""
    decimals = table.score.decimals(mean or 0.0)
    # Adding 0.0 turns a rounded "-0.00" into "0.00".
    first, second = ("" if value is None else f"{round(value, decimals) + 0.0:.{decimals}f}" for value in (mean, std))
    return first, second


def _relative(path: Path, start: Path | None) -> str:
    try:
        return Path(os.path.relpath(path, start or Path.cwd())).as_posix()
    except ValueError:  # another drive
        return path.resolve().as_posix()


def _link(path: Path, start: Path | None) -> str:
    return quote(_relative(path, start), safe="/")


def _spaced(paragraphs: list[str]) -> list[str]:
    return [line for paragraph in paragraphs for line in (paragraph, "")]
