"""One run: a method learns a stream task by task and is evaluated after each task, which gives one result."""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from pydantic import Field
from torch import Tensor, nn

from cldnet.bench.checkpoint import Recorded, RunCheckpoint, Spent
from cldnet.bench.feature_cache import remembering
from cldnet.bench.machine import machine_text, peak_rss, reset_peak_rss, versions
from cldnet.bench.validation import StrictTable
from cldnet.data.stream import Stream
from cldnet.data.streams import Outside, check_outside, read_outside
from cldnet.data.transforms import CONSTANTS, FIRST_TASK, PER_IMAGE, Augment, constants, standardised
from cldnet.device import resolve_device, threads
from cldnet.estimator.footprint import footprint, paper_capacity
from cldnet.math.metrics import average_accuracy, scores
from cldnet.math.projector import spectrum
from cldnet.methods import backbone_name, build_config, build_learner, known_methods, read_method
from cldnet.methods.config import config_from_json, config_to_json
from cldnet.methods.fit import Progress, TaskCheckpoint, TaskReport, fit_task
from cldnet.methods.learner import (
    Learner,
    Represents,
    Setting,
    TakesOutsideData,
    TaskData,
    portions,
    predict_logits,
)
from cldnet.methods.parts.ranks import ALONE, Ranks, state_digest
from cldnet.nets import backbone_defaults, takes_text
from cldnet.nets.features import InputScale, NoScaling
from cldnet.nets.pretrained import frozen_nets
from cldnet.nets.sentences import MINILM
from cldnet.text import nearest_names

#: Version of the result's layout.
RESULT_SCHEMA = 2
#: An eigenvalue of a projector above this counts for its rank: a step in that direction keeps at least half of its length.
RANK_THRESHOLD = 0.5
_PERPLEXITY = 30.0
_BATCH = 1024
_FEATURES_NOTE = "t-SNE of the vectors in front of the answer, of test images of the classes seen so far."
_LEAKAGE_NOTE = (
    "Not results. task_known: the test image's task is given. own_test_statistics: every task's test images are normalised by "
    "their own mean and spread. best_epoch: of the last task's epochs, the one with the highest accuracy on test."
)
#: Attributes of a `Recorder` that a checkpoint keeps.
_RECORDED = (
    *("matrix", "task_il_matrix", "losses", "seconds", "sizes", "growth", "ranks", "features", "first"),
    *("epoch_accuracies", "epoch_seconds"),
)
#: Types of a run's settings, which may come from a file.
_TYPES: Mapping[str, Any] = {
    **dict.fromkeys(("method", "backbone", "augment", "normalise", "outside"), str),
    **dict.fromkeys(("seed", "epochs", "batch_size"), int),
    **dict.fromkeys(("options", "backbone_options"), Mapping),
    "threads": int | None,
}


