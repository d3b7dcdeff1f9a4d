"""The contract of every method: begin a task, observe its batches, end it, and score inputs over the classes seen.

Classes are numbered 0, 1, 2, … in order of arrival; user labels, files and epochs belong to other packages. All that a
learner keeps between tasks is a parameter or a buffer, so `state_dict` is complete.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from cldnet.data.arrays import Batch as Batch
from cldnet.data.arrays import TaskData as TaskData
from cldnet.device import generator
from cldnet.methods.config import Range
from cldnet.methods.parts.ranks import ALONE, Ranks
from cldnet.nets.features import InputScale, NoScaling
from cldnet.nets.frozen import FrozenNet, count_weights

#: Numbers in a batch of inputs that are only scored.
_NUMBERS = 1 << 22


@dataclass(frozen=True)
class Traits:
    """What a method promises, and what it needs.

    Attributes
    ----------
    rehearsal_free : bool
        It keeps no training sample.
    constant_size : bool
        Its state has as many bytes after the last task as after the first.
    needs_task_id : bool
        It needs the task of a test input, so it has no class-IL result. See `NeedsTask`.
    one_pass : bool
        It sees every sample once and ignores the number of epochs.
    outside_data : bool
        It also learns from unlabelled inputs that are not part of the stream. See `TakesOutsideData`.
    """

    rehearsal_free: bool
    constant_size: bool
    needs_task_id: bool = False
    one_pass: bool = False
    outside_data: bool = False


@dataclass(frozen=True)
class Setting:
    """What a learner is made for: the shape of one input, the maximal number of classes, seed and precision.

    ``scaling`` holds mean and std of the inputs, one of each per channel (per feature for vectors). By default they come
    from the first task's training data. A feature map with its own scaling, as that of ``exact``, ignores it.
    """

    input_shape: tuple[int, ...]
    capacity: int
    seed: int
    dtype: torch.dtype = torch.float32
    scaling: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def extended(self, capacity: int) -> Setting:
        """Return the same setting with a larger capacity."""
        if capacity < self.capacity:
            raise ValueError(
                f"capacity={capacity} is below the present capacity of {self.capacity} classes, and a model cannot shrink: "
                f"give {self.capacity} or more."
            )
        return replace(self, capacity=capacity)


class Learner(nn.Module, ABC):
    """Base class of all methods; `cldnet.estimator.checks.check_learner` checks the contract.

    Parameters
    ----------
    setting : Setting
        What the learner is made for.

    Notes
    -----
    A method is made as ``Method(net, setting, config)``. It defines `observe` and `score`, and `start` and `finish` if
    something happens before the first or after the last batch of a task. Class attributes describe it; a method declares
    them in its own file, and one line in `cldnet.methods.METHODS` makes it known.
    """

    traits: ClassVar[Traits]
    #: What each part of the state is (weights, exemplars, …), by its first name in `state_dict`, for the footprint.
    kinds: ClassVar[Mapping[str, str]] = {}
    #: Whether the state is sums, which can be merged with others and from which samples can be subtracted.
    keeps_sums: ClassVar[bool] = False
    config_class: ClassVar[type[Any]]
    #: Fields of the configuration that are built into the state and cannot change later.
    fixed: ClassVar[tuple[str, ...]] = ()
    #: A backbone's name, "auto" for one that fits the inputs, "none" if the method has its own network.
    default_backbone: ClassVar[str] = "auto"
    #: Whether the method works on a fixed feature map instead of training its backbone.
    takes_maps: ClassVar[bool] = False
    #: Whether its batches can be split over several processes: whether `observe` asks ``ranks`` for what is the whole batch's.
    spreads: ClassVar[bool] = False
    #: The processes that learn each batch together.
    ranks: Ranks = ALONE
    #: Smallest batch size that makes sense.
    min_batch: ClassVar[int] = 1
    #: Attributes that exist during a task only; a checkpoint contains them, see `cldnet.methods.fit`.
    running: ClassVar[tuple[str, ...]] = ()
    #: Name in tables and figures, and one line for the list of methods.
    title: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    #: Fields of the configuration that `cldnet tune` searches, with their ranges.
    ranges: ClassVar[Mapping[str, Range]] = {}
    #: Increase it when the method learns something else than before: benchmarks then run it again.
    version: ClassVar[int] = 1

    config: Any

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.setting = setting
        scale = InputScale(setting.input_shape, setting.dtype)
        if setting.scaling is not None:
            scale.set(*setting.scaling)
        self.scale: InputScale | NoScaling = scale
        self.generator = generator(setting.seed)
        self.counters: Tensor = nn.Buffer(torch.zeros(2, dtype=torch.int64))

    @property
    def tasks(self) -> int:
        """Number of tasks learned."""
        return int(self.counters[0])

    @property
    def seen(self) -> int:
        """Number of classes seen."""
        return int(self.counters[1])

    @property
    def backbone(self) -> nn.Module | None:
        """The module that was handed to the method, if it uses one."""
        return None

    @property
    def class_width(self) -> int:
        """Numbers kept per class: the length of its vector, or of its weights in the head."""
        return 0

    @property
    def network_size(self) -> int:
        """Numbers of the network without those kept per class."""
        return count_weights(self)

    @property
    def base_size(self) -> int | None:
        """Numbers that the paper's Capacity is relative to; None for those in use after the first task."""
        return None

    @property
    def class_vectors(self) -> Tensor | None:
        """The fixed vectors that embeddings are compared with (Eq. 7); None if the method has none."""
        return None

    def bytes_by_kind(self) -> dict[str, int]:
        """Bytes of everything that is kept, by kind."""
        kinds = {"scale": "input scaling", "counters": "counters", "random": "random state", **self.kinds}
        counted: Counter[str] = Counter()
        for name, tensor in self.state_dict().items():
            part = name.split(".")[0]
            counted[kinds.get(part, part)] += tensor.numel() * tensor.element_size()
        return dict(counted)

    def configure(self, options: Mapping[str, Any]) -> None:
        """Change the configuration between tasks; the state stays as it is."""
        config = self.config_class(**options)
        for name in self.fixed:
            old, new = getattr(self.config, name), getattr(config, name)
            if new != old:
                raise ValueError(f"{name} cannot change from {old!r} to {new!r}: make a new model.")
        self.config = config

    def extend(self, capacity: int) -> None:
        """Raise the capacity between tasks. What was learned and all scores stay the same, bit for bit."""
        raise ValueError(
            f"{type(self).__name__} cannot raise its capacity of {self.setting.capacity} classes: make a new model with "
            f"capacity={capacity}."
        )

    def watched_state(self) -> Iterable[Tensor]:
        """Tensors that a task may have made infinite."""
        return self.state_dict().values()

    def keep_solution(self, before: Learner) -> None:
        """Take over what was solved by the learner that this one is a copy of, before samples are added."""

    def rehearse(self, task: TaskData) -> TaskData:
        """Return the samples to train on when ``task`` arrives: the task itself, unless a method keeps old samples."""
        return task

    def growth(self, task: TaskData) -> int | None:
        """Bytes by which the state will grow when ``task`` is learned; None if training decides, see `grown`."""
        return 0

    @property
    def grown(self) -> int:
        """Bytes that the last task added, counted from what it added, if `growth` cannot tell beforehand."""
        return 0

    def begin_task(self, task: TaskData) -> None:
        """Prepare for a task. The first one fixes the scaling of inputs, unless the setting did."""
        for part in self.modules():
            if isinstance(part, FrozenNet):
                part.load_published()
        if isinstance(self.scale, InputScale) and not self.scale.fitted:
            self.scale.fit(task.x, task.weight)
        self.counters[1] = max(self.seen, int(task.y.max()) + 1)
        self.train()
        self.start(task)

    def end_task(self, task: TaskData) -> None:
        """Consolidate what was learned. No sample of the task is kept unless the method's traits say so."""
        self.eval()
        self.finish(task)
        self.counters[0] += 1

    def start(self, task: TaskData) -> None:
        """Do what the method does before a task's first batch."""

    def finish(self, task: TaskData) -> None:
        """Do what the method does after a task's last batch."""

    @abstractmethod
    def observe(self, batch: Batch) -> Tensor:
        """Learn from one batch and return its loss (a detached scalar, left on the device)."""

    @abstractmethod
    def score(self, x: Tensor) -> Tensor:
        """Score scaled inputs for all classes, shape ``(n, at least seen)``; the largest score wins."""

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Score inputs over the classes seen, shape ``(n, seen)``. Nothing changes."""
        return self.score(self.scale(x))[:, : self.seen]

    @torch.no_grad()
    def vectors(self, x: Tensor) -> Tensor:
        """Representations of inputs ``(n, …)`` before the classifier, for plots. By default these are the scores."""
        return self.logits(x)

    def projector_sums(self) -> Mapping[str, Tensor]:
        """``A`` of the projectors ``(I + A)⁻¹`` by layer, shape ``(groups, width, width)``; empty without projectors."""
        return {}

    def resize_for(self, state: Mapping[str, Tensor]) -> None:
        """Adapt tensors whose shapes change during learning to a state that is about to be loaded."""

    def upgraded(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert the state of an older version to today's form; others stay as they are."""
        return dict(state)

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state_dict` returned. Use a fresh learner: a wrong state may be loaded in part."""
        state = self.upgraded(state)
        self.resize_for(state)
        self.load_state_dict(state, strict=True)

    def take_state(self, state: Mapping[str, Tensor]) -> None:
        """Load what `state_dict` returned into a learner on the meta device, which takes over the tensors.

        They get the layout in memory that the learner's own have, on which the last bits of a convolution depend.
        """
        state, own = self.upgraded(state), self.state_dict()
        self.load_state_dict({name: _laid_out(tensor, own[name]) for name, tensor in state.items()}, assign=True)

    def __getstate__(self) -> dict[str, Any]:
        # torch leaks memory when it copies or unpickles a generator, and every `partial_fit` copies its learner.
        return {**self.__dict__, "generator": self.generator.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        source = state["generator"]  # pickles of older versions contain a generator
        rng_state = source.get_state() if isinstance(source, torch.Generator) else source
        state = {**state, "generator": torch.Generator().set_state(rng_state)}
        super().__setstate__(state)  # type: ignore[no-untyped-call]

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}random"] = self.generator.get_state()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        state = state_dict.pop(f"{prefix}random", None)
        if state is not None:
            self.generator.set_state(state.cpu())
        super()._load_from_state_dict(state_dict, prefix, *arguments)


def _laid_out(tensor: Tensor, pattern: Tensor) -> Tensor:
    """A tensor in the order in memory of another one of its shape: itself if it is in that order."""
    same = tensor.stride() == pattern.stride()
    return tensor if same else torch.empty_strided(tensor.shape, pattern.stride(), dtype=tensor.dtype).copy_(tensor)


@runtime_checkable
class Represents(Protocol):
    """A learner whose feature map does not change after the first task, so that mapped inputs can be cached."""

    def represent(self, x: Tensor) -> Tensor:
        """Map inputs ``(n, …)`` to features, one row per sample."""

    def score_represented(self, h: Tensor) -> Tensor:
        """Score features over the classes seen."""


@runtime_checkable
class NeedsTask(Protocol):
    """A learner with the trait ``needs_task_id``: it can only score inputs whose task is known."""

    def logits_in(self, x: Tensor, task: int) -> Tensor:
        """Score inputs of the task with this number over the classes seen."""


@runtime_checkable
class TakesOutsideData(Protocol):
    """A learner with the trait ``outside_data``: it also learns from unlabelled inputs."""

    def take_outside(self, x: Tensor) -> None:
        """Take unlabelled inputs ``(n, …)``. They are not part of the state: pass them again after loading."""


def predict_logits(learner: Learner, x: Tensor, batch_size: int | None = None, task: int | None = None) -> Tensor:
    """Score inputs over the classes seen, in batches. A learner that needs the task of the inputs gets its number."""
    parts = portions(x) if batch_size is None else x.split(batch_size)
    if task is not None and isinstance(learner, NeedsTask):
        return torch.cat([learner.logits_in(part, task) for part in parts])
    return torch.cat([learner.logits(part) for part in parts])


def portions(x: Tensor) -> tuple[Tensor, ...]:
    """Split inputs into batches for scoring: 1,024 samples, fewer if they are large, to bound the memory."""
    return tuple(x.split(max(1, min(1024, _NUMBERS // max(1, x[:1].numel())))))
