"""A classifier as one module that can be traced: raw inputs in, probabilities and scores out.

The modules here compute what a map's `predict_features` does on whole batches, without threads and in-place operations.
Products of whole numbers in float64 are exact in any order, so random maps of raw inputs give the same bits; behind float32, as
that of a net or of filters, the last digits may differ.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from math import pi, prod
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.estimator.model import Model
from cldnet.methods.cldnet import CLDNet, class_scores, vectors_by_class
from cldnet.methods.exact import Exact
from cldnet.nets import (
    Clipped,
    Expanded,
    FeatureMap,
    FrozenNet,
    Linear,
    RandomFourier,
    RandomReLU,
    WhitenedPatches,
    is_described,
)
from cldnet.nets.features import (
    DIRECTIONS,
    FEATURE_LIMIT,
    INPUT_LIMIT,
    INPUT_STEPS,
    LINEAR_STEP,
    WEIGHT_STEPS,
    InputScale,
    TailScale,
    compress,
    cosines,
    log2_linear,
    with_constant,
)
from cldnet.nets.patches import CLIP_STDS, normalised, unfolded
from cldnet.nets.pretrained import Concatenated, FrozenBody, Pretrained


class TraceableClassifier(nn.Module):
    """A model's probabilities and scores ``(n, classes)``, columns as ``classes_``; all that was learned is a constant."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        learner, columns = model.learner, torch.from_numpy(model.labels.columns)
        self.scale = learner.scale if isinstance(learner.scale, InputScale) else None
        self.scores: nn.Module
        self.temperature = model.temperature
        if learner.keeps_sums:
            self.scores = nn.Sequential(traceable_map(model.exact.features), _ExactScores(model.exact, columns))
        else:
            self.scores = _VectorScores(cast("CLDNet", learner), columns)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities and scores."""
        if self.scale is not None:
            x = self.scale.scaled(x).to(self.scale.dtype)
        scores = self.scores(x).double()
        return (scores / self.temperature).softmax(1), scores


class _ExactScores(nn.Module):
    """Scores of features by the exact solver's solution and discriminant."""

    solution: Tensor
    places: Tensor

    def __init__(self, learner: Exact, columns: Tensor) -> None:
        super().__init__()
        solution, live, rule = learner.solve()[:3]
        self.register_buffer("solution", solution.solution[:, live].contiguous())
        self.rule = type(rule)
        self.parts = len(rule)
        for number, part in enumerate(rule):
            self.register_buffer(f"rule{number}", part)
        # A class without samples is not live; it takes its score from a last column, below all others.
        found = {row: place for place, row in enumerate(live.tolist())}
        self.register_buffer("places", torch.tensor([found.get(row, len(live)) for row in columns.tolist()]))

    def forward(self, h: Tensor) -> Tensor:
        rule = self.rule(*(self.get_buffer(f"rule{number}") for number in range(self.parts)))
        known = rule.scores(h @ self.solution)
        return torch.cat([known, known.amin(1, keepdim=True) - 1], dim=1)[:, self.places]


class _VectorScores(nn.Module):
    """Scores of scaled inputs by a trained net and class vectors."""

    basis: Tensor
    vectors: Tensor

    def __init__(self, learner: CLDNet, columns: Tensor) -> None:
        super().__init__()
        self.net, self.embedding, self.config = learner.net, learner.embedding, learner.config
        if isinstance(self.net, FrozenNet):
            self.net = copy.deepcopy(self.net)
            self.net.body = _traceable_body(self.net.body, self.net.input_shape)  # type: ignore[assignment]
        counts = learner.vector_counts
        self.register_buffer("basis", learner.basis[: int(counts.sum())])
        self.register_buffer("vectors", vectors_by_class(counts)[columns])

    def forward(self, x: Tensor) -> Tensor:
        near = self.config.similarity(self.embedding(self.net(x)), self.basis) / self.config.temperature
        return class_scores(near, self.vectors)


