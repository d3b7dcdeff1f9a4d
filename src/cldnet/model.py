"""A learner with its labels: what a classifier holds, swaps in whole, saves and loads."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import cldnet.store as store
from cldnet.data.rows import Inputs, Rows
from cldnet.device import resolve_dtype
from cldnet.fit import Progress, TaskReport, fit_task, predict_logits
from cldnet.labels import LabelTable
from cldnet.math.basis import reachable_gamma
from cldnet.methods import build_learner
from cldnet.methods.learner import Learner, Setting, TaskData
from cldnet.methods.parts.alpha import ConstantAlpha
from cldnet.nets.features import RandomReLU
from cldnet.nets.fingerprint import Fingerprint
from cldnet.version import __version__

__all__ = ["SOLVERS", "Model", "Structure", "check_whole", "read_backbone", "solver_options"]

#: The method behind each solver's name.
SOLVERS: Mapping[str, str] = {"exact": "exact", "hbo": "cldnet"}
#: Softness of the exact solver's probabilities: its scores estimate class probabilities and lie around 0 and 1.
_EXACT_TEMPERATURE = 0.1
_DIVERGED = "Learning diverged: the numbers are no numbers any more. Lower lr, or look for enormous values in X."


@dataclass(frozen=True)
class Structure:
    """What a model is built from. None of it can change while the model lives."""

    solver: str
    backbone: str | nn.Module
    capacity: int
    embed_dim: int
    input_shape: tuple[int, ...] | None
    dtype: str

    def __post_init__(self) -> None:
        if self.solver not in SOLVERS:
            raise ValueError(f"solver={self.solver!r} is not known; use one of {sorted(SOLVERS)}.")
        if not isinstance(self.backbone, str | nn.Module):
            raise ValueError(f"backbone={self.backbone!r} should be a name or a torch.nn.Module.")
        check_whole("capacity", self.capacity)
        check_whole("embed_dim", self.embed_dim)
        if self.input_shape is not None:
            sides = self.input_shape
            if not isinstance(sides, tuple | list) or not 1 <= len(sides) <= 3:
                raise ValueError(f"input_shape={sides!r} should be None or a tuple of one to three sides, as (28, 28).")
            for side in sides:
                check_whole("A side of input_shape", side)
            object.__setattr__(self, "input_shape", tuple(map(int, sides)))
        resolve_dtype(self.dtype)

    def check_unchanged(self, now: Structure) -> None:
        """Refuse a model's parameters to be changed while it lives."""
        for name in self.__dataclass_fields__:
            then, value = getattr(self, name), getattr(now, name)
            if value is not then and value != then:
                raise ValueError(
                    f"{name} was {then!r} when the model was made and is {value!r} now. "
                    "Set it back, or call fit to begin anew."
                )


