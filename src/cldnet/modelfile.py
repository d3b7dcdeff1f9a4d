"""A model on disk: what goes into the file beside its numbers, and how a model is rebuilt from a file that may be anybody's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import cldnet.plausible as plausible
import cldnet.store as store
from cldnet.data.rows import Inputs
from cldnet.footprint import Sizes
from cldnet.labels import LabelTable
from cldnet.methods.learner import Setting
from cldnet.model import Model
from cldnet.nets import FeatureMap, build_map, is_described
from cldnet.nets.fingerprint import Fingerprint, WrongModule
from cldnet.structure import SOLVERS, Structure
from cldnet.version import __version__

__all__ = ["load_model", "read_backbone", "save_model"]


def save_model(model: Model, path: str | os.PathLike[str], parameters: Mapping[str, Any]) -> None:
    """Write a model to one file, with the parameters of the classifier that holds it."""
    mark, backbone = None, model.structure.backbone
    built = {name: getattr(model.structure, name) for name in model.structure.__dataclass_fields__}
    parameters = {**parameters, **built, "random_state": model.seed}
    if isinstance(backbone, FeatureMap) and is_described(backbone):
        parameters["backbone"] = backbone.describe()
    elif isinstance(backbone, nn.Module):
        assert model.learner.backbone is not None
        mark = Fingerprint.of(model.learner.backbone, model.inputs.shape).to_json()
        del parameters["backbone"]
    manifest = {
        "kind": "model",
        "version": __version__,
        "parameters": {
            name: value.item() if isinstance(value, np.generic) else value for name, value in parameters.items()
        },
        "labels": model.labels.to_json(),
        "stream": {"tasks": model.learner.tasks, "sizes": model.sizes.to_json()},
        "inputs": model.inputs.to_json(),
        "fingerprint": mark,
        "borrowed": sorted(model.borrowed),
        "fitted_map": isinstance(backbone, FeatureMap) and bool(backbone.fitted),
    }
    store.write(path, model.learner.state_dict(), manifest)


def load_model(
    tensors: Mapping[str, Tensor],
    manifest: Mapping[str, Any],
    structure: Structure,
    options: Mapping[str, Any],
) -> Model:
    """Rebuild a model from what `save_model` wrote, over the user's module if it was made over one."""
    mark = None if manifest["fingerprint"] is None else Fingerprint.from_json(manifest["fingerprint"])
    backbone = structure.backbone
    if mark is None and isinstance(backbone, nn.Module) and not is_described(backbone):
        raise WrongModule("This model has a backbone of the library's own: load it without backbone.")
    if mark is not None:
        if not isinstance(backbone, nn.Module):
            raise WrongModule(
                "This model was made over a module of your own: load(path, backbone=module) needs one of the same make."
            )
        mark.check_names(backbone)
    seed, inputs = manifest["parameters"]["random_state"], Inputs.from_json(manifest["inputs"])
    if mark is not None and mark.input_shape != inputs.shape:
        raise ValueError("its module was tried on inputs of another shape")
    made = SOLVERS[structure.solver], backbone, Setting(inputs.shape, structure.capacity, seed)
    plausible.check_sizes(tensors, *made, structure.embed_dim, structure.gram)
    model = Model.build(structure, options, seed=seed, inputs=inputs)
    labels = LabelTable.from_json(manifest["labels"])
    plausible.check_learner(model.learner, tensors, labels)
    model.learner.load_state(tensors)
    model.learner.eval()
    if mark is not None and model.learner.backbone is not None:
        mark.check_output(model.learner.backbone)
    borrowed = plausible.read_labels(manifest["borrowed"], labels)
    tasks, sizes = manifest["stream"]["tasks"], Sizes.from_json(manifest["stream"]["sizes"])
    if tasks not in (None, model.learner.tasks):  # older files do not say
        raise ValueError(f"it says that {tasks!r:.80} tasks were learned, and {model.learner.tasks} were counted")
    return replace(model, labels=labels, borrowed=borrowed, sizes=sizes)


def read_backbone(saved: Any, tensors: Mapping[str, Tensor]) -> str | nn.Module:
    """Make the backbone that a file names: a map of ours comes with its make and size, and its numbers are read afterwards.

    Examples
    --------
    >>> read_backbone({"kind": "random-relu", "input_shape": [2], "options": {"features": 10**8}}, {})
    Traceback (most recent call last):
    ...
    ValueError: 'features.weight' is missing, where a model as it is described has (100000000, 3)
    """
    if not isinstance(saved, Mapping):
        return str(saved)
    with torch.device("meta"):  # sizes without memory: compared before room is made
        plausible.check_shapes(tensors, build_map(saved), "features.")
    return build_map(saved)
