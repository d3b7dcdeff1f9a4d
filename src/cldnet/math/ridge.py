"""Exact ridge regression from sums, and the choice of its penalty α from the sums alone.

With features ``H`` (one row per sample) and one-hot labels ``Y``, all that is needed is ``G = HᵀH``, ``S = HᵀY`` and the class
weights ``n = Σ Y``. ``B = (G + αI)⁻¹ S`` is the solution of all data ever summed, whatever their order.

**Choice of α.** The best α is the one whose leave-one-out scores separate the classes best
(`cldnet.math.discriminant.separation`). The squared error, the usual criterion of generalised cross-validation, wants a larger
penalty than accuracy does when there are many classes and features: on CIFAR-100 with 14,401 features 0.01 of the mean
diagonal instead of 0.003, which costs a point of accuracy on validation data (results/exact/validation/trials.json). With a
single class, or where ``G`` is not known in full, the squared error decides.

**Many α from one factor.** With ``G + α₀I = LLᵀ``, every other ``G + αI`` is ``L (I + (α − α₀)C) Lᵀ`` with ``C = L⁻¹L⁻ᵀ``, and
the Krylov spaces of ``C`` do not depend on α. So one run of Lanczos' method per column, the class sums and some random probes,
gives what conjugate gradients preconditioned by ``L`` would give for each α, and by Gauss quadrature the trace of each inverse
(Golub & Meurant 1994). That is enough to rate α over one or two powers of ten around ``α₀``; the one that is chosen is solved
for again, in float64.

**Few samples.** ``G`` of ``r`` samples has rank ``r`` at most. A pivoted Cholesky factorisation stops there, so its
eigenvectors take some ``m r²`` steps instead of the ``m³ / 3`` of one factorisation of the whole matrix.

**No room for G.** *Frequent Directions* (Liberty 2013; Ghashami, Liberty, Phillips & Woodruff 2016) keeps a few rows ``B``
along the directions in which ``H`` is largest. What does not fit is shrunk away, and the total shrinkage ``Δ`` bounds the loss
in every direction: ``0 ⪯ G − BᵀB ⪯ ΔI``. ``Δ`` is at most ``‖H − H_k‖² / (rank + 1 − k)`` for every ``k ≤ rank``, where
``H_k`` is the best approximation of rank ``k``, also after sketches are merged. The *diagonal* alone goes further: with the
class sums it gives ``G`` as if features varied independently within each class, as in naive Bayes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cldnet.math.discriminant import separation
from cldnet.math.leave_one_out import RidgeSolution, leave_one_out

#: Largest rank, as a share of the features, for which the low-rank method is faster than factorising the whole matrix.
LOW_RANK = 0.25
_OUTSIDE = 1e-9  # share that rounding may leave outside of the span that was found


def low_rank_eigenvectors(gram: Tensor, moments: Tensor) -> tuple[Tensor, Tensor] | None:
    """Nonzero eigenvalues ``(r,)`` and their vectors ``(m, r)`` of a low-rank ``G``, or None if its rank is too high.

    Also None where ``G`` is not positive semi-definite or the moments leave its span: then the two are not of the same data.
    """
    from scipy.linalg.lapack import dpstrf  # noqa: PLC0415  (heavy)

    # Symmetric, so its transpose is itself in LAPACK's layout.
    factor, order, rank, _ = dpstrf(gram.cpu().numpy().T, lower=1)
    if not 0 < rank <= LOW_RANK * len(gram):
        return None
    columns = torch.zeros(len(gram), rank, dtype=torch.float64)
    columns[torch.from_numpy(order - 1).long()] = torch.from_numpy(factor[:, :rank]).tril()
    span, inner = torch.linalg.qr(columns)
    values, turns = torch.linalg.eigh(inner @ inner.mT)
    vectors = (span @ turns).to(gram.device)
    values = values.to(gram.device)
    missing, outside = gram.diagonal().sum() - values.sum(), moments - vectors @ (vectors.mT @ moments)
    complete = abs(float(missing)) <= _OUTSIDE * float(values.sum())
    return (values, vectors) if complete and float(outside.norm()) <= _OUTSIDE * float(moments.norm()) else None


#: Where the search starts, in units of the mean diagonal of ``G``.
START = 10**-2.5
_LOW, _HIGH, _COUNT = 1e-6, 1e1, 29


def candidates(mean_diagonal: Tensor, least: float = 0.0) -> Tensor:
    """Grid of α, even in logarithm around the mean diagonal of ``G`` (1 if it is 0), none below ``least`` times it."""
    steps = torch.linspace(0, 1, _COUNT, dtype=torch.float64, device=mean_diagonal.device)
    relative = _LOW * (_HIGH / _LOW) ** steps
    return (float(mean_diagonal) or 1.0) * relative[relative >= 0.999 * least]


def least_alpha(trace: Tensor, width: int) -> float:
    """The least α that makes a difference to sums with that trace: their rounding weighs as much."""
    return float(trace) * width * torch.finfo(torch.float64).eps


def search(
    grid: Tensor,
    solved: Callable[[float], RidgeSolution],
    moments: Tensor,
    class_weights: Tensor,
    n_samples: float,
    *,
    least: float = 0.0,
    fine: bool = True,
) -> RidgeSolution:
    """Search every second point of the grid, from the start to where it gets worse; then try the point next to the best.

    An α that leaves ``least`` degrees of freedom or fewer is not rated; if none can be rated, the start wins. ``fine`` says
    whether degrees of freedom are exact enough to tell neighbouring points apart.
    """
    weighted = class_weights > 0
    solutions: dict[int, RidgeSolution] = {}
    costs: dict[int, float] = {}

    def visit(index: int) -> float:
        if index not in costs:
            solution = solutions[index] = solved(float(grid[index]))
            known = solution._replace(solution=solution.solution[:, weighted])
            costs[index] = _cost(known, moments[:, weighted], class_weights[weighted], n_samples, least)
        return costs[index]

    at = int((grid - START / _HIGH * grid[-1]).abs().argmin())
    while visit(at) == math.inf and at + 8 < len(grid):  # freedom grows with α: find where there is some at all
        at += 8
    while at + 2 < len(grid) and visit(at + 2) < costs[at]:
        at += 2
    while at - 2 >= 0 and visit(at - 2) < costs[at]:
        at -= 2
    if fine:
        sides = [side for side in (at - 2, at + 2) if side in costs]
        visit((at + min(sides, key=lambda side: costs[side])) // 2)
    return solutions[min(costs, key=lambda index: costs[index])]


def _cost(solution: RidgeSolution, moments: Tensor, class_weights: Tensor, n_samples: float, least: float) -> float:
    """How bad a solution is; infinite if α leaves too little freedom to rate it."""
    if solution.freedom <= least:
        return math.inf
    if len(class_weights) < 2 or not solution.known:
        return solution.residual / solution.freedom**2
    return -separation(leave_one_out(solution, moments, class_weights, n_samples))


#: Up to this many features α is chosen by one eigendecomposition, above by few factorisations.
EIGEN_FEATURES = 2048
#: Up to this many features a whole eigendecomposition is quick, however few samples there are.
FEW_FEATURES = 256
#: Up to this many features the trace of the inverse is exact, unless there are plenty of samples; above it is estimated from
#: random probes.
EXACT_TRACE_FEATURES = 4096
PROBES = 32
#: Samples are plenty if those that outnumber the features are so many times more than the probes' noise.
PLENTY = 1000
TRACE_COLUMNS = 512  # columns of the triangular inverse held at a time
GUARD = 1e-3  # of the mean diagonal: the least α while there are no more samples than features
COARSE = 0.02  # an error of this size in solutions with a float32 factor is one of its square, 0.04%, in the trace
# Of the features: less freedom is too close to rounding, or to the probes' noise of at most √(2m / PROBES).
LEAST_FREEDOM, LEAST_PROBED = 1e-3, 2e-2
TOLERANCE, STEPS = 1e-10, 50  # conjugate gradients: relative residual at which they stop, and most steps
# Steps of Lanczos' method: on real data enough for a thirtieth to thirty times α₀. For what is further away a new factor pays.
KRYLOV = 12
# A rating from Krylov spaces is trusted up to these relative residuals of class sums (it is then wrong by some 0.1%) and of
# probes (the trace is wrong by the square), and up to this rounding of the factor, which weighs more and more as α falls.
CLASS_RESIDUAL, PROBE_RESIDUAL, LARGEST_ROUNDING = 1e-3, 0.05, 0.1
# Of the samples: with less freedom, errors in sample are magnified so much that each α is solved for in float64.
LEAST_SHARE = 0.1


class _Sums(NamedTuple):
    gram: Tensor
    moments: Tensor
    weights: Tensor
    n_samples: float

    @property
    def plenty(self) -> bool:
        """Whether the freedom is so large, for every α, that a coarse trace is good enough."""
        m = len(self.gram)
        return self.n_samples - m > PLENTY * math.sqrt(2 * m / PROBES)

    def trace(self, factor: Tensor) -> float:
        """``tr (LLᵀ)⁻¹``, by probes where these are precise enough or the exact trace would take too long."""
        probed = self.plenty or len(self.gram) > EXACT_TRACE_FEATURES
        return _probed_trace(factor) if probed else _exact_trace(factor)


def ridge(gram: Tensor, moments: Tensor, class_weights: Tensor, n_samples: float, alpha: float | None) -> RidgeSolution:
    """Solve for a given α, or for the best one by generalised cross-validation (Golub, Heath & Wahba 1979).

    The search visits four to seven points of a grid. Up to ``EIGEN_FEATURES`` features, and where samples are few, one
    eigendecomposition serves them all (of few samples in no time: 0.3 s instead of 7 s with 4,000 features and 300 samples).
    Else one factorisation in float32 rates all α near it, another one solves for the best, and the solution is refined in
    float64: on real streams one to three times one factorisation in float64 (results/benchmarks/alpha.json). Above
    ``EXACT_TRACE_FEATURES`` random probes give the trace, and an α is rated only where the freedom is far above their noise.

    While there are no more samples than features, cross-validation has no information (errors in sample and freedom can both
    reach 0), so α is at least a thousandth of the mean diagonal. A given α is raised to the rounding of ``G``.

    The sums ``gram`` ``(m, m)`` and ``moments`` ``(m, c)`` are in float64 and not changed.
    """
    sums = _Sums(gram, moments, class_weights, n_samples)
    m = len(gram)
    if alpha is not None:
        return _by_factor(sums, max(alpha, least_alpha(gram.diagonal().sum(), m)))
    grid = candidates(gram.diagonal().mean(), least=GUARD if n_samples <= m else 0.0)
    eigen, probed = m <= EIGEN_FEATURES, m > EXACT_TRACE_FEATURES
    least = m * (0.0 if eigen else LEAST_PROBED if probed else LEAST_FREEDOM)
    few = m > FEW_FEATURES and 0 < n_samples <= LOW_RANK * m
    basis = low_rank_eigenvectors(gram, moments) if few else None
    if basis is None and eigen:
        basis = torch.linalg.eigh(gram)
    if basis is not None:  # the same limits as with factors, so that one sample more does not change the rating
        return _search_eigenbasis(*basis, sums, grid, least, fine=not probed)
    return _search_krylov(sums, grid, least, fine=not probed)


def _search_eigenbasis(
    eigenvalues: Tensor, vectors: Tensor, sums: _Sums, grid: Tensor, least: float = 0.0, *, fine: bool = True
) -> RidgeSolution:
    """Choose α along eigenvectors that span all samples."""
    rotated = sums._replace(moments=vectors.mT @ sums.moments)  # the rating does not depend on the axes
    positive = eigenvalues.clamp_min(0)
    found = search(grid, lambda alpha: _by_eigenvalues(positive, rotated, alpha), *rotated[1:], least=least, fine=fine)
    return found._replace(solution=vectors @ found.solution)


def _search_krylov(sums: _Sums, grid: Tensor, least: float, *, fine: bool) -> RidgeSolution:
    """Choose α by what Krylov spaces tell, factorising again where they do not reach; then solve for it as if it were given."""
    near: _Krylov | None = None
    last = 0.0

    def rated(alpha: float) -> RidgeSolution:
        nonlocal near, last
        # The last α was the best so far if the search goes on from there: a factor for it may be the one that is needed.
        anchors = [alpha] if near is None or near.alpha == last else [alpha, last]
        while near is None or not near.reaches(alpha):
            near = None  # its memory is needed for the next
            near = _Krylov(sums, anchors.pop())
        last = alpha
        found = near.solution(alpha)
        if found.freedom > LEAST_SHARE * sums.n_samples:
            return found
        factor = near.factor if near.alpha == alpha else None
        near = None
        return _by_factor(sums, alpha, factor)

    alpha = search(grid, rated, *sums[1:], least=least, fine=fine).alpha
    factor = near.factor if near is not None and near.alpha == alpha else None
    near = None
    return _by_factor(sums, alpha, factor)


class _Krylov:
    """Approximate solutions for every α near the one of a Cholesky factor: ``LLᵀ = G + α₀I``.

    Lanczos' method on ``C = α₀L⁻¹L⁻ᵀ``, whose eigenvalues are between 0 and 1, begins with ``√α₀ L⁻¹s`` for every class sum and
    every probe ``s``. Its vectors ``V`` and the tridiagonal ``T = VᵀCV`` give ``(G + αI)⁻¹s`` for every α, as
    ``L⁻ᵀV (I + (α/α₀ − 1)T)⁻¹ e₁ ‖√α₀ L⁻¹s‖ / √α₀``. No vector of the space is nearer in the norm of ``G + αI``.
    """

    def __init__(self, sums: _Sums, alpha: float) -> None:
        m, classes = sums.moments.shape
        self.sums, self.alpha, self.factor = sums, alpha, _fine_factor(sums, alpha)
        self.rounding = _rounding(sums.gram, alpha, self.factor)
        self.most = min(KRYLOV, m // max(classes, 1))  # so that the directions take no more memory than the factor
        self.allowed = sums.moments.new_tensor(classes * [CLASS_RESIDUAL] + PROBES * [PROBE_RESIDUAL])
        columns = torch.cat([sums.moments, _random_signs(sums.gram, PROBES)], dim=1).to(self.factor.dtype)
        self.ahead = alpha**0.5 * torch.linalg.solve_triangular(self.factor, columns, upper=False)
        self.vector = torch.zeros_like(self.ahead)
        self.lengths = [self.ahead.norm(dim=0).double()]
        self.diagonal: list[Tensor] = []
        self.directions: list[Tensor] = []  # √α₀ L⁻ᵀV, of the class sums only
        self._step()
        # What the probes get wrong at α₀ they get wrong nearby as well, above all outside of the span of few samples.
        self.trace = self._trace(self._coefficients(alpha))
        self.correction = alpha * (sums.trace(self.factor) - self.trace)

    def _step(self) -> None:
        before, self.vector = self.vector, _ratio(self.ahead, self.lengths[-1]).to(self.ahead)
        back = self.alpha**0.5 * torch.linalg.solve_triangular(self.factor.mT, self.vector, upper=True)
        self.directions.append(back[:, : self.sums.moments.shape[1]].clone())
        share = back.square().sum(0)
        self.ahead = self.alpha**0.5 * torch.linalg.solve_triangular(self.factor, back, upper=False)
        self.ahead -= share * self.vector + self.lengths[-1].to(share) * before
        self.diagonal.append(share.double())
        self.lengths.append(self.ahead.norm(dim=0).double())

    def reaches(self, alpha: float) -> bool:
        """Whether this α can be rated, with more steps if these promise to be enough."""
        shift, before = alpha / self.alpha - 1, math.inf
        while shift:
            if 1 + shift * float(torch.linalg.eigvalsh(self._tridiagonal()).max()) <= 0:
                return False  # rounding or subtracted samples outweigh α: G + αI is not positive definite
            coefficients = self._coefficients(alpha)
            if self.rounding * self._trace(coefficients) / self.trace > LARGEST_ROUNDING:
                return False
            share = self._freedom(alpha, coefficients) / max(self.sums.n_samples, 1.0)
            residuals = (shift * self.lengths[-1] * coefficients[:, -1]).abs()
            excess = float((residuals / self.allowed).max()) / max(share, LEAST_SHARE)
            if excess <= 1:
                return True
            left = self.most - len(self.directions)
            if left < 1 or excess * min(excess / before, 1.0) ** left > 1:
                return False
            before = excess
            self._step()
        return True

    def solution(self, alpha: float) -> RidgeSolution:
        """The approximate solution, and what it says about errors."""
        _, moments, weights, _ = self.sums
        coefficients = self._coefficients(alpha)
        scaled = (self.lengths[0][:, None] * coefficients / self.alpha)[: moments.shape[1]]
        solution = torch.zeros_like(moments)
        for direction, share in zip(self.directions, scaled.unbind(1), strict=True):
            solution += direction * share
        residual = squared_error(moments, weights, alpha, solution)
        return RidgeSolution(alpha, solution, residual, self._freedom(alpha, coefficients))

    def _coefficients(self, alpha: float) -> Tensor:
        """``(I + (α/α₀ − 1)T)⁻¹ e₁``, a row for each column."""
        shifted = (alpha / self.alpha - 1) * self._tridiagonal()
        shifted.diagonal(dim1=1, dim2=2).add_(1)
        first = torch.eye(len(self.diagonal), 1).to(shifted).expand(len(shifted), -1, -1)
        solved: Tensor = torch.linalg.solve(shifted, first)
        return solved[..., 0]

    def _tridiagonal(self) -> Tensor:
        """``T`` of each column."""
        upper = torch.diag_embed(torch.stack(self.lengths[1:], dim=1), 1)[:, :-1, :-1]
        return torch.diag_embed(torch.stack(self.diagonal, dim=1)) + upper + upper.mT

    def _freedom(self, alpha: float, coefficients: Tensor) -> float:
        samples, features = self.sums.n_samples, len(self.sums.gram)
        return max(samples - features + alpha * self._trace(coefficients) + self.correction, 0.0)

    def _trace(self, coefficients: Tensor) -> float:
        """``tr (G + αI)⁻¹`` by Gauss quadrature on the probes."""
        return float((self.lengths[0].square() * coefficients[:, 0])[-PROBES:].mean()) / self.alpha


def solve(gram: Tensor, moments: Tensor, alpha: float) -> Tensor:
    """Solve ``(G + αI) B = S`` by one Cholesky factorisation."""
    return _inverse_times(_factor(gram, alpha), moments)


def solve_mixed(gram: Tensor, moments: Tensor, alpha: float, factor: Tensor) -> Tensor:
    """Solve ``(G + αI) B = S`` in float64 by conjugate gradients, preconditioned by a Cholesky factor in float32 or better.

    Each step costs two matrix products, so that float64 costs little more than the float32 factorisation. Where the factor
    is too coarse to reach a relative residual of 1e-10 in 50 steps, `solve` is used.
    """
    solution, residual, direction = torch.zeros_like(moments), moments.clone(), torch.zeros_like(moments)
    previous = torch.ones_like(moments[0])
    enough = TOLERANCE * moments.norm(dim=0)
    for _ in range(STEPS):
        better = _inverse_times(factor, residual)
        current = (residual * better).sum(0)
        direction = better + _ratio(current, previous) * direction
        image = gram @ direction + alpha * direction
        step = _ratio(current, (direction * image).sum(0))
        solution += step * direction
        residual -= step * image
        previous = current
        if bool((residual.norm(dim=0) <= enough).all()):
            return solution
    return solve(gram, moments, alpha)


def _by_eigenvalues(eigenvalues: Tensor, rotated: _Sums, alpha: float) -> RidgeSolution:
    """With ``G = VΛVᵀ``, ``‖Y − HB‖² = Σ n_c − Σ (VᵀS)² (λ + 2α) / (λ + α)²``; the solution is ``VᵀB``."""
    shifted = eigenvalues + alpha
    explained = rotated.moments.square().sum(1) * (eigenvalues + 2 * alpha) / shifted.square()
    residual = max(float(rotated.weights.sum() - explained.sum()), 0.0)
    freedom = float(rotated.n_samples - (eigenvalues / shifted).sum())
    logarithm = float(torch.log1p(eigenvalues / alpha).sum())
    return RidgeSolution(alpha, rotated.moments / shifted[:, None], residual, freedom, log_determinant=logarithm)


def _by_factor(sums: _Sums, alpha: float, factor: Tensor | None = None) -> RidgeSolution:
    """By one factorisation, unless its factor is known: ``tr H(G + αI)⁻¹Hᵀ = m − α tr (G + αI)⁻¹``."""
    gram, moments, weights, n_samples = sums
    factor = _fine_factor(sums, alpha) if factor is None else factor
    solution = solve_mixed(gram, moments, alpha, factor)
    freedom = max(n_samples - len(gram) + alpha * sums.trace(factor), 0.0)
    logarithm = max(float(2 * factor.diagonal().double().log().sum()) - len(gram) * math.log(alpha), 0.0)
    residual = squared_error(moments, weights, alpha, solution)
    return RidgeSolution(alpha, solution, residual, freedom, log_determinant=logarithm)


def squared_error(moments: Tensor, weights: Tensor, alpha: float, solution: Tensor) -> float:
    """``‖Y − HB‖² = Σ n_c − tr Bᵀ(S + αB)``."""
    return max(float(weights.sum()) - float((solution * (moments + alpha * solution)).sum()), 0.0)


def _fine_factor(sums: _Sums, alpha: float) -> Tensor:
    """The factor of a large problem in float32, unless that is too coarse for it; otherwise in the dtype of ``G``."""
    gram = sums.gram
    if len(gram) > EIGEN_FEATURES:
        factor = _cholesky(gram, alpha, torch.float32)
        # Rounding may have moved the small eigenvalues, on which the trace depends, by too much.
        coarse = LARGEST_ROUNDING if sums.plenty else COARSE
        if factor is not None and _rounding(gram, alpha, factor) <= coarse:
            return factor
        del factor  # its memory is needed for the next
    return _factor(gram, alpha)


def _rounding(gram: Tensor, alpha: float, factor: Tensor) -> float:
    """How far a factor's inverse times ``G + αI`` is from the identity, along a random vector."""
    signs = _random_signs(gram, 1)
    back = _inverse_times(factor, signs)
    return float((gram @ back + alpha * back - signs).norm()) / math.sqrt(len(gram))


