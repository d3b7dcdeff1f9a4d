"""The audit of a model: each promise, whether it holds, and the figures behind it, as sentences and as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cldnet.audit.examples import examples_of, moved_classes
from cldnet.audit.likeness import FEW, LIMIT, Finding, compare
from cldnet.device import generator
from cldnet.footprint import Footprint, Sizes, multiplications
from cldnet.methods.exact import Exact
from cldnet.model import Model
from cldnet.version import __version__

__all__ = ["FEW", "Audit", "Promise", "audit_model"]

#: Version of the JSON's layout.
SCHEMA = 1
_NAMED = 6  # labels that a sentence names


class Promise(NamedTuple):
    """A promise, whether it holds (``None``: nobody can tell), and why."""

    name: str
    holds: bool | None
    reason: str


@dataclass(frozen=True)
class Audit:
    """What a model keeps, and whether it keeps its promises.

    Attributes
    ----------
    solver : str
    tasks, classes : int
        Tasks learned, and classes known.
    footprint : Footprint
        Bytes by kind now, and trainable parameters.
    macs : int
        Multiplications and additions that one answer takes.
    sizes : Sizes
        Bytes by kind after each task, as far as they were noted.
    counts : dict
        Examples of each class; ``None`` where they were not counted.
    claims : dict of str to bool
        What the method promises: ``rehearsal_free`` and ``constant_size``.
    findings : tuple of Finding or None
        What was found when all that is kept was compared with training rows; ``None`` if there were none to compare with.
    compared, given : int
        Rows that were compared, and rows that were given. Before something is called revealing, it is counted in all of them.
    single : tuple
        Classes with one example whose sum is, so far as sums can tell, that example's features.
    moved : tuple
        Classes whose sums were moved by noise.
    solved : tuple of int, optional
        Features and classes of the solution that is kept in memory while the model answers; it is no part of what is stored.
    """

    solver: str
    tasks: int
    classes: int
    footprint: Footprint
    macs: int
    sizes: Sizes
    counts: dict[Any, int | None]
    claims: dict[str, bool]
    findings: tuple[Finding, ...] | None = None
    compared: int = 0
    given: int = 0
    single: tuple[Any, ...] = ()
    moved: tuple[Any, ...] = ()
    solved: tuple[int, int] | None = None

    @property
    def revealing(self) -> dict[Any, int]:
        """Classes with fewer than `FEW` examples, whose sums may tell of one of them."""
        return {label: count for label, count in self.counts.items() if count is not None and count < FEW}

    @property
    def like(self) -> list[Finding]:
        """What is like a training row, the most alike first."""
        found = [finding for finding in self.findings or () if finding.verdict != "clear"]
        return sorted(found, key=lambda finding: (finding.verdict != "revealing", -finding.cosine))

    @property
    def promises(self) -> list[Promise]:
        """Every promise, and whether it holds."""
        return [self._size(), self._likeness()]

    @property
    def holds(self) -> bool:
        """Whether no promise is broken. One that nobody can tell is not."""
        return all(promise.holds is not False for promise in self.promises)

    def _size(self) -> Promise:
        name, changes = "The model is constant in size", self.sizes.changes
        if not changes:
            return Promise(name, None, "The file is from before sizes were noted: teach it once more.")
        if not self.sizes.constant:
            sizes = ", ".join(f"{sum(size.bytes.values()):,} from task {size.tasks} on" for size in changes[-3:])
            return Promise(name, False, f"Its bytes have changed: {sizes}.")
        extended = f" It was extended when asked to, after task {changes[-1].tasks}." if changes[-1].asked else ""
        size, begun = sum(changes[-1].bytes.values()), changes[0].tasks
        reason = f"{size:,} bytes; it did not grow from task {begun} to task {self.tasks}.{extended}{self._receipts}"
        return Promise(name, True, reason)

    @property
    def _receipts(self) -> str:
        """What receipts add, where the model was asked to keep them."""
        kept = self.footprint.bytes.get("receipts")
        if kept is None:
            return ""
        return (
            f" Beside it are {kept:,} bytes of receipts, a salted digest for each row, as asked for (receipts=True): they grow "
            "with the rows, and tell whoever has both the file and a row whether that row was learned."
        )

    def _likeness(self) -> Promise:
        name = f"Nothing stored has a |cosine| beyond {LIMIT} with a training row"
        if self.single:
            few = _some([repr(label) for label in self.single])
            reason = f"A class with one example has that example's features for a sum, whatever is compared: {few}."
            return Promise(name, False, reason)
        if self.findings is None:
            reason = "There were no training rows to compare with: hand them over to have it checked."
            return Promise(name, None, reason)
        verdicts = {finding.verdict for finding in self.findings}
        if "revealing" in verdicts:
            reason = f"{self._where('revealing')}, and fewer than {FEW} of the {self.given:,} rows given have that in common."
            return Promise(name, False, reason)
        if "near" in verdicts:
            few = f"fewer than {FEW} of the {self.given:,} rows given have that in common"
            reason = (
                f"{self._where('near')}, and {few}; the mean of many patches may be as near to one, so nobody can tell."
            )
            return Promise(name, None, reason)
        if "shared" in verdicts:
            reason = (
                f"What is beyond it is like {FEW} or more rows at once, and is what they have in common. {self._among}."
            )
            return Promise(name, None, reason)
        largest = max((finding.largest for finding in self.findings if finding.verdict == "clear"), default=0.0)
        rest = " What so few numbers have alike by chance is set aside." if "chance" in verdicts else ""
        return Promise(name, True, f"{self._among}; the largest is {largest:.4f}.{rest}")

    def _where(self, verdict: str) -> str:
        worst = next(finding for finding in self.like if finding.verdict == verdict)
        rows = worst.space if worst.space.startswith("patches") else f"rows {worst.space}"
        return f"{worst.form} {worst.at} of {worst.tensor} has {worst.cosine:.4f} with {rows}"

    @property
    def _among(self) -> str:
        """Which rows a verdict is about: one from a sample says so."""
        if self.compared == self.given:
            return f"All {self.given:,} rows given were compared"
        return f"This holds for the {self.compared:,} rows compared of {self.given:,} (rows=None, or --rows 0, for all)"

    @property
    def examples(self) -> str:
        """Which classes have so few examples that their sums reveal something of one of them, and what to do about it."""
        unknown = [repr(label) for label, count in self.counts.items() if count is None]
        if self.revealing:
            few = _some(
                [
                    f"{label!r} ({count}{', moved by noise' * (label in self.moved)})"
                    for label, count in self.revealing.items()
                ]
            )
            return f"Classes with fewer than {FEW} examples are revealing: {few}. {self.advice}"
        if unknown:
            return f"The examples of some classes were not counted, in a file from before: {_some(unknown)}."
        least = min((count for count in self.counts.values() if count is not None), default=0)
        return f"No class has fewer than {FEW} examples; the smallest of {self.classes} has {least:,}."

    @property
    def advice(self) -> str:
        """What can be done about classes with few examples."""
        if self.solver == "exact":
            return (
                "Teach them more, join them (join_classes), blur them (add_noise), or forget them. Noise moves their sums and "
                "does not shorten this list: they still have as few examples."
            )
        return f"Teach a class only when there are {FEW} examples or more of it."

    @property
    def reveals(self) -> str:
        """What the numbers that are kept do tell; this is not differential privacy."""
        kept = (
            "The sum of a class's features tells their mean, and that of a class with one example is that example's features; "
            "the second moments tell how the features of all examples vary together, and where one example alone lights a "
            "feature, that feature's row of them is that example's features."
            if self.solver == "exact"
            else "The projectors' sums tell how the inputs of each layer vary together over all examples, the first layer's "
            "being the scaled inputs themselves: where one example alone moves an input or a unit, its row of that sum is that "
            "example. Leave out inputs that hardly any example has."
        )
        return (
            f"{kept} Who has two versions of a model knows what was added in between, which may be one example's. This is not "
            "differential privacy: whoever may not see such sums should not get the file."
        )

    @property
    def memory(self) -> str:
        """What a constant size is the size of, and what there is in memory besides."""
        stored = "Constant is what is stored."
        if self.solved is None:
            return f"{stored} Nothing else is kept while the model answers."
        features, classes = self.solved
        return (
            f"{stored} While the model answers it also keeps the solution of its sums in memory, {features:,} × {classes:,} "
            "numbers (features × classes) and a rule that chooses among the classes: that grows with the classes, and is made "
            "again from the sums when a model is loaded."
        )

    def to_json(self) -> dict[str, Any]:
        """Give all figures in types that JSON has."""
        return {
            "schema": SCHEMA,
            "version": __version__,
            "solver": self.solver,
            "tasks": self.tasks,
            "classes": self.classes,
            "claims": self.claims,
            "holds": self.holds,
            "promises": [promise._asdict() for promise in self.promises],
            "bytes": self.footprint.bytes,
            "total_bytes": self.footprint.total,
            "label_bytes": self.footprint.labels,
            "parameters": self.footprint.parameters,
            "macs": self.macs,
            "sizes": self.sizes.to_json(),
            "counts": [[label, count] for label, count in self.counts.items()],
            "revealing": list(self.revealing),
            "single": list(self.single),
            "moved": list(self.moved),
            "solved": None if self.solved is None else list(self.solved),
            "examples": self.examples,
            "limit": LIMIT,
            "few": FEW,
            "compared": self.compared,
            "given": self.given,
            "findings": None
            if self.findings is None
            else [{**asdict(finding), "verdict": finding.verdict} for finding in self.findings],
            "reveals": self.reveals,
        }

    def __str__(self) -> str:
        marks = {True: "holds", False: "BROKEN", None: "untold"}
        lines = [f"{marks[promise.holds]:>7}  {promise.name}. {promise.reason}" for promise in self.promises]
        kept = ", ".join(f"{kind} {count:,}" for kind, count in self.footprint.bytes.items())
        return "\n".join(
            (
                f"{self.solver}: {self.tasks} tasks, {self.classes} classes",
                *lines,
                f"{'reveals' if self.revealing else 'classes':>7}  {self.examples}",
                f"  bytes  {self.footprint.total:,} ({kept}), and {self.footprint.labels:,} of labels",
                f" memory  {self.memory}",
                f"   size  {self.footprint.parameters:,} trainable parameters, {self.macs:,} multiply-adds an answer",
                f"   note  {self.reveals}",
            )
        )


def audit_model(
    model: Model,
    x: Tensor | None = None,
    rows: int | None = 2000,
    seed: int = 0,
    on_progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Audit a model; compare what it keeps with training inputs, or with so many of them drawn at random."""
    learner, labels = model.learner, model.labels
    claims: Mapping[str, bool] = {name: getattr(learner.traits, name) for name in ("rehearsal_free", "constant_size")}
    findings, compared = None, 0
    if x is not None:
        sampled = rows is not None and rows < len(x)
        drawn = torch.randperm(len(x), generator=generator(seed))[:rows] if sampled else None
        findings, compared = tuple(compare(learner, x, on_progress, drawn)), len(x) if drawn is None else len(drawn)
    counts, moved = examples_of(model), moved_classes(model)
    summed = isinstance(learner, Exact)
    return Audit(
        solver=model.structure.solver,
        tasks=learner.tasks,
        classes=len(labels.classes),
        footprint=model.footprint,
        macs=multiplications(learner, model.inputs.shape),
        sizes=model.sizes,
        counts=counts,
        claims=dict(claims),
        findings=findings,
        compared=compared,
        given=0 if x is None else len(x),
        single=tuple(label for label, count in counts.items() if summed and count == 1 and label not in moved),
        moved=moved,
        solved=(learner.class_width, learner.seen) if summed else None,
    )


def _some(names: list[str]) -> str:
    return ", ".join([*names[:_NAMED], *([f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else [])])
