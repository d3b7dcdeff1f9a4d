"""The module that is traced answers as the model does, before anything is translated."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.export.samples import KINDS, rows, taught
from torch import nn

from cldnet import CLDNetClassifier
from cldnet.export.graph import TraceableClassifier, trace
from cldnet.nets import FeatureMap, RandomReLU


def answers(clf: CLDNetClassifier, x: Any) -> tuple[np.ndarray, np.ndarray]:
    with torch.no_grad():
        probabilities, scores = TraceableClassifier(clf._fitted()).eval()(torch.from_numpy(np.ascontiguousarray(x)))
    return probabilities.numpy(), scores.numpy()


@pytest.mark.parametrize("kind", KINDS)
def test_probabilities_and_scores_are_the_models(kind: str) -> None:
    clf, x = taught(kind)
    probabilities, scores = answers(clf, x)
    expected = clf._fitted().scores(clf._checked(x, clf._fitted()))
    assert np.abs(scores - expected).max() <= 2e-5 * np.abs(expected).max()
    assert np.abs(probabilities - clf.predict_proba(x)).max() < 2e-5
    assert np.array_equal(clf.classes_[scores.argmax(1)], clf.predict(x))


def test_maps_of_whole_numbers_give_the_same_bits() -> None:
    for kind in ("relu", "fourier", "linear", "tails"):
        clf, x = taught(kind)
        assert np.array_equal(answers(clf, x)[1], clf._fitted().scores(clf._checked(x, clf._fitted())))


def test_columns_follow_the_labels_and_not_their_arrival() -> None:
    x, y = rows()
    clf = CLDNetClassifier(random_state=0, capacity=5)
    for label in (9, -3, 5):
        clf.partial_fit(x[y == label], y[y == label])
    assert clf.classes_.tolist() == [-3, 5, 9]
    assert np.allclose(answers(clf, x)[0], clf.predict_proba(x), atol=1e-12)


def test_a_class_that_was_forgotten_is_not_there_and_one_without_weight_is_never_the_answer() -> None:
    x, y = rows()
    shared = RandomReLU((6,), features=100, seed=0)
    shared.fit(torch.from_numpy(x))
    clf = CLDNetClassifier(backbone=shared, capacity=5).fit(x, y)
    clf.partial_fit(x[:3], [7, 7, 5], sample_weight=[0.0, 0.0, 1.0])
    assert 7 in clf.classes_
    assert np.allclose(answers(clf, x)[0], clf.predict_proba(x), atol=1e-12)
    clf.forget(x[y == 9], y[y == 9])
    assert clf.classes_.tolist() == [-3, 5, 7]
    assert answers(clf, x)[0].shape == (90, 3)
    assert np.allclose(answers(clf, x)[0], clf.predict_proba(x), atol=1e-12)


def test_one_class_is_enough() -> None:
    x, _ = rows()
    clf = CLDNetClassifier(random_state=0).fit(x, ["only"] * len(x))
    assert answers(clf, x)[0].tolist() == [[1.0]] * len(x)


def test_the_model_stays_as_it_was() -> None:
    clf, x = taught("cnn")
    before, state = clf.predict_proba(x), {name: t.clone() for name, t in clf._fitted().learner.state_dict().items()}
    trace(clf._fitted())
    assert all(torch.equal(tensor, state[name]) for name, tensor in clf._fitted().learner.state_dict().items())
    assert np.array_equal(clf.predict_proba(x), before)
    assert all(parameter.requires_grad for parameter in clf._fitted().learner.parameters())


class OwnMap(FeatureMap):
    """A map whose code only its user has."""

    fitted = torch.tensor(True)
    input_shape, out_features = (6,), 6

    def fit(self, x: torch.Tensor, weight: torch.Tensor | None = None) -> None: ...

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.float().round()


class Stubborn(nn.Module):
    """Takes a way that depends on the numbers: no tracer can follow."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if float(x.sum()) > 0 else -x


def test_what_cannot_be_traced_is_said() -> None:
    x, y = rows()
    with pytest.raises(ValueError, match="A model over OwnMap cannot be exported: only the library's own maps"):
        trace(CLDNetClassifier(backbone=OwnMap(), random_state=0).fit(x, y)._fitted())
    with pytest.raises(ValueError, match=r"This model cannot be exported: torch.export failed \("):
        trace(CLDNetClassifier(backbone=Stubborn(), random_state=0).fit(x, y)._fitted())
