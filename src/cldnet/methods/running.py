"""What a learner holds in the middle of a task and at no other time, as tensors: so that a task can be gone on with.

A module names such attributes in its class: ``running: ClassVar = ("optimizer",)``. Each is a tensor, a whole number, a dict of
tensors, or an optimiser. What a task's beginning makes anew from the state before it (a teacher, a box) need not be named.
A module with a method ``check_running`` is asked, when it has been given its own, whether they go together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

__all__ = ["load_running", "running_state"]


def running_state(learner: nn.Module) -> dict[str, Tensor]:
    """Copy everything that the learner's modules hold in the middle of a task.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting, TaskData
    >>> learner = build_learner("finetune", Setting((2,), capacity=2, seed=0), {"momentum": 0.9})
    >>> task = TaskData(torch.eye(2), torch.tensor([0, 1]))
    >>> learner.begin_task(task)
    >>> for batch in task.batches(2):
    ...     _ = learner.observe(batch)
    >>> sorted(running_state(learner))[-2:]
    ['optimizer/5/momentum_buffer', 'optimizer/lr']
    """
    state: dict[str, Tensor] = {}
    for name, module, attribute in _named(learner):
        value = module.__dict__.get(attribute)
        if value is not None:
            state |= {f"{name}{attribute}{key}": tensor.detach().clone() for key, tensor in _taken(value).items()}
    return state


def load_running(learner: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Give a learner, whose task has begun, what `running_state` took from it later in the task."""
    known = {f"{name}{attribute}": (module, attribute) for name, module, attribute in _named(learner)}
    parts: dict[str, dict[str, Tensor]] = {place: {} for place in known}
    for key, tensor in state.items():
        place = key.split("/")[0]
        if place not in known:
            raise ValueError(f"{type(learner).__name__} holds no {place!r} in the middle of a task.")
        parts[place][key.removeprefix(place)] = tensor
    for place, (module, attribute) in known.items():
        if parts[place]:
            setattr(module, attribute, _given(module.__dict__.get(attribute), parts[place]))
    for module in {module: None for module, _ in known.values()}:
        if callable(check := getattr(module, "check_running", None)):
            check()


def _named(learner: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    for name, module in learner.named_modules():
        for attribute in getattr(type(module), "running", ()):
            yield f"{name}." if name else "", module, attribute


def _taken(value: Any) -> dict[str, Tensor]:
    if isinstance(value, Tensor):
        return {"": value}
    if isinstance(value, int):
        return {"": torch.tensor(value)}
    if isinstance(value, Mapping):
        return {f"/{key}": tensor for key, tensor in value.items()}
    momenta = {
        f"/{number}/{key}": tensor
        for number, parameter in enumerate(_parameters(value))
        for key, tensor in value.state.get(parameter, {}).items()
        if isinstance(tensor, Tensor)
    }
    rates = torch.tensor([group["lr"] for group in value.param_groups], dtype=torch.float64)
    return {**momenta, "/lr": rates}


def _given(value: Any, parts: Mapping[str, Tensor]) -> Any:
    """The attribute's value of later, made out of that at the task's beginning."""
    if isinstance(value, torch.optim.Optimizer):
        parameters = _parameters(value)
        for group, rate in zip(value.param_groups, parts["/lr"].tolist(), strict=True):
            group["lr"] = rate
        for key, tensor in parts.items():
            if key != "/lr":
                _, number, name = key.split("/")
                parameter = parameters[int(number)]
                if tensor.shape not in ((), parameter.shape):
                    raise ValueError(
                        f"{name} has the shape {tuple(tensor.shape)}, its parameter {tuple(parameter.shape)}"
                    )
                value.state[parameter][name] = tensor.clone()
        return value
    if isinstance(value, Mapping):
        return {key.removeprefix("/"): tensor.clone() for key, tensor in parts.items()}
    return _whole(parts[""]) if isinstance(value, int) else parts[""].clone()


def _whole(tensor: Tensor) -> int:
    if tensor.dtype != torch.int64 or tensor.shape != () or int(tensor) < 0:
        raise ValueError("a count should be one whole number from 0 on")
    return int(tensor)


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]
