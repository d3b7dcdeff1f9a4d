"""A net whose layers get more units, and time stamps: a task computes with the units that existed when it was learned.

Units are appended to a layer, never inserted, so the net of an old task is a corner of every weight. A new unit's connections
into old units lie outside that corner: they exist for newer tasks only.
"""

from __future__ import annotations

import itertools
from abc import ABC
from collections.abc import Iterator, Mapping, Sequence
from math import prod, sqrt
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from cldnet.device import tensor_bytes
from cldnet.methods.learner import Setting, TaskData
from cldnet.methods.parts.heads import Head, MultiHead
from cldnet.nets.chain import stages
from cldnet.nets.frozen import count_weights


class Corner(NamedTuple):
    """The part of a weight or of a bias that belongs to the first units: its first rows, and its first columns."""

    stage: int
    parameter: Tensor
    part: tuple[slice, ...]

    @property
    def value(self) -> Tensor:
        """A view of the numbers."""
        return self.parameter.detach()[self.part]

    @property
    def gradient(self) -> Tensor | None:
        """A view of their gradient, if there is one."""
        return None if self.parameter.grad is None else self.parameter.grad[self.part]


class Widening(nn.Module):
    """A chain of layers, whose weights have one row per unit, and the widths with which each task computes.

    Parameters
    ----------
    net : nn.Module
        An MLP, a CNN or a LeNet, see `cldnet.nets.chain.stages`. Its layers are the ones that grow.

    Examples
    --------
    >>> from cldnet.nets import MLP
    >>> net = Widening(MLP((6,), widths=(4, 3), generator=torch.Generator()))
    >>> net.stamp()
    >>> net.resize([5, 3])
    >>> net.widths, net.stamps.tolist(), net(torch.zeros(2, 6), [4, 3]).shape
    ([5, 3], [[4, 3]], torch.Size([2, 3]))
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net
        self.stages = stages(net)
        shapes = [stage.layer.weight.shape for stage in self.stages]
        self.inputs = shapes[0][1]
        #: Columns of each layer's weight per unit below; for the first layer, per input or channel of the net.
        self.positions = [1, *(shape[1] // below[0] for below, shape in itertools.pairwise(shapes))]
        self.stamps: Tensor = nn.Buffer(torch.zeros(0, len(shapes), dtype=torch.int64))

    @property
    def widths(self) -> list[int]:
        """Units of each stage."""
        return [len(stage.layer.weight) for stage in self.stages]

    @property
    def old(self) -> list[int]:
        """Units of each stage after the last task; none before the first."""
        return self.stamps[-1].tolist() if len(self.stamps) else [0] * len(self.stages)

    @property
    def grown(self) -> int:
        """Bytes that the last task added: its time stamp, and the weights of its units."""
        sizes = [sum(corner.value.numel() for corner in self.corners(stamp.tolist())) for stamp in self.stamps[-2:]]
        return tensor_bytes(self.stamps[-1]) + (sizes[-1] - sizes[0]) * self.stages[0].layer.weight.element_size()

    def columns(self, widths: Sequence[int]) -> list[int]:
        """Columns of each stage's weight that belong to the first units below."""
        return [units * each for units, each in zip([self.inputs, *widths[:-1]], self.positions, strict=True)]

    def columns_of(self, units: Tensor, stage: int) -> Tensor:
        """Columns of a stage's weight that belong to some units below; a head follows the last stage."""
        each = self.positions[stage] if stage < len(self.stages) else 1
        return (each * units[:, None] + torch.arange(each, device=units.device)).flatten()

    def corners(self, widths: Sequence[int]) -> Iterator[Corner]:
        """The parts of all weights and biases that belong to the first units of every stage."""
        for number, (rows, columns) in enumerate(zip(widths, self.columns(widths), strict=True)):
            layer = self.stages[number].layer
            yield Corner(number, layer.weight, (slice(rows), slice(columns)))
            if layer.bias is not None:
                yield Corner(number, layer.bias, (slice(rows),))

    def forward(self, x: Tensor, widths: Sequence[int]) -> Tensor:
        """Features of scaled inputs, computed by the first units of every stage."""
        if isinstance(self.stages[0].layer, nn.Conv2d) and x.ndim == 3:
            x = x.unsqueeze(1)
        for stage, rows, columns in zip(self.stages, widths, self.columns(widths), strict=True):
            # The last bits of a product may depend on the layout in memory, which should not change with later units.
            weight, bias = stage.layer.weight[:rows, :columns].contiguous(), stage.layer.bias
            x = stage.after(stage.weigh(x, weight, None if bias is None else bias[:rows]))
        return x

    @torch.no_grad()
    def resize(self, widths: Sequence[int]) -> None:
        """Give each stage as many units: cut the last ones off, or append some with zero weights."""
        for stage, rows, columns in zip(self.stages, widths, self.columns(widths), strict=True):
            weight, bias = stage.layer.weight, stage.layer.bias
            stage.layer.weight = nn.Parameter(weight.new_zeros(rows, columns, *weight.shape[2:]))
            corner = slice(min(rows, weight.shape[0])), slice(min(columns, weight.shape[1]))
            stage.layer.weight[corner] = weight[corner]
            if bias is not None:
                stage.layer.bias = nn.Parameter(bias.new_zeros(rows))
                stage.layer.bias[corner[0]] = bias[corner[0]]

    def added(self, first: Sequence[int], last: Sequence[int]) -> Iterator[tuple[Tensor, Tensor]]:
        """Views, per stage, of the weights into units from ``first`` to before ``last``, and from those into earlier ones."""
        columns = zip(self.columns(first), self.columns(last), strict=True)
        for stage, old, rows, (known, inputs) in zip(self.stages, first, last, columns, strict=True):
            weight = stage.layer.weight.detach()
            yield weight[old:rows, :inputs], weight[:old, known:inputs]

    @torch.no_grad()
    def draw(self, first: Sequence[int], last: Sequence[int], generator: torch.Generator) -> None:
        """Draw initial weights of the units from ``first`` to before ``last``, and of their connections into earlier ones.

        They are He's for the number of inputs that a unit then has; the new units' biases are zero.
        """
        for stage, (rows, columns), old, last_row in zip(
            self.stages, self.added(first, last), first, last, strict=True
        ):
            bound = sqrt(6 / prod(rows.shape[1:]))
            for part in (rows, columns):
                part.copy_(torch.empty(part.shape, dtype=part.dtype).uniform_(-bound, bound, generator=generator))
            if stage.layer.bias is not None:
                stage.layer.bias[old:last_row] = 0

    def stamp(self) -> None:
        """Note that the task which ends computes with the present units."""
        self.stamps = torch.cat([self.stamps, self.stamps.new_tensor([self.widths])])

    def resize_for(self, state: Mapping[str, Tensor], prefix: str) -> None:
        """Take the shapes of a state that is about to be loaded; ``prefix`` begins its names of this net's tensors."""
        names = {parameter: name for name, parameter in self.named_parameters()}
        self.resize([len(state[prefix + names[stage.layer.weight]]) for stage in self.stages])  # type: ignore[index]
        self.stamps = self.stamps.new_zeros(state[f"{prefix}stamps"].shape)