@dataclass(frozen=True)
class RunSpec:
    """What to run: a method with its options on a stream, with a seed for weights and shuffling."""

    method: str  # one of `cldnet.methods.METHODS`
    seed: int = 0
    epochs: int = 10
    batch_size: int = 16
    options: Mapping[str, Any] = field(default_factory=dict)  # fields of the method's configuration, as in JSON
    backbone: str = "auto"  # or one of `cldnet.nets.BACKBONES`
    backbone_options: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None
    augment: str = ""  # how training images are varied, as "crop=4,flip"; see `cldnet.data.transforms.Augment`
    normalise: str = FIRST_TASK  # or image, or constants; see `cldnet.data.transforms.constants`
    outside: str = ""  # data from outside the stream; see `cldnet.data.streams.read_outside`

    def __post_init__(self) -> None:
        for name, kind in _TYPES.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise ValueError(f"{name}={value!r} is of the wrong type for a run.")
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} should be at least 1.")

    def check(self) -> None:
        """Refuse what could not run on any stream: unknown options, backbones, augmentations, constants, outside data."""
        build_config(self.method, config_from_json(dict(self.options)))
        default = read_method(self.method).default_backbone
        chosen = default if self.backbone == "auto" else backbone_name(self.method, self.backbone, ())
        names = {"auto": ("mlp", "cnn"), "none": ()}.get(chosen, (chosen,))
        known = {option for name in names for option in backbone_defaults(name)}
        for option in self.backbone_options:
            if option not in known:
                has = ", ".join(sorted(known)) or "none"
                raise ValueError(f"The backbone {chosen} has no option {option!r}; it has {has}.")
        self.check_outside()
        if self.augment:
            Augment.from_text(self.augment)
        if self.normalise not in (FIRST_TASK, PER_IMAGE, *CONSTANTS):
            channels = max(part.count("+") + 1 for part in self.normalise.split(":"))
            constants(self.normalise, (channels, 1, 1), pixels=False)

    def check_spreads(self) -> None:
        """Refuse a method whose batches cannot be split over several ranks."""
        method = read_method(self.method)
        if not method.spreads:
            spread = ", ".join(sorted(name for name in known_methods() if read_method(name).spreads))
            instead = (
                "It learns by sums, which shards can compute apart: use `cldnet learn --engine` or `fit_shards`"
                if method.keeps_sums
                else f"Start it without torchrun, or choose one of {spread}"
            )
            raise ValueError(f"{self.method} cannot be trained on several ranks. {instead}.")

    def check_outside(self) -> None:
        """Refuse outside data for a method that does not use them, and missing ones for a method that needs them."""
        uses = read_method(self.method).traits.outside_data
        if uses and not self.outside:
            raise ValueError(
                f"{self.method} needs unlabelled data from outside the stream: name them, as outside='fmnist' or "
                "outside='noise'."
            )
        if self.outside and not uses:
            raise ValueError(f"{self.method} does not use outside data: leave outside={self.outside!r} out.")
        if self.outside:
            check_outside(self.outside)

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> RunSpec:
        """Make a specification from a table, and refuse names that no run has."""
        known = [one.name for one in fields(cls)]
        for name in table:
            if name not in known:
                raise ValueError(f"A run has no setting {name!r}. {nearest_names(name, known)}")
        return cls(**table)

    def to_json(self) -> dict[str, Any]:
        """Give the specification in types that JSON has."""
        values = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}


class Record(StrictTable):
    """What to record in addition to the scores."""

    features: int = Field(default=0, ge=0)  # test images per class whose vectors t-SNE draws after every task
    leaky: bool = True  # whether to evaluate with information leaks as well; see docs/bench.md


#: What a run records by default.
USUAL = Record()


def run(
    spec: RunSpec,
    stream: Stream,
    on_progress: Callable[[float], None] | None = None,
    record: Record = USUAL,
    data: Path | None = None,
    execution: Execution | None = None,
) -> dict[str, Any]:
    """Run a specification and return its result, in types that JSON has; outside data are looked for in ``data`` first."""
    spec.check_outside()
    with threads(spec.threads):
        outside = read_outside(spec.outside, stream, data) if spec.outside else None
        return _run(spec, stream, outside, on_progress or (lambda share: None), record, execution or Execution())


@dataclass(frozen=True)
class Execution:
    """How a run is carried out, which is no part of what it is: on which ranks, and where it writes checkpoints."""

    ranks: Ranks = ALONE
    checkpoint: RunCheckpoint | None = None
    identity: str = ""  # digest of all that the result depends on but for the processes, for the checkpoint

    @property
    def run(self) -> str:
        """Digest of all that the bits of the result depend on."""
        what = (self.identity, self.ranks.count, torch.get_num_threads(), versions())
        return hashlib.sha256(repr(what).encode()).hexdigest()

    def resume(self, learner: Learner, recorder: Recorder, tasks: int) -> tuple[int, TaskCheckpoint | None]:
        """Go to where the checkpoint stands; return the number of tasks learned and where the next one stands."""
        standing = None if self.checkpoint is None else self.checkpoint.resume(self.run, learner, tasks)
        if standing is not None:
            recorder.restore(standing.recorded)
        where = (standing.tasks, standing.task and (standing.task.epoch, standing.task.batches)) if standing else None
        self.ranks.check_equal(
            lambda: f"{self.run} {where} {state_digest(learner.state_dict())}",
            "The ranks do not begin with the same run: give all of them the same command, data, number of threads, versions "
            "and checkpoint.",
        )
        return (0, None) if standing is None else (standing.tasks, standing.task)

    def between_tasks(self, learner: Learner, recorder: Recorder, tasks: int, progress: TaskCheckpoint | None) -> None:
        """Check that all ranks have the same weights, and write a checkpoint unless the next task has its own."""
        self.ranks.check_equal(
            lambda: state_digest(learner.state_dict()),
            f"After {tasks} tasks the ranks' weights differ: run all ranks on machines of one kind, with the same versions.",
        )
        if self.checkpoint is not None:
            self.checkpoint.begin_task(learner, tasks)
            if progress is None:
                self.checkpoint.write(recorder.recorded)

    def on_checkpoint(self, recorder: Recorder) -> Callable[[Callable[[], TaskCheckpoint]], None] | None:
        """What `fit_task` calls after every step."""
        checkpoint = self.checkpoint
        return None if checkpoint is None else lambda now: checkpoint.write(recorder.recorded, now)


