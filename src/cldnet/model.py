"""A learner with its labels: what a classifier holds, swaps in whole, saves and loads."""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import cldnet.store as store
from cldnet.data.rows import Inputs, Rows
from cldnet.device import resolve_dtype
from cldnet.fit import Progress, TaskReport, fit_task, portions, predict_logits
from cldnet.labels import LabelTable
from cldnet.math.calibration import Calibration, calibrate, known_probability
from cldnet.methods import build_learner
from cldnet.methods.exact import Exact
from cldnet.methods.learner import Learner, Setting, TaskData
from cldnet.midway import MidwayFile
from cldnet.nets import FeatureMap, build_map, is_described
from cldnet.nets.fingerprint import Fingerprint
from cldnet.statistics import Statistics, joined
from cldnet.structure import SOLVERS, Structure
from cldnet.version import __version__

__all__ = ["Model", "read_backbone"]

_DIVERGED = "Learning diverged: the numbers are no numbers any more. Lower lr, or look for enormous values in X."


@dataclass(frozen=True)
class Model:
    """A learner, its labels, and what is known of the inputs that it was begun with.

    ``borrowed`` has the labels of merged models that the map was fitted on, which the learner itself cannot know.
    """

    learner: Learner
    labels: LabelTable
    structure: Structure
    seed: int
    inputs: Inputs
    borrowed: frozenset[Any] = frozenset()

    @classmethod
    def build(cls, structure: Structure, options: Mapping[str, Any], *, seed: int, inputs: Inputs) -> Model:
        """Make a model that has learned nothing yet, over a copy of the user's module if there is one."""
        backbone, shape = structure.backbone, inputs.shape
        if isinstance(backbone, nn.Module):
            backbone = copy.deepcopy(backbone)
        # The exact solver's sums are float64 whatever is asked for; so are its scores.
        dtype = torch.float64 if structure.solver == "exact" else resolve_dtype(structure.dtype)
        if isinstance(backbone, FeatureMap) and is_described(backbone) and backbone.input_shape != shape:
            raise ValueError(f"The feature map takes inputs of shape {backbone.input_shape}, and X has {shape}.")
        try:
            learner = build_learner(
                SOLVERS[structure.solver], Setting(shape, structure.capacity, seed, dtype), options, backbone
            )
        except RuntimeError as error:  # out of the user's module
            raise ValueError(f"The backbone does not take inputs of shape {shape}: {error}") from error
        return cls(learner, LabelTable(structure.capacity), structure, seed, inputs)

    def copy(self, options: Mapping[str, Any]) -> Model:
        """Copy what learns, with its method's options of now; what the model was built from stays the same object."""
        twin = replace(self, learner=copy.deepcopy(self.learner), labels=copy.deepcopy(self.labels))
        twin.learner.configure(options)
        return twin

    def learn(
        self,
        rows: Rows,
        *,
        epochs: int,
        batch_size: int,
        on_step: Callable[[Progress], None] | None = None,
        checkpoint: MidwayFile | None = None,
    ) -> TaskReport:
        """Learn rows as one task. Whoever needs the model as it was has made a copy."""
        task, midway = self._task(rows, self.labels.learn(rows.y)), None
        budget: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size}
        if checkpoint is not None:
            data = {"x": task.x, "y": task.y} | ({} if task.weight is None else {"weight": task.weight})
            call = {"config": repr(self.learner.config), **budget}
            midway = checkpoint.begun(store.digest(call, {**self.learner.state_dict(), **data}))
        try:
            report = fit_task(self.learner, task, **budget, on_step=on_step, midway=midway, on_midway=checkpoint)
        except torch.linalg.LinAlgError as error:  # type: ignore[attr-defined]  # torch does not list it
            raise ValueError(_DIVERGED) from error
        kept = [tensor for tensor in self.learner.state_dict().values() if tensor.is_floating_point()]
        if not self.learner.traits.one_pass:  # weights may be finite and too large to compute with
            kept.append(self.learner.logits(task.x[:64]))
        if not all(_finite(tensor) for tensor in kept):
            raise ValueError(_DIVERGED)
        return report

    def forget(self, rows: Rows) -> None:
        """Take rows out again. A class without any weight left leaves the labels; its row stays reserved."""
        numbers = self.labels.known_rows(rows.y)
        self.exact.forget(self._task(rows, numbers))
        weights = self.exact.class_weights.cpu()
        for label, row in dict(zip(rows.y.tolist(), numbers.tolist(), strict=True)).items():
            if weights[row] == 0:
                self.labels.retire(label)

    def forget_class(self, label: Any) -> None:
        """Let go of a class's sum, and of its label."""
        (row,) = self.labels.known_rows([label])
        self.exact.forget_class(int(row))
        self.labels.retire(label)

    def absorb(self, other: Statistics) -> Model:
        """Add sums that were made over the same map, or say why they do not add up."""
        self.statistics.check_addable(other)
        rows = torch.from_numpy(self.labels.learn(other.labels.by_row)).to(self.device)
        self.exact.absorb({name: tensor.to(self.device) for name, tensor in other.tensors.items()}, rows)
        inputs = joined(self.inputs, other.inputs)
        return replace(self, inputs=inputs, borrowed=self.borrowed | other.fitted_on)

    @property
    def statistics(self) -> Statistics:
        """The model's sums; the large ones share its memory, so whoever changes them has to make a copy."""
        table = LabelTable(self.structure.capacity)
        table.learn(self.labels.by_row)
        sums, live = self.exact.sums(), torch.from_numpy(np.sort(self.labels.columns)).to(self.device)
        sums |= {name: sums[name][live] for name in ("class_sums", "class_weights")}
        tensors = {name: tensor.detach().cpu() for name, tensor in sums.items()}
        return Statistics(self.map_id, self.structure.gram, self.inputs, table, tensors, self.fitted_on)

    @property
    def exact(self) -> Exact:
        """The learner of the exact solver; another one keeps no sums."""
        if not isinstance(self.learner, Exact):
            raise ValueError(
                f"solver={self.structure.solver!r} learns by gradient steps and keeps no sums, so nothing can be taken out "
                "of it, added to it or judged as unknown: make the model with solver='exact'."
            )
        return self.learner

    @property
    def map_id(self) -> str:
        """Digest of everything between inputs and features: models add up if and only if it is the same."""
        identity = self.exact.features.map_id
        scale = self.exact.scale.state_dict()  # in front of a module of the user's own; maps do their own scaling
        if not scale:
            return identity
        digest = hashlib.sha256(identity.encode())
        for _, tensor in sorted(scale.items()):
            digest.update(tensor.detach().cpu().numpy().tobytes())
        return digest.hexdigest()[:16]

    @property
    def fitted_on(self) -> frozenset[Any]:
        """Labels that rows had which the map was fitted on, if it was fitted here or in a model that was merged."""
        first = int(self.exact.first_classes)
        return self.borrowed | {*self.labels.to_json()["labels"][:first]}

    def _task(self, rows: Rows, y: NDArray[np.int64]) -> TaskData:
        weight = None if rows.weight is None else torch.from_numpy(rows.weight).to(self.device)
        return TaskData(rows.x.to(self.device), torch.from_numpy(y).to(self.device), weight)

    def scores(self, x: Tensor) -> NDArray[np.float64]:
        """Scores of inputs, one column a label, in the labels' sorted order."""
        logits = predict_logits(self.learner, x.to(self.device))
        scores: NDArray[np.float64] = logits[:, torch.from_numpy(self.labels.columns)].double().cpu().numpy()
        return scores

    def known(self, x: Tensor) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Scores of inputs, and the probability that a row of a known class looks as strange; of the exact solver alone."""
        calibration, columns = self.calibration, torch.from_numpy(self.labels.columns)
        vectors = torch.cat([self.exact.vectors(part) for part in portions(x.to(self.device))])
        scores = self.exact.decide(vectors)[:, columns].double().cpu().numpy()
        return scores, known_probability(vectors[:, columns].double().cpu(), calibration).numpy()

    @cached_property
    def calibration(self) -> Calibration:
        """What scores of new rows are going to be like, from the sums; a model that is in use does not change any more."""
        learner, live = self.exact, torch.from_numpy(self.labels.columns).to(self.device)
        choice = learner.choice._replace(solution=learner.choice.solution[:, live])
        known = calibrate(choice, learner.class_sums[live].T, learner.class_weights[live], float(learner.rows))
        return known._replace(distances=known.distances.cpu())

    def probabilities(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Probabilities that go with scores: a softmax, at the temperature that follows from the exact solver's sums."""
        if isinstance(self.learner, Exact):
            scores = scores / self.calibration.temperature
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
        built = {name: getattr(self.structure, name) for name in self.structure.__dataclass_fields__}
        parameters = {**parameters, **built, "random_state": self.seed}
        if isinstance(backbone, FeatureMap) and is_described(backbone):
            parameters["backbone"] = backbone.describe()
        elif isinstance(backbone, nn.Module):
            assert self.learner.backbone is not None
            mark = Fingerprint.of(self.learner.backbone, self.inputs.shape).to_json()
            del parameters["backbone"]
        manifest = {
            "kind": "model",
            "version": __version__,
            "parameters": {
                name: value.item() if isinstance(value, np.generic) else value for name, value in parameters.items()
            },
            "labels": self.labels.to_json(),
            "inputs": self.inputs.to_json(),
            "fingerprint": mark,
            "borrowed": sorted(self.borrowed),
            "fitted_map": isinstance(backbone, FeatureMap) and bool(backbone.fitted),
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
        if mark is None and isinstance(backbone, nn.Module) and not is_described(backbone):
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
        borrowed = frozenset(manifest["borrowed"])
        return replace(model, labels=LabelTable.from_json(manifest["labels"]), borrowed=borrowed)


def read_backbone(saved: Any) -> str | nn.Module:
    """Make the backbone that a file names: a map of ours comes with its make and size, and its numbers are read afterwards.

    Examples
    --------
    >>> read_backbone({"kind": "random-relu", "input_shape": [2], "options": {"features": 8}}).out_features
    9
    """
    if not isinstance(saved, Mapping):
        return str(saved)
    return build_map(saved)


def _finite(tensor: Tensor) -> bool:
    """Tell whether all numbers are finite, a part at a time: the sums may have a gigabyte, and a test makes copies."""
    return all(bool(torch.isfinite(part).all()) for part in tensor.flatten().split(1 << 20))
