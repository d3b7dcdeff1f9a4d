"""The benchmark of mirror images draws the same characters again, and compares the choice with both answers."""

from __future__ import annotations

import torch
from benchmarks.everyday import mirror


def test_characters_are_drawn_by_their_seed_and_alike_within_a_class() -> None:
    (x, y), (again, _), (other, _) = (mirror.characters(3, seed) for seed in (0, 0, 1))
    assert torch.equal(x, again)
    assert not torch.equal(x, other)
    assert y.bincount().tolist() == [mirror.EACH] * 3
    assert len(x.flatten(1).unique(dim=0)) == len(x)
    means = x.double().unflatten(0, (3, -1)).mean(1)
    within = (x.double().unflatten(0, (3, -1)) - means[:, None]).square().mean()
    between = (means - means.mean(0)).square().mean()
    assert between > 0.1 * within


def test_the_choice_is_compared_with_both_answers() -> None:
    (x, y) = mirror.characters(10, 0)
    learn = torch.arange(len(y)) % mirror.EACH < mirror.TRAIN
    found = mirror._measure(mirror.Lessons([(x[learn], y[learn])], [(x[~learn], y[~learn])], {"filters": 20}), 0)
    assert found["chosen"] is False
    assert found["accuracy"]["auto"] == found["accuracy"]["false"]
    assert found["behind_better"] == max(0.0, found["accuracy"]["true"] - found["accuracy"]["false"])
    assert found["first_lesson"] == 150
