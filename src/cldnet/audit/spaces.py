"""The forms in which a learner meets a training row: as it is, normalised, as patches, and as features of every layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from cldnet.audit.stored import LIMIT
from cldnet.audit.whitened import Whitening, whitenings
from cldnet.methods.exact import Exact
from cldnet.methods.learner import Learner, Represents
from cldnet.nets.features import RandomProjection
from cldnet.nets.patch_parts import unfolded
from cldnet.nets.patches import WhitenedPatches

__all__ = ["Space", "patch_sides", "spaces", "views"]

_TRIED = 8  # rows that tell which forms there are
_ENOUGH = 10  # rows of that task whose patches tell something
_NO_MEAN = 0.999  # nearer to a whitened patch than any mean that few images are like: of digits, up to 0.997 was seen
_ROUNDING = 1e-5  # share of a vector's length that is nothing but rounding


@dataclass(frozen=True)
class Space:
    """A form in which rows are met.

    Attributes
    ----------
    name : str
    vectors : callable
        Makes vectors of shape ``(n, vectors an input, length)`` out of inputs ``(n, …)``.
    read : callable
        Reads stored unit vectors ``(count, length)`` for the comparison with those.
    fixed : int
        How many of a vector's numbers follow from the others: one, if it is less its mean.
    sure : float
        The |cosine| from which on nothing but a row can be so near.
    """

    name: str
    vectors: Callable[[Tensor], Tensor]
    read: Callable[[Tensor], Tensor]
    fixed: int = 0
    sure: float = LIMIT


def views(x: Tensor) -> Iterator[Tensor]:
    """Images with their flips and quarter turns (of images that are not square: no turns on their side); vectors alone.

    Examples
    --------
    >>> len(list(views(torch.zeros(2, 5)))), len(list(views(torch.zeros(2, 3, 4, 4)))), len(list(views(torch.zeros(2, 3, 4))))
    (1, 8, 4)
    """
    if x.ndim < 3:
        yield x
        return
    for turns in range(4) if x.shape[-1] == x.shape[-2] else (0, 2):
        turned = torch.rot90(x, turns, (-2, -1))
        yield turned
        yield turned.flip(-1)


def patch_sides(learner: Learner) -> set[int]:
    """Sides of the square patches that the learner cuts images into: those of its convolutions and of its patch map."""
    if len(learner.setting.input_shape) < 2:
        return set()
    convolutions = (module for module in learner.modules() if isinstance(module, nn.Conv2d))
    sides = {int(module.kernel_size[0]) for module in convolutions if len({*module.kernel_size}) == 1}
    sides |= {module.size for module in learner.modules() if isinstance(module, WhitenedPatches)}
    return {side for side in sides if 1 < side <= min(learner.setting.input_shape[-2:])}


@torch.no_grad()
def spaces(learner: Learner, rows: Tensor) -> list[Space]:
    """Find all forms in which a learner meets inputs such as these, some hundred of which tell how its map whitens patches.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> learner = build_learner("finetune", Setting((4,), capacity=2, seed=0), backbone_options={"widths": (8,)})
    >>> {space.name: tuple(space.vectors(torch.ones(3, 4)).shape) for space in spaces(learner, torch.ones(3, 4))}
    {'as they are': (3, 1, 4), 'less their mean': (3, 1, 4), 'scaled': (3, 1, 4), 'into head': (3, 1, 8)}
    """
    found = [Space("as they are", _flat, _uneven), Space("less their mean", lambda x: _centred(_flat(x)), _centred, 1)]
    features = getattr(learner, "features", None)
    scale = features.scale if isinstance(features, RandomProjection) and features.net is None else learner.scale
    one = rows[:1]
    if scale(one) is not one:
        found.append(Space("scaled", lambda x: _flat(scale(x)), _as_it_is))
    if isinstance(learner, Represents):
        found.append(Space("features", lambda x: _flat(learner.represent(x)), _as_it_is))
    else:
        flows = _Flows(learner)
        known = [space.vectors(rows[:_TRIED]) for space in found]
        for name, flow in flows.of(rows[:_TRIED]).items():
            if not any(torch.equal(flow, other) for other in known):
                found.append(Space(f"into {name}", partial(flows.into, name), _as_it_is))
    return [*found, *_patch_spaces(learner, rows)]


def _patch_spaces(learner: Learner, rows: Tensor) -> Iterator[Space]:
    for side in sorted(patch_sides(learner)):
        name = f"patches of {side} × {side}"
        yield Space(name, partial(_patches, side=side), _uneven)
        yield Space(f"{name}, less their mean", partial(_centred_patches, side=side), _centred, 1)
    for name, module in learner.named_modules():
        if not isinstance(module, WhitenedPatches) or not module.fitted:
            continue
        for how, white in whitenings(module, _fitted_on(learner, rows)).items():
            words = f"patches of {module.size} × {module.size}, {how} for {name}"
            cut = partial(_whitened_patches, side=module.size, white=white)
            yield Space(words, cut, white.unfold, fixed=1, sure=_NO_MEAN)


def _fitted_on(learner: Learner, rows: Tensor) -> Tensor:
    """Those of the rows that the learner takes for classes of the task that its map was fitted on; all if it cannot tell."""
    if isinstance(learner, Exact) and 0 < int(learner.first_classes) < learner.seen:
        answers = torch.cat([learner.logits(part).argmax(1) for part in rows.split(256)])
        first = rows[answers < learner.first_classes]
        return first if len(first) >= _ENOUGH else rows
    return rows


class _Flows:
    """What flows into every linear layer while inputs are scored; that of the last inputs is kept, for the next layer."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self._last: tuple[Tensor, dict[str, Tensor]] | None = None

    def into(self, name: str, x: Tensor) -> Tensor:
        """Vectors that flow into one layer."""
        if self._last is None or self._last[0] is not x:
            self._last = x, self.of(x)
        return self._last[1][name]

    def of(self, x: Tensor) -> dict[str, Tensor]:
        """Vectors that flow into all layers, by their names, where there is one an input."""
        found: dict[str, Tensor] = {}

        def see(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
            def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
                if inputs[0].ndim == 2 and len(inputs[0]) == len(x):
                    found[name] = _flat(inputs[0].detach())

            return hook

        linear = [(name, module) for name, module in self.learner.named_modules() if isinstance(module, nn.Linear)]
        handles = [module.register_forward_pre_hook(see(name)) for name, module in linear]
        try:
            self.learner.logits(x)
        finally:
            for handle in handles:
                handle.remove()
        return found


def _flat(x: Tensor) -> Tensor:
    """One vector an input."""
    return x.flatten(1).float()[:, None]


def _patches(x: Tensor, side: int) -> Tensor:
    """All patches of every image."""
    images = x.reshape(len(x), -1, *x.shape[-2:]).float()
    patches: Tensor = torch.func.vmap(partial(unfolded, size=side))(images)
    return patches


def _centred_patches(x: Tensor, side: int) -> Tensor:
    return _centred(_patches(x, side))


def _whitened_patches(x: Tensor, side: int, white: Whitening) -> Tensor:
    return white.whiten(_patches(x, side))


def _as_it_is(units: Tensor) -> Tensor:
    return units


def _centred(vectors: Tensor) -> Tensor:
    """Vectors less their mean; what is left of an even one is rounding, and becomes zeros."""
    centred: Tensor = vectors - vectors.mean(-1, keepdim=True)
    lengths, rounding = (part.norm(dim=-1, keepdim=True) for part in (centred, _ROUNDING * vectors))
    return centred.masked_fill(lengths <= rounding, 0.0)


def _uneven(units: Tensor) -> Tensor:
    """Leave out vectors whose numbers are about equal: every even row is like them; less the mean they are compared as well."""
    even: Tensor = normalize(units).mean(1, keepdim=True).abs() * units.shape[1] ** 0.5
    return units.masked_fill(even > LIMIT, 0.0)
