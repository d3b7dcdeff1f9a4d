"""What a file says of itself, held against what is in it: sizes before anything is built, numbers before they are believed."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from cldnet.device import generator
from cldnet.labels import LabelTable, as_labels
from cldnet.methods import backbone_name
from cldnet.methods.learner import Learner, Setting
from cldnet.methods.parts.moments import moments_for
from cldnet.methods.parts.sums import upgraded
from cldnet.nets import FeatureMap, FrozenNet, build_backbone, is_described, out_features
from cldnet.nets.features import RandomReLU
from cldnet.nets.fingerprint import WrongModule
from cldnet.nets.scale import InputScale
from cldnet.nets.taps import Projectable
from cldnet.store import ODD, enough_memory, lack_of_memory

__all__ = [
    "MODULES",
    "check_learner",
    "check_numbers",
    "check_parameters",
    "check_shapes",
    "check_sizes",
    "check_state",
    "check_tensors",
    "read_labels",
    "whole",
]

#: Tensors of ours, by the last part of their names, that never hold a negative number, and those that are above 0.
_NOT_NEGATIVE = {"class_weights", "rows", "counters", "first_classes", "squares", "trace", "shrinkage", "floor"}
_POSITIVE = {"spread", "step", "bandwidth"}
#: Those that are squared, and what is then still a number.
_SQUARED = {"directions", "rows", "class_weights"}
_MOST_SQUARED = 1e150
#: Where a module of the user's own is in a learner's state.
MODULES = ("net.", "features.net.")
#: Numbers of an input up to which a user's module is simply tried, and of one layer's output for an input beyond.
_TRIED = 1 << 20
_MOST_OUTPUTS = 1 << 28
_MOST_THREADS = 1 << 12
_BLOCK = 1 << 20


@contextmanager
def whole(path: str | os.PathLike[str], what: str, advice: str = "use the last good copy") -> Iterator[None]:
    """Turn whatever goes wrong over a file's content into one sentence.

    A wrong module of the user's is no fault of the file, nor is a lack of memory: sizes were found to be right before.

    Examples
    --------
    >>> with whole("shelf/model", "a whole model"):
    ...     {}["labels"]
    Traceback (most recent call last):
    ...
    ValueError: 'shelf/model' does not hold a whole model ('labels'): use the last good copy.
    """
    with enough_memory(f"for what {os.fspath(path)!r} holds"):
        try:
            yield
        except (ValueError, *ODD) as error:
            if isinstance(error, WrongModule) or lack_of_memory(error) is not None:
                raise
            why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise ValueError(f"{os.fspath(path)!r} does not hold {what} ({why:.500}): {advice}.") from error


def check_tensors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse tensors that differ in name, type or shape: loading would convert some of them in silence.

    Examples
    --------
    >>> check_tensors({"a": torch.zeros(2)}, {"a": torch.zeros(2, dtype=torch.float64)})
    Traceback (most recent call last):
    ...
    ValueError: the numbers of 'a' do not fit the description
    """
    for name in sorted({*found, *expected}):
        there, due = (tensors.get(name) for tensors in (found, expected))
        if there is None or due is None or (there.dtype, there.shape) != (due.dtype, due.shape):
            raise ValueError(f"the numbers of {name!r} do not fit the description")


def check_shapes(tensors: Mapping[str, Tensor], made: nn.Module, prefix: str = "") -> None:
    """Refuse a file without tensors of the shapes that a module has, whose own may be on paper alone (``"meta"``).

    Examples
    --------
    >>> check_shapes({"net.weight": torch.zeros(1, 3)}, nn.Linear(2, 1, bias=False, device="meta"), "net.")
    Traceback (most recent call last):
    ...
    ValueError: 'net.weight' is of shape (1, 3), where a model as it is described has (1, 2)
    """
    _compare_shapes(tensors, {f"{prefix}{name}": tuple(each.shape) for name, each in made.state_dict().items()})