def _run(
    spec: RunSpec,
    stream: Stream,
    outside: Outside | None,
    on_progress: Callable[[float], None],
    record: Record,
    execution: Execution,
) -> dict[str, Any]:
    started = time.perf_counter()
    reset_peak_rss()
    augment = Augment.from_text(spec.augment) if spec.augment else None
    learner, inputs = _learner(spec, stream), stream
    per_image = spec.normalise == PER_IMAGE
    if per_image:
        own_train, own_test = (replace(part, x=standardised(part.x)) for part in (stream.train_part, stream.test_part))
        inputs = replace(stream, train_part=own_train, test_part=own_test)
    if outside is not None and isinstance(learner, TakesOutsideData):
        learner.take_outside(standardised(outside.x) if per_image else outside.x)
    for net in frozen_nets(learner):
        net.to(resolve_device("auto"))  # of all computations, a frozen net's gain most from a GPU
    # Augmented images differ each time: their vectors would fill the disk and never be used again.
    remembered = nullcontext() if augment is not None else remembering(learner)
    epochs, batch_size = (spec.epochs, spec.batch_size) if stream.online is None else (1, stream.online)
    learner.ranks = execution.ranks
    execution.ranks.prepare(learner)
    recorder = Recorder(learner, inputs, record, started)
    done, progress = execution.resume(learner, recorder, len(inputs))
    with remembered as cache:
        for number in range(done, len(inputs)):

            def on_step(progress: Progress, number: int = number) -> None:
                on_progress((number + progress.step / progress.steps) / len(stream))

            execution.between_tasks(learner, recorder, number, progress)
            train = inputs[number].train
            on_epoch = recorder.before(train, epochs)
            how: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "augment": augment}
            how |= {"resume": progress, "on_checkpoint": execution.on_checkpoint(recorder)}
            recorder.after(fit_task(learner, train, on_step=on_step, on_epoch=on_epoch, **how))
            progress = None
            on_progress((number + 1) / len(stream))
        execution.between_tasks(learner, recorder, len(inputs), None)
        peak = peak_rss()  # with the diagnostics after each task, without those of the whole run
        recorded = recorder.result()
    backbone = backbone_name(spec.method, spec.backbone, stream.input_shape)
    # All options, defaults included: they may change with versions, and runs are compared by their options.
    backbone_options = {**({} if backbone == "none" else backbone_defaults(backbone)), **spec.backbone_options}
    seconds = recorded["seconds"]
    return {
        "schema": RESULT_SCHEMA,
        "method": spec.method,
        "backbone": backbone,
        "stream": {
            "name": stream.name,
            "hash": stream.hash,
            "data": stream.data_digest,
            "class_order": list(stream.class_order),
            "tasks": [list(task) for task in stream.tasks],
            "rows": [[len(plan.train), len(plan.test)] for plan in stream.plans],
            "online": stream.online,
        },
        "outside": None if outside is None else outside.to_json(),
        "seed": spec.seed,
        "config": {
            "epochs": 1 if learner.traits.one_pass else epochs,
            "batch_size": max(batch_size, learner.min_batch),
            "augment": None if augment is None else str(augment),
            "normalise": "its own" if isinstance(learner.scale, NoScaling) and not per_image else spec.normalise,
            "backbone_options": {name: config_to_json(value) for name, value in backbone_options.items()},
            "method": config_to_json(learner.config),
        },
        **recorded,
        **({} if cache is None else {"vectors": cache.to_json()}),
        # Diagnostics are not part of the method's time.
        "seconds": {**seconds, "total": recorder.elapsed - sum(seconds["diagnose"])},
        "peak_rss": peak if peak is None else max(peak, recorder.earlier.peak_rss),
        "threads": torch.get_num_threads(),
        "processes": execution.ranks.count,
        "versions": versions(),
        "machine": machine_text(),
    }


