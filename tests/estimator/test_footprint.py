"""What a model keeps is counted, named and constant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.nets.encoders import backbone_for
from torch import Tensor

from cldnet import CLDNetClassifier
from cldnet.device import generator
from cldnet.estimator.footprint import footprint, multiplications, paper_capacity
from cldnet.methods import METHODS, build_learner
from cldnet.methods.finetune import Finetune
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Setting, TaskData
from cldnet.nets import MLP, FeatureMap, RandomFourier, RandomReLU, WhitenedPatches

Y = np.arange(12) % 2
X = np.random.default_rng(0).normal(size=(12, 4)) + 3 * Y[:, None]

KINDS = {
    "exact": {"feature map", "sums", "lesson ids", "history"},  # the map scales its inputs itself
    "hbo": {"weights", "projectors", "class vectors", "input scaling", "history"},
}


@pytest.mark.parametrize("solver", KINDS)
def test_the_size_is_the_same_after_every_call_and_labels_are_counted_apart(solver: str) -> None:
    small: dict[str, Any] = {"alpha": 1.0} if solver == "exact" else {"embed_dim": 10, "epochs": 1}
    clf = CLDNetClassifier(solver, capacity=10, random_state=0, **small)
    prints = [clf.partial_fit(X, [f"class {i + shift}" for i in Y]).footprint() for shift in (0, 2, 4, 0, 6)]
    assert len({print.total for print in prints}) == 1
    assert len({str(sorted(print.bytes.items())) for print in prints}) == 1
    labels = [print.labels for print in prints]
    assert labels[0] < labels[1] < labels[2] == labels[3] < labels[4]
    assert set(prints[0].bytes) == KINDS[solver] | {"counters", "random state"}


@pytest.mark.parametrize("solver", KINDS)
def test_every_tensor_is_counted(solver: str) -> None:
    clf = CLDNetClassifier(solver, capacity=10, embed_dim=10, epochs=1, random_state=0).fit(X, Y)
    assert clf._model is not None
    tensors = clf._model.learner.state_dict().values()
    ids, history = 256 * 16 if solver == "exact" else 0, 1 << 15
    assert clf.footprint().total == sum(len(tensor.numpy().tobytes()) for tensor in tensors) + ids + history


def test_the_exact_solver_trains_nothing_and_its_size_depends_on_the_capacity() -> None:
    small, large = (CLDNetClassifier(capacity=c, alpha=1.0, random_state=0).fit(X, Y).footprint() for c in (10, 11))
    assert small.parameters == 0
    assert large.total - small.total == 8 * (1001 + 1)  # a feature sum and a weight, in float64


@pytest.mark.parametrize("method", METHODS)
def test_a_footprint_counts_all_bytes_of_every_method(method: str) -> None:
    learner = build_learner(method, Setting((4,), capacity=4, seed=0), **backbone_for(method, (4,)))
    counted = footprint(learner)
    assert counted.total == sum(t.numel() * t.element_size() for t in learner.state_dict().values())
    assert counted.parameters == sum(p.numel() for p in learner.parameters())


def test_the_papers_capacity_grows_by_a_vector_a_class() -> None:
    learner = build_learner("finetune", Setting((4,), capacity=4, seed=0), backbone_options={"widths": (8,)})
    network = learner.network_size
    learner.counters.copy_(torch.tensor([2, 4]))
    assert paper_capacity(learner, network, seen_at_first=2) == (network + 4 * 9) / (network + 2 * 9)


@pytest.mark.parametrize("method", ["den", "rcl", "single"])
def test_the_papers_capacity_counts_the_heads_of_methods_that_are_told_the_task(method: str) -> None:
    options = {} if method == "single" else {"units": 0}
    learner = build_learner(method, Setting((4,), 4, seed=0), options, backbone_options={"widths": (8,)})
    sizes = []
    for classes in ([0, 1], [2, 3]):
        task = TaskData(torch.randn(8, 4, generator=torch.Generator().manual_seed(0)), torch.tensor(4 * classes))
        fit_task(learner, task, epochs=1, batch_size=8)
        sizes.append((learner.network_size, learner.seen))
    net, head = 4 * 8 + 8, 2 * (8 + 1)
    due = 2.0 if method == "single" else (net + 2 * head) / (net + head)
    assert paper_capacity(learner, *sizes[0]) == due


def answer_of(features: FeatureMap, x: Tensor, classes: int) -> int:
    learner = build_learner("exact", Setting(tuple(x.shape[1:]), capacity=classes, seed=0), {}, features)
    fit_task(learner, TaskData(x, torch.arange(len(x)) % classes), epochs=1, batch_size=len(x))
    return multiplications(learner, tuple(x.shape[1:]))


def test_the_multiply_adds_of_the_default_map_are_counted() -> None:
    x = torch.randn(200, 64, generator=generator(0))
    map_, ridge, discriminant = 64 * 1000, 1001 * 10, 10 * 10
    assert answer_of(RandomReLU((64,), features=1000, seed=0), x, classes=10) == map_ + ridge + discriminant == 74_110
    assert answer_of(RandomFourier((64,), features=50, seed=0), x, classes=10) == 64 * 50 + 51 * 10 + 10 * 10


def test_the_multiply_adds_of_patches_are_counted() -> None:
    images = torch.randint(0, 256, (200, 12, 12), generator=generator(0), dtype=torch.uint8)
    patches = WhitenedPatches((12, 12), filters=20, size=5, windows=2, mirror=False, seed=0)
    places, features = 8 * 8, 2 * 20 * 2**2 + 1
    responses, pooling = 20 * 25 * places, 2 * 20 * 2**2 * places
    assert answer_of(patches, images, classes=10) == responses + pooling + features * 10 + 10 * 10


def test_more_classes_than_features_are_counted_in_factors() -> None:
    x = torch.randn(1200, 6, generator=generator(0))
    c, m = 600, 21  # axes of the scores, there and back, along them, and the middle
    assert answer_of(RandomReLU((6,), features=20, seed=0), x, classes=c) == 6 * 20 + m * c + 3 * m * c + c


def test_products_in_place_and_with_vectors_count_like_others() -> None:
    class Odd(Finetune):
        def score(self, x: Tensor) -> Tensor:
            matrix, vector, batches = torch.ones(4, 4), torch.ones(4), torch.ones(2, 3, 3)
            torch.zeros(5, 7).addmm_(torch.ones(5, 3), torch.ones(3, 7))  # 5 · 3 · 7
            torch.zeros(2, 3, 3).baddbmm_(batches, batches)  # 2 · 3 · 3 · 3
            (
                torch.mv(matrix, vector) + torch.addmv(vector, matrix, vector) + vector.clone().addmv_(matrix, vector)
            )  # 3 · 4²
            torch.dot(vector, vector) + torch.vdot(vector, vector)  # 2 · 4
            return x

    learner = Odd(MLP((4,), (2,), generator=generator(0)), Setting((4,), capacity=4, seed=0), Odd.config_class())
    assert multiplications(learner, (4,)) == 105 + 54 + 48 + 8
