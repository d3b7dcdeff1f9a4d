"""Commands that show results: a table, and a page with plots."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from cldnet.cli.show import counting, say

if TYPE_CHECKING:
    from cldnet.bench.table import Table

__all__ = ["report_command", "table_command"]


class Format(Enum):
    """What a table is written as."""

    md = "md"
    csv = "csv"
    tex = "tex"


def table_command(
    results: Annotated[list[Path], typer.Argument(help="Folders of results; runs of all of them share one table.")],
    form: Annotated[
        Format | None,
        typer.Option(
            "--as", help="Markdown, CSV or TeX; by default what the file's name says, or what suits the screen."
        ),
    ] = None,
    score: Annotated[
        str,
        typer.Option(
            help="What to show: accuracy, incremental, forgetting, task-il, capacity, kept or seconds; or what a leak would "
            "make of it, which is no result: leak-statistics or leak-epoch."
        ),
    ] = "accuracy",
    against: Annotated[
        str | None, typer.Option(help="A method, or a row's name: show how others differ from it, seed by seed.")
    ] = None,
    published: Annotated[
        bool, typer.Option("--published/--no-published", help="Show published figures where there are some.")
    ] = True,
    out: Annotated[Path | None, typer.Option(help="File to write; links in it are relative to its folder.")] = None,
) -> None:
    """Show results as a table: mean ± standard deviation over seeds, streams side by side."""
    from cldnet.bench.results import read_folder
    from cldnet.bench.table import as_csv, as_markdown, as_tex, build_table
    from cldnet.store import write_atomically

    form = form or _form_of(out)
    with Console(stderr=True).status("reading results"):  # silent where there is no terminal
        table = build_table(
            [read_folder(folder) for folder in results], score=score, against=against, published=published
        )
    if form is None and out is None and Console().is_terminal:
        _show(table)
        return
    write = {Format.md: as_markdown, Format.csv: as_csv, Format.tex: as_tex}[form or Format.md]
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
            say("There is no browser to open the page with.", error=True)


def _form_of(out: Path | None) -> Format | None:
    """Tell the format from a file's name."""
    if out is None:
        return None
    endings = {f".{form.value}": form for form in Format} | {".markdown": Format.md}
    if out.suffix.lower() not in endings:
        raise ValueError(f"{out} does not say what to write: end its name with .md, .csv or .tex, or say it with --as.")
    return endings[out.suffix.lower()]


def _show(table: Table) -> None:
    """Show a table on a terminal, stream under stream, with what a reader should know below."""
    from cldnet.bench.table import NOTHING, columns, lines, plain, remarks

    named, rows = columns(table), list(lines(table))
    for stream in table.streams:
        places = [number for number, (other, _) in enumerate(named, start=1) if other == stream]
        shown = RichTable(title=Text(plain(stream)), box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
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