def _learner(spec: RunSpec, stream: Stream) -> Learner:
    scaling = constants(spec.normalise, stream.input_shape, stream.train_part.x.dtype == torch.uint8)
    setting = Setting(stream.input_shape, capacity=len(stream.class_order), seed=spec.seed, scaling=scaling)
    options = config_from_json(dict(spec.options))
    learner = build_learner(spec.method, setting, options, spec.backbone, spec.backbone_options)
    if scaling is not None and isinstance(learner.scale, NoScaling):
        raise ValueError(f"{spec.method} normalises in its own feature map: leave normalise={spec.normalise!r} out.")
    _check_text(spec, stream, learner.backbone)
    return learner


def _check_text(spec: RunSpec, stream: Stream, backbone: nn.Module | None) -> None:
    """Refuse sentences for a net that takes numbers, and a change of their bytes."""
    if not stream.train_part.text:
        return
    if backbone is None or not takes_text(backbone):
        raise ValueError(
            f"{stream.name} has sentences, and {spec.method} with backbone={spec.backbone!r} takes numbers. Choose "
            f"backbone={MINILM!r} and a method that trains or uses a backbone of your choice."
        )
    if spec.augment:
        raise ValueError(f"{stream.name} has sentences, which are not augmented: leave augment={spec.augment!r} out.")


class Evaluation:
    """Evaluates a learner on the test parts of a stream after every task, each image on its own.

    If the learner's feature map is fixed, every test image is mapped only once: its features are cached here, outside
    the learner.
    """

    def __init__(self, learner: Learner, stream: Stream) -> None:
        self.learner, self.stream = learner, stream
        self._vectors: Tensor | None = None
        self._mapped = torch.zeros(len(stream.test_part.y), dtype=torch.bool)  # which test images have their vector

    def accuracies(self, count: int) -> tuple[list[float], list[float]]:
        """Accuracy on each of the first ``count`` tasks, among all classes seen and among the task's own."""
        class_il: list[float] = []
        task_il: list[float] = []
        for logits, y, classes in self._scored(count):
            class_il.append(_accuracy(logits, y))
            own = self.stream.class_rows(classes).sort().values
            task_il.append(float((own[logits[:, own].argmax(1)] == y).double().mean()))
        return class_il, task_il

    def _scored(self, count: int) -> Iterator[tuple[Tensor, Tensor, tuple[Any, ...]]]:
        """Logits, class indices and classes of the first tasks' test parts."""
        learner, stream, plans = self.learner, self.stream, self.stream.plans[:count]
        needs_task = learner.traits.needs_task_id
        if needs_task or any(plan.change is not None for plan in plans):
            for task, plan in enumerate(plans):
                test = stream.rows(stream.test_part, plan.test, plan.change)
                yield predict_logits(learner, test.x, task=task if needs_task else None), test.y, plan.classes
            return
        pooled = torch.cat([plan.test for plan in plans]).unique()
        logits, y = self._logits(pooled), stream.rows(stream.test_part, pooled).y
        for plan in plans:
            here = torch.searchsorted(pooled, plan.test)
            yield logits[here], y[here], plan.classes

    def _logits(self, samples: Tensor) -> Tensor:
        """Scores of samples of the test part over the classes seen."""
        learner = self.learner
        if not isinstance(learner, Represents):
            return predict_logits(learner, self.stream.rows(self.stream.test_part, samples).x)
        new = samples[~self._mapped[samples]]
        if len(new):
            vectors = learner.represent(self.stream.rows(self.stream.test_part, new).x)
            if self._vectors is None:
                self._vectors = vectors.new_empty((len(self._mapped), *vectors.shape[1:]))
            self._vectors[new], self._mapped[new] = vectors, True
        assert self._vectors is not None
        return torch.cat([learner.score_represented(self._vectors[part]) for part in samples.split(_BATCH)])


def _accuracy(logits: Tensor, y: Tensor) -> float:
    return float((logits.argmax(1) == y).double().mean())


