"""Distillation: a loss that keeps a net's answers near those of a teacher."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

__all__ = ["distillation"]


def distillation(logits: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """``T² KL(softmax(teacher/T) ‖ softmax(logits/T))``, one number a sample; zero where both say the same.

    The factor T² keeps the gradient's size independent of the temperature (Hinton et al. 2015).

    Parameters
    ----------
    logits, teacher : Tensor
        Shape ``(n, classes)``.
    temperature : float
        T: above 1, small probabilities count for more.

    Examples
    --------
    >>> import torch
    >>> distillation(torch.tensor([[0.0, 0.0], [2.0, 5.0]]), torch.tensor([[2.0, 0.0], [1.0, 4.0]]), temperature=2.0)
    tensor([0.4438, 0.0000])
    """
    student, wanted = F.log_softmax(logits / temperature, 1), F.log_softmax(teacher / temperature, 1)
    return temperature**2 * F.kl_div(student, wanted, reduction="none", log_target=True).sum(1)
