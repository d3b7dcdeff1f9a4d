"""The history of a model's lessons: names, dates, counts and ids in a fixed number of bytes. Nothing here imports torch."""

from __future__ import annotations

import datetime
import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

from cldnet.storage.header import parse_json

#: Bytes of a history, whatever is in it: the oldest records make room for the newest.
HISTORY_BYTES = 1 << 15
#: Bytes of one record: the classes of a lesson that would take more are not named, so that no lesson displaces many others.
_MOST_BYTES = HISTORY_BYTES // 8
#: Characters of a lesson's name.
MOST_NAME = 200
#: Calls of fewer samples without a lesson of their own are recorded together; see `History.noted`.
_FEW = 10
#: Letters of a shard's id in a manifest.
_ID = 16
_ACTIONS = ("learned", "forgot", "merged")
_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
_DIGEST = re.compile(r"[0-9a-f]{32}")


class ShardRecord(NamedTuple):
    """A shard of a lesson: its file, relative to the folder of all, its range, the file's bytes, and the data's id.

    The id is None for fewer than ten samples, as for lessons.
    """

    path: str
    first: int
    rows: int
    size: int
    digest: str | None


@dataclass(frozen=True)
class Manifest:
    """The shards of a lesson: as many of these three as the history has room for.

    Attributes
    ----------
    count : int
        Number of shards.
    ids : tuple of str
        Ids of their data, as far as they have one; empty if there are more than some two hundred shards.
    shards : tuple of ShardRecord
        The shards themselves; empty if there are more than a few dozen.
    """

    count: int
    ids: tuple[str, ...] = ()
    shards: tuple[ShardRecord, ...] = ()

    @classmethod
    def of(cls, shards: Sequence[ShardRecord]) -> Manifest:
        """The manifest of some shards, with ids short enough for a history."""
        short = tuple(one._replace(digest=short_id(one.digest)) for one in shards)
        return cls(len(short), tuple(one.digest for one in short if one.digest is not None), short)

    def shorter(self) -> Manifest:
        """The manifest without the shards, or without the ids as well."""
        return replace(self, shards=()) if self.shards else Manifest(self.count)

    def to_json(self) -> list[Any]:
        """Write the manifest in JSON's types; the ids of shards that are listed are not written twice."""
        return [self.count, [*map(list, self.shards)], "" if self.shards else "".join(self.ids)]

    @classmethod
    def from_json(cls, values: Any) -> Manifest:
        """Read what `to_json` wrote, as untrusted input."""
        match values:
            case [int(count), list(shards), str(ids)] if (
                type(count) is int and count >= 1 and re.fullmatch(rf"([0-9a-f]{{{_ID}}})*", ids)
            ):
                if all(map(_is_shard, shards)) and len(shards) in (0, count) and len(ids) <= _ID * count:
                    listed = tuple(ShardRecord(*each) for each in shards)
                    known = tuple(one.digest for one in listed if one.digest is not None)
                    return cls(count, known or tuple(re.findall(f".{{{_ID}}}", ids)), listed)
        raise ValueError("a lesson in its history has an invalid list of shards")


