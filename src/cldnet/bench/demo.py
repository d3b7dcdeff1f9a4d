"""The demo: Split Digits in three class orders, with the two bounds, two rivals and both CLDNet solvers."""

from __future__ import annotations

from cldnet.bench.spec import Spec

__all__ = ["METHODS", "ORDERS", "demo_spec"]

STREAM = "split-digits"
#: From the lower bound to the upper one.
METHODS = ("finetune", "ewc", "owm", "cldnet", "exact", "joint")
ORDERS = (0, 1, 2)


def demo_spec() -> Spec:
    """Describe the demo as a bench.

    Examples
    --------
    >>> len(demo_spec().cells())
    18
    """
    return Spec("demo", "CLDNet demo: ten digits, two at a time", (STREAM,), METHODS, ORDERS)
