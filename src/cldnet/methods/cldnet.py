"""CLDNet, Algorithm 1: HSIC-bottleneck orthogonalisation (HBO) and equiangular embedding (EAE).

For every batch: compute the hidden representations ``Z_l`` of all layers; let the projectors absorb the layers' inputs (Eq. 6);
**HBO** (Eq. 5) moves each layer's own weights towards ``min HSIC(Z_l, X) − β HSIC(Z_l, Y)``; **EAE** (Eq. 8, 9) moves all
weights so that ``Z_L`` points at its class's fixed vector. Every step goes through the projectors:
``θ_l ← θ_l − λ P_l Δθ_l``. The prediction is the nearest vector among the classes seen.

The paper leaves much open; each choice is a field of `CLDNetConfig`. The defaults are those that did best on validation data,
and leave the HBO step out; `CLDNetPaper` has the paper's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.math.basis import basis_vectors, check_gamma, extend_basis, reachable_gamma
from cldnet.methods.config import LEARNING_RATES, NOT_NEGATIVE, POSITIVE, Choice, LogUniform, config_to_json
from cldnet.methods.gradient import GradientConfig, descend, sgd, weighted_cross_entropy
from cldnet.methods.learner import Batch, Learner, Setting, TaskData, Traits
from cldnet.methods.parts import variants
from cldnet.methods.parts.alpha import AdaptiveAlpha, Alpha, ConstantAlpha, PerTask
from cldnet.methods.parts.projection import BatchMean, EveryVector, Feed, Projection
from cldnet.nets import out_features
from cldnet.nets.hooks import Flow
from cldnet.nets.layers import linear


@dataclass(frozen=True)
class CLDNetConfig(GradientConfig):
    """The paper's hyper-parameters, and the choices that it leaves open (`cldnet.methods.parts.variants`)."""

    lr: float = 7.0  # of the EAE step
    momentum: float = 0.0
    hbo_lr: float = 0.003  # of the HBO step
    beta: float = 500.0  # β of Eq. 5, the weight of the dependence on the label
    embed_dim: int = 1000  # dimension d of the class vectors
    gamma: float = 0.04  # bound γ of their |cosine| (Eq. 3)
    bias: bool = True  # of the embedding layer; it is projected as the weight of an appended one
    embed_init: float = 0.0  # scale of the embedding layer's initial weights; 0: no class starts with a direction
    hidden_share: float = 0.1  # learning rate of the layers in front of the embedding layer in the EAE step, over `lr`
    lr_end: float = 1.0  # share of the learning rates that is left at a task's end; they decrease linearly
    #: Divides the similarity before the softmax. With cosines and no temperature the loss of ten classes is at least 1.46.
    temperature: float = 1.0
    similarity: variants.Similarity = variants.InnerProduct()  # of an embedding and the class vectors
    rate: variants.Rate = variants.PerAlpha()  # the unit of `lr` and `hbo_lr`
    dependence: variants.Dependence = variants.NormalisedHSIC()  # the form of HSIC
    feed: Feed = EveryVector()  # what the projectors absorb,
    alpha: Alpha = ConstantAlpha(30.0)  # how strongly,
    when: variants.When = variants.EveryStep()  # and when
    steps: variants.Steps = variants.EmbeddingAlone()
    softmax: variants.Softmax = variants.AllClasses()  # the classes that it runs over
    last: variants.Last = variants.Last()  # how the embedding layer learns

    limits: ClassVar = {
        "temperature": POSITIVE,
        **dict.fromkeys(("hbo_lr", "hidden_share", "embed_init", "lr_end"), NOT_NEGATIVE),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("similarity", "rate", "dependence", "when", "steps", "softmax", "last"):
            if not isinstance(getattr(self, name), getattr(variants, name.capitalize())):
                raise ValueError(
                    f"{name}={getattr(self, name)!r} should be a part such as {getattr(type(self), name)}."
                )
        if self.embed_init == 0 and not self.similarity.from_zero:
            raise ValueError(
                f"{self.similarity} needs embeddings that are not zero: use an embed_init above 0, such as 1."
            )
        self.rate.unit(self.alpha, 1)  # raises if this rate does not fit this α


class CLDNet(Learner):
    """The learner of the paper's Algorithm 1; see the module's docstring.

    References
    ----------
    D. Li et al., "Towards Continual Learning Desiderata via HSIC-Bottleneck Orthogonalization and Equiangular Embedding",
    AAAI 2024. https://arxiv.org/abs/2401.09067

    W.-D. K. Ma, J. P. Lewis, W. B. Kleijn, "The HSIC Bottleneck", AAAI 2020. https://arxiv.org/abs/1908.01580

    Y. Shen, X. Sun, X.-S. Wei, "Equiangular Basis Vectors", CVPR 2023. https://arxiv.org/abs/2303.11637
    """

    title = "CLDNet (hbo)"
    summary = "fixed class vectors, every layer by gradient through projectors: our best preset"
    version = 2
    traits = Traits(rehearsal_free=True, constant_size=True)
    kinds: ClassVar = {
        "net": "weights",
        "embedding": "weights",
        "projection": "projectors",
        "basis": "class vectors",
    }
    config_class = CLDNetConfig
    fixed: ClassVar[tuple[str, ...]] = ("embed_dim", "gamma", "bias", "embed_init")
    running = ("hbo_optimizer", "eae_optimizer")
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
    task_classes: Tensor

    def __init__(self, net: nn.Module, setting: Setting, config: CLDNetConfig) -> None:
        super().__init__(setting)
        self.config = config
        features = out_features(net, setting.input_shape)
        self.net = net.to(setting.dtype)
        self.embedding = linear(features, config.embed_dim, self.generator, bias=config.bias).to(setting.dtype)
        with torch.no_grad():
            self.embedding.weight.mul_(config.embed_init)
        modules = {"net": self.net, "embedding": self.embedding}
        self.projection = Projection.of_sequence(setting.input_shape, config.alpha, **modules)
        check_gamma(setting.capacity, config.embed_dim, config.gamma)
        # The table is made by the first task: that may take minutes, and a learner that is loaded does not need it.
        self.register_buffer("basis", torch.empty(0, config.embed_dim, dtype=setting.dtype))

    @property
    def backbone(self) -> nn.Module:
        return self.net

    @property
    def class_width(self) -> int:
        return self.config.embed_dim

    def observe(self, batch: Batch) -> Tensor:
        """Learn from one batch: the inner loop of Algorithm 1."""
        batch = batch.without_zeros()
        if len(batch.x) == 0:
            return self.basis.new_zeros(())
        when, steps = self.config.when, self.config.steps
        x = self.scale(batch.x)
        flow, z = self.forward_pass(x)  # line 7: Z_1, …, Z_L
        if isinstance(when, variants.EveryStep):
            self.absorb(flow, batch.progress, batch.steps)  # Eq. 6: P_l ← P_l − P_l r rᵀ P_l / (α + rᵀ P_l r)
        bottleneck = None
        if isinstance(steps, variants.InTurn):
            deltas = self.bottleneck_deltas(flow, x, batch.y)  # Eq. 5: ∂/∂Z_l (HSIC(Z_l, X) − β HSIC(Z_l, Y))
            # Line 9: θ_l ← θ_l − λ P_l Δθ_l
            self.step(self.hbo_optimizer, self.projection.gradients(flow, deltas), batch)
            earlier, (flow, z) = flow, self.forward_pass(x)
            flow.reuse(earlier)
        elif isinstance(steps, variants.Together):
            deltas = self.bottleneck_deltas(flow, x, batch.y)
            bottleneck = [None if delta is None else steps.weight * delta for delta in deltas]
        loss = self.embedding_loss(z, batch)  # Eq. 8: −log softmax of ⟨Z_L, w_y⟩
        self.step(self.eae_optimizer, self.projection.backward(flow, loss, bottleneck), batch)  # line 10, Eq. 9
        return loss.detach()

    def forward_pass(self, x: Tensor) -> tuple[Flow, Tensor]:
        """Compute the representations of all layers, and the last one, ``Z_L``."""
        with self.projection.hooks.watch() as flow:
            z = self.embed(x)
        return flow, z

    @property
    def class_vectors(self) -> Tensor:
        return self.basis

    def embed(self, x: Tensor) -> Tensor:
        """Map scaled inputs to the last representation ``Z_L``."""
        z: Tensor = self.embedding(self.net(x))
        return z

    def absorb(self, flow: Flow, progress: float, updates: int) -> None:
        """Let the projectors absorb the layers' inputs (Eq. 6)."""
        if not self.config.last.absorbs:
            flow = Flow(flow.layers[:-1], flow.inputs[:-1], flow.outputs[:-1])
        self.projection.absorb(flow, self.config.feed, self.config.alpha, progress, updates)

    def bottleneck_deltas(self, flow: Flow, x: Tensor, y: Tensor) -> list[Tensor | None]:
        """Derivatives of each layer's ``HSIC(Z_l, X) − β HSIC(Z_l, Y)`` (Eq. 5) by the layer's own outputs.

        ``Z_l`` is the input of the next layer (so after the activation), or the layer's output if no layer follows.
        Only the layer's own weights follow: Eq. 5 is read block by block.
        """
        derivative = self.config.dependence.of_batch(x.flatten(1), y, self.config.beta)
        deltas: list[Tensor | None] = []
        for output, following in zip(flow.outputs, [*flow.inputs[1:], flow.outputs[-1]], strict=True):
            delta = None
            if output.requires_grad:  # else the user froze the layer
                if following.requires_grad and len(following) == len(x):  # back through the activation
                    by_z = derivative(following.detach())
                    (delta,) = torch.autograd.grad(following, output, by_z, retain_graph=True, allow_unused=True)
                # The next layer to run may not depend on this one (a parallel branch), or not have a row per sample.
                if delta is None and len(output) == len(x):
                    delta = derivative(output.detach())
            deltas.append(delta)
        return deltas

    def embedding_loss(self, z: Tensor, batch: Batch) -> Tensor:
        """Negative log-likelihood of the class vectors (Eq. 8)."""
        logits = self.config.similarity(z, self.basis) / self.config.temperature
        if isinstance(self.config.softmax, variants.SeenClasses):
            future = torch.arange(len(self.basis), device=z.device) >= self.seen
            logits = logits.masked_fill(future, float("-inf"))
        elif isinstance(self.config.softmax, variants.TaskClasses):
            logits = logits.masked_fill(~self.task_classes, float("-inf"))
        return weighted_cross_entropy(logits, batch.y, batch.weight)

    def step(self, optimizer: torch.optim.Optimizer, gradients: Mapping[Tensor, Tensor], batch: Batch) -> None:
        """Take a step ``θ_l ← θ_l − λ P_l Δθ_l`` (Eq. 5, 9) along projected gradients of a batch."""
        config = self.config
        unit = config.rate.unit(config.alpha, len(batch.x)) * (1 - (1 - config.lr_end) * batch.progress)
        fixed = () if config.last.learns else {*self.embedding.parameters()}
        moved = {parameter: gradient for parameter, gradient in gradients.items() if parameter not in fixed}
        descend(optimizer, moved, config.clip, unit)

    def start(self, task: TaskData) -> None:
        """Make the class vectors before the first task, and reset the momenta."""
        if len(self.basis) == 0:
            capacity, seed = self.setting.capacity, self.setting.seed
            made = basis_vectors(capacity, self.class_width, self.config.gamma, seed=seed).to(self.basis)  # Eq. 7
            self.basis = made.contiguous()  # as after loading: rounding of products depends on the memory layout
        if self.tasks > 0:
            self.projection.freeze_unprotected(self.net)  # what cannot be projected learns in the first task only
        self.task_classes = torch.isin(torch.arange(len(self.basis), device=task.y.device), task.class_rows)
        config = self.config
        groups: list[dict[str, Any]] = [
            {"params": list(self.net.parameters()), "lr": config.hidden_share * config.lr},
            {"params": list(self.embedding.parameters())},
        ]
        self.hbo_optimizer = sgd(self.parameters(), lr=config.hbo_lr, momentum=config.momentum)
        self.eae_optimizer = sgd(groups, lr=config.lr, momentum=config.momentum)

    def finish(self, task: TaskData) -> None:
        """Absorb the task if that waits for its end (`TaskEnd`), and rebuild the projectors from their sums."""
        if isinstance(self.config.when, variants.TaskEnd):
            for batch in map(Batch.without_zeros, task.batches(self.config.when.batch_size)):
                if len(batch.x):
                    with torch.no_grad():
                        flow, _ = self.forward_pass(self.scale(batch.x))
                    self.absorb(flow, progress=1.0, updates=batch.steps)  # α as at the end of a task
        self.projection.rebuild()
        del self.hbo_optimizer, self.eae_optimizer, self.task_classes
        self.zero_grad(set_to_none=True)

    def score(self, x: Tensor) -> Tensor:
        """Similarity to the vectors of the classes seen, divided by the temperature."""
        # Not to the whole table: rounding may depend on a matrix's size, and a larger capacity must not change a score.
        return self.config.similarity(self.embed(x), self.basis[: self.seen]) / self.config.temperature

    @torch.no_grad()
    def vectors(self, x: Tensor) -> Tensor:
        """Directions of ``Z_L``, which are compared with the class vectors."""
        return F.normalize(self.embed(self.scale(x)), dim=1)

    def projector_sums(self) -> Mapping[str, Tensor]:
        return self.projection.sums()

    def extend(self, capacity: int) -> None:
        """Add vectors for future classes to the table without moving the others; γ is raised if it cannot be kept."""
        setting = self.setting.extended(capacity)
        gamma = reachable_gamma(capacity, self.class_width, self.config.gamma)
        if len(self.basis):
            self.basis = extend_basis(self.basis, capacity, gamma, seed=setting.seed).contiguous()
        self.setting, self.config = setting, replace(self.config, gamma=gamma)

    def resize_for(self, state: Mapping[str, Tensor]) -> None:
        """Resize the table of class vectors to that of the state; it is empty before the first task."""
        if "basis" in state:
            shape, expected = tuple(state["basis"].shape), (self.setting.capacity, self.class_width)
            if shape not in (expected, (0, self.class_width)):
                raise ValueError(
                    f"The state has class vectors of shape {shape}, but this model's capacity and embed_dim need "
                    f"{expected}: make the model with those of the state."
                )
            self.basis = self.basis.new_empty(shape)


@dataclass(frozen=True)
class CLDNetPaperConfig(CLDNetConfig):
    """The paper's settings. It names no learning rate, batch size or number of epochs.

    nHSIC with β = 500 (the form in which this β means something), one step of HBO and one of EAE per batch, projectors that
    absorb batch means, α as AOP's for linear layers (with a scale, and stated for 200 updates per task), cosines over 0.07 (as
    in the paper on equiangular basis vectors), d = 1000.
    """

    lr: float = 0.05
    momentum: float = 0.9
    embed_init: float = 1.0
    hidden_share: float = 1.0
    temperature: float = 0.07
    similarity: variants.Similarity = variants.Cosine()
    rate: variants.Rate = variants.FixedRate()
    feed: Feed = BatchMean()
    alpha: Alpha = PerTask(AdaptiveAlpha(10.0))
    steps: variants.Steps = variants.InTurn()
    softmax: variants.Softmax = variants.SeenClasses()


class CLDNetPaper(CLDNet):
    """CLDNet with the paper's settings: HBO and EAE in turn."""

    title = "CLDNet (paper)"
    summary = "HSIC bottleneck and fixed class vectors, as in the paper (AAAI-24)"
    config_class = CLDNetPaperConfig
    ranges: ClassVar = {
        "lr": LEARNING_RATES,
        "hbo_lr": LogUniform(0.0003, 0.03),
        "beta": LogUniform(10.0, 2000.0),
        "alpha": Choice(
            tuple(config_to_json(PerTask(AdaptiveAlpha(scale))) for scale in (1.0, 3.0, 10.0, 30.0, 100.0))
        ),
    }
