"""The forms in which a learner meets a training row: as it is, normalised, as patches, and as features of every layer."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

import torch
from torch import Tensor, nn

from cldnet.methods.learner import Learner, Represents
from cldnet.nets.features import RandomProjection
from cldnet.nets.patch_parts import unfolded
from cldnet.nets.patches import WhitenedPatches

__all__ = ["forms", "patch_sides", "views"]


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
    return sides | {module.size for module in learner.modules() if isinstance(module, WhitenedPatches)}


@torch.no_grad()
def forms(learner: Learner, x: Tensor) -> dict[str, Tensor]:
    """Vectors that inputs ``(n, …)`` become, by form, each of shape ``(n, vectors an input, length)``.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> learner = build_learner("finetune", Setting((4,), capacity=2, seed=0), backbone_options={"widths": (8,)})
    >>> {name: tuple(rows.shape) for name, rows in forms(learner, torch.ones(3, 4)).items()}
    {'as they are': (3, 1, 4), 'less their mean': (3, 1, 4), 'scaled': (3, 1, 4), 'into head': (3, 1, 8)}
    """
    raw = x.flatten(1).float()
    found = {"as they are": raw, "less their mean": raw - raw.mean(1, keepdim=True)}
    features = getattr(learner, "features", None)
    scale = features.scale if isinstance(features, RandomProjection) and features.net is None else learner.scale
    scaled = scale(x)
    if scaled is not x:
        found["scaled"] = scaled.flatten(1).float()
    if isinstance(learner, Represents):
        found["features"] = learner.represent(x).float()
    else:
        found |= _layer_inputs(learner, x, found.values())
    rows = {name: vectors[:, None] for name, vectors in found.items()}
    return {**rows, **_patches(x, sorted(patch_sides(learner)))}


def _layer_inputs(learner: Learner, x: Tensor, known: Collection[Tensor]) -> dict[str, Tensor]:
    """What flows into every linear layer while inputs are scored, if it is not known already."""
    found: dict[str, Tensor] = {}

    def see(name: str) -> Callable[[nn.Module, tuple[Tensor, ...]], None]:
        def hook(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            flat = inputs[0].detach().float()
            if flat.ndim == 2 and len(flat) == len(x) and not any(torch.equal(flat, other) for other in known):
                found[f"into {name}"] = flat

        return hook

    linear = [(name, module) for name, module in learner.named_modules() if isinstance(module, nn.Linear)]
    handles = [module.register_forward_pre_hook(see(name)) for name, module in linear]
    try:
        learner.logits(x)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _patches(x: Tensor, sides: list[int]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    if not sides:
        return found
    images = x.reshape(len(x), -1, *x.shape[-2:]).float()
    for side in sides:
        if 1 < side <= min(images.shape[-2:]):
            patches = torch.stack([unfolded(image, side) for image in images])
            found[f"patches of {side} × {side}"] = patches
            found[f"patches of {side} × {side}, less their mean"] = patches - patches.mean(2, keepdim=True)
    return found