def traceable_map(features: FeatureMap) -> nn.Module:
    """Convert a fitted map to a form that can be traced, or refuse it."""
    if isinstance(features, Expanded):
        body = _traceable_body(features.body, features.input_shape)
        assert isinstance(features.expansion, RandomReLU)  # sentences have another, and were refused
        return nn.Sequential(body, _Unrounded(features.expansion))
    if type(features) is RandomReLU and features.net is not None:
        return _Unrounded(features)
    if is_described(features):
        if isinstance(features, Clipped):
            return _Shortened(traceable_map(features.features), features.norm)
        if isinstance(features, RandomReLU | RandomFourier):
            return _RandomFeatures(features)
        if isinstance(features, Linear):
            return _LinearFeatures(features)
        if isinstance(features, WhitenedPatches):
            return _Patches(features)
    raise ValueError(
        f"A model over {type(features).__name__} cannot be exported: only the library's own maps can, and your modules if they "
        "are the backbone themselves."
    )


def _traceable_body(body: FrozenBody | Concatenated, input_shape: tuple[int, ...]) -> nn.Module:
    """Convert one pretrained net, or several, to a form that can be traced."""
    parts = [part for part in body.modules() if isinstance(part, Pretrained)]
    if not parts:
        raise ValueError(
            "A model of sentences cannot be exported: its tokens are not part of a graph. Use CLDNetClassifier.load(path)."
        )
    embedded = [_Embedded(part, input_shape) for part in parts]
    return Concatenated(embedded) if isinstance(body, Concatenated) else embedded[0]  # type: ignore[arg-type]


class _Embedded(nn.Module):
    """Images to the vectors of a pretrained net. Resizing is linear along each side, so it is two matrix products."""

    down: Tensor
    across: Tensor

    def __init__(self, body: Pretrained, input_shape: tuple[int, ...]) -> None:
        super().__init__()
        self.body, self.out_features = body, body.out_features
        height, width = input_shape[-2:]
        self.resizes = (height, width) != (body.size, body.size)
        if self.resizes:
            sides, begins = body.preprocessing.resize_and_crop(height, width)
            matrices = []
            for before, after, first in zip((height, width), sides, begins, strict=True):
                column = torch.eye(before)[None, None]
                mode = body.preprocessing.interpolation
                resized = F.interpolate(column, (after, before), mode=mode, antialias=True)
                matrices.append(resized[0, 0, first : first + body.size])
            self.register_buffer("down", matrices[0])
            self.register_buffer("across", matrices[1].T.contiguous())

    def forward(self, x: Tensor) -> Tensor:
        images = x.unsqueeze(1) if x.ndim == 3 else x
        pixels = images.to(self.body.pixel_mean.dtype).expand(-1, 3, -1, -1)
        if self.resizes:
            pixels = (self.down @ (pixels @ self.across)).clamp(0, 255)
        return self.body.embed_pixels(self.body.normalise(pixels))


