"""Audit a model: test that its size is constant, and that nothing it stores is similar to a training sample.

`compare` computes the |cosine| of every stored vector with every sample, in each form in which the learner meets a sample:
as it is, centred, scaled, as features or layer inputs, and as image patches. Images are also flipped and turned.

A stored vector beyond `LIMIT` is not always a leak. The mean of many similar samples is similar to each of them. So the
comparison counts how many samples are about as similar (|cosine| beyond ``LIMIT**2``). `FEW` or more samples *share* the
vector, fewer are *revealed* by it. A copy of a sample is shared only by samples that it is also a copy of. Short vectors are
similar by chance: what random directions of as many numbers would reach is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from hashlib import blake2b
from itertools import groupby
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from cldnet.device import generator
from cldnet.estimator.footprint import Footprint, multiplications
from cldnet.estimator.kept import write_kept
from cldnet.estimator.model import Model, Sizes
from cldnet.math import symmetric
from cldnet.methods.learner import Learner, Represents
from cldnet.methods.mapped import FullMoments
from cldnet.nets import FEATURE_MAPS
from cldnet.nets.features import FEATURE_LIMIT, ScaledMap
from cldnet.nets.patches import WhitenedPatches, normalised, unfolded, whitening
from cldnet.version import __version__

#: A stored vector with a |cosine| beyond this is similar to a sample.
LIMIT = 0.99
#: What fewer samples than this have in common may reveal one of them.
FEW = 10
#: Version of the JSON's layout.
SCHEMA = 1

_COPY = 1 - 1e-6  # beyond this |cosine|, a stored vector is a copy of a sample
_EXPECTED_BY_CHANCE = 0.01  # similar pairs that random directions may have before a comparison is meaningless
_NO_MEAN = 0.999  # a filter closer to a whitened patch is no mean of many: on digits, means reach 0.997
_ROUNDING = 1e-5  # share of a vector's norm that is rounding error
_NOISE = 1e-9  # relative error of a class sum beyond rounding
#: Largest difference between two solutions of the same sums, relative to the largest number: other machines round otherwise.
_SOLUTION_ROUNDING = 1e-6
_SAMPLE = 2000  # samples that the forms and the whitening are derived from
_PATCH_NUMBERS = 1 << 25  # size of the patches that the whitening is computed from
_BATCH, _BATCH_NUMBERS = 256, 1 << 25  # samples compared at once, and numbers in all their views and patches
_NAMED = 6  # labels named in a sentence
_Progress = Callable[[int, int], None] | None


@dataclass(frozen=True)
class Finding:
    """How similar the vectors of one tensor are to samples in one form."""

    tensor: str  # its name in the state
    form: str  # how it was read: "vector", "row", "column", "filter" or "folded row"
    space: str  # the form of the samples, such as "as they are"
    vectors: int
    length: int
    largest: float  # the largest |cosine| of all
    at: int  # the stored vector that reveals most: shared by the fewest samples
    cosine: float  # its largest |cosine|
    beyond: int  # vectors beyond `LIMIT`
    copies: int  # vectors that equal a sample up to a factor
    telling: int  # vectors closer to a sample than chance allows
    revealing: int  # those of them that fewer than `FEW` samples share
    fewest: int  # distinct samples that share the vector `at`; counting stops at `FEW`

    @property
    def verdict(self) -> str:
        """``"clear"``, ``"chance"`` (too short to tell), ``"shared"`` (by `FEW` or more), ``"near"`` or ``"revealing"``.

        ``"near"``: few samples are similar, but the mean of many patches could be as close.
        """
        if not self.beyond:
            return "clear"
        if not self.telling:
            return "chance"
        if self.revealing:
            return "revealing"
        return "shared" if self.fewest >= FEW else "near"


def stored_vectors(
    learner: Learner, length: int, *, fold: bool = True, beside: Mapping[str, Tensor] | None = None
) -> Iterator[tuple[str, str, Tensor]]:
    """Yield every stored vector with ``length`` numbers (or one more, for a bias) as ``(tensor, form, unit vectors)``.

    With ``fold``, a tensor that has the numbers of several such vectors but no side of that length is cut into them: flat
    tensors, and others that no optimiser trains. ``beside`` are tensors that a model keeps besides its learner.
    """
    trained = {name for name, parameter in learner.named_parameters() if parameter.ndim > 1}
    second = getattr(learner, "second", None)
    for name, tensor in {**learner.state_dict(), **(beside or {})}.items():
        if name in ("counters", "random") or tensor.numel() < 2:
            continue
        numbers = torch.view_as_real(tensor.detach()) if tensor.is_complex() else tensor.detach()
        if name.endswith("second.packed") and isinstance(
            second, FullMoments
        ):  # the upper triangle of a symmetric matrix
            if second.width in (length, length + 1):
                yield name, "column", _unit(symmetric.unpack(numbers, second.width, torch.float32)[:, :length])
            continue
        for form, vectors in _readings(numbers).items():
            if vectors.shape[1] in (length, length + 1):
                yield name, form, _unit(vectors[:, :length])
        for size in (length, length + 1) if fold and name not in trained else ():
            if numbers.numel() > size > 1 and numbers.numel() % size == 0 and size not in numbers.shape:
                yield name, "folded row", _unit(numbers.reshape(-1, size)[:, :length])


def _readings(numbers: Tensor) -> dict[str, Tensor]:
    """Matrices whose rows are the vectors of a tensor, by how they lie in it."""
    if numbers.squeeze().ndim == 1:
        return {"vector": numbers.reshape(1, -1)}
    if numbers.ndim == 2:
        return {"row": numbers, "column": numbers.T}
    return {"filter": numbers.flatten(1), "row": numbers.reshape(-1, numbers.shape[-1])}


def _unit(vectors: Tensor) -> Tensor:
    """Scale vectors to norm 1, with NaN and infinity as 0. Scaled by their maximum first, for float32 overflows."""
    finite = torch.nan_to_num(vectors if vectors.is_floating_point() else vectors.float(), 0.0, 0.0, 0.0)
    largest = finite.abs().amax(1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
    return normalize((finite / largest).float()).cpu()


class _Form(NamedTuple):
    """A form in which a learner meets samples.

    ``vectors`` maps samples ``(n, …)`` to ``(n, vectors per sample, length)``; ``read`` prepares stored unit vectors for the
    comparison. ``fixed`` numbers of each vector follow from the others. Beyond ``sure``, only a sample can be so close.
    """

    name: str
    vectors: Callable[[Tensor], Tensor]
    read: Callable[[Tensor], Tensor] = lambda units: units
    fixed: int = 0
    sure: float = LIMIT


def _forms(learner: Learner, samples: Tensor) -> list[_Form]:
    """Find all forms in which a learner meets samples such as these."""
    forms = [_Form("as they are", _flat, _uneven), _Form("less their mean", lambda x: _centred(_flat(x)), _centred, 1)]
    features = getattr(learner, "features", None)
    scale = features.scale if isinstance(features, ScaledMap) and features.net is None else learner.scale
    one = samples[:1]
    if scale(one) is not one:
        forms.append(_Form("scaled", lambda x: _flat(scale(x))))
    if isinstance(learner, Represents):
        forms.append(_Form("features", lambda x: _flat(learner.represent(x))))
    else:
        known = [form.vectors(samples[:8]) for form in forms]
        for name, inputs in _layer_inputs(learner, samples[:8]).items():
            if not any(torch.equal(inputs, other) for other in known):
                forms.append(_Form(f"into {name}", lambda x, name=name: _layer_inputs(learner, x)[name]))  # type: ignore[misc]
    for side in _patch_sides(learner):
        name, patches = f"patches of {side} × {side}", partial(_patches, side=side)
        forms.append(_Form(name, patches, _uneven))
        forms.append(_Form(f"{name}, less their mean", lambda x, cut=patches: _centred(cut(x)), _centred, 1))  # type: ignore[misc]
    for name, module in learner.named_modules():
        if isinstance(module, WhitenedPatches) and module.fitted:
            forms += _whitened_form(name, module, _first_task(learner, samples))
    return forms


def _layer_inputs(learner: Learner, x: Tensor) -> dict[str, Tensor]:
    """Inputs of each linear layer that gets one vector per sample, by the layer's name."""
    found: dict[str, Tensor] = {}

    def hook(name: str, inputs: tuple[Tensor, ...]) -> None:
        if inputs[0].ndim == 2 and len(inputs[0]) == len(x):
            found[name] = _flat(inputs[0].detach())

    handles = [
        module.register_forward_pre_hook(lambda _, inputs, name=name: hook(name, inputs))
        for name, module in learner.named_modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        learner.logits(x)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _patch_sides(learner: Learner) -> list[int]:
    """Sides of the square patches that the learner's convolutions and patch maps cut images into."""
    if len(learner.setting.input_shape) < 2:
        return []
    sides = {module.size for module in learner.modules() if isinstance(module, WhitenedPatches)}
    for module in learner.modules():
        if isinstance(module, nn.Conv2d) and len({*module.kernel_size}) == 1:
            sides.add(module.kernel_size[0])
    return sorted(side for side in sides if 1 < side <= min(learner.setting.input_shape[-2:]))


def _first_task(learner: Learner, samples: Tensor) -> Tensor:
    """The samples that the learner predicts as classes of its first task, on which its map was fitted; all if too few."""
    classes = int(getattr(learner, "first_classes", 0))
    if not 0 < classes < learner.seen:
        return samples
    predicted = torch.cat([learner.logits(part).argmax(1) for part in samples.split(_BATCH)])
    first = samples[predicted < classes]
    return first if len(first) >= FEW else samples


def _whitened_form(name: str, features: WhitenedPatches, images: Tensor) -> Iterator[_Form]:
    """Whitened patches, as a map compares them with its filters; none if the images are flat.

    A filter is ``W c``: a unit vector ``c`` among whitened patches ``W (p − m)``, times the whitening ``W``. So a filter that
    is made of a single patch does not look like it. The map does not keep ``W``; it is computed again from the images.
    """
    most = max(1, _PATCH_NUMBERS // (prod(features.sides) * len(features.filters)))
    spread = torch.linspace(0, len(images) - 1, min(most, len(images))).long()
    patches = _patches(images[spread], features.size).flatten(0, 1)
    patches = patches[patches.var(1, correction=0) > features.floor]
    if len(patches) < 2:
        return
    matrix, mean = whitening(normalised(patches, features.floor))

    def whitened(x: Tensor) -> Tensor:
        cut = _patches(x, features.size)
        uneven = cut.var(2, correction=0, keepdim=True) > features.floor  # a flat patch has no direction
        return ((normalised(cut, features.floor) - mean) @ matrix) * uneven

    def unwhitened(filters: Tensor) -> Tensor:
        directions: Tensor = torch.linalg.solve(matrix.double().cpu(), filters.double().T).T.float()
        return directions

    words = f"patches of {features.size} × {features.size}, whitened for {name}"
    yield _Form(words, whitened, unwhitened, fixed=1, sure=_NO_MEAN)


def _flat(x: Tensor) -> Tensor:
    return x.flatten(1).float()[:, None]


def _patches(x: Tensor, side: int) -> Tensor:
    return unfolded(x.reshape(len(x), -1, *x.shape[-2:]).float(), side)


def _centred(vectors: Tensor) -> Tensor:
    """Vectors minus their mean. What is left of a constant vector is rounding error, and becomes zeros."""
    centred: Tensor = vectors - vectors.mean(-1, keepdim=True)
    rounding = _ROUNDING * vectors.norm(dim=-1, keepdim=True)
    return centred.masked_fill(centred.norm(dim=-1, keepdim=True) <= rounding, 0.0)


def _uneven(units: Tensor) -> Tensor:
    """Drop nearly constant vectors: any bright image is similar to them. The centred form compares them as well."""
    even: Tensor = normalize(units).mean(1, keepdim=True).abs() * units.shape[1] ** 0.5
    return units.masked_fill(even > LIMIT, 0.0)


def _views(x: Tensor) -> list[Tensor]:
    """Images with their flips and quarter turns (half turns if they are not square); other samples as they are."""
    if x.ndim < 3:
        return [x]
    turned = [torch.rot90(x, turns, (-2, -1)) for turns in range(0, 4, 1 if x.shape[-1] == x.shape[-2] else 2)]
    return [*turned, *(view.flip(-1) for view in turned)]


class _Comparison:
    """Vectors of one tensor against samples in one form, batch by batch."""

    def __init__(self, tensor: str, how: str, units: Tensor, form: _Form, inputs: int) -> None:
        self.tensor, self.how, self.form = tensor, how, form
        self.units = normalize(form.read(units))
        self.degrees = min(units.shape[1], inputs) - form.fixed
        self.largest = torch.zeros(len(units))
        self.similar, self.equal = (torch.zeros(len(units), dtype=torch.int64) for _ in range(2))
        self.active = torch.arange(len(units))  # vectors that are still compared
        self._pairs = 0

    def add(self, samples: Tensor) -> None:
        """Compare with unit vectors ``(n, vectors per sample, length)``, and count every sample once."""
        cosines = (samples.flatten(0, 1) @ self.units[self.active].T).abs_()
        self._pairs += cosines.numel()
        nearest = cosines.unflatten(0, samples.shape[:2]).amax(1)
        self.largest[self.active] = torch.maximum(self.largest[self.active], nearest.amax(0))
        self.similar[self.active] += (nearest > LIMIT**2).sum(0)
        self.equal[self.active] += (nearest > _COPY).sum(0)

    @property
    def shared(self) -> Tensor:
        """How many samples share each vector: those equal to it, if any are."""
        return torch.where(self.equal > 0, self.equal, self.similar)

    @property
    def telling(self) -> Tensor:
        """Which vectors are closer to a sample than random directions would be."""
        from scipy.special import betaincinv  # noqa: PLC0415  (heavy)

        probability, limit = _EXPECTED_BY_CHANCE / max(1, self._pairs), 1.0
        if self.degrees > 1:  # the |cosine| that two random directions exceed with this probability
            limit = max(LIMIT, float(1 - betaincinv((self.degrees - 1) / 2, 0.5, probability)) ** 0.5)
        return self.largest > limit if limit <= _COPY else torch.zeros_like(self.largest, dtype=torch.bool)

    def finding(self) -> Finding:
        """Summarise all batches."""
        telling, shared = self.telling, self.shared
        revealing = telling & (shared < FEW) & (self.largest > self.form.sure)
        worst = int(self.largest.argmax())
        if bool(telling.any()):
            among = revealing if bool(revealing.any()) else telling
            worst = int((self.largest * (among & (shared == shared[among].min()))).argmax())
        return Finding(
            self.tensor,
            self.how,
            self.form.name,
            vectors=len(self.units),
            length=self.units.shape[1],
            largest=min(1.0, float(self.largest.max())),
            at=worst,
            cosine=min(1.0, float(self.largest[worst])),
            beyond=int((self.largest > LIMIT).sum()),
            copies=int((self.equal > 0).sum()),
            telling=int(telling.sum()),
            revealing=int(revealing.sum()),
            fewest=int(shared[worst]) if bool(telling.any()) else 0,
        )


@torch.no_grad()
def compare(
    learner: Learner,
    x: Tensor,
    on_progress: _Progress = None,
    drawn: Tensor | None = None,
    beside: Mapping[str, Tensor] | None = None,
) -> list[Finding]:
    """Compare everything that a learner stores with samples ``(n, …)``; equal samples count once.

    ``on_progress`` is called with the number of samples compared and the total. ``drawn`` has the indices of the samples to
    compare with; the others are only used to count how many share what was found. ``beside`` are tensors that a model keeps
    besides its learner.
    """
    seen: dict[bytes, int] = {}
    digests = (blake2b(row.contiguous().view(-1).view(torch.uint8).cpu().numpy(), digest_size=16).digest() for row in x)
    first = torch.tensor([seen.setdefault(digest, index) for index, digest in enumerate(digests)], dtype=torch.int64)
    distinct, chosen = first.unique(), (first if drawn is None else first[drawn]).unique()
    others = distinct[~torch.isin(distinct, chosen)]
    numbers = prod(x.shape[1:]) * len(_views(x[:1])) * max(1, sum(side**2 for side in _patch_sides(learner)))
    size = min(_BATCH, max(1, _BATCH_NUMBERS // numbers))
    samples = x[torch.linspace(0, len(x) - 1, min(_SAMPLE, len(x))).long()].to(learner.counters.device)
    comparisons, done = list[_Comparison](), 0
    for form in _forms(learner, samples):
        _, each, length = form.vectors(samples[:1]).shape
        # There are so many patches that only tensors with a side of their length are compared with them.
        for tensor, how, units in stored_vectors(learner, length, fold=each == 1, beside=beside):
            comparisons.append(_Comparison(tensor, how, units, form, prod(x.shape[1:])))
    for indices in (*chosen.split(size), *(others.split(size) if len(others) else ())):
        if done >= len(chosen):
            for comparison in comparisons:  # from now on, count only for vectors that few samples share so far
                comparison.active = (comparison.telling & (comparison.shared < FEW)).nonzero()[:, 0]
        active = [comparison for comparison in comparisons if len(comparison.active)]
        if not active:
            break
        views = _views(x[indices].to(learner.counters.device))
        for form, own in groupby(active, key=lambda comparison: comparison.form):
            vectors = torch.cat([normalize(form.vectors(view), dim=2).cpu() for view in views], 1)
            for comparison in own:
                comparison.add(vectors)
        done += len(indices)
        if on_progress is not None:
            on_progress(done, len(chosen) if done <= len(chosen) else len(distinct))
    return [comparison.finding() for comparison in comparisons]


def dissimilar_samples() -> dict[str, Tensor]:
    """Samples that are unlike each other: around 0, positive with a few large numbers, and mostly 0.

    No sparser than this: if only one sample uses an input, that input's row of a projector's sum is the sample. This is
    a property of methods with projectors (docs/trust.md), not an error in their code.
    """
    positive = torch.empty(160, 64).exponential_(generator=generator(0))
    return {
        "even": torch.randn(160, 64, generator=generator(0)),
        "skewed": positive,
        "sparse": positive * (torch.rand(160, 64, generator=generator(1)) < 0.2),
    }


class Promise(NamedTuple):
    """A promise, whether it holds (``None``: unknown), and why."""

    name: str
    holds: bool | None
    reason: str


@dataclass(frozen=True)
class Audit:
    """What a model stores, and whether it keeps its promises."""

    solver: str
    tasks: int
    classes: int
    footprint: Footprint
    macs: int  # multiply-adds of one prediction
    sizes: Sizes  # bytes by kind after each task, as far as they were recorded
    counts: dict[Any, int | None]  # samples of each class; None if they were not counted
    claims: dict[str, bool]  # what the method promises: "rehearsal_free" and "constant_size"
    findings: tuple[Finding, ...] | None = None  # None if no training samples were given
    compared: int = 0  # samples that were compared
    given: int = 0  # samples that were given; all are counted before anything is called revealing
    single: tuple[Any, ...] = ()  # classes with one sample, whose sum is that sample's features
    moved: tuple[Any, ...] = ()  # classes whose sums were moved by noise
    solved: tuple[int, int] | None = None  # features and classes of the solution, which follows from what is stored
    most_lessons: int = 0  # of how many lessons the model keeps the sums
    lessons: tuple[tuple[int, dict[Any, int]], ...] = ()  # lessons whose sums are kept, and their samples by class
    solution_error: float | None = None  # of a solution that was there, against one made again from the sums

    @property
    def revealing(self) -> dict[Any, int]:
        """Classes with fewer than `FEW` samples, whose sums may reveal one of them."""
        return {label: count for label, count in self.counts.items() if count is not None and count < FEW}

    @property
    def revealing_lessons(self) -> list[tuple[int, Any, int]]:
        """Lessons whose sums are kept, with each class of fewer than `FEW` samples, and their number."""
        return [(one, label, n) for one, counts in self.lessons for label, n in counts.items() if 0 < n < FEW]

    @property
    def like(self) -> list[Finding]:
        """Findings that are not clear, the most similar first."""
        found = [finding for finding in self.findings or () if finding.verdict != "clear"]
        return sorted(found, key=lambda finding: (finding.verdict != "revealing", -finding.cosine))

    @property
    def promises(self) -> list[Promise]:
        """Every promise, and whether it holds."""
        similarity = f"Nothing stored has a |cosine| beyond {LIMIT} with a training sample"
        found = [Promise("The model is constant in size", *self._size()), Promise(similarity, *self._similarity())]
        if self.solution_error is not None:
            reason = f"Solved again from the sums, it differs by {self.solution_error:.2g} of its largest number."
            found.append(Promise("The solution is that of the sums", self.solution_error <= _SOLUTION_ROUNDING, reason))
        return found

    @property
    def holds(self) -> bool:
        """Whether no promise is broken. An unknown one is not."""
        return all(promise.holds is not False for promise in self.promises)

    def _size(self) -> tuple[bool | None, str]:
        changes = self.sizes.changes
        if not changes:
            return None, "The file is from a version that did not record sizes: teach the model once more."
        if not self.sizes.constant:
            sizes = ", ".join(f"{sum(size.bytes.values()):,} from task {size.tasks} on" for size in changes[-3:])
            return False, f"Its bytes have changed: {sizes}."
        total = sum(changes[-1].bytes.values())
        reason = f"{total:,} bytes, constant from task {changes[0].tasks} to task {self.tasks}."
        if changes[-1].asked:
            reason += f" It changed only with the room for classes, after task {changes[-1].tasks}."
        kept = self.footprint.bytes.get("receipts")
        if kept is not None:
            reason += (
                f" In addition, there are {kept:,} bytes of receipts (receipts=True), a salted digest per sample: they grow "
                "with the samples, and let anyone who has the file and a sample test whether that sample was learned."
            )
        kept = self.footprint.bytes.get("kept lessons")
        if kept is not None:
            number = f"{len(self.lessons)} lesson{'s' * (len(self.lessons) > 1)}"
            reason += f" In addition, there are {kept:,} bytes of sums of {number} (keep_lessons={self.most_lessons})."
        return True, reason

    def _similarity(self) -> tuple[bool | None, str]:
        if self.single:
            labels = _some([repr(label) for label in self.single])
            reason = f"The sum of a class with one sample is that sample's features, whatever is compared: {labels}."
            return False, reason
        alone = [f"lesson {number} ({label!r})" for number, label, count in self.revealing_lessons if count == 1]
        if alone:
            reason = "The sums kept of a lesson with one sample of a class are that sample's features, whatever is compared: "
            return False, f"{reason}{_some(alone)}."
        if self.findings is None:
            return None, "There were no training samples to compare with: pass them to check this."
        scope = (
            f"All {self.given:,} samples given were compared"
            if self.compared == self.given
            else f"This holds for the {self.compared:,} samples compared of {self.given:,} (rows=None, or --rows 0, for all)"
        )
        verdicts = {finding.verdict for finding in self.findings}
        few = f"fewer than {FEW} of the {self.given:,} samples given"
        if "revealing" in verdicts:
            return False, f"{self._where('revealing')}, which {few} share."
        if "near" in verdicts:
            return None, f"{self._where('near')}, which {few} share; a mean of many patches may be as close."
        if "shared" in verdicts:
            return None, f"What is beyond it is shared by {FEW} or more samples. {scope}."
        largest = max((finding.largest for finding in self.findings if finding.verdict == "clear"), default=0.0)
        rest = " Vectors too short to tell are ignored." if "chance" in verdicts else ""
        return True, f"{scope}; the largest is {largest:.4f}.{rest}"

    def _where(self, verdict: str) -> str:
        worst = next(finding for finding in self.like if finding.verdict == verdict)
        samples = worst.space if worst.space.startswith("patches") else f"samples {worst.space}"
        return f"{worst.form} {worst.at} of {worst.tensor} has {worst.cosine:.4f} with {samples}"

    @property
    def examples(self) -> str:
        """Which classes have so few samples that their sums may reveal one, and what to do about it."""
        few = [f"lesson {number} ({label!r}: {count})" for number, label, count in self.revealing_lessons]
        lessons = f" So may the sums that are kept of {_some(few)}: forget them with their samples." if few else ""
        return self._few_samples() + lessons

    def _few_samples(self) -> str:
        unknown = [repr(label) for label, count in self.counts.items() if count is None]
        if self.revealing:
            noise = {label: ", moved by noise" for label in self.moved}
            few = _some([f"{label!r} ({count}{noise.get(label, '')})" for label, count in self.revealing.items()])
            return f"Classes with fewer than {FEW} samples may reveal one: {few}. {self.advice}"
        if unknown:
            return f"The file is from a version that did not count the samples of some classes: {_some(unknown)}."
        least = min((count for count in self.counts.values() if count is not None), default=0)
        return f"No class has fewer than {FEW} samples; the smallest of {self.classes} has {least:,}."

    @property
    def advice(self) -> str:
        """What to do about classes with few samples."""
        if self.solver == "exact":
            return (
                "Teach them more, join them (join_classes), add noise (add_noise), or forget them. Noise moves their sums but "
                "does not shorten this list: they still have as few samples."
            )
        return f"Teach a class only when you have {FEW} samples of it or more."

    @property
    def reveals(self) -> str:
        """What the stored numbers do reveal; this is not differential privacy."""
        kept = (
            "The sum of a class's features gives their mean; for a class with one sample it is that sample's features. The "
            "second moments show how the features of all samples vary together. If one sample alone activates a feature, that "
            "feature's row is the sample's features."
            if self.solver == "exact"
            else "The projectors' sums show how the inputs of each layer vary together over all samples; the first layer's "
            "inputs are the scaled samples themselves. If one sample alone uses an input or activates a unit, its row of the "
            "sum is that sample. Leave out inputs that hardly any sample uses."
        )
        return (
            f"{kept} Two versions of a model show what was added in between, which may be one sample. This is not "
            "differential privacy: do not give the file to anyone who may not see such sums."
        )

    @property
    def memory(self) -> str:
        """What is in memory besides what is stored."""
        if self.solved is None:
            return "The constant size is that of the stored model. Nothing else is in memory while the model predicts."
        features, classes = self.solved
        return (
            "The constant size is that of the stored model. While the model predicts, it also keeps the solution of its sums "
            f"in memory: {features:,} × {classes:,} numbers (features × classes) and a rule that chooses among the classes. "
            "They grow with the classes. A file may have them as well, to save the time of computing them again."
        )

    def to_json(self) -> dict[str, Any]:
        """Return all figures in types that JSON has."""
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
            "solution_error": self.solution_error,
            "kept_lessons": [[number, [*map(list, counts.items())]] for number, counts in self.lessons],
            "examples": self.examples,
            "limit": LIMIT,
            "few": FEW,
            "compared": self.compared,
            "given": self.given,
            "findings": self.findings
            and [{**asdict(finding), "verdict": finding.verdict} for finding in self.findings],
            "reveals": self.reveals,
        }

    def __str__(self) -> str:
        marks = {True: "holds", False: "BROKEN", None: "unknown"}
        kept = ", ".join(f"{kind} {count:,}" for kind, count in self.footprint.bytes.items())
        return "\n".join(
            (
                f"{self.solver}: {self.tasks} tasks, {self.classes} classes",
                *(f"{marks[promise.holds]:>7}  {promise.name}. {promise.reason}" for promise in self.promises),
                f"{'reveals' if self.revealing else 'classes':>7}  {self.examples}",
                f"  bytes  {self.footprint.total:,} ({kept}), and {self.footprint.labels:,} of labels",
                f" memory  {self.memory}",
                f"   size  {self.footprint.parameters:,} trainable parameters, {self.macs:,} multiply-adds per prediction",
                f"   note  {self.reveals}",
            )
        )


def audit_model(model: Model, x: Tensor | None, rows: int | None, seed: int, on_progress: _Progress) -> Audit:
    """Audit a model; compare what it stores with all training samples, or with ``rows`` of them drawn at random."""
    learner, labels = model.learner, model.labels
    findings, compared = None, 0
    if x is not None:
        drawn = None if rows is None or rows >= len(x) else torch.randperm(len(x), generator=generator(seed))[:rows]
        findings = tuple(compare(learner, x, on_progress, drawn, beside=write_kept(model.kept)[0]))
        compared = len(x) if drawn is None else len(drawn)
    counts, single, moved, solved, error = labels.counts, (), list[Any](), None, None
    if learner.keeps_sums:
        exact = model.exact
        # The last feature of our own maps is the same for every sample, so its sum shows noise.
        constant = FEATURE_MAPS.get(exact.features.kind) is type(exact.features)
        for label, column in zip(labels.classes.tolist(), labels.columns.tolist(), strict=True):
            weight = float(exact.class_weights[column])
            if counts[label] is None:  # an old file has no counts
                counts[label] = round(weight)
            expected = FEATURE_LIMIT * weight
            if constant and abs(float(exact.class_sums[column, -1]) - expected) > _NOISE * expected:
                moved.append(label)
        single = tuple(label for label, count in counts.items() if count == 1 and label not in moved)
        solved, error = (learner.class_width, learner.seen), exact.solution_error()
    return Audit(
        solver=model.parameters.solver,
        tasks=learner.tasks,
        classes=len(labels.classes),
        footprint=model.footprint,
        macs=multiplications(learner, model.inputs.shape),
        sizes=model.sizes,
        counts=counts,
        claims={name: getattr(learner.traits, name) for name in ("rehearsal_free", "constant_size")},
        findings=findings,
        compared=compared,
        given=0 if x is None else len(x),
        single=single,
        moved=tuple(moved),
        solved=solved,
        most_lessons=model.parameters.keep_lessons,
        lessons=tuple((kept.number, dict(sorted(zip(kept.labels, kept.counts, strict=True)))) for kept in model.kept),
        solution_error=error,
    )


def _some(names: list[str]) -> str:
    return ", ".join([*names[:_NAMED], *([f"and {len(names) - _NAMED} more"] if len(names) > _NAMED else [])])
