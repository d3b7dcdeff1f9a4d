"""Which lessons a model has learned, so that a merge counts none of them twice; and receipts for single rows, if asked for."""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cldnet.data.rows import Rows
from cldnet.labels import LabelTable

__all__ = [
    "DIGEST_BYTES",
    "LESSON_TENSORS",
    "Lesson",
    "Lessons",
    "Receipts",
    "merged_receipts",
    "read_lessons",
    "row_digests",
    "write_lessons",
]

#: Names of the tensors that `write_lessons` adds to a file.
LESSON_TENSORS = ("lessons", "receipts")

#: Bytes of a lesson's id, of a row's receipt and of a salt.
DIGEST_BYTES = 16
#: Lessons that a model remembers. Their ids take a fixed number of bytes, so the oldest makes room for the newest.
_REMEMBERED = 256
#: A smaller lesson has no id: whoever has the file could test a single row against it.
_LEAST_ROWS = 10
_CHUNK = 1 << 20  # numbers of the inputs that are converted at once


def row_digests(rows: Rows) -> list[bytes]:
    """Digest of each row's input and weight. The label is not part of it, because joining classes changes labels.

    Inputs are compared as float32, so that a row has the same digest whatever type of array it comes in.
    """
    weights = (np.ones(len(rows.y)) if rows.weight is None else rows.weight).astype(np.float64)
    step = max(1, _CHUNK // max(1, rows.x[0].numel()))
    digests = []
    for first in range(0, len(rows.y), step):
        # Adding 0 turns -0.0 into 0.0: the two are equal numbers with different bytes.
        block = rows.x[first : first + step].flatten(1).to("cpu", torch.float32).numpy() + np.float32(0)
        for x, weight in zip(block, weights[first : first + step], strict=True):
            digests.append(hashlib.blake2b(x.tobytes() + weight.tobytes(), digest_size=DIGEST_BYTES).digest())
    return digests


@dataclass(frozen=True)
class Lessons:
    """Ids of the lessons that a model learned or forgot last, oldest first. Those that it forgot have their last bit set.

    Examples
    --------
    >>> here, there = Lessons().added(b"monday".ljust(16)), Lessons().added(b"friday".ljust(16))
    >>> here.shared(there), here.shared(here.merged(there))
    (0, 1)
    """

    ids: tuple[bytes, ...] = ()

    def added(self, *ids: bytes) -> Lessons:
        """Add ids as the newest; what no longer fits is dropped."""
        return Lessons((*(known for known in self.ids if known not in ids), *ids)[-_REMEMBERED:])

    def removed(self, one: bytes) -> Lessons:
        """Drop the id of a lesson that was forgotten as a whole."""
        return Lessons(tuple(known for known in self.ids if known != one))

    @property
    def learned(self) -> tuple[bytes, ...]:
        """The ids of lessons that are not forgotten."""
        return tuple(one for one in self.ids if one != _forgotten(one))

    def merged(self, other: Lessons) -> Lessons:
        """Add the lessons of another model; what that one forgot may have been learned here."""
        return self.added(*other.learned)

    def shared(self, other: Lessons) -> int:
        """Number of lessons that both have learned, as far as they are remembered."""
        return len({*self.learned} & {*other.learned})

    def to_tensor(self) -> Tensor:
        """Write the ids as a table of fixed size."""
        table = np.zeros((_REMEMBERED, DIGEST_BYTES), dtype=np.uint8)
        for row, one in zip(table, self.ids, strict=False):
            row[:] = np.frombuffer(one, dtype=np.uint8)
        return torch.from_numpy(table)

    @classmethod
    def from_tensor(cls, table: Tensor) -> Lessons:
        """Read the ids back, checking them as input from a stranger."""
        if (table.dtype, tuple(table.shape)) != (torch.uint8, (_REMEMBERED, DIGEST_BYTES)):
            raise ValueError(f"lessons should be {_REMEMBERED} ids of {DIGEST_BYTES} bytes")
        ids = [row.tobytes() for row in table.numpy()]
        used = next((number for number, one in enumerate(ids) if not any(one)), len(ids))
        if len({*ids[:used]}) < used or any(map(any, ids[used:])):
            raise ValueError("lessons should have different ids, followed by empty places")
        return cls(tuple(ids[:used]))


@dataclass
class Lesson:
    """One lesson as it is learned or forgotten, in one call or in several.

    The id is the sum of the rows' digests, so it does not depend on their order or on how they were divided into calls.

    Attributes
    ----------
    before : Lessons
        What the model knew when the lesson began.
    """

    before: Lessons
    _total: int = 0
    _rows: int = 0

    def add(self, rows: Rows, digests: Sequence[bytes]) -> None:
        """Add the rows of one call, those without weight left out."""
        for label, digest, counts in zip(rows.y.tolist(), digests, _counting(rows), strict=True):
            if counts:
                labelled = digest + f"{type(label).__name__} {label}".encode("utf-8", "surrogatepass")
                one = hashlib.blake2b(labelled, digest_size=DIGEST_BYTES).digest()
                self._total = (self._total + int.from_bytes(one, "little")) % (1 << 8 * DIGEST_BYTES)
                self._rows += 1

    @property
    def _id(self) -> bytes | None:
        whole = self._total.to_bytes(DIGEST_BYTES, "little")
        return bytes([*whole[:-1], whole[-1] & 0x7F]) if self._rows >= _LEAST_ROWS else None

    @property
    def learned(self) -> Lessons:
        """The lessons known after this one was learned."""
        return self.before if self._id is None else self.before.removed(_forgotten(self._id)).added(self._id)

    @property
    def forgotten(self) -> Lessons:
        """The lessons known after this one was forgotten."""
        return self.before if self._id is None else self.before.removed(self._id).added(_forgotten(self._id))

    def check_once(self, rows: Rows, digests: Sequence[bytes]) -> None:
        """Refuse to forget a lesson for the second time, or a call in which every row stands twice."""
        if self._id is None:
            return
        again = _forgotten(self._id) in self.before.ids and "were forgotten before"
        twice = (
            min(Counter(zip(rows.y.tolist(), digests, strict=True)).values()) > 1 and "are all passed more than once"
        )
        if again or twice:
            raise ValueError(
                f"These rows {again or twice}. Nothing was forgotten. Pass each row once, or pass allow_duplicates=True "
                "(--allow-duplicates) if they were learned as often."
            )


@dataclass(frozen=True)
class Receipts:
    """A salted digest for each row that a model has learned and not forgotten: 16 bytes a row.

    Merged models keep their own salts, since a digest cannot be salted anew.

    Examples
    --------
    >>> rows = Rows.checked([[1.0, 2.0], [3.0, 4.0]], ["a", "b"], None, None, LabelTable(capacity=2))
    >>> receipts = Receipts.new().learned(rows, row_digests(rows))
    >>> len(receipts), len(receipts.forgotten(rows, row_digests(rows)))
    (2, 0)
    """

    salts: tuple[bytes, ...]
    #: Digests one behind the other, by salt and label.
    digests: Mapping[tuple[bytes, Any], bytes] = field(default_factory=dict)

    @classmethod
    def new(cls) -> Receipts:
        """Begin without rows, with a salt that nobody can foresee."""
        return cls((secrets.token_bytes(DIGEST_BYTES),))

    def __len__(self) -> int:
        return sum(map(len, self.digests.values())) // DIGEST_BYTES

    def learned(self, rows: Rows, digests: Sequence[bytes]) -> Receipts:
        """Add receipts under the first salt."""
        more: dict[Any, list[bytes]] = {}
        for label, digest, counts in zip(rows.y.tolist(), digests, _counting(rows), strict=True):
            if counts:
                more.setdefault(label, []).append(_salted(digest, self.salts[0]))
        return self._with(((self.salts[0], label), b"".join(parts)) for label, parts in more.items())

    def forgotten(self, rows: Rows, digests: Sequence[bytes]) -> Receipts:
        """Drop the receipts of rows, or refuse if a row has none: it was not learned, or is forgotten already."""
        keys = [(salt, label) for salt in self.salts for label in {*rows.y.tolist()}]
        left, missing = {key: Counter(_split(self.digests.get(key, b""))) for key in keys}, []
        for place, (label, digest, counts) in enumerate(zip(rows.y.tolist(), digests, _counting(rows), strict=True)):
            salted = {salt: _salted(digest, salt) for salt in self.salts} if counts else {}
            found = next((salt for salt, one in salted.items() if left[salt, label][one] > 0), None)
            if found is not None:
                left[found, label][salted[found]] -= 1
            elif counts:
                missing.append(place)
        if missing:
            raise ValueError(
                f"{len(missing)} of {len(rows.y)} rows have no receipt (the first is row {missing[0]}): they were not learned "
                "with these labels and weights, or were forgotten before. Nothing was forgotten. Pass rows exactly as they "
                "were learned."
            )
        return Receipts(self.salts, {**self.digests, **{key: b"".join(left[key].elements()) for key in keys}})

    def merged(self, other: Receipts) -> Receipts:
        """Add the receipts of another model."""
        both = Receipts(tuple(dict.fromkeys((*self.salts, *other.salts))), self.digests)
        return both._with(other.digests.items())

    def joined(self, labels: Iterable[Any], into: Any | None) -> Receipts:
        """Give the receipts of some labels to another one, or drop them if there is none."""
        gone = {*labels}
        kept = {key: digests for key, digests in self.digests.items() if key[1] not in gone}
        moved = [((salt, into), digests) for (salt, label), digests in self.digests.items() if label in gone]
        return Receipts(self.salts, kept)._with([] if into is None else moved)

    def _with(self, more: Iterable[tuple[tuple[bytes, Any], bytes]]) -> Receipts:
        total = dict(self.digests)
        for key, digests in more:
            total[key] = total.get(key, b"") + digests
        return Receipts(self.salts, total)

    def to_tensor(self, labels: Sequence[Any]) -> tuple[Tensor, list[dict[str, Any]]]:
        """Write the digests as one table, and say in JSON's types which salt and label each belongs to."""
        parts = [[self.digests.get((salt, label), b"") for label in labels] for salt in self.salts]
        table = np.frombuffer(b"".join(b"".join(part) for part in parts), dtype=np.uint8).reshape(-1, DIGEST_BYTES)
        said = [
            {"salt": salt.hex(), "counts": [len(digests) // DIGEST_BYTES for digests in part]}
            for salt, part in zip(self.salts, parts, strict=True)
        ]
        return torch.from_numpy(table.copy()), said

    @classmethod
    def from_tensor(cls, table: Tensor, said: Any, labels: Sequence[Any]) -> Receipts:
        """Read receipts back, checking them as input from a stranger."""
        try:
            counts = [count for book in said for count in book["counts"]]
            salts = tuple(bytes.fromhex(book["salt"]) for book in said)
            sound = (
                all(type(count) is int and count >= 0 for count in counts)
                and all(len(book["counts"]) == len(labels) for book in said)
                and all(len(salt) == DIGEST_BYTES for salt in salts)
                and len({*salts}) == len(salts) >= 1
                and (table.dtype, tuple(table.shape)) == (torch.uint8, (sum(counts), DIGEST_BYTES))
            )
        except (TypeError, KeyError, ValueError):
            sound = False
        if not sound:
            raise ValueError("its receipts do not fit their labels and salts")
        keys = [(salt, label) for salt in salts for label in labels]
        parts = table.split(counts) if counts else ()
        return cls(salts, {key: part.numpy().tobytes() for key, part in zip(keys, parts, strict=True)})


def merged_receipts(first: Receipts | None, second: Receipts | None) -> Receipts | None:
    """Receipts of a model that others are merged into: it keeps them if it did before."""
    return first if first is None or second is None else first.merged(second)


def write_lessons(
    lessons: Lessons, receipts: Receipts | None, labels: LabelTable
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What a file keeps of lessons and receipts: tensors, and what the manifest says of them.

    Examples
    --------
    >>> tensors, manifest = write_lessons(Lessons(), None, LabelTable(capacity=2))
    >>> tensors["lessons"].shape, manifest
    (torch.Size([256, 16]), {'receipts': None})
    """
    tensors = {"lessons": lessons.to_tensor()}
    if receipts is None:
        return tensors, {"receipts": None}
    table, said = receipts.to_tensor(labels.to_json()["labels"])
    return {**tensors, "receipts": table}, {"receipts": said}


def read_lessons(
    tensors: Mapping[str, Tensor], manifest: Mapping[str, Any], labels: LabelTable
) -> tuple[Lessons, Receipts | None]:
    """Read what `write_lessons` wrote, checking it as input from a stranger; older files have none of it."""
    lessons = Lessons.from_tensor(tensors["lessons"]) if "lessons" in tensors else Lessons()
    said = manifest.get("receipts")
    if (said is None) != ("receipts" not in tensors):
        raise ValueError("its receipts are described without being there, or the other way round")
    if said is None:
        return lessons, None
    return lessons, Receipts.from_tensor(tensors["receipts"], said, labels.to_json()["labels"])


def _forgotten(one: bytes) -> bytes:
    return bytes([*one[:-1], one[-1] | 0x80])


def _counting(rows: Rows) -> list[bool]:
    """Which rows count: one without weight adds nothing to the sums."""
    return [True] * len(rows.y) if rows.weight is None else (rows.weight > 0).tolist()


def _salted(digest: bytes, salt: bytes) -> bytes:
    return hashlib.blake2b(digest, digest_size=DIGEST_BYTES, salt=salt).digest()


def _split(digests: bytes) -> list[bytes]:
    return [digests[first : first + DIGEST_BYTES] for first in range(0, len(digests), DIGEST_BYTES)]
