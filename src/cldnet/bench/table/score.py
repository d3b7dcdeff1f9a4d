"""The numbers that a table can show: where a result has them, and in what unit people read them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import floor, log10
from typing import Any

from cldnet.bench.checked import is_number
from cldnet.bench.published import Printed, Published, Reading
from cldnet.bench.wording import clip
from cldnet.names import nearest_names

__all__ = ["SCORES", "Score", "score_by_name"]

Quoted = tuple[Printed, Printed | None]


@dataclass(frozen=True)
class Score:
    """A number of a result.

    Attributes
    ----------
    name : str
        Its short name, for options.
    heading : str
        What it is, for people.
    unit : str
        The unit that values are shown in.
    read : callable
        Takes the value, in that unit, from a result; None where the result has none.
    published : callable
        Takes the same number, and its standard deviation, from a published figure; None where that has none.
    significant : int
        Digits that a mean is shown with at least; 0: two behind the point, whatever its size.
    """

    name: str
    heading: str
    unit: str
    read: Callable[[Mapping[str, Any]], Any]
    published: Callable[[Published], Quoted | None] = lambda figure: None
    significant: int = 0

    def value(self, result: Mapping[str, Any]) -> float | None:
        """The number of a result, checked: a result may come from a stranger.

        Examples
        --------
        >>> SCORES["accuracy"].value({"scores": {"average_accuracy": 0.5}})
        50.0
        """
        value = self.read(result)
        if value is None:
            return None
        if not is_number(value):
            raise ValueError(f"A result has {clip(repr(value))} as its {self.heading}; expected a finite number.")
        return float(value)

    def decimals(self, mean: float) -> int:
        """Count the digits behind the point that a mean, and its standard deviation, are shown with.

        Examples
        --------
        >>> [SCORES["kept"].decimals(mean) for mean in (0.0015, 1.5, 1500.0)], SCORES["accuracy"].decimals(0.0015)
        ([5, 2, 0], 2)
        """
        if not self.significant or not mean:
            return 2
        return max(0, self.significant - 1 - floor(log10(abs(mean))))


def _share(key: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda result: _per_cent(result["scores"].get(key))


def _leak(key: str) -> Callable[[Mapping[str, Any]], Any]:
    return lambda result: _per_cent(((result.get("diagnostics") or {}).get("leaky") or {}).get(key))


def _per_cent(share: Any) -> Any:
    return 100 * share if type(share) in (int, float) else share


def _accuracy(reading: Reading) -> Callable[[Published], Quoted | None]:
    """Accuracies of one reading: with and without the task known, they are not to be compared."""
    return lambda figure: (figure.mean, figure.std) if figure.reading == reading else None


#: The scores by name.
SCORES: Mapping[str, Score] = {
    score.name: score
    for score in (
        Score(
            "accuracy", "average accuracy after the last task", "%", _share("average_accuracy"), _accuracy("class-il")
        ),
        Score("incremental", "average incremental accuracy", "%", _share("average_incremental_accuracy")),
        Score("forgetting", "forgetting", "%", _share("forgetting")),
        Score(
            "task-il",
            "average accuracy with the task known",
            "%",
            _share("task_il_accuracy"),
            _accuracy("task-il"),
        ),
        Score(
            "capacity",
            "the paper's Capacity",
            "×",
            lambda result: result.get("capacity_paper"),
            lambda figure: None if figure.capacity is None else (figure.capacity, None),
        ),
        Score(
            "kept",
            "everything that the learner keeps",
            "MB",
            lambda result: sum(result["bytes"].values()) / 1e6,
            significant=3,
        ),
        Score("seconds", "time of a run", "s", lambda result: result["seconds"]["total"]),
        Score(
            "leak-statistics",
            "no result, but what it would seem to be if each task's test images were normalised by their own mean and spread",
            "%",
            _leak("own_test_statistics"),
        ),
        Score(
            "leak-epoch",
            "no result, but what it would seem to be if the last task's best epoch were chosen by test data",
            "%",
            _leak("best_epoch"),
        ),
    )
}


def score_by_name(name: str) -> Score:
    """Find a score by its name.

    Examples
    --------
    >>> score_by_name("forgeting")
    Traceback (most recent call last):
    ...
    ValueError: There is no score 'forgeting'. Did you mean 'forgetting'?
    """
    if name not in SCORES:
        raise ValueError(f"There is no score {name!r}. {nearest_names(name, SCORES)}")
    return SCORES[name]
