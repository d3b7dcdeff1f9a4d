"""CLDNet (Li et al., AAAI-24), algorithm 1: HSIC-bottleneck orthogonalisation and equiangular embedding.

For every batch: hidden representations ``Z_l`` of all layers; the projectors absorb what flowed into the layers (Eq. 6);
**HBO** (Eq. 5) moves each layer's own weights towards ``min HSIC(Z_l, X) − β HSIC(Z_l, Y)``; **EAE** (Eq. 8, 9) moves all
weights so that ``Z_L`` points at its class's fixed vector. Every step goes through the projectors:
``θ_l ← θ_l − λ P_l Δθ_l``. The prediction is the nearest vector among the classes seen.

The paper leaves much open; each reading of it is a field of `CLDNetConfig`. The defaults are those that did best on validation
data, and leave the HBO step out; the paper's own are in `cldnet.methods.cldnet_paper`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.math.basis import basis_vectors, check_gamma, extend_basis, reachable_gamma
from cldnet.methods.config import check_parts
from cldnet.methods.gradient import GradientConfig, weighted_mean
from cldnet.methods.learner import Batch, Learner, Setting, TaskData, Traits
from cldnet.methods.parts.alpha import Alpha, ConstantAlpha
from cldnet.methods.parts.dependence import Dependence, NormalisedHSIC
from cldnet.methods.parts.descent import descend, sgd
from cldnet.methods.parts.pointing import InnerProduct, PerAlpha, Rate, Similarity
from cldnet.methods.parts.projection import EveryVector, Feed, Projection
from cldnet.methods.parts.readings import AllClasses, EmbeddingAlone, EveryStep, Last, Range, Steps, When
from cldnet.methods.ranges import Choice, LogUniform
from cldnet.nets import out_features
from cldnet.nets.init import linear
from cldnet.nets.taps import Flow

__all__ = ["CLDNet", "CLDNetConfig"]


@dataclass(frozen=True)
class CLDNetConfig(GradientConfig):
    """The paper's hyper-parameters, and the readings of what it leaves open.

    Attributes
    ----------
    hbo_lr : float
        Learning rate of the HBO step (`lr` is that of the EAE step).
    beta : float
        β of Eq. 5, the weight of the dependence on the label.
    embed_dim, gamma : int, float
        Dimension d of the class vectors and bound γ of their |cosine| (Eq. 3).
    bias : bool
        Whether the embedding layer has a bias; it is projected as the weight of an appended one.
    embed_init : float
        Scale of the embedding layer's first weights; 0 lets every class begin without a direction.
    hidden_share : float
        Learning rate of the layers in front of the embedding layer in the EAE step, as a share of `lr`.
    lr_end : float
        Share of the learning rates that is left at a task's end; they fall to it in equal steps.
    temperature : float
        Divides the similarity before the softmax; with cosines and without it the loss has a floor of 1.46 for ten classes.
    similarity, rate
        What compares an embedding with the class vectors; what `lr` and `hbo_lr` count in.
    dependence, feed, alpha, when, steps, softmax, last
        The form of HSIC; what feeds the projectors, how strongly and when; which steps; the softmax's range; how the last
        layer learns.
    """

    lr: float = 7.0
    momentum: float = 0.0
    hbo_lr: float = 0.003
    beta: float = 500.0
    embed_dim: int = 1000
    gamma: float = 0.04
    bias: bool = True
    embed_init: float = 0.0
    hidden_share: float = 0.1
    lr_end: float = 1.0
    temperature: float = 1.0
    similarity: Similarity = InnerProduct()
    rate: Rate = PerAlpha()
    dependence: Dependence = NormalisedHSIC()
    feed: Feed = EveryVector()
    alpha: Alpha = ConstantAlpha(30.0)
    when: When = EveryStep()
    steps: Steps = EmbeddingAlone()
    softmax: Range = AllClasses()
    last: Last = Last()

    def __post_init__(self) -> None:
        super().__post_init__()
        check_parts(self)
        if not self.hbo_lr >= 0:
            raise ValueError(f"hbo_lr={self.hbo_lr} should not be negative.")
        if not self.temperature > 0:
            raise ValueError(f"temperature={self.temperature} should be a positive number.")
        for name in ("hidden_share", "embed_init", "lr_end"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)} should not be negative.")
        if self.embed_init == 0 and not self.similarity.from_zero:
            raise ValueError(f"{self.similarity} needs a direction to begin with: use an embed_init above 0, as 1.")
        self.rate.unit(self.alpha, 1)


class CLDNet(Learner):
    """The paper's learner. See the module's docstring for the algorithm.

    Parameters
    ----------
    net : nn.Module
        Backbone that maps inputs to features; a linear embedding layer to ``embed_dim`` is added behind it.
    setting : Setting
    config : CLDNetConfig

    Examples
    --------
    >>> from cldnet.nets import build_backbone
    >>> net = build_backbone("mlp", (2,), seed=0, options={"widths": (8,)})
    >>> learner = CLDNet(net, Setting((2,), capacity=4, seed=0), CLDNetConfig(embed_dim=16))
    >>> task = TaskData(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    >>> learner.begin_task(task)
    >>> for batch in task.batches(2):
    ...     loss = learner.observe(batch)
    >>> learner.end_task(task)
    >>> learner.logits(task.x).shape
    torch.Size([2, 2])
    """

    traits = Traits(rehearsal_free=True, constant_size=True)
    running = ("hbo_optimizer", "eae_optimizer")
    kinds: ClassVar = {
        "net": "weights",
        "embedding": "weights",
        "projection": "projectors",
        "basis": "class vectors",
    }
    config_class = CLDNetConfig
    version = 2
    fixed: ClassVar[tuple[str, ...]] = ("embed_dim", "gamma", "bias", "embed_init")
    ranges: ClassVar = {
        "lr": LogUniform(0.5, 30.0),
        "hidden_share": LogUniform(0.001, 0.3),
        "alpha": Choice(
            tuple({"kind": "ConstantAlpha", "value": value} for value in (10.0, 30.0, 100.0, 300.0, 1000.0))
        ),
    }

    config: CLDNetConfig
    basis: Tensor
    hbo_optimizer: torch.optim.Optimizer
    eae_optimizer: torch.optim.Optimizer
    task_rows: Tensor

    def __init__(self, net: nn.Module, setting: Setting, config: CLDNetConfig) -> None:
        super().__init__(setting)
        self.config = config
        features = out_features(net, setting.input_shape)
        self.net = net.to(setting.dtype)
        self.embedding = linear(features, config.embed_dim, self.generator, bias=config.bias).to(setting.dtype)
        with torch.no_grad():
            self.embedding.weight.mul_(config.embed_init)
        modules = {"net": self.net, "embedding": self.embedding}
        self.projection = Projection.in_turn(setting.input_shape, config.alpha, **modules)
        check_gamma(setting.capacity, config.embed_dim, config.gamma)
        # Making the table may take minutes, and a learner that is about to be loaded has no use for another one.
        self.register_buffer("basis", torch.empty(0, config.embed_dim, dtype=setting.dtype))

    @property
    def backbone(self) -> nn.Module:
        """The net in front of the last layer."""
        return self.net

    @property
    def class_width(self) -> int:
        """Length of a class vector."""
        return self.config.embed_dim

    def embed(self, x: Tensor) -> Tensor:
        """Map scaled inputs to the last representation ``Z_L``."""
        z: Tensor = self.embedding(self.net(x))
        return z

    @torch.no_grad()
    def vectors(self, x: Tensor) -> Tensor:
        """Directions of ``Z_L``, which are compared with the class vectors."""
        return F.normalize(self.embed(self.scale(x)), dim=1)

    def projector_sums(self) -> Mapping[str, Tensor]:
        """``A`` of every layer's projector."""
        return self.projection.sums()

    def score(self, x: Tensor) -> Tensor:
        """Similarity to the vectors of the classes seen over the temperature."""
        # Not to all of the table: how a product rounds may depend on its size, and more room must not change a score.
        return self.config.similarity(self.embed(x), self.basis[: self.seen]) / self.config.temperature

    def start(self, task: TaskData) -> None:
        """Begin with empty momenta; what cannot be projected learns in the first task only."""
        if len(self.basis) == 0:
            capacity, seed = self.setting.capacity, self.setting.seed
            made = basis_vectors(capacity, self.class_width, self.config.gamma, seed=seed).to(self.basis)  # Eq. 7
            self.basis = made.contiguous()  # as it will lie after a load from disk: products round by how a matrix lies
        if self.tasks > 0:
            self.projection.freeze_unprotected(self.net)
        self.task_rows = torch.isin(torch.arange(len(self.basis), device=task.y.device), task.rows)
        config = self.config
        groups: list[dict[str, Any]] = [
            {"params": list(self.net.parameters()), "lr": config.hidden_share * config.lr},
            {"params": list(self.embedding.parameters())},
        ]
        self.hbo_optimizer = sgd(self.parameters(), lr=config.hbo_lr, momentum=config.momentum)
        self.eae_optimizer = sgd(groups, lr=config.lr, momentum=config.momentum)

    def extend(self, capacity: int) -> None:
        """Add vectors for classes to come to the table, without moving the others; γ follows if it cannot be kept."""
        setting = self.setting.extended(capacity)
        gamma = reachable_gamma(capacity, self.class_width, self.config.gamma)
        if len(self.basis):
            self.basis = extend_basis(self.basis, capacity, gamma, seed=setting.seed).contiguous()
        self.setting, self.config = setting, replace(self.config, gamma=gamma)

    def resize_for(self, state: Mapping[str, Tensor]) -> None:
        """Make room for the state's class vectors, of which there are none before the first task."""
        if "basis" in state:
            shape, whole = tuple(state["basis"].shape), (self.setting.capacity, self.class_width)
            if shape not in (whole, (0, self.class_width)):
                raise ValueError(
                    f"The state has class vectors of shape {shape} where a model of this capacity and embed_dim has {whole}: "
                    "make the model with those of the state."
                )
            self.basis = self.basis.new_empty(shape)

    def observe(self, batch: Batch) -> Tensor:
        """One pass through the inner loop of algorithm 1."""
        batch = batch.without_zeros()
        if len(batch.x) == 0:
            return self.basis.new_zeros(())
        return self.config.steps.take(self, self.scale(batch.x), batch)

    def finish(self, task: TaskData) -> None:
        """Feed the projectors where that waits for the end, and rebuild them from their sums."""
        self.config.when.on_end(self, task)
        self.projection.rebuild()
        del self.hbo_optimizer, self.eae_optimizer, self.task_rows
        self.zero_grad(set_to_none=True)

    def forward_pass(self, x: Tensor) -> tuple[Flow, Tensor]:
        """Calculate hidden representations (line 7)."""
        with self.projection.taps.watch() as flow:
            z = self.embed(x)
        return flow, z

    def absorb(self, flow: Flow, progress: float, updates: int) -> None:
        """Feed the projectors (Eq. 6)."""
        if not self.config.last.absorbs:
            flow = Flow(flow.layers[:-1], flow.inputs[:-1], flow.outputs[:-1])
        self.projection.absorb(flow, self.config.feed, self.config.alpha, progress, updates)

    def descend(self, optimizer: torch.optim.Optimizer, gradients: Mapping[Tensor, Tensor], batch: Batch) -> None:
        """Take a step ``θ_l ← θ_l − λ P_l Δθ_l`` (Eq. 5, 9) along projected gradients of a batch."""
        config = self.config
        unit = config.rate.unit(config.alpha, len(batch.x)) * (1 - (1 - config.lr_end) * batch.progress)
        resting = () if config.last.learns else {*self.embedding.parameters()}
        moved = {parameter: gradient for parameter, gradient in gradients.items() if parameter not in resting}
        descend(optimizer, moved, config.clip, unit)

    def bottleneck_deltas(self, flow: Flow, x: Tensor, y: Tensor) -> list[Tensor | None]:
        """Derivatives of each layer's ``HSIC(Z_l, X) − β HSIC(Z_l, Y)`` (Eq. 5) by the layer's own outputs.

        ``Z_l`` is what the next layer takes in (so behind the activation), or the layer's output where that is not fed on.
        Only the layer's own weights follow: Eq. 5 is read block by block.
        """
        derivative = self.config.dependence.of_batch(x.flatten(1), y, self.config.beta)
        deltas: list[Tensor | None] = []
        for output, following in zip(flow.outputs, [*flow.inputs[1:], flow.outputs[-1]], strict=True):
            delta = None
            if output.requires_grad:  # else the user froze it
                if following.requires_grad and len(following) == len(x):
                    delta = _through(derivative(following.detach()), following, output)
                # The next layer to run may not depend on this one (a parallel branch), or not have a row a sample.
                if delta is None and len(output) == len(x):
                    delta = derivative(output.detach())
            deltas.append(delta)
        return deltas

    def embedding_loss(self, z: Tensor, batch: Batch) -> Tensor:
        """Negative log-likelihood of the class vectors (Eq. 8, 9)."""
        logits = self.config.similarity(z, self.basis) / self.config.temperature
        logits = logits.masked_fill(~self.config.softmax.mask(self, batch), float("-inf"))
        return weighted_mean(F.cross_entropy(logits, batch.y, reduction="none"), batch.weight)


def _through(by_z: Tensor, z: Tensor, output: Tensor) -> Tensor | None:
    """Take a derivative back through the activation, to the layer's output; there is none if ``z`` came from elsewhere."""
    (delta,) = torch.autograd.grad(z, output, by_z, retain_graph=True, allow_unused=True)
    return delta
