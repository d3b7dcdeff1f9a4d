"""What is left after a subtraction has to be the sums of some rows."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from cldnet.methods.mapped import DiagonalMoments, FullMoments
from cldnet.methods.parts.unlearning import Summed, check_predictions, without

WIDTH, CLASSES = 6, 3


def drawn(count: int, seed: int) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(seed)
    h = torch.randint(0, 128, (count, WIDTH), generator=source).double()
    return h, torch.randint(0, CLASSES, (count,), generator=source)


def summed(
    h: Tensor, y: Tensor, weight: Tensor | None = None, kind: type[FullMoments | DiagonalMoments] = FullMoments
) -> Summed:
    second, classes = kind(h.shape[1]), CLASSES if h.shape[1] == WIDTH else 10
    members = F.one_hot(y, classes) * (torch.ones(len(y)).double() if weight is None else weight)[:, None]
    second.add(h, weight)
    return Summed(second, members.T @ h, members.sum(0))


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 40), st.integers(0, 10**6), st.data())
def test_rows_that_were_learned_can_always_be_subtracted(count: int, seed: int, data: st.DataObject) -> None:
    h, y = drawn(count, seed)
    gone = torch.tensor(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    left, never = without(summed(h, y), summed(h[gone], y[gone]), (0, 127)), summed(h[~gone], y[~gone])
    assert torch.equal(left.second.dense(), never.second.dense())  # type: ignore[operator]
    assert torch.equal(left.class_sums, never.class_sums)


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 40), st.integers(0, 999))
def test_rounding_of_weights_leaves_no_trace_of_a_class_that_is_gone(count: int, seed: int) -> None:
    h, y = drawn(40, seed)
    weight = torch.rand(40, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(seed))
    gone, kept = order[:count], order[count:]
    left, never = (
        without(summed(h, y, weight), summed(h[gone], y[gone], weight[gone])),
        summed(h[kept], y[kept], weight[kept]),
    )
    torch.testing.assert_close(left.second.dense(), never.second.dense(), rtol=1e-9, atol=1e-8)  # type: ignore[operator]
    torch.testing.assert_close(left.class_sums, never.class_sums, rtol=1e-9, atol=1e-8)
    empty = torch.bincount(y[kept], minlength=CLASSES) == 0
    assert not left.class_sums[empty].any()
    assert not left.class_weights[empty].any()


@settings(deadline=None, max_examples=40)
@given(st.integers(25, 120), st.integers(0, 10**6), st.data())
def test_rows_that_were_learned_are_predicted_as_others_even_if_labels_are_noise(
    count: int, seed: int, data: st.DataObject
) -> None:
    h, y = drawn(count, seed)
    h[:3] = 127.0 * (h[:3] > 64)  # outliers
    gone = torch.randperm(count, generator=torch.Generator().manual_seed(seed))[: data.draw(st.integers(1, count - 24))]
    known = summed(h, y)
    check_predictions(known, without(known, summed(h[gone], y[gone])), h[gone], y[gone])


@settings(deadline=None, max_examples=100)
@given(st.integers(4, 30), st.integers(0, 10**6), st.floats(0.0, 1.5))
def test_what_is_accepted_leaves_scatter_without_a_negative_eigenvalue(count: int, seed: int, share: float) -> None:
    h, y = drawn(count, seed)
    known, taken = summed(h, y), summed((share * h[:2] + (1 - share) * h[2:4]).round(), y[:2])
    sums, weights = known.class_sums - taken.class_sums, known.class_weights - taken.class_weights
    left = weights > 0
    scatter = known.second.dense() - taken.second.dense()  # type: ignore[operator]
    scatter -= (sums[left].T / weights[left]) @ sums[left]
    possible = float(torch.linalg.eigvalsh(scatter)[0]) > -1e-6 and not sums[~left].any()
    try:
        without(known, taken)
    except ValueError:
        assert not possible
    else:
        assert possible


@pytest.mark.parametrize("kind", [FullMoments, DiagonalMoments])
def test_more_variance_than_there_is_cannot_be_subtracted(kind: type[FullMoments | DiagonalMoments]) -> None:
    h, y = drawn(30, 0)
    h[:, 0] = torch.where(y == 0, 60.0, 20.0)  # a feature that does not vary within a class
    foreign = h[:1].clone()
    foreign[0, 0] += 1
    with pytest.raises(ValueError, match="scatter"):
        without(summed(h, y, kind=kind), summed(foreign, y[:1], kind=kind))
    without(summed(h, y, kind=kind), summed(h[:1], y[:1], kind=kind))


def test_a_class_mean_has_to_stay_within_the_limits_and_the_class_is_named() -> None:
    h, y = drawn(50, 0)
    h[y == 1, 0] = 1.0
    foreign = h[y == 1][:1].clone()
    foreign[0, 0] = float((y == 1).sum()) + 1
    known, taken = summed(h, y), summed(foreign, torch.tensor([1]))
    with pytest.raises(ValueError, match="between 0 and 127, and the mean of class 'dog' would not"):
        without(known, taken, (0, 127), ["cat", "dog", "owl"])
    h[y == 1, 0] = 126.0
    foreign[0, 0] = 0.0
    with pytest.raises(ValueError, match="between 0 and 127, and the mean of class 1 would not"):
        without(summed(h, y), summed(foreign, torch.tensor([1])), (0, 127))


def test_a_row_unlike_all_others_can_be_forgotten_only_if_it_was_learned() -> None:
    h, y = drawn(400, 1)
    h[:, 5] = 12.0 * (torch.arange(400) % 2) - 6  # variance that one row can take away nearly all of
    label, refused = torch.tensor([1]), []
    for size in torch.arange(100.0, 120.0, 0.5).tolist():
        alone = torch.full((1, WIDTH), 60.0, dtype=torch.float64)
        alone[0, 5] = size
        learned, known = summed(torch.cat([h, alone]), torch.cat([y, label])), summed(h, y)
        check_predictions(learned, known, alone, label)
        left = Summed(copy.deepcopy(known.second), known.class_sums.clone(), known.class_weights.clone())
        left.second.add(alone, torch.tensor([-1.0]))
        left.class_sums[1] -= alone[0]
        if torch.linalg.eigvalsh(left.second.dense())[0] <= 0:  # type: ignore[operator]
            break  # `without` would have refused it
        penalty = 1e-6 * known.second.energy / WIDTH * torch.eye(WIDTH)
        target = F.one_hot(label, CLASSES).double()
        errors = [
            target - alone @ torch.linalg.inv(each.second.dense() + penalty) @ each.class_sums.T  # type: ignore[operator]
            for each in (known, left)
        ]
        if (errors[0] * errors[1]).sum() <= 10:
            check_predictions(known, left, alone, label)
            continue
        refused.append(size)
        with pytest.raises(ValueError, match="sample 0 would be predicted worse than any sample that was learned"):
            check_predictions(known, left, alone, label)
    assert 0 < len(refused) < 40


@pytest.mark.parametrize("learned", [True, False])
def test_wrong_labels_can_be_forgotten_only_if_they_were_learned(learned: bool) -> None:
    source = torch.Generator().manual_seed(0)
    h = torch.randint(0, 128, (300, 60), generator=source).double()
    y = torch.randint(0, 10, (300,), generator=source)
    wrong = torch.where(torch.arange(300) < 40, (y + 1) % 10, y)
    known, taken = summed(h, wrong if learned else y), summed(h[:40], wrong[:40])
    left = without(known, taken)
    if learned:
        check_predictions(known, left, h[:40], wrong[:40])
    else:
        with pytest.raises(
            ValueError, match=r"their labels would score -0\.18, as if the model had learned the opposite"
        ):
            check_predictions(known, left, h[:40], wrong[:40])