@dataclass(frozen=True)
class Model:
    """A learner, its labels, and what is known of the inputs that it was begun with."""

    learner: Learner
    labels: LabelTable
    structure: Structure
    seed: int
    inputs: Inputs

    @classmethod
    def build(cls, structure: Structure, options: Mapping[str, Any], *, seed: int, inputs: Inputs) -> Model:
        """Make a model that has learned nothing yet, over a copy of the user's module if there is one."""
        backbone, shape = structure.backbone, inputs.shape
        if isinstance(backbone, nn.Module):
            backbone = copy.deepcopy(backbone)
        # The exact solver's sums are float64 whatever is asked for; so are its scores.
        dtype = torch.float64 if structure.solver == "exact" else resolve_dtype(structure.dtype)
        try:
            learner = build_learner(
                SOLVERS[structure.solver], Setting(shape, structure.capacity, seed, dtype), options, backbone
            )
        except RuntimeError as error:  # out of the user's module
            raise ValueError(f"The backbone does not take inputs of shape {shape}: {error}") from error
        return cls(learner, LabelTable(structure.capacity), structure, seed, inputs)

    def copy(self) -> Model:
        """Copy what learns; what the model was built from stays the same object."""
        return replace(self, learner=copy.deepcopy(self.learner), labels=copy.deepcopy(self.labels))

    def learn(
        self, rows: Rows, *, epochs: int, batch_size: int, on_step: Callable[[Progress], None] | None
    ) -> TaskReport:
        """Learn rows as one task. Whoever needs the model as it was has made a copy."""
        y = torch.from_numpy(self.labels.learn(rows.y)).to(self.device)
        weight = None if rows.weight is None else torch.from_numpy(rows.weight).to(self.device)
        task = TaskData(rows.x.to(self.device), y, weight)
        try:
            report = fit_task(self.learner, task, epochs=epochs, batch_size=batch_size, on_step=on_step)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]  # torch does not list it
            raise ValueError(_DIVERGED) from error
        kept = [tensor for tensor in self.learner.state_dict().values() if tensor.is_floating_point()]
        if not self.learner.traits.one_pass:  # weights may be finite and too large to compute with
            kept.append(self.learner.logits(task.x[:64]))
        if not all(torch.isfinite(tensor).all() for tensor in kept):
            raise ValueError(_DIVERGED)
        return report

    def scores(self, x: Tensor) -> NDArray[np.float64]:
        """Scores of inputs, one column a label, in the labels' sorted order."""
        logits = predict_logits(self.learner, x.to(self.device))
        scores: NDArray[np.float64] = logits[:, torch.from_numpy(self.labels.columns)].double().cpu().numpy()
        return scores

    def probabilities(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities that go with scores: a softmax."""
        if self.structure.solver == "exact":
            scores = scores / _EXACT_TEMPERATURE
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        probabilities: NDArray[np.float64] = weights / weights.sum(axis=1, keepdims=True)
        return probabilities

    @property
    def device(self) -> torch.device:
        """Where the learner computes."""
        return self.learner.counters.device

    def save(self, path: str | os.PathLike[str], parameters: Mapping[str, Any]) -> None:
        """Write the model to one file, with the parameters of the classifier that holds it."""
        mark, backbone = None, self.structure.backbone
        if isinstance(backbone, nn.Module) and not _is_ours(backbone):
            assert self.learner.backbone is not None
            mark = Fingerprint.of(self.learner.backbone, self.inputs.shape).to_json()
        built = {name: getattr(self.structure, name) for name in self.structure.__dataclass_fields__}
        parameters = {**parameters, **built, "random_state": self.seed}
        if mark is not None:
            del parameters["backbone"]
        elif isinstance(backbone, RandomReLU):
            parameters["backbone"] = {"input_shape": backbone.input_shape, "features": backbone.out_features - 1}
        manifest = {
            "version": __version__,
            "parameters": {
                name: value.item() if isinstance(value, np.generic) else value for name, value in parameters.items()
            },
            "labels": self.labels.to_json(),
            "inputs": self.inputs.to_json(),
            "fingerprint": mark,
        }
        store.write(path, self.learner.state_dict(), manifest)

    @classmethod
    def load(
        cls,
        tensors: Mapping[str, Tensor],
        manifest: Mapping[str, Any],
        structure: Structure,
        options: Mapping[str, Any],
    ) -> Model:
        """Rebuild a model from what `save` wrote, over the user's module if it was made over one."""
        mark = None if manifest["fingerprint"] is None else Fingerprint.from_json(manifest["fingerprint"])
        backbone = structure.backbone
        if mark is None and isinstance(backbone, nn.Module) and not _is_ours(backbone):
            raise ValueError("This model has a backbone of the library's own: load it without backbone.")
        if mark is not None:
            if not isinstance(backbone, nn.Module):
                raise ValueError(
                    "This model was made over a module of your own: load(path, backbone=module) needs one of the same make."
                )
            mark.check_names(backbone)
        seed = manifest["parameters"]["random_state"]
        model = cls.build(structure, options, seed=seed, inputs=Inputs.from_json(manifest["inputs"]))
        model.learner.load_state(tensors)
        model.learner.eval()
        if mark is not None and model.learner.backbone is not None:
            mark.check_output(model.learner.backbone)
        return replace(model, labels=LabelTable.from_json(manifest["labels"]))


def read_backbone(saved: Any) -> str | nn.Module:
    """Make the backbone that a file names: a map of ours comes with its size, and its numbers are read afterwards."""
    if isinstance(saved, Mapping):
        return RandomReLU(tuple(saved["input_shape"]), features=int(saved["features"]), seed=0)
    return str(saved)


def _is_ours(backbone: nn.Module) -> bool:
    """Tell a module that a file describes in full from one whose code only the user has."""
    return isinstance(backbone, RandomReLU) and backbone.net is None


def check_whole(name: str, value: Any) -> None:
    """Refuse what is not a whole number of at least 1.

    Examples
    --------
    >>> check_whole("epochs", 2.5)
    Traceback (most recent call last):
    ...
    ValueError: epochs=2.5 should be a whole number of at least 1.
    """
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name}={value!r} should be a whole number of at least 1.")


def solver_options(structure: Structure, *, lr: float, alpha: float | str) -> dict[str, Any]:
    """Translate a classifier's parameters into the configuration of its solver's method.

    Examples
    --------
    >>> solver_options(Structure("exact", "auto", 8, 10, None, "float32"), lr=0.1, alpha="gcv")
    {'alpha': 'gcv'}
    """
    if not (isinstance(lr, int | float | np.number) and 0 < lr < float("inf")):
        raise ValueError(f"lr={lr!r} should be a positive number.")
    number = isinstance(alpha, int | float | np.number) and 0 < alpha < float("inf")
    if alpha != "gcv" and not number:
        raise ValueError(f"alpha={alpha!r} should be 'gcv' or a positive number.")
    if structure.solver == "exact":
        return {"alpha": float(alpha) if number else alpha}
    gamma = reachable_gamma(structure.capacity, structure.embed_dim)
    options: dict[str, Any] = {"embed_dim": structure.embed_dim, "gamma": gamma, "lr": lr}
    if number:
        options["alpha"] = ConstantAlpha(float(alpha))
    return options