def _factor(gram: Tensor, alpha: float) -> Tensor:
    """Lower Cholesky factor of ``G + αI`` in the dtype of ``G``."""
    factor = _cholesky(gram, alpha, gram.dtype)
    if factor is None:
        raise ValueError(
            f"alpha={alpha:g} is too small for these features: G + αI is not positive definite in {gram.dtype}. "
            "Use a larger alpha, or alpha='gcv'."
        )
    return factor


def _cholesky(gram: Tensor, alpha: float, dtype: torch.dtype) -> Tensor | None:
    """Lower Cholesky factor of ``G + αI``, or None if it breaks down in this dtype."""
    # In the layout of LAPACK, so that the factor overwrites it and no second matrix is needed.
    factor = torch.empty_like(gram, dtype=dtype, memory_format=torch.contiguous_format).mT.copy_(gram.mT)
    factor.diagonal().add_(alpha)
    info = torch.empty((), dtype=torch.int32, device=gram.device)
    torch.linalg.cholesky_ex(factor, out=(factor, info))
    return factor if int(info) == 0 and bool(factor.diagonal().isfinite().all()) else None


def _inverse_times(factor: Tensor, right: Tensor) -> Tensor:
    """``(LLᵀ)⁻¹ R`` in the dtype of ``R``; unlike `torch.cholesky_solve` without a copy of ``L``."""
    half = torch.linalg.solve_triangular(factor, right.to(factor.dtype), upper=False)
    whole: Tensor = torch.linalg.solve_triangular(factor.mT, half, upper=True)
    return whole.to(right.dtype)


