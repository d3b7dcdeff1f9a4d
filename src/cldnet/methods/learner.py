"""What a learner is: it begins a task, observes batches, ends the task, and scores inputs over the classes seen.

Classes are rows 0, 1, 2, … in order of arrival; labels, files and epochs are other rooms' business. Everything that a
learner keeps between tasks is a parameter or a buffer, so `state_dict` is all of it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from cldnet.device import generator
from cldnet.methods.batch import Batch, TaskData
from cldnet.methods.ranges import Range
from cldnet.nets.frozen import FrozenNet, count_weights
from cldnet.nets.scale import AsTheyAre, InputScale

__all__ = ["Batch", "Learner", "Represents", "Setting", "TaskData", "Traits"]


@dataclass(frozen=True)
class Traits:
    """What a method promises, and what it needs.

    Attributes
    ----------
    rehearsal_free : bool
        No training example is kept.
    constant_size : bool
        The state has as many bytes after the last task as after the first.
    needs_task_id : bool
        It must be told the task of a test input, so it has no class-IL figure.
    one_pass : bool
        It sees every example once; epochs mean nothing to it.
    outside_data : bool
        It learns from unlabelled inputs of elsewhere besides, which `Learner.take_outside` hands to it.
    """

    rehearsal_free: bool
    constant_size: bool
    needs_task_id: bool = False
    one_pass: bool = False
    outside_data: bool = False


@dataclass(frozen=True)
class Setting:
    """What a learner is made for: the shape of one input, the room for classes, its seed and its precision.

    ``scaling`` has mean and spread of the inputs, in their own units, one of each a channel (a feature for vectors); without
    it they come from the first task's training data. A map that does its own scaling, as that of ``exact``, takes no notice.
    """

    input_shape: tuple[int, ...]
    capacity: int
    seed: int
    dtype: torch.dtype = torch.float32
    scaling: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    def extended(self, capacity: int) -> Setting:
        """Give the same setting with room for more classes.

        Examples
        --------
        >>> Setting((2,), capacity=4, seed=0).extended(6).capacity
        6
        """
        if capacity < self.capacity:
            raise ValueError(
                f"capacity={capacity} is less than the {self.capacity} classes that there is room for, and a model does not "
                f"shrink: give {self.capacity} or more."
            )
        return replace(self, capacity=capacity)


class Learner(nn.Module, ABC):
    """The contract that every method fulfils; `cldnet.checks.check_learner` tries all of it.

    Parameters
    ----------
    setting : Setting
        What the learner is made for.

    Notes
    -----
    A method is made as ``Method(net, setting, config)``. It defines `observe` and `score`, and `start` and `finish` where
    something happens at a task's ends. ``kinds`` names what the parts of the state are, for the footprint.
    """

    traits: ClassVar[Traits]
    kinds: ClassVar[Mapping[str, str]] = {}
    #: Name of a backbone, "auto" for the one that fits the inputs, "none" for a method that brings its own.
    default_backbone: ClassVar[str] = "auto"
    #: Whether the method works over a fixed feature map, instead of training its backbone.
    takes_maps: ClassVar[bool] = False
    #: Raised by whoever changes what the method learns, so that a bench runs it again.
    version: ClassVar[int] = 1
    #: Examples that a step should have at least.
    min_batch: ClassVar[int] = 1
    config_class: ClassVar[type[Any]]
    #: Which fields of the configuration are searched when settings are chosen, and where.
    ranges: ClassVar[Mapping[str, Range]] = {}
    #: Attributes that are there in the middle of a task only; see `cldnet.methods.running`.
    running: ClassVar[tuple[str, ...]] = ()
    #: Which fields of the configuration are built into the state, and cannot change once the learner is made.
    fixed: ClassVar[tuple[str, ...]] = ()

    counters: Tensor
    config: Any
    #: What `take_outside` was given.
    outside: Tensor | None

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        self.setting = setting
        self.outside = None
        scale = InputScale(setting.input_shape, setting.dtype)
        if setting.scaling is not None:
            scale.set(*setting.scaling)
        self.scale: InputScale | AsTheyAre = scale
        self.generator = generator(setting.seed)
        self.register_buffer("counters", torch.zeros(2, dtype=torch.int64))

    @property
    def tasks(self) -> int:
        """Tasks learned so far."""
        return int(self.counters[0])

    @property
    def seen(self) -> int:
        """Class rows seen so far."""
        return int(self.counters[1])

    @property
    def backbone(self) -> nn.Module | None:
        """The module that was handed to the method, if it uses one."""
        return None

    def configure(self, options: Mapping[str, Any]) -> None:
        """Change settings of the method between tasks; its state stays as it is."""
        config = self.config_class(**options)
        for name in self.fixed:
            then, now = getattr(self.config, name), getattr(config, name)
            if now != then:
                raise ValueError(f"{name}={now!r} cannot follow {name}={then!r}: make a new model.")
        self.config = config

    @property
    def class_width(self) -> int:
        """Numbers that stand for one class (its vector, or its weights in the head)."""
        return 0

    @property
    def network_size(self) -> int:
        """Numbers of the network without those that stand for classes."""
        return count_weights(self)

    def rehearse(self, task: TaskData) -> TaskData:
        """Return the examples to train on when ``task`` arrives: the task itself, unless a method keeps others."""
        return task

    def growth(self, task: TaskData) -> int:
        """Bytes by which the state is declared to grow when ``task`` is learned."""
        return 0

    def extend(self, capacity: int) -> None:
        """Make room for more classes between tasks; what was learned stays as it is, and so do all scores, bit for bit."""
        raise ValueError(
            f"{type(self).__name__} has room for {self.setting.capacity} classes and cannot get more: make a new one with "
            f"capacity={capacity}."
        )

    def take_outside(self, x: Tensor) -> None:
        """Take unlabelled inputs ``(n, …)`` from outside the stream, in its units, to learn from besides the tasks.

        Only a method with the trait ``outside_data`` has a use for them. They are no part of its state: hand them over again
        to a learner that was loaded.
        """
        if not self.traits.outside_data:
            raise ValueError(f"{type(self).__name__} has no use for data from outside the stream: leave them out.")
        if not len(x) or tuple(x.shape[1:]) != self.setting.input_shape:
            raise ValueError(
                f"The data from outside have the shape {tuple(x.shape)}; expected one or more inputs of the stream's shape, "
                f"(n, {', '.join(map(str, self.setting.input_shape))})."
            )
        self.outside = x

    def check_outside(self) -> None:
        """Refuse to learn without the inputs that `take_outside` should have been given."""
        if self.traits.outside_data and self.outside is None:
            raise ValueError(
                f"{type(self).__name__} learns from unlabelled inputs of outside the stream besides: hand them over with "
                "take_outside(x) before the first task, and again after loading."
            )

    def begin_task(self, task: TaskData) -> None:
        """Prepare for a task. The first one fixes the scaling of inputs, unless the setting did."""
        self.check_outside()
        for part in self.modules():
            if isinstance(part, FrozenNet):
                part.load_published()
        if not self.scale.fitted:
            self.scale.fit(task.x, task.weight)
        self.counters[1] = max(self.seen, int(task.y.max()) + 1)
        self.train()
        self.start(task)

    def end_task(self, task: TaskData) -> None:
        """Consolidate what was learned; nothing of the task's examples stays unless the method says so."""
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
        """Score scaled inputs for the class rows, shape ``(n, at least seen)``; the largest wins."""

    @torch.no_grad()
    def logits(self, x: Tensor) -> Tensor:
        """Score inputs over the classes seen, shape ``(n, seen)``. Nothing changes."""
        return self.score(self.scale(x))[:, : self.seen]

    @torch.no_grad()
    def vectors(self, x: Tensor) -> Tensor:
        """Vectors of inputs ``(n, …)`` in front of the answer, one row each, for whoever draws them; else the scores."""
        return self.logits(x)

    def projector_sums(self) -> Mapping[str, Tensor]:
        """Sums ``A`` of the projectors ``(I + A)⁻¹`` by layer, shape ``(groups, width, width)``; empty if it has none."""
        return {}

    def logits_in(self, x: Tensor, task: int) -> Tensor:
        """Score inputs of a task that is told, by its number. Only a method that needs the task makes a difference."""
        return self.logits(x)

    def resize_for(self, state: Mapping[str, Tensor]) -> None:
        """Make room for a state that is about to be loaded; only methods whose tensors change shape need it."""

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take over a state written by `state_dict`; into a fresh learner, for a wrong state may be taken over in part."""
        self.resize_for(state)
        self.load_state_dict(dict(state), strict=True)

    def __getstate__(self) -> dict[str, Any]:
        # torch leaks memory whenever it copies or unpickles a generator itself, and every `partial_fit` copies its learner.
        return {**self.__dict__, "generator": self.generator.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        source = state["generator"]  # a generator itself in pickles of older versions
        drawn = source.get_state() if isinstance(source, torch.Generator) else source
        state = {**state, "generator": torch.Generator().set_state(drawn)}
        super().__setstate__(state)  # type: ignore[no-untyped-call]

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}random"] = self.generator.get_state()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *arguments: Any) -> None:
        state = state_dict.pop(f"{prefix}random", None)
        if state is not None:
            self.generator.set_state(state.cpu())
        super()._load_from_state_dict(state_dict, prefix, *arguments)


@runtime_checkable
class Represents(Protocol):
    """A learner that sees inputs through a map that never changes once the first task has begun.

    What it makes of an input can be kept by whoever scores that input again and again, as an evaluation does.
    """

    def represent(self, x: Tensor) -> Tensor:
        """Map inputs ``(n, …)`` to what the learner sees of them, one row each."""

    def score_represented(self, h: Tensor) -> Tensor:
        """Score what `represent` gave, over the classes seen."""
