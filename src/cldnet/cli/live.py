"""A bench as it runs: bars of the running cells on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console

from cldnet.cli.show import SILENCE, say

if TYPE_CHECKING:
    from cldnet.bench.events import Event
    from cldnet.bench.watch import Watch

__all__ = ["live"]


@contextmanager
def live(watch: Watch) -> Iterator[Callable[[Event], None]]:
    """Show a bench's events as they come; ``watch`` keeps count of them."""
    console = Console()
    if console.is_terminal:
        with _bars(watch, console) as show:
            yield show
    else:
        yield _Lines(watch)


class _Lines:
    """A line for all that is finished or fails, and a sign of life in between."""

    def __init__(self, watch: Watch) -> None:
        self.watch, self.told = watch, time.monotonic()

    def __call__(self, event: Event) -> None:
        self.watch(event)
        text = _news(event, self.watch)
        if text is not None:
            say(text)
            self.told = time.monotonic()
        elif time.monotonic() - self.told > SILENCE:
            self.told = time.monotonic()
            say(_state(self.watch), error=True)


@contextmanager
def _bars(watch: Watch, console: Console) -> Iterator[Callable[[Event], None]]:
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}", style="dim", markup=False),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        whole = bars.add_task("all cells", total=len(watch.cells), left="")
        shown: dict[int, Any] = {}

        def show(event: Event) -> None:
            watch(event)
            text = _news(event, watch)
            if text is not None:
                bars.console.print(text, highlight=False, markup=False)
            for number in [number for number in shown if number not in watch.running]:
                bars.remove_task(shown.pop(number))
            for number, running in watch.running.items():
                if number not in shown:
                    shown[number] = bars.add_task(watch.cells[number].title, total=1.0, left="")
                bars.update(shown[number], completed=running.share, left=_left(watch.left(number)))
            partly = sum(running.share for running in watch.running.values())
            bars.update(whole, completed=watch.done + partly, description=_count(watch), left=_left(watch.time_left()))

        yield show


def _news(event: Event, watch: Watch) -> str | None:
    """What is worth a line of its own."""
    from cldnet.bench.events import Elsewhere, Failed, Finished

    title = watch.cells[event.number].title
    if isinstance(event, Finished) and event.ran:
        return f"{title}: {_figure(event)} ({watch.done} of {len(watch.cells)})"
    if isinstance(event, Elsewhere):
        return f"{title}: {event.owner} is at it"
    if isinstance(event, Failed):
        return f"{title}: failed{', will be tried again' if event.again else ''}: {event.why}"
    return None


def _figure(event: Any) -> str:
    from cldnet.bench.results import read_result
    from cldnet.bench.wording import percent

    result = read_result(event.path)
    assert result is not None
    return f"{percent(result['scores']['average_accuracy'])} in {result['seconds']['total']:.1f} s"


def _count(watch: Watch) -> str:
    others = f", {len(watch.elsewhere)} elsewhere" if watch.elsewhere else ""
    failed = f", {len(watch.failed)} failed" if watch.failed else ""
    return f"{watch.done} of {len(watch.cells)} cells{others}{failed}"


def _state(watch: Watch) -> str:
    running = "; ".join(f"{watch.cells[number].title} {one.share:.0%}" for number, one in watch.running.items())
    left = _left(watch.time_left())
    return f"{_count(watch)}{', ' + left if left else ''}{'. Running: ' + running if running else ''}"


def _left(seconds: float | None) -> str:
    from cldnet.bench.wording import duration

    return "" if seconds is None else f"{duration(seconds)} left"
