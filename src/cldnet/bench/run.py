"""One run: a method learns a stream task by task and is evaluated after each; one result comes out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from cldnet.bench.machine import machine_text, peak_rss, reset_peak_rss, versions
from cldnet.bench.recording import USUAL, Record, Recording
from cldnet.data.augment import Augment
from cldnet.data.features import default_features, remembering
from cldnet.data.normalise import CONSTANTS, FIRST_TASK, constants
from cldnet.data.outside import Outside, check_outside, read_outside
from cldnet.data.stream import Stream
from cldnet.device import resolve_device, threads
from cldnet.fit import Progress, fit_task
from cldnet.methods import backbone_name, build_config, build_learner, read_method
from cldnet.methods.config import config_from_json, config_to_json
from cldnet.methods.learner import Learner, Setting
from cldnet.names import nearest_names
from cldnet.nets import backbone_defaults
from cldnet.nets.pretrained import Adapted, Pretrained
from cldnet.nets.scale import AsTheyAre

__all__ = ["RESULT_SCHEMA", "RunSpec", "run"]

#: Version of the result's layout.
RESULT_SCHEMA = 2


#: Types of a run's settings, which may come from a file.
_KINDS: Mapping[str, Any] = {
    **dict.fromkeys(("method", "backbone", "augment", "normalise", "outside"), str),
    **dict.fromkeys(("seed", "epochs", "batch_size"), int),
    **dict.fromkeys(("options", "backbone_options"), Mapping),
    "threads": int | None,
}


@dataclass(frozen=True)
class RunSpec:
    """What to run: a method with its options on a stream, with a seed for weights and shuffling.

    Attributes
    ----------
    method : str
        One of `cldnet.methods.METHODS`.
    seed : int
    epochs, batch_size : int
    options : dict
        Fields of the method's configuration, as JSON has them.
    backbone : str
        A name out of `cldnet.nets.BACKBONES`, or ``"auto"``.
    backbone_options : dict
    threads : int or None
    augment : str
        How training images are varied, as ``"crop=4,flip"``; see `cldnet.data.augment.Augment`.
    normalise : str
        ``"first-task"``, or constants; see `cldnet.data.normalise`.
    outside : str
        Data from outside the stream, for a method that learns from such; see `cldnet.data.outside.read_outside`.
    """

    method: str
    seed: int = 0
    epochs: int = 10
    batch_size: int = 16
    options: Mapping[str, Any] = field(default_factory=dict)
    backbone: str = "auto"
    backbone_options: Mapping[str, Any] = field(default_factory=dict)
    threads: int | None = None
    augment: str = ""
    normalise: str = FIRST_TASK
    outside: str = ""

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise ValueError(f"{name}={value!r} is of the wrong type for a run.")
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} should be at least 1.")

    def check(self) -> None:
        """Refuse what could not run on any stream: unknown options, backbones, augmentations, constants, outside data.

        Examples
        --------
        >>> RunSpec("owm", options={"rate": 0.1}).check()
        Traceback (most recent call last):
        ...
        ValueError: Method 'owm' does not take rate; it takes lr, momentum, clip, feed, alpha.
        """
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
        if self.normalise != FIRST_TASK and self.normalise not in CONSTANTS:
            channels = max(part.count("+") + 1 for part in self.normalise.split(":"))
            constants(self.normalise, (channels, 1, 1), pixels=False)

    def check_outside(self) -> None:
        """Refuse outside data that the method has no use for, or no such data where it needs some.

        Examples
        --------
        >>> RunSpec("dmc").check_outside()
        Traceback (most recent call last):
        ...
        ValueError: dmc learns from unlabelled inputs of outside the stream besides: name them, as outside='fmnist', or 'noise'.
        """
        takes = read_method(self.method).traits.outside_data
        if takes and not self.outside:
            raise ValueError(
                f"{self.method} learns from unlabelled inputs of outside the stream besides: name them, as outside='fmnist', "
                "or 'noise'."
            )
        if self.outside and not takes:
            raise ValueError(f"{self.method} has no use for outside={self.outside!r}: leave it out.")
        if self.outside:
            check_outside(self.outside)

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> RunSpec:
        """Make a specification from a table, and say which of its names are none of a run's.

        Examples
        --------
        >>> RunSpec.from_json({"method": "ewc", "epoch": 3})
        Traceback (most recent call last):
        ...
        ValueError: A run has no setting 'epoch'. Did you mean 'epochs'?
        """
        known = [one.name for one in fields(cls)]
        for name in table:
            if name not in known:
                raise ValueError(f"A run has no setting {name!r}. {nearest_names(name, known)}")
        return cls(**table)

    def to_json(self) -> dict[str, Any]:
        """Give the specification in types that JSON has."""
        return {one.name: _plain(getattr(self, one.name)) for one in fields(self)}


def _plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else value


def run(
    spec: RunSpec,
    stream: Stream,
    on_progress: Callable[[float], None] | None = None,
    record: Record = USUAL,
    data: Path | None = None,
) -> dict[str, Any]:
    """Run a specification and return its result, in types that JSON has.

    Parameters
    ----------
    spec : RunSpec
    stream : Stream
    on_progress : callable, optional
        Told the share of the run that is done, from 0 to 1.
    record : Record
        What to write down beside the figures.
    data : Path, optional
        Folder in which outside data are looked for first.

    Examples
    --------
    >>> from cldnet.data.streams import split_digits
    >>> result = run(RunSpec("exact", backbone_options={"features": 100}), split_digits(0)[:2])
    >>> result["scores"]["average_accuracy"] > 0.9, len(result["matrix"])
    (True, 2)
    """
    spec.check_outside()
    with threads(spec.threads):
        outside = read_outside(spec.outside, stream, data) if spec.outside else None
        return _run(spec, stream, outside, on_progress or (lambda share: None), record)


def _run(
    spec: RunSpec, stream: Stream, outside: Outside | None, on_progress: Callable[[float], None], record: Record
) -> dict[str, Any]:
    begun = time.perf_counter()
    reset_peak_rss()
    augment = Augment.from_text(spec.augment) if spec.augment else None
    learner = _learner(spec, stream)
    if outside is not None:
        learner.take_outside(outside.x)
    for part in learner.modules():
        if isinstance(part, Pretrained) and not isinstance(part, Adapted):
            part.to(resolve_device("auto"))  # of all that is done, what such a net does gains most by a GPU
    # Images that are varied anew each time would fill the disk, and never be seen again.
    remembered = nullcontext() if augment is not None else remembering(learner, default_features())
    epochs, batch_size = (spec.epochs, spec.batch_size) if stream.online is None else (1, stream.online)
    how: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "augment": augment}
    with remembered as cache:
        recording = _learned(learner, stream, how, on_progress, record)
        most_held = peak_rss()  # diagnostics of the whole run follow, which are not the method's
        recorded = recording.of_run()
    backbone = backbone_name(spec.method, spec.backbone, stream.input_shape)
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
            "normalise": "its own" if isinstance(learner.scale, AsTheyAre) else spec.normalise,
            "backbone_options": _resolved(backbone, spec.backbone_options),
            "method": config_to_json(learner.config),
        },
        **recorded,
        **({} if cache is None else {"vectors": cache.to_json()}),
        # What was done beside learning and evaluating is not the method's time.
        "seconds": {**seconds, "total": time.perf_counter() - begun - sum(seconds["diagnose"])},
        "peak_rss": most_held,
        "threads": torch.get_num_threads(),
        "versions": versions(),
        "machine": machine_text(),
    }


def _learned(
    learner: Learner, stream: Stream, how: Mapping[str, Any], on_progress: Callable[[float], None], record: Record
) -> Recording:
    """Teach a learner task by task, and write down what is seen."""
    recording = Recording(learner, stream, record)
    for number, task in enumerate(stream):

        def on_step(progress: Progress, number: int = number) -> None:
            on_progress((number + progress.step / progress.steps) / len(stream))

        train = task.train
        watch = _Timed(recording.before(train, how["epochs"]))
        report = fit_task(learner, train, on_step=on_step, on_epoch=watch, **how)
        recording.after(report, watch.seconds)
        on_progress((number + 1) / len(stream))
    return recording


def _learner(spec: RunSpec, stream: Stream) -> Learner:
    scaling = constants(spec.normalise, stream.input_shape, stream.train_part.x.dtype == torch.uint8)
    setting = Setting(stream.input_shape, capacity=len(stream.class_order), seed=spec.seed, scaling=scaling)
    options = config_from_json(dict(spec.options))
    learner = build_learner(spec.method, setting, options, spec.backbone, spec.backbone_options)
    if scaling is not None and isinstance(learner.scale, AsTheyAre):
        raise ValueError(f"{spec.method} normalises in its own feature map: leave normalise={spec.normalise!r} out.")
    return learner


def _resolved(backbone: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a backbone: defaults may be others in another version, and runs that differ are told apart by this."""
    known = {} if backbone == "none" else backbone_defaults(backbone)
    return {name: config_to_json(value) for name, value in {**known, **options}.items()}


class _Timed:
    """A callback with the seconds that it took: they are not the learner's."""

    def __init__(self, callback: Callable[[int], None] | None) -> None:
        self.callback, self.seconds = callback, 0.0

    def __call__(self, epoch: int) -> None:
        if self.callback is not None:
            clock = time.perf_counter()
            self.callback(epoch)
            self.seconds += time.perf_counter() - clock