def _random_signs(like: Tensor, columns: int) -> Tensor:
    """Columns of ±1: the same ones each time, so that the scores of different α compare."""
    signs = torch.randint(0, 2, (len(like), columns), generator=torch.Generator().manual_seed(0))
    return (2 * signs - 1).to(like)


def _probed_trace(factor: Tensor) -> float:
    """``tr (LLᵀ)⁻¹`` as the mean of ``‖L⁻¹z‖²`` over random signs ``z`` (Hutchinson 1990)."""
    halves = torch.linalg.solve_triangular(factor, _random_signs(factor, PROBES), upper=False)
    return float(halves.square().sum(dtype=torch.float64)) / PROBES


def _exact_trace(factor: Tensor) -> float:
    """``tr (LLᵀ)⁻¹ = ‖L⁻¹‖²``."""
    m = len(factor)
    trace = 0.0
    for first in range(0, m, TRACE_COLUMNS):
        # Columns of a triangular inverse are 0 above the diagonal, so the rows from there on are all that is solved for.
        columns = torch.eye(m - first, min(TRACE_COLUMNS, m - first), dtype=factor.dtype, device=factor.device)
        inverse = torch.linalg.solve_triangular(factor[first:, first:], columns, upper=False)
        trace += float(inverse.square().sum(dtype=torch.float64))
    return trace


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """0 for a column of zeros or one that is solved already, such as that of a class without examples."""
    return torch.where(denominator > 0, numerator / denominator, 0)


