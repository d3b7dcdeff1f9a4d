"""A gate before a lesson is saved: how accurate a model was on held-out samples of its classes, and how accurate it is now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cldnet.estimator.classifier import CLDNetClassifier

#: Held-out samples: inputs and their labels.
_Held = tuple[Any, Sequence[Any]]


@dataclass(frozen=True)
class ClassChange:
    """How many of the held-out samples of a class were right before a lesson, and are after it."""

    label: str
    samples: int
    before: int
    after: int


@dataclass
class Gate:
    """Compare a model on held-out samples with what it was; only classes count that it knew before.

    Labels are compared as text, as the names of folders are text.

    Examples
    --------
    >>> from cldnet import CLDNetClassifier
    >>> clf = CLDNetClassifier(random_state=0).fit([[0.0, 0.1], [5.0, 5.1]] * 25, ["cat", "dog"] * 25)
    >>> held_out = [([[0.0, 0.0], [5.1, 5.0]], ["cat", "dog"])]
    >>> gate = Gate.of(clf, held_out)
    >>> gate.compare(clf.partial_fit([[0.0, 0.1]] * 500, ["dog"] * 500), held_out).drop
    50.0
    """

    right: Mapping[str, int]
    samples: Mapping[str, int]
    after: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, clf: CLDNetClassifier, held_out: Iterable[_Held]) -> Gate:
        """Count what a model gets right before a lesson; raise if it knows none of the classes."""
        right, samples = _count(clf, held_out, known := {*map(str, clf.classes_)})
        if not samples:
            raise ValueError(
                f"None of the held-out samples is of a class that the model knows ({', '.join(sorted(known)[:6])}), so there "
                "is nothing to compare. Give samples of its classes."
            )
        return cls(right, samples)

    def compare(self, clf: CLDNetClassifier, held_out: Iterable[_Held]) -> Gate:
        """Count again after the lesson, over the same samples and all classes that the model knows now."""
        right, samples = _count(clf, held_out, {*self.samples})
        if samples != self.samples:
            raise ValueError(
                "The held-out samples have changed during the lesson: keep them as they are, and try again."
            )
        return Gate(self.right, self.samples, right)

    @property
    def accuracies(self) -> tuple[float, float]:
        """Share of the samples that were right before, and that are right after."""
        count = sum(self.samples.values())
        return sum(self.right.values()) / count, sum(self.after.values()) / count

    @property
    def drop(self) -> float:
        """By how many points of a hundred the accuracy fell; negative if it rose."""
        before, after = self.accuracies
        return 100 * (before - after)

    @property
    def harmed(self) -> list[ClassChange]:
        """The classes of which fewer samples are right than before, those that lost most first."""
        every = (
            ClassChange(label, count, self.right.get(label, 0), self.after.get(label, 0))
            for label, count in sorted(self.samples.items())
        )
        return sorted(
            (each for each in every if each.after < each.before),
            key=lambda each: (each.after - each.before, each.label),
        )


def _count(
    clf: CLDNetClassifier, held_out: Iterable[_Held], classes: set[str]
) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """How many samples of some classes are right, and how many there are, by class."""
    right, samples = Counter[str](), Counter[str]()
    for X, y in held_out:
        labels = [*map(str, y)]
        for label, answer in zip(labels, map(str, clf.predict(X).tolist()), strict=True):
            if label in classes:
                samples[label] += 1
                right[label] += label == answer
    return dict(right), dict(samples)
