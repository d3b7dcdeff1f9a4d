"""Ids of lessons, so that a merge counts none of them twice; and receipts of single samples, if asked for."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cldnet.data.arrays import Samples
from cldnet.data.labels import LabelTable
from cldnet.estimator.history import HISTORY_BYTES, History, Manifest

#: Bytes of a lesson's id, of a sample's receipt and of a salt.
DIGEST_BYTES = 16
#: Lessons that a model remembers. Their ids take a fixed number of bytes, so the oldest makes room for the newest.
_REMEMBERED = 256
#: A smaller lesson has no id: anyone with the file could test a single sample against it.
_MIN_SAMPLES = 10
_CHUNK = 1 << 20  # numbers of the inputs that are converted at once


def sample_digests(samples: Samples) -> list[bytes]:
    """Digest of each sample's input (as float32, whatever its type) and weight; not of its label, which may change."""
    weights = (np.ones(len(samples.y)) if samples.weight is None else samples.weight).astype(np.float64)
    step = max(1, _CHUNK // max(1, samples.x[0].numel()))
    digests = []
    for first in range(0, len(samples.y), step):
        # Adding 0 turns -0.0 into 0.0: the two are equal numbers with different bytes.
        block = samples.x[first : first + step].flatten(1).to("cpu", torch.float32).numpy() + np.float32(0)
        for x, weight in zip(block, weights[first : first + step], strict=True):
            digests.append(hashlib.blake2b(x.tobytes() + weight.tobytes(), digest_size=DIGEST_BYTES).digest())
    return digests


@dataclass(frozen=True)
class Lessons:
    """Ids of the lessons that a model learned or forgot last, oldest first; the last bit of forgotten ones is set."""

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
        padded = b"".join(self.ids).ljust(_REMEMBERED * DIGEST_BYTES, b"\0")
        return torch.frombuffer(bytearray(padded), dtype=torch.uint8).reshape(_REMEMBERED, DIGEST_BYTES)

    @classmethod
    def from_tensor(cls, table: Tensor) -> Lessons:
        """Read the ids, as untrusted input."""
        if (table.dtype, tuple(table.shape)) != (torch.uint8, (_REMEMBERED, DIGEST_BYTES)):
            raise ValueError(f"lessons should be {_REMEMBERED} ids of {DIGEST_BYTES} bytes")
        ids = [row.tobytes() for row in table.numpy()]
        used = next((number for number, one in enumerate(ids) if not any(one)), len(ids))
        if len({*ids[:used]}) < used or any(map(any, ids[used:])):
            raise ValueError("lessons should have different ids, followed by zeros")
        return cls(tuple(ids[:used]))


@dataclass
class Lesson:
    """One lesson as it is learned or forgotten, in one call or in several. A call that fails should change a copy only.

    The id is the sum of the samples' digests, so it depends neither on their order nor on how they were divided into calls.
    """

    _total: int = 0
    _samples: int = 0
    _recorded: bytes | None = None  # the id after the last call, which that after the next one replaces
    name: str | None = None
    apart: bool = False  # whether it was opened by name or as a block, rather than by a single call
    number: int | None = None  # in the model's history, after the first call

    def add(self, samples: Samples, digests: Sequence[bytes]) -> None:
        """Add the samples of one call that have a weight."""
        for _, label, digest in _counted(samples, digests):
            labelled = digest + f"{type(label).__name__} {label}".encode("utf-8", "surrogatepass")
            one = hashlib.blake2b(labelled, digest_size=DIGEST_BYTES).digest()
            self._total = (self._total + int.from_bytes(one, "little")) % (1 << 8 * DIGEST_BYTES)
            self._samples += 1

    def plus(self, other: Lesson) -> Lesson:
        """The lesson of the samples of both, which were not recorded yet."""
        total = (self._total + other._total) % (1 << 8 * DIGEST_BYTES)
        return Lesson(total, self._samples + other._samples)

    @property
    def digest(self) -> str | None:
        """The id of the samples as a history has it; None if there are fewer than ten."""
        return None if self._id is None else self._id.hex()

    @property
    def _id(self) -> bytes | None:
        total = self._total.to_bytes(DIGEST_BYTES, "little")
        return bytes([*total[:-1], total[-1] & 0x7F]) if self._samples >= _MIN_SAMPLES else None

    def learned(self, lessons: Lessons) -> Lessons:
        """Record in a model's lessons that this one was learned."""
        return lessons if self._id is None else self._record(lessons, self._id, _forgotten(self._id))

    def forgotten(self, lessons: Lessons, history: History) -> Lessons:
        """Record in a model's lessons that this one was forgotten; if it was learned more often, it is still there."""
        if self._id is None:
            return lessons
        left = self._record(lessons, _forgotten(self._id), self._id)
        return left.added(self._id) if history.copies(self._id.hex()) > 1 else left

    def to_json(self) -> list[Any]:
        """Write what the id is made of, before anything was recorded."""
        return [f"{self._total:x}", self._samples]

    @classmethod
    def from_json(cls, values: Any) -> Lesson:
        """Read what `to_json` wrote, as untrusted input."""
        match values:
            case [str(total), int(samples)] if re.fullmatch("[0-9a-f]{1,32}", total) and samples >= 0:
                return cls(int(total, 16), samples)
        raise ValueError(f"{values!r:.80} is not what a lesson's id is made of")

    def noted(
        self, history: History, action: str, counts: Mapping[Any, int], manifest: Manifest | None = None
    ) -> History:
        """Record the samples of one call in a model's history, after the lesson itself was recorded."""
        one = self.digest
        known = one is not None and (self._recorded is None or history.has_shard(one))
        history, self.number = history.noted(
            action,
            counts,
            number=self.number,
            name=self.name,
            apart=self.apart,
            digest=one,
            repeated=action == "learned" and known,
            manifest=manifest,
        )
        return history

    def _record(self, lessons: Lessons, one: bytes, opposite: bytes) -> Lessons:
        """Replace the id of the lesson's earlier calls, and the opposite of the new one."""
        if self._recorded is not None:
            lessons = lessons.removed(self._recorded)
        self._recorded = None if one in lessons.ids else one  # one that was there before is not this lesson's own
        return lessons.removed(opposite).added(one)

    def check_once(self, lessons: Lessons, samples: Samples, digests: Sequence[bytes]) -> None:
        """Refuse to forget a lesson twice, or a call in which every sample occurs twice."""
        if self._id is None:
            return
        again = _forgotten(self._id) in lessons.ids and "were forgotten before"
        times = Counter(zip(samples.y.tolist(), digests, strict=True))
        twice = min(times.values()) > 1 and "are all passed more than once"
        if again or twice:
            raise ValueError(
                f"These samples {again or twice}. Nothing was forgotten. Pass each sample once, or pass "
                "allow_duplicates=True (--allow-duplicates) if they were learned that often."
            )


@dataclass(frozen=True)
class Receipts:
    """A salted digest of each sample that a model has learned and not forgotten, 16 bytes each.

    Merged models keep their own salts, since a digest cannot be salted again.
    """

    salts: tuple[bytes, ...]
    #: Concatenated digests by salt and label.
    digests: Mapping[tuple[bytes, Any], bytes] = field(default_factory=dict)

    @classmethod
    def new(cls) -> Receipts:
        """Begin without samples, with a random salt."""
        return cls((secrets.token_bytes(DIGEST_BYTES),))

    def learned(self, samples: Samples, digests: Sequence[bytes]) -> Receipts:
        """Add receipts under the first salt."""
        salt = self.salts[0]
        return self._with(((salt, label), _salted(digest, salt)) for _, label, digest in _counted(samples, digests))

    def forgotten(self, samples: Samples, digests: Sequence[bytes]) -> Receipts:
        """Drop the receipts of samples; refuse samples without one, which were not learned or are already forgotten."""
        keys = [(salt, label) for salt in self.salts for label in {*samples.y.tolist()}]
        left, missing = {key: Counter(_split(self.digests.get(key, b""))) for key in keys}, []
        for place, label, digest in _counted(samples, digests):
            salted = {salt: _salted(digest, salt) for salt in self.salts}
            found = next((salt for salt, one in salted.items() if left[salt, label][one] > 0), None)
            if found is not None:
                left[found, label][salted[found]] -= 1
            else:
                missing.append(place)
        if missing:
            raise ValueError(
                f"{len(missing)} of {len(samples.y)} samples have no receipt (the first is sample {missing[0]}): they were not "
                "learned with these labels and weights, or were forgotten before. Nothing was forgotten. Pass samples exactly "
                "as they were learned."
            )
        return Receipts(self.salts, {**self.digests, **{key: b"".join(left[key].elements()) for key in keys}})

    def merged(self, other: Receipts | None) -> Receipts:
        """Add the receipts of another model, if it has some."""
        if other is None:
            return self
        both = Receipts(tuple(dict.fromkeys((*self.salts, *other.salts))), self.digests)
        return both._with(other.digests.items())

    def joined(self, labels: Iterable[Any], into: Any | None) -> Receipts:
        """Give the receipts of some labels to another one, or drop them if there is none."""
        gone = {*labels}
        kept = {key: digests for key, digests in self.digests.items() if key[1] not in gone}
        moved = [((salt, into), digests) for (salt, label), digests in self.digests.items() if label in gone]
        return Receipts(self.salts, kept)._with([] if into is None else moved)

    def _with(self, more: Iterable[tuple[tuple[bytes, Any], bytes]]) -> Receipts:
        parts = {key: [digests] for key, digests in self.digests.items()}
        for key, digests in more:
            parts.setdefault(key, []).append(digests)
        return Receipts(self.salts, {key: b"".join(each) for key, each in parts.items()})

    def to_tensor(self, labels: Sequence[Any]) -> tuple[Tensor, list[dict[str, Any]]]:
        """Write the digests as one table, and their salts and numbers by label in JSON's types."""
        parts = [[self.digests.get((salt, label), b"") for label in labels] for salt in self.salts]
        table = np.frombuffer(b"".join(b"".join(part) for part in parts), dtype=np.uint8).reshape(-1, DIGEST_BYTES)
        said = [
            {"salt": salt.hex(), "counts": [len(digests) // DIGEST_BYTES for digests in part]}
            for salt, part in zip(self.salts, parts, strict=True)
        ]
        return torch.from_numpy(table.copy()), said

    @classmethod
    def from_tensor(cls, table: Tensor, said: Any, labels: Sequence[Any]) -> Receipts:
        """Read receipts, as untrusted input."""
        try:
            counts = [count for book in said for count in book["counts"]]
            salts = tuple(bytes.fromhex(book["salt"]) for book in said)
            valid = (
                all(type(count) is int and count >= 0 for count in counts)
                and all(len(book["counts"]) == len(labels) for book in said)
                and all(len(salt) == DIGEST_BYTES for salt in salts)
                and len({*salts}) == len(salts) >= 1
                and (table.dtype, tuple(table.shape)) == (torch.uint8, (sum(counts), DIGEST_BYTES))
            )
        except (TypeError, KeyError, ValueError):
            valid = False
        if not valid:
            raise ValueError("its receipts do not fit their labels and salts")
        keys = [(salt, label) for salt in salts for label in labels]
        parts = table.split(counts) if counts else ()
        return cls(salts, {key: part.numpy().tobytes() for key, part in zip(keys, parts, strict=True)})


def write_lessons(
    lessons: Lessons, receipts: Receipts | None, labels: LabelTable
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """What a file keeps of lessons and receipts: tensors, and entries of the manifest."""
    tensors = {"lessons": lessons.to_tensor()}
    if receipts is None:
        return tensors, {"receipts": None}
    table, said = receipts.to_tensor(labels.to_json()["labels"])
    return {**tensors, "receipts": table}, {"receipts": said}


def read_lessons(
    tensors: Mapping[str, Tensor], manifest: Mapping[str, Any], labels: LabelTable
) -> tuple[Lessons, Receipts | None, dict[str, Tensor]]:
    """Read what `write_lessons` wrote, as untrusted input; older files do not have it. Return the other tensors as well."""
    others = {name: tensor for name, tensor in tensors.items() if name not in ("lessons", "receipts")}
    lessons = Lessons.from_tensor(tensors["lessons"]) if "lessons" in tensors else Lessons()
    said = manifest.get("receipts")
    if (said is None) != ("receipts" not in tensors):
        raise ValueError("its receipts and their description do not belong together")
    if said is None:
        return lessons, None, others
    return lessons, Receipts.from_tensor(tensors["receipts"], said, labels.to_json()["labels"]), others


def write_history(history: History) -> Tensor:
    """What a file keeps of a history, in a fixed number of bytes."""
    return torch.frombuffer(bytearray(history.to_bytes()), dtype=torch.uint8)


def read_history(tensors: dict[str, Tensor], labels: LabelTable) -> History:
    """Take what `write_history` wrote out of a file's tensors, as untrusted input; older files do not have it."""
    written = tensors.pop("history", None)
    if written is None:
        return History()
    if (written.dtype, tuple(written.shape)) != (torch.uint8, (HISTORY_BYTES,)):
        raise ValueError(f"its history should be {HISTORY_BYTES} bytes")
    return History.from_bytes(written.numpy().tobytes(), labels.kind)


def _forgotten(one: bytes) -> bytes:
    return bytes([*one[:-1], one[-1] | 0x80])


def _counted(samples: Samples, digests: Sequence[bytes]) -> Iterator[tuple[int, Any, bytes]]:
    """Place, label and digest of the samples that count: one without weight adds nothing to the sums."""
    for place, (label, digest) in enumerate(zip(samples.y.tolist(), digests, strict=True)):
        if samples.weight is None or samples.weight[place] > 0:
            yield place, label, digest


def _salted(digest: bytes, salt: bytes) -> bytes:
    return hashlib.blake2b(digest, digest_size=DIGEST_BYTES, salt=salt).digest()


def _split(digests: bytes) -> list[bytes]:
    return [digests[first : first + DIGEST_BYTES] for first in range(0, len(digests), DIGEST_BYTES)]
