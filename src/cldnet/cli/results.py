"""Commands that show results: a table, and a page with plots."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from cldnet.cli.show import counting, new_table, say

if TYPE_CHECKING:
    from cldnet.bench.table import Table


class TableFormat(StrEnum):
    """What a table is written as."""

    md = "md"
    csv = "csv"
    tex = "tex"


def table_command(
    results: Annotated[list[Path], typer.Argument(help="Folders of results, combined in one table.")],
    form: Annotated[
        TableFormat | None,
        typer.Option(
            "--as", help="Markdown, CSV or TeX; by default from the file's name, or Markdown; a table on a terminal."
        ),
    ] = None,
    score: Annotated[
        str,
        typer.Option(
            help="What to show: accuracy, incremental, forgetting, task-il, capacity, kept or seconds. leak-statistics "
            "and leak-epoch show what a leak of test data would give; they are not results."
        ),
    ] = "accuracy",
    stream: Annotated[list[str] | None, typer.Option(help="Show only this stream. Repeatable.")] = None,
    against: Annotated[
        str | None, typer.Option(help="A method, or the name of a row, to compare all others with, seed by seed.")
    ] = None,
    published: Annotated[
        bool, typer.Option("--published/--no-published", help="Show published figures, if there are any.")
    ] = True,
    beside: Annotated[list[str] | None, typer.Option(help="Show this score in a further column. Repeatable.")] = None,
    cost: Annotated[
        bool,
        typer.Option(
            "--cost", help="Also show exemplars, bytes kept (of that exemplars and teacher) and time of training."
        ),
    ] = False,
    out: Annotated[Path | None, typer.Option(help="File to write; links in it are relative to its folder.")] = None,
) -> None:
    """Show results as a table: mean ± standard deviation over seeds, streams side by side."""
    from cldnet.bench.results import read_folder
    from cldnet.bench.table import build_table
    from cldnet.bench.table_formats import as_csv, as_markdown, as_tex
    from cldnet.storage import write_atomically

    form = form or _form_of(out)
    with Console(stderr=True).status("reading results"):  # silent where there is no terminal
        folders = [read_folder(folder) for folder in results]
        table = build_table(
            folders,
            score=score,
            against=against,
            published=published,
            cost=cost,
            only=stream or (),
            beside=beside or (),
        )
    if form is None and out is None and Console().is_terminal:
        _show(table)
        return
    write = {"md": as_markdown, "csv": as_csv, "tex": as_tex}[form or "md"]
    text = write(table, None if out is None else out.parent)
    if out is None:
        sys.stdout.write(text)  # as it is: no wrapping
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, text.encode())
    say(f"Written to {out}")


def report_command(
    results: Annotated[Path, typer.Argument(help="Folder of results.")],
    out: Annotated[Path | None, typer.Option(help="Folder for page and plots; by default that of the results.")] = None,
    open_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Write one page with everything about the results, and every plot as a file."""
    from cldnet.bench.report import write_report

    with counting("drawing", "plots") as tell:
        report = write_report(results, out, on_progress=tell)
    say(f"page   {report.page}")
    if report.plots:
        say(f"plots  {report.plots[0].parent} ({len(report.plots)} files)")
    if report.missing:
        say(f"No PNG files: {report.missing}")
    if open_it:
        import webbrowser

        if not webbrowser.open(report.page.resolve().as_uri()):
            say("No browser was found. Open the page yourself.", error=True)


def _form_of(out: Path | None) -> TableFormat | None:
    """Return the format that a file's name implies."""
    if out is None:
        return None
    endings = {f".{form}": form for form in TableFormat} | {".markdown": TableFormat.md}
    if out.suffix.lower() not in endings:
        raise ValueError(f"{out} has an unknown extension: use .md, .csv or .tex, or choose a format with --as.")
    return endings[out.suffix.lower()]


def _show(table: Table) -> None:
    """Show a table on a terminal, stream under stream, with what a reader should know below."""
    from cldnet.bench.table import NOTHING
    from cldnet.bench.table_formats import columns, lines, plain, remarks

    named, rows = columns(table), list(lines(table))
    for stream in table.streams:
        places = [number for number, (other, _) in enumerate(named, start=1) if other == stream]
        shown = new_table(title=Text(plain(stream)))
        shown.add_column("method")
        for place in places:
            shown.add_column(Text(plain(named[place - 1][1]) or table.score.unit), justify="right")
        for name, *cells in rows:
            texts = [cells[place - 1] for place in places]
            if texts[0] != NOTHING:
                shown.add_row(Text(plain(name)), *(Text("\n".join(map(plain, text.split("; ")))) for text in texts))
        Console().print(shown)
    sources = [f"{number}  {source}" for number, source in enumerate(table.footnotes, start=1)]
    for sentence in (*remarks(table), *sources):
        say(plain(sentence))
