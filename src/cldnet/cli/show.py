"""What commands print: text, tables, and progress as bars on a terminal or plain lines elsewhere."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from cldnet.bench.formatting import human_bytes, percent, yes_no
from cldnet.text import shown as shown

if TYPE_CHECKING:
    from cldnet.bench.summary import Summary

#: Seconds between lines of progress, without a terminal.
SILENCE = 10.0
#: Seconds before the first line of progress.
_PATIENCE = 2.0


def say(text: str, *, error: bool = False) -> None:
    """Print text without colours, markup or wrapping, with control characters escaped."""
    Console(stderr=error).print(printable(text), highlight=False, markup=False, soft_wrap=True)


def printable(text: str) -> str:
    """Escape a text of several lines, each as `shown` does."""
    return "\n".join(map(shown, text.split("\n")))


def json_text(value: object) -> str:
    r"""Dump JSON that is safe on a terminal: unprintable characters are escaped, and read back unchanged."""
    text = json.dumps(value, indent=1, ensure_ascii=False)
    return "".join(letter if letter == "\n" or letter.isprintable() else json.dumps(letter)[1:-1] for letter in text)


def pace(count: int, seconds: float, unit: str) -> str:
    """Format a rate per second; empty as long as there is nothing to measure."""
    if count <= 0 or seconds <= 0:
        return ""
    rate = count / seconds
    if unit == "bytes":
        return f"{human_bytes(rate)}/s"
    return f"{f'{rate:,.0f}' if rate >= 10 else f'{rate:.2g}'} {unit}/s"


@contextmanager
def counting(label: str, unit: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show progress and rate: a bar on a terminal, a line per quarter elsewhere.

    Call the yielded function with the count and the total (``None`` if unknown), first with the count at the beginning. On a
    terminal the bar also shows what the library logs in the meantime, such as that it solves a large problem.
    """
    console = Console(stderr=True)
    first, since = -1, 0.0

    def rate(done: int) -> str:
        # From the first count on: a download may resume in the middle of a file. The next file starts with a lower count.
        nonlocal first, since
        now = time.monotonic()
        if not 0 <= first <= done:
            first, since = done, now
        return pace(done - first, now - since, unit)

    if not console.is_terminal:
        told, begun_at = -1, time.monotonic()

        def tell(done: int, total: int | None) -> None:
            nonlocal told
            now, quarter = rate(done), 0 if not total else 4 * done // total
            if quarter > told and time.monotonic() - begun_at > _PATIENCE:
                told = quarter
                say(f"{label}: {done:,}{f' of {total:,}' if total else ''} {unit}{now and f' ({now})'}", error=True)

        yield tell
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeRemainingColumn,
    )

    count = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    said, fast = (TextColumn(f"{{task.{what}}}", markup=False) for what in ("description", "fields[pace]"))
    columns = (SpinnerColumn(), said, BarColumn(), count, fast, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        begun: list[Any] = []  # no bar before the first count

        def show(done: int, total: int | None) -> None:
            if not begun:
                begun.append(bars.add_task(label, total=total, pace=""))
            bars.update(begun[0], description=label, completed=done, total=total, pace=rate(done))

        def note(text: str) -> None:
            if begun:
                bars.update(begun[0], description=text)

        with _informed(note):
            yield show


@contextmanager
def _informed(note: Callable[[str], None]) -> Iterator[None]:
    """Call a function with each message for information that the library logs; others go where they would go anyway."""
    log = logging.getLogger("cldnet")
    level, heard = log.level, log.getEffectiveLevel()

    def hear(record: logging.LogRecord) -> bool:
        if record.levelno == logging.INFO:
            note(record.getMessage())
        return record.levelno >= heard

    log.addFilter(hear)
    log.setLevel(min(heard, logging.INFO))
    try:
        yield
    finally:
        log.removeFilter(hear)
        log.setLevel(level)


@contextmanager
def progress(names: Sequence[str]) -> Iterator[tuple[Callable[[int, float], None], Callable[[int, str], None]]]:
    """Show a bar per run on a terminal, and a line per finished run elsewhere."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    console = Console()
    if not console.is_terminal:
        told = time.monotonic()

        def tell(number: int, share: float) -> None:
            nonlocal told
            if share < 1 and time.monotonic() - told > SILENCE:
                told = time.monotonic()
                say(f"{names[number]}: {share:.0%} done", error=True)

        yield tell, lambda number, text: say(f"{names[number]}: {text}")
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        whole = bars.add_task("all runs", total=len(names))
        running: dict[int, Any] = {}
        shares = [0.0] * len(names)

        def on_progress(number: int, share: float) -> None:
            if number not in running and share < 1:
                running[number] = bars.add_task(names[number], total=1.0)
            if number in running:
                bars.update(running[number], completed=share)
            shares[number] = max(share, shares[number])
            bars.update(whole, completed=sum(shares))

        def announce(number: int, text: str) -> None:
            on_progress(number, 1.0)
            if number in running:
                bars.remove_task(running.pop(number))
            bars.console.print(f"{names[number]}: {text}", highlight=False, markup=False)

        yield on_progress, announce


def outcome_text(result: Mapping[str, Any]) -> str:
    """Accuracy and time of a finished run."""
    return f"{percent(result['scores']['average_accuracy'])} in {result['seconds']['total']:.1f} s"


def new_table(*headings: str, title: str | Text | None = None) -> Table:
    """Make an empty table in the style of all commands."""
    return Table(*headings, title=title, box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))


def result_tables(summaries: Sequence[Summary]) -> Iterator[Table]:
    """Results as one table per stream: a row per method, mean and standard deviation over seeds."""
    from cldnet.bench.table import outside_notes

    for stream in dict.fromkeys(summary.stream for summary in summaries):
        rows = [summary for summary in summaries if summary.stream == stream]
        table = new_table(title=escape(stream))
        table.add_column("method", no_wrap=True)
        for heading in ("average\naccuracy", "forgetting", "seconds", "bytes\nkept", "grows?", "keeps\ndata?"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in rows:
            cells = [row.accuracy_text if row.runs or not row.missing else f"[dim]{row.accuracy_text}[/]"]
            if row.seconds is not None and row.bytes_kept is not None:
                cells += [percent(row.forgetting), f"{row.seconds:.1f}", human_bytes(row.bytes_kept)]
                cells += [yes_no(row.grows), yes_no(row.keeps_data)]
            table.add_row(escape(row.marked_name), *cells)
        table.caption = "\n".join(map(escape, outside_notes(rows))) or None
        table.caption_justify = "left"
        yield table