@dataclass(frozen=True)
class LessonRecord:
    """What a model remembers of a lesson: never the data.

    Attributes
    ----------
    number : int
        The lesson's place among all that the model ever had, from 1 on.
    name : str or None
        The name that it was given (`CLDNetClassifier.lesson`).
    date : str
        The day on which it began, as ``"2026-11-17"``.
    action : str
        ``"learned"``, ``"forgot"``, or ``"merged"`` for what a model without a history brought along.
    total : int
        Number of samples; those of weight 0 do not count.
    samples : dict or None
        Number of samples by label, without classes that have left the model since. None if there were too many labels.
    digest : str or None
        Id of the data that were learned or forgotten, for lessons of ten samples or more of the exact solver.
    repeated : bool
        Whether the same data had been learned before, as far as the model remembers.
    loose : bool
        Whether this is a number of small calls, which were not made within a lesson.
    kept : bool
        Whether the model has the lesson's sums, so that `CLDNetClassifier.undo` can take it back.
    manifest : Manifest or None
        The shards that were summed, if the lesson was learned by `cldnet.distributed.fit_shards`.
    """

    number: int
    name: str | None
    date: str
    action: str
    total: int
    samples: Mapping[Any, int] | None
    digest: str | None = None
    repeated: bool = False
    loose: bool = False
    kept: bool = False
    manifest: Manifest | None = None

    def extended(self, counts: Mapping[Any, int], digest: str | None, repeated: bool) -> LessonRecord:
        """The record with the samples of one more call."""
        samples = None if self.samples is None else dict(self.samples)
        if samples is not None:
            for label, count in counts.items():
                samples[label] = samples.get(label, 0) + count
        total = self.total + sum(counts.values())
        return replace(self, total=total, samples=samples, digest=digest, repeated=repeated).limited()

    def has(self, digest: str | None) -> bool:
        """Whether the lesson taught the data with an id, as a whole or as one of its shards."""
        shards = () if self.manifest is None else self.manifest.ids
        return self.action == "learned" and digest is not None and (self.digest == digest or short_id(digest) in shards)

    def limited(self) -> LessonRecord:
        """The record itself, or if that is too long, the one without the list of shards or the samples by label."""
        if len(self.line) < _MOST_BYTES:
            return self
        if self.manifest is not None and (self.manifest.shards or self.manifest.ids):
            return replace(self, manifest=self.manifest.shorter()).limited()
        return self if self.samples is None else replace(self, samples=None)

    @cached_property
    def line(self) -> bytes:
        """The record as JSON, in one line."""
        samples = None if self.samples is None else [[label, count] for label, count in self.samples.items()]
        about = [self.number, self.name, self.date, self.action, self.total, self.digest, self.repeated, self.loose]
        shards = [] if self.manifest is None else [self.manifest.to_json()]
        return json.dumps([*about, samples, *shards], separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_json(cls, values: Any, kind: str | None) -> LessonRecord:
        """Read what `line` wrote, as untrusted input; ``kind`` is the type of the model's labels."""
        if not isinstance(values, list) or len(values) not in (9, 10):
            raise ValueError("its history should have records of nine or ten entries")
        number, name, date, action, total, digest, repeated, loose, pairs, *shards = values
        valid = {
            "number": type(number) is int and number >= 1,
            "name": name is None or is_name(name),
            "date": isinstance(date, str) and _DATE.fullmatch(date),
            "action": action in _ACTIONS,
            "total": type(total) is int and total >= 0,
            "digest": digest is None or (isinstance(digest, str) and _DIGEST.fullmatch(digest)),
            "flag": type(repeated) is bool and type(loose) is bool,
            "samples": pairs is None or (isinstance(pairs, list) and all(_is_count(pair, kind) for pair in pairs)),
        }
        wrong = [part for part, is_valid in valid.items() if not is_valid]
        samples = None if wrong or pairs is None else dict(map(tuple, pairs))
        if wrong or (samples is not None and (len(samples) < len(pairs) or sum(samples.values()) > total)):
            raise ValueError(f"a lesson in its history has an invalid {(wrong or ['number of samples'])[0]}")
        manifest = Manifest.from_json(shards[0]) if shards else None
        return cls(number, name, date, action, total, samples, digest, repeated, loose, manifest=manifest).limited()


@dataclass(frozen=True)
class History:
    """Records of the last lessons of a model, oldest first, and the number of all its lessons."""

    records: tuple[LessonRecord, ...] = ()
    count: int = 0

    def __deepcopy__(self, memo: Any) -> History:
        """Nothing changes it, so copies of a model share it."""
        return self

    def noted(
        self,
        action: str,
        counts: Mapping[Any, int],
        *,
        number: int | None = None,
        name: str | None = None,
        apart: bool = True,
        digest: str | None = None,
        repeated: bool = False,
        manifest: Manifest | None = None,
    ) -> tuple[History, int]:
        """Add the samples of one call; also return the number of its lesson.

        ``number`` is that of the lesson that the call goes on with, if it does. A call of few samples that is not a lesson
        ``apart`` joins those of the same day directly before it: samples that come one by one would fill the history.
        """
        before = self._at(number)
        small = not apart and sum(counts.values()) < _FEW
        if before is None and small and self.records and self.records[-1].loose:
            before = len(self.records) - 1
        if before is not None and self.records[before].action == action:
            record = self.records[before]
            if record.date == today() or number is not None:
                later = self.records[before + 1 :]
                return self._with(
                    (*self.records[:before], record.extended(counts, digest, repeated), *later)
                ), record.number
        samples, next_number = dict(counts), self.count + 1
        made = LessonRecord(
            next_number,
            name,
            today(),
            action,
            sum(counts.values()),
            samples,
            digest,
            repeated,
            small,
            manifest=manifest,
        )
        return self._with((*self.records, made.limited()), next_number), next_number

    def _at(self, number: int | None) -> int | None:
        """Place of the record with a number, if it is there."""
        return next((place for place, one in enumerate(self.records) if one.number == number), None)

    def copies(self, digest: str) -> int:
        """How many times some data are in the model, as far as the records say."""
        same = [one.action for one in self.records if one.digest == digest]
        return same.count("learned") - same.count("forgot")

    def has_shard(self, digest: str) -> bool:
        """Whether a lesson has the data with an id as one of its shards, as far as the records say."""
        return any(one.digest != digest and one.has(digest) for one in self.records)

    def merged(self, other: History, counts: Mapping[Any, int]) -> History:
        """Add the records of another model, under the next numbers; if it has none, a record of its samples by label."""
        if not other.records:
            return self.noted("merged", counts)[0] if counts else self
        moved = (replace(one, number=self.count + place + 1, loose=False) for place, one in enumerate(other.records))
        return self._with((*self.records, *moved), self.count + len(other.records))

    def undone(self, number: int) -> History:
        """Drop a record. A later one of the same data then counts as the first, unless this one was a repetition itself."""
        gone = next(one for one in self.records if one.number == number)
        left = [one for one in self.records if one is not gone]
        same = [place for place, one in enumerate(left) if one.digest and one.digest == gone.digest]
        again = next((place for place in same if left[place].number > number), None)
        if again is not None and not gone.repeated:
            left[again] = replace(left[again], repeated=False)
        return self._with(tuple(left))

    def relabelled(self, labels: Mapping[Any, Any], gone: Iterable[Any] = ()) -> History:
        """Give the samples of some labels to others, and do not name those of the classes that are gone."""
        gone, records = {*gone}, []
        for one in self.records:
            if one.samples is not None and any(label in gone or label in labels for label in one.samples):
                moved: Counter[Any] = Counter()
                for label, count in one.samples.items():
                    if label not in gone:
                        moved[labels.get(label, label)] += count
                one = replace(one, samples=dict(moved)).limited()
            records.append(one)
        return self._with(tuple(records))

    def _with(self, records: tuple[LessonRecord, ...], count: int | None = None) -> History:
        """The newest records that fit into the bytes."""
        left, first = HISTORY_BYTES - len(_begun(0)), len(records)
        while first and left >= len(records[first - 1].line):
            first -= 1
            left -= len(records[first].line)
        return History(records[first:], self.count if count is None else count)

    def to_bytes(self) -> bytes:
        """Write the history in a fixed number of bytes."""
        content = _begun(self.count) + b"".join(one.line for one in self.records)
        return content.ljust(HISTORY_BYTES, b"\0")

    @classmethod
    def from_bytes(cls, content: bytes, kind: str | None) -> History:
        """Read what `to_bytes` wrote, as untrusted input; ``kind`` is the type of the model's labels."""
        lines = content.rstrip(b"\0").decode("ascii").splitlines()
        if len(content) != HISTORY_BYTES or not lines or not re.fullmatch("[0-9]{20}", lines[0]):
            raise ValueError(f"its history should be {HISTORY_BYTES} bytes that begin with the number of lessons")
        count = int(lines[0])
        records = tuple(LessonRecord.from_json(parse_json(line), kind) for line in lines[1:])
        numbers = [one.number for one in records]
        if numbers != sorted({*numbers}) or not max(numbers, default=0) <= count < 1 << 63:
            raise ValueError("the lessons in its history should be numbered in order")
        return cls()._with(records, count)


def short_id(digest: str | None) -> str | None:
    """The id of some data, as short as manifests have it."""
    return None if digest is None else digest[:_ID]


def today() -> str:
    """The date of a lesson, as ``"2026-11-17"``."""
    return datetime.date.today().isoformat()


def check_name(name: Any) -> None:
    """Refuse what is no name of a lesson."""
    if name is not None and not is_name(name):
        raise ValueError(f"name={name!r:.80} should be a text of 1 to {MOST_NAME} characters, or None.")


def is_name(name: Any) -> bool:
    """Whether something can be a lesson's name."""
    return isinstance(name, str) and 1 <= len(name) <= MOST_NAME


def _begun(count: int) -> bytes:
    return f"{count:020d}\n".encode()


def _is_shard(values: Any) -> bool:
    """Whether a list is that of a `ShardRecord`."""
    match values:
        case [str(), int(first), int(rows), int(size), str() | None as digest]:
            plain = type(first) is type(rows) is type(size) is int and min(first, rows, size) >= 0
            return plain and (digest is None or bool(re.fullmatch(f"[0-9a-f]{{{_ID}}}", digest)))
    return False


def _is_count(pair: Any, kind: str | None) -> bool:
    """Whether a pair is a label of a type and a number of samples."""
    return (
        isinstance(pair, list)
        and len(pair) == 2
        and type(pair[0]).__name__ == kind
        and type(pair[1]) is int
        and pair[1] >= 0
    )