#: Eigenvalues below this share of the largest are rounding.
_ROUNDING = 1e-14


def shrink(rows: Tensor, rank: int) -> tuple[Tensor, float]:
    """Replace rows by at most ``rank`` orthogonal ones: the step of Frequent Directions.

    All squared singular values lose the first one that does not fit. The new rows mix all the old ones, so no sample can be
    read off them unless it was the only one. Returned are the sketch ``(rank, m)``, padded with zeros, and the shrinkage
    ``δ``, the most that any direction lost: ``0 ⪯ rowsᵀrows − sketchᵀsketch ⪯ δI``.
    """
    count, width = rows.shape
    # The smaller of the two matrices of products has all the singular values.
    values, vectors = torch.linalg.eigh(rows.mT @ rows if width < count else rows @ rows.mT)
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    shrinkage = float(values[rank]) if len(values) > rank else 0.0
    values, vectors = values[:rank], vectors[:, :rank]
    kept = (values - shrinkage).clamp_min(0)
    if width < count:
        directions = vectors.mT * kept.sqrt()[:, None]
    else:
        present = values > _ROUNDING * values[:1]
        scale = torch.where(present, kept / values, 0.0).sqrt()
        directions = (vectors * scale).mT @ rows
    sketch = rows.new_zeros(rank, width)
    sketch[: len(directions)] = directions
    return sketch, shrinkage