class Recorder:
    """Evaluates a learner after every task, and collects what goes into the result."""

    def __init__(self, learner: Learner, stream: Stream, record: Record, started: float | None = None) -> None:
        self.learner, self.stream, self.record = learner, stream, record
        self.evaluation = Evaluation(learner, stream)
        self.initial_size = footprint(learner).total
        self.matrix: list[list[float]] = []
        self.task_il_matrix: list[list[float]] = []
        self.losses: list[list[float | None]] = []
        self.seconds: dict[str, list[float]] = {"train": [], "evaluate": [], "diagnose": []}
        self.sizes: list[int] = []
        self.growth: list[int | None] = []
        self.ranks: list[dict[str, dict[str, float]]] = []
        self.features: list[dict[str, Any]] = []
        # The bytes of sentences have no mean and std that could leak.
        self.leaks = record.leaky and not learner.traits.needs_task_id and not stream.train_part.text
        self.epoch_accuracies: list[float] = []  # on test, after the epochs of the last task
        self.epoch_seconds = 0.0
        self.first: tuple[int, int] | None = None
        self.earlier = Spent()
        self.started = time.perf_counter() if started is None else started
        self.task_started: float | None = None

    @property
    def elapsed(self) -> float:
        """Seconds of the run, with those before it was interrupted."""
        return self.earlier.elapsed + time.perf_counter() - self.started

    def recorded(self) -> Recorded:
        """Return everything that was recorded so far, for a checkpoint."""
        values = {name: getattr(self, name) for name in _RECORDED}
        running = 0.0 if self.task_started is None else time.perf_counter() - self.task_started
        peak = max(peak_rss() or 0, self.earlier.peak_rss)
        return Recorded(
            **values, spent=Spent(elapsed=self.elapsed, trained=self.earlier.trained + running, peak_rss=peak)
        )

    def restore(self, recorded: Recorded) -> None:
        """Go on from what was recorded before the run was interrupted."""
        for name in _RECORDED:
            setattr(self, name, copy.deepcopy(getattr(recorded, name)))
        del self.growth[len(self.matrix) :]  # the task that was interrupted declares its growth again
        self.earlier = recorded.spent

    def before(self, task: TaskData, epochs: int) -> Callable[[int], None] | None:
        """Record the growth that the learner declares; returns what to call after every epoch of the last task."""
        self.growth.append(self.learner.growth(task))
        self.task_started = time.perf_counter()
        last = len(self.growth) == len(self.stream)
        return self._after_epoch if self.leaks and last and epochs > 1 and not self.learner.traits.one_pass else None

    def _after_epoch(self, epoch: int) -> None:
        """Evaluate between two epochs; every module keeps its own mode."""
        clock = time.perf_counter()
        training = {module: module.training for module in self.learner.modules()}
        self.learner.eval()
        class_il, _ = self.evaluation.accuracies(len(self.growth))
        for module, mode in training.items():
            module.training = mode
        self.epoch_accuracies.append(fmean(class_il))
        self.epoch_seconds += time.perf_counter() - clock

    def after(self, report: TaskReport) -> None:
        """Evaluate after a task."""
        if self.growth[-1] is None:
            self.growth[-1] = self.learner.grown
        clock = time.perf_counter()
        class_il, task_il = self.evaluation.accuracies(len(self.matrix) + 1)
        self.seconds["train"].append(report.seconds + self.earlier.trained - self.epoch_seconds)
        self.earlier, self.task_started = self.earlier.model_copy(update={"trained": 0.0}), None
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
            self.features.append(self._layout())
        self.seconds["diagnose"].append(self.epoch_seconds + time.perf_counter() - clock)

    def _layout(self) -> dict[str, Any]:
        """Where t-SNE puts the first few test images of every class so far."""
        x, y = [], []
        for plan in self.stream.plans[: len(self.matrix)]:
            test = self.stream.rows(self.stream.test_part, plan.test, plan.change)
            for label in test.y.unique():
                own = (test.y == label).nonzero()[: self.record.features, 0]
                x.append(test.x[own])
                y.append(test.y[own])
        vectors = torch.cat([self.learner.vectors(part) for one in x for part in portions(one)])
        points, perplexity = tsne(vectors, self.learner.setting.seed)
        return {"points": points, "rows": torch.cat(y).tolist() if points else [], "perplexity": perplexity}

    def _leakage(self) -> dict[str, Any] | None:
        """What the same model would seem to reach if it were evaluated with information leaks."""
        if not self.leaks:
            return None
        clock = time.perf_counter()
        leaks = {
            "task_known": average_accuracy(self.task_il_matrix),
            "own_test_statistics": with_own_statistics(self.learner, self.stream),
            "best_epoch": max([average_accuracy(self.matrix), *self.epoch_accuracies]),
            "note": _LEAKAGE_NOTE,
        }
        self.seconds["diagnose"][-1] += time.perf_counter() - clock
        return leaks

    def result(self) -> dict[str, Any]:
        """Return everything that was recorded, in JSON types."""
        learner, kept = self.learner, footprint(self.learner)
        class_il = None if learner.traits.needs_task_id else scores(self.matrix)
        measured = [now - then for then, now in pairwise([self.initial_size, *self.sizes])]
        tasks = [{key: layout[key] for key in ("points", "rows")} for layout in self.features]
        features = {"what": _FEATURES_NOTE, "classes": list(self.stream.class_order), "tasks": tasks}
        return {
            "scores": {
                "average_accuracy": None if class_il is None else class_il.average_accuracy,
                "average_incremental_accuracy": None if class_il is None else class_il.average_incremental_accuracy,
                "forgetting": None if class_il is None else class_il.forgetting_chaudhry,
                "task_il_accuracy": average_accuracy(self.task_il_matrix),
            },
            "matrix": None if class_il is None else self.matrix,
            "task_il_matrix": self.task_il_matrix,
            "losses": self.losses,
            "bytes": kept.bytes,
            "bytes_after_task": self.sizes,
            "growth": {"declared": self.growth, "measured": measured},
            "rehearsal_free": learner.traits.rehearsal_free,
            "constant_size": learner.traits.constant_size,
            "exemplars": kept.bytes.get("exemplars", 0),
            "parameters": kept.parameters,
            "capacity_paper": paper_capacity(learner, *(self.first or (learner.network_size, learner.seen))),
            "ranks": {"threshold": RANK_THRESHOLD, "tasks": self.ranks} if any(self.ranks) else None,
            "features": {**features, "perplexity": self.features[-1]["perplexity"]} if self.features else None,
            "diagnostics": {"leaky": self._leakage()},
            "seconds": self.seconds,
        }


