"""LiDER, Lipschitz-driven rehearsal: an addition to a replay method that keeps the net smooth around its exemplars.

``L_base + α mean L(x') + β mean |L(x'') − relu(c)|`` with two more draws from the buffer. ``L`` is the net's
Lipschitz constant between two consecutive stages around a sample, as `cldnet.methods.parts.lipschitz` estimates it; the means
run over samples and pairs of stages. The learnable targets ``c``, one per pair, start as the mean ``L`` of the first task. Only
maps with several positions have an ``L`` that varies: the method is for convolutional nets.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from cldnet.methods.config import FINITE_NOT_NEGATIVE
from cldnet.methods.derpp import DERpp, DERppConfig
from cldnet.methods.er_ace import ERACE
from cldnet.methods.learner import Batch, Setting, TaskData
from cldnet.methods.parts.lipschitz import Lipschitz
from cldnet.methods.rehearsal import RehearsalConfig, RehearsalLearner
from cldnet.methods.xder import XDERRPC, XDERConfig
from cldnet.nets.resnet import frozen_statistics


@dataclass(frozen=True)
class LiDERConfig(RehearsalConfig):
    """Settings of LiDER; the defaults are its authors' for ER-ACE."""

    lipschitz: float = 0.1  # α, the weight of the constants
    target: float = 0.3  # β, the weight of their distance from the targets

    limits: ClassVar = {"lipschitz": FINITE_NOT_NEGATIVE, "target": FINITE_NOT_NEGATIVE}


@dataclass(frozen=True)
class DERppLiDERConfig(LiDERConfig, DERppConfig):
    """Settings of DER++ with LiDER, its authors' defaults."""

    label: float = 0.3
    lipschitz: float = 0.3
    target: float = 0.5


@dataclass(frozen=True)
class XDERRPCLiDERConfig(LiDERConfig, XDERConfig):
    """Settings of X-DER-RPC with LiDER. Its authors published none; the weights are those for DER++."""

    lipschitz: float = 0.3
    target: float = 0.5


class LiDER(RehearsalLearner, ABC):
    """The addition, to be named in front of a replay method among the bases of a class.

    References
    ----------
    L. Bonicelli et al., "On the Effectiveness of Lipschitz-Driven Rehearsal in Continual Learning", NeurIPS 2022.
    https://arxiv.org/abs/2210.06443
    """

    kinds: ClassVar[Mapping[str, str]] = {**RehearsalLearner.kinds, "lipschitz": "weights"}
    config: LiDERConfig

    def __init__(self, net: nn.Module, setting: Setting, config: LiDERConfig) -> None:
        super().__init__(net, setting, config)
        self.lipschitz = Lipschitz(self.net, setting.input_shape, setting.dtype)

    def start(self, task: TaskData) -> None:
        """Set the targets to what the constants are before any training."""
        super().start(task)
        if self.tasks == 0 and self.config.target > 0:
            self.lipschitz.fit(self.net, task.x, self.scale, self.generator)

    def replay_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        loss, logits = super().replay_loss(batch)  # type: ignore[safe-super]  # the replay method's
        if len(self.buffer) and self.config.replay and len(self.lipschitz):
            if self.config.lipschitz > 0:
                loss = loss + self.config.lipschitz * self._constants(batch).mean().to(loss)
            if self.config.target > 0:
                distance = self.lipschitz.distance(self._constants(batch))
                loss = loss + self.config.target * distance.to(loss)
        return loss, logits

    def _constants(self, batch: Batch) -> Tensor:
        """``L`` of a fresh draw from the buffer."""
        return self.lipschitz.constants(self.net, self.scale(self.replayed(batch).x), self.generator)


class ERACELiDER(LiDER, ERACE):
    """ER-ACE with LiDER; see `LiDER`."""

    title = "ER-ACE + LiDER"
    summary = "ER-ACE with Lipschitz-driven rehearsal, for convolutional nets (NeurIPS 2022)"
    config_class = LiDERConfig


class DERppLiDER(LiDER, DERpp):
    """DER++ with LiDER; see `LiDER`."""

    title = "DER++ + LiDER"
    summary = "DER++ with Lipschitz-driven rehearsal, for convolutional nets (NeurIPS 2022)"
    config_class = DERppLiDERConfig
    config: DERppLiDERConfig


class XDERRPCLiDER(LiDER, XDERRPC):
    """X-DER-RPC with LiDER; see `LiDER`."""

    title = "X-DER-RPC + LiDER"
    summary = "X-DER-RPC with Lipschitz-driven rehearsal, for convolutional nets (NeurIPS 2022)"
    kinds: ClassVar = {**LiDER.kinds, **XDERRPC.kinds}
    config_class = XDERRPCLiDERConfig
    config: XDERRPCLiDERConfig

    def _constants(self, batch: Batch) -> Tensor:
        with frozen_statistics(self.net):  # as X-DER replays
            return super()._constants(batch)
