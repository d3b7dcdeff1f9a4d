"""Sums of a model that are released under differential privacy: noise that hides whether any one sample was there.

**Guarantee.** Two sets of samples are neighbours if one of them has one sample more. Whatever is computed from the released
sums, its probability with one set is at most ``exp(ε)`` times that with the other, plus ``δ``.

**Mechanism.** A sample with features ``h``, ``‖h‖ ≤ R``, adds ``hhᵀ`` to ``G``, ``h`` to the sum of its class and 1 to the
count of it. Independent Gaussian noise of std ``σ`` is added to each number above the diagonal of ``G`` and of ``√2 σ`` on
it. Divided by these stds, ``hhᵀ`` has the length ``‖h‖² / (√2 σ)``: the symmetry of ``G`` saves a factor of √2, for any
``h``. Class sums and counts have noise of their own stds. All of it is one Gaussian mechanism: in units of the noise one
sample moves the sums by at most ``√(R⁴/2σ² + R²/σ_s² + 1/σ_n²)``, the inverse of the noise multiplier that dp-accounting
finds for ε and δ (Balle & Wang 2018, exact for one release). `SHARES` divides its square among the three.

**Whole numbers.** Sums of clipped features are whole numbers, and so are the noisy ones: they are rounded. What the last
bits of a sum of floats reveal (Mironov 2012) is gone with the fractions.

**After the noise** nothing is read of the data, so all that follows is free. Noise leaves sums that no samples can have: a
mean longer than ``R``, or a scatter within classes, ``W = G − Σ_c s_c s_cᵀ / n_c``, with negative eigenvalues, and the
choice of α and the discriminant, which invert it, fail. So means are shortened to ``R``, and eigenvalues of ``W`` below
`FLOOR` times ``σ√m`` are raised to it; noise alone has eigenvalues up to ``2σ√m``. `SHARES` and `FLOOR` were chosen on
FashionMNIST alone (benchmarks/privacy.py).

References
----------
C. Dwork & A. Roth, "The Algorithmic Foundations of Differential Privacy", 2014.
https://www.cis.upenn.edu/~aaroth/Papers/privacybook.pdf

C. Dwork, K. Talwar, A. Thakurta & L. Zhang, "Analyze Gauss: Optimal Bounds for Privacy-Preserving Principal Component
Analysis", STOC 2014: noise on ``G``. https://doi.org/10.1145/2591796.2591883

B. Balle & Y.-X. Wang, "Improving the Gaussian Mechanism for Differential Privacy: Analytical Calibration and Optimal
Denoising", ICML 2018. https://arxiv.org/abs/1805.06530

D. Vu & A. Slavković, "Differential Privacy for Clinical Trial Data: Preliminary Evaluations", ICDMW 2009; Y.-X. Wang,
"Revisiting Differentially Private Linear Regression" (AdaSSP), UAI 2018: regression from noisy sums.
https://arxiv.org/abs/1803.02596

I. Mironov, "On Significance of the Least Significant Bits for Differential Privacy", CCS 2012.
https://doi.org/10.1145/2382196.2382264
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite, sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cldnet.data.labels import LabelTable, as_labels
from cldnet.estimator.model import Model, check_integer, shown
from cldnet.estimator.statistics import Statistics
from cldnet.math import symmetric
from cldnet.nets import Clipped, is_described

#: Shares of ``G``, the class sums and the counts in the square of what one sample may move.
SHARES = (0.60, 0.39, 0.01)
#: The least eigenvalue of the scatter within classes, in units of ``σ√m``.
FLOOR = 1 / 8
#: Makes up for the tolerance of the calibration and the rounding of the stds.
_MARGIN = 1 + 1e-6
_DRAWN_AT_ONCE = 1 << 20

Normal = Callable[[int], NDArray[np.float64]]


class Deviations(NamedTuple):
    """Standard deviations of the noise: above the diagonal of ``G`` (on it √2 times as much), of class sums, of counts."""

    products: float
    sums: float
    counts: float


def noise_multiplier(epsilon: float, delta: float) -> float:
    """The std of Gaussian noise, in units of what one sample can change, that guarantees ε and δ for one release.

    Examples
    --------
    >>> round(noise_multiplier(1.0, 1e-5), 3)
    3.731
    """
    try:
        import dp_accounting  # noqa: PLC0415  (an extra that only this needs)
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            'Differential privacy needs dp-accounting: pip install ".[privacy]" in a clone of CLDNet.'
        ) from error
    return float(dp_accounting.get_sigma_gaussian(epsilon, delta)) * _MARGIN


def deviations(norm: float, multiplier: float) -> Deviations:
    """Stds of the noise for features of a length of at most ``norm``."""
    products, sums, counts = (multiplier / sqrt(share) for share in SHARES)
    return Deviations(products * norm**2 / sqrt(2), sums * norm, counts)


def secure_normal(count: int) -> NDArray[np.float64]:
    """Draw standard normal numbers from the random bytes of the operating system, which nobody can foresee.

    A seeded generator would not do: whoever knows all samples but one knows most of its output, and could compute the rest.
    By the method of Box and Muller from 53 bits, so no number is beyond 8.6, which changes δ by less than 1e-17 for each of
    them.
    """
    half = -(-count // 2)
    words = np.frombuffer(secrets.token_bytes(16 * half), dtype=np.uint64) >> np.uint64(11)
    uniform = (words + 1.0) / 2.0**53  # above 0, up to 1
    radius, angle = np.sqrt(-2 * np.log(uniform[:half])), 2 * np.pi * uniform[half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


def private_statistics(
    model: Model, epsilon: float, delta: float, classes: Sequence[Any] | None = None, random_state: int | None = None
) -> Statistics:
    """Release the sums of a model with noise; see `CLDNetClassifier.private_statistics`."""
    _check_budget(epsilon, delta)
    norm = _check_bounded(model)
    if random_state is not None:
        check_integer("random_state", random_state, least=0)
    normal = secure_normal if random_state is None else np.random.default_rng(int(random_state)).standard_normal
    stds = deviations(norm, noise_multiplier(float(epsilon), float(delta)))
    exact = model.statistics
    labels = _public_labels(exact, classes)
    rows = torch.from_numpy(labels.rows(exact.labels.by_row))
    sums = torch.zeros(len(labels), exact.width, dtype=torch.float64).index_copy_(0, rows, exact.tensors["class_sums"])
    counts = torch.zeros(len(labels), dtype=torch.float64).index_copy_(0, rows, exact.tensors["class_weights"])
    gram = symmetric.unpack(exact.tensors["second.packed"], exact.width)
    gram, sums, counts = _noisy(gram, sums, counts, stds, normal)
    # From here on nothing of the model is used but what is public: the map, the kind of its inputs, and the labels.
    gram, sums, counts = consistent(gram, sums, counts, norm, FLOOR * stds.products * sqrt(exact.width))
    labels.add_counts({label: int(n) for label, n in zip(labels.by_row.tolist(), counts.tolist(), strict=True)})
    tensors = {"second.packed": symmetric.pack(gram), "class_sums": sums, "class_weights": counts, "rows": counts.sum()}
    return Statistics(exact.map_id, exact.gram, replace(exact.inputs, largest=0.0), labels, tensors)


def _check_budget(epsilon: float, delta: float) -> None:
    """Refuse an ε and a δ that mean nothing."""
    numbers = [isinstance(each, int | float | np.number) and not isinstance(each, bool) for each in (epsilon, delta)]
    if not numbers[0] or not isfinite(epsilon) or epsilon <= 0:
        raise ValueError(
            f"epsilon={shown(epsilon)} should be a positive number; 1 is strong, above 10 hardly protects."
        )
    if not numbers[1] or not 0 < delta < 1:
        raise ValueError(
            f"delta={shown(delta)} should be between 0 and 1, and far below one divided by the number of samples: 1e-5 for "
            "some ten thousand."
        )


def _check_bounded(model: Model) -> float:
    """The bound of the features' length, or an error if one sample may have changed the sums by more than it says."""
    features, gram = model.exact.features, model.parameters.gram
    if type(features) is not Clipped or not is_described(features):
        raise ValueError(
            f"The feature map is {type(features).__name__}, and private sums need features of bounded length from the start: "
            "make the model with backbone=Clipped(features, norm), over a map of the library's own that was fitted on public "
            "data (cldnet.nets.Clipped)."
        )
    if gram != "full":
        raise ValueError(f"gram={gram!r} has no private sums: make the model with gram='full'.")
    if model.map_labels:
        raise ValueError(
            f"The feature map was fitted on samples of labels {sorted(model.map_labels)[:6]}, and noise on the sums does not "
            "hide those. Fit a map on public data, and teach a new model over it."
        )
    if not model.bounded:
        raise ValueError(
            "Some samples had a weight above 1, or add_noise moved some: one sample may count for more than the noise would "
            "hide. Teach a new model with weights up to 1, and without add_noise."
        )
    return features.norm


