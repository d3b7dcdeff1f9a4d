"""The model that a classifier holds: its parameters, a learner, its labels; how it learns, forgets, is saved and loaded."""

from __future__ import annotations

import copy
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import cldnet.storage as store
from cldnet.data.arrays import Samples
from cldnet.data.labels import Inputs, LabelTable, as_labels
from cldnet.data.sentences import TEXT_ADVICE, is_sentences, no_sentences
from cldnet.data.sparse import WIDTH
from cldnet.device import bearable_threads, memory_limit, resolve_dtype
from cldnet.estimator.accumulator import Accumulator
from cldnet.estimator.footprint import Footprint, footprint
from cldnet.estimator.history import HISTORY_BYTES, History, LessonRecord
from cldnet.estimator.kept import KeptSums, read_kept, write_kept
from cldnet.estimator.lessons import (
    Lesson,
    Lessons,
    Receipts,
    read_history,
    read_lessons,
    sample_digests,
    write_history,
    write_lessons,
)
from cldnet.estimator.statistics import Statistics, merged_inputs, read_bounded, write_bounded
from cldnet.math.basis import largest_cosine, reachable_gamma
from cldnet.math.calibration import Calibration, known_probability
from cldnet.math.symmetric import in_block_rows
from cldnet.methods import build_learner
from cldnet.methods.fit import Progress, TaskReport, fit_task
from cldnet.methods.learner import Learner, Setting, TaskData, portions, predict_logits
from cldnet.methods.mapped import check_gram
from cldnet.methods.parts.alpha import ConstantAlpha
from cldnet.methods.parts.unlearning import not_learned
from cldnet.nets import Described, FeatureMap, build_described, is_described, takes_text
from cldnet.nets.fingerprint import Fingerprint, WrongModule
from cldnet.storage.checkpoint import SessionCheckpoint
from cldnet.storage.encoders import with_encoders, without_encoders
from cldnet.storage.header import explain_memory_error
from cldnet.storage.narrow import narrowed, widened
from cldnet.storage.validation import (
    check_shapes,
    check_state,
    check_values,
    describe_error,
    empty_backbone,
    empty_learner,
    is_all_state,
    read_labels,
)
from cldnet.version import __version__

if TYPE_CHECKING:
    from cldnet.methods.exact import Exact

#: The method behind each solver's name.
SOLVERS: Mapping[str, str] = {"exact": "exact", "hbo": "cldnet"}

_MAX_RATE = 3e38  # what float32 can hold
_MAX_INTEGER = 2**63 - 1  # what torch takes for a size, and a file for a number
_MAX_SAVED_THREADS = 1 << 12
#: Classes that there is room for if ``capacity`` is "auto": a multiple of the first for sums, the second for class vectors.
_ROOM, _VECTORS = 16, 1000
#: Samples of a task that a net is tested on after it has learned them.
_TESTED = 64
_DIVERGED = "Training diverged: NaN or infinity. Lower lr, raise alpha if it is tiny, or look for enormous values in X."
_OVERFLOW = "The sums would overflow: look for enormous weights, values or noise. The model is unchanged."
_NO_SCORES = "Some scores are NaN or infinite: look for enormous values in X, or load the last good copy of the model."
#: How the names of tensors begin that follow from the sums, and are in a file to save time.
_SOLUTION = "solution."
_log = logging.getLogger("cldnet")


