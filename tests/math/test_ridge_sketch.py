"""Frequent Directions keeps its guarantee, and ridge from what stands for G is the ridge of exactly that."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cldnet.device import generator
from cldnet.math.ridge import RidgeSolution, candidates, diagonal_ridge, ridge, shrink, sketched_ridge

relaxed = settings(deadline=None, max_examples=25)
EYE = torch.eye(12, dtype=torch.float64)


def matrix(rows: int, width: int, seed: int, decay: float = 0.8) -> Tensor:
    """Rows whose variance falls from direction to direction, in directions that are not the axes."""
    source = generator(seed)
    basis = torch.linalg.qr(torch.randn(width, width, generator=source, dtype=torch.float64)).Q
    spread = decay ** torch.arange(width, dtype=torch.float64)
    return torch.randn(rows, width, generator=source, dtype=torch.float64) * spread @ basis


def sketched(H: Tensor, rank: int, sizes: list[int]) -> tuple[Tensor, float]:
    sketch, total = H.new_zeros(rank, H.shape[1]), 0.0
    for rows in H.split(sizes):
        sketch, shrinkage = shrink(torch.cat([sketch, rows]), rank)
        total += shrinkage
    return sketch, total


def assert_guarantee(H: Tensor, sketch: Tensor, total: float) -> None:
    difference = torch.linalg.eigvalsh(H.T @ H - sketch.T @ sketch)
    slack = 1e-10 * float(H.square().sum())
    assert float(difference[0]) >= -slack
    assert float(difference[-1]) <= total + slack


@st.composite
def cut(draw: st.DrawFn) -> tuple[Tensor, int, list[int]]:
    sizes = draw(st.lists(st.integers(1, 30), min_size=1, max_size=5))
    width, rank = draw(st.integers(1, 25)), draw(st.integers(1, 25))
    H = matrix(sum(sizes), width, draw(st.integers(0, 999)), draw(st.sampled_from([1.0, 0.8, 0.3])))
    return H * draw(st.sampled_from([1.0, 1e-3, 1e4])), rank, sizes


@relaxed
@given(cut())
def test_no_direction_loses_more_than_is_stated_whatever_the_chunks(case: tuple[Tensor, int, list[int]]) -> None:
    H, rank, sizes = case
    sketch, total = sketched(H, rank, sizes)
    assert sketch.shape == (rank, H.shape[1])
    assert_guarantee(H, sketch, total)


@relaxed
@given(cut())
def test_the_stated_loss_is_bounded_by_what_the_best_approximation_leaves(case: tuple[Tensor, int, list[int]]) -> None:
    H, rank, sizes = case
    _, total = sketched(H, rank, sizes)
    values = torch.linalg.svdvals(H).square()
    for k in range(min(rank, len(values)) + 1):
        assert total <= float(values[k:].sum()) / (rank + 1 - k) * (1 + 1e-9) + 1e-12 * float(values.sum())


@relaxed
@given(cut(), cut())
def test_merged_sketches_keep_the_guarantee(
    first: tuple[Tensor, int, list[int]], second: tuple[Tensor, int, list[int]]
) -> None:
    width, rank = min(first[0].shape[1], second[0].shape[1]), first[1]
    parts = [H[:, :width] for H in (first[0], second[0])]
    sketches = [sketched(H, rank, sizes) for H, sizes in zip(parts, (first[2], second[2]), strict=True)]
    merged, shrinkage = shrink(torch.cat([sketch for sketch, _ in sketches]), rank)
    assert_guarantee(torch.cat(parts), merged, shrinkage + sketches[0][1] + sketches[1][1])


@relaxed
@given(st.integers(1, 8), st.integers(0, 6), st.integers(0, 999))
def test_nothing_is_lost_when_the_rank_is_enough(rank: int, spare: int, seed: int) -> None:
    H = torch.randn(60, rank, generator=generator(seed), dtype=torch.float64) @ matrix(rank, 20, seed, decay=1.0)
    sketch, total = sketched(H, rank + spare, [7, 13, 40])
    assert total <= 1e-12 * float(H.square().sum())
    torch.testing.assert_close(sketch.T @ sketch, H.T @ H, rtol=0, atol=1e-11 * float(H.square().sum()))


def test_a_rank_as_large_as_the_width_loses_nothing_at_all() -> None:
    H = matrix(100, 10, 0)
    sketch, total = sketched(H, 10, [30, 70])
    assert total == 0
    torch.testing.assert_close(sketch.T @ sketch, H.T @ H, rtol=0, atol=1e-11)


def test_rows_of_a_sketch_are_orthogonal_and_none_of_them_is_an_example() -> None:
    H = matrix(4, 12, 3, decay=1.0)
    sketch, _ = shrink(torch.cat([H.new_zeros(6, 12), H]), 6)  # there is room for all, and still they are mixed
    products = sketch @ sketch.T
    torch.testing.assert_close(products, torch.diag(products.diagonal()), rtol=0, atol=1e-10)
    assert (torch.nn.functional.cosine_similarity(sketch[:4, None], H, dim=2).abs() < 0.99).all()


def test_rows_of_zeros_are_a_sketch_of_zeros() -> None:
    for count in (3, 30):
        sketch, shrinkage = shrink(torch.zeros(count, 5, dtype=torch.float64), 2)
        assert not sketch.any()
        assert shrinkage == 0


def labelled(rows: int = 200, width: int = 12, seed: int = 0) -> tuple[Tensor, Tensor]:
    y = torch.randint(0, 3, (rows,), generator=generator(seed))
    H = matrix(rows, width, seed) + matrix(3, width, seed + 1)[y]
    return H, torch.nn.functional.one_hot(y, 3).double()


def assert_close(found: RidgeSolution, expected: RidgeSolution, rtol: float = 1e-6) -> None:
    np.testing.assert_allclose(found.solution.numpy(), expected.solution.numpy(), rtol=rtol, atol=rtol)
    for name in ("alpha", "residual", "freedom"):
        assert getattr(found, name) == pytest.approx(getattr(expected, name), rel=rtol), name


@pytest.mark.parametrize("alpha", [None, 0.1, 30.0])
def test_ridge_from_a_sketch_that_lost_nothing_is_ridge(alpha: float | None) -> None:
    H, Y = labelled()
    G, S, n = H.T @ H, H.T @ Y, Y.sum(0)
    sketch, total = sketched(H, 12, [50, 150])
    found = sketched_ridge(sketch, total, S, n, 200, alpha, energy=float(G.trace()))
    assert_close(found, ridge(G, S, n, 200, alpha))


@relaxed
@given(st.integers(1, 11), st.floats(1e-3, 1e3), st.integers(0, 99))
def test_ridge_from_a_sketch_solves_for_the_middle_of_what_g_can_be(rank: int, alpha: float, seed: int) -> None:
    H, Y = labelled(seed=seed)
    S, n, energy = H.T @ Y, Y.sum(0), float(H.square().sum())
    sketch, total = sketched(H, rank, [50, 150])
    found = sketched_ridge(sketch, total, S, n, 200, alpha, energy=energy)
    middle = sketch.T @ sketch + total / 2 * EYE
    expected = torch.linalg.solve(middle + alpha * EYE, S)
    np.testing.assert_allclose(found.solution.numpy(), expected.numpy(), rtol=1e-7, atol=1e-9)
    residual = n.sum() - 2 * (expected * S).sum() + (expected * (middle @ expected)).sum()
    assert found.residual == pytest.approx(max(0.0, float(residual)), rel=1e-6, abs=1e-6)
    lost = (energy - float(sketch.square().sum())) / 12  # the trace is known, whatever was shrunk
    assumed = sketch.T @ sketch + lost * EYE
    fitted = torch.linalg.solve(middle + alpha * EYE, assumed).trace()
    assert found.freedom == pytest.approx(200 - float(fitted), rel=1e-9)


@relaxed
@given(st.one_of(st.none(), st.floats(1e-3, 1e3)), st.integers(0, 99))
def test_ridge_from_the_diagonal_is_ridge_of_features_independent_within_classes(
    alpha: float | None, seed: int
) -> None:
    H, Y = labelled(seed=seed)
    S, n = H.T @ Y, Y.sum(0)
    between = (S / n) @ S.T
    assumed = between + torch.diag((H.T @ H - between).diagonal())
    found = diagonal_ridge(H.square().sum(0), S, n, 200, alpha)
    assert_close(found, ridge(assumed, S, n, 200, found.alpha))


def test_where_g_is_not_known_alpha_has_the_least_squared_error_of_cross_validation() -> None:
    H, Y = labelled()
    S, n, diagonal = H.T @ Y, Y.sum(0), H.square().sum(0)

    def cost(alpha: float) -> float:
        choice = diagonal_ridge(diagonal, S, n, 200, alpha)
        return choice.residual / choice.freedom**2

    chosen = diagonal_ridge(diagonal, S, n, 200, None)
    assert not chosen.known
    assert cost(chosen.alpha) == pytest.approx(min(cost(float(a)) for a in candidates(diagonal.mean())), rel=1e-9)


def test_a_class_without_weight_changes_nothing_for_the_others() -> None:
    H, Y = labelled()
    S, n, diagonal = H.T @ Y, Y.sum(0), H.square().sum(0)
    found = diagonal_ridge(diagonal, torch.cat([S, S.new_zeros(12, 1)], 1), torch.cat([n, n.new_zeros(1)]), 200, None)
    expected = diagonal_ridge(diagonal, S, n, 200, None)
    assert torch.equal(found.solution[:, :3], expected.solution)
    assert not found.solution[:, 3].any()


def test_alpha_is_kept_up_while_rows_do_not_outnumber_features() -> None:
    H, Y = labelled(rows=6, width=12)
    S, n, energy = H.T @ Y, Y.sum(0) + 1e-9, float(H.square().sum())
    sketch, total = sketched(H, 4, [6])
    for choice in (
        sketched_ridge(sketch, total, S, n, 6, None, energy),
        diagonal_ridge(H.square().sum(0), S, n, 6, None),
    ):
        assert choice.alpha >= 0.99e-3 * energy / 12


def test_nothing_summed_gives_scores_of_zero() -> None:
    S, n = torch.zeros(5, 2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for choice in (
        sketched_ridge(torch.zeros(3, 5, dtype=torch.float64), 0.0, S, n, 0, None, 0.0),
        diagonal_ridge(torch.zeros(5, dtype=torch.float64), S, n, 0, None),
    ):
        assert not choice.solution.any()


@pytest.mark.parametrize(("rows", "width", "rank"), [(12, 8, 5), (6, 9, 4), (12, 8, 7)])
def test_rows_of_few_directions_lose_nothing(rows: int, width: int, rank: int) -> None:
    """Rounding makes some of the squared singular values that should be zero negative; nothing is taken off for them."""
    for seed in range(5):
        few = matrix(3, width, seed, decay=1.0)
        H = torch.randn(rows, 3, generator=generator(seed), dtype=torch.float64) @ few
        sketch, shrinkage = shrink(H, rank)
        assert 0 <= shrinkage <= 1e-12 * float(H.square().sum())
        torch.testing.assert_close(sketch.T @ sketch, H.T @ H, rtol=1e-9, atol=1e-9)


def test_a_diagonal_that_rounding_made_smaller_than_the_class_sums_allow_varies_not_at_all() -> None:
    moments = torch.tensor([[3.0, 1.0], [0.5, 2.0], [1.0, 1.0]], dtype=torch.float64)
    counts = torch.tensor([4.0, 5.0], dtype=torch.float64)
    least = (moments.square() / counts).sum(1)
    exact, rounded = (diagonal_ridge(diagonal, moments, counts, 9, 0.6) for diagonal in (least, least - 0.5))
    torch.testing.assert_close(rounded.solution, exact.solution)
    assert rounded.freedom == pytest.approx(exact.freedom)
