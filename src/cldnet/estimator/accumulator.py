"""Sums of samples that are added up in place: of the pieces of a streamed session, or of a shard of a larger data set."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from cldnet.data.arrays import Batch, Samples, Session, TaskData
from cldnet.data.labels import Inputs, LabelTable
from cldnet.data.sparse import WIDTH
from cldnet.estimator.history import History
from cldnet.estimator.lessons import Lesson, Lessons, Receipts, sample_digests
from cldnet.estimator.statistics import Statistics
from cldnet.methods.exact import Exact, ExactConfig
from cldnet.methods.learner import Setting
from cldnet.nets import FeatureMap

if TYPE_CHECKING:
    from cldnet.estimator.model import Model

#: Samples that a streamed session holds before it begins: the first decide on a new model's map.
_FIRST = 50
#: Classes that there is room for at first; the room doubles when it is used up.
_ROOM = 16


class Accumulator:
    """The sums of the exact solver over one feature map, without a model: samples are added in place.

    `Statistics.accumulator` makes one. Adding copies neither the sums nor the map, and solves nothing, so memory stays flat
    and pieces of a thousand samples are nearly as fast as large ones. All samples are one lesson.

    Examples
    --------
    >>> import torch
    >>> from cldnet import Statistics
    >>> from cldnet.nets import RandomReLU
    >>> features = RandomReLU((2,), features=16, seed=0)
    >>> features.fit(torch.tensor([[0.0, 0.0], [5.0, 5.0], [9.0, 0.0]]))
    >>> sums = Statistics.accumulator(features)
    >>> sums.add([[0.0, 0.1], [5.0, 5.1]], ["cat", "dog"]).add([[0.1, 0.0]], ["cat"]).statistics().rows
    3.0
    """

    def __init__(
        self,
        learner: Exact,
        labels: LabelTable,
        inputs: Inputs | None = None,
        *,
        room: Callable[[int], int] | None = None,
        lesson: Lesson | None = None,
        receipts: Receipts | None = None,
    ) -> None:
        self.learner, self.labels, self.inputs = learner, labels, inputs
        self.lesson = Lesson() if lesson is None else lesson
        self.receipts = receipts
        #: Number of samples added, by label; those of weight 0 do not count.
        self.counts: Counter[Any] = Counter()
        #: Whether no sample counts as more than one, which private sums need.
        self.bounded = True
        #: Whether memory was reserved for more classes.
        self.grew = False
        self._room = room or _doubled
        self._complete = True

    @classmethod
    def over(cls, features: FeatureMap, *, gram: str | int = "full", dtype: str = "float32") -> Accumulator:
        """Begin with empty sums over a fitted map, which is shared and not changed."""
        if not isinstance(features, FeatureMap) or not features.fitted:
            raise ValueError(
                f"{type(features).__name__} is not a fitted feature map: pass clf.feature_map_, cldnet.load_map(path), or a "
                "map of cldnet.nets after its fit(X)."
            )
        setting = Setting(tuple(features.input_shape), _ROOM, 0, torch.float64)
        learner = Exact(features, setting, ExactConfig(gram=gram, products=dtype))
        return cls(learner.eval(), LabelTable())

    def add(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Add samples, given as `CLDNetClassifier.partial_fit` takes them. If they are refused, nothing has changed."""
        shape = tuple(self.learner.setting.input_shape)
        folded, width = (None, shape[0]) if len(shape) == 1 else (shape, WIDTH)
        return self.add_samples(
            Samples.checked(X, y, sample_weight, folded, self.labels, inputs=self.inputs, width=width)
        )

    def add_samples(self, samples: Samples) -> Self:
        """Add samples that were checked against `labels`."""
        self.check_complete()
        inputs = samples.inputs if self.inputs is None else self.inputs
        inputs.check(samples.x)
        if samples.names is not None and inputs.names is not None and samples.names != inputs.names:
            raise ValueError(
                "The columns have other names than in the first piece: use the same names, in their order."
            )
        expected = tuple(self.learner.setting.input_shape)
        if tuple(samples.x.shape[1:]) != expected:
            raise ValueError(f"X has samples of shape {tuple(samples.x.shape[1:])}, and the map takes {expected}.")
        digests = sample_digests(samples)
        receipts = None if self.receipts is None else self.receipts.learned(samples, digests)
        self._complete = False  # until all of the following has happened
        self._sum(samples)
        self.bounded = self.bounded and samples.at_most_once
        self.labels.count_samples(samples.y, samples.weight)
        self.lesson.add(samples, digests)
        self.counts.update(samples.counts())
        self.receipts, self.inputs = receipts, inputs if inputs.names else replace(inputs, names=samples.names)
        self._complete = True
        return self

    def _sum(self, samples: Samples) -> None:
        device = self.learner.counters.device
        rows = torch.from_numpy(self.labels.learn(samples.y)).to(device)
        if len(self.labels) > self.learner.setting.capacity:
            self.learner.extend(self._room(len(self.labels)))
            self.grew = True
        weight = None if samples.weight is None else torch.from_numpy(samples.weight).to(device)
        task = TaskData(samples.x.to(device), rows, weight)
        self.learner.begin_task(task)
        self.learner.eval()
        self.learner.observe(Batch(task.x, task.y, task.weight, 0, 1, 0))

    def check_complete(self) -> None:
        """Refuse sums that an interrupt has left with a part of the samples of a call."""
        if not self._complete:
            raise RuntimeError(
                "An earlier call was interrupted while it added samples, so the sums are wrong: start again."
            )

    @property
    def classes(self) -> Any:
        """The labels, sorted."""
        return self.labels.classes

    @property
    def rows(self) -> float:
        """Number of samples in the sums; a weight counts as that many of them."""
        return float(self.learner.rows)

    def statistics(self, name: str | None = None) -> Statistics:
        """The sums so far, as those of one lesson, which may have a name. They are copied only if more samples are added."""
        self.check_complete()
        if self.inputs is None:
            raise ValueError("There are no sums yet: add samples first.")
        sums = self.learner.sums()
        second = copy.deepcopy(self.learner.second).state_dict()  # shared until samples are added
        tensors = {**{f"second.{key}": tensor for key, tensor in second.items()}, "rows": sums["rows"].clone()}
        tensors |= {key: sums[key].clone() for key in ("class_sums", "class_weights")}
        lesson = replace(copy.copy(self.lesson), name=name, apart=True)
        learned = lesson.learned(Lessons())
        return Statistics(
            self.learner.map_id,
            self.learner.config.gram,
            self.inputs,
            copy.deepcopy(self.labels),
            {key: tensor.detach().cpu() for key, tensor in tensors.items()},
            lessons=learned,
            history=lesson.noted(History(), "learned", self.counts),
            bounded=self.bounded,
        )


