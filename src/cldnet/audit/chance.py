"""How alike random directions are: what is no nearer than that tells nothing."""

from __future__ import annotations

from cldnet.audit.stored import LIMIT

__all__ = ["chance_of_likeness", "likely_cosine"]


def chance_of_likeness(length: int) -> float:
    """The probability that two random directions have a |cosine| beyond `LIMIT`.

    Examples
    --------
    >>> round(chance_of_likeness(2), 3), chance_of_likeness(16) < 1e-12
    (0.09, True)
    """
    from scipy.special import betainc  # noqa: PLC0415  (heavy)

    return 1.0 if length < 2 else float(betainc((length - 1) / 2, 0.5, 1 - LIMIT**2))


def likely_cosine(length: int, probability: float) -> float:
    """The |cosine| that two random directions are beyond with a probability.

    Examples
    --------
    >>> round(likely_cosine(2, 0.09), 2), round(likely_cosine(64, 1e-9), 2), likely_cosine(1, 0.5)
    (0.99, 0.67, 1.0)
    """
    from scipy.special import betaincinv  # noqa: PLC0415  (heavy)

    return 1.0 if length < 2 else float(1 - betaincinv((length - 1) / 2, 0.5, probability)) ** 0.5
