"""A table as Markdown, CSV or TeX. Names are untrusted, so every format escapes them."""

from __future__ import annotations

import csv
import io
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from cldnet.bench.formatting import counted, duration, human_bytes
from cldnet.bench.table import NOTHING, Entry, Row, Score, Table

_SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹"
_GREEK = "αβγδεζηθικλμνξπρστυφχψω"
_TEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: f"{{{sign}}}" for sign in '[]*"'},  # after the end of a row, TeX would read [ and * as its arguments
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"\ensuremath{\pm}",
    "−": r"\ensuremath{-}",
    "×": r"\ensuremath{\times}",
    "–": "--",
    "…": r"\ldots{}",
}
_CSV_COLUMNS = (
    *("stream", "row", "method", "bound", "score", "unit", "state", "mean", "sd", "n", "seeds", "missing", "outside"),
    *(
        "against",
        "difference",
        "difference_sd",
        "pairs",
        "published",
        "published_sd",
        "published_what",
        "source",
        "files",
    ),
)
_CSV_COST = ("memory", "kept_bytes", "exemplars_bytes", "teacher_bytes", "train_seconds")
#: Columns that show what a configuration costs.
_COST = ("exemplars", "teacher", "kept in all", "training")


def plain(text: str) -> str:
    """One line without control characters, which could end a comment or a row."""
    return "".join(sign for sign in " ".join(text.split()) if not unicodedata.category(sign).startswith("C"))


def markdown(text: str, start: bool = False) -> str:
    r"""Escape text for Markdown; at the start of a line also what would make it a heading, a list or a quotation."""
    text = re.sub(r"([\\`*_\[\]|~$])", r"\\\1", plain(text)).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"^(\d*)([#+>=.)-])", r"\1\\\2", text) if start else text


def csv_text(text: str) -> str:
    """Escape text so that a spreadsheet does not run it as a formula."""
    line = plain(text)
    return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line


def tex(text: str) -> str:
    r"""Escape text for TeX."""

    def escaped(part: str) -> str:
        if part[0] in _SUPERSCRIPTS:
            return f"\\textsuperscript{{{''.join(str(_SUPERSCRIPTS.index(sign)) for sign in part)}}}"
        if part in _GREEK:
            name = unicodedata.name(part).rpartition(" ")[2].lower().replace("lamda", "lambda")  # as TeX spells it
            return f"\\ensuremath{{\\{name}}}"
        return _TEX.get(part, part)

    return "".join(map(escaped, re.findall(f"[{_SUPERSCRIPTS}]+|.", plain(text))))


def columns(table: Table) -> list[tuple[str, str]]:
    """List the columns after the row's name: a stream, and what the column shows ("" for the score itself)."""
    named = []
    for number, stream in enumerate(table.streams):
        named.append((stream, ""))
        if table.against:
            named.append((stream, f"against {table.against}"))
        if any(row.entries[number].published for row in table.rows):
            named.append((stream, "published"))
        named += [(stream, _beside(score)) for score in table.beside]
        if table.cost:
            named += [(stream, what) for what in _COST]
    return named


def lines(table: Table) -> Iterator[list[str]]:
    """Write every row as texts: the row's name, then one for each of `columns`."""
    places = {_beside(score): number for number, score in enumerate(table.beside)}
    for row in table.rows:
        entries = dict(zip(table.streams, row.entries, strict=True))
        cells = [row.title]
        for stream, what in columns(table):
            if what == "published":
                cells.append(_published(entries[stream]))
            elif what in places:
                others, number = entries[stream].beside, places[what]
                cells.append(_value(others[number], table.beside[number]) if others else NOTHING)
            elif what in _COST:
                cells.append(_cost(entries[stream])[_COST.index(what)])
            else:
                cells.append(_difference(table, row, entries[stream]) if what else _figure(table, entries[stream]))
        yield cells


def remarks(table: Table) -> list[str]:
    """Sentences that belong under the table, without the footnotes."""
    heading, runs = table.score.heading, table.usual_runs
    seeds = f"over {runs} seeds" if runs > 1 else "over seeds"
    said = [
        f"{heading[0].upper()}{heading[1:]} ({table.score.unit}): mean ± sample standard deviation {seeds}"
        f"{_class_orders(table)}."
    ]
    if table.against:
        said.append(f"Differences to {table.against} are taken seed by seed, on the same data in the same class order.")
    if table.footnotes:
        said.append("Published figures are as printed; their footnotes name the source, and what is doubtful.")
    if table.cost:
        said.append(
            "Exemplars: training samples that the method has room for, and their bytes. Kept in all: the bytes of everything "
            "that the learner keeps, exemplars and teacher included. Training: without evaluation. All are means over seeds."
        )
    return [*said, *table.notes]


