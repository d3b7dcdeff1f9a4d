"""Supervised contrastive losses: samples of a class should be similar, those of other classes should not.

``P_ij`` is the softmax over row i of similarities divided by a temperature.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

#: Added to a probability before its logarithm: a positive that is far away from its anchor then has no pull (OCM's code).
_FLOOR = 1e-8
#: The temperature for which SupCon's loss has the factor one.
_BASE_TEMPERATURE = 0.07


def mixed_similarities(z: Tensor, features: Tensor, offset: int) -> Tensor:
    """OCM's ``z zᵀ + z f[:, i:i+d]ᵀ``: projections are compared with each other, and with d features from i = ``offset`` on."""
    return z @ z.mT + z @ features[:, offset : offset + z.shape[1]].mT


def label_loss(similarity: Tensor, rows: Tensor, columns: Tensor, temperature: float) -> Tensor:
    """Mean over rows of the mean of −log P over the columns with the row's label. Every label of a row needs a column."""
    return _label_mean(_surprise(similarity, temperature), rows, columns)


def pair_loss(similarity: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Twice the `label_loss` without similarities of samples to themselves, and −log P of the partner.

    Sample i and sample i + n of 2n are partners, two views of one image; ``labels`` has all 2n. As in OCM's code, a sample
    still counts among its own positives, with P = 0: this adds a constant.
    """
    count = len(labels) // 2
    alone = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    surprise = _surprise(similarity.masked_fill(alone, -torch.inf), temperature)
    partners = torch.cat([surprise.diagonal(count), surprise.diagonal(-count)])
    return 2 * _label_mean(surprise, labels, labels) + partners.mean()


def _surprise(similarity: Tensor, temperature: float) -> Tensor:
    """``−log P``, at most −log 1e-8."""
    return -torch.log(F.softmax(similarity / temperature, dim=1) + _FLOOR)


def _label_mean(losses: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    same = (rows.unsqueeze(1) == columns).to(losses.dtype)
    return ((losses * same).sum(1) / same.sum(1)).mean()


def asymmetric_supcon(z: Tensor, y: Tensor, anchors: Tensor, temperature: float) -> Tensor:
    """Co²L's loss: ``τ/.07`` times the mean over all samples of ``anchors`` times the mean of −log P over its positives.

    Positives are the other samples of the class, of which each sample needs one; all but the sample itself are in the softmax.
    ``anchors`` has a weight per sample: zero for those of past classes, which only serve as negatives.
    """
    alone = torch.eye(len(z), dtype=torch.bool, device=z.device)
    log_p = F.log_softmax((z @ z.mT / temperature).masked_fill(alone, -torch.inf), dim=1)
    positive = (y.unsqueeze(1) == y) & ~alone
    losses = -log_p.masked_fill(~positive, 0).sum(1) / positive.sum(1)
    return temperature / _BASE_TEMPERATURE * (anchors * losses).mean()


def relation_loss(z: Tensor, teacher: Tensor, temperature: float, teacher_temperature: float) -> Tensor:
    """Co²L's distillation of relations: ``−Σ_j P*_ij log P_ij``, j ≠ i, as a mean over i; P* is the teacher's."""
    others = ~torch.eye(len(z), dtype=torch.bool, device=z.device)
    student, wanted = ((v @ v.mT)[others].reshape(len(z), -1) for v in (z, teacher))
    return F.cross_entropy(student / temperature, F.softmax(wanted / teacher_temperature, dim=1))