def sketched_ridge(
    sketch: Tensor,
    shrinkage: float,
    moments: Tensor,
    class_weights: Tensor,
    n_samples: float,
    alpha: float | None,
    energy: float,
) -> RidgeSolution:
    """Solve ``(BᵀB + (α + Δ/2)I) W = S``, the middle of what ``G`` can be, for a given α or by cross-validation.

    The residual is that of ``BᵀB + Δ/2 I``, an estimate. Degrees of freedom are linear in ``G``, so they come from its trace,
    which is known (``energy``): ``Δ/2`` in all directions would use several times too many, and α would be far too large.
    """
    width = sketch.shape[1]
    values, vectors = torch.linalg.eigh(sketch @ sketch.mT)
    values = values.clamp_min(0)
    inside = vectors.mT @ (sketch @ moments)
    coordinates = torch.where(values > _ROUNDING * values[-1:], inside.square().sum(1) / values, 0.0)
    outside = (moments.square().sum() - coordinates.sum()).clamp_min(0)
    lost = max(energy - float(values.sum()), 0.0) / width  # mean loss per direction

    def solved(penalty: float) -> RidgeSolution:
        shift = penalty + shrinkage / 2
        shifted = values + shift
        agreement = (coordinates / shifted).sum() + outside / shift  # tr WᵀS
        size = (coordinates / shifted.square()).sum() + outside / (shift * shift)  # ‖W‖²
        residual = float(class_weights.sum() - agreement - penalty * size)
        freedom = n_samples - float(((values + lost) / shifted).sum()) - (width - len(values)) * lost / shift
        solution = (moments - sketch.mT @ (vectors @ (inside / shifted[:, None]))) / shift
        logarithm = 0.0 if shrinkage else float(torch.log1p(values / penalty).sum())
        return RidgeSolution(penalty, solution, max(residual, 0.0), freedom, shrinkage == 0, logarithm)

    if alpha is not None:
        return solved(max(alpha, least_alpha(moments.new_tensor(energy), width)))
    grid = candidates(moments.new_tensor(energy / width), least=START if n_samples <= width else 0.0)
    return search(grid, solved, moments, class_weights, n_samples)


