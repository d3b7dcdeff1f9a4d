"""Two models are held against each other, row by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tests.export.samples import rows, taught

from cldnet import CLDNetClassifier
from cldnet.estimator.model import Model
from cldnet.export.write import Agreement, Disagreement, Runner, compare, random_inputs


def twin(model: Model, move: float = 0.0) -> Runner:
    """Answers as the model does, but for one score of one row in a hundred."""

    def ask(x: Any) -> Any:
        scores = model.scores(torch.from_numpy(x))
        scores[:, 0] += np.where(np.arange(len(scores)) % 100 == 3, move, 0.0)
        return model.probabilities(scores), scores, model.labels.classes[scores.argmax(1)]

    return ask


@pytest.fixture(scope="module")
def model() -> Model:
    return CLDNetClassifier(random_state=0).fit(*rows())._fitted()


def test_all_rows_are_compared_and_told_about(model: Model) -> None:
    told: list[tuple[int, int]] = []
    found = compare(model, twin(model), torch.from_numpy(rows()[0]), lambda done, of: told.append((done, of)))
    assert found == Agreement(rows=90, labels=90, probability=0.0, score=0.0)
    assert told == [(64, 90), (90, 90)]
    assert str(found).startswith("90 of 90 labels are the same")


@pytest.mark.parametrize("move", [0.05, 1e6, float("nan")])
def test_one_score_that_is_another_is_found(model: Model, move: float) -> None:
    with pytest.raises(Disagreement, match=r"does not agree with its original: .* Nothing was written") as raised:
        compare(model, twin(model, move), torch.from_numpy(rows()[0]))
    assert not raised.value.agreement.holds


def test_labels_that_are_mixed_up_are_found(model: Model) -> None:
    def ask(x: Any) -> Any:
        probabilities, scores, labels = twin(model)(x)
        return probabilities, scores, np.where(labels == 5, 9, labels)

    x = torch.from_numpy(rows()[0])
    kept = int((twin(model)(x.numpy())[2] != 5).sum())
    assert kept < 90
    with pytest.raises(Disagreement, match=f"{kept} of 90 labels are the same"):
        compare(model, ask, x)


def test_a_tie_may_go_either_way_and_a_lost_digit_may_not() -> None:
    good = Agreement(rows=10, labels=9, probability=1e-6, score=1e-6, ties=1)
    assert good.holds
    for change in ({"ties": 0}, {"probability": 2e-4}, {"score": 2e-4}, {"probability": float("nan")}):
        assert not replace(good, **change).holds  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["fourier", "patches", "grey patches", "own", "photos", "mlp"])
def test_rows_that_are_drawn_are_such_as_the_model_takes(kind: str) -> None:
    clf, x = taught(kind)
    model = clf._fitted()
    drawn = random_inputs(model)
    assert drawn.shape == (256, *x.shape[1:])
    assert (drawn.dtype == torch.uint8) == (x.dtype == np.uint8)
    model.inputs.check(drawn)
    assert len(np.unique(clf.predict(drawn.numpy()))) > 1  # not all alike to it
