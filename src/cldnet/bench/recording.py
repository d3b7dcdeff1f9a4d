"""What is written down of a learner after every task: accuracies, sizes, ranks of projectors, pictures of its features."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from cldnet.bench.evaluate import Evaluation
from cldnet.bench.leaky import LEAKY_NOTE, EpochWatch, with_own_statistics
from cldnet.data.stream import Stream
from cldnet.fit import TaskReport, portions
from cldnet.footprint import footprint, paper_capacity
from cldnet.math.metrics import average_accuracy, scores
from cldnet.math.projector import spectrum
from cldnet.methods.learner import Learner, TaskData

__all__ = ["RANK_THRESHOLD", "USUAL", "Record", "Recording", "projector_ranks", "tsne"]

#: An eigenvalue of a projector above this counts for its rank: a step in that direction keeps at least half of its length.
RANK_THRESHOLD = 0.5
_PERPLEXITY = 30.0
_WHAT = "t-SNE of the vectors in front of the answer, of test images of the classes seen so far."


@dataclass(frozen=True)
class Record:
    """What to record beside the figures that every run has.

    Attributes
    ----------
    features : int
        Test images a class whose vectors are drawn by t-SNE after every task; 0 for none.
    leaky : bool
        Whether to evaluate once more as one should not, to tell what that would have shown; see `cldnet.bench.leaky`.
    """

    features: int = 0
    leaky: bool = True

    def __post_init__(self) -> None:
        if type(self.features) is not int or self.features < 0:
            raise ValueError(f"features={self.features!r} should be a whole number of test images a class, or 0.")
        if type(self.leaky) is not bool:
            raise ValueError(f"leaky={self.leaky!r} should be true or false.")


#: What a run records where nobody says otherwise.
USUAL = Record()


@dataclass
class Recording:
    """The growing record of a run; `of_run` gives all of it in types that JSON has."""

    learner: Learner
    stream: Stream
    record: Record
    matrix: list[list[float]] = field(default_factory=list)
    task_il_matrix: list[list[float]] = field(default_factory=list)
    losses: list[list[float | None]] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=lambda: {"train": [], "evaluate": [], "diagnose": []})
    sizes: list[int] = field(default_factory=list)
    declared: list[int] = field(default_factory=list)
    ranks: list[dict[str, dict[str, float]]] = field(default_factory=list)
    pictures: list[dict[str, Any]] = field(default_factory=list)
    first: tuple[int, int] = (0, 0)
    watch: EpochWatch | None = None

    def __post_init__(self) -> None:
        self.evaluation = Evaluation(self.stream)
        self.begun_at = footprint(self.learner).total

    @property
    def _leaks(self) -> bool:
        return self.record.leaky and not self.learner.traits.needs_task_id

    def before(self, task: TaskData, epochs: int) -> EpochWatch | None:
        """Write down what growth the learner declares; of the last task, watch every epoch on test."""
        self.declared.append(self.learner.growth(task))
        last = len(self.declared) == len(self.stream)
        if self._leaks and last and epochs > 1 and not self.learner.traits.one_pass:
            self.watch = EpochWatch(self.evaluation, self.learner, len(self.declared))
        return self.watch

    def after(self, report: TaskReport, diagnosing: float) -> None:
        """Evaluate after a task, and write down what else there is to know; ``diagnosing`` is what its watch took of it."""
        clock = time.perf_counter()
        class_il, task_il = self.evaluation.accuracies(self.learner, len(self.matrix) + 1)
        self.seconds["train"].append(report.seconds - diagnosing)
        self.seconds["evaluate"].append(time.perf_counter() - clock)
        self.matrix.append(class_il)
        self.task_il_matrix.append(task_il)
        self.losses.append([loss if isfinite(loss) else None for loss in report.losses])  # JSON has no NaN
        self.sizes.append(footprint(self.learner).total)
        if len(self.matrix) == 1:
            self.first = self.learner.network_size, self.learner.seen
        clock = time.perf_counter()
        self.ranks.append(projector_ranks(self.learner))
        if self.record.features and not self.learner.traits.needs_task_id:
            self.pictures.append(self._picture())
        self.seconds["diagnose"].append(diagnosing + time.perf_counter() - clock)

    def _picture(self) -> dict[str, Any]:
        """Where t-SNE puts the first few test images of every class so far."""
        chosen = []
        for plan in self.stream.plans[: len(self.matrix)]:
            test = self.stream.rows(self.stream.test_part, plan.test, plan.change)
            chosen += [TaskData(test.x[own], test.y[own]) for own in _first_of_each(test.y, self.record.features)]
        vectors = torch.cat([self.learner.vectors(part) for one in chosen for part in portions(one.x)])
        points, perplexity = tsne(vectors, self.learner.setting.seed)
        rows = torch.cat([one.y for one in chosen]).tolist() if points else []
        return {"points": points, "rows": rows, "perplexity": perplexity}

    def leaks(self) -> dict[str, Any] | None:
        """What evaluation as it should not be would have shown."""
        if not self._leaks:
            return None
        clock = time.perf_counter()
        final = average_accuracy(self.matrix)
        leaks = {
            "task_known": average_accuracy(self.task_il_matrix),
            "own_test_statistics": with_own_statistics(self.learner, self.stream),
            "best_epoch": max([final, *(self.watch.accuracies if self.watch else [])]),
            "note": LEAKY_NOTE,
        }
        self.seconds["diagnose"][-1] += time.perf_counter() - clock
        return leaks

    def of_run(self) -> dict[str, Any]:
        """Give all that was recorded."""
        learner, kept = self.learner, footprint(self.learner)
        matrix = None if learner.traits.needs_task_id else self.matrix
        named = None if matrix is None else scores(matrix)
        before = [self.begun_at, *self.sizes[:-1]]
        return {
            "scores": {
                "average_accuracy": None if named is None else named.average_accuracy,
                "average_incremental_accuracy": None if named is None else named.average_incremental_accuracy,
                "forgetting": None if named is None else named.forgetting_chaudhry,
                "task_il_accuracy": average_accuracy(self.task_il_matrix),
            },
            "matrix": matrix,
            "task_il_matrix": self.task_il_matrix,
            "losses": self.losses,
            "bytes": kept.bytes,
            "bytes_after_task": self.sizes,
            "growth": {
                "declared": self.declared,
                "measured": [now - then for now, then in zip(self.sizes, before, strict=True)],
            },
            "rehearsal_free": learner.traits.rehearsal_free,
            "constant_size": learner.traits.constant_size,
            "exemplars": kept.bytes.get("exemplars", 0),
            "parameters": kept.parameters,
            "capacity_paper": paper_capacity(learner, *self.first),
            "ranks": {"threshold": RANK_THRESHOLD, "tasks": self.ranks} if any(self.ranks) else None,
            "features": self._features(),
            "diagnostics": {"leaky": self.leaks()},
            "seconds": self.seconds,
        }

    def _features(self) -> dict[str, Any] | None:
        if not self.pictures:
            return None
        tasks = [{key: picture[key] for key in ("points", "rows")} for picture in self.pictures]
        perplexities = [picture["perplexity"] for picture in self.pictures]
        return {"what": _WHAT, "classes": list(self.stream.class_order), "tasks": tasks, "perplexity": perplexities[-1]}


def projector_ranks(learner: Learner) -> dict[str, dict[str, float]]:
    """Tell how much room a learner's projectors leave: by layer its width, the rank of ``P``, and ``tr P`` as a share.

    A projector has full rank on paper; the rank here counts its eigenvalues above `RANK_THRESHOLD`.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> from cldnet.methods.learner import Setting
    >>> learner = build_learner("owm", Setting((4,), capacity=2, seed=0), backbone_options={"widths": (8,)})
    >>> projector_ranks(learner)["head"]
    {'width': 9, 'rank': 9, 'trace': 1.0}
    """
    ranks = {}
    for name, total in learner.projector_sums().items():
        eigenvalues = spectrum(total)
        width = eigenvalues.numel()
        rank = int((eigenvalues > RANK_THRESHOLD).sum())
        ranks[name] = {"width": width, "rank": rank, "trace": float(eigenvalues.sum()) / width}
    return ranks


def tsne(vectors: Tensor, seed: int) -> tuple[list[list[float]], float]:
    """Lay vectors out in the plane (t-SNE from a PCA start), and tell the perplexity that few vectors allow.

    Vectors of a net that has diverged, or whose features are all the same, cannot be laid out: there are no points then.

    Examples
    --------
    >>> import torch
    >>> points, perplexity = tsne(torch.eye(12), seed=0)
    >>> len(points), len(points[0]), round(perplexity, 2)
    (12, 2, 3.67)
    """
    from sklearn.manifold import TSNE  # noqa: PLC0415  (heavy, and most runs draw nothing)
    from threadpoolctl import threadpool_limits  # noqa: PLC0415  (scikit-learn brings it)

    count = len(vectors)
    vectors = vectors.double()
    if not bool(vectors.isfinite().all()) or bool((vectors == vectors[:1]).all()):
        return [], 0.0
    if vectors.shape[1] == 1:  # PCA wants two columns
        vectors = torch.cat([vectors, torch.zeros_like(vectors)], dim=1)
    if count < 4:  # nothing to lay out by neighbourhood
        return [[float(i), 0.0] for i in range(count)], 0.0
    perplexity = min(_PERPLEXITY, (count - 1) / 3)
    layout = TSNE(init="pca", perplexity=perplexity, random_state=seed % 2**32)
    with threadpool_limits(torch.get_num_threads(), user_api="openmp"):
        found = layout.fit_transform(vectors.numpy())
    return [[round(float(x), 3), round(float(y), 3)] for x, y in found], perplexity


def _first_of_each(rows: Tensor, count: int) -> list[Tensor]:
    """Positions of the first few examples of each class row."""
    return [(rows == row).nonzero()[:count, 0] for row in rows.unique().tolist()]
