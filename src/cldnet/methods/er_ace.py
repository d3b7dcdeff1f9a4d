"""ER-ACE, replay with an asymmetric cross-entropy: new samples compete among their own classes only.

``CE(f(x)|C_batch, y) + CE(f(x_m)|C_seen, y_m)`` with ``C_batch`` the classes of the stream batch and ``x_m`` from memory. New
classes then do not push the logits of old ones down; only replayed samples compare old with new.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cldnet.methods.gradient import weighted_cross_entropy
from cldnet.methods.learner import Batch
from cldnet.methods.rehearsal import RehearsalLearner


class ERACE(RehearsalLearner):
    """Experience replay with asymmetric cross-entropy.

    References
    ----------
    L. Caccia et al., "New Insights on Reducing Abrupt Representation Change in Online Continual Learning", ICLR 2022.
    https://arxiv.org/abs/2104.05025
    """

    title = "ER-ACE"
    summary = "replay with an asymmetric cross-entropy (ICLR 2022)"

    def replay_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        logits = self.score(self.scale(batch.x))
        loss = asymmetric_cross_entropy(logits[:, : self.seen], batch)
        if len(self.buffer):
            old = self.replayed(batch)
            loss = loss + weighted_cross_entropy(self.score(self.scale(old.x))[:, : self.seen], old.y, None)
        return loss, logits


def asymmetric_cross_entropy(logits: Tensor, batch: Batch) -> Tensor:
    """Cross-entropy of a batch among the classes that occur in it."""
    absent = torch.ones(logits.shape[1], dtype=torch.bool, device=logits.device)
    absent[batch.y] = False
    return weighted_cross_entropy(logits.masked_fill(absent, -torch.inf), batch.y, batch.weight)
