"""Pages about a model, and their figures as JSON: its audit, and its evaluation on labelled samples."""

from __future__ import annotations

import base64
import io
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cldnet.bench.formatting import counted, human_bytes, percent
from cldnet.bench.report.figures import MAX_NUMBERED_CLASSES, bars, confusion_map
from cldnet.bench.report.page import render
from cldnet.data.images.decode import pillow
from cldnet.estimator.audit import FEW, LIMIT, Audit
from cldnet.math.metrics import balanced_accuracy, confusion_matrix, worst_pairs
from cldnet.storage import write_atomically

SCHEMA = 1
_LISTED = 5  # classes and confusions that are named in a few lines of text
_ROWS = 200  # of a table that one may want to read
_PAIRS, _BARS = 30, 30  # confusions that are listed, classes that have a bar
_MAPPED = 200  # classes of a confusion matrix
_LETTERS = 200  # of a sentence that was classified wrongly
_VERDICTS = {
    "clear": "no",
    "chance": "too short to tell",
    "shared": f"yes, like {FEW} or more others",
    "near": f"fewer than {FEW} are similar; a mean may be as near",
    "revealing": f"yes, and fewer than {FEW} are similar",
}


@contextmanager
def output_folder(folder: Path) -> Iterator[None]:
    """Make a folder for the files of the work inside; remove it again if it is new and the work fails."""
    existed = folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        file = next(part for part in (folder, *folder.parents) if part.exists())
        raise FileExistsError(
            f"{file} is a file, but the page and its figures need a folder: name another one."
        ) from error
    try:
        yield
    except BaseException:
        if not existed:
            with suppress(OSError):  # somebody else has put something into it
                folder.rmdir()
        raise


def write_audit(audit: Audit, folder: Path, title: str = "") -> tuple[Path, Path]:
    """Write ``audit.html`` and ``audit.json`` to a folder, which is made if it is missing."""
    page, figures = folder / "audit.html", folder / "audit.json"
    with output_folder(folder):
        write_atomically(figures, json.dumps(audit.to_json(), indent=1).encode())
        write_atomically(page, audit_page(audit, title).encode())
    return page, figures


def audit_page(audit: Audit, title: str = "") -> str:
    """Return the page of an audit as HTML that needs nothing else."""
    kept = sorted(audit.footprint.bytes.items(), key=lambda kind: -kind[1])
    most = max((count for _, count in kept), default=1)
    kinds = [kind for kind, _ in kept]
    findings = sorted(audit.findings or (), key=lambda finding: -finding.largest)
    tensors = {finding.tensor: finding.largest for finding in reversed(findings)}  # the most similar vector of each
    worst = sorted(tensors.items(), key=lambda item: -item[1])[:20]
    rarest = sorted(audit.counts.items(), key=lambda item: -1 if item[1] is None else item[1])
    claims = {"rehearsal_free": "that it keeps no training sample", "constant_size": "that it never grows"}
    return render(
        "audit.html.j2",
        audit=audit,
        title=title,
        few=FEW,
        limit=LIMIT,
        claims=[words for name, words in claims.items() if audit.claims.get(name)],
        kinds=kinds,
        kept=bars([(kind, count / most, human_bytes(count)) for kind, count in kept], "Bytes by kind"),
        sizes=[
            (f"{size.tasks:,}{' (extended)' * size.asked}", *(f"{n:,}" for n in (sum(size.bytes.values()), *own)))
            for size in audit.sizes.changes
            for own in [[size.bytes.get(kind, 0) for kind in kinds]]
        ],
        similarity=bars([(name, value, f"{value:.4f}") for name, value in worst], "Largest cosine by tensor", LIMIT),
        findings=[
            (
                *(finding.tensor, finding.form, finding.space, f"{finding.vectors:,}", f"{finding.length:,}"),
                *(f"{finding.largest:.4f}", f"{finding.beyond:,}", f"{finding.copies:,}"),
                f"{finding.fewest:,}{'' if finding.fewest < FEW else ' or more'}",
                _VERDICTS[finding.verdict],
            )
            for finding in findings[:_ROWS]
        ],
        classes=[
            (label, "not counted" if count is None else f"{count:,}", "revealing" * (label in audit.revealing))
            for label, count in rarest[:_ROWS]
        ],
    )


