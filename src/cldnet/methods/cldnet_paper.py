"""CLDNet as the paper has it: algorithm 1 with HSIC on, and the readings of what it leaves open that come nearest to it.

nHSIC with β = 500 (Ma et al.'s form, in which that β means something), one step of HBO and one of EAE a batch, projectors fed
with batch means, α adaptive as AOP's is for linear layers (with a scale, and stated for 200 updates a task), cosines over 0.07
(as in the paper on equiangular basis vectors), d = 1000.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cldnet.methods.cldnet import CLDNet, CLDNetConfig
from cldnet.methods.config import config_to_json
from cldnet.methods.parts.alpha import AdaptiveAlpha, Alpha, PerTask
from cldnet.methods.parts.pointing import Cosine, FixedRate, Rate, Similarity
from cldnet.methods.parts.projection import BatchMean, Feed
from cldnet.methods.parts.readings import InTurn, Range, SeenClasses, Steps
from cldnet.methods.ranges import LEARNING_RATES, Choice, LogUniform

__all__ = ["CLDNetPaper", "CLDNetPaperConfig"]


@dataclass(frozen=True)
class CLDNetPaperConfig(CLDNetConfig):
    """The paper's settings; see `cldnet.methods.cldnet.CLDNetConfig` for what they mean.

    The paper names no learning rate, batch size or number of epochs.
    """

    lr: float = 0.05
    momentum: float = 0.9
    embed_init: float = 1.0
    hidden_share: float = 1.0
    temperature: float = 0.07
    similarity: Similarity = Cosine()
    rate: Rate = FixedRate()
    feed: Feed = BatchMean()
    alpha: Alpha = PerTask(AdaptiveAlpha(10.0))
    steps: Steps = InTurn()
    softmax: Range = SeenClasses()


class CLDNetPaper(CLDNet):
    """HBO and EAE in turn.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> build_learner("cldnet-paper", Setting((4,), capacity=3, seed=0)).config.beta
    500.0
    """

    config_class = CLDNetPaperConfig
    ranges: ClassVar = {
        "lr": LEARNING_RATES,
        "hbo_lr": LogUniform(0.0003, 0.03),
        "beta": LogUniform(10.0, 2000.0),
        "alpha": Choice(
            tuple(config_to_json(PerTask(AdaptiveAlpha(scale))) for scale in (1.0, 3.0, 10.0, 30.0, 100.0))
        ),
    }
