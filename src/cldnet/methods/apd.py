"""APD, additive parameter decomposition: the weights of task t are shared ones behind a mask, plus sparse ones of its own.

In every layer ``θ_t = σ(m_t) ∘ S + A_t``, with one number of ``m_t`` per unit. (The paper writes σ, M and τ for S, σ(m) and A.)
Task t minimises

- the cross-entropy of its own head
- ``+ decay · ½ (‖A_t‖² + ‖m_t‖²)``, and ``‖S‖²`` in the first task
- ``+ l1 · Σ_{j ≤ t} ‖A_j‖₁``
- ``+ drift · Σ_{j < t} ½ ‖θ_j − θ_j*‖²``, with ``θ_j*`` the weights of task j when task t begins

over S, all A_j, m_t, and the bias and head of task t. After every few tasks each layer's A_j are clustered, and entries
that are nearly equal within a cluster move to weights that its members share. After every task, small entries become 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.device import tensor_bytes
from cldnet.methods.config import FINITE_NOT_NEGATIVE, FINITE_POSITIVE, Config, Limit, LogUniform
from cldnet.methods.learner import Batch, Setting, TaskData
from cldnet.methods.parts.heads import MultiHead
from cldnet.nets import out_features
from cldnet.nets.chain import Weighted, stages
from cldnet.nets.frozen import count_weights

#: Entries of a layer's weights whose inner products are computed at once, in double precision.
_AT_ONCE = 1 << 18
#: Units of a layer whose penalties are computed at once.
_UNITS = 16


@dataclass(frozen=True)
class APDConfig(Config):
    """Settings of APD, trained by Adam. The defaults are those of the authors' runs on CIFAR-100."""

    lr: float = 1e-3
    lr_decay: float = 0.95  # per epoch
    weight_decay: float = 1e-4
    l1: float = 4e-4
    drift: float = 100.0  # weight of the penalty on changing the weights of older tasks
    cut: float = 4e-4  # entries of up to this size become 0 after each task
    consolidate: int = 5  # tasks between two consolidations; 0 for none
    clusters: int = 2  # per `consolidate` tasks
    spread: float = 1e-2  # range of an entry's values within a cluster up to which it is shared

    limits: ClassVar = {
        "lr": FINITE_POSITIVE,
        "lr_decay": Limit(lambda value: 0 < value <= 1, "lie in (0, 1]"),
        **dict.fromkeys(("weight_decay", "l1", "drift", "cut", "spread"), FINITE_NOT_NEGATIVE),
        "consolidate": Limit(lambda value: type(value) is int and value >= 0, "be a whole number, 0 or more"),
        "clusters": Limit(lambda value: type(value) is int and value >= 1, "be a whole number, 1 or more"),
    }


class Sparse(nn.Module):
    """A tensor that is mostly zero: its other values, and their places in the flattened tensor."""

    def __init__(self, values: Tensor, places: Tensor) -> None:
        super().__init__()
        self.values: Tensor = nn.Buffer(values)
        self.places: Tensor = nn.Buffer(places)

    @classmethod
    def of(cls, dense: Tensor, cut: float = 0.0) -> Sparse:
        """Keep the entries of a tensor beyond ±``cut``."""
        flat = dense.detach().flatten()
        places = (~(flat.abs() <= cut)).nonzero()[:, 0]  # NaN stays, and is found
        return cls(flat[places], places.to(torch.int32))

    @classmethod
    def room(cls, count: int, like: Tensor) -> Sparse:
        """Make room for a number of entries that will be loaded."""
        return cls(like.new_zeros(count), like.new_zeros(count, dtype=torch.int32))

    def __len__(self) -> int:
        return len(self.values)

    def add_to(self, dense: Tensor) -> Tensor:
        """Add it in place to a contiguous tensor."""
        dense.view(-1).index_add_(0, self.places, self.values)
        return dense

    def dense(self, like: Tensor) -> Tensor:
        """Return it in full, with the shape of another tensor."""
        return self.add_to(torch.zeros_like(like, requires_grad=False))


class TaskPart(nn.Module):
    """What one task has of its own in a layer: the mask ``m_t``, a bias if the layer has one, and ``A_t``."""

    def __init__(self, layer: Weighted, entries: int = 0) -> None:
        super().__init__()
        self.mask = nn.Parameter(layer.weight.new_zeros(len(layer.weight)))
        self.bias = None if layer.bias is None else nn.Parameter(layer.bias.detach().clone())
        self.own = Sparse.room(entries, layer.weight)