def as_markdown(table: Table, start: Path | None = None) -> str:
    """Write a table as Markdown, with links to the file of every run, relative to ``start`` or the current folder."""
    heads = ["method", *(f"{stream}, {what}" if what else stream for stream, what in columns(table))]
    rows = [f"| {' | '.join(map(markdown, row))} |" for row in (heads, *lines(table))]
    rows.insert(1, f"| {' | '.join(['---', *['--:'] * (len(heads) - 1)])} |")
    text = [f"**{markdown(table.title)}**", "", *rows, ""]
    for remark in remarks(table):
        text += [markdown(remark, start=True), ""]
    if table.footnotes:
        notes = [f"{number}. {markdown(note, start=True)}" for number, note in enumerate(table.footnotes, start=1)]
        text += ["Sources of published figures:", "", *notes, ""]
    files = []
    for stream, row, entry in table.entries:
        paths = [quote(_relative(path, start), safe="/") for path in entry.files]
        links = [f"[seed {seed}]({path})" for seed, path in zip(entry.seeds, paths, strict=True)]
        if links:
            files.append(f"- **{markdown(stream)}**, {markdown(row.name)}: {', '.join(links)}")
    return "\n".join([*text, *(["Files:", "", *files, ""] if files else [])])


def as_csv(table: Table, start: Path | None = None) -> str:
    """Write a table as tidy CSV: one line for every stream and row. See `as_markdown` for ``start``."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    beside = [name for score in table.beside for name in (score.name, f"{score.name}_sd")]
    writer.writerow([*_CSV_COLUMNS, *beside, *(_CSV_COST if table.cost else ())])
    for stream, row, entry in table.entries:
        if entry.state == NOTHING:
            continue
        names = [stream, row.name, row.method, row.bound, table.score.name, table.score.unit, entry.state]
        more, quotes = entry.difference, entry.published
        several = (
            [figure.what or "as it is" for figure in quotes],
            [table.footnotes[figure.footnote - 1] for figure in quotes],
            [_relative(path, start) for path in entry.files],
        )
        writer.writerow(
            [
                *map(csv_text, names),
                *_numbers(table.score, entry.mean, entry.std),
                len(entry.seeds),
                " ".join(map(str, entry.seeds)),
                " ".join(map(str, entry.missing)),
                csv_text(entry.outside),
                csv_text(table.against),
                *(("", "", "") if more is None else (*_numbers(table.score, more.mean, more.std), more.pairs)),
                " | ".join(str(figure.mean) for figure in quotes),
                " | ".join("-" if figure.std is None else str(figure.std) for figure in quotes),
                *(csv_text(" | ".join(texts)) for texts in several),
                *_csv_beside(table, entry),
                *(_csv_cost(entry) if table.cost else ()),
            ]
        )
    return out.getvalue()


def as_tex(table: Table, start: Path | None = None) -> str:
    """Write a table as TeX (package booktabs), with the files of the runs as comments. See `as_markdown` for ``start``."""
    named = columns(table)
    widths = Counter(stream for stream, _ in named)
    spans = [f"\\multicolumn{{{widths[stream]}}}{{c}}{{{tex(stream)}}}" for stream in table.streams]
    heads = [" & ".join(["method", *spans]) + r" \\"]
    if len(named) > len(spans):
        heads.append(" & ".join(["", *(tex(what or table.score.unit) for _, what in named)]) + r" \\")
    notes = [f"\\textsuperscript{{{number}}}{tex(text)}" for number, text in enumerate(table.footnotes, start=1)]
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
        *(" & ".join(map(tex, row)) + r" \\" for row in lines(table)),
        r"\bottomrule",
        r"\end{tabular}",
        r"\par\smallskip",
        r"\begin{minipage}{\linewidth}\footnotesize",
        *(f"{sentence}\\par" for sentence in (*map(tex, remarks(table)), *notes)),
        r"\end{minipage}",
        r"\end{table}",
        *comments,
    ]
    return "\n".join(text) + "\n"


def _beside(score: Score) -> str:
    """Heading of the column of a further score."""
    return f"{score.heading} ({score.unit})"


def _value(entry: Entry, score: Score) -> str:
    return entry.state or _plus_minus(*_numbers(score, entry.mean, entry.std))


def _figure(table: Table, entry: Entry) -> str:
    if entry.state:
        return entry.state
    runs = len(entry.seeds)
    seeds = ""
    if entry.missing:
        seeds = f" ({runs} of {runs + len(entry.missing)} seeds)"
    elif runs != table.usual_runs:
        seeds = f" ({counted(runs, 'seed', 'seeds')})"
    return _value(entry, table.score) + seeds


def _difference(table: Table, row: Row, entry: Entry) -> str:
    if entry.difference is None:
        return "reference" if row.name == table.against else NOTHING
    mean, std = _numbers(table.score, entry.difference.mean, entry.difference.std)
    sign = "" if mean.startswith("-") else "+"
    return f"{sign}{_plus_minus(mean, std)} ({counted(entry.difference.pairs, 'pair', 'pairs')})"


def _published(entry: Entry) -> str:
    texts = []
    for figure in entry.published:
        mark = "".join(_SUPERSCRIPTS[int(digit)] for digit in str(figure.footnote))
        std = "" if figure.std is None else str(figure.std)
        texts.append(f"{_plus_minus(str(figure.mean), std)}{mark}{f' ({figure.what})' if figure.what else ''}")
    return "; ".join(texts) or NOTHING


def _cost(entry: Entry) -> tuple[str, str, str, str]:
    """One text for each of `_COST`."""
    cost = entry.cost
    if cost is None:
        return NOTHING, NOTHING, NOTHING, NOTHING
    exemplars = human_bytes(cost.exemplars) if cost.exemplars else "0"
    if cost.exemplars and cost.memory is not None:
        exemplars = f"{cost.memory:,} ({exemplars})"
    teacher = human_bytes(cost.teacher) if cost.teacher else "0"
    return exemplars, teacher, human_bytes(cost.kept), NOTHING if cost.seconds is None else duration(cost.seconds)


def _csv_beside(table: Table, entry: Entry) -> Iterator[str]:
    """Mean and standard deviation of every further score."""
    for number, score in enumerate(table.beside):
        yield from _numbers(score, entry.beside[number].mean, entry.beside[number].std) if entry.beside else ("", "")


def _csv_cost(entry: Entry) -> list[str]:
    """One number for each of `_CSV_COST`."""
    if (cost := entry.cost) is None:
        return [""] * len(_CSV_COST)
    sizes = [f"{size:.0f}" for size in (cost.kept, cost.exemplars, cost.teacher)]
    return [
        "" if cost.memory is None else str(cost.memory),
        *sizes,
        "" if cost.seconds is None else f"{cost.seconds:.2f}",
    ]


def _class_orders(table: Table) -> str:
    """Say what a seed stands for, once for all streams if it is the same."""
    meaning = {
        "own": "a seed has its own class order and weights",
        "same": "all in the same class order, a seed has its own weights",
        "some the same": "a seed has its own weights, and some seeds the same class order",
    }
    streams: dict[str, list[str]] = {}
    for stream, orders in zip(table.streams, table.class_orders, strict=True):
        if orders:
            streams.setdefault(meaning[orders], []).append(stream)
    if len(streams) < 2:
        return "".join(f"; {said}" for said in streams)
    return "".join(f"; on {' and '.join(names)}, {said}" for said, names in streams.items())


def _plus_minus(mean: str, std: str) -> str:
    return (f"{mean} ± {std}" if std else mean).replace("-", "−")  # as wide as a digit


def _numbers(score: Score, mean: float | None, std: float | None) -> tuple[str, str]:
    """A mean and a standard deviation with the same number of digits; empty if there is none."""
    decimals = score.decimals(mean or 0.0)
    # Adding 0.0 turns a rounded "-0.00" into "0.00".
    first, second = ("" if value is None else f"{round(value, decimals) + 0.0:.{decimals}f}" for value in (mean, std))
    return first, second


def _relative(path: Path, start: Path | None) -> str:
    try:
        return Path(os.path.relpath(path, start or Path.cwd())).as_posix()
    except ValueError:  # another drive
        return path.resolve().as_posix()
