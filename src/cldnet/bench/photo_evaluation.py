"""How well a model knows labelled photos: each one's answer, and the figures that follow from them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cldnet.bench.wording import counted, percent
from cldnet.math.confusion import balanced_accuracy, class_accuracies, confusion_matrix, worst_pairs

__all__ = ["Answered", "ClassFigures", "Confused", "PhotoEvaluation", "Stranger"]

SCHEMA = 1
#: Classes from which on it says something that the right one is among the first three.
_MANY = 4
#: Classes and confusions that are named in a few lines of text.
_NAMED = 5


class Answered(NamedTuple):
    """What a model says of one photo.

    Attributes
    ----------
    photo : str
        Path relative to the folder that was evaluated.
    label, answer : str
        What it shows, and what the model takes it for.
    probability : float
        How sure the model is of its answer.
    rank : int or None
        How many classes the model finds likelier than the right one; None if it does not know the right one.
    """

    photo: str
    label: str
    answer: str
    probability: float
    rank: int | None

    @property
    def wrong(self) -> bool:
        """Whether the model knows the class, and takes the photo for another."""
        return self.rank is not None and self.answer != self.label


class ClassFigures(NamedTuple):
    """A class of which photos were evaluated, how many of them, and how many are taken for what they are."""

    label: str
    photos: int
    right: int

    @property
    def accuracy(self) -> float:
        """Share of the photos that are right."""
        return self.right / self.photos


class Confused(NamedTuple):
    """``photos`` of the ``of`` photos of a class are taken for another one."""

    label: str
    answer: str
    photos: int
    of: int

    def __str__(self) -> str:
        verb = "is" if self.photos == 1 else "are"
        return f"{self.photos:,} of {self.of:,} {self.label!r} {verb} taken for {self.answer!r}"


class Stranger(NamedTuple):
    """A class that the model does not know, how many photos it has, and what they are taken for, most frequent first."""

    label: str
    photos: int
    taken_for: dict[str, int]


@dataclass(frozen=True)
class PhotoEvaluation:
    """The answers of a model to labelled photos, and what they come to. Accuracies are of classes that the model knows.

    Attributes
    ----------
    model, digest : str
        Name of the model's file, and its checksum.
    folder : str
        Name of the folder.
    classes : int
        How many classes the model knows.
    answers : tuple of Answered
        Of all photos that could be read.
    unread : mapping
        Reasons why the others could not, by their paths.
    day : str
    versions : mapping

    Examples
    --------
    >>> answers = Answered("a/1.jpg", "a", "a", 0.9, 0), Answered("b/1.jpg", "b", "a", 0.6, 1)
    >>> found = PhotoEvaluation("model", "sha256:…", "photos", 2, answers, {}, "2026-01-01", {})
    >>> found.accuracy, [str(pair) for pair in found.confusions]
    (0.5, ["1 of 1 'b' is taken for 'a'"])
    """

    model: str
    digest: str
    folder: str
    classes: int
    answers: tuple[Answered, ...]
    unread: Mapping[str, str]
    day: str
    versions: Mapping[str, str]

    def __post_init__(self) -> None:
        if not self.known:
            raise ValueError(
                f"None of the photos under {self.folder!r} that can be read is of a class that the model knows, so there is "
                "nothing to measure: give photos in folders that have the names of its classes."
            )

    @cached_property
    def known(self) -> tuple[Answered, ...]:
        """Answers to photos of classes that the model knows."""
        return tuple(answer for answer in self.answers if answer.rank is not None)

    @cached_property
    def labels(self) -> list[str]:
        """Classes of the matrix, sorted: those that have photos, and those that such photos are taken for."""
        return sorted({label for answer in self.known for label in (answer.label, answer.answer)})

    @cached_property
    def matrix(self) -> NDArray[np.int64]:
        """How often each class (row) is taken for each (column), in the order of `labels`."""
        number = {label: at for at, label in enumerate(self.labels)}
        pairs = np.array([(number[answer.label], number[answer.answer]) for answer in self.known])
        return confusion_matrix(pairs[:, 0], pairs[:, 1], len(number))

    @property
    def accuracy(self) -> float:
        """Share of the photos that are right."""
        return float(self.matrix.trace() / self.matrix.sum())

    @property
    def balanced_accuracy(self) -> float:
        """Mean over classes of their accuracies."""
        return balanced_accuracy(self.matrix)

    @property
    def top3_accuracy(self) -> float | None:
        """Share of the photos whose class is one of the three likeliest; None where there are hardly more than three."""
        if self.classes < _MANY:
            return None
        return float(np.mean([answer.rank is not None and answer.rank < 3 for answer in self.known]))

    @property
    def mean_probability(self) -> float:
        """How sure the model is of its answers on average: as much as it is right, if its probabilities are honest."""
        return float(np.mean([answer.probability for answer in self.known]))

    @cached_property
    def by_class(self) -> list[ClassFigures]:
        """Figures of every class that has photos, the worst first."""
        accuracies, photos = class_accuracies(self.matrix), self.matrix.sum(axis=1)
        order = [at for at in np.argsort(accuracies, kind="stable") if photos[at]]
        return [ClassFigures(self.labels[at], int(photos[at]), int(self.matrix[at, at])) for at in order]

    @cached_property
    def confusions(self) -> list[Confused]:
        """What is taken for what, the most frequent first."""
        pairs = worst_pairs(self.matrix, self.matrix.size)
        return [Confused(self.labels[pair.true], self.labels[pair.answer], pair.times, pair.of) for pair in pairs]

    @cached_property
    def strangers(self) -> list[Stranger]:
        """Classes that the model does not know, and what their photos are taken for."""
        taken: dict[str, Counter[str]] = {}
        for answer in self.answers:
            if answer.rank is None:
                taken.setdefault(answer.label, Counter())[answer.answer] += 1
        return [Stranger(label, counts.total(), dict(counts.most_common())) for label, counts in sorted(taken.items())]

    def to_json(self) -> dict[str, Any]:
        """All figures and all answers, ready for a JSON file."""
        return {
            "schema": SCHEMA,
            "kind": "evaluation",
            "model": {"name": self.model, "digest": self.digest, "classes": self.classes},
            "folder": self.folder,
            "day": self.day,
            "versions": dict(self.versions),
            "photos": {
                "known": len(self.known),
                "unknown": len(self.answers) - len(self.known),
                "unread": len(self.unread),
            },
            "accuracy": self.accuracy,
            "balanced_accuracy": self.balanced_accuracy,
            "top3_accuracy": self.top3_accuracy,
            "mean_probability": self.mean_probability,
            "by_class": [{**one._asdict(), "accuracy": one.accuracy} for one in self.by_class],
            "confusion": {"labels": self.labels, "matrix": self.matrix.tolist()},
            "confusions": [pair._asdict() for pair in self.confusions],
            "unknown": [stranger._asdict() for stranger in self.strangers],
            "unread": [{"photo": photo, "reason": reason} for photo, reason in self.unread.items()],
            "answers": [answer._asdict() for answer in self.answers],
        }

    def __str__(self) -> str:
        lines = [
            (
                "photos",
                f"{len(self.known):,} of {counted(len(self.by_class), 'class', 'classes')} that the model knows",
            ),
            (
                "accuracy",
                f"{percent(self.accuracy)} of the photos, {percent(self.balanced_accuracy)} as a mean over classes",
            ),
        ]
        if self.top3_accuracy is not None:
            lines.append(("top 3", f"{percent(self.top3_accuracy)} have their class among the three likeliest"))
        lines.append(("sure", self.calibration))
        worst = [
            f"{one.label!r} {percent(one.accuracy)} of {one.photos:,}" for one in self.by_class if one.accuracy < 1
        ]
        lines += [("worst", ", ".join(worst[:_NAMED]))] if worst else []
        lines += [("" if at else "confused", str(pair)) for at, pair in enumerate(self.confusions[:_NAMED])]
        lines += [("" if at else "unknown", text) for at, text in enumerate(self._said_of_strangers())]
        if self.unread:
            lines.append(("unread", f"{counted(len(self.unread), 'photo', 'photos')} left out"))
        return "\n".join(f"{name:>8}  {text}" for name, text in lines)

    @property
    def calibration(self) -> str:
        """How sure the model is against how often it is right, in a few words."""
        gap = self.mean_probability - self.accuracy
        verdict = f"{abs(100 * gap):.1f} points too {'sure' if gap > 0 else 'cautious'}"
        return f"{percent(self.mean_probability)} on average, and right in {percent(self.accuracy)}: {verdict}"

    def _said_of_strangers(self) -> list[str]:
        strangers = self.strangers
        if not strangers:
            return []
        photos = counted(sum(stranger.photos for stranger in strangers), "photo", "photos")
        classes = counted(len(strangers), "class", "classes")
        lines = [f"{photos} of {classes} that the model does not know, not counted above"]
        for label, of, taken_for in strangers[:_NAMED]:
            answer, count = next(iter(taken_for.items()))
            lines.append(str(Confused(label, answer, count, of)))
        more = len(strangers) - _NAMED
        return lines + ([f"and {counted(more, 'class', 'classes')} more"] if more > 0 else [])
