"""A learner with its labels: what a classifier holds, swaps in whole, saves and loads."""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import cldnet.store as store
from cldnet.data.rows import Inputs, Rows
from cldnet.device import resolve_dtype
from cldnet.fit import Progress, TaskReport, fit_task, portions, predict_logits
from cldnet.footprint import Footprint, Sizes, footprint
from cldnet.labels import LabelTable
from cldnet.lessons import DIGEST_BYTES, Lesson, Lessons, Receipts, merged_receipts, row_digests
from cldnet.math.basis import largest_cosine
from cldnet.math.calibration import Calibration, calibrate, known_probability
from cldnet.methods import build_learner
from cldnet.methods.cldnet import CLDNet
from cldnet.methods.exact import Exact
from cldnet.methods.learner import Learner, Setting, TaskData
from cldnet.methods.parts.unlearning import not_learned
from cldnet.midway import MidwayFile
from cldnet.nets import Described, is_described
from cldnet.statistics import Statistics, joined
from cldnet.structure import SOLVERS, Structure, check_room

__all__ = ["Model"]

_DIVERGED = (
    "Learning diverged: the numbers are no numbers any more. Lower lr, raise alpha if it is tiny, or look for enormous values "
    "in X."
)
_TOO_LARGE = (
    "The sums would be too large for numbers: look for enormous weights, values or noise. The model is as it was."
)
_NO_SCORES = (
    "Scores are no numbers for some rows: look for enormous values in X, or load the last good copy of the model."
)
#: Rows of a task that a net is tried on when it has learned them.
_SHOWN = 64
_log = logging.getLogger("cldnet")