class Prediction(NamedTuple):
    """What a model says of one sample."""

    name: str  # of a file its path relative to the folder that was evaluated
    label: str  # the true class
    answer: str  # the predicted class
    probability: float  # of the predicted class
    rank: int | None  # how many classes are more likely than the true one; None if the model does not know it

    @property
    def wrong(self) -> bool:
        """Whether the model knows the class and predicts another."""
        return self.rank is not None and self.answer != self.label


class ClassAccuracy(NamedTuple):
    """How many samples of a class were evaluated, how many are classified correctly, and the share of these."""

    label: str
    samples: int
    right: int
    accuracy: float


class Confusion(NamedTuple):
    """``samples`` of the ``of`` samples of a class are classified as another one."""

    label: str
    answer: str
    samples: int
    of: int

    def __str__(self) -> str:
        return f"{self.samples:,} of {self.of:,} {self.label!r} classified as {self.answer!r}"


class UnknownClass(NamedTuple):
    """A class that the model does not know: its number of samples, and as what they are classified, most frequent first."""

    label: str
    samples: int
    taken_for: dict[str, int]


@dataclass(frozen=True)
class Evaluation:
    """The predictions of a model for labelled samples, and figures. Accuracies are over classes that the model knows.

    `model` and `digest` are the name and the checksum of the model's file, `folder` is the name of the folder or table, and
    `classes` the number of classes that the model knows. `answers` has a prediction for every sample that could be read,
    `unread` the reasons why the others could not, by path. `noun` is what a sample is called: photo, text or row.
    """

    model: str
    digest: str
    folder: str
    classes: int
    answers: tuple[Prediction, ...]
    unread: Mapping[str, str]
    day: str
    versions: Mapping[str, str]
    noun: str = "photo"

    def __post_init__(self) -> None:
        if not self.known:
            raise ValueError(
                f"No readable {self.noun} under {self.folder!r} is of a class that the model knows, so there is nothing to "
                f"measure. Give {self.noun}s of its classes: folders and labels named as the model knows them."
            )

    @cached_property
    def known(self) -> tuple[Prediction, ...]:
        """Predictions for samples of classes that the model knows."""
        return tuple(answer for answer in self.answers if answer.rank is not None)

    @cached_property
    def labels(self) -> list[str]:
        """Classes of the matrix, sorted: those that have samples, and those that were predicted for them."""
        return sorted({label for answer in self.known for label in (answer.label, answer.answer)})

    @cached_property
    def matrix(self) -> NDArray[np.int64]:
        """How often each class (row) is classified as each (column), in the order of `labels`."""
        number = {label: at for at, label in enumerate(self.labels)}
        pairs = np.array([(number[answer.label], number[answer.answer]) for answer in self.known])
        return confusion_matrix(pairs[:, 0], pairs[:, 1], len(number))

    @property
    def accuracy(self) -> float:
        """Share of the samples that are classified correctly."""
        return float(self.matrix.trace() / self.matrix.sum())

    @property
    def balanced_accuracy(self) -> float:
        """Mean of the accuracies of the classes."""
        return balanced_accuracy(self.matrix)

    @property
    def top3_accuracy(self) -> float | None:
        """Share of the samples whose class is among the three most likely; None if the model knows three or fewer."""
        if self.classes <= 3:
            return None
        return float(np.mean([answer.rank is not None and answer.rank < 3 for answer in self.known]))

    @property
    def mean_probability(self) -> float:
        """Mean probability of the predicted classes: equal to the accuracy if the model is calibrated."""
        return float(np.mean([answer.probability for answer in self.known]))

    @cached_property
    def by_class(self) -> list[ClassAccuracy]:
        """Accuracy of every class that has samples, worst first."""
        samples, right = self.matrix.sum(axis=1).tolist(), self.matrix.diagonal().tolist()
        rows = [ClassAccuracy(label, n, k, k / n) for label, n, k in zip(self.labels, samples, right, strict=True) if n]
        return sorted(rows, key=lambda row: row.accuracy)

    @cached_property
    def confusions(self) -> list[Confusion]:
        """Which class is classified as which other, most frequent first."""
        pairs = worst_pairs(self.matrix, self.matrix.size)
        return [Confusion(self.labels[pair.true], self.labels[pair.answer], pair.times, pair.of) for pair in pairs]

    @cached_property
    def unknown_classes(self) -> list[UnknownClass]:
        """Classes that the model does not know."""
        counts: dict[str, Counter[str]] = {}
        for answer in self.answers:
            if answer.rank is None:
                counts.setdefault(answer.label, Counter())[answer.answer] += 1
        return [UnknownClass(label, own.total(), dict(own.most_common())) for label, own in sorted(counts.items())]

    def count(self, number: int) -> str:
        """A number of samples in words."""
        return counted(number, self.noun, f"{self.noun}s")

    @property
    def calibration(self) -> str:
        """Mean probability against accuracy, in a few words."""
        gap = self.mean_probability - self.accuracy
        verdict = f"{abs(100 * gap):.1f} points {'overconfident' if gap > 0 else 'underconfident'}"
        return f"{percent(self.mean_probability)} on average, accuracy {percent(self.accuracy)}: {verdict}"

    def to_json(self) -> dict[str, Any]:
        """Return all figures and all predictions, ready for a JSON file."""
        counts = {"known": len(self.known), "unknown": len(self.answers) - len(self.known), "unread": len(self.unread)}
        keys = {"name": self.noun, "samples": f"{self.noun}s"}

        def plain(one: Any) -> dict[str, Any]:
            return {keys.get(name, name): value for name, value in one._asdict().items()}

        return {
            "schema": SCHEMA,
            "kind": "evaluation",
            "model": {"name": self.model, "digest": self.digest, "classes": self.classes},
            "folder": self.folder,
            "day": self.day,
            "versions": dict(self.versions),
            f"{self.noun}s": counts,
            "accuracy": self.accuracy,
            "balanced_accuracy": self.balanced_accuracy,
            "top3_accuracy": self.top3_accuracy,
            "mean_probability": self.mean_probability,
            "by_class": [plain(one) for one in self.by_class],
            "confusion": {"labels": self.labels, "matrix": self.matrix.tolist()},
            "confusions": [plain(pair) for pair in self.confusions],
            "unknown": [plain(one) for one in self.unknown_classes],
            "unread": [{self.noun: name, "reason": reason} for name, reason in self.unread.items()],
            "answers": [plain(answer) for answer in self.answers],
        }

    def __str__(self) -> str:
        classes = counted(len(self.by_class), "class", "classes")
        overall, balanced = percent(self.accuracy), percent(self.balanced_accuracy)
        lines = {f"{self.noun}s": [f"{len(self.known):,} of {classes} that the model knows"]}
        lines["accuracy"] = [f"{overall} of {self.noun}s, {balanced} as a mean over classes"]
        if self.top3_accuracy is not None:
            lines["top 3"] = [f"{percent(self.top3_accuracy)} have their class among the three most likely"]
        lines["sure"] = [self.calibration]
        worst = [one for one in self.by_class if one.accuracy < 1][:_LISTED]
        named = ", ".join(f"{one.label!r} {percent(one.accuracy)} of {one.samples:,}" for one in worst)
        lines["worst"] = [named] if worst else []
        lines["confused"] = [str(pair) for pair in self.confusions[:_LISTED]]
        lines["unknown"] = self._unknown_lines()
        lines["unread"] = [f"{self.count(len(self.unread))} left out"] if self.unread else []
        return "\n".join(
            f"{'' if at else name:>8}  {text}" for name, own in lines.items() for at, text in enumerate(own)
        )

    def _unknown_lines(self) -> list[str]:
        unknown = self.unknown_classes
        if not unknown:
            return []
        samples = self.count(sum(one.samples for one in unknown))
        lines = [
            f"{samples} of {counted(len(unknown), 'class', 'classes')} that the model does not know, not counted above"
        ]
        for label, of, taken_for in unknown[:_LISTED]:
            answer, count = next(iter(taken_for.items()))
            lines.append(str(Confusion(label, answer, count, of)))
        more = len(unknown) - _LISTED
        return [*lines, f"and {counted(more, 'class', 'classes')} more"] if more > 0 else lines


