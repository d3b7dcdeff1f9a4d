"""What commands show while they count: how far they are, and how fast."""

from __future__ import annotations

import io
import re
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from cldnet.cli import show
from cldnet.cli.show import counting


class Clock:
    """Time that passes when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(show, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    told = capsys.readouterr()
    assert told.out == ""  # which is for results
    return told.err.splitlines()


def test_without_a_terminal_a_line_at_every_quarter_tells_the_pace(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with counting("learning", "photos") as tell:
        for done in range(0, 1001, 100):
            tell(done, 1000)
            clock.now += 2.0
    assert lines(capsys) == [
        "learning: 200 of 1,000 photos (50 photos/s)",
        "learning: 300 of 1,000 photos (50 photos/s)",
        "learning: 500 of 1,000 photos (50 photos/s)",
        "learning: 800 of 1,000 photos (50 photos/s)",
        "learning: 1,000 of 1,000 photos (50 photos/s)",
    ]


def test_what_is_there_at_once_is_not_told(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with counting("learning", "photos") as tell:
        tell(0, 10)
        clock.now += 1.0
        tell(10, 10)
    assert lines(capsys) == []


def test_what_was_there_before_is_no_part_of_the_pace(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with counting("getting a set", "bytes") as tell:
        tell(9_000_000, 10_000_000)  # the rest of an earlier download
        clock.now += 4.0
        tell(10_000_000, 10_000_000)
        tell(0, None)  # the next file, of a length that nobody knows
        clock.now += 1.0
        tell(2_000_000, None)
    assert lines(capsys) == ["getting a set: 10,000,000 of 10,000,000 bytes (250.0 kB/s)"]


def test_a_bar_tells_the_pace_in_the_unit_that_is_counted(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    screen = io.StringIO()

    def terminal(**options: Any) -> Console:
        assert options == {"stderr": True}
        return Console(file=screen, force_terminal=True, width=100)

    monkeypatch.setattr(show, "Console", terminal)
    with counting("looking at", "photos") as tell:
        tell(0, 300)
        clock.now += 2.0
        tell(256, 300)
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue())
    assert re.search(r"looking at .*256/300 128 photos/s", shown)