class Decomposed(nn.Module):
    """The weights of one layer for all tasks. Its shared weights S are those of the net's own layer, handed to each method.

    Between tasks the ``A_j`` are sparse. During a task `dense` holds them all in full, and `targets` the ``θ_j*``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.parts: Sequence[TaskPart] = nn.ModuleList()  # type: ignore[assignment]
        self.cluster: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))  # of each task that was consolidated
        self.common: Sequence[Sparse] = nn.ModuleList()  # type: ignore[assignment]  # weights of each cluster
        self.dense: Sequence[nn.Parameter] = nn.ParameterList()  # type: ignore[assignment]
        self.targets: list[Tensor] = []

    @property
    def size(self) -> int:
        """Numbers of all tasks and clusters; zeros do not count."""
        own = sum(len(part.mask) + (0 if part.bias is None else len(part.bias)) + len(part.own) for part in self.parts)
        return own + sum(map(len, self.common))

    def weight(self, task: int, shared: Tensor) -> Tensor:
        """``θ_t = σ(m_t) ∘ S + A_t``, and what the task's cluster has in common."""
        weight = self._own_weight(task, shared)
        return weight if task >= len(self.cluster) else self.common[int(self.cluster[task])].add_to(weight)

    @torch.no_grad()
    def start(self, layer: Weighted) -> None:
        """Unfold the older tasks' weights, fix their targets, and add a task whose ``A_t`` is a copy of S."""
        if len(self.parts) == 0:
            layer.weight.mul_(2 / 3)  # so that the first task begins with σ(0) S + A_1 = the net's own weights
        for part in self.parts:
            part.requires_grad_(False)
        older = [part.own.dense(layer.weight) for part in self.parts]
        self.dense = nn.ParameterList([*older, layer.weight.clone()])  # type: ignore[assignment]
        # What clusters have in common does not change: it is left out of θ_j as well as of θ_j*.
        self.targets = [self._own_weight(task, layer.weight) for task in range(len(older))]
        self.parts.append(TaskPart(layer))  # type: ignore[attr-defined]

    @torch.no_grad()
    def add_penalties(self, shared: Tensor, l1: float, drift: float) -> None:
        """Add the gradients of the ℓ1 and drift terms to those of the cross-entropy."""
        *older, newest = self.dense
        assert shared.grad is not None
        assert newest.grad is not None
        gates = [self._gate(task, shared) for task in range(len(older))]
        gradients = [torch.empty_like(own) for own in older]
        for units in torch.arange(len(shared)).split(_UNITS):  # a few units of all tasks stay in the processor's cache
            rows = slice(int(units[0]), int(units[-1]) + 1)
            for own, target, gate, gradient in zip(older, self.targets, gates, gradients, strict=True):
                moved = torch.addcmul(own[rows], gate[rows], shared[rows]).sub_(target[rows])  # θ_j − θ_j*
                shared.grad[rows].addcmul_(gate[rows], moved, value=drift)
                torch.add(moved.mul_(drift), own[rows].sign(), alpha=l1, out=gradient[rows])
        for own, gradient in zip(older, gradients, strict=True):
            own.grad = gradient
        newest.grad.add_(newest.sign(), alpha=l1)

    @torch.no_grad()
    def consolidate(self, count: int, spread: float, cut: float, generator: torch.Generator) -> None:
        """Cluster the tasks, and move to each cluster the entries in which its members are nearly equal."""
        whole = torch.stack([*self.dense])
        for task, cluster in enumerate(self.cluster.tolist()):
            self.common[cluster].add_to(whole[task])
        self.cluster = k_means(_inner_products(whole.flatten(1)), self._first_centres(count, generator))
        self.common = nn.ModuleList()  # type: ignore[assignment]
        for cluster in range(count):
            common, members = torch.zeros_like(whole[0]), (self.cluster == cluster).nonzero()[:, 0]
            if len(members) > 1:
                high, low = whole[members].amax(0), whole[members].amin(0)
                close = high - low <= spread
                common = torch.where(close, (high + low) / 2, 0.0)
                whole[members] = whole[members].masked_fill_(close, 0.0)
            self.common.append(Sparse.of(common, cut))  # type: ignore[attr-defined]
        for own, rest in zip(self.dense, whole, strict=True):
            own.copy_(rest)

    def finish(self, cut: float) -> None:
        """Keep what is beyond ±``cut`` of all tasks' weights."""
        for part, own in zip(self.parts, self.dense, strict=True):
            part.own = Sparse.of(own, cut)
        self.dense, self.targets = nn.ParameterList(), []  # type: ignore[assignment]

    def resize_for(self, state: Mapping[str, Tensor], layer: Weighted) -> None:
        """Make room for the state of a layer after some tasks."""
        tasks = sum(name.endswith(".mask") for name in state)
        clusters = sum(name.startswith("common.") and name.endswith(".values") for name in state)
        parts = (TaskPart(layer, len(state[f"parts.{task}.own.values"])) for task in range(tasks))
        common = (Sparse.room(len(state[f"common.{cluster}.values"]), layer.weight) for cluster in range(clusters))
        self.parts = nn.ModuleList(parts)  # type: ignore[assignment]
        self.common = nn.ModuleList(common)  # type: ignore[assignment]
        self.cluster = self.cluster.new_zeros(len(state["cluster"]))

    def _gate(self, task: int, shared: Tensor) -> Tensor:
        """``σ(m_t)``, in a shape that multiplies the weights."""
        return self.parts[task].mask.sigmoid().view(-1, *[1] * (shared.ndim - 1))

    def _own_weight(self, task: int, shared: Tensor) -> Tensor:
        """``σ(m_t) ∘ S + A_t``, without what the task's cluster has in common."""
        own = self.dense[task] if len(self.dense) > 0 else self.parts[task].own.dense(shared)
        return torch.addcmul(own, self._gate(task, shared), shared)

    def _first_centres(self, count: int, generator: torch.Generator) -> Tensor:
        """Means of the clusters so far, as weights of the tasks; then tasks drawn at random."""
        tasks = len(self.dense)
        centres = torch.eye(tasks, dtype=torch.float64)[torch.randperm(tasks, generator=generator)[:count]]
        for cluster in range(min(count, len(self.common))):
            members = (self.cluster == cluster).nonzero()[:, 0].cpu()
            if len(members) > 0:
                centres[cluster] = 0.0
                centres[cluster, members] = 1 / len(members)
        return centres.to(self.cluster.device)


