"""What happens to the cells of a bench, as it happens."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Began", "Elsewhere", "Event", "Failed", "Finished", "Outcome", "Progressed", "Still"]


@dataclass(frozen=True)
class Began:
    """A cell is being run by one of our processes. ``number`` is its place among the cells, here and below."""

    number: int


@dataclass(frozen=True)
class Progressed:
    """A share of a cell is done."""

    number: int
    share: float


@dataclass(frozen=True)
class Still:
    """Nothing new about a cell that runs here or elsewhere: a moment to show that time goes on."""

    number: int


@dataclass(frozen=True)
class Finished:
    """A cell's file is there; it ran just now, or it was there before, or somebody else ran it."""

    number: int
    path: Path
    ran: bool


@dataclass(frozen=True)
class Elsewhere:
    """Another process, perhaps on another machine, is running a cell."""

    number: int
    owner: str


@dataclass(frozen=True)
class Failed:
    """A cell failed, why, and whether it is tried again."""

    number: int
    why: str
    again: bool


Event = Began | Progressed | Still | Finished | Elsewhere | Failed


@dataclass
class Outcome:
    """What became of the cells: the file of each (none: it failed), and why those failed that did."""

    files: list[Path | None]
    failures: dict[int, str] = field(default_factory=dict)