@dataclass(frozen=True)
class ModelParameters:
    """The parameters of a classifier that its model is built from. They cannot change while the model lives."""

    solver: str
    backbone: str | nn.Module
    capacity: int | str
    embed_dim: int
    input_shape: tuple[int, ...] | None
    dtype: str
    gram: str | int = "full"
    receipts: bool = False
    keep_lessons: int = 0

    def __post_init__(self) -> None:
        if self.solver not in SOLVERS:
            raise ValueError(f"solver={self.solver!r} is not known; use one of {sorted(SOLVERS)}.")
        if not isinstance(self.backbone, str | nn.Module):
            raise ValueError(f"backbone={self.backbone!r} should be a name or a torch.nn.Module.")
        if not isinstance(self.capacity, str):
            check_integer("capacity", self.capacity)
        elif self.capacity != "auto":
            raise ValueError(f"capacity={shown(self.capacity)} should be 'auto' or a number of classes.")
        check_integer("embed_dim", self.embed_dim)
        if self.input_shape is not None:
            sides = self.input_shape
            if not isinstance(sides, tuple | list) or not 1 <= len(sides) <= 3:
                raise ValueError(f"input_shape={sides!r} should be None or a tuple of one to three sides, as (28, 28).")
            for side in sides:
                check_integer("A side of input_shape", side)
            check_integer("The product of the sides of input_shape", prod(map(int, sides)))
            object.__setattr__(self, "input_shape", tuple(map(int, sides)))
        resolve_dtype(self.dtype)
        rank: Any = self.gram
        object.__setattr__(self, "gram", int(rank) if isinstance(rank, np.integer) else rank)
        check_gram(self.gram)
        if not isinstance(self.gram, str):
            check_integer("gram", self.gram)
        if not isinstance(self.receipts, bool | np.bool_) or (self.receipts and self.solver != "exact"):
            raise ValueError(
                f"receipts={shown(self.receipts)} should be False, or True for solver='exact', which can forget samples."
            )
        object.__setattr__(self, "receipts", bool(self.receipts))
        check_integer("keep_lessons", self.keep_lessons, least=0)
        object.__setattr__(self, "keep_lessons", int(self.keep_lessons))
        unfit = {
            "solver='hbo', which learns by gradient steps": self.solver != "exact",
            f"a sketch (gram={self.gram!r}), from which nothing can be subtracted": not isinstance(self.gram, str),
            "receipts=True, since receipts are not kept by lesson": self.receipts,
        }
        for reason, is_so in unfit.items():
            if self.keep_lessons and is_so:
                raise ValueError(
                    f"keep_lessons={self.keep_lessons} should be 0 with {reason}: the sums of a lesson cannot be taken back."
                )

    def check_unchanged(self, now: ModelParameters) -> None:
        """Refuse parameters that were changed since the model was made."""
        for name in self.__dataclass_fields__:
            then, value = getattr(self, name), getattr(now, name)
            if value is not then and value != then:
                larger = name == "capacity" and not isinstance(value, str) and (then == "auto" or value > then)
                keep = f" and call clf.extend({value}), which keeps what was learned" if larger else ""
                raise ValueError(
                    f"{name} was {then!r} when the model was made and is {value!r} now. "
                    f"Set it back{keep}, or call fit to begin again."
                )

    def check_text(self, X: Any) -> None:
        """Refuse sentences for a backbone that takes numbers, and the other way round."""
        text, takes = is_sentences(X), takes_text(self.backbone)
        if text and not takes:
            name = repr(self.backbone) if isinstance(self.backbone, str) else type(self.backbone).__name__
            raise ValueError(f"X has sentences, and backbone={name} takes numbers. {TEXT_ADVICE}")
        if takes and not text:
            raise ValueError(no_sentences(X, "the backbone takes some"))
        if text and self.input_shape is not None:
            raise ValueError(f"input_shape={self.input_shape} is for numbers, and X has sentences: leave it out.")

    def room(self, classes: int = 0) -> int:
        """Number of classes to reserve memory for, if the model knows or is about to learn so many."""
        if not isinstance(self.capacity, str):
            return int(self.capacity)
        return _VECTORS if self.solver == "hbo" else max(1, -(-classes // _ROOM)) * _ROOM

    @property
    def limit(self) -> int | None:
        """The largest number of classes, if there is one."""
        return None if self.capacity == "auto" and self.solver == "exact" else self.room()

    @property
    def sparse_width(self) -> int:
        """Number of columns that wide sparse inputs are projected to: what a map that was given takes, or the default."""
        shape: tuple[int, ...] = self.backbone.input_shape if isinstance(self.backbone, FeatureMap) else ()
        return shape[0] if len(shape) == 1 else WIDTH

    def setting(self, input_shape: tuple[int, ...], seed: int, classes: int = 0) -> Setting:
        """What the learner is made for. The exact solver sums and scores in float64, whatever ``dtype`` is."""
        dtype = torch.float64 if self.solver == "exact" else resolve_dtype(self.dtype)
        return Setting(input_shape, self.room(classes), seed, dtype)

    def options(self, training: TrainingParameters) -> dict[str, Any]:
        """The configuration of the solver's method."""
        if self.solver == "exact":
            return {"alpha": training.alpha, "gram": self.gram, "products": self.dtype}
        gamma = reachable_gamma(self.room(), self.embed_dim)
        options: dict[str, Any] = {"embed_dim": self.embed_dim, "gamma": gamma, "lr": training.lr}
        if not isinstance(training.alpha, str):
            options["alpha"] = ConstantAlpha(training.alpha)
        return options


@dataclass(frozen=True)
class TrainingParameters:
    """The parameters of a classifier that may change from call to call, in the plain types that a file takes."""

    epochs: int
    batch_size: int
    lr: float
    alpha: float | str
    n_threads: int | None
    verbose: int

    def __post_init__(self) -> None:
        check_integer("epochs", self.epochs)
        check_integer("batch_size", self.batch_size)
        check_threads(self.n_threads)
        if not _is_positive(self.lr, _MAX_RATE):
            raise ValueError(f"lr={shown(self.lr)} should be a positive number, {_MAX_RATE:g} at most.")
        by_name = isinstance(self.alpha, str) and self.alpha == "gcv"
        if not by_name and not _is_positive(self.alpha, sys.float_info.max):
            raise ValueError(f"alpha={shown(self.alpha)} should be 'gcv' or a positive number that a float can hold.")
        level: Any = self.verbose
        if not isinstance(level, int | np.integer | np.bool_) or abs(int(level)) > _MAX_INTEGER:
            raise ValueError(
                f"verbose={shown(level)} should be 0 (silent), 1 (one line per session) or 2 (more lines)."
            )
        types = {"epochs": int, "batch_size": int, "lr": float, "verbose": int}
        types |= ({} if by_name else {"alpha": float}) | ({} if self.n_threads is None else {"n_threads": int})
        for name, plain in types.items():
            object.__setattr__(self, name, plain(getattr(self, name)))


def check_integer(name: str, value: Any, least: int = 1) -> None:
    """Refuse what is not a whole number, is too small, or is too large for torch and for a file."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name}={shown(value)} should be a whole number of at least {least}.")
    if value > _MAX_INTEGER:
        raise ValueError(f"{name}={shown(value)} should be a whole number of at most {_MAX_INTEGER}.")


def check_threads(count: Any) -> None:
    """Refuse more threads than a machine can handle: thousands of them take hours, or crash the process."""
    most = bearable_threads(_MAX_INTEGER) or _MAX_INTEGER
    whole = isinstance(count, int | np.integer) and not isinstance(count, bool)
    if count is not None and not (whole and 1 <= count <= most):
        raise ValueError(
            f"n_threads={shown(count)} should be None or a whole number from 1 to {most}: more threads than processors are of "
            "no use."
        )


def _is_positive(value: Any, most: float) -> bool:
    """Whether something is a number above 0 and up to ``most``; True and False are not."""
    if isinstance(value, np.generic):
        value = value.item()  # numpy warns if it compares a small float with a large one
    return isinstance(value, int | float | np.longdouble) and not isinstance(value, bool) and bool(0 < value <= most)


def shown(value: Any) -> str:
    """Write a value for a message, cut if it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python does not write numbers of thousands of digits
        text = "a number of thousands of digits"
    return text if len(text) <= 80 else f"{text[:79]}…"


def _check_memory(capacity: int, width: int) -> None:
    """Refuse more classes of so many numbers each than fit into memory, before the system ends the process."""
    size, most = capacity * width * torch.float64.itemsize, memory_limit()
    if size > most:
        raise ValueError(
            f"capacity={capacity} takes {size / 1e9:.3g} GB, and one table may take {most / 1e9:.3g} GB of this machine's "
            "memory: use a smaller capacity, or fewer features (or a smaller embed_dim) per class. CLDNET_MEMORY_SHARE sets "
            "another share."
        )


class Size(NamedTuple):
    """Bytes by kind from a task on, and whether they changed to make room for classes: by ``extend``, or "auto"."""

    tasks: int
    bytes: dict[str, int]
    asked: bool = False


@dataclass(frozen=True)
class Sizes:
    """Bytes of each kind after each task: an entry where they changed, so a constant model has one."""

    changes: tuple[Size, ...] = ()

    @property
    def constant(self) -> bool:
        """Whether the size has only changed to make room for classes."""
        return all(size.asked for size in self.changes[1:])

    def record(self, tasks: int, kept: dict[str, int], asked: bool = False) -> Sizes:
        """Add the bytes by kind after a number of tasks; of several changes that were asked for in a row the last counts."""
        if not self.changes:
            return Sizes((Size(tasks, kept, asked),))
        *before, last = self.changes
        if last.bytes == kept:
            return self
        repeated = asked and last.asked and last.tasks == tasks
        return Sizes((*(before if repeated else self.changes), Size(tasks, kept, asked)))

    def to_json(self) -> list[list[Any]]:
        """Write the changes in JSON's types."""
        return [list(size) for size in self.changes]

    @classmethod
    def from_json(cls, state: Any) -> Sizes:
        """Read what `to_json` wrote, as untrusted input."""
        try:
            sizes = tuple(Size(tasks, dict(kept), asked) for tasks, kept, asked in state)
            valid = all(
                type(size.asked) is bool and all(type(n) is int and n >= 0 for n in (size.tasks, *size.bytes.values()))
                for size in sizes
            )
        except (TypeError, ValueError):
            valid = False
        if not valid:
            raise ValueError("its sizes should each have a number of tasks, bytes by kind, and true or false")
        return cls(sizes)


@dataclass(frozen=True)
class Model:
    """A learner with its labels, and what is known about its first inputs."""

    learner: Learner
    labels: LabelTable
    parameters: ModelParameters
    seed: int
    inputs: Inputs
    merged_map_labels: frozenset[Any] = frozenset()  # of merged or joined classes that the map was fitted on
    sizes: Sizes = Sizes()
    session: str | None = None  # digest of the last session that had a checkpoint
    lessons: Lessons = Lessons()
    receipts: Receipts | None = None  # if the model was asked to keep them
    history: History = History()
    kept: tuple[KeptSums, ...] = ()  # sums of the last lessons, if the model was asked to keep them
    bounded: bool = True  # whether no sample weighs more than 1 and no noise moved one

    def __setstate__(self, state: dict[str, Any]) -> None:
        renamed = {"structure": "parameters", "borrowed": "merged_map_labels"}  # in pickles of version 0.1
        self.__dict__.update({renamed.get(name, name): value for name, value in state.items()})

    @classmethod
    def build(
        cls,
        parameters: ModelParameters,
        options: Mapping[str, Any],
        *,
        seed: int,
        inputs: Inputs,
        features: FeatureMap | None = None,
        classes: int = 0,
    ) -> Model:
        """Make a model that has learned nothing yet, over a copy of the user's module if there is one.

        ``features`` is the map that was chosen for a backbone that is only named; ``classes`` is how many need room.
        """
        backbone, shape = parameters.backbone if features is None else features, inputs.shape
        if isinstance(backbone, nn.Module):
            backbone = copy.deepcopy(backbone)
        if isinstance(backbone, Described) and is_described(backbone) and backbone.input_shape != shape:
            raise ValueError(f"The backbone takes inputs of shape {backbone.input_shape}, and X has {shape}.")
        width = getattr(backbone, "out_features", 1000)  # as many as maps that are made by name have
        _check_memory(parameters.room(classes), parameters.embed_dim if parameters.solver == "hbo" else int(width))
        setting = parameters.setting(shape, seed, classes)
        try:
            learner = build_learner(SOLVERS[parameters.solver], setting, options, backbone)
        except RuntimeError as error:  # from the user's module, or a lack of memory
            if "allocate" in str(error):
                raise ValueError(
                    f"Not enough memory for {setting.capacity} classes: use a smaller capacity."
                ) from error
            raise ValueError(f"The backbone does not take inputs of shape {shape}: {error}") from error
        strange = [name for name, value in learner.state_dict().items() if not isinstance(value, Tensor)]
        if strange:
            raise ValueError(
                f"The backbone has a state that is not a tensor ({', '.join(strange[:3])}), and a model is saved as tensors: "
                "use a module without get_extra_state."
            )
        receipts = Receipts.new() if parameters.receipts else None
        return cls(learner, LabelTable(parameters.limit), parameters, seed, inputs, receipts=receipts)

    def copy(self, options: Mapping[str, Any], shared: Iterable[nn.Module] = ()) -> Model:
        """Copy the learner, but for parts to share, and the labels, with the method's options of now."""
        learner = copy.deepcopy(self.learner, {id(part): part for part in shared})
        learner.configure(options)
        return replace(self, learner=learner, labels=copy.deepcopy(self.labels))

    def restarted(self, fresh: Model) -> Model:
        """A model without samples, just built, but with the labels, lessons and receipts of this one."""
        fresh.learner.counters[0] = self.learner.tasks
        return replace(
            self, learner=fresh.learner, labels=copy.deepcopy(self.labels), inputs=fresh.inputs, sizes=Sizes()
        )

    # The methods below change the learner and the labels: callers that need the old model copy it first.

    def learn(
        self,
        samples: Samples,
        lesson: Lesson,
        *,
        epochs: int,
        batch_size: int,
        first: Samples | None = None,
        on_step: Callable[[Progress], None] | None = None,
        checkpoint: SessionCheckpoint | None = None,
    ) -> tuple[Model, TaskReport]:
        """Learn samples as one task, and add them to a lesson.

        A model that was restarted learns its ``first`` samples again in the same task. They have been counted before.
        """
        begins, every = not len(self.labels), samples if first is None else Samples.joined([first, samples])
        before = self.sums_before()
        self.labels.learn(samples.y)
        task, progress, session = self._task(every, self.labels.rows(every.y)), None, self.session
        grows = self._make_room()
        budget: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size}
        if checkpoint is not None:
            session = self._session_digest(task, budget, begins)
            progress = checkpoint.resume(session, self.seed, len(task), finished=self.session)
        try:
            report = fit_task(self.learner, task, **budget, on_step=on_step, resume=progress, on_checkpoint=checkpoint)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]  # torch does not list it
            raise ValueError(_DIVERGED) from error
        one_pass = self.learner.traits.one_pass
        self.check_finite(_OVERFLOW if one_pass else _DIVERGED)
        if not one_pass:
            count = min(_TESTED, len(task))
            # Spread over the task, since the first ones are often of one class.
            tested = torch.arange(count, device=self.device) * len(task) // count
            self._check_learned(task.x[tested], task.y[tested])
        self.labels.count_samples(samples.y, samples.weight)
        receipts = self.receipts
        if self.learner.keeps_sums:  # only such models are merged, and forget samples
            digests = sample_digests(samples)
            lesson.add(samples, digests)
            receipts = None if receipts is None else receipts.learned(samples, digests)
        work = replace(self, session=session, receipts=receipts, bounded=self.bounded and samples.at_most_once)
        work = work._noted(lesson, samples.counts(), before)
        return work.with_size(asked=grows), report

    def accumulator(self, lesson: Lesson) -> Accumulator:
        """What adds samples to this model's own sums in place; `accumulated` ends the lesson."""

        def room(classes: int) -> int:
            wanted = self.parameters.room(classes)
            _check_memory(wanted, self.learner.class_width)
            return wanted

        return Accumulator(self.exact, self.labels, self.inputs, room=room, lesson=lesson, receipts=self.receipts)

    def accumulated(self, sums: Accumulator, before: Mapping[str, Tensor] | None) -> Model:
        """Learn what was added in place to the sums, which were ``before`` if those of lessons are kept."""
        sums.check_complete()
        self.learner.end_task(TaskData(torch.empty(0), torch.empty(0)))
        self.check_finite()
        work = replace(self, receipts=sums.receipts, bounded=self.bounded and sums.bounded)._noted(
            sums.lesson, sums.counts, before
        )
        return work.with_size(asked=sums.grew)

    def _noted(self, lesson: Lesson, counts: Mapping[Any, int], before: Mapping[str, Tensor] | None) -> Model:
        """Record a call's samples in the history and, if the model keeps those of lessons, what the sums have gained."""
        lessons = lesson.learned(self.lessons) if self.learner.keeps_sums else self.lessons
        work = replace(self, lessons=lessons, history=lesson.noted(self.history, "learned", counts))
        return work if before is None else work._keeping(before, lesson, counts)

    def sums_before(self) -> dict[str, Tensor] | None:
        """The sums as they are, which learning leaves alone; None if those of lessons are not kept."""
        if not self.parameters.keep_lessons:
            return None
        second = copy.deepcopy(self.exact.second)  # shared until either side changes
        sums = {name: tensor.clone() for name, tensor in self.exact.sums().items() if not name.startswith("second.")}
        return {**sums, **{f"second.{name}": tensor for name, tensor in second.state_dict().items()}}

    def _keeping(self, before: Mapping[str, Tensor], lesson: Lesson, counts: Mapping[Any, int]) -> Model:
        """Keep what the sums have gained in a call, together with what they gained in the lesson's earlier calls."""
        assert lesson.number is not None
        rows = self.labels.rows(list(counts)).tolist()
        gained = KeptSums.between(lesson.number, counts, rows, before, self.exact.sums())
        earlier = next((one for one in self.kept if one.number == lesson.number), None)
        others = [one for one in self.kept if one is not earlier]
        kept = (*others, gained if earlier is None else earlier.plus(gained))[-self.parameters.keep_lessons :]
        records = {record.number: record for record in self.history.records}
        if earlier is None and records[lesson.number].total > sum(counts.values()):
            kept = self.kept  # those of its earlier calls were dropped, and a part of a lesson cannot be taken back
        return replace(self, kept=tuple(one for one in kept if one.number in records))

    def _make_room(self) -> bool:
        """Reserve memory for the classes of the labels if they have outgrown it; whether they had."""
        grows = len(self.labels) > self.learner.setting.capacity  # else the labels have a limit, and keep it
        if grows:
            room = self.parameters.room(len(self.labels))
            _check_memory(room, self.learner.class_width)
            self.learner.extend(room)
        return grows

    def _session_digest(self, task: TaskData, budget: Mapping[str, Any], first: bool) -> str:
        """Digest of everything that a session's outcome depends on, to notice if it is resumed with something else.

        The first weights of a net do not belong to it, since a checkpoint has the later ones.
        """
        data = {"x": task.x, "y": task.y} | ({} if task.weight is None else {"weight": task.weight})
        described, state = {"config": repr(self.learner.config), **budget}, self.learner.state_dict()
        if "second.packed" in state:
            state["second.packed"] = in_block_rows(state["second.packed"], self.learner.class_width)
        if first and not self.learner.traits.one_pass:
            described |= {"seed": self.seed, "shapes": {name: [*tensor.shape] for name, tensor in state.items()}}
            return store.digest(described, data)
        return store.digest(described, {**state, **data})

    def check_finite(self, reason: str = _OVERFLOW) -> None:
        """Refuse a model with NaN or infinity in its state."""
        if not all(_finite(tensor) for tensor in self.learner.watched_state() if tensor.is_floating_point()):
            raise ValueError(reason)

    def _check_learned(self, x: Tensor, y: Tensor) -> None:
        """Test a net on samples that it has just learned: its weights may be finite and yet useless."""
        scores = self.learner.logits(x)
        if not _finite(scores):
            raise ValueError(_DIVERGED)
        chance, right = 1 / len(y.unique()), float((scores.argmax(1) == y).double().mean())
        if len(y) >= 16 and chance < 1 and right - chance <= 0.2 * (1 - chance):
            _log.warning(
                "The model classifies %.0f %% of the samples that it has just learned correctly, hardly more than by chance: "
                "lr or alpha may be far too large or too small.",
                100 * right,
            )

    def with_size(self, asked: bool = False) -> Model:
        """Record the size of the model after a task, or after the user asked for another one."""
        return replace(self, sizes=self.sizes.record(self.learner.tasks, self.learner.bytes_by_kind(), asked))

    def extend(self, capacity: int) -> Model:
        """Make room for more classes."""
        _check_memory(capacity, self.learner.class_width)
        self.learner.extend(capacity)
        self.labels.capacity = capacity
        return replace(self, parameters=replace(self.parameters, capacity=capacity)).with_size(asked=True)

    def forget(self, samples: Samples, lesson: Lesson, allow_duplicates: bool = False) -> Model:
        """Subtract samples. A class without any weight left leaves the model, and its room is free."""
        numbers, digests = self.labels.known_rows(samples.y), sample_digests(samples)
        lesson.add(samples, digests)
        if self.receipts is None and not allow_duplicates:
            lesson.check_once(self.lessons, samples, digests)
        receipts = None if self.receipts is None else self.receipts.forgotten(samples, digests)
        self._check_weights(samples, numbers)
        # Receipts are proof, so the samples' likelihood is not tested. Files of the first versions did not count samples.
        known = sum(count or 0 for count in self.labels.counts.values()) if receipts is None else 0
        self.exact.forget(self._task(samples, numbers), self.labels.to_json()["labels"], known)
        self.labels.count_samples(samples.y, samples.weight, sign=-1)
        lessons = lesson.forgotten(self.lessons, self.history)
        history = lesson.noted(self.history, "forgot", samples.counts())
        bounded = self.bounded and samples.at_most_once
        work = replace(self, receipts=receipts, lessons=lessons, history=history, kept=(), bounded=bounded)
        return work._without_empty(dict(zip(samples.y.tolist(), numbers.tolist(), strict=True)))

    def _without_empty(self, rows: Mapping[Any, int]) -> Model:
        """Remove those of some classes that have no weight left."""
        weights = self.exact.class_weights.cpu()
        return self._without([label for label, row in rows.items() if weights[row] == 0])

    def _without(self, labels: Sequence[Any]) -> Model:
        """Remove classes without samples and give their room back. Of their labels, at most a trace in the map is left."""
        if not labels:
            return self
        traced, before = self.map_labels.intersection(labels), self.learner.setting.capacity
        rows = torch.from_numpy(self.labels.remove(labels)).to(self.device)
        self.exact.drop(rows, self.parameters.room(len(self.labels)))
        work = replace(
            self,
            merged_map_labels=self.merged_map_labels | traced,
            receipts=None if self.receipts is None else self.receipts.joined(labels, None),
            kept=tuple(one.relabelled({}, gone=labels) for one in self.kept),
        )._with_history(self.history.relabelled({}, gone=labels))
        return work if self.learner.setting.capacity == before else work.with_size(asked=True)

    def _check_weights(self, samples: Samples, numbers: NDArray[np.int64]) -> None:
        """Refuse weights other than 1 for classes that were learned without weights: they would leave fractions.

        Those are the classes with as much weight as samples and with sums of whole numbers. Where some weights were above 1,
        that may be chance, so there only what would leave a fraction is refused.
        """
        if samples.weight is None:
            return
        others = (samples.weight != 1.0) & (samples.weight > 0)
        for label, row in dict(zip(samples.y[others].tolist(), numbers[others].tolist(), strict=True)).items():
            sums, weight = self.exact.class_sums[row], float(self.exact.class_weights[row])
            left = weight - float(samples.weight[samples.y == label].sum())
            whole = self.labels.counts[label] == weight and bool((sums == sums.round()).all())
            if whole and (self.bounded or not left.is_integer()):
                raise not_learned(f"class {label!r} was learned without weights, so the weight must be 1")

    def forget_class(self, label: Any) -> Model:
        """Drop a class's sum, its label and its receipts."""
        (row,) = self.labels.known_rows([label])
        self.exact.forget_class(int(row))
        (label,) = as_labels([label]).tolist()
        history, _ = self.history.noted("forgot", {label: self.labels.counts[label] or 0})
        return replace(self, history=history, kept=())._without([label])

    def undo(self, lesson: int | str | None) -> Model:
        """Take a lesson back, by its number or its name, or the last one: subtract the sums that were kept of it."""
        taken = self.kept_of(lesson)
        numbers = self.labels.known_rows(list(taken.labels))
        sums = {name: tensor.to(self.device) for name, tensor in taken.tensors.items()}
        self.exact.subtract_sums(sums, torch.from_numpy(numbers).to(self.device))
        self.check_finite()
        self.labels.add_counts({label: -count for label, count in zip(taken.labels, taken.counts, strict=True)})
        record = next(one for one in self.history.records if one.number == taken.number)
        history, lessons = self.history.undone(taken.number), self.lessons
        if record.digest is not None and not record.repeated and history.copies(record.digest) < 1:
            lessons = lessons.removed(bytes.fromhex(record.digest))
        kept = tuple(one for one in self.kept if one is not taken)
        work = replace(self, history=history, lessons=lessons, kept=kept)
        return work._without_empty(dict(zip(taken.labels, numbers.tolist(), strict=True)))

    def kept_of(self, lesson: int | str | None) -> KeptSums:
        """The sums of a lesson, or an error that says why they are not there and what to do."""
        records = self.history.records
        found = [one for one in records if lesson is None or lesson in (one.number, one.name)]
        if not found:
            known = ", ".join(str(one.number) for one in records[-6:]) or "none"
            which = "to take back" if lesson is None else f"{lesson!r:.80}"
            raise ValueError(f"There is no lesson {which} in the model's history. The last ones are: {known}.")
        record = found[-1]
        kept = next((one for one in self.kept if one.number == record.number), None)
        if kept is None:
            raise ValueError(self._why_not_kept(record))
        return kept

    def _why_not_kept(self, record: LessonRecord) -> str:
        """Why a lesson cannot be taken back by its sums, and what to do."""
        which, last = f"lesson {record.number} ({record.date})", self.parameters.keep_lessons
        if record.action == "forgot":
            return (
                f"In {which} the model has forgotten samples, and nothing of them is left to take back. Learn them again: "
                "clf.partial_fit(X, y), or `cldnet learn MODEL DATA`."
            )
        if not self.learner.keeps_sums:
            return (
                f"The model cannot take back {which}: solver={self.parameters.solver!r} learns by gradient steps and keeps no "
                "sums. Use a copy of the file from before the lesson, or make the model with solver='exact'."
            )
        why = "this model keeps no sums of lessons"
        if last:
            why = f"the model keeps those of the last {last}, until it forgets something else or noise is added"
        return (
            f"The sums of {which} are not there: {why}. Forget the lesson with its data: clf.forget(X, y), or "
            "`cldnet forget MODEL DATA`. A new model keeps the sums of its last N lessons with keep_lessons=N "
            "(--keep-lessons N), at 4 · features² bytes of memory each."
        )

    def rename_class(self, old: Any, new: Any) -> Model:
        """Give a class another label, wherever the model has it."""
        traced = self.merged_map_labels
        self.labels.rename(old, new)
        old, new = as_labels([old, new]).tolist()
        traced = frozenset(new if label == old else label for label in traced)
        return replace(self, merged_map_labels=traced)._relabelled([old], new)

    def _relabelled(self, labels: Sequence[Any], into: Any) -> Model:
        """Give what is known of some labels beside the sums to another one."""
        moved = dict.fromkeys(labels, into)
        return replace(
            self,
            receipts=None if self.receipts is None else self.receipts.joined(labels, into),
            kept=tuple(one.relabelled(moved) for one in self.kept),
        )._with_history(self.history.relabelled(moved))

    def _with_history(self, history: History) -> Model:
        """Set the history. The sums of a lesson that it has no room for any more are dropped: nothing could name them."""
        numbers = {record.number for record in history.records}
        return replace(self, history=history, kept=tuple(one for one in self.kept if one.number in numbers))

    def join_classes(self, labels: Sequence[Any], into: Any) -> Model:
        """Move the samples of some classes to another one; if the map was fitted on some, it was on that one's."""
        (into,) = as_labels([into]).tolist()
        traced = {into} if self.map_labels.intersection(labels) else set()
        rows = self.labels.known_rows(labels).tolist()
        if into not in self.labels:  # it takes the place of the first, so that there is room
            first, *labels = labels
            return self.rename_class(first, into)._joined(labels, into, rows[1:], traced)
        self.labels.learn([into])
        return self._joined(labels, into, rows, traced)

    def _joined(self, labels: Sequence[Any], into: Any, rows: Sequence[int], traced: Set[Any]) -> Model:
        (row,) = self.labels.known_rows([into]).tolist()
        self.exact.join(rows, row)
        counts = self.labels.counts
        for label in labels:
            self.labels.add_counts({into: counts[label]})
        joined = replace(self._relabelled(labels, into), merged_map_labels=self.merged_map_labels | traced)
        return joined._without(labels)

    def add_noise(self, labels: Iterable[Any], deviation: float, source: torch.Generator) -> Model:
        """Move all samples of each class by one random vector of that standard deviation."""
        for row in self.labels.known_rows(list(labels)).tolist():
            noise = torch.randn(self.exact.class_width, generator=source, dtype=torch.float64) * deviation
            self.exact.move(row, noise.to(self.device))
        self.check_finite()
        return replace(self, kept=(), bounded=False)

    def merge(self, other: Statistics, allow_duplicates: bool = False) -> Model:
        """Add sums that were made over the same map, or say why they cannot be added."""
        self.statistics.check_addable(other, allow_duplicates)
        classes = torch.from_numpy(self.labels.learn(other.labels.by_row)).to(self.device)
        grows = self._make_room()
        self.exact.merge_sums({name: tensor.to(self.device) for name, tensor in other.tensors.items()}, classes)
        self.labels.take_over(other.labels)
        counts = {label: n for label, n in other.labels.counts.items() if n}
        history = self.history.merged(other.history, counts)
        kept = self.kept
        if self.parameters.keep_lessons and [one.manifest is None for one in other.history.records] == [False]:
            kept = (*kept, KeptSums.of(history.records[-1].number, counts, other))[-self.parameters.keep_lessons :]
        work = replace(
            self,
            kept=kept,
            inputs=merged_inputs(self.inputs, other.inputs),
            merged_map_labels=self.merged_map_labels | other.fitted_on,
            receipts=None if self.receipts is None else self.receipts.merged(other.receipts),
            lessons=self.lessons.merged(other.lessons),
            bounded=self.bounded and other.bounded,
        )
        return work._with_history(history).with_size(asked=grows)

    # The methods below change nothing.

    @property
    def statistics(self) -> Statistics:
        """The model's sums; the large ones share its memory, so copy them before you change them."""
        table = LabelTable(self.parameters.limit)
        table.learn(self.labels.by_row)
        table.take_over(self.labels)
        sums, live = self.exact.sums(), torch.from_numpy(np.sort(self.labels.columns)).to(self.device)
        sums |= {name: sums[name][live] for name in ("class_sums", "class_weights")}
        tensors = {name: tensor.detach().cpu() for name, tensor in sums.items()}
        known = self.map_labels, self.lessons, self.receipts, self.history, self.bounded
        return Statistics(self.map_id, self.parameters.gram, self.inputs, table, tensors, *known)

    @property
    def exact(self) -> Exact:
        """The learner, if it is the exact solver's: others keep no sums."""
        if not self.learner.keeps_sums:
            raise ValueError(
                f"solver={self.parameters.solver!r} learns by gradient steps and keeps no sums, so it cannot forget, merge or "
                "detect unknown classes: make the model with solver='exact'."
            )
        return cast("Exact", self.learner)

    @property
    def map_id(self) -> str:
        """Digest of everything between inputs and features: models can be merged if and only if it is the same."""
        return self.exact.map_id

    @property
    def fits_vectors(self) -> bool:
        """Whether this is the exact solver over vectors, with a map of the library's own that it fits itself."""
        backbone = self.parameters.backbone
        own = isinstance(backbone, str) or (is_described(backbone) and not getattr(backbone, "fitted", True))
        return self.learner.keeps_sums and len(self.inputs.shape) == 1 and own and self.exact.features.fits_data

    @property
    def fixed_parts(self) -> list[nn.Module]:
        """What no call changes any more, so that copies can share it: a fitted map of the library's own."""
        features = getattr(self.learner, "features", None)
        return [features] if features is not None and is_described(features) and features.fitted else []

    @property
    def map_labels(self) -> frozenset[Any]:
        """Labels of the samples that the map was fitted on, here or in a model that was merged."""
        first = int(self.exact.first_classes)
        return self.merged_map_labels | {*self.labels.to_json()["labels"][:first]}

    @cached_property
    def largest_cosine(self) -> float:
        """Largest |cosine| between two class vectors; 0 for the exact solver, whose are orthonormal."""
        vectors = self.learner.class_vectors
        return 0.0 if vectors is None else largest_cosine(vectors)

    def scores(self, x: Tensor) -> NDArray[np.float64]:
        """Scores of inputs, one column per label, in the labels' sorted order."""
        logits = predict_logits(self.learner, x.to(self.device))
        scores: NDArray[np.float64] = logits[:, torch.from_numpy(self.labels.columns)].double().cpu().numpy()
        if not np.isfinite(scores).all():
            raise ValueError(_NO_SCORES)
        return scores

    def scores_and_known(self, x: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Scores of inputs, and `known_probability` of each (exact solver only)."""
        calibration, columns = self.calibration, torch.from_numpy(self.labels.columns)
        vectors = torch.cat([self.exact.vectors(part) for part in portions(x.to(self.device))])
        scores = self.exact.decide(vectors)[:, columns].double().cpu().numpy()
        if not np.isfinite(scores).all():
            raise ValueError(_NO_SCORES)
        return scores, known_probability(vectors[:, columns].double().cpu(), calibration).numpy()

    @property
    def calibration(self) -> Calibration:
        """How scores of new samples are distributed, from the sums."""
        return self.exact.calibration(torch.from_numpy(self.labels.columns).to(self.device))

    @property
    def temperature(self) -> float:
        """Divides the scores before the softmax; the exact solver's follows from its sums."""
        return self.calibration.temperature if self.learner.keeps_sums else 1.0

    def probabilities(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities of scores: a softmax at the model's temperature."""
        scores = scores / self.temperature
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        probabilities: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
        return probabilities

    @property
    def footprint(self) -> Footprint:
        """Bytes by kind of everything that is kept."""
        labels = self.labels.to_json()["labels"]
        kept = footprint(self.learner, labels=len(str(labels).encode()))
        more = {"lesson ids": self.lessons.to_tensor().numel()} if self.learner.keeps_sums else {}
        more |= {} if self.receipts is None else {"receipts": self.receipts.to_tensor(labels)[0].numel()}
        more |= {"history": HISTORY_BYTES}
        more |= {"kept lessons": sum(one.bytes for one in self.kept)} if self.kept else {}
        return replace(kept, bytes=kept.bytes | more)

    @property
    def device(self) -> torch.device:
        """Where the learner computes."""
        return self.learner.counters.device

    def _task(self, samples: Samples, y: NDArray[np.int64]) -> TaskData:
        weight = None if samples.weight is None else torch.from_numpy(samples.weight).to(self.device)
        return TaskData(samples.x.to(self.device), torch.from_numpy(y).to(self.device), weight)


def _finite(tensor: Tensor) -> bool:
    """Whether all numbers are finite, and no sum of theirs overflows."""
    return bool(torch.isfinite(tensor.sum()))


def save_model(model: Model, path: str | os.PathLike[str], parameters: Mapping[str, Any]) -> None:
    """Write a model to one file, with the parameters of its classifier, if it can be loaded from there again."""
    learner, backbone, mark = model.learner, model.parameters.backbone, None
    built = {field.name: getattr(model.parameters, field.name) for field in fields(ModelParameters)}
    parameters = {**parameters, **built, "random_state": model.seed}
    if isinstance(backbone, Described) and is_described(backbone):
        assert isinstance(learner.backbone, Described)
        parameters["backbone"] = learner.backbone.describe()  # with what fitting has chosen
    elif isinstance(backbone, nn.Module):
        assert learner.backbone is not None
        mark = Fingerprint.of(learner.backbone, model.inputs.shape).to_json()
        del parameters["backbone"]
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in parameters.items()}
    tensors, left_out = without_encoders(learner, learner.state_dict())
    manifest = {
        "kind": "model",
        "version": __version__,
        "parameters": plain,
        "labels": model.labels.to_json(),
        "stream": {"tasks": learner.tasks, "sizes": model.sizes.to_json(), "session": model.session},
        "inputs": model.inputs.to_json(),
        "fingerprint": mark,
        "borrowed": sorted(model.merged_map_labels),
        "fitted_map": isinstance(backbone, FeatureMap) and bool(backbone.fitted),
        "map": None,
        "integers": [],
        **left_out,
        **write_bounded(model.bounded),
        "kept": [],
    }
    tensors["history"] = write_history(model.history)
    if learner.keeps_sums:
        more, described = write_lessons(model.lessons, model.receipts, model.labels)
        kept, manifest["kept"] = write_kept(model.kept)
        tensors, manifest = tensors | more | kept, manifest | described
        if isinstance(backbone, str):
            manifest["map"] = model.exact.features.describe()
        model.exact.settle()  # so that this model answers as the one that is loaded
        tensors |= {f"{_SOLUTION}{name}": tensor for name, tensor in model.exact.solution_state().items()}
    with explain_memory_error(f"to write {os.fspath(path)!r}. The previous file, if any, is unchanged"):
        tensors, manifest["integers"] = narrowed(tensors)
    store.write(path, tensors, manifest, partial(_check_loadable, learner))


def _check_loadable(learner: Learner, tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> None:
    """Validate what is about to be written as `load` will, without building the model."""
    module = learner.backbone if manifest["fingerprint"] is not None else None
    saved = SavedModel.read(tensors, manifest, module)
    parameters = saved.parameters
    built = ModelParameters(**{field.name: parameters[field.name] for field in fields(ModelParameters)})
    built.options(TrainingParameters(**{field.name: parameters[field.name] for field in fields(TrainingParameters)}))
    check_state(saved.tensors, learner, saved.fields["labels"])
    saved.check_learned(learner)


@dataclass(frozen=True)
class SavedModel:
    """The content of a model's file, each part validated; the model itself is not built yet."""

    #: Of the classifier. A backbone that the file describes is on the meta device.
    parameters: dict[str, Any]
    #: Of the backbone, or of the map that was chosen for a backbone that is only named.
    description: Mapping[str, Any] | None
    tensors: dict[str, Tensor]
    solution: dict[str, Tensor]
    mark: Fingerprint | None
    inputs: Inputs
    tasks: int | None
    fitted_map: bool
    #: The fields of `Model` that are neither its parameters nor its learner.
    fields: dict[str, Any]

    @classmethod
    def read(cls, tensors: Mapping[str, Tensor], manifest: Mapping[str, Any], module: nn.Module | None) -> SavedModel:
        """Validate a file, for the module that the user gave."""
        if manifest["kind"] != "model":
            raise ValueError(f"it is a file of another kind, {manifest['kind']!r:.80}")
        parameters = dict(manifest["parameters"])
        _check_saved_parameters(parameters)
        parameters["n_threads"] = bearable_threads(parameters.get("n_threads"))
        mark = None if manifest["fingerprint"] is None else Fingerprint.from_json(manifest["fingerprint"])
        inputs, labels = Inputs.from_json(manifest["inputs"]), LabelTable.from_json(manifest["labels"])
        if mark is not None and mark.input_shape != inputs.shape:
            raise ValueError("its module was tried on inputs of another shape")
        stream = manifest["stream"]
        session = stream.get("session")  # older files have none
        if session is not None and not isinstance(session, str):
            raise ValueError(f"{session!r:.80} is not a session's digest")
        lessons, receipts, state = read_lessons(widened(tensors, manifest["integers"]), manifest, labels)
        state = with_encoders(state, manifest)
        history = read_history(state, labels)
        if (receipts is not None) != parameters["receipts"]:
            raise ValueError("it has receipts and says that it keeps none, or the other way round")
        solution = {name.removeprefix(_SOLUTION): state.pop(name) for name in [*state] if name.startswith(_SOLUTION)}
        check_values(solution)
        kept, state = read_kept(state, manifest["kept"], labels, history, parameters["gram"])
        if len(kept) > parameters["keep_lessons"]:
            raise ValueError("it keeps the sums of more lessons than it says")
        backbone = parameters.get("backbone", "auto")
        named = isinstance(backbone, str) and module is None and manifest["map"] is not None
        description = backbone if isinstance(backbone, Mapping) and module is None else None
        _check_module(module, mark)
        own = str(backbone) if description is None else empty_backbone(description, state)
        parameters["backbone"] = own if module is None else module
        description = manifest["map"] if named else description
        known = {
            "labels": labels,
            "merged_map_labels": read_labels(manifest["borrowed"], labels),
            "sizes": Sizes.from_json(stream["sizes"]),
            "session": session,
            "lessons": lessons,
            "receipts": receipts,
            "history": history,
            "kept": kept,
            "bounded": read_bounded(manifest),
        }
        fitted = manifest["fitted_map"]
        return cls(parameters, description, state, solution, mark, inputs, stream["tasks"], fitted, known)

    def build(self, parameters: ModelParameters, options: Mapping[str, Any], to_predict: bool = False) -> Model:
        """Build the model, after its shapes were compared with a learner that takes no memory.

        A model ``to_predict`` has no backbone beside that of its learner, which a later fit would begin with.
        """
        seed, classes = self.parameters["random_state"], len(self.fields["labels"])
        setting = parameters.setting(self.inputs.shape, seed, classes)
        described = self.description if isinstance(parameters.backbone, str) else None
        backbone = parameters.backbone if described is None else empty_backbone(described, self.tensors)
        empty = empty_learner(SOLVERS[parameters.solver], backbone, setting, options)
        check_shapes(self.tensors, empty)
        check_state(self.tensors, empty, self.fields["labels"])
        if takes_text(empty.backbone or "none") != self.inputs.text:
            raise ValueError("its backbone takes sentences and its inputs are numbers, or the other way round")
        if self.description is not None and described is None and not to_predict:
            parameters = replace(parameters, backbone=build_described(self.description))
        if isinstance(backbone, FeatureMap) and self.description is not None and is_all_state(empty):
            if backbone.input_shape != self.inputs.shape:
                raise ValueError(f"its map takes inputs of shape {backbone.input_shape}, its model {self.inputs.shape}")
            model = Model(empty, LabelTable(parameters.limit), parameters, seed, self.inputs)
            empty.take_state(self.tensors)
        else:
            features = None if described is None else cast("FeatureMap", build_described(described))
            model = Model.build(parameters, options, seed=seed, inputs=self.inputs, features=features, classes=classes)
            check_shapes(self.tensors, model.learner)
            _check_tied(self.tensors, model.learner.state_dict())
            if any(tensor.is_meta for tensor in self.tensors.values()):
                model.exact.second = cast("Exact", empty).second
            model.learner.load_state(self.tensors)
        model.learner.eval()
        self.check_learned(model.learner)
        if self.solution:
            model.exact.load_solution(self.solution)
        given = parameters.backbone
        if self.description is not None and isinstance(given, FeatureMap) and self.fitted_map and not to_predict:
            given.load_state_dict(model.exact.features.state_dict())
        return replace(model, **self.fields)

    def check_learned(self, learner: Learner) -> None:
        """Refuse a learner with another number of tasks, or another output of its module, than the file says."""
        if self.tasks not in (None, learner.tasks):  # older files do not say
            raise ValueError(f"it says that {self.tasks!r:.80} tasks were learned, and {learner.tasks} were counted")
        if self.mark is not None and learner.backbone is not None:
            self.mark.check_output(learner.backbone)


def load_model(
    path: str | os.PathLike[str], module: nn.Module | None = None, *, to_predict: bool = False
) -> tuple[Model, dict[str, Any]]:
    """Load a model from its file, with all parameters of its classifier; ``module`` is the user's own backbone, if any.

    A model ``to_predict`` is loaded faster: it only has what predictions need, and cannot learn or be saved.
    """
    tensors, manifest = store.read(path, _not_to_predict) if to_predict else store.read(path)
    with describe_error(path, "model"):
        saved = SavedModel.read(tensors, manifest, module)
        built, trained = (
            {field.name: saved.parameters[field.name] for field in fields(kind) if field.name in saved.parameters}
            for kind in (ModelParameters, TrainingParameters)
        )
        unknown = sorted({*saved.parameters} - {*built, *trained, "device", "random_state"})
        if unknown:
            raise ValueError(f"no classifier has a parameter {unknown[0]!r:.80}")
        parameters = ModelParameters(**built)
        model = saved.build(parameters, parameters.options(TrainingParameters(**trained)), to_predict)
    return model, {**saved.parameters, "backbone": model.parameters.backbone, "input_shape": parameters.input_shape}


def _not_to_predict(names: Set[str]) -> Set[str]:
    """Tensors that predictions do not need: with a solution, the sums of products that it was solved from."""
    solved = any(name.startswith(_SOLUTION) for name in names)
    return {name for name in names if name.startswith("kept.") or (solved and name.startswith("second."))}


def _check_saved_parameters(parameters: Mapping[str, Any]) -> None:
    """Refuse invalid parameters that are not validated when a classifier is created."""
    seed, threads, device = parameters["random_state"], parameters.get("n_threads"), parameters.get("device", "auto")
    try:  # another machine may have devices that this one lacks
        known = isinstance(device, str) and (device == "auto" or torch.device(device).type != "meta")
    except RuntimeError:
        known = False
    valid = {
        "random_state": type(seed) is int and 0 <= seed < 2**32,
        "n_threads": threads is None or (type(threads) is int and 1 <= threads <= _MAX_SAVED_THREADS),
        "device": known,
    }
    for name, is_valid in valid.items():
        if not is_valid:
            raise ValueError(f"{name}={parameters.get(name)!r:.80} is not valid")


def _check_module(module: nn.Module | None, mark: Fingerprint | None) -> None:
    """Refuse a module of the user's where the file needs none, and the other way round."""
    own = module is not None and not is_described(module)
    if mark is None and own:
        raise WrongModule("This model has a backbone of the library's own: load it without backbone.")
    if mark is not None:
        if module is None or not own:
            raise WrongModule(
                "This model was made over a module of your own: load(path, backbone=module) needs the same module."
            )
        mark.check_names(module)


def _check_tied(tensors: Mapping[str, Tensor], made: Mapping[str, Tensor]) -> None:
    """Refuse different values for one tensor with two names, as in a module with tied weights."""
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in made.items():
        place = tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
        other = first.setdefault(place, name)
        if other != name and tensor.numel() and not torch.equal(tensors[other], tensors[name]):
            raise ValueError(f"{other!r} and {name!r} are one tensor in the module, and differ in the file")