@dataclass
class OpenStream:
    """A model's copy that a streamed session adds to: the model as it was, its copy, the sums before, and the sums."""

    model: Model | None
    work: Model
    before: Mapping[str, Tensor] | None
    sums: Accumulator


class StreamedSession(Session):
    """A session whose pieces are summed as they come. Pieces wait until there are enough to fit a map on."""

    def __init__(self, table: LabelTable, begin: Callable[[Samples], OpenStream]) -> None:
        super().__init__(table)
        self._begin = begin
        self._open: OpenStream | None = None

    def add(self, samples: Samples) -> None:
        """Sum a piece, or hold it until there are enough samples to begin."""
        if self._open is not None:
            self._open.sums.add_samples(samples)
            return
        super().add(samples)
        if sum(len(piece.y) for piece in self.pieces) < _FIRST:
            return
        try:
            self.opened()
        except BaseException:
            self.pieces.pop()
            raise

    def opened(self) -> OpenStream | None:
        """What the pieces are added to, with all that have come; None if there was none."""
        if self._open is None and self.pieces:
            opened = self._begin(self.samples)
            opened.sums.add_samples(self.samples)
            self._open, self.pieces = opened, []
            self.table, self.inputs = opened.sums.labels, opened.sums.inputs
        return self._open


def _doubled(classes: int) -> int:
    """Room for at least so many classes, in powers of two."""
    return int(max(_ROOM, 1 << (classes - 1).bit_length()))
