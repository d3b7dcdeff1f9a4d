"""A fitted feature map on disk, apart from any model: models of different users add up when they share one.

The file is safetensors with a JSON manifest, as a model's is (`cldnet.store`); nothing in it can be executed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cldnet import store
from cldnet.nets import Expanded, FeatureMap, build_described, is_described
from cldnet.nets.features import FEATURE_LIMIT
from cldnet.plausible import check_numbers, check_tensors, whole
from cldnet.version import __version__

__all__ = ["load_map", "save_map"]

_KIND = "feature map"
#: Products for one input up to which a map is tried.
_TRIED = 1 << 24


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
    store.write(path, features.state_dict(), manifest, _read)


def load_map(path: str | os.PathLike[str]) -> FeatureMap:
    """Read a map that `save_map` wrote; hand it to a classifier as its ``backbone``."""
    tensors, manifest = store.read(path)
    name = os.fspath(path)
    kind = manifest.get("kind", "model")
    if kind != _KIND:
        hint = " Load it with CLDNetClassifier.load(path)." if kind == "model" else ""
        raise ValueError(f"{name!r} holds a {kind}, not a feature map.{hint}")
    with whole(path, "a whole feature map"):
        return _read(tensors, manifest)


def _read(tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> FeatureMap:
    with torch.device("meta"):  # sizes without memory: compared before room is made
        features = build_described(manifest.get("map"))
    if not isinstance(features, FeatureMap):
        raise ValueError("it describes a net that learns, and not a feature map")
    check_tensors(tensors, features.state_dict())
    features.to_empty(device="cpu").load_state_dict(tensors)
    check_numbers(features.state_dict())
    if not _computes(features) or features.map_id != manifest.get("map_id"):
        raise ValueError("it has other numbers than the map that it names")
    return features


def _computes(features: FeatureMap) -> bool:
    """Try a map that came from outside on zeros: it is fitted, and gives whole numbers in their limits.

    Nets in front of it are not run, and a map over large images is not tried: their work does not follow from the file's size.
    """
    if not features.fitted:
        return False
    tried = features.expansion if isinstance(features, Expanded) else features
    if tried.work > _TRIED:
        return True
    h = tried(torch.zeros(1, *tried.input_shape))
    return bool((h == h.round()).all()) and float(h.abs().max()) <= FEATURE_LIMIT
