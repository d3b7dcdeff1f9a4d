"""What to try next, given what was tried: Optuna's TPE over a method's ranges.

Every question is put to a study made anew out of the earlier answers, with a sampler whose seed says which question it is.
So a search that was killed goes on exactly as if it had not been.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

from cldnet.methods.ranges import Choice, LogUniform, Range

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

__all__ = ["SAMPLER", "Tried", "count_settings", "load_optuna", "next_setting"]

SAMPLER = "Optuna TPE, sampler made anew for every trial"
#: A setting that was tried, and what it reached; nothing if it failed.
Tried = tuple[Mapping[str, Any], float | None]

_TRIES = 20


def load_optuna() -> Any:
    """Import Optuna, or say how to get it."""
    try:
        import optuna  # noqa: PLC0415  (optional)
    except (ImportError, RuntimeError) as error:
        raise ImportError("Tuning needs Optuna: pip install 'cldnet[tune]'") from error
    return optuna


def count_settings(ranges: Mapping[str, Range]) -> int | None:
    """Number of different settings that ranges allow; nothing if there is no end of them.

    Examples
    --------
    >>> from cldnet.methods.ranges import Whole
    >>> count_settings({"replay": Whole(1, 3), "bias": Choice((False, True))}), count_settings({"lr": LogUniform(0.1, 1)})
    (6, None)
    """
    counts = [span.count for span in ranges.values()]
    return None if None in counts else prod(count for count in counts if count is not None)


def next_setting(ranges: Mapping[str, Range], tried: Sequence[Tried], seed: str) -> dict[str, Any]:
    """Propose a setting that was not tried before.

    Parameters
    ----------
    ranges : mapping
        What is searched, by the name of the option.
    tried : sequence of (options, value or None)
        All earlier trials, in their order.
    seed : str
        Any text; the same one with the same trials gives the same proposal.

    Examples
    --------
    >>> next_setting({"bias": Choice((False, True))}, [({"bias": True}, 0.5)], seed="toy")
    {'bias': False}
    """
    known = {_text(options) for options, _ in tried}
    for attempt in range(_TRIES):
        number = int.from_bytes(hashlib.sha256(f"{seed}/{len(tried)}/{attempt}".encode()).digest()[:4])
        # Three digits are enough for a person; only a very narrow range needs more of them to find something new.
        options = _ask(ranges, tried, number, digits=3 if attempt < _TRIES // 2 else 17)
        if _text(options) not in known:
            return options
    # A sampler that likes one corner may never name the last few of a small number of settings. Among numbers without an
    # end this does not happen; if it did, what is known would be tried once more, which costs nothing.
    left = (setting for setting in _all_settings(ranges) if _text(setting) not in known)
    return next(left, options)


def _ask(ranges: Mapping[str, Range], tried: Sequence[Tried], number: int, digits: int) -> dict[str, Any]:
    optuna = load_optuna()
    distributions = {name: _distribution(span) for name, span in ranges.items()}
    with _quiet(optuna):
        study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=number))
    failed = optuna.trial.TrialState.FAIL
    for options, value in tried:
        parameters = {
            name: span.values.index(options[name]) if isinstance(span, Choice) else options[name]
            for name, span in ranges.items()
        }
        state = {"state": failed} if value is None else {"value": value}
        study.add_trial(optuna.trial.create_trial(params=parameters, distributions=distributions, **state))
    found = study.ask(distributions).params
    return {name: _value(span, found[name], digits) for name, span in ranges.items()}


def _distribution(span: Range) -> BaseDistribution:
    from optuna.distributions import (  # noqa: PLC0415
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if isinstance(span, Choice):
        return CategoricalDistribution(range(span.count))  # Optuna takes no tables as values
    if isinstance(span, LogUniform):
        return FloatDistribution(span.low, span.high, log=True)
    return IntDistribution(span.low, span.high, log=span.log)


def _value(span: Range, found: Any, digits: int) -> Any:
    if isinstance(span, Choice):
        return span.values[found]
    if isinstance(span, LogUniform):
        return min(max(float(f"{found:.{digits}g}"), span.low), span.high)
    return found


def _all_settings(ranges: Mapping[str, Range]) -> Iterator[dict[str, Any]]:
    """All settings, one after the other; none where there is no end of them."""
    values: list[Sequence[Any]] = []
    for span in ranges.values():
        if isinstance(span, LogUniform):
            return
        values.append(span.values if isinstance(span, Choice) else range(span.low, span.high + 1))
    for setting in itertools.product(*values):
        yield dict(zip(ranges, setting, strict=True))


def _text(options: Mapping[str, Any]) -> str:
    return json.dumps(options, sort_keys=True)


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Keep Optuna from announcing every study."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)