def check_numbers(tensors: Mapping[str, Tensor], foreign: tuple[str, ...] = ()) -> None:
    """Refuse numbers that no model has: not finite, truth values beside 0 and 1, negative weights, a generator that cannot be.

    Parameters
    ----------
    tensors : mapping of Tensor
    foreign : tuple of str
        How names begin of which nothing is known but that they are finite: those of a user's module.

    Examples
    --------
    >>> check_numbers({"scale.spread": torch.tensor([1.0, 0.0])})
    Traceback (most recent call last):
    ...
    ValueError: scale.spread has numbers of 0 or less
    """
    for name, tensor in tensors.items():
        last = name.rpartition(".")[2]
        own = not name.startswith(foreign)
        parts = tensor.detach().flatten().split(_BLOCK)  # a part at a time: the sums may have a gigabyte
        if tensor.dtype == torch.bool and any(bool((part.view(torch.uint8) > 1).any()) for part in parts):
            raise ValueError(f"{name} has truth values that are neither true nor false")
        if tensor.is_floating_point() and not all(bool(torch.isfinite(part).all()) for part in parts):
            raise ValueError(f"{name} has numbers that are not finite")
        if own and last in _NOT_NEGATIVE and any(bool((part < 0).any()) for part in parts):
            raise ValueError(f"{name} has negative numbers")
        if own and last in _POSITIVE and any(bool((part <= 0).any()) for part in parts):
            raise ValueError(f"{name} has numbers of 0 or less")
        if own and last in _SQUARED and any(bool((part.abs() > _MOST_SQUARED).any()) for part in parts):
            raise ValueError(f"{name} has numbers beyond {_MOST_SQUARED:g}")
        if own and last in ("random", "chance"):
            generator(0).set_state(tensor)  # torch refuses what is none


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Refuse parameters of a classifier that no one looks at when it is made.

    Examples
    --------
    >>> check_parameters({"n_threads": 10**6, "verbose": 0, "random_state": 0, "device": "auto"})
    Traceback (most recent call last):
    ...
    ValueError: n_threads=1000000 cannot be
    """
    seed, threads = parameters["random_state"], parameters.get("n_threads")
    sound = {
        "random_state": type(seed) is int and 0 <= seed < 2**32,
        "n_threads": threads is None or (type(threads) is int and 1 <= threads <= _MOST_THREADS),
        "device": isinstance(parameters.get("device", "auto"), str),
    }
    for name, is_sound in sound.items():
        if not is_sound:
            raise ValueError(f"{name}={parameters.get(name)!r} cannot be")


def read_labels(values: Any, table: LabelTable) -> frozenset[Any]:
    """Take a list of labels that may not be in a table, but are of its kind.

    Examples
    --------
    >>> read_labels(["cat", 1], LabelTable(capacity=2))
    Traceback (most recent call last):
    ...
    ValueError: y mixes labels of types ['int', 'str']: use one type for all labels of a model.
    """
    if not isinstance(values, list):
        raise ValueError(f"{values!r:.80} should be a list of labels")
    kinds = {as_labels(values).dtype.kind} if values else set()
    if table.kind is not None and not kinds <= {table.classes.dtype.kind}:
        raise ValueError(f"{values[0]!r:.80} is not of the kind of its other labels")
    return frozenset(values)


def check_sizes(
    tensors: Mapping[str, Tensor],
    method: str,
    backbone: str | nn.Module,
    setting: Setting,
    embed_dim: int,
    gram: str | int,
) -> None:
    """Refuse tensors of other sizes than the learner would have that a file describes, before room is made for it.

    What a module of the user's own has is as large as the user made it; the rest follows from its output.

    Examples
    --------
    >>> check_sizes({}, "exact", "auto", Setting((4,), capacity=10**9, seed=0), embed_dim=8, gram="full")
    Traceback (most recent call last):
    ...
    ValueError: 'features.weight' is missing, where a model as it is described has (1000, 5)
    """
    shape, net = setting.input_shape, backbone
    by_name = isinstance(net, str)
    with torch.device("meta"):  # sizes without memory
        scale = InputScale(shape)
        if isinstance(net, str):
            net = build_backbone(backbone_name(method, net, shape), shape, setting.seed)
    if isinstance(net, FeatureMap):
        if method != "exact":
            raise ValueError(f"its solver trains a net, and a {net.kind} map is fixed")
        check_shapes(tensors, net, "features.")
        _compare_sums(tensors, net.out_features, setting.capacity, gram)
        return
    frozen = isinstance(net, FrozenNet)
    if not frozen:  # which scales its inputs itself
        check_shapes(tensors, scale, "scale.")
    if not (by_name or frozen):
        _check_bearable(net, shape)
    width = int(net.out_features) if frozen else _last_width(net) if by_name else out_features(net, shape)  # type: ignore[arg-type]
    if method == "exact":
        with torch.device("meta"):
            expanded = RandomReLU((width,), seed=0, net=net if by_name else None)
        check_shapes(tensors, expanded, "features.")
        _compare_sums(tensors, expanded.out_features, setting.capacity, gram)
        return
    due: dict[str, tuple[int, ...]] = {"embedding.weight": (embed_dim, width)}
    if by_name or frozen:
        check_shapes(tensors, net, "net.")
        widths = [layer.weight[0].numel() + (layer.bias is not None) for layer in _layers(net)]
        due |= {f"projection.layers.{i}.P": (1, side, side) for i, side in enumerate([*widths, width + 1])}
    _compare_shapes(tensors, due)


def check_learner(learner: Learner, tensors: Mapping[str, Tensor], labels: LabelTable) -> None:
    """Refuse a state that a learner, made and empty, cannot have with these labels."""
    found = upgraded(tensors)
    learner.resize_for(found)
    check_tensors(found, learner.state_dict())
    check_state(learner, found, labels)


def check_state(learner: Learner, tensors: Mapping[str, Tensor], labels: LabelTable) -> None:
    """Refuse numbers that a learner cannot have with these labels; names and shapes are its own."""
    features = getattr(learner, "features", None)
    check_numbers(tensors, MODULES if features is None or is_described(features) else (*MODULES, "features."))
    _check_learned(tensors, learner.setting.capacity, labels)


def _check_learned(tensors: Mapping[str, Tensor], capacity: int, labels: LabelTable) -> None:
    seen = int(tensors["counters"][1])
    if seen != len(labels) or labels.capacity != capacity:
        raise ValueError(
            f"it has room for {capacity} classes and counted {seen}, and its labels have room for {labels.capacity} and are "
            f"{len(labels)}"
        )
    if len(tensors.get("basis", range(seen))) < seen:
        raise ValueError("there are classes without a vector")
    if "class_weights" not in tensors:
        return
    if float(tensors["class_weights"].sum()) > 1.01 * float(tensors["rows"]) + 1:  # not to the bit: weights are rounded
        raise ValueError("its classes have more rows than there were")
    if int(tensors["first_classes"]) > seen:
        raise ValueError("its map was fitted on more classes than there are")
    if any(bool((tensors[name][seen:] != 0).any()) for name in ("class_sums", "class_weights")):
        raise ValueError("classes that nobody has taught have sums")


def _compare_shapes(tensors: Mapping[str, Tensor], due: Mapping[str, tuple[int, ...]]) -> None:
    for name, shape in due.items():
        there = f"of shape {tuple(tensors[name].shape)}" if name in tensors else "missing"
        if name not in tensors or tuple(tensors[name].shape) != shape:
            raise ValueError(f"{name!r} is {there}, where a model as it is described has {shape}")


def _compare_sums(tensors: Mapping[str, Tensor], width: int, capacity: int, gram: str | int) -> None:
    _compare_shapes(tensors, {"class_sums": (capacity, width), "class_weights": (capacity,)})
    if "gram" in tensors:  # a file from before G was packed
        _compare_shapes(tensors, {"gram": (width, width)})
        return
    with torch.device("meta"):
        check_shapes(tensors, moments_for(gram, width), "second.")


def _layers(net: nn.Module) -> list[Projectable]:
    # What is frozen for good has buffers in the place of parameters.
    return [module for module in net.modules() if isinstance(module, Projectable) and "weight" in module._parameters]


def _last_width(net: nn.Module) -> int:
    """Length of the vectors that a net of ours gives, without a run of it: on paper, that takes torch a second."""
    return int(_layers(net)[-1].weight.shape[0])


def _check_bearable(module: nn.Module, shape: tuple[int, ...]) -> None:
    """Refuse inputs of a size at which a module's layers would give enormous outputs; a module that cannot tell is tried."""
    if prod(shape) <= _TRIED:
        return
    try:
        twin = copy.deepcopy(module).to("meta").eval()
        outputs: list[int] = []
        for part in twin.modules():
            part.register_forward_hook(lambda _, __, output: outputs.append(getattr(output, "numel", lambda: 0)()))
        with torch.no_grad():
            twin(torch.empty(1, *shape, device="meta"))
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        return
    if max(outputs, default=0) > _MOST_OUTPUTS:
        raise ValueError(f"inputs of shape {shape} are more than the module can be meant for")
