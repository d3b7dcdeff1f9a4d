"""The choice of a ridge penalty: where candidates lie, which of them is better, and the walk to the best.

The α is best with which the scores of rows left out separate the classes best (`cldnet.math.discriminant.separation`). The
squared error, which generalised cross-validation looks at as a rule, wants more of a penalty than right answers do when
there are many classes and features: on CIFAR-100 with 14,401 features 0.01 of the mean diagonal instead of 0.003, and a
point less of accuracy on validation data (a trial, results/exact/validation/trials.json). With a single class there is
nothing to separate, and where ``G`` is not known in full nobody knows how well: then the squared error decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from cldnet.math.discriminant import separation
from cldnet.math.left_out import Choice, left_out

__all__ = ["START", "candidates", "least_alpha", "search"]

START = 10**-2.5
"""Where the walk starts, in units of the mean diagonal of ``G``."""
_LOW, _HIGH, _COUNT = 1e-6, 1e1, 29


def candidates(mean_diagonal: Tensor, least: float = 0.0) -> Tensor:
    """Candidates for α, spread evenly in logarithm around the mean diagonal of ``G``, none below ``least`` times it.

    Where all features were 0 every α gives the same solution, and the mean diagonal counts as 1.

    Examples
    --------
    >>> grid = candidates(torch.tensor(4.0, dtype=torch.float64), least=0.1)
    >>> round(float(grid[0]), 3), round(float(grid[-1]), 3), len(grid)
    (0.4, 40.0, 9)
    """
    steps = torch.linspace(0, 1, _COUNT, dtype=torch.float64, device=mean_diagonal.device)
    relative = _LOW * (_HIGH / _LOW) ** steps
    return (float(mean_diagonal) or 1.0) * relative[relative >= 0.999 * least]


def least_alpha(trace: Tensor, width: int) -> float:
    """The least α that makes a difference to sums with that trace: rounding of them weighs as much.

    Examples
    --------
    >>> least_alpha(torch.tensor(1.0, dtype=torch.float64), width=1000) < 1e-12
    True
    """
    return float(trace) * width * torch.finfo(torch.float64).eps


def search(
    grid: Tensor,
    solved: Callable[[float], Choice],
    moments: Tensor,
    class_weights: Tensor,
    rows: float,
    *,
    least: float = 0.0,
    fine: bool = True,
) -> Choice:
    """Walk on every second point of the grid, from the start to where it gets worse again; then try the point beside it.

    Parameters
    ----------
    grid : Tensor
        What `candidates` gave.
    solved : callable
        The solution for an α.
    moments, class_weights, rows
        As for `cldnet.math.ridge.ridge`, in the axes of the solutions.
    least : float
        Degrees of freedom that an α has to leave to be judged.
    fine : bool
        Whether degrees of freedom are known well enough to tell neighbouring points apart.

    Returns
    -------
    Choice
        The best one visited; that of the start, if none can be judged.
    """
    weighted = class_weights > 0
    choices: dict[int, Choice] = {}
    costs: dict[int, float] = {}

    def visit(index: int) -> float:
        if index not in costs:
            choice = choices[index] = solved(float(grid[index]))
            known = choice._replace(solution=choice.solution[:, weighted])
            costs[index] = _cost(known, moments[:, weighted], class_weights[weighted], rows, least)
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
    return choices[min(costs, key=lambda index: costs[index])]


def _cost(choice: Choice, moments: Tensor, class_weights: Tensor, rows: float, least: float) -> float:
    """How bad a choice is, or infinity for an α that leaves too little freedom to judge it by."""
    if choice.freedom <= least:
        return math.inf
    if len(class_weights) < 2 or not choice.known:
        return choice.residual / choice.freedom**2
    return -separation(left_out(choice, moments, class_weights, rows))
