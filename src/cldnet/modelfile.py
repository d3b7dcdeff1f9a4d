"""A model on disk: what goes into the file beside its numbers, and how a model is rebuilt from a file that may be anybody's."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import cldnet.plausible as plausible
import cldnet.store as store
from cldnet.data.rows import Inputs
from cldnet.footprint import Sizes
from cldnet.labels import LabelTable
from cldnet.lessons import LESSON_TENSORS, Lessons, Receipts, read_lessons, write_lessons
from cldnet.methods.exact import Exact
from cldnet.methods.learner import Learner, Setting
from cldnet.model import Model
from cldnet.nets import Described, FeatureMap, build_described, is_described
from cldnet.nets.fingerprint import Fingerprint, WrongModule
from cldnet.structure import SOLVERS, Settings, Structure, solver_options
from cldnet.version import __version__

__all__ = ["load_model", "read_backbone", "save_model"]


def save_model(model: Model, path: str | os.PathLike[str], parameters: Mapping[str, Any]) -> None:
    """Write a model to one file, with the parameters of the classifier that holds it, if it can be loaded from there again."""
    manifest, tensors = _manifest(model, parameters), model.learner.state_dict()
    if isinstance(model.learner, Exact):
        more, said = write_lessons(model.lessons, model.receipts, model.labels)
        tensors, manifest = tensors | more, manifest | said
    store.write(path, tensors, manifest, partial(_check_loadable, model.learner))


def _manifest(model: Model, parameters: Mapping[str, Any]) -> dict[str, Any]:
    mark, backbone = None, model.structure.backbone
    built = {field.name: getattr(model.structure, field.name) for field in fields(Structure)}
    parameters = {**parameters, **built, "random_state": model.seed}
    if isinstance(backbone, Described) and is_described(backbone):
        parameters["backbone"] = backbone.describe()
    elif isinstance(backbone, nn.Module):
        assert model.learner.backbone is not None
        mark = Fingerprint.of(model.learner.backbone, model.inputs.shape).to_json()
        del parameters["backbone"]
    return {
        "kind": "model",
        "version": __version__,
        "parameters": {
            name: value.item() if isinstance(value, np.generic) else value for name, value in parameters.items()
        },
        "labels": model.labels.to_json(),
        "stream": {"tasks": model.learner.tasks, "sizes": model.sizes.to_json(), "session": model.session},
        "inputs": model.inputs.to_json(),
        "fingerprint": mark,
        "borrowed": sorted(model.borrowed),
        "fitted_map": isinstance(backbone, FeatureMap) and bool(backbone.fitted),
    }


class _Said(NamedTuple):
    """What a manifest says of a model beside its parameters, each part sound in itself."""

    mark: Fingerprint | None
    seed: int
    inputs: Inputs
    labels: LabelTable
    borrowed: frozenset[Any]
    tasks: int | None
    sizes: Sizes
    session: str | None
    lessons: Lessons
    receipts: Receipts | None

    @classmethod
    def of(cls, manifest: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> _Said:
        mark = None if manifest["fingerprint"] is None else Fingerprint.from_json(manifest["fingerprint"])
        inputs, labels = Inputs.from_json(manifest["inputs"]), LabelTable.from_json(manifest["labels"])
        if mark is not None and mark.input_shape != inputs.shape:
            raise ValueError("its module was tried on inputs of another shape")
        borrowed, stream = plausible.read_labels(manifest["borrowed"], labels), manifest["stream"]
        session = stream.get("session")  # older files do not say
        if session is not None and not isinstance(session, str):
            raise ValueError(f"{session!r:.80} is no session's digest")
        sizes, seed = Sizes.from_json(stream["sizes"]), manifest["parameters"]["random_state"]
        lessons, receipts = read_lessons(tensors, manifest, labels)
        if (receipts is not None) != manifest["parameters"]["receipts"]:
            raise ValueError("it has receipts and says that it keeps none, or the other way round")
        return cls(mark, seed, inputs, labels, borrowed, stream["tasks"], sizes, session, lessons, receipts)

    def check_sizes(self, tensors: Mapping[str, Tensor], structure: Structure) -> None:
        """Refuse tensors of other sizes than such a model would have."""
        made = SOLVERS[structure.solver], structure.backbone, Setting(self.inputs.shape, structure.capacity, self.seed)
        plausible.check_sizes(tensors, *made, structure.embed_dim, structure.gram)

    def check_tasks(self, learner: Learner) -> None:
        if self.tasks not in (None, learner.tasks):  # older files do not say
            raise ValueError(f"it says that {self.tasks!r:.80} tasks were learned, and {learner.tasks} were counted")


def _check_loadable(learner: Learner, tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> None:
    """Do with what is about to be written whatever `load` is going to do with it, but for building the model."""
    parameters, said = manifest["parameters"], _Said.of(manifest, tensors)
    tensors = _of_the_learner(tensors)
    plausible.check_parameters(parameters)
    _check_device(parameters["device"])
    named = "auto" if said.mark is not None else parameters["backbone"]
    backbone = learner.backbone if said.mark is not None else _on_paper(named, tensors)
    built = {field.name: parameters[field.name] for field in fields(Structure) if field.name != "backbone"}
    structure = Structure(backbone=backbone or named, **built)
    solver_options(structure, Settings(**{field.name: parameters[field.name] for field in fields(Settings)}))
    said.check_sizes(tensors, structure)
    plausible.check_state(learner, tensors, said.labels)
    said.check_tasks(learner)
    if said.mark is not None and learner.backbone is not None:
        said.mark.check_output(learner.backbone)


def _check_device(name: str) -> None:
    """Refuse a device that no machine has; that this one lacks it is no reason, for another one may load the file."""
    try:
        known = name == "auto" or torch.device(name).type != "meta"
    except RuntimeError:
        known = False
    if not known:
        raise ValueError(f"device={name!r:.80} is no device; use 'auto', 'cpu' or 'cuda'")


def load_model(
    tensors: Mapping[str, Tensor],
    manifest: Mapping[str, Any],
    structure: Structure,
    options: Mapping[str, Any],
) -> Model:
    """Rebuild a model from what `save_model` wrote, over the user's module if it was made over one."""
    said, backbone = _Said.of(manifest, tensors), structure.backbone
    tensors = _of_the_learner(tensors)
    if said.mark is None and isinstance(backbone, nn.Module) and not is_described(backbone):
        raise WrongModule("This model has a backbone of the library's own: load it without backbone.")
    if said.mark is not None:
        if not isinstance(backbone, nn.Module) or is_described(backbone):  # whose output need not be tried
            raise WrongModule(
                "This model was made over a module of your own: load(path, backbone=module) needs one of the same make."
            )
        said.mark.check_names(backbone)
    said.check_sizes(tensors, structure)
    model = Model.build(structure, options, seed=said.seed, inputs=said.inputs)
    plausible.check_learner(model.learner, tensors, said.labels)
    _check_tied(tensors, model.learner.state_dict())
    model.learner.load_state(tensors)
    model.learner.eval()
    if said.mark is not None and model.learner.backbone is not None:
        said.mark.check_output(model.learner.backbone)
    said.check_tasks(model.learner)
    model = replace(model, labels=said.labels, borrowed=said.borrowed, sizes=said.sizes, session=said.session)
    return replace(model, lessons=said.lessons, receipts=said.receipts)