class WideningLearner(MultiHead, ABC):
    """A learner with one net that widens, and one head per task over the units that existed after the task.

    During a task `widths` are the units that it computes with at the moment; there may be more, which cost nothing.
    """

    kinds: ClassVar[Mapping[str, str]] = {**MultiHead.kinds, "net": "weights"}
    running: ClassVar[tuple[str, ...]] = ("optimizer", "widths")
    widths: Tensor
    optimizer: torch.optim.Optimizer

    def __init__(self, net: nn.Module, setting: Setting) -> None:
        super().__init__(setting)
        self.net = Widening(net.to(setting.dtype))

    @property
    def backbone(self) -> nn.Module:
        return self.net.net

    @property
    def network_size(self) -> int:
        return count_weights(self.net) + self.head_size

    def growth(self, task: TaskData) -> None:
        """Training decides, see `grown`."""

    @property
    def grown(self) -> int:
        return self.net.grown + sum(map(tensor_bytes, self.heads[-1].state_dict().values()))

    def features(self, x: Tensor, task: int) -> Tensor:
        stamps = self.net.stamps
        features: Tensor = self.net(x, (stamps[task] if task < len(stamps) else self.widths).tolist())
        return features

    def make_room(self, task: TaskData, units: int) -> Head:
        """Append units to each stage, which the task does not compute with yet, and add its head."""
        self.widths = torch.tensor(self.net.widths)
        self.net.resize([width + units for width in self.net.widths])
        return self.add_head(self.net.widths[-1], task)

    def corners(self) -> list[Corner]:
        """The parts of all weights and biases, and last of the newest head's, that the task computes with."""
        layer, width, above = self.heads[-1].layer, int(self.widths[-1]), len(self.widths)
        head = Corner(above, layer.weight, (slice(None), slice(width))), Corner(above, layer.bias, (slice(None),))
        return [*self.net.corners(self.widths.tolist()), *head]

    def new_optimizer(self) -> torch.optim.Adam:
        """Adam for the net and the newest head, with the fused kernel where there is one."""
        moved = [*self.net.parameters(), *self.heads[-1].parameters()]
        return torch.optim.Adam(moved, lr=self.config.lr, fused=moved[0].device.type in ("cpu", "cuda"))

    def decay(self, strength: float) -> None:
        """Add the gradient of ``strength · ½ ‖W‖²`` to the weights that the task computes with and that have a gradient."""
        for corner in self.corners():
            if corner.gradient is not None:
                corner.gradient.add_(corner.value, alpha=strength)

    def cut(self) -> None:
        """End a task: keep the units that it computes with, and put its time stamp on them."""
        layer, width = self.heads[-1].layer, int(self.widths[-1])
        self.net.resize(self.widths.tolist())
        self.net.stamp()
        layer.weight, layer.in_features = nn.Parameter(layer.weight[:, :width].detach().clone()), width
        del self.optimizer, self.widths
        self.zero_grad(set_to_none=True)

    def resize_for(self, state: Mapping[str, Tensor]) -> None:
        super().resize_for(state)
        self.net.resize_for(state, "net.")
