"""How a run goes, on the terminal: a line for everything that is found, and below them what is being measured."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import TracebackType
from typing import Any

from benchmarks.speed import say
from benchmarks.speed.record import Curve, Finding
from benchmarks.speed.result import Found
from rich.console import Console
from rich.live import Live
from rich.text import Text

_NAME, _SPREAD, _TARGET = 40, 26, 9
_STYLES = {True: "green", False: "bold red", None: "dim"}


class Show:
    """Tells a console how a run goes. The running line has no clock that ticks: that would be measured with the rest."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live("", console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> Show:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def begins(self, part: str, number: int, of: int) -> None:
        """Say which part is at work."""
        if self.live is not None:
            since = datetime.now().astimezone().strftime("%H:%M:%S")
            self.live.update(Text(f"… {part} ({number} of {of}), since {since}", style="dim"), refresh=True)

    def kept(self, part: str) -> None:
        """Say that a part is taken over from the run that was stopped."""
        self.line(f"{part:<{_NAME}} measured before the run was stopped", "dim")

    def limits(self, limits: Mapping[str, Any]) -> None:
        """Show what the machine can do."""
        for count, rates in limits.items():
            words = ", ".join(f"{name} {say.rate(name, rate['median'])}" for name, rate in rates.items())
            self.line(f"{'limits/' + count:<{_NAME}} {words}")

    def found(self, found: Found) -> None:
        """Show what was found."""
        self.line(found_line(found), _STYLES[found.met] if isinstance(found, Finding) else "")

    def line(self, words: str, style: str = "") -> None:
        """Print a line above the running one; it is never broken, so that it can be searched and cut."""
        self.console.print(words, style=style, markup=False, highlight=False, soft_wrap=True)


def found_line(found: Found) -> str:
    """One line about something that was found, in columns."""
    name = f"{found.name:<{_NAME}}"
    if isinstance(found, Finding):
        return (
            f"{name} {say.spread(found.ratio):<{_SPREAD}} CPU {say.cpu(found):<{_SPREAD}} "
            f"{say.target(found):<{_TARGET}} {'' if found.target is None else say.MARKS[found.met]}"
        ).rstrip()
    if isinstance(found, Curve):
        return f"{name} exponent {say.exponent(found)}"
    return f"{name} not run: {found.reason}"
