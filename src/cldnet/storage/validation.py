"""Validation of untrusted files: shapes before memory is allocated, values before they are used.

Shapes are not restated here: a learner is built on torch's ``meta`` device, where tensors have shapes and no memory, and the
names, shapes and types of a file are compared with its state. Values that must not be negative are listed below by name.
"""

from __future__ import annotations

import copy
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from cldnet.data.labels import LabelTable, as_labels
from cldnet.device import generator
from cldnet.methods import build_learner
from cldnet.methods.learner import Learner, Setting
from cldnet.nets import Described, FeatureMap, build_described, is_described, out_features
from cldnet.nets.fingerprint import WrongModule
from cldnet.storage.header import describe_content_error

#: Where a module of the user's own is in a learner's state.
USER_MODULES = ("net.", "features.net.")
#: Tensors of ours, by the last part of their names, that hold no negative numbers, and those that are above 0.
_NOT_NEGATIVE = {"class_weights", "rows", "counters", "first_classes", "squares", "trace", "shrinkage", "floor"}
_POSITIVE = {"spread", "step", "bandwidth"}
#: Those that are squared, and the largest number whose square is finite by far.
_SQUARED = {"directions", "rows", "class_weights"}
_MAX_SQUARED = 1e150
#: Numbers of an input up to which a user's module is simply run, and of one layer's output beyond that.
_SMALL_INPUT = 1 << 20
_MAX_OUTPUT = 1 << 28
_CHUNK = 1 << 20


@contextmanager
def describe_error(path: str | os.PathLike[str], what: str, advice: str = "restore a backup") -> Iterator[None]:
    """Turn whatever goes wrong over a file's content into one sentence.

    A wrong module of the user's is not the file's fault, nor is a lack of memory: sizes were checked before.
    """
    with describe_content_error(path, what, advice, passing=WrongModule):
        yield


def check_tensors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor], but: tuple[str, ...] = ()) -> None:
    """Refuse tensors that differ in name, type or shape, except names with certain prefixes."""
    for name in sorted({*found, *expected}):
        actual, due = _describe(found.get(name), "missing"), _describe(expected.get(name), "none")
        if actual != due and not name.startswith(but):
            raise ValueError(f"{name!r} is {actual}, expected {due}")


def _describe(tensor: Tensor | None, otherwise: str) -> str:
    return otherwise if tensor is None else f"{str(tensor.dtype)[6:]} of shape {tuple(tensor.shape)}"


def check_values(tensors: Mapping[str, Tensor], foreign: tuple[str, ...] = ()) -> None:
    """Refuse values that no model has: infinite, negative weights, an invalid generator.

    ``foreign`` is how the names of a user's module begin: all that is known of its values is that they are finite. Tensors on
    the meta device were not read, and are not used.
    """
    for name, tensor in tensors.items():
        if tensor.is_meta:
            continue
        last = "" if foreign and name.startswith(foreign) else name.rpartition(".")[2]
        chunks = tensor.detach().flatten().split(_CHUNK)  # the sums may have gigabytes
        if tensor.dtype == torch.bool and any(bool((chunk.view(torch.uint8) > 1).any()) for chunk in chunks):
            raise ValueError(f"{name} has values that are neither true nor false")
        if tensor.is_floating_point() and not all(bool(torch.isfinite(chunk).all()) for chunk in chunks):
            raise ValueError(f"{name} has values that are not finite")
        if last in _NOT_NEGATIVE and any(bool((chunk < 0).any()) for chunk in chunks):
            raise ValueError(f"{name} has negative values")
        if last in _POSITIVE and any(bool((chunk <= 0).any()) for chunk in chunks):
            raise ValueError(f"{name} has values of 0 or less")
        if last in _SQUARED and any(bool((chunk.abs() > _MAX_SQUARED).any()) for chunk in chunks):
            raise ValueError(f"{name} has values beyond {_MAX_SQUARED:g}")
        if last in ("random", "chance"):
            generator(0).set_state(tensor)  # torch refuses an invalid one


def read_labels(values: Any, table: LabelTable) -> frozenset[Any]:
    """Read a list of labels that need not be in a table, but are of its type."""
    if not isinstance(values, list):
        raise ValueError(f"{values!r:.80} should be a list of labels")
    kinds = {as_labels(values).dtype.kind} if values else set()
    if table.kind is not None and not kinds <= {table.classes.dtype.kind}:
        raise ValueError(f"{values[0]!r:.80} is not of the type of its other labels")
    return frozenset(values)


