"""DualHSIC: DER++ with an HSIC bottleneck on replayed samples, and replayed features aligned with new ones.

``CE(f(x)|C_task, y)``, and from the second task on ``+ α ‖f(x') − z'‖² / C + β CE(f(x''), y'')`` as in DER++,
``+ Σ_l [λx nHSIC(Z_l, X) − λy nHSIC(Z_l, Y)]`` over the stages ``Z_l`` of the net on ``x''``, and
``− a λx [nHSIC(p(h''), h) + nHSIC(p(h), h'')]``, where ``h`` and ``h''`` are the features of the stream and the replayed batch,
sample by sample, and ``p`` is a small predictor that only this term trains.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cldnet.math.hsic import (
    Kernel,
    centred_inverse,
    gaussian,
    label_normalised,
    nhsic_derivative,
    normalised,
    pull_back,
)
from cldnet.methods.config import FINITE_NOT_NEGATIVE, FINITE_POSITIVE
from cldnet.methods.derpp import DERpp, DERppConfig
from cldnet.methods.gradient import weighted_cross_entropy
from cldnet.methods.learner import Batch, Setting, TaskData
from cldnet.nets.hooks import watch_stages
from cldnet.nets.layers import linear

#: nHSIC's ridge per sample, as its authors have it.
_EPSILON = 1e-5


@dataclass(frozen=True)
class DualHSICConfig(DERppConfig):
    """Settings of DualHSIC; the defaults are its authors' for CIFAR-100."""

    distil: float = 0.1
    label: float = 0.5
    lambda_x: float = 0.001  # weight of a stage's dependence on the input
    lambda_y: float = 0.05  # weight of its dependence on the label
    align: float = 0.75  # a, weight of the alignment in units of λx
    sigma: float = 5.0  # bandwidth of the Gaussian kernels, per root of the dimension

    limits: ClassVar = {
        "lambda_x": FINITE_NOT_NEGATIVE,
        "lambda_y": FINITE_NOT_NEGATIVE,
        "align": FINITE_NOT_NEGATIVE,
        "sigma": FINITE_POSITIVE,
    }


class DualHSIC(DERpp):
    """DER++ with HSIC bottleneck and HSIC alignment.

    References
    ----------
    Z. Wang et al., "DualHSIC: HSIC-Bottleneck and Alignment for Continual Learning", ICML 2023.
    https://arxiv.org/abs/2305.00380
    """

    title = "DualHSIC"
    summary = "DER++ with an HSIC bottleneck on replayed samples and aligned features (ICML 2023)"
    kinds: ClassVar = {**DERpp.kinds, "predictor": "weights"}
    config_class = DualHSICConfig
    config: DualHSICConfig
    #: Which of the classes seen are not in the current task. `start` makes it.
    absent: Tensor

    def __init__(self, net: nn.Module, setting: Setting, config: DualHSICConfig) -> None:
        super().__init__(net, setting, config)
        # A copy of the generator draws, so that without HSIC the method is DER++ to the bit.
        source, width = self.generator.clone_state(), self.head.in_features
        hidden = max(1, width // 4)
        layers = (
            linear(width, hidden, source, bias=False),
            nn.BatchNorm1d(hidden),
            nn.ReLU(),
            linear(hidden, width, source),
        )
        self.predictor = nn.Sequential(*layers).to(setting.dtype)

    def start(self, task: TaskData) -> None:
        super().start(task)
        self.absent = torch.ones(self.seen, dtype=torch.bool, device=task.y.device)
        self.absent[task.class_rows] = False

    def finish(self, task: TaskData) -> None:
        super().finish(task)
        del self.absent

    def stream_loss(self, batch: Batch, logits: Tensor) -> Tensor:
        """Cross-entropy of the stream batch among the current task's classes."""
        among = logits[:, : self.seen].masked_fill(self.absent, -torch.inf)
        return weighted_cross_entropy(among, batch.y, batch.weight)

    def replay_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        new = self.net(self.scale(batch.x))
        logits = self.head(new)
        loss = self.stream_loss(batch, logits)
        if self.tasks > 0 and len(self.buffer):
            loss = loss + self.config.distil * self.stored_logits_loss(batch)
            drawn = self.replayed(batch)
            x = self.scale(drawn.x)
            with watch_stages(self.net) as stages:
                old = self.net(x)
            loss = loss + self.config.label * weighted_cross_entropy(self.head(old), drawn.y, None)
            if self.config.lambda_x > 0 or self.config.lambda_y > 0:
                loss = loss + self.bottleneck(x, drawn.y, stages).to(loss)
            if self.config.align * self.config.lambda_x > 0:
                loss = loss - self.config.align * self.config.lambda_x * self.alignment(new, old).to(loss)
        return loss, logits

    def bottleneck(self, x: Tensor, y: Tensor, stages: list[Tensor]) -> Tensor:
        """``Σ_l [λx nHSIC(Z_l, X) − λy nHSIC(Z_l, Y)]``; linear in the matrices of ``X`` and ``Y``, which serve all stages."""
        against = self.config.lambda_x * self._normalised(x)
        against = against - self.config.lambda_y * label_normalised(y, _EPSILON)
        rows = [z for z in stages if len(z) == len(x)]  # a user's layer may see something else than samples
        return sum(((self._normalised(z) * against).sum() for z in rows), start=against.new_zeros(()))

    def alignment(self, new: Tensor, old: Tensor) -> Tensor:
        """``nHSIC(p(h''), h) + nHSIC(p(h), h'')`` over as many samples as both batches have."""
        count = min(len(new), len(old))
        if count < 2:  # nothing depends on anything, and BatchNorm needs two samples
            return new.new_zeros(())
        pairs = (old[:count], new[:count]), (new[:count], old[:count])
        return torch.stack([(self._normalised(self.predictor(p)) * self._normalised(h)).sum() for p, h in pairs]).sum()

    def _normalised(self, z: Tensor) -> Tensor:
        """``R`` of the Gaussian kernel of samples ``(n, …)``: ``nHSIC(A, B)`` is ``tr(R_A R_B)``."""
        matrix: Tensor = _Normalised.apply(z, self.config.sigma)  # type: ignore[no-untyped-call]
        return matrix


class _Normalised(torch.autograd.Function):
    """``R = Kc (Kc + εnI)⁻¹`` of a Gaussian kernel, with its derivative in closed form."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, sigma: float) -> Tensor:
        # The ridge of a small batch is small, and its inverse magnifies what float32 rounds; float64 costs little here.
        kernel, ctx.ridge = gaussian(z.double(), sigma), _EPSILON * len(z)
        inverse = centred_inverse(kernel.less_one, ctx.ridge)
        ctx.save_for_backward(kernel.rows, kernel.less_one, inverse)
        ctx.scale, ctx.like = kernel.scale, (z.shape, z.dtype)
        return normalised(inverse, ctx.ridge)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        rows, less_one, inverse = ctx.saved_tensors
        derivative = nhsic_derivative(inverse, (gradient + gradient.mT) / 2, ctx.ridge)
        pulled = pull_back(Kernel(rows, less_one, ctx.scale), derivative)
        shape, dtype = ctx.like
        return pulled.to(dtype).reshape(shape), None
