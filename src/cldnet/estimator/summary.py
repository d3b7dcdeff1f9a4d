"""What a model's file says of the model without loading it: classes, backbone, sizes, lessons. Nothing here imports torch."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cldnet.estimator.history import HISTORY_BYTES, History, LessonRecord
from cldnet.storage.header import Entry, describe_content_error, read_header, read_part

#: What each tensor is, by the first part of its name, besides those that the recorded sizes have.
_KINDS = {"lessons": "lesson ids", "receipts": "receipts", "solution": "solution", "history": "history"}
_KINDS |= {"kept": "kept lessons"}


@dataclass(frozen=True)
class ClassSummary:
    """A class that a model knows: its label, its number of samples and its first and last date, if they are known."""

    label: bool | int | float | str
    samples: int | None
    dates: tuple[str, str] | None


@dataclass(frozen=True)
class ModelSummary:
    """What a model's file says of the model."""

    solver: str
    #: The description of a backbone, its name, or None for a module of the user's own.
    backbone: Mapping[str, Any] | str | None
    input_shape: tuple[int, ...]
    pixels: bool
    tasks: int
    #: Classes that there is room for; None if there is no limit.
    room: int | None
    classes: tuple[ClassSummary, ...]
    bytes: Mapping[str, int]
    text: bool = False  # whether inputs are sentences

    @property
    def total(self) -> int:
        """Bytes of all kinds."""
        return sum(self.bytes.values())


def read_summary(path: str | os.PathLike[str]) -> ModelSummary | None:
    """Read what a file's header says of a model, after its checksum was verified.

    It is None if the file is of the first two versions, which did not record sizes: load such a model.
    """
    entries, manifest = read_header(path)
    with describe_content_error(path, "model"):
        if manifest["kind"] != "model":
            raise ValueError(f"it is a file of another kind, {manifest['kind']!r:.80}")
        stream, inputs, parameters = (manifest[name] for name in ("stream", "inputs", "parameters"))
        if stream["tasks"] is None or not stream["sizes"]:
            return None
        backbone, solver = parameters.get("backbone"), parameters["solver"]
        classes, room = _read_classes(manifest["labels"])
        shape = tuple(map(_count, inputs["shape"]))
        if not isinstance(solver, str) or not isinstance(backbone, Mapping | str | None):
            raise ValueError("its solver and its backbone should be named or described")
        sizes = _read_sizes(stream["sizes"][-1], entries)
        return ModelSummary(
            solver,
            backbone,
            shape,
            inputs["pixels"] is True,
            _count(stream["tasks"]),
            room,
            classes,
            sizes,
            inputs.get("text") is True,
        )


def read_lessons(path: str | os.PathLike[str]) -> list[LessonRecord]:
    """Read the history of a model's lessons from its file, after its checksum was verified; older files have none."""
    content, manifest = read_part(path, "history", HISTORY_BYTES)
    with describe_content_error(path, "model"):
        if manifest["kind"] != "model":
            raise ValueError(f"it is a file of another kind, {manifest['kind']!r:.80}")
        history = History.from_bytes(content, manifest["labels"]["kind"]) if content else History()
        kept = {_count(one["number"]) for one in manifest["kept"]}
    return [replace(record, kept=record.number in kept) for record in history.records]


def _count(number: Any) -> int:
    """A number of things out of an untrusted file."""
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r:.80} should be a whole number of 0 or more")
    return number


def _read_sizes(last: Any, entries: Mapping[str, Entry]) -> dict[str, int]:
    """Bytes by kind: those recorded after the last task, and those of what is beside the learner."""
    _, recorded, _ = last
    sizes = Counter({str(kind): _count(size) for kind, size in recorded.items()})
    for name, entry in entries.items():
        kind = _KINDS.get(name.split(".")[0])
        if kind is not None:
            sizes[kind] += entry.end - entry.begin
    return dict(sizes)


def _read_classes(table: Mapping[str, Any]) -> tuple[tuple[ClassSummary, ...], int | None]:
    """The classes of a label table that are not retired, sorted, and the room that is left."""
    labels, capacity, counts = table["labels"], table["capacity"], table["counts"]
    dates = table.get("days", [None] * len(labels))
    known, retired = [], {*table["retired"]}
    for label, count, pair in zip(labels, counts, dates, strict=True):
        if type(label).__name__ != table["kind"]:
            raise ValueError(f"the label {label!r:.80} is not of the type {table['kind']!r:.80}")
        if pair is not None and not (len(pair) == 2 and all(isinstance(date, str) for date in pair)):
            raise ValueError(f"{pair!r:.80} should be a first and a last date")
        if label not in retired:
            samples = None if count is None else _count(count)
            known.append(ClassSummary(label, samples, None if pair is None else (pair[0], pair[1])))
    room = None if capacity is None else _count(capacity) - len(labels)
    return tuple(sorted(known, key=lambda each: each.label)), room
