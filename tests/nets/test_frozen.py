"""Frozen nets in front of what learns: Ours(1), Ours(2), and a ViT whose last blocks adapt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tests.nets.encoders import PROMPTED
from tests.nets.vits import save_vit

from cldnet import CLDNetClassifier
from cldnet.methods import METHODS, build_learner, read_method
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Setting, TaskData
from cldnet.nets import Expanded, FrozenNet, is_described
from cldnet.nets.hooks import LayerHooks
from cldnet.nets.pretrained import Pretrained

LITE = {"net": "efficientnet-lite0", "size": 32}
SHAPE = (3, 40, 40)


def pictures(count: int = 20) -> tuple[NDArray[np.uint8], NDArray[np.str_]]:
    """Three classes, each with one colour weaker than the others."""
    x = np.random.default_rng(0).integers(0, 256, (3 * count, *SHAPE), dtype=np.uint8)
    y = np.repeat(["red", "green", "blue"], count)
    for colour, label in enumerate(("red", "green", "blue")):
        x[y == label, colour] //= 3
    return x, y


def ways(folder: Path, way: str) -> tuple[str, Any]:
    """A solver and its backbone."""
    one, two = save_vit(folder / "one"), save_vit(folder / "two", seed=1)
    return {
        "exact": ("exact", lambda: Expanded(SHAPE, 200, seed=0, bodies=[one])),
        "Ours(1)": ("hbo", lambda: FrozenNet(SHAPE, seed=0, bodies=[one])),
        "Ours(1), last block": ("hbo", lambda: FrozenNet(SHAPE, seed=0, bodies=[{"net": one, "adapt": 1}])),
        "Ours(1), hidden layer": (
            "hbo",
            lambda: FrozenNet(SHAPE, (24,), seed=0, bodies=[{"net": one, "pool": "mean"}]),
        ),
        "Ours(2)": ("hbo", lambda: FrozenNet(SHAPE, seed=0, bodies=[one, two])),
        "lite": ("hbo", lambda: FrozenNet(SHAPE, seed=0, bodies=[LITE])),
    }[way]


def classifier(solver: str, backbone: Any) -> CLDNetClassifier:
    return CLDNetClassifier(solver, backbone, embed_dim=16, capacity=8, epochs=2, random_state=0)


@pytest.mark.parametrize("way", ["exact", "Ours(1)", "Ours(1), last block", "Ours(1), hidden layer", "Ours(2)", "lite"])
def test_a_stream_is_learned_saved_and_resumed_to_the_bit(tmp_path: Path, way: str) -> None:
    solver, make = ways(tmp_path, way)
    x, y = pictures()
    whole = classifier(solver, make())
    for part in (slice(0, 40), slice(40, 60)):
        whole.partial_fit(x[part], y[part])
    resumed = classifier(solver, make()).partial_fit(x[:40], y[:40])
    resumed.save(tmp_path / "model")
    before = resumed.footprint().total
    for name in ("one", "two"):  # a file needs neither the folder nor the hub
        (tmp_path / name).rename(tmp_path / f"{name}-gone")
    resumed = CLDNetClassifier.load(tmp_path / "model").partial_fit(x[40:], y[40:])
    assert np.array_equal(resumed.predict_proba(x), whole.predict_proba(x))
    assert (whole.predict(x) == y).mean() > 0.9
    assert sorted(resumed.footprint().bytes) == sorted(whole.footprint().bytes)
    assert whole._fitted().learner.tasks == 2
    tables = {"class vectors", "label table"}
    kept = [sum(n for kind, n in clf.footprint().bytes.items() if kind not in tables) for clf in (resumed, whole)]
    assert kept[0] == kept[1] <= before


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_learns_behind_a_frozen_net_that_stays_as_it_is(name: str) -> None:
    method, (x, _) = read_method(name), pictures(4)
    if method.takes_maps or method.default_backbone == "none":
        pytest.skip("has a feature map of its own")
    net = FrozenNet(SHAPE, (12,), seed=0, bodies=[LITE])
    setting = Setting(SHAPE, capacity=4, seed=0)
    chain = "needs a net that is a chain of layers, which a FrozenNet is not"
    refused = {
        "icnet": "intervals of FrozenNet are not known",
        **dict.fromkeys(("apd", "den", "rcl", "pnn"), chain),
        **dict.fromkeys(PROMPTED, "hidden layers behind it"),
    }
    if name in refused:
        with pytest.raises(ValueError, match=refused[name]):
            build_learner(name, setting, backbone=net)
        return
    learner = build_learner(name, setting, backbone=net)
    images = torch.from_numpy(x)
    if method.traits.outside_data:
        learner.take_outside(images)
    for rows in ([0, 1, 4, 5], [8, 9]):  # the second task has a class of its own
        task = TaskData(images[rows], torch.tensor([row // 4 for row in rows]))
        fit_task(learner, task, epochs=1, batch_size=4)
    fresh = FrozenNet(SHAPE, seed=0, bodies=[LITE]).load_published().body.state_dict()
    for part in learner.modules():
        if isinstance(part, Pretrained):
            assert all(torch.equal(tensor, fresh[key]) for key, tensor in part.state_dict().items())
    assert torch.isfinite(learner.logits(images)).all()


def test_frozen_weights_count_as_weights() -> None:
    net = FrozenNet(SHAPE, seed=0, bodies=[LITE])
    published = sum(tensor.numel() for tensor in net.body.net.state_dict().values())
    learner = build_learner("finetune", Setting(SHAPE, capacity=4, seed=0), backbone=net)
    assert learner.network_size == published > 3_000_000


def test_a_net_without_weights_is_not_run() -> None:
    net, images = FrozenNet(SHAPE, (12,), seed=0, bodies=[LITE]), torch.from_numpy(pictures(1)[0])
    with pytest.raises(ValueError, match="has no weights yet"):
        net(images)
    fresh = net.load_published()(images)
    net = FrozenNet(SHAPE, (12,), seed=0, bodies=[LITE])
    net.load_state_dict(FrozenNet(SHAPE, (12,), seed=0, bodies=[LITE]).load_published().state_dict())
    assert torch.equal(net(images), fresh)


def test_the_net_does_not_move_and_what_is_behind_it_does() -> None:
    x, y = pictures(8)
    clf = classifier("hbo", FrozenNet(SHAPE, (12,), seed=0, bodies=[LITE])).partial_fit(x, y)
    learner: Any = clf._fitted().learner
    fresh = FrozenNet(SHAPE, (12,), seed=0, bodies=[LITE]).load_published()
    assert all(
        torch.equal(tensor, fresh.body.state_dict()[name]) for name, tensor in learner.net.body.state_dict().items()
    )
    assert not torch.equal(learner.net.hidden.layers[1].weight, fresh.hidden.layers[1].weight)
    assert [layer.name for layer in LayerHooks(learner.net, SHAPE).layers] == ["hidden.layers.1"]


def test_a_name_makes_a_map_for_the_exact_solver_and_a_frozen_net_for_the_other(tmp_path: Path) -> None:
    setting = Setting((3, 32, 32), capacity=4, seed=0)
    mapped, trained = (build_learner(name, setting, backbone="efficientnet-lite0") for name in ("exact", "cldnet"))
    assert type(mapped.backbone).__name__ == "ExpandedNet"
    assert isinstance(trained.backbone, FrozenNet)
    assert is_described(trained.backbone)
    with pytest.raises(ValueError, match="use the backbone 'expanded'"):
        build_learner("exact", setting, backbone=FrozenNet((3, 32, 32), seed=0, bodies=[LITE]))
    with pytest.raises(ValueError, match="feature map is fixed"):
        Expanded(SHAPE, 10, seed=0, bodies=[{"net": save_vit(tmp_path / "vit"), "adapt": 1}])
