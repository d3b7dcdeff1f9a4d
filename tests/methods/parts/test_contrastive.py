"""Contrastive losses against the formulas, pair by pair."""

from __future__ import annotations

from math import exp, log

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.methods.parts.contrastive import (
    asymmetric_supcon,
    label_loss,
    mixed_similarities,
    pair_loss,
    relation_loss,
)

LABELS = [0, 1, 0, 0, 1, 0]  # three samples and their partners


def unit_rows(rows: int, columns: int, seed: int = 0) -> Tensor:
    return F.normalize(torch.randn(rows, columns, dtype=torch.float64, generator=generator(seed)))


def surprise(row: list[float], column: int, temperature: float, leave_out: int | None = None) -> float:
    """−log(P + 1e-8) of one pair."""
    total = sum(exp(value / temperature) for j, value in enumerate(row) if j != leave_out)
    p = 0.0 if column == leave_out else exp(row[column] / temperature) / total
    return -log(p + 1e-8)


def test_similarities_mix_projections_with_a_window_of_features() -> None:
    z, f = unit_rows(4, 3), unit_rows(4, 7, seed=1)
    found = mixed_similarities(z, f, 2)
    for i in range(4):
        for j in range(4):
            expected = sum(float(z[i, k] * z[j, k] + z[i, k] * f[j, 2 + k]) for k in range(3))
            assert float(found[i, j]) == pytest.approx(expected, abs=1e-12)


def test_the_label_loss_is_a_mean_of_means_over_columns_of_the_rows_label() -> None:
    s = torch.randn(3, 4, dtype=torch.float64, generator=generator(0))
    rows, columns, expected = [0, 1, 0], [1, 0, 1, 1], 0.0
    for i in range(3):
        same = [j for j in range(4) if columns[j] == rows[i]]
        expected += sum(surprise(s[i].tolist(), j, 0.3) for j in same) / len(same) / 3
    assert float(label_loss(s, torch.tensor(rows), torch.tensor(columns), 0.3)) == pytest.approx(expected, rel=1e-9)


def test_the_pair_loss_counts_labels_twice_and_partners_once() -> None:
    s = torch.randn(6, 6, dtype=torch.float64, generator=generator(0))
    expected = 0.0
    for i in range(6):
        row = s[i].tolist()
        same = [j for j in range(6) if LABELS[j] == LABELS[i]]  # with i itself, whose P is zero
        expected += 2 * sum(surprise(row, j, 0.3, leave_out=i) for j in same) / len(same) / 6
        expected += surprise(row, (i + 3) % 6, 0.3, leave_out=i) / 6
    assert float(pair_loss(s, torch.tensor(LABELS), 0.3)) == pytest.approx(expected, rel=1e-9)


def test_supcon_has_anchors_of_the_present_task_only_and_a_mean_over_all() -> None:
    z, anchors = unit_rows(6, 4), [1.0, 0.0, 1.0, 2.0, 0.0, 1.0]
    expected = 0.0
    for i in range(6):
        others = [j for j in range(6) if j != i]
        total = sum(exp(float(z[i] @ z[j]) / 0.5) for j in others)
        positives = [j for j in others if LABELS[j] == LABELS[i]]
        mean = sum(-log(exp(float(z[i] @ z[j]) / 0.5) / total) for j in positives) / len(positives)
        expected += 0.5 / 0.07 * anchors[i] * mean / 6
    found = asymmetric_supcon(z, torch.tensor(LABELS), torch.tensor(anchors, dtype=torch.float64), 0.5)
    assert float(found) == pytest.approx(expected, rel=1e-9)


def test_relations_are_distilled_without_the_diagonal() -> None:
    z, teacher, expected = unit_rows(5, 4), unit_rows(5, 4, seed=1), 0.0
    for i in range(5):
        others = [j for j in range(5) if j != i]
        own, wanted = ([exp(float(v[i] @ v[j]) / t) for j in others] for v, t in ((z, 0.2), (teacher, 0.1)))
        expected -= sum(w / sum(wanted) * log(o / sum(own)) for o, w in zip(own, wanted, strict=True)) / 5
    assert float(relation_loss(z, teacher, 0.2, 0.1)) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
def test_gradients_are_finite_for_any_similarities_and_for_one_sample(scale: float) -> None:
    for count in (1, 3):
        z = (scale * torch.randn(2 * count, 4, generator=generator(0))).requires_grad_()
        y = torch.arange(count).repeat(2)
        loss = (
            pair_loss(z @ z.mT, y, 0.07)
            + label_loss(z @ z.mT, y, y, 0.07)
            + asymmetric_supcon(z, y, torch.ones(2 * count), 0.5)
            + relation_loss(z, z.detach(), 0.2, 0.01)
        )
        (gradient,) = torch.autograd.grad(loss, z)
        assert bool(torch.isfinite(gradient).all())
