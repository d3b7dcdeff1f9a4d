"""A folder of results: one JSON file per run, and the plan of what should be there."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from cldnet.bench.validation import validate
from cldnet.storage import write_atomically

PLAN = "plan.json"
#: Where a bench keeps claims and failures, inside the folder.
CLAIMS, FAILURES = ".bench/claims", ".bench/failures"
_SCHEMAS = (1, 2)


@dataclass(frozen=True)
class Planned:
    """A planned run and its result file (None if its data were not found; ``why`` says why)."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    stream: str
    method: str
    label: str
    seed: int
    file: str | None = None
    why: str = ""


@dataclass(frozen=True)
class BenchPlan:
    """The plan of a bench."""

    name: str
    title: str
    cells: tuple[Planned, ...]


@dataclass(frozen=True)
class Folder:
    """What a folder of results holds."""

    path: Path
    title: str  # the plan's, or the folder's name
    results: list[dict[str, Any]]  # those of the plan, or all if there is none; "file" is the name of each one's file
    planned: tuple[Planned, ...] = ()
    ignored: list[str] = field(default_factory=list)  # result files of another plan, or of an older version of a method
    failures: Mapping[str, str] = field(default_factory=dict)  # why a run failed last, by the name of its file

    def why_missing(self, cell: Planned) -> str:
        """Why a planned run has no result, if known: it failed, or its data were not found."""
        return cell.why if cell.file is None else self.failures.get(cell.file, "")


def read_folder(folder: str | os.PathLike[str]) -> Folder:
    """Read all results of a folder, without those of folders inside it."""
    path = Path(folder)
    if not path.is_dir():
        raise ValueError(f"There is no folder {str(path)!r} with results. `cldnet bench SPEC.toml` makes one.")
    files = [file for file in sorted(path.glob("*.json")) if file.name != PLAN]
    if not (path / PLAN).is_file():
        return Folder(path, path.name, _read_all(files))
    try:
        plan = validate(BenchPlan, (path / PLAN).read_bytes())
    except ValueError as error:
        raise ValueError(f"{path / PLAN} is not a plan: {error} Delete it, and start the bench again.") from error
    names = {cell.file for cell in plan.cells}
    results = _read_all(file for file in files if file.name in names)
    ignored = [file.name for file in files if file.name not in names and _may_be_result(file)]
    failures = {
        file.stem + ".json": file.read_text("utf-8", "replace") for file in sorted((path / FAILURES).glob("*.txt"))
    }
    return Folder(path, plan.title or plan.name, results, plan.cells, ignored, failures)


def _read_all(files: Iterable[Path]) -> list[dict[str, Any]]:
    return [result for file in files if (result := read_result(file)) is not None]


def _may_be_result(file: Path) -> bool:
    try:
        return read_result(file) is not None
    except ValueError:
        return True


def write_plan(plan: BenchPlan, folder: Path) -> None:
    """Write the plan of a folder."""
    write_atomically(folder / PLAN, json.dumps({"schema": 1, **asdict(plan)}, indent=1).encode())


def _shallow(value: dict[str, Any]) -> dict[str, Any]:
    """Refuse a table nested so deeply that walking through it might exhaust the stack."""
    level: list[Any] = [value]
    for _ in range(30):
        tables = [item.values() if isinstance(item, dict) else item for item in level if isinstance(item, dict | list)]
        level = [item for table in tables for item in table]
    if level:
        raise ValueError("is nested too deeply.")
    return value


def _triangular(matrix: list[list[float]]) -> list[list[float]]:
    if not matrix or any(len(row) != i for i, row in enumerate(matrix, start=1)):
        raise ValueError("should have i entries in its row i.")
    return matrix


Number = Annotated[float, Field(ge=-1e100, le=1e100)]
Amount = Annotated[float, Field(ge=0, le=1e18)]  # of bytes or seconds
Coordinate = Annotated[float, Field(ge=-1e9, le=1e9)]
_Clamped = AfterValidator(lambda value: min(max(value, 0.0), 1.0))
Share = Annotated[float, Field(ge=-1e-9, le=1 + 1e-9), _Clamped]
#: The mean eigenvalue of a projector, which was computed in single precision.
Trace = Annotated[float, Field(ge=-1e-3, le=1 + 1e-3), _Clamped]


