"""A folder of results: one JSON file a run, and the plan of what should be there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from cldnet.bench.checked import score_out_of_bounds, wrong_parts
from cldnet.store import write_atomically

__all__ = ["PLAN", "Folder", "Plan", "Planned", "read_folder", "read_result", "write_plan"]

PLAN = "plan.json"
#: Where a bench keeps claims and failures, inside of the folder.
PRIVATE = ".bench"
FAILURES = f"{PRIVATE}/failures"
_SCHEMAS = (1, 2)


@dataclass(frozen=True)
class Planned:
    """A run that a plan asks for, and the file that has or will have its result (none: its data was not found, and why)."""

    stream: str
    method: str
    label: str
    seed: int
    file: str | None = None
    why: str = ""


@dataclass(frozen=True)
class Plan:
    """What a bench set out to do: its name and title, and every run."""

    name: str
    title: str
    cells: tuple[Planned, ...]


@dataclass(frozen=True)
class Folder:
    """What a folder of results holds.

    Attributes
    ----------
    path : Path
    title : str
        The plan's title, or the folder's name.
    results : list of dict
        Results that belong to the plan, or all of them where there is none; ``"file"`` is the name of each one's file.
    planned : tuple of Planned
    left_out : list of str
        Result files that are of another plan or of an older version of a method.
    failures : dict
        Why a run failed when it was last tried, by the name of its file.
    """

    path: Path
    title: str
    results: list[dict[str, Any]]
    planned: tuple[Planned, ...] = ()
    left_out: list[str] = field(default_factory=list)
    failures: Mapping[str, str] = field(default_factory=dict)

    def why_not(self, cell: Planned) -> str:
        """Why a planned run has no result, as far as that is known: it failed, or its data were not found."""
        return cell.why if cell.file is None else self.failures.get(cell.file, "")


def read_folder(folder: str | os.PathLike[str]) -> Folder:
    """Read all results of a folder (not of folders within it).

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_plan(Plan("quick", "Quick", (Planned("split-digits", "ewc", "", 0, "a.json"),)), Path(folder))
    ...     found = read_folder(folder)
    >>> found.title, found.results, found.planned[0].method
    ('Quick', [], 'ewc')
    """
    path = Path(folder)
    if not path.is_dir():
        raise ValueError(f"There is no folder {str(path)!r} with results. `cldnet bench SPEC.toml` makes one.")
    plan = _read_plan(path / PLAN)
    there = [file for file in sorted(path.glob("*.json")) if file.name != PLAN]
    if plan is None:
        return Folder(path, path.name, _read_all(there))
    names = {cell.file for cell in plan.cells}
    results = _read_all(file for file in there if file.name in names)
    left_out = [file.name for file in there if file.name not in names and _may_be_result(file)]
    return Folder(path, plan.title or plan.name, results, plan.cells, left_out, _read_failures(path / FAILURES))


def _read_all(files: Iterable[Path]) -> list[dict[str, Any]]:
    return [result for file in files if (result := read_result(file)) is not None]


def _may_be_result(file: Path) -> bool:
    """Whether a file that no plan asks for is a result, or one that cannot be read: both are left out, and told of."""
    try:
        return read_result(file) is not None
    except ValueError:
        return True


def read_result(file: Path) -> dict[str, Any] | None:
    """Read one result; None for a JSON file that is something else.

    Raises
    ------
    ValueError
        If the file is no JSON, of a layout that this version does not know, not whole, or has a score that cannot be.
    """
    try:
        result = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON ({error}): delete it, and run its command again.") from error
    if not isinstance(result, dict) or not {"method", "matrix", "scores", "stream"} <= result.keys():
        return None
    if result.get("schema") not in _SCHEMAS:
        raise ValueError(
            f"{file} has layout {result.get('schema')!r}, this version reads {_SCHEMAS}: install a newer one."
        )
    if wrong := wrong_parts(result):
        raise ValueError(
            f"{file} is not a whole result ({', '.join(wrong)} missing or wrong): delete it, and run its command again."
        )
    if score := score_out_of_bounds(result["scores"]):
        raise ValueError(f"{file} has {score}: delete it, and run its command again.")
    return {**result, "file": file.name}


def write_plan(plan: Plan, folder: Path) -> None:
    """Write down what a folder is to hold."""
    cells = [asdict(cell) for cell in plan.cells]
    content = {"schema": 1, "name": plan.name, "title": plan.title, "cells": cells}
    write_atomically(folder / PLAN, json.dumps(content, indent=1).encode())


def _read_plan(file: Path) -> Plan | None:
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_bytes())
        cells = tuple(Planned(**cell) for cell in content["cells"])
        for cell in cells:
            texts = (cell.stream, cell.method, cell.label, "" if cell.file is None else cell.file, cell.why)
            if not all(isinstance(text, str) for text in texts) or type(cell.seed) is not int:
                raise TypeError(f"{cell} is no run")
        name, title = content["name"], content["title"]
        if not isinstance(name, str) or not isinstance(title, str):
            raise TypeError("its name and title should be texts")
        return Plan(name, title, cells)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{file} is not a plan ({error}): delete it, and start the bench again.") from error


def _read_failures(folder: Path) -> dict[str, str]:
    return {file.stem + ".json": file.read_text("utf-8", "replace") for file in sorted(folder.glob("*.txt"))}