class APD(MultiHead):
    """Shared weights behind a mask per task, plus sparse weights per task that k-means consolidates every few tasks.

    The first task begins with the backbone's own weights: S is two thirds of them, masks begin at ``σ(0) = ½``, and each
    A_t begins as S. Every task has biases of its own, as in the authors' code. The model is that of the last epoch; the
    authors choose among the last five by validation. Clusters begin at the means of their members as they are now; the
    authors begin at those of the last time. Small entries are cut for good after every task; the authors cut them only at
    test and when they count, and go on training the others with the uncut ones. The reported loss is the cross-entropy.

    References
    ----------
    J. Yoon, S. Kim, E. Yang, S. J. Hwang, "Scalable and Order-robust Continual Learning with Additive Parameter Decomposition",
    ICLR 2020. https://arxiv.org/abs/1902.09432
    """

    title = "APD"
    summary = "shared weights plus sparse ones per task, needs the task at test (ICLR 2020)"
    kinds: ClassVar[Mapping[str, str]] = {
        **MultiHead.kinds,
        "net": "shared weights",
        "layers": "task weights",
        "added": "counters",
    }
    config_class = APDConfig
    ranges: ClassVar = {"lr": LogUniform(1e-4, 1e-2)}  # of Adam, as wide as that of SGD for other methods
    running = ("optimizer",)
    config: APDConfig
    optimizer: torch.optim.Optimizer

    def __init__(self, net: nn.Module, setting: Setting, config: APDConfig) -> None:
        super().__init__(setting)
        self.config = config
        self.width = out_features(net, setting.input_shape)
        self.net = net.to(setting.dtype)
        self.layers: Sequence[Decomposed] = nn.ModuleList(Decomposed() for _ in stages(net))  # type: ignore[assignment]
        self.added: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))  # bytes of the last task
        self.bytes_before = 0

    @property
    def backbone(self) -> nn.Module:
        return self.net

    @property
    def network_size(self) -> int:
        """S, and of all tasks the masks, biases, heads and non-zero weights, and the non-zero weights of clusters."""
        return self.head_size + sum(layer.weight.numel() + parts.size for layer, parts in self._layers())

    @property
    def base_size(self) -> int:
        """Numbers of the plain net and of all heads, as the authors count."""
        return count_weights(self.net) + self.head_size

    def growth(self, task: TaskData) -> int | None:
        """Training decides how many entries are not zero."""
        return None

    @property
    def grown(self) -> int:
        return int(self.added)

    def start(self, task: TaskData) -> None:
        """Unfold all tasks' weights, and add a task."""
        self.bytes_before = self._task_bytes()
        decayed: list[Tensor] = []
        plain: list[Tensor] = [*self.add_head(self.width, task).parameters()]
        for layer, parts in self._layers():
            parts.start(layer)
            *older, newest = parts.dense
            bias = parts.parts[-1].bias
            decayed += [newest, parts.parts[-1].mask]
            plain += older if bias is None else [*older, bias]
            (decayed if self.tasks == 0 else plain).append(layer.weight)
        groups: list[dict[str, Any]] = [
            {"params": decayed, "weight_decay": self.config.weight_decay},
            {"params": plain},
        ]
        fused = task.x.device.type in ("cpu", "cuda")
        self.optimizer = torch.optim.Adam(groups, lr=self.config.lr, fused=fused)

    def observe(self, batch: Batch) -> Tensor:
        """Take a step along the gradient of the cross-entropy, to which those of the penalties are added."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.config.lr * self.config.lr_decay**batch.epoch
        loss = self.task_loss(batch)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for layer, parts in self._layers():
            parts.add_penalties(layer.weight, self.config.l1, self.config.drift)
        self.optimizer.step()
        return loss.detach()

    def finish(self, task: TaskData) -> None:
        """Consolidate if it is time, and keep the weights of the tasks in sparse form."""
        del self.optimizer
        self.zero_grad(set_to_none=True)
        learned, every = self.tasks + 1, self.config.consolidate
        for parts in self.layers:
            if every > 0 and learned % every == 0:
                count = min(self.config.clusters * learned // every, learned)
                parts.consolidate(count, self.config.spread, self.config.cut, self.generator)
            parts.finish(self.config.cut)
        self.added.fill_(self._task_bytes() - self.bytes_before)

    def features(self, x: Tensor, task: int) -> Tensor:
        for stage, parts in zip(stages(self.net), self.layers, strict=True):
            weight = parts.weight(task, stage.layer.weight)
            x = stage.after(stage.weigh(x, weight, parts.parts[task].bias))
        return x

    def resize_for(self, state: Mapping[str, Tensor]) -> None:
        super().resize_for(state)
        for number, (layer, parts) in enumerate(self._layers()):
            prefix = f"layers.{number}."
            own = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
            parts.resize_for(own, layer)

    def _layers(self) -> Iterator[tuple[Weighted, Decomposed]]:
        """The net's layers, whose weights are S, each with its weights for all tasks."""
        return zip((stage.layer for stage in stages(self.net)), self.layers, strict=True)

    def _task_bytes(self) -> int:
        """Bytes of all heads, and of all that tasks and clusters have of their own."""
        parts = [*self.heads, *self.layers]
        return sum(tensor_bytes(tensor) for part in parts for tensor in part.state_dict().values())


