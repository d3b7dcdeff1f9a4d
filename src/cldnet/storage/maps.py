"""Feature maps on disk, without a model: models of different users can be merged if they share one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from cldnet import storage
from cldnet.nets import Clipped, Expanded, FeatureMap, build_described, is_described
from cldnet.nets.features import FEATURE_LIMIT
from cldnet.storage.encoders import with_encoders, without_encoders
from cldnet.storage.validation import check_tensors, check_values, describe_error
from cldnet.version import __version__

_KIND = "feature map"
#: Multiplications for one input up to which a map is run on zeros.
_SMALL = 1 << 24


def save_map(features: FeatureMap, path: str | os.PathLike[str]) -> None:
    """Save a fitted map to one file, for others to learn over the same features.

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
        raise ValueError(f"{type(features).__name__} is not a feature map: pass a fitted one of cldnet.nets.")
    if not is_described(features):
        raise ValueError(
            "This map contains a module of your own, whose code cannot be saved. Share its code and weights, and a map over "
            "the outputs of that module."
        )
    if not features.fitted:
        raise ValueError("This map is not fitted: call its fit(X) first, so that everyone shares the same map.")
    tensors, left_out = without_encoders(features, features.state_dict())
    manifest = {"kind": _KIND, "version": __version__, "map": features.describe(), "map_id": features.map_id}
    storage.write(path, tensors, {**manifest, **left_out}, _read)


def load_map(path: str | os.PathLike[str]) -> FeatureMap:
    """Load a map that `save_map` wrote, to pass it to a classifier as its ``backbone``."""
    tensors, manifest = storage.read(path)
    kind = manifest.get("kind", "model")
    if kind != _KIND:
        hint = " Load it with CLDNetClassifier.load(path)." if kind == "model" else ""
        raise ValueError(f"{os.fspath(path)!r} contains a {kind}, not a feature map.{hint}")
    with describe_error(path, "feature map"):
        return _read(tensors, manifest)


def _read(tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> FeatureMap:
    with torch.device("meta"):  # shapes without memory
        features = build_described(manifest.get("map"))
    if not isinstance(features, FeatureMap):
        raise ValueError("it describes a net that is trained, not a feature map")
    tensors = with_encoders(tensors, manifest)
    check_tensors(tensors, features.state_dict())
    features.to_empty(device="cpu").load_state_dict(tensors)
    check_values(features.state_dict())
    if not _is_valid(features) or features.map_id != manifest.get("map_id"):
        raise ValueError("its tensors are not those of the map that it names")
    return features


def _is_valid(features: FeatureMap) -> bool:
    """Run a map on zeros: it should be fitted, and give whole numbers within the limits.

    Nets in front of it are not run, nor is a map over large images: their cost does not follow from the file's size.
    """
    if not features.fitted:
        return False
    inner = features.features if isinstance(features, Clipped) else features
    tried = inner.expansion if isinstance(inner, Expanded) else features
    if tried.work > _SMALL:
        return True
    h = tried(torch.zeros(1, *tried.input_shape))
    return bool((h == h.round()).all()) and float(h.abs().max()) <= FEATURE_LIMIT