def diagonal_ridge(
    diagonal: Tensor, moments: Tensor, class_weights: Tensor, n_samples: float, alpha: float | None
) -> RidgeSolution:
    """Solve as if features varied independently within each class: ``G ≈ D + Σ_c s_c s_cᵀ / n_c``, ``D`` diagonal.

    ``D`` is what the class sums leave of the diagonal of ``G``: the diagonal is exact, and so is all that the class means span.
    Matrices are only as large as there are classes.
    """
    width = len(diagonal)
    weighted = class_weights > 0  # a class that was forgotten has no sum either
    sums, counts = moments[:, weighted], class_weights[weighted]
    within = (diagonal - (sums.square() / counts).sum(1)).clamp_min(0)

    def solved(penalty: float) -> RidgeSolution:
        # (D + αI + S N⁻¹ Sᵀ)⁻¹ S = (D + αI)⁻¹ S (N + Sᵀ(D + αI)⁻¹S)⁻¹ N
        scaled = sums / (within + penalty)[:, None]
        small = torch.linalg.inv(sums.mT @ scaled + torch.diag(counts))
        solution = torch.zeros_like(moments)
        solution[:, weighted] = scaled @ (small * counts)
        residual = float(counts.sum() - (solution * moments).sum() - penalty * solution.square().sum())
        trace = (1 / (within + penalty)).sum() - (small * (scaled.mT @ scaled)).sum()
        return RidgeSolution(
            penalty, solution, max(residual, 0.0), float(n_samples - width + penalty * trace), known=False
        )

    if alpha is not None:
        return solved(max(alpha, least_alpha(diagonal.sum(), width)))
    grid = candidates(diagonal.mean(), least=START if n_samples <= width else 0.0)
    return search(grid, solved, moments, class_weights, n_samples)