def k_means(gram: Tensor, centres: Tensor, steps: int = 100) -> Tensor:
    """Cluster points by Lloyd's steps, and return the cluster of each.

    Parameters
    ----------
    gram : Tensor
        Inner products of the points, shape ``(n, n)``. They suffice, because all centres are averages of points.
    centres : Tensor
        First centres as weights of the points, shape ``(k, n)``. A cluster without points keeps its centre.
    steps : int
        Number of steps.

    Examples
    --------
    >>> points = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    >>> k_means(points @ points.T, torch.eye(4)[:2])
    tensor([0, 0, 1, 1])
    """
    for _ in range(steps):
        products = centres @ gram
        # ‖x − c‖² but for ‖x‖², which is the same for all centres
        cluster = ((products * centres).sum(1, keepdim=True) - 2 * products).argmin(0)
        member = F.one_hot(cluster, len(centres)).T.to(gram.dtype)
        counts = member.sum(1, keepdim=True)
        centres = torch.where(counts > 0, member / counts.clamp(min=1), centres)
    return cluster


def _inner_products(rows: Tensor) -> Tensor:
    """``rows @ rowsᵀ`` in double precision."""
    chunks = (chunk.double() for chunk in rows.split(_AT_ONCE, dim=1))
    return torch.stack([chunk @ chunk.mT for chunk in chunks]).sum(0)
