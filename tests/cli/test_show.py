"""What commands show while they count: how far they are, and how fast."""

from __future__ import annotations

import io
import logging
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


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What a terminal shows."""
    written = io.StringIO()

    def terminal(**options: Any) -> Console:
        assert options == {"stderr": True}
        return Console(file=written, force_terminal=True, width=100)

    monkeypatch.setattr(show, "Console", terminal)
    return written


def plain(screen: io.StringIO) -> str:
    """All that was shown, without control sequences and what follows the last line."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.getvalue()).rstrip()


def test_a_bar_tells_the_pace_in_the_unit_that_is_counted(clock: Clock, screen: io.StringIO) -> None:
    with counting("looking at", "photos") as tell:
        tell(0, 300)
        clock.now += 2.0
        tell(256, 300)
    assert re.search(r"looking at .*256/300 128 photos/s", plain(screen))


def test_a_bar_shows_what_the_library_does_until_the_next_count(
    clock: Clock, screen: io.StringIO, caplog: pytest.LogCaptureFixture
) -> None:
    log = logging.getLogger("cldnet")
    before = log.level, list(log.filters)
    with counting("looking at", "photos") as tell:
        log.info("too early: there is no bar")
        tell(0, 300)
        log.info("solving for %d features", 14401)
        log.warning("not good")
    last = plain(screen).splitlines()[-1]
    assert "solving for 14401 features" in last
    assert "too early" not in plain(screen)
    assert "0/300" in last
    assert [record.getMessage() for record in caplog.records] == ["not good"]  # others hear what they heard before
    with counting("looking at", "photos") as tell:
        tell(0, 300)
        log.info("solving")
        tell(1, 300)
    assert "looking at" in plain(screen).splitlines()[-1]
    assert (log.level, list(log.filters)) == before


def test_those_who_listen_for_information_still_get_it(screen: io.StringIO, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "cldnet"), counting("looking at", "photos") as tell:
        tell(0, 300)
        logging.getLogger("cldnet").info("solving")
    assert [record.getMessage() for record in caplog.records] == ["solving"]