def with_own_statistics(learner: Learner, stream: Stream) -> float:
    """Average accuracy if each task's test images are rescaled to the mean and std of the first task's training images.

    Their statistics reveal which task they belong to, which a classifier of single images cannot know.
    """
    usual = InputScale(stream.input_shape, torch.float64)
    usual.fit(stream[0].train.x)
    accuracies = []
    for plan in stream.plans:
        test = stream.rows(stream.test_part, plan.test, plan.change)
        own = InputScale(stream.input_shape, torch.float64)
        own.fit(test.x)
        moved = own(test.x).mul_(usual.spread).add_(usual.mean)
        if not test.x.dtype.is_floating_point:
            limits = torch.iinfo(test.x.dtype)
            moved = moved.round_().clamp_(limits.min, limits.max)
        accuracies.append(_accuracy(predict_logits(learner, moved.to(test.x.dtype)), test.y))
    return fmean(accuracies)


def projector_ranks(learner: Learner) -> dict[str, dict[str, float]]:
    """How much room a learner's projectors leave: by layer, its width, the rank of ``P``, and ``tr P / width``.

    Mathematically a projector has full rank; the rank here counts its eigenvalues above `RANK_THRESHOLD`.
    """
    ranks = {}
    for name, total in learner.projector_sums().items():
        eigenvalues = spectrum(total)
        width = eigenvalues.numel()
        rank = int((eigenvalues > RANK_THRESHOLD).sum())
        ranks[name] = {"width": width, "rank": rank, "trace": float(eigenvalues.sum()) / width}
    return ranks


def tsne(vectors: Tensor, seed: int) -> tuple[list[list[float]], float]:
    """Lay vectors out in the plane (t-SNE from a PCA start), with the perplexity that few vectors allow.

    There are no points if vectors are not finite or all the same, as those of a net that has diverged.
    """
    from sklearn.manifold import TSNE  # noqa: PLC0415  (heavy, and most runs draw nothing)
    from threadpoolctl import threadpool_limits  # noqa: PLC0415  (scikit-learn brings it)

    count = len(vectors)
    vectors = vectors.double()
    if not bool(vectors.isfinite().all()) or bool((vectors == vectors[:1]).all()):
        return [], 0.0
    if vectors.shape[1] == 1:  # PCA wants two columns
        vectors = torch.cat([vectors, torch.zeros_like(vectors)], dim=1)
    if count < 4:  # too few for neighbourhoods
        return [[float(i), 0.0] for i in range(count)], 0.0
    perplexity = min(_PERPLEXITY, (count - 1) / 3)
    layout = TSNE(init="pca", perplexity=perplexity, random_state=seed % 2**32)
    with threadpool_limits(torch.get_num_threads(), user_api="openmp"):
        found = layout.fit_transform(vectors.numpy())
    return [[round(float(x), 3), round(float(y), 3)] for x, y in found], perplexity