#: Wrong predictions, with the pixels of the photo, shape ``(3, side, side)``, or the sentence, where it is to be shown.
Mistakes = Sequence[tuple[Prediction, NDArray[np.uint8] | str | None]]


def write_evaluation(found: Evaluation, folder: Path, mistakes: Mistakes = ()) -> tuple[Path, Path]:
    """Write ``index.html`` and ``eval.json`` to a folder, which is made if it is missing; the page shows `mistakes`."""
    page, figures = folder / "index.html", folder / "eval.json"
    with output_folder(folder):
        check_output(folder)
        html = evaluation_page(found, mistakes)
        write_atomically(figures, evaluation_json(found).encode())
        write_atomically(page, html.encode())
    return page, figures


def check_output(folder: Path) -> None:
    """Refuse a folder whose page was not written by an evaluation: it may be another web page."""
    page = folder / "index.html"
    if page.exists() and not (folder / "eval.json").exists():
        raise FileExistsError(f"{page} exists and was not written by an evaluation: name another folder.")


def evaluation_json(found: Evaluation) -> str:
    """Return all figures as JSON, one entry per line: a matrix with one number per line is hard to read."""
    lines = (f" {json.dumps(name)}: {json.dumps(value)}" for name, value in found.to_json().items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def evaluation_page(found: Evaluation, mistakes: Mistakes = ()) -> str:
    """Return the page of an evaluation as HTML that needs nothing else."""
    matrix, labels = found.matrix, found.labels
    if len(labels) > _MAPPED:
        wrong = matrix.sum(axis=0) + matrix.sum(axis=1) - 2 * matrix.diagonal()
        worst = np.sort(np.argsort(-wrong, kind="stable")[:_MAPPED])
        matrix, labels = matrix[np.ix_(worst, worst)], [labels[at] for at in worst]
    classes = counted(len(labels), "class", "classes")
    frequent = "; ".join(map(str, found.confusions[:5])) or "none"
    accuracies = [(one.label, one.accuracy, f"{percent(one.accuracy)} of {one.samples:,}") for one in found.by_class]
    return render(
        "evaluation.html.j2",
        found=found,
        mapped=len(labels),
        numbered=len(labels) <= MAX_NUMBERED_CLASSES,
        confusion=confusion_map(matrix, labels, f"Confusion matrix of {classes}. Most frequent: {frequent}."),
        pairs=[
            (pair.label, pair.answer, f"{pair.samples:,}", f"{pair.of:,}", percent(pair.samples / pair.of))
            for pair in found.confusions[:_PAIRS]
        ],
        bars=_BARS,
        accuracies=bars(accuracies[:_BARS], "Accuracy per class, worst first"),
        by_class=[
            (one.label, f"{one.samples:,}", f"{one.right:,}", percent(one.accuracy)) for one in found.by_class[:_ROWS]
        ],
        mistakes=[
            (prediction, None if shown is None else shown[:_LETTERS] if isinstance(shown, str) else _data_uri(shown))
            for prediction, shown in mistakes
        ],
        unknown=[
            (one.label, _most_frequent(one.taken_for), f"{one.samples:,}") for one in found.unknown_classes[:_ROWS]
        ],
        unread=list(found.unread.items())[:_ROWS],
    )


def _most_frequent(predicted: dict[str, int]) -> str:
    named = ", ".join(f"{answer} {count:,}" for answer, count in list(predicted.items())[:3])
    return named + (f", {len(predicted) - 3:,} others" if len(predicted) > 3 else "")


def _data_uri(pixels: NDArray[np.uint8]) -> str:
    """Return a small JPEG as the address of an image, without metadata; shown at 96 pixels, sharp on dense screens."""
    image = pillow().fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    image.thumbnail((144, 144))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=80)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
