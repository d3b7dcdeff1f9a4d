"""BatchNorm whose mean and variance are those of the whole batch, of which each rank has a part.

torch's ``SyncBatchNorm`` needs a GPU. This one is the plain formula, with one message forward and one backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class Exchange(Protocol):
    """What this needs of the ranks; see `cldnet.distributed.torchrun.TorchrunRanks`."""

    @property
    def sharing(self) -> bool:
        """Whether a batch is split now."""

    def exchange(self, tensors: Sequence[Tensor]) -> list[tuple[int, list[Tensor]]]:
        """Samples and tensors of each rank."""


class RankBatchNorm(_BatchNorm):
    """A BatchNorm of the whole batch, with the parameters and statistics of the one that it replaces."""

    def __init__(self, replaced: _BatchNorm, ranks: Exchange) -> None:
        super().__init__(
            replaced.num_features,
            replaced.eps,
            replaced.momentum,
            affine=False,
            track_running_stats=replaced.track_running_stats,
        )
        self.affine = replaced.affine
        self._parameters, self._buffers = replaced._parameters, replaced._buffers
        self.ranks = ranks
        self.train(replaced.training)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise a part of a batch by the whole batch's statistics, as `torch.nn.BatchNorm2d` does a batch."""
        learns = self.training or self.running_mean is None
        if not (learns and self.ranks.sharing):
            return super().forward(x)
        normalised, mean, variance, count = _Normalise.apply(x, self.eps, self.ranks)  # type: ignore[no-untyped-call]
        if count < 2:
            raise ValueError("BatchNorm needs more than one value per channel: use larger batches.")
        if self.training and self.track_running_stats:
            self._track(mean, variance * (count / (count - 1)))
        shape = (1, -1, *[1] * (x.ndim - 2))
        if not self.affine:
            return normalised  # type: ignore[no-any-return]
        return torch.addcmul(self.bias.view(shape), normalised, self.weight.view(shape))

    def _check_input_dim(self, input: Tensor) -> None:
        """Any number of dimensions: the module that was replaced knew what it gets."""

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor) -> None:
        assert self.num_batches_tracked is not None
        assert self.running_mean is not None
        assert self.running_var is not None
        self.num_batches_tracked.add_(1)
        rate = 1 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean), rate)
        self.running_var.lerp_(variance.to(self.running_var), rate)


class _Normalise(torch.autograd.Function):
    """``(x − mean) / √(variance + ε)`` per channel, with mean and variance over the parts of all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, eps: float, ranks: Exchange) -> tuple[Tensor, Tensor, Tensor, int]:
        dims, shape = [0, *range(2, x.ndim)], (1, -1, *[1] * (x.ndim - 2))
        own = x.mean(dims)
        squares = (x - own.view(shape)).square().sum(dims)
        sent = ranks.exchange([own, squares])
        per_sample, samples = prod(x.shape[2:]), sum(size for size, _ in sent)
        count = per_sample * samples
        mean, variance = torch.zeros_like(own), torch.zeros_like(own)
        for size, (part, _) in sent:
            mean += part * (size / samples)
        for size, (part, spread) in sent:
            variance += (spread + (part - mean).square() * (size * per_sample)) / count
        inverse = (variance + eps).rsqrt()
        normalised = (x - mean.view(shape)) * inverse.view(shape)
        ctx.save_for_backward(normalised, inverse)
        ctx.ranks, ctx.count = ranks, count
        ctx.mark_non_differentiable(mean, variance)
        return normalised, mean, variance, count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, delta: Tensor, *others: Any) -> tuple[Tensor, None, None]:
        normalised, inverse = ctx.saved_tensors
        dims, shape = [0, *range(2, delta.ndim)], (1, -1, *[1] * (delta.ndim - 2))
        along, across = torch.zeros_like(inverse), torch.zeros_like(inverse)
        for _, (plain, scaled) in ctx.ranks.exchange([delta.sum(dims), (delta * normalised).sum(dims)]):
            along += plain
            across += scaled
        along, across = along.view(shape) / ctx.count, across.view(shape) / ctx.count
        return (delta - along - normalised * across) * inverse.view(shape), None, None


def synchronise(net: nn.Module, ranks: Exchange) -> None:
    """Replace every BatchNorm of a module; names in its ``state_dict`` stay the same."""
    replaced: dict[nn.Module, nn.Module] = {}
    for parent in [*net.modules()]:
        for name, child in [*parent._modules.items()]:
            if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d):
                setattr(parent, name, replaced.setdefault(child, RankBatchNorm(child, ranks)))
