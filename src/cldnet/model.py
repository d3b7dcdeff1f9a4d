"""A learner with its labels: what a classifier holds, swaps in whole, saves and loads."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import cldnet.store as store
from cldnet.device import resolve_dtype
from cldnet.labels import LabelTable
from cldnet.methods import build_learner
from cldnet.methods.learner import Learner, Setting
from cldnet.methods.parts.alpha import ConstantAlpha
from cldnet.nets.fingerprint import Fingerprint
from cldnet.version import __version__

__all__ = ["SOLVERS", "Model", "Structure", "solver_options"]

#: The method behind each solver's name.
SOLVERS: Mapping[str, str] = {"exact": "exact", "hbo": "cldnet"}


@dataclass(frozen=True)
class Structure:
    """What a model is built from. None of it can change while the model lives."""

    solver: str
    backbone: str | nn.Module
    capacity: int
    embed_dim: int
    input_shape: tuple[int, ...] | None
    dtype: str


@dataclass(frozen=True)
class Model:
    """A learner, its labels, and what is known of the inputs that it was begun with.

    Attributes
    ----------
    learner : Learner
    labels : LabelTable
    structure : Structure
    seed : int
    pixels : bool
        Whether the first inputs were uint8.
    largest : float
        Largest absolute value among the first inputs.
    """

    learner: Learner
    labels: LabelTable
    structure: Structure
    seed: int
    pixels: bool
    largest: float

    @classmethod
    def build(
        cls,
        structure: Structure,
        options: Mapping[str, Any],
        *,
        input_shape: tuple[int, ...],
        seed: int,
        pixels: bool,
        largest: float,
    ) -> Model:
        """Make a model that has learned nothing yet, over a copy of the user's module if there is one."""
        backbone = structure.backbone
        if isinstance(backbone, nn.Module):
            backbone = copy.deepcopy(backbone)
        elif backbone == "auto" and structure.solver == "hbo" and len(input_shape) == 3 and min(input_shape[1:]) >= 16:
            backbone = "cnn"
        setting = Setting(input_shape, structure.capacity, seed, resolve_dtype(structure.dtype))
        learner = build_learner(SOLVERS[structure.solver], setting, options, backbone)
        return cls(learner, LabelTable(structure.capacity), structure, seed, pixels, largest)

    def check_range(self, x: Tensor) -> None:
        """Refuse images in another range than the first ones, such as 0 to 1 where those were 0 to 255."""
        if len(self.learner.setting.input_shape) == 1 or (x.dtype == torch.uint8) == self.pixels:
            return
        largest = float(x.abs().max())
        if self.pixels and largest <= 1.0:
            raise ValueError(
                "The model learned uint8 images (0 to 255) and X lies within 1: give uint8, or multiply by 255."
            )
        if not self.pixels and largest > 16 * self.largest:
            raise ValueError(
                f"The model learned images with values up to {self.largest:g} and X is uint8 with values up to "
                f"{largest:g}: bring X into the same range, for example X / 255."
            )

    def save(self, path: str | os.PathLike[str], extra: Mapping[str, Any]) -> None:
        """Write the model to one file, with what else its owner needs to know."""
        backbone = self.structure.backbone
        mark = None
        if isinstance(backbone, nn.Module):
            assert self.learner.backbone is not None
            mark = Fingerprint.of(self.learner.backbone, self.learner.setting.input_shape).to_json()
        manifest = {
            "version": __version__,
            "labels": self.labels.to_json(),
            "model": {
                "input_shape": self.learner.setting.input_shape,
                "seed": self.seed,
                "pixels": self.pixels,
                "largest": self.largest,
            },
            "fingerprint": mark,
            **extra,
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
        if mark is None and isinstance(structure.backbone, nn.Module):
            raise ValueError("This model has a backbone of the library's own: load it without backbone.")
        if mark is not None and not isinstance(structure.backbone, nn.Module):
            raise ValueError(
                "This model was made over a module of your own: load(path, backbone=module) needs one of the same make."
            )
        about = dict(manifest["model"])
        model = cls.build(structure, options, **{**about, "input_shape": tuple(about["input_shape"])})
        module = model.learner.backbone
        if mark is not None and module is not None:
            mark.check_names(module)
        model.learner.load_state(tensors)
        model.learner.eval()
        if mark is not None and module is not None:
            mark.check_output(module)
        labels = LabelTable.from_json(manifest["labels"])
        return cls(model.learner, labels, structure, model.seed, model.pixels, model.largest)


def solver_options(solver: str, *, lr: float, embed_dim: int, alpha: float | str) -> dict[str, Any]:
    """Translate a classifier's parameters into the configuration of its solver's method.

    Examples
    --------
    >>> solver_options("exact", lr=0.1, embed_dim=10, alpha="gcv")
    {'embed_dim': 10, 'alpha': 'gcv'}
    """
    if solver == "exact":
        return {"embed_dim": embed_dim, "alpha": alpha}
    options: dict[str, Any] = {"embed_dim": embed_dim, "lr": lr}
    if not isinstance(alpha, str):
        options["alpha"] = ConstantAlpha(float(alpha))
    elif alpha != "gcv":
        raise ValueError(f"alpha={alpha!r} should be 'gcv' or a positive number.")
    return options