class _Unrounded(nn.Module):
    """Random ReLU features of a net's vectors; a user's own net goes first, in the type of its weights."""

    def __init__(self, expansion: RandomReLU) -> None:
        super().__init__()
        self.expansion = expansion
        own = () if expansion.net is None else expansion.net.parameters()
        self.dtype = next((parameter.dtype for parameter in own), torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        net = self.expansion.net
        return self.expansion.unrounded(x if net is None else net(x.to(self.dtype)))


def _scaled(scale: InputScale, x: Tensor) -> Tensor:
    """Scale inputs as ``scale.scaled`` does, without a branch or a choice of columns that depends on tensors."""
    if not isinstance(scale, TailScale):
        return scale.scaled(x)
    heavy = scale.unit > 0
    distance = (x.double() - scale.median) / torch.where(heavy, scale.unit, 1.0)
    drawn_in = torch.where(heavy, distance.sign() * log2_linear(1 + distance.abs()), x.double())
    return (drawn_in - scale.mean) / scale.spread


class _RandomFeatures(nn.Module):
    """Random ReLU or Fourier features: rounded inputs times whole weights in float64, rounded again."""

    table: Tensor

    def __init__(self, made: RandomReLU | RandomFourier) -> None:
        super().__init__()
        self.made, self.inputs = made, prod(made.input_shape)
        if isinstance(made, RandomFourier):
            self.turn = DIRECTIONS / (2 * pi * INPUT_STEPS * WEIGHT_STEPS * float(made.bandwidth))
            self.register_buffer("table", cosines())

    def forward(self, x: Tensor) -> Tensor:
        made, weight = self.made, self.made.weight.double()
        rounded = compress(_scaled(made.scale, x)).round().clamp(-INPUT_LIMIT, INPUT_LIMIT).flatten(1)
        bias = weight[:, self.inputs :].sum(1) * round(INPUT_STEPS)
        products = rounded @ weight[:, : self.inputs].T + bias
        if isinstance(made, RandomReLU):
            return with_constant((products * made.step).round().clamp(0, FEATURE_LIMIT))
        index = ((products * self.turn).round().to(torch.int64) + made.phase) & (DIRECTIONS - 1)
        return with_constant(self.table[index].double())


class _LinearFeatures(nn.Module):
    """Scaled inputs, rounded twice as in the map."""

    def __init__(self, made: Linear) -> None:
        super().__init__()
        self.made = made

    def forward(self, x: Tensor) -> Tensor:
        rounded = compress(_scaled(self.made.scale, x)).round().clamp(-INPUT_LIMIT, INPUT_LIMIT).flatten(1)
        return with_constant((rounded / LINEAR_STEP).round().clamp(-FEATURE_LIMIT, FEATURE_LIMIT))


class _Patches(nn.Module):
    """Whitened patches: responses of all positions to all filters, pooled over windows."""

    def __init__(self, made: WhitenedPatches) -> None:
        super().__init__()
        self.made = made

    def forward(self, x: Tensor) -> Tensor:
        made = self.made
        images = x.reshape(-1, made.channels, *made.input_shape[-2:]).float()
        patches = normalised(unfolded(images, made.size), made.floor)
        sums: dict[int, Tensor] = {}
        for view in made.views():  # that of the mirror image is added
            for bank in view.banks:
                responses = patches @ bank.filters + bank.offset
                sides = responses.clamp(min=made.threshold), responses.clamp(max=-made.threshold)
                pooled = torch.stack([view.windows @ side for side in sides], dim=1)
                first = bank.columns.start
                sums[first] = sums[first] + pooled if first in sums else pooled
        pooled = torch.cat(list(sums.values()), dim=3).flatten(1)
        scaled = (pooled - made.mean) * (FEATURE_LIMIT / CLIP_STDS / made.spread)
        return with_constant(scaled.clamp(-FEATURE_LIMIT, FEATURE_LIMIT).double())


class _Shortened(nn.Module):
    """Features, scaled down to a length where they are longer; none are 0, since one of them is constant."""

    def __init__(self, features: nn.Module, norm: float) -> None:
        super().__init__()
        self.features, self.norm = features, norm

    def forward(self, x: Tensor) -> Tensor:
        features: Tensor = self.features(x)
        length = features.double().square().sum(1, keepdim=True).sqrt()
        return features * (self.norm / length).clamp(max=1)


def trace(model: Model) -> torch.export.ExportedProgram:
    """Trace a model for any number of inputs: uint8 for a model of uint8 images, else float64."""
    classifier = copy.deepcopy(TraceableClassifier(model)).cpu().eval().requires_grad_(False)
    example = torch.zeros((2, *model.inputs.shape), dtype=torch.uint8 if model.inputs.pixels else torch.float64)
    with quiet(), export_errors("torch.export"), torch.no_grad():
        return torch.export.export(classifier, (example,), dynamic_shapes=({0: torch.export.Dim("n", min=1)},))


@contextmanager
def export_errors(tool: str) -> Iterator[None]:
    """Turn any error of a tracer, or of a user's module in it, into one ValueError."""
    try:
        yield
    except Exception as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ValueError(
            f"This model cannot be exported: {tool} failed ({reason}). The library's own modules can be exported with "
            "solver='exact', and in float32 with solver='hbo'."
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """Silence torch's warnings about its own code and about packages that are not needed."""
    log = logging.getLogger("torch.onnx")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        log.setLevel(before)
