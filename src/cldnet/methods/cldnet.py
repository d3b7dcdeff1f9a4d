"""CLDNet, Algorithm 1: HSIC-bottleneck orthogonalisation (HBO) and equiangular embedding (EAE).

A table of ``C`` unit vectors is made before training (Eq. 7). A class that arrives is bound to several of them, one for each
of its sub-classes, which k-means finds. **HBO** (Eq. 5) moves each hidden layer towards ``min HSIC(Z_l, X) − β HSIC(Z_l, Y)``,
where ``Y`` is the vector that a sample is bound to. **EAE** (Eq. 8, 9) moves all weights so that ``Z_L`` points at that vector.
Every layer's projector absorbs the layer's inputs (Eq. 6), and every step goes through it: ``θ_l ← θ_l − λ P_l Δθ_l``. The
prediction is the class whose vectors have the largest log-sum-exp of similarities.

The paper leaves much open; each choice is a field of `CLDNetConfig`. The presets of ``cldnet.bench`` hold settings that were
chosen on validation data. `CLDNetPaper` is the literal reading: one vector per class, HBO and EAE in turn at every batch, the
paper's constants.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.math.basis import basis_vectors, check_gamma, extend_basis, reachable_gamma
from cldnet.math.kmeans import center_scores, kmeans
from cldnet.methods.config import (
    AT_LEAST_ONE,
    LEARNING_RATES,
    NOT_NEGATIVE,
    POSITIVE,
    Choice,
    LogUniform,
    config_to_json,
)
from cldnet.methods.gradient import GradientConfig, descend, sgd, weighted_cross_entropy
from cldnet.methods.learner import Batch, Learner, Setting, TaskData, Traits
from cldnet.methods.parts import variants
from cldnet.methods.parts.alpha import AdaptiveAlpha, Alpha, ConstantAlpha, PerTask
from cldnet.methods.parts.projection import BatchMean, EveryVector, Feed, Projection
from cldnet.nets import out_features
from cldnet.nets.hooks import Flow
from cldnet.nets.layers import linear
from cldnet.nets.principal import set_principal_weights

#: Largest number of vectors beyond one per class: enough for 25 classes with 40 sub-classes each.
_SPARE = 1000
#: Largest number of samples per sub-class that k-means uses.
_SAMPLES = 256
#: Batch size for computing the inputs of k-means.
_BATCH = 1024


@dataclass(frozen=True)
class CLDNetConfig(GradientConfig):
    """The paper's hyper-parameters, and the choices that it leaves open (`cldnet.methods.parts.variants`)."""

    lr: float = 7.0  # learning rate of the EAE step
    momentum: float = 0.0
    hbo_lr: float = 3e-4  # learning rate of the HBO step (by Adam in `BottleneckFirst`, else by SGD)
    beta: float = 500.0  # β of Eq. 5, the weight of the dependence on the label
    embed_dim: int = 1000  # dimension d of the class vectors; see `CLDNet.table_size` for their number C
    gamma: float = 0.04  # bound γ of their |cosine| (Eq. 3)
    vectors_per_class: int = 40  # most vectors that a class is bound to, as far as `embed_dim` leaves some
    samples_per_vector: int = 100  # fewest samples per vector: a small class is bound to fewer
    bias: bool = True  # of the embedding layer; it is projected as the weight of an appended one
    embed_init: float = 0.0  # scale of the embedding layer's initial weights; 0: no class starts with a direction
    hidden_share: float = 0.1  # learning rate of the last hidden layer in the EAE step, over `lr`
    layer_decay: float = 1.0  # rate of every other hidden layer, over that of the layer behind it
    conv_share: float = 0.1  # learning rate of convolutions in the EAE step, over `lr`
    lr_end: float = 1.0  # share of the learning rates that is left at a task's end; they decrease linearly
    #: Divides the similarity before the softmax. With cosines and no temperature the loss of ten classes is at least 1.46.
    temperature: float = 1.0
    similarity: variants.Similarity = variants.InnerProduct()  # of an embedding and the class vectors
    rate: variants.Rate = variants.PerAlpha()  # the unit of `lr`
    dependence: variants.Dependence = variants.NormalisedHSIC()  # the form of HSIC
    feed: Feed = EveryVector()  # what the projectors absorb
    alpha: Alpha = ConstantAlpha(30.0)  # α of Eq. 6; a smaller α protects more strongly
    when: variants.When = variants.EveryStep()  # when the projectors absorb
    steps: variants.Steps = variants.BottleneckFirst()
    softmax: variants.Softmax = variants.AllClasses()  # the vectors that it runs over
    last: variants.Last = variants.Last()  # how the embedding layer learns
    first_weights: variants.FirstWeights = variants.Given()  # of the hidden layers

    limits: ClassVar = {
        "temperature": POSITIVE,
        **dict.fromkeys(("hbo_lr", "hidden_share", "conv_share", "layer_decay", "embed_init", "lr_end"), NOT_NEGATIVE),
        **dict.fromkeys(("vectors_per_class", "samples_per_vector"), AT_LEAST_ONE),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("similarity", "rate", "dependence", "when", "steps", "softmax", "last", "first_weights"):
            if not isinstance(getattr(self, name), getattr(variants, name.title().replace("_", ""))):
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
    summary = "several fixed vectors per class, HSIC bottleneck, every layer by gradient through projectors"
    version = 3
    traits = Traits(rehearsal_free=True, constant_size=True)
    kinds: ClassVar = {
        "net": "weights",
        "embedding": "weights",
        "projection": "projectors",
        "basis": "class vectors",
        "bound": "class vectors",
    }
    config_class = CLDNetConfig
    fixed: ClassVar[tuple[str, ...]] = ("embed_dim", "gamma", "bias", "embed_init")
    running = ("hbo_optimizer", "eae_optimizer")
    spreads = True
    ranges: ClassVar = {
        "lr": LogUniform(0.5, 100.0),
        "hidden_share": LogUniform(0.001, 0.3),
        "alpha": Choice(
            tuple({"kind": "ConstantAlpha", "value": value} for value in (30.0, 100.0, 300.0, 1000.0, 3000.0))
        ),
    }

    config: CLDNetConfig
    basis: Tensor
    bound: Tensor
    hbo_optimizer: torch.optim.Optimizer
    eae_optimizer: torch.optim.Optimizer
    owners: Tensor  # the class of each vector in the table
    centers: Tensor  # sub-class centers of this task's new classes, in the order of their vectors
    resting: list[nn.Parameter]  # what has a learning rate of 0 in this task
    task_vectors: Tensor  # mask of the vectors that belong to this task's classes
    #: While the embedding layer learns in the coordinates of the class vectors: what of its parameters lies across these.
    across: dict[str, Tensor] | None = None

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
        # The table is made by the first task: that may take minutes, and a learner that is loaded does not need it.
        self.register_buffer("basis", torch.empty(0, config.embed_dim, dtype=setting.dtype))
        several = setting.capacity if config.vectors_per_class > 1 else 0
        self.register_buffer("bound", torch.zeros(several, dtype=torch.int64))
        check_gamma(self.table_size, config.embed_dim, config.gamma)

    @property
    def backbone(self) -> nn.Module:
        return self.net

    @property
    def class_width(self) -> int:
        return self.config.embed_dim

    @property
    def table_size(self) -> int:
        """``C``: one vector per class, and more for sub-classes as long as all are orthogonal."""
        capacity, most = self.setting.capacity, self.config.vectors_per_class if len(self.bound) else 1
        return max(capacity, min(self.config.embed_dim, most * capacity, capacity + _SPARE))

    @property
    def vector_counts(self) -> Tensor:
        """How many vectors each class seen is bound to. An empty ``bound`` means one each."""
        return self.bound[: self.seen] if len(self.bound) else self.counters.new_ones(self.seen)

    @property
    def vectors_bound(self) -> int:
        """How many vectors the classes seen are bound to, all together."""
        return int(self.bound.sum()) if len(self.bound) else self.seen

    @property
    def class_vectors(self) -> Tensor:
        return self.basis

    def start(self, task: TaskData) -> None:
        """Lines 3, 8 and 9 of Algorithm 1: make the table, bind new classes to vectors of it, take the first steps of HBO."""
        if len(self.basis) == 0:
            size, seed = self.table_size, self.setting.seed
            made = basis_vectors(size, self.class_width, self.config.gamma, seed=seed).to(self.basis)  # Eq. 7
            self.basis = made.contiguous()  # as after loading: rounding of products depends on the memory layout
        if self.tasks > 0:
            self.projection.freeze_unprotected(self.net)  # what cannot be projected learns in the first task only
        elif isinstance(self.config.first_weights, variants.Principal):
            self.set_first_weights(task, self.config.first_weights.samples)
        self.turn_back()  # an earlier task may have been broken off
        if self.learns_along_vectors:
            self.turn_to_vectors()
        rates = self.rates()
        self.resting = [p for group in rates if group["lr"] == 0 for p in group["params"] if p.requires_grad]
        for parameter in self.resting:
            parameter.requires_grad_(False)  # what does not move needs no derivatives
        self.bind_classes(task)
        self.hbo_optimizer = sgd(self.parameters(), lr=self.config.hbo_lr, momentum=self.config.momentum)
        self.eae_optimizer = sgd(rates, lr=self.config.lr, momentum=self.config.momentum)
        if self.tasks == 0 and isinstance(self.config.steps, variants.BottleneckFirst):
            self.bottleneck_first(task, self.config.steps)

    def set_first_weights(self, task: TaskData, count: int) -> None:
        """Set the hidden layers' weights by some of the first task's samples."""
        x = task.x if task.weight is None else task.x[task.weight > 0]
        some = torch.randperm(len(x), generator=self.generator)[:count].to(x.device)
        batches = [self.scale(x[part]) for part in some.split(_BATCH)]
        set_principal_weights(self.net, self.projection.hooks, batches, self.generator)

    def observe(self, batch: Batch) -> Tensor:
        """Learn from one batch: the inner loop of Algorithm 1."""
        batch = batch.without_zeros()
        if len(batch.x) == 0:
            return self.basis.new_zeros(())
        with self.ranks.share(batch) as own:
            (whole,) = self.ranks.total([self.learn(own)])
        return whole

    def learn(self, batch: Batch) -> Tensor:
        """Learn from this rank's part of a batch, and return its part of the loss."""
        when, steps = self.config.when, self.config.steps
        x = self.scale(batch.x)
        flow, z = self.forward_pass(x)  # line 7: Z_1, …, Z_L
        vector = self.bind(flow, z, batch.y)  # line 8: the vector w_k that each sample is bound to
        if isinstance(when, variants.EveryStep):
            self.absorb(flow, batch.progress, batch.steps)  # Eq. 6: P_l ← P_l − P_l r rᵀ P_l / (α + rᵀ P_l r)
        bottleneck = None
        if isinstance(steps, variants.InTurn):
            deltas = self.bottleneck_deltas(flow, x, vector)  # Eq. 5: ∂/∂Z_l (HSIC(Z_l, X) − β HSIC(Z_l, Y))
            # Line 9: θ_l ← θ_l − λ P_l Δθ_l
            self.step(self.hbo_optimizer, self.projection.gradients(flow, deltas), batch)
            earlier, (flow, z) = flow, self.forward_pass(x)
            flow.reuse(earlier)
        elif isinstance(steps, variants.Together):
            deltas = self.bottleneck_deltas(flow, x, vector)
            bottleneck = [None if delta is None else steps.weight * delta for delta in deltas]
        loss = self.ranks.weigh(self.embedding_loss(z, vector, batch.weight))  # Eq. 8: −log softmax of ⟨Z_L, w_k⟩
        self.step(self.eae_optimizer, self.projection.backward(flow, loss, bottleneck), batch)  # line 10, Eq. 9
        return loss.detach()

    def forward_pass(self, x: Tensor) -> tuple[Flow, Tensor]:
        """Compute the representations of all layers, and the last one, ``Z_L``."""
        with self.projection.hooks.watch() as flow:
            z = self.embed(x)
        return flow, z

    def embed(self, x: Tensor) -> Tensor:
        """Map scaled inputs to the last representation ``Z_L``."""
        z: Tensor = self.embedding(self.net(x))
        return z

    def similarities(self, z: Tensor, count: int) -> Tensor:
        """Similarities of ``Z_L`` to the first ``count`` vectors of the table."""
        return self.config.similarity(z, self.basis[:count]) if self.across is None else z[:, :count]

    @property
    def learns_along_vectors(self) -> bool:
        """Whether a task needs nothing of ``Z_L`` but its inner products with class vectors, which are orthonormal."""
        config = self.config
        alone = isinstance(config.steps, variants.BottleneckFirst | variants.EmbeddingAlone) and config.last.learns
        orthonormal = len(self.basis) <= self.class_width
        return alone and orthonormal and isinstance(config.similarity, variants.InnerProduct)

    @torch.no_grad()
    def turn_to_vectors(self) -> None:
        """Let the embedding layer compute ``W Z_L`` instead of ``Z_L`` until the task ends, with the table ``W`` of vectors.

        Its steps are the same, since the gradient of Eq. 8 by its parameters lies along these orthonormal vectors, and they
        take fewer products: there are often fewer vectors than dimensions, and none with the table are left.
        """
        self.across = {}
        for name, parameter in self.embedding.named_parameters():
            along = self.basis @ parameter
            self.across[name] = parameter - self.basis.T @ along
            parameter.data = along

    @torch.no_grad()
    def turn_back(self) -> None:
        """Undo `turn_to_vectors`, with what was learned since."""
        if self.across is not None:
            for name, parameter in self.embedding.named_parameters():
                parameter.data = self.across[name] + self.basis.T @ parameter
        self.across = None

    def bind_classes(self, task: TaskData) -> None:
        """Bind each new class to vectors of the table, one for each of its sub-classes (line 8)."""
        new = range(int((self.bound > 0).sum()), self.seen) if len(self.bound) else range(0)
        samples = [task.x[(task.y == row) & (True if task.weight is None else task.weight > 0)] for row in new]
        for row, x in zip(new, samples, strict=True):
            self.bound[row] = self.vectors_for(len(x))
        vectors = torch.arange(len(self.basis), device=self.basis.device)
        self.owners = torch.searchsorted(self.bound.cumsum(0), vectors, right=True) if len(self.bound) else vectors
        self.task_vectors = torch.isin(self.owners, task.class_rows)
        # A class without samples gets placeholder centers, so that centers and vectors stay aligned.
        centers = [
            self.sub_classes(x if len(x) else task.x[:1], int(self.bound[row]))
            for row, x in zip(new, samples, strict=True)
        ]
        self.centers = torch.cat(centers) if centers else self.basis.new_empty(0, 0)

    def vectors_for(self, samples: int) -> int:
        """How many vectors the next new class is bound to, so that at least one is left for each class still to come.

        It takes at most its fair share of the spare vectors, or a tenth of them if that is more: a large capacity does not
        deprive the classes that come first.
        """
        coming = self.setting.capacity - int((self.bound > 0).sum())  # with this class
        spare = len(self.basis) - int(self.bound.sum()) - coming
        share = 1 + max(spare // coming, spare // 10)
        return max(1, min(self.config.vectors_per_class, samples // self.config.samples_per_vector, share))

    @torch.no_grad()
    def sub_classes(self, x: Tensor, count: int) -> Tensor:
        """Find the centers of a class's sub-classes by k-means on the inputs of the first layer that learns."""
        if self.vectors_bound == self.seen:  # every class has one vector: there is nothing to find
            return self.basis.new_empty(count, 0)
        some = torch.randperm(len(x), generator=self.generator)[: _SAMPLES * count].to(x.device)
        inputs = [self.first_input(*self.forward_pass(self.scale(x[part]))) for part in some.split(_BATCH)]
        return kmeans(torch.cat(inputs), count, self.generator)

    def first_input(self, flow: Flow, z: Tensor) -> Tensor:
        """The input of the first layer that learns, one row per sample. It does not change during the task."""
        learn = [layer.owner.weight.requires_grad for layer in flow.layers]
        return flow.inputs[learn.index(True)].reshape(len(z), -1)

    @torch.no_grad()
    def bind(self, flow: Flow, z: Tensor, y: Tensor) -> Tensor:
        """The vector that each sample is bound to, one of its class's (line 8).

        It is that of the nearest sub-class. The sub-classes of earlier tasks are not kept: where a class comes back, it is the
        vector that ``Z_L`` is nearest to.
        """
        count = self.vectors_bound
        if count == self.seen:  # one vector per class
            return y
        old = count - len(self.centers)
        near = self.similarities(z, old)
        if len(self.centers):
            near = torch.cat([near, center_scores(self.first_input(flow, z), self.centers)], dim=1)
        return near.masked_fill(self.owners[:count] != y[:, None], float("-inf")).argmax(1)

    def bottleneck_first(self, task: TaskData, phase: variants.BottleneckFirst) -> None:
        """Line 9 for the hidden layers, before the first step of EAE: all projectors are the identity there."""
        hidden = [parameter for parameter in self.net.parameters() if parameter.requires_grad]
        if not hidden:  # a frozen net
            return
        optimizer = torch.optim.Adam(hidden, lr=self.config.hbo_lr)
        for _ in range(phase.epochs):
            order = torch.randperm(len(task), generator=self.generator).to(task.x.device)
            for whole in task.epoch(order, phase.batch_size, 0, 1):
                batch = whole.without_zeros()
                if len(batch.x) == 0 or len(whole.x) < min(phase.batch_size, len(task)):
                    continue  # HSIC of a few samples left over says little
                with self.ranks.share(batch) as own:
                    x = self.scale(own.x)
                    flow, z = self.forward_pass(x)
                    # The embedding layer learns by EAE.
                    deltas = self.bottleneck_deltas(flow, x, self.bind(flow, z, own.y), hidden_only=True)
                    gradients = self.ranks.total_gradients(self.projection.gradients(flow, deltas))
                    descend(optimizer, gradients, clip=float("inf"))

    def absorb(self, flow: Flow, progress: float, updates: int) -> None:
        """Let the projectors absorb the layers' inputs (Eq. 6)."""
        if not self.config.last.absorbs:
            flow = Flow(flow.layers[:-1], flow.inputs[:-1], flow.outputs[:-1], projected=flow.projected)
        self.projection.absorb(flow, self.config.feed, self.config.alpha, progress, updates, self.ranks)

    def bottleneck_deltas(
        self, flow: Flow, x: Tensor, vector: Tensor, *, hidden_only: bool = False
    ) -> list[Tensor | None]:
        """Derivatives of each layer's ``HSIC(Z_l, X) − β HSIC(Z_l, Y)`` (Eq. 5) by the layer's own outputs.

        ``Z_l`` is the input of the next layer (so after the activation), or the layer's output if no layer follows.
        Only the layer's own weights follow: Eq. 5 is read block by block.
        """
        following = [*flow.inputs[1:], flow.outputs[-1]]
        representations: dict[int, Tensor] = {}
        for call, output in enumerate(flow.outputs[: len(flow.outputs) - hidden_only]):
            z = following[call] if following[call].requires_grad and len(following[call]) == len(x) else output
            if output.requires_grad and len(z) == len(x):  # else the user froze the layer, or it has no row per sample
                representations[call] = z
        by_z = self.bottleneck(x, vector, [*representations.values()])
        deltas: list[Tensor | None] = [None] * len(flow.outputs)
        for (call, z), delta in zip(representations.items(), by_z, strict=True):
            output, deltas[call] = flow.outputs[call], delta
            if z is not output:  # back through the activation
                (deltas[call],) = torch.autograd.grad(z, output, delta, retain_graph=True, allow_unused=True)
            if deltas[call] is None and len(output) == len(
                x
            ):  # a parallel branch: the next layer does not depend on it
                (deltas[call],) = self.bottleneck(x, vector, [output])
        return deltas

    def bottleneck(self, x: Tensor, vector: Tensor, representations: list[Tensor]) -> list[Tensor]:
        """Derivatives of ``HSIC(Z, X) − β HSIC(Z, Y)`` by some representations. HSIC is that of the whole batch."""
        own = (x.flatten(1), vector, *(each.detach() for each in representations))
        inputs, vectors, *z = self.ranks.gather(*own)
        return [*self.ranks.own(*self.config.dependence.derivatives(inputs, vectors, z, self.config.beta))]

    def embedding_loss(self, z: Tensor, vector: Tensor, weight: Tensor | None) -> Tensor:
        """Negative log-likelihood of the vectors that samples are bound to (Eq. 8)."""
        logits = self.similarities(z, len(self.basis)) / self.config.temperature
        if isinstance(self.config.softmax, variants.SeenClasses):
            logits = logits[:, : self.vectors_bound]
        elif isinstance(self.config.softmax, variants.TaskClasses):
            logits = logits.masked_fill(~self.task_vectors, float("-inf"))
        return weighted_cross_entropy(logits, vector, weight)

    def step(self, optimizer: torch.optim.Optimizer, gradients: Mapping[Tensor, Tensor], batch: Batch) -> None:
        """Take a step ``θ_l ← θ_l − λ P_l Δθ_l`` (Eq. 5, 9) along projected gradients of a batch."""
        config = self.config
        unit = config.rate.unit(config.alpha, self.ranks.length(batch.x)) * (1 - (1 - config.lr_end) * batch.progress)
        fixed = () if config.last.learns else {*self.embedding.parameters()}
        moved = {parameter: gradient for parameter, gradient in gradients.items() if parameter not in fixed}
        descend(optimizer, self.ranks.total_gradients(moved), config.clip, unit)

    def rates(self) -> list[dict[str, Any]]:
        """The learning rates of the EAE step by layer: smaller the further a layer is from the embedding layer."""
        config = self.config
        shares = dict.fromkeys(self.net.parameters(), config.hidden_share)
        share = config.hidden_share
        for layer in reversed(self.projection.hooks.layers[:-1]):
            shares.update(dict.fromkeys(layer.owner.parameters(), config.conv_share if layer.convolution else share))
            share *= 1.0 if layer.convolution else config.layer_decay
        shares.update(dict.fromkeys(self.embedding.parameters(), 1.0))
        # One group per rate: the optimiser makes a call for each group.
        groups: dict[float, list[nn.Parameter]] = {}
        for parameter, share in shares.items():
            groups.setdefault(share, []).append(parameter)
        return [{"params": parameters, "lr": share * config.lr} for share, parameters in groups.items()]

    def finish(self, task: TaskData) -> None:
        """Absorb the task if that waits for its end (`TaskEnd`), and rebuild the projectors from their sums."""
        if isinstance(self.config.when, variants.TaskEnd):
            for batch in map(Batch.without_zeros, task.batches(self.config.when.batch_size)):
                if len(batch.x):
                    with self.ranks.share(batch) as own:
                        with torch.no_grad():
                            flow, _ = self.forward_pass(self.scale(own.x))
                        self.absorb(flow, progress=1.0, updates=own.steps)  # α as at the end of a task
        self.turn_back()
        self.projection.rebuild()
        for parameter in self.resting:
            parameter.requires_grad_(True)
        del self.resting, self.hbo_optimizer, self.eae_optimizer, self.owners, self.centers, self.task_vectors
        self.zero_grad(set_to_none=True)

    def score(self, x: Tensor) -> Tensor:
        """Log-sum-exp of the similarities to each class's vectors, divided by the temperature."""
        # Not to the whole table: rounding may depend on a matrix's size, and a larger capacity must not change a score.
        counts = self.vector_counts
        near = self.similarities(self.embed(x), int(counts.sum())) / self.config.temperature
        return class_scores(near, vectors_by_class(counts))

    @torch.no_grad()
    def vectors(self, x: Tensor) -> Tensor:
        """Directions of ``Z_L``, which are compared with the class vectors."""
        return F.normalize(self.embed(self.scale(x)), dim=1)

    def projector_sums(self) -> Mapping[str, Tensor]:
        return self.projection.sums()

    def extend(self, capacity: int) -> None:
        """Make room for more classes without moving a vector; γ is raised if it cannot be kept."""
        setting = self.setting.extended(capacity)
        size = max(len(self.basis), capacity - self.seen + self.vectors_bound)
        gamma = reachable_gamma(max(size, self.table_size), self.class_width, self.config.gamma)
        if len(self.basis):
            self.basis = extend_basis(self.basis, size, gamma, seed=setting.seed).contiguous()
        if len(self.bound):
            self.bound = torch.cat([self.bound, self.bound.new_zeros(capacity - len(self.bound))])
        self.setting, self.config = setting, replace(self.config, gamma=gamma)

    def upgraded(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Before there were sub-classes, each class had one vector."""
        return {"bound": torch.zeros(0, dtype=torch.int64), **state}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if "bound" not in self._buffers:  # pickled by a version without sub-classes
            self.register_buffer("bound", torch.zeros(0, dtype=torch.int64))

    def resize_for(self, state: Mapping[str, Tensor]) -> None:
        """Resize the table of class vectors to that of the state; it is empty before the first task."""
        if "basis" in state:
            shape, least = tuple(state["basis"].shape), self.setting.capacity
            if len(shape) != 2 or shape[1] != self.class_width or 0 < shape[0] < least:
                raise ValueError(
                    f"The state has class vectors of shape {shape}, but this model's capacity and embed_dim need at least "
                    f"{(least, self.class_width)}: make the model with those of the state."
                )
            self.basis = self.basis.new_empty(shape)
        if tuple(state["bound"].shape) in ((0,), (self.setting.capacity,)):
            self.bound = self.bound.new_empty(state["bound"].shape)


def vectors_by_class(bound: Tensor) -> Tensor:
    """Indices of each class's vectors, ``(classes, largest count)``; short rows are padded with the number of all vectors.

    Examples
    --------
    >>> vectors_by_class(torch.tensor([2, 1]))
    tensor([[0, 1],
            [2, 3]])
    """
    first = bound.cumsum(0) - bound
    place = torch.arange(max(bound.tolist(), default=1), device=bound.device)
    return torch.where(place < bound[:, None], first[:, None] + place, bound.sum())


def class_scores(near: Tensor, vectors: Tensor) -> Tensor:
    """Log-sum-exp over each class's vectors of ``near``, which has a column per vector; see `vectors_by_class`.

    A class with one vector gets that vector's similarity, bit for bit.

    Examples
    --------
    >>> class_scores(torch.tensor([[0.0, 0.0, 3.0]]), torch.tensor([[0, 1], [2, 3]]))
    tensor([[0.6931, 3.0000]])
    """
    none = torch.full_like(near.sum(1, keepdim=True), float("-inf"))
    return torch.cat([near, none], dim=1)[:, vectors].logsumexp(2)


@dataclass(frozen=True)
class CLDNetPaperConfig(CLDNetConfig):
    """The paper's settings. It names no learning rate, batch size or number of epochs.

    nHSIC with β = 500 (the form in which this β means something), one step of HBO and one of EAE per batch, projectors that
    absorb batch means, α as AOP's for linear layers (with a scale, and stated for 200 updates per task), cosines over 0.07 (as
    in the paper on equiangular basis vectors), d = 1000.
    """

    lr: float = 0.05
    momentum: float = 0.9
    hbo_lr: float = 0.003
    vectors_per_class: int = 1
    embed_init: float = 1.0
    hidden_share: float = 1.0
    conv_share: float = 1.0
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
    version = 2
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
