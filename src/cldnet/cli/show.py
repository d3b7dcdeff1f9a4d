"""What commands show: bars on a terminal and plain lines elsewhere, and tables."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from cldnet.bench.wording import counted

if TYPE_CHECKING:
    from cldnet.bench.summary import Summary

#: Seconds without a word, where there is no terminal for a bar.
SILENCE = 10.0
#: Seconds that nobody need be told about.
_PATIENCE = 2.0

__all__ = [
    "SILENCE",
    "counted",
    "counting",
    "json_text",
    "pace",
    "printable",
    "progress",
    "result_tables",
    "say",
    "shown",
]


def say(text: str, *, error: bool = False) -> None:
    """Print a text as it is: no colours of numbers, no markup, no wrapping of paths; but nothing that moves a cursor."""
    Console(stderr=error).print(printable(text), highlight=False, markup=False, soft_wrap=True)


def shown(name: object) -> str:
    r"""A name, of a file or a class, for one line of a terminal: what cannot be printed is written as Python writes it.

    Names come from strangers. One may hold what clears a screen, what looks like another answer on a line of its own, or
    bytes that are no text.

    Examples
    --------
    >>> print(shown("wren\n\x1b[2J.jpg"), shown(b"caf\xe9.jpg".decode(errors="surrogateescape")), shown("café.jpg"))
    wren\n\x1b[2J.jpg caf\xe9.jpg café.jpg
    """
    return "".join(letter if letter.isprintable() else _escaped(letter) for letter in str(name))


def _escaped(letter: str) -> str:
    byte = ord(letter) - 0xDC00  # as Python holds a byte of a name that is not UTF-8
    return f"\\x{byte:02x}" if 0x80 <= byte <= 0xFF else repr(letter)[1:-1]


def printable(text: str) -> str:
    """A text of one or more lines, each as `shown` writes it."""
    return "\n".join(map(shown, text.split("\n")))


def json_text(value: object) -> str:
    r"""JSON for a program and for a terminal: letters as they are, and what cannot be printed escaped, so that it comes back.

    Examples
    --------
    >>> print(json_text({"photo": "caf\xe9\x9b\udcff"}))
    {
     "photo": "café\u009b\udcff"
    }
    """
    text = json.dumps(value, indent=1, ensure_ascii=False)
    return "".join(letter if letter == "\n" or letter.isprintable() else json.dumps(letter)[1:-1] for letter in text)


def pace(count: int, seconds: float, unit: str) -> str:
    """How many in a second; nothing before there is anything to tell it by.

    Examples
    --------
    >>> pace(236, 2.0, "photos"), pace(1, 4.0, "photos"), pace(3_000_000, 2.0, "bytes"), pace(0, 0.1, "photos")
    ('118 photos/s', '0.25 photos/s', '1.5 MB/s', '')
    """
    from cldnet.bench.wording import human_bytes

    if count <= 0 or seconds <= 0:
        return ""
    rate = count / seconds
    if unit == "bytes":
        return f"{human_bytes(rate)}/s"
    return f"{f'{rate:,.0f}' if rate >= 10 else f'{rate:.2g}'} {unit}/s"


class _Pace:
    """How fast a count grows, from the first number told on: a download may begin in the middle of a file."""

    def __init__(self, unit: str) -> None:
        self.unit, self.first, self.since = unit, -1, 0.0

    def at(self, done: int) -> str:
        """The pace now; a count that goes back is a new one, such as the next file's."""
        now = time.monotonic()
        if not 0 <= self.first <= done:
            self.first, self.since = done, now
        return pace(done - self.first, now - self.since, self.unit)


@contextmanager
def counting(label: str, unit: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show how far something is that counts its own steps, and how fast: a bar on a terminal, a line a quarter elsewhere.

    What is yielded is told the count and, if known, that of all: first where it begins, so that there is a pace to tell.
    """
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console, speed = Console(stderr=True), _Pace(unit)
    if not console.is_terminal:
        told, begun_at = -1, time.monotonic()

        def tell(done: int, total: int | None) -> None:
            nonlocal told
            now, quarter = speed.at(done), 0 if not total else 4 * done // total
            if quarter > told and time.monotonic() - begun_at > _PATIENCE:
                told = quarter
                say(f"{label}: {done:,}{f' of {total:,}' if total else ''} {unit}{now and f' ({now})'}", error=True)

        yield tell
        return
    count = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    said, fast = (TextColumn(f"{{task.{what}}}", markup=False) for what in ("description", "fields[pace]"))
    columns = (said, BarColumn(), count, fast, TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bars:
        begun: list[Any] = []  # no bar for what is there at once

        def show(done: int, total: int | None) -> None:
            if not begun:
                begun.append(bars.add_task(label, total=total, pace=""))
            bars.update(begun[0], completed=done, total=total, pace=speed.at(done))

        yield show


@contextmanager
def progress(names: Sequence[str]) -> Iterator[tuple[Callable[[int, float], None], Callable[[int, str], None]]]:
    """Show bars on a terminal, and a plain line for every finished run elsewhere."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

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


def result_tables(summaries: Sequence[Summary]) -> Iterator[Table]:
    """Results as tables, one a stream: a row a method, mean and standard deviation over seeds."""
    from cldnet.bench.table.notes import outside_notes
    from cldnet.bench.wording import human_bytes, percent, yes_no

    for stream in dict.fromkeys(summary.stream for summary in summaries):
        table = Table(title=escape(stream), box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column("method", no_wrap=True)
        table.add_column("average\naccuracy", justify="right", no_wrap=True)
        for heading in ("forgetting", "seconds", "bytes\nkept", "grows?", "keeps\ndata?"):
            table.add_column(heading, justify="right", no_wrap=True)
        for row in summaries:
            if row.stream == stream:
                accuracy = row.accuracy_text if row.runs or not row.missing else f"[dim]{row.accuracy_text}[/]"
                figures = (
                    []
                    if row.seconds is None or row.bytes_kept is None
                    else [
                        percent(row.forgetting),
                        f"{row.seconds:.1f}",
                        human_bytes(row.bytes_kept),
                        yes_no(row.grows),
                        yes_no(row.keeps_data),
                    ]
                )
                table.add_row(escape(row.marked_name), accuracy, *figures)
        table.caption = (
            "\n".join(map(escape, outside_notes([row for row in summaries if row.stream == stream]))) or None
        )
        table.caption_justify = "left"
        yield table