@dataclass(frozen=True)
class Model:
    """A learner, its labels, and what is known of the inputs that it was begun with.

    ``borrowed`` has the labels of merged or joined classes that the map was fitted on, which the learner itself cannot know;
    ``sizes`` how many bytes there were after each task; ``session`` the digest of the last session that had a checkpoint;
    ``lessons`` the ids of what was learned last; ``receipts`` a digest of each row, if the model was asked to keep them.
    """

    learner: Learner
    labels: LabelTable
    structure: Structure
    seed: int
    inputs: Inputs
    borrowed: frozenset[Any] = frozenset()
    sizes: Sizes = Sizes()
    session: str | None = None
    lessons: Lessons = Lessons()
    receipts: Receipts | None = None

    @classmethod
    def build(cls, structure: Structure, options: Mapping[str, Any], *, seed: int, inputs: Inputs) -> Model:
        """Make a model that has learned nothing yet, over a copy of the user's module if there is one."""
        backbone, shape = structure.backbone, inputs.shape
        if isinstance(backbone, nn.Module):
            backbone = copy.deepcopy(backbone)
        # The exact solver's sums are float64 whatever is asked for; so are its scores.
        dtype = torch.float64 if structure.solver == "exact" else resolve_dtype(structure.dtype)
        if isinstance(backbone, Described) and is_described(backbone) and backbone.input_shape != shape:
            raise ValueError(f"The backbone takes inputs of shape {backbone.input_shape}, and X has {shape}.")
        check_room(structure.capacity, structure.class_bytes)
        try:
            learner = build_learner(
                SOLVERS[structure.solver], Setting(shape, structure.capacity, seed, dtype), options, backbone
            )
        except RuntimeError as error:  # out of the user's module, or out of memory
            if "allocate" in str(error):
                raise ValueError(f"There is no memory for capacity={structure.capacity}: ask for less.") from error
            raise ValueError(f"The backbone does not take inputs of shape {shape}: {error}") from error
        _check_state(learner)
        receipts = Receipts.new() if structure.receipts else None
        return cls(learner, LabelTable(structure.capacity), structure, seed, inputs, receipts=receipts)

    def copy(self, options: Mapping[str, Any]) -> Model:
        """Copy what learns, with its method's options of now; what the model was built from stays the same object."""
        twin = replace(self, learner=copy.deepcopy(self.learner), labels=copy.deepcopy(self.labels))
        twin.learner.configure(options)
        return twin

    def learn(
        self,
        rows: Rows,
        *,
        epochs: int,
        batch_size: int,
        on_step: Callable[[Progress], None] | None = None,
        checkpoint: MidwayFile | None = None,
    ) -> tuple[Model, TaskReport]:
        """Learn rows as one task. Whoever needs the model as it was has made a copy."""
        first = not len(self.labels)
        task, midway, call = self._task(rows, self.labels.learn(rows.y)), None, self.session
        budget: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size}
        if checkpoint is not None:
            call = self._call(task, budget, first)
            midway = checkpoint.begun(call, self.seed, len(task), finished=self.session)
        try:
            report = fit_task(self.learner, task, **budget, on_step=on_step, midway=midway, on_midway=checkpoint)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]  # torch does not list it
            raise ValueError(_DIVERGED) from error
        self.check_finite(_DIVERGED)
        if not self.learner.traits.one_pass:
            self._check_shown(task.x[:_SHOWN], task.y[:_SHOWN])
        self.labels.tally(rows.y, rows.weight)
        return replace(self, session=call).noted(), report

    def noting(self, rows: Rows, lesson: Lesson) -> Model:
        """Note that rows were learned in a lesson. Only the exact solver merges and forgets, and needs to know."""
        if not isinstance(self.learner, Exact):
            return self
        digests = row_digests(rows)
        lesson.add(rows, digests)
        receipts = None if self.receipts is None else self.receipts.learned(rows, digests)
        return replace(self, lessons=lesson.learned, receipts=receipts)

    def _call(self, task: TaskData, budget: Mapping[str, Any], first: bool) -> str:
        """Digest of all that a session's outcome depends on: who opens it again with something else learns that in time.

        The first weights of a net are not among it, since a checkpoint has the later ones: a net may be made afresh.
        """
        data = {"x": task.x, "y": task.y} | ({} if task.weight is None else {"weight": task.weight})
        said, state = {"config": repr(self.learner.config), **budget}, self.learner.state_dict()
        if first and not self.learner.traits.one_pass:
            said |= {"seed": self.seed, "shapes": {name: [*tensor.shape] for name, tensor in state.items()}}
            return store.digest(said, data)
        return store.digest(said, {**state, **data})

    def check_finite(self, reason: str = _TOO_LARGE) -> None:
        """Refuse a model with numbers that are none; before it takes another one's place."""
        kept = (tensor for tensor in self.learner.state_dict().values() if tensor.is_floating_point())
        if not all(map(_finite, kept)):
            raise ValueError(reason)

    def _check_shown(self, x: Tensor, y: Tensor) -> None:
        """Try a net on rows that it has just learned: weights may be finite and too large to compute with, or know nothing."""
        scores = self.learner.logits(x)
        if not _finite(scores):
            raise ValueError(_DIVERGED)
        chance, right = 1 / len(y.unique()), float((scores.argmax(1) == y).double().mean())
        if len(y) >= 16 and chance < 1 and right - chance <= 0.2 * (1 - chance):
            _log.warning(
                "The model knows %.0f %% of the rows that it has just learned, hardly more than by chance: lr or alpha may be "
                "far too large or too small.",
                100 * right,
            )

    def noted(self, asked: bool = False) -> Model:
        """Note how large the model is now, after a task, or after the user asked for another size."""
        return replace(self, sizes=self.sizes.noted(self.learner.tasks, footprint(self.learner).bytes, asked))

    def extend(self, capacity: int) -> Model:
        """Make room for more classes. Whoever needs the model as it was has made a copy."""
        check_room(capacity, self.learner.class_width * torch.float64.itemsize)
        self.learner.extend(capacity)
        self.labels.capacity = capacity
        return replace(self, structure=replace(self.structure, capacity=capacity)).noted(asked=True)

    @cached_property
    def largest_cosine(self) -> float:
        """Largest |cosine| between two class vectors. Those of the exact solver are orthonormal by construction."""
        return largest_cosine(self.learner.basis) if isinstance(self.learner, CLDNet) else 0.0

    @property
    def gamma(self) -> float:
        """Bound of Eq. 3 that the class vectors were made for."""
        return self.learner.config.gamma if isinstance(self.learner, CLDNet) else 0.0

    def forget(self, rows: Rows, lesson: Lesson, allow_duplicates: bool = False) -> Model:
        """Subtract rows. A class without any weight left leaves the labels; its row stays reserved."""
        numbers, digests = self.labels.known_rows(rows.y), row_digests(rows)
        lesson.add(rows, digests)
        if self.receipts is None and not allow_duplicates:
            lesson.check_once(rows, digests)
        receipts = None if self.receipts is None else self.receipts.forgotten(rows, digests)
        self._check_weights(rows, numbers)
        # Receipts are proof: how likely the rows are need not be asked. Files of the first versions did not count examples.
        examples = sum(count or 0 for count in self.labels.counts.values()) if receipts is None else 0
        self.exact.forget(self._task(rows, numbers), self.labels.to_json()["labels"], examples)
        self.labels.tally(rows.y, rows.weight, sign=-1)
        weights = self.exact.class_weights.cpu()
        for label, row in dict(zip(rows.y.tolist(), numbers.tolist(), strict=True)).items():
            if weights[row] == 0:
                self.labels.retire(label)
        return replace(self, receipts=receipts, lessons=lesson.forgotten)

    def _check_weights(self, rows: Rows, numbers: NDArray[np.int64]) -> None:
        """Refuse weights other than 1 for rows of classes that were learned without weights: they would leave fractions.

        Those are the classes with as much weight as examples and with sums of whole numbers.
        """
        if rows.weight is None:
            return
        others = (rows.weight != 1.0) & (rows.weight > 0)
        for label, row in dict(zip(rows.y[others].tolist(), numbers[others].tolist(), strict=True)).items():
            sums, weight = self.exact.class_sums[row], float(self.exact.class_weights[row])
            if self.labels.counts[label] == weight and bool((sums == sums.round()).all()):
                raise not_learned(
                    f"class {label!r} was learned without weights, and others than 1 would leave fractions"
                )

    def forget_class(self, label: Any) -> Model:
        """Drop a class's sum, its label and its receipts."""
        (row,) = self.labels.known_rows([label])
        self.exact.forget_class(int(row))
        self.labels.retire(label)
        return replace(self, receipts=None if self.receipts is None else self.receipts.joined([label], None))

    def join_classes(self, labels: Sequence[Any], into: Any) -> Model:
        """Make the examples of some classes those of another one; if the map was fitted on some, it was on that one's."""
        traced = self.borrowed | ({into} if self.fitted_on.intersection(labels) else set())
        (row,) = self.labels.learn([into])
        self.exact.join(self.labels.known_rows(labels).tolist(), int(row))
        counts = self.labels.counts
        for label in labels:
            self.labels.retire(label)
            self.labels.add_counts({into: counts[label]})
        receipts = None if self.receipts is None else self.receipts.joined(labels, into)
        return replace(self, borrowed=traced, receipts=receipts)

    def add_noise(self, labels: Iterable[Any], deviation: float, source: torch.Generator) -> None:
        """Move all examples of each class by one random vector of that deviation."""
        for row in self.labels.known_rows(list(labels)).tolist():
            noise = torch.randn(self.exact.class_width, generator=source, dtype=torch.float64) * deviation
            self.exact.move(row, noise.to(self.device))

    def absorb(self, other: Statistics, allow_duplicates: bool = False) -> Model:
        """Add sums that were made over the same map, or say why they do not add up."""
        self.statistics.check_addable(other, allow_duplicates)
        rows = torch.from_numpy(self.labels.learn(other.labels.by_row)).to(self.device)
        self.exact.absorb({name: tensor.to(self.device) for name, tensor in other.tensors.items()}, rows)
        self.labels.take_over(other.labels)
        inputs = joined(self.inputs, other.inputs)
        receipts = merged_receipts(self.receipts, other.receipts)
        work = replace(self, inputs=inputs, borrowed=self.borrowed | other.fitted_on, receipts=receipts)
        return replace(work, lessons=self.lessons.merged(other.lessons)).noted()

    @property
    def statistics(self) -> Statistics:
        """The model's sums; the large ones share its memory, so whoever changes them has to make a copy."""
        table = LabelTable(self.structure.capacity)
        table.learn(self.labels.by_row)
        table.take_over(self.labels)
        sums, live = self.exact.sums(), torch.from_numpy(np.sort(self.labels.columns)).to(self.device)
        sums |= {name: sums[name][live] for name in ("class_sums", "class_weights")}
        tensors = {name: tensor.detach().cpu() for name, tensor in sums.items()}
        known = self.fitted_on, self.lessons, self.receipts
        return Statistics(self.map_id, self.structure.gram, self.inputs, table, tensors, *known)

    @property
    def exact(self) -> Exact:
        """The learner of the exact solver; another one keeps no sums."""
        if not isinstance(self.learner, Exact):
            raise ValueError(
                f"solver={self.structure.solver!r} learns by gradient steps and keeps no sums, so nothing can be taken out "
                "of it, added to it or judged as unknown: make the model with solver='exact'."
            )
        return self.learner

    @property
    def map_id(self) -> str:
        """Digest of everything between inputs and features: models add up if and only if it is the same."""
        identity = self.exact.features.map_id
        scale = self.exact.scale.state_dict()  # in front of a module of the user's own; maps do their own scaling
        if not scale:
            return identity
        digest = hashlib.sha256(identity.encode())
        for _, tensor in sorted(scale.items()):
            digest.update(tensor.detach().cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    @property
    def fitted_on(self) -> frozenset[Any]:
        """Labels that rows had which the map was fitted on, if it was fitted here or in a model that was merged."""
        first = int(self.exact.first_classes)
        return self.borrowed | {*self.labels.to_json()["labels"][:first]}

    def _task(self, rows: Rows, y: NDArray[np.int64]) -> TaskData:
        weight = None if rows.weight is None else torch.from_numpy(rows.weight).to(self.device)
        return TaskData(rows.x.to(self.device), torch.from_numpy(y).to(self.device), weight)

    def scores(self, x: Tensor) -> NDArray[np.float64]:
        """Scores of inputs, one column a label, in the labels' sorted order."""
        logits = predict_logits(self.learner, x.to(self.device))
        scores: NDArray[np.float64] = logits[:, torch.from_numpy(self.labels.columns)].double().cpu().numpy()
        if not np.isfinite(scores).all():
            raise ValueError(_NO_SCORES)
        return scores

    def known(self, x: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Scores of inputs, and the probability that a row of a known class looks as strange; of the exact solver alone."""
        calibration, columns = self.calibration, torch.from_numpy(self.labels.columns)
        vectors = torch.cat([self.exact.vectors(part) for part in portions(x.to(self.device))])
        scores = self.exact.decide(vectors)[:, columns].double().cpu().numpy()
        return scores, known_probability(vectors[:, columns].double().cpu(), calibration).numpy()

    @cached_property
    def calibration(self) -> Calibration:
        """What scores of new rows are going to be like, from the sums; a model that is in use does not change any more."""
        learner, live = self.exact, torch.from_numpy(self.labels.columns).to(self.device)
        choice = learner.choice._replace(solution=learner.choice.solution[:, live])
        known = calibrate(choice, learner.class_sums[live].T, learner.class_weights[live], float(learner.rows))
        return known._replace(distances=known.distances.cpu())

    def probabilities(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities that go with scores: a softmax, at the temperature that follows from the exact solver's sums."""
        if isinstance(self.learner, Exact):
            scores = scores / self.calibration.temperature
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        probabilities: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
        return probabilities

    @property
    def footprint(self) -> Footprint:
        """Bytes by kind of everything that is kept."""
        kept = footprint(self.learner, labels=len(str(self.labels.to_json()["labels"]).encode()))
        more = {"lesson ids": self.lessons.to_tensor().numel()} if isinstance(self.learner, Exact) else {}
        more |= {} if self.receipts is None else {"receipts": DIGEST_BYTES * len(self.receipts)}
        return replace(kept, bytes=kept.bytes | more)

    @property
    def device(self) -> torch.device:
        """Where the learner computes."""
        return self.learner.counters.device


def _check_state(learner: Learner) -> None:
    """Refuse a module with a state that is no tensor: it could not be saved."""
    strange = [name for name, value in learner.state_dict().items() if not isinstance(value, Tensor)]
    if strange:
        raise ValueError(
            f"The backbone has a state that is no tensor ({', '.join(strange[:3])}), and a model is saved as tensors: use "
            "a module without get_extra_state."
        )


def _finite(tensor: Tensor) -> bool:
    """Tell whether all numbers are finite, a part at a time: the sums may have a gigabyte, and a test makes copies."""
    return all(bool(torch.isfinite(part).all()) for part in tensor.flatten().split(1 << 20))