def _public_labels(exact: Statistics, classes: Sequence[Any] | None) -> LabelTable:
    """A table of the labels that are released, in an order that says nothing, and without counts and dates."""
    known = exact.labels.classes
    table = LabelTable()
    table.learn(known if classes is None else np.unique(as_labels(classes)))
    if not len(table):
        raise ValueError("There are no classes to release: name some with classes=[...], or teach the model first.")
    missing = [label for label in known.tolist() if label not in table]
    if missing:
        raise ValueError(
            f"The model has the classes {missing[:6]}, which classes={shown(classes)} does not name, and all its sums are "
            "released: name every class, or take those out with forget."
        )
    return table


def _noisy(gram: Tensor, sums: Tensor, counts: Tensor, stds: Deviations, normal: Normal) -> list[Tensor]:
    """The sums with noise, as whole numbers."""
    upper = torch.ones_like(gram, dtype=torch.bool).triu_()
    noise = torch.zeros_like(gram).masked_scatter_(upper, _drawn(int(upper.sum()), normal))
    noise.diagonal().mul_(sqrt(2))
    noise += noise.triu(1).mT
    noises = noise, _drawn(sums.numel(), normal).reshape(sums.shape), _drawn(len(counts), normal)
    return [(exact + std * each).round() for exact, std, each in zip((gram, sums, counts), stds, noises, strict=True)]


def _drawn(count: int, normal: Normal) -> Tensor:
    """Standard normal numbers, a part at a time."""
    sizes = [_DRAWN_AT_ONCE] * (count // _DRAWN_AT_ONCE) + [count % _DRAWN_AT_ONCE]
    return torch.from_numpy(np.concatenate([normal(size) for size in sizes]))


def consistent(gram: Tensor, sums: Tensor, counts: Tensor, norm: float, floor: float) -> tuple[Tensor, Tensor, Tensor]:
    """Change noisy sums to some that samples can have: whole counts from 1 on, means up to ``norm``, a positive scatter.

    ``floor`` is the least eigenvalue of the scatter within classes.
    """
    counts = counts.clamp_min(1)
    lengths = sums.norm(dim=1).clamp_min(1)
    sums = (sums * (norm * counts / lengths).clamp_max(1)[:, None]).round()
    between = sums.mT @ (sums / counts[:, None])
    values, vectors = torch.linalg.eigh(gram - between)
    within = (vectors * values.clamp_min(floor)) @ vectors.mT
    return (within + between).round(), sums, counts
