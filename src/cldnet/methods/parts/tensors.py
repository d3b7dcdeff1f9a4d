"""Named tensors that are part of a learner's state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor, nn

__all__ = ["NamedTensors"]


class NamedTensors(nn.Module):
    """Copies of tensors under their own names, as buffers: names of parameters have dots, names of buffers may not.

    Examples
    --------
    >>> import torch
    >>> kept = NamedTensors({"layer.weight": torch.ones(2)})
    >>> kept["layer.weight"], list(kept.state_dict())
    (tensor([1., 1.]), ['layer:weight'])
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        for name, tensor in tensors.items():
            self.register_buffer(name.replace(".", ":"), tensor.detach().clone())

    def __getitem__(self, name: str) -> Tensor:
        return self.get_buffer(name.replace(".", ":"))

    def items(self) -> Iterator[tuple[str, Tensor]]:
        """Names and tensors."""
        return ((name.replace(":", "."), tensor) for name, tensor in self.named_buffers())
