"""What a model keeps is counted, named and constant."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cldnet import CLDNetClassifier
from cldnet.footprint import footprint, paper_capacity
from cldnet.methods import METHODS, build_learner
from cldnet.methods.learner import Setting

Y = np.arange(12) % 2
X = np.random.default_rng(0).normal(size=(12, 4)) + 3 * Y[:, None]

KINDS = {
    "exact": {"feature map", "sums"},  # the map scales its inputs itself
    "hbo": {"weights", "projectors", "class vectors", "input scaling"},
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
    assert clf.footprint().total == sum(len(tensor.numpy().tobytes()) for tensor in tensors)


def test_the_exact_solver_trains_nothing_and_its_size_depends_on_the_capacity() -> None:
    small, large = (CLDNetClassifier(capacity=c, alpha=1.0, random_state=0).fit(X, Y).footprint() for c in (10, 11))
    assert small.parameters == 0
    assert large.total - small.total == 8 * (1001 + 1)  # a feature sum and a weight, in float64


@pytest.mark.parametrize("method", METHODS)
def test_a_footprint_counts_all_bytes_of_every_method(method: str) -> None:
    learner = build_learner(method, Setting((4,), capacity=4, seed=0))
    counted = footprint(learner)
    assert counted.total == sum(t.numel() * t.element_size() for t in learner.state_dict().values())
    assert counted.parameters == sum(p.numel() for p in learner.parameters())


def test_the_papers_capacity_grows_by_a_vector_a_class() -> None:
    learner = build_learner("finetune", Setting((4,), capacity=4, seed=0), backbone_options={"widths": (8,)})
    network = learner.network_size
    learner.counters.copy_(torch.tensor([2, 4]))
    assert paper_capacity(learner, network, seen_at_first=2) == (network + 4 * 9) / (network + 2 * 9)
