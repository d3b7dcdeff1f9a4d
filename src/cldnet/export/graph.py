"""A model as one module that can be traced: inputs as the user has them in, probabilities and scores out."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from cldnet.export.maps import traceable, traceable_net
from cldnet.methods.cldnet import CLDNet
from cldnet.methods.exact import Exact
from cldnet.model import Model
from cldnet.nets.scale import AsTheyAre, InputScale

__all__ = ["Answering", "quiet", "traced", "translating"]


class Answering(nn.Module):
    """A model's answers. Everything that was learned is a constant in it.

    Parameters
    ----------
    model : Model
        With a class at least.

    Examples
    --------
    >>> from cldnet import CLDNetClassifier
    >>> clf = CLDNetClassifier(random_state=0).fit([[0.0, 0.1], [0.1, 0.0], [5.0, 5.1], [5.2, 5.0]], [7, 7, -7, -7])
    >>> probabilities, scores = Answering(clf._fitted())(torch.tensor([[0.0, 0.1]]))
    >>> bool((probabilities.numpy() == clf.predict_proba([[0.0, 0.1]])).all())
    True
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        learner, columns = model.learner, torch.from_numpy(model.labels.columns)
        self.scale = _Scale(learner.scale)
        self.scores: nn.Module
        if isinstance(learner, Exact):
            self.scores = nn.Sequential(traceable(learner.features), _Decided(learner, columns))
            self.temperature = model.calibration.temperature
        elif isinstance(learner, CLDNet):
            self.scores, self.temperature = _Pointed(learner, columns), 1.0
        else:
            raise ValueError(f"A model that learned by {type(learner).__name__} cannot be exported: exact and hbo can.")

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities and scores ``(n, classes)``, columns as ``classes_``."""
        scores = self.scores(self.scale(x)).double()
        return (scores / self.temperature).softmax(1), scores


class _Scale(nn.Module):
    """Inputs as the net behind takes them."""

    def __init__(self, scale: InputScale | AsTheyAre) -> None:
        super().__init__()
        self.own = scale if isinstance(scale, InputScale) else None

    def forward(self, x: Tensor) -> Tensor:
        return x if self.own is None else self.own.scaled(x).to(self.own.dtype)


class _Decided(nn.Module):
    """Scores of features by the exact solver's solution and discriminant."""

    solution: Tensor
    places: Tensor

    def __init__(self, learner: Exact, columns: Tensor) -> None:
        super().__init__()
        choice, live, rule = learner.solve()
        self.register_buffer("solution", choice.solution[:, live].contiguous())
        self.rule = type(rule)
        self.parts = len(rule)
        for number, part in enumerate(rule):
            self.register_buffer(f"rule{number}", part)
        # A class without examples is not live; it takes its score from a last column, below all others.
        found = {row: place for place, row in enumerate(live.tolist())}
        self.register_buffer("places", torch.tensor([found.get(row, len(live)) for row in columns.tolist()]))

    def forward(self, h: Tensor) -> Tensor:
        rule = self.rule(*(self.get_buffer(f"rule{number}") for number in range(self.parts)))
        known = rule.scores(h @ self.solution)
        return torch.cat([known, known.amin(1, keepdim=True) - 1], dim=1)[:, self.places]


class _Pointed(nn.Module):
    """Scores of scaled inputs by a net that points at class vectors."""

    basis: Tensor

    def __init__(self, learner: CLDNet, columns: Tensor) -> None:
        super().__init__()
        self.net, self.embedding, self.config = traceable_net(learner.net), learner.embedding, learner.config
        self.register_buffer("basis", learner.basis[columns])

    def forward(self, x: Tensor) -> Tensor:
        return self.config.similarity(self.embedding(self.net(x)), self.basis) / self.config.temperature


def traced(model: Model) -> torch.export.ExportedProgram:
    """Trace a model for any number of inputs: uint8 for a model of uint8 images, else float64."""
    answering = copy.deepcopy(Answering(model)).cpu().eval().requires_grad_(False)
    example = torch.zeros((2, *model.inputs.shape), dtype=torch.uint8 if model.inputs.pixels else torch.float64)
    rows = torch.export.Dim("n", min=1)
    with quiet(), translating("torch.export"), torch.no_grad():
        return torch.export.export(answering, (example,), dynamic_shapes=({0: rows},))


@contextmanager
def translating(what: str) -> Iterator[None]:
    """Say in a sentence that a model cannot be translated: tracers raise nearly anything, and a module may be a user's own."""
    try:
        yield
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(
            f"This model cannot be exported: {what} does not take it ({reason}). Modules of the library's own can be exported "
            "with solver='exact', and in float32 with solver='hbo'."
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep what torch says about its own code, and about packages that are not needed, from the user."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(before)