def _of_the_learner(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if name not in LESSON_TENSORS}


def _check_tied(tensors: Mapping[str, Tensor], made: Mapping[str, Tensor]) -> None:
    """Refuse different numbers for what is one tensor with two names, as in a module with tied weights."""
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in made.items():
        place = tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()
        other = first.setdefault(place, name)
        if other != name and tensor.numel() and not torch.equal(tensors[other], tensors[name]):
            raise ValueError(f"{other!r} and {name!r} are one tensor in the module, and two that differ here")


def read_backbone(saved: Any, tensors: Mapping[str, Tensor]) -> str | nn.Module:
    """Make the backbone that a file names: a map of ours comes with its make and size, and its numbers are read afterwards.

    Examples
    --------
    >>> read_backbone({"kind": "random-relu", "input_shape": [2], "options": {"features": 10**8}}, {})
    Traceback (most recent call last):
    ...
    ValueError: 'features.weight' is missing, where a model as it is described has (100000000, 3)
    """
    made = _on_paper(saved, tensors)
    return made if isinstance(made, str) else build_described(saved)


def _on_paper(saved: Any, tensors: Mapping[str, Tensor]) -> str | nn.Module:
    """Make the backbone without its numbers, whose sizes are compared before room is made for them."""
    if not isinstance(saved, Mapping):
        return str(saved)
    with torch.device("meta"):
        made = build_described(saved)
    plausible.check_shapes(tensors, made, "features." if isinstance(made, FeatureMap) else "net.")
    return made