class LeaveOneOutScores(NamedTuple):
    """Scores of samples that were each left out of the fit, and the penalty that was best for them."""

    alpha: float
    scores: Tensor  # (n, c)
    error: Tensor  # squared error of each sample, (n,)


def leave_one_out_scores(features: Tensor, targets: Tensor) -> LeaveOneOutScores:
    """Leave each sample out in turn, in closed form, with the α of the grid that has the least squared error (PRESS).

    ``features`` are ``(n, m)`` and ``targets`` one-hot, ``(n, c)``. A sample of weight ``w`` is a row and a target, both times
    ``√w``. With the hat matrix ``A = H(HᵀH + αI)⁻¹Hᵀ`` the score of a sample left out is ``(AY − diag(A) Y) / (1 − diag(A))``.
    One eigendecomposition, of ``HHᵀ`` or of ``HᵀH``, serves all α.
    """
    h, y = features.double(), targets.double()
    if len(h) <= h.shape[1]:
        values, left = torch.linalg.eigh(h @ h.mT)
        values = values.clamp_min(0)
    else:
        values, vectors = torch.linalg.eigh(h.mT @ h)
        values = values.clamp_min(0)
        left = h @ vectors * values.clamp_min(values[-1] * 1e-14).rsqrt()  # the left singular vectors of H
    along, best = left.mT @ y, None
    for alpha in candidates(values.sum() / h.shape[1]).tolist():
        share = values / (values + alpha)
        own = (left.square() @ share)[:, None]
        scores = (left @ (share[:, None] * along) - own * y) / (1 - own).clamp_min(1e-9)
        error = (scores - y).square().sum(1)
        if best is None or float(error.sum()) < float(best.error.sum()):
            best = LeaveOneOutScores(alpha, scores, error)
    assert best is not None
    return best
