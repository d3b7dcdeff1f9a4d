"""A fitted feature map on disk, apart from any model: models of different users add up when they share one.

The file is safetensors with a JSON manifest, as a model's is (`cldnet.store`); nothing in it can be executed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch
from torch import Tensor

from cldnet import store
from cldnet.nets import FeatureMap, build_map, is_described
from cldnet.nets.features import FEATURE_LIMIT
from cldnet.version import __version__

__all__ = ["load_map", "save_map"]

_KIND = "feature map"


def save_map(features: FeatureMap, path: str | os.PathLike[str]) -> None:
    """Write a fitted map to one file, for others to learn over the same features.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from cldnet.nets import RandomReLU
    >>> features = RandomReLU((2,), features=8, seed=0)
    >>> features.fit(torch.tensor([[0.0, 1.0], [2.0, 5.0]]))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_map(features, Path(folder) / "shared.map")
    ...     load_map(Path(folder) / "shared.map").map_id == features.map_id
    True
    """
    if not isinstance(features, FeatureMap):
        raise ValueError(f"{type(features).__name__} is not a feature map: give one out of cldnet.nets, fitted.")
    if not is_described(features):
        raise ValueError(
            "This map holds a module of your own, whose code cannot be written to a file. Share its code and weights, and "
            "a map over the outputs of that module."
        )
    if not features.fitted:
        raise ValueError(
            "This map has not been fitted: call its fit(X) first, so that all who share it have the same one."
        )
    manifest = {"kind": _KIND, "version": __version__, "map": features.describe(), "map_id": features.map_id}
    store.write(path, features.state_dict(), manifest)


def load_map(path: str | os.PathLike[str]) -> FeatureMap:
    """Read a map that `save_map` wrote; hand it to a classifier as its ``backbone``."""
    tensors, manifest = store.read(path)
    name = os.fspath(path)
    kind = manifest.get("kind", "model")
    if kind != _KIND:
        hint = " Load it with CLDNetClassifier.load(path)." if kind == "model" else ""
        raise ValueError(f"{name!r} holds a {kind}, not a feature map.{hint}")
    try:
        features = build_map(manifest.get("map"))
        _check_tensors(tensors, features.state_dict())
    except ValueError as error:
        raise ValueError(f"{name!r} does not hold a whole feature map ({error}): use the last good copy.") from error
    features.load_state_dict(tensors)
    if not _computes(features) or features.map_id != manifest.get("map_id"):
        raise ValueError(f"{name!r} holds a feature map with other numbers than were written: use the last good copy.")
    return features


def _check_tensors(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    """Refuse tensors that differ in name, type or shape: loading would convert some of them in silence."""
    for name in sorted({*found, *expected}):
        there, due = (tensors.get(name) for tensors in (found, expected))
        if there is None or due is None or (there.dtype, there.shape) != (due.dtype, due.shape):
            raise ValueError(f"the numbers of {name!r} do not fit the description")


def _computes(features: FeatureMap) -> bool:
    """Try a map that came from outside on zeros: it is fitted, and gives whole numbers in their limits."""
    if not features.fitted:
        return False
    try:
        h = features(torch.zeros(1, *features.input_shape))
    except (ArithmeticError, RuntimeError, MemoryError):
        return False
    return bool((h == h.round()).all()) and float(h.abs().max()) <= FEATURE_LIMIT