def empty_backbone(description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Described:
    """Build the backbone that a file describes on the meta device, and compare its shapes with the file's."""
    with torch.device("meta"):
        backbone = build_described(description)
    prefix = "features." if isinstance(backbone, FeatureMap) else "net."
    expected = {f"{prefix}{name}": tensor for name, tensor in backbone.state_dict().items()}
    check_tensors({name: tensor for name, tensor in tensors.items() if name in expected}, expected)
    return backbone


def empty_learner(method: str, backbone: str | nn.Module, setting: Setting, options: Mapping[str, Any]) -> Learner:
    """Build a learner whose own tensors are on the meta device; a user's module is copied, and run once on zeros."""
    if isinstance(backbone, nn.Module) and not isinstance(backbone, FeatureMap):
        module, backbone = backbone, copy.deepcopy(backbone)  # building may convert it
        if not isinstance(module, Described):
            _check_affordable(module, setting.input_shape)
            width = out_features(module, setting.input_shape)
            backbone.forward = lambda x: x.new_empty(len(x), width, device="meta")
    with torch.device("meta"), warnings.catch_warnings(action="ignore"):  # the learner itself will warn
        return build_learner(method, setting, options, backbone)


def is_all_state(learner: Learner) -> bool:
    """Whether all tensors of a learner are in its state, so that it can be built empty and take them over from a file."""
    return not any(
        part._non_persistent_buffers_set or any(isinstance(value, Tensor) for value in vars(part).values())
        for part in learner.modules()
    )


def check_shapes(tensors: Mapping[str, Tensor], learner: Learner) -> None:
    """Refuse a state with other names, shapes or types than a learner has, which may be on the meta device."""
    found, backbone = learner.upgraded(tensors), learner.backbone
    foreign = backbone is not None and not type(backbone).__module__.startswith("cldnet.")
    learner.resize_for(found)
    # The projectors of a user's module follow from running it: they are compared when it is built.
    check_tensors(found, learner.state_dict(), ("projection.",) if foreign and learner.counters.is_meta else ())


def check_state(tensors: Mapping[str, Tensor], learner: Learner, labels: LabelTable) -> None:
    """Refuse values that a learner cannot have with these labels."""
    found, features = learner.upgraded(tensors), getattr(learner, "features", None)
    check_values(found, USER_MODULES if features is None or is_described(features) else (*USER_MODULES, "features."))
    seen, capacity = int(found["counters"][1]), learner.setting.capacity
    if seen != len(labels) or labels.capacity not in (None, capacity):
        raise ValueError(
            f"its tensors have {seen} classes and room for {capacity}, its labels {len(labels)} and room for {labels.capacity}"
        )
    if "bound" in found:
        _check_bound(found["bound"], seen, len(found["basis"]))
    if "class_weights" not in found:
        return
    if float(found["class_weights"].sum()) > 1.01 * float(found["rows"]) + 1:  # weights are rounded
        raise ValueError("its classes have more samples than the model")
    if int(found["first_classes"]) > seen:
        raise ValueError("its map was fitted on more classes than there are")
    if any(bool((found[name][seen:] != 0).any()) for name in ("class_sums", "class_weights")):
        raise ValueError("classes that were never learned have sums")


def _check_bound(bound: Tensor, seen: int, vectors: int) -> None:
    """Refuse classes without a vector, and vectors that the table does not have; no numbers mean one vector per class."""
    if len(bound) and bool((bound[:seen] < 1).any() | (bound[seen:] != 0).any()):
        raise ValueError("there are classes without a vector, or vectors without a class")
    if max(seen, int(bound.clamp(max=vectors + 1).sum())) > vectors:
        raise ValueError(f"its {seen} classes are bound to more vectors than the {vectors} of the table")


def _check_affordable(module: nn.Module, shape: tuple[int, ...]) -> None:
    """Refuse inputs so large that the module's layers would have enormous outputs, unless it cannot run on meta."""
    if prod(shape) <= _SMALL_INPUT:
        return
    outputs: list[int] = []
    try:
        twin = copy.deepcopy(module).to("meta").eval()
        for part in twin.modules():
            part.register_forward_hook(lambda _, __, output: outputs.append(getattr(output, "numel", lambda: 0)()))
        with torch.no_grad():
            twin(torch.empty(1, *shape, device="meta"))
    except (NotImplementedError, RuntimeError, TypeError, ValueError):
        return
    if max(outputs, default=0) > _MAX_OUTPUT:
        raise ValueError(f"inputs of shape {shape} are too large for the module")