class _Part(BaseModel):
    """A part of a result file. Files are untrusted: required parts are validated, the rest is ignored."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class _Stream(_Part):
    name: str
    hash: str
    class_order: list[Any]
    data: str = ""


class _Scores(_Part):
    average_accuracy: float | None = Field(ge=0, le=1)
    average_incremental_accuracy: float | None = Field(ge=0, le=1)
    forgetting: float | None = Field(ge=-1, le=1)
    task_il_accuracy: float | None = Field(ge=0, le=1)


class _Seconds(_Part):
    total: Amount
    train: list[Amount] = []
    evaluate: list[Amount] = []


class _Outside(_Part):
    name: str
    hash: str


class _Cell(_Part):
    stream: str = ""
    label: str = ""


class _Layer(_Part):
    width: Annotated[Amount, Field(gt=0)]
    rank: Amount
    trace: Trace

    @model_validator(mode="after")
    def _check(self) -> _Layer:
        if self.rank > self.width:
            raise ValueError(f"has rank {self.rank} above its width {self.width}.")
        return self


class _Ranks(_Part):
    threshold: Number
    tasks: Annotated[list[Annotated[dict[str, _Layer], Field(min_length=1)]], Field(min_length=1)]


class _Map(_Part):
    points: list[Annotated[list[Coordinate], Field(min_length=2, max_length=2)]]
    rows: list[Annotated[int, Field(ge=0)]]


class _Features(_Part):
    classes: list[Annotated[str | int | float | bool, AfterValidator(str)]]
    tasks: list[_Map]

    @model_validator(mode="after")
    def _check(self) -> _Features:
        for task in self.tasks:
            if len(task.points) != len(task.rows) or any(row >= len(self.classes) for row in task.rows):
                raise ValueError("has points without a class.")
        return self


class _Leaky(_Part):
    task_known: Share | None = None
    own_test_statistics: Share | None = None
    best_epoch: Share | None = None


class _Diagnostics(_Part):
    leaky: _Leaky | None = None


class _Result(_Part):
    method: str
    backbone: str
    seed: int
    stream: _Stream
    config: Annotated[dict[str, Any], AfterValidator(_shallow)]
    scores: _Scores
    matrix: Annotated[list[list[Share]], AfterValidator(_triangular)] | None
    bytes: dict[str, Amount]
    seconds: _Seconds
    rehearsal_free: bool
    constant_size: bool
    versions: dict[str, Any]
    outside: _Outside | None = None
    cell: _Cell = _Cell()
    label: str = ""
    code: str = ""
    ranks: _Ranks | None = None
    features: _Features | None = None
    diagnostics: _Diagnostics | None = None
    losses: list[list[Number | None]] | None = None
    growth: dict[str, Any] | None = None
    threads: Amount | None = None
    peak_rss: Amount | None = None
    parameters: Amount | None = None
    capacity_paper: Amount | None = None


def read_result(file: Path) -> dict[str, Any] | None:
    """Read one result; None for a JSON file that is something else."""
    try:
        result = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is not JSON ({error}): delete it, and run its command again.") from error
    if not isinstance(result, dict) or not {"method", "matrix", "scores", "stream"} <= result.keys():
        return None
    if result.get("schema") not in _SCHEMAS:
        raise ValueError(f"{file} has schema {result.get('schema')!r}; this version reads {_SCHEMAS}: upgrade cldnet.")
    try:
        checked = validate(_Result, result)
    except ValueError as error:
        raise ValueError(f"{file} is not a complete result: {error} Delete it, and run its command again.") from error
    drawn = checked.model_dump(include={"matrix", "ranks", "features", "diagnostics"})
    return {**result, **drawn, "file": file.name}
