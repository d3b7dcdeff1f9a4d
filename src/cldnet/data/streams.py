"""Streams by name, with options: ``split-cifar100,first=50,online=10``; and the variants that the options make.

Variants take a stream and return another. They move or drop training samples only; every task is tested on its own classes.
Domain streams have the same classes in every task, with another change of the images in each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, cos, pi, sin
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from cldnet.data.dataset import Dataset, Part
from cldnet.data.stream import Plan, Stream
from cldnet.device import generator
from cldnet.text import nearest_names

#: The options as a user writes them, and what they mean.
OPTIONS: Mapping[str, str] = {
    "tasks=10": "number of tasks, of nearly equal size",
    "classes_per_task=5": "classes per task",
    "first=50": "classes of the first task",
    "split=4+3+3": "classes of every task",
    "order=cat+dog+ant": "the class order: labels, sorted, a JSON file of labels, numpy:1993 (the papers' seed 1993), "
    "or apd (the five task orders of APD's paper, one per seed)",
    "test_size=0.2": "share of every class to test on, for data that have no test part",
    "size=64": "side of the square that photos are cut to, in pixels",
    "resize=72": "the photos' shorter side before that",
    "label=species": "label column of a table",
    "labels=coarse": "the 20 coarse classes of CIFAR-100",
    "part=val": "test on the official validation part of CLINC150",
    "online=10": "one pass, in batches of 10",
    "blurry=0.1": "a tenth of every class turns up in other tasks",
    "returning=0.3": "three tenths of every class come back in a later task",
    "long_tail=0.01": "the rarest class has a hundredth of the most frequent one's samples",
    "validation=0.2": "test on a fifth of the training data; the test part is left out",
    "train=0.33": "learn from a third of every class's training data (validation=0.2 is cut off before)",
    "until=2": "only the first 2 tasks",
}

#: Options by their use, with the type of their values. Variants are applied in this order: they drop samples, then move them.
_READER_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "size": int,
    "resize": int,
    "label": str,
    "labels": str,
    "part": str,
}
_SPLIT_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "tasks": int,
    "classes_per_task": int,
    "first": int,
    "split": lambda text: [int(size) for size in text.split("+")],
    "order": str,
    "test_size": float,
}
_VARIANT_OPTIONS: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("long_tail", "validation", "train", "blurry", "returning"), float),
    **dict.fromkeys(("online", "until"), int),
}
_CONVERT = {**_READER_OPTIONS, **_SPLIT_OPTIONS, **_VARIANT_OPTIONS}


@dataclass(frozen=True)
class StreamSpec:
    """A parsed stream name: the name or kind, a path, the text of every option, and the options' values by their use.

    ``reading`` are options of the reader, ``split`` of the split into tasks, and ``variants`` of variants: first those that
    drop samples, then those that move them.
    """

    name: str
    path: str | None
    options: Mapping[str, str]
    reading: Mapping[str, Any]
    split: Mapping[str, Any]
    variants: Mapping[str, Any]

    @classmethod
    def parse(cls, text: str, kinds: Collection[str]) -> StreamSpec:
        """Parse a text; ``kinds`` are the names that are followed by a colon and a path."""
        texts: dict[str, str] = {}
        values: dict[str, Any] = {}
        rest = text
        while match := re.fullmatch(r"(.*?)\s*,\s*(\w+)=([^,]*?)\s*", rest, re.DOTALL):
            rest, name, value = match.groups()
            if name not in _CONVERT:
                raise ValueError(
                    f"{text!r} has an option {name!r}, which does not exist. {nearest_names(name, _CONVERT)}"
                )
            if name in texts:
                raise ValueError(f"{text!r} has the option {name!r} twice: give it once.")
            try:
                texts[name], values[name] = value, _CONVERT[name](value)
            except ValueError:
                raise ValueError(f"{name}={value!r} in {text!r} is not a number, or not as many as expected.") from None
        options = dict(reversed(texts.items()))
        uses = (_READER_OPTIONS, _SPLIT_OPTIONS, _VARIANT_OPTIONS)
        by_use = [{name: values[name] for name in use if name in values} for use in uses]
        kind, colon, path = rest.partition(":")
        if not colon or kind not in kinds:
            return cls(rest, None, options, *by_use)
        if not path:
            raise ValueError(f"{text!r} needs a path after the colon, such as {kind}:/home/me/data.")
        return cls(kind, path, options, *by_use)

    @property
    def base(self) -> str:
        """`shown` without variants."""
        kept = {name: text for name, text in self.options.items() if name not in _VARIANT_OPTIONS}
        return replace(self, options=kept).shown

    @property
    def shown(self) -> str:
        """The whole text, without the folders of a path, which are private."""
        name = self.name if self.path is None else f"{self.name}:{Path(self.path).expanduser().resolve().name}"
        texts = dict(self.options)
        if texts.get("order", "").endswith(".json"):
            texts["order"] = Path(texts["order"]).name
        return name + "".join(f",{key}={text}" for key, text in texts.items())


def online(stream: Stream, batch_size: int, seed: int = 0) -> Stream:
    """Allow one pass over each task, in small batches. The runner enforces it."""
    if batch_size < 1:
        raise ValueError(f"online={batch_size} is not a batch size; expected at least 1 sample.")
    return replace(stream, online=batch_size)


def until(stream: Stream, count: int, seed: int = 0) -> Stream:
    """Keep the first tasks only, for choosing settings without knowing the later ones."""
    if not 1 <= count <= len(stream):
        raise ValueError(
            f"until={count} is not possible: {stream.name} has {len(stream)} tasks; expected 1 to {len(stream)}."
        )
    return stream[:count]


def blurry(stream: Stream, share: float = 0.1, seed: int = 0) -> Stream:
    """Move a share of every class to the other tasks, in equal parts (Bang et al. 2021, "blurry")."""

    def scatter(task: int, count: int, draw: torch.Generator) -> NDArray[np.int64]:
        others = np.delete(np.arange(len(stream)), task)
        # Dealt out like cards from a random start, so that classes are spread evenly.
        begin = int(torch.randint(len(others), (), generator=draw))
        return others[(begin + np.arange(count)) % len(others)]

    return _moved(stream, share, seed, scatter)


def returning(stream: Stream, share: float = 0.3, seed: int = 0) -> Stream:
    """Move a share of every class to one later task, drawn at random; the last task's classes stay complete."""

    def later(task: int, count: int, draw: torch.Generator) -> int:
        left = len(stream) - 1 - task
        return task + 1 + int(torch.randint(left, (), generator=draw)) if left else task

    return _moved(stream, share, seed, later)


def long_tailed(stream: Stream, ratio: float = 0.01, seed: int = 0) -> Stream:
    """Reduce the classes, from all samples of the most frequent one down to ``ratio`` of that, in logarithmic steps.

    Every class keeps at least one sample. ``seed`` draws the classes' ranks and the samples that stay.
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"long_tail={ratio} is not possible; expected a ratio above 0, and at most 1.")
    draw = generator(seed)
    classes = stream.class_order
    # Over sorted labels, because the class order may come from the same seed.
    rank_of = dict(zip(sorted(classes), torch.randperm(len(classes), generator=draw).tolist(), strict=True))
    most = max(map(len, _rows_of(stream, classes)))
    counts = [round(most * ratio ** (rank_of[label] / max(len(classes) - 1, 1))) for label in classes]
    return _with_fewer(stream, classes, counts, draw)


def thinned(stream: Stream, share: float, seed: int = 0) -> Stream:
    """Keep a share of every class's training samples, at least one, the same ones for every seed."""
    if not 0 < share < 1:
        raise ValueError(f"train={share} is not a share of every class; expected a number between 0 and 1.")
    classes = sorted(stream.class_order)  # so that the samples do not depend on the order of arrival
    counts = [round(share * len(rows)) for rows in _rows_of(stream, classes)]
    return _with_fewer(stream, classes, counts, generator(0))


def _rows_of(stream: Stream, classes: Sequence[Any]) -> list[NDArray[np.int64]]:
    """Indices of each class's training samples, over all tasks."""
    labels = stream.train_part.y
    used = np.unique(np.concatenate([plan.train.numpy() for plan in stream.plans]))
    return [used[labels[used] == label] for label in classes]


def _with_fewer(stream: Stream, classes: Sequence[Any], counts: Sequence[int], draw: torch.Generator) -> Stream:
    """Keep some training samples of each class, drawn at random: at least one, at most all."""
    pairs = zip(_rows_of(stream, classes), counts, strict=True)
    stays = np.concatenate([_drawn(rows, min(max(count, 1), len(rows)), draw) for rows, count in pairs])
    plans = tuple(replace(plan, train=torch.from_numpy(np.intersect1d(plan.train, stays))) for plan in stream.plans)
    return replace(stream, plans=plans)


_Move = Callable[[int, int, torch.Generator], NDArray[np.int64] | int]


def _moved(stream: Stream, share: float, seed: int, move: _Move) -> Stream:
    """Move a share of every class from its task to the tasks that ``move`` returns for that many samples."""
    if not 0 < share < 1:
        raise ValueError(f"A share of {share} of every class cannot move; expected a number between 0 and 1.")
    if len(stream) == 1:
        raise ValueError(f"{stream.name} has one task: there is no other task to move samples to.")
    if sum(map(len, stream.tasks)) > len(stream.class_order):
        raise ValueError(f"The tasks of {stream.name} share their classes: samples cannot move between them.")
    draw = generator(seed)
    labels = stream.train_part.y
    before = np.full(len(labels), -1)  # the task of every sample
    for task, plan in enumerate(stream.plans):
        before[plan.train.numpy()] = task
    after = before.copy()
    for task, plan in enumerate(stream.plans):
        for label in plan.classes:
            rows = np.flatnonzero((before == task) & (labels == label))
            some = _drawn(rows, min(round(share * len(rows)), len(rows) - 1), draw)
            after[some] = move(task, len(some), draw)
    if np.array_equal(after, before):
        raise ValueError(f"No sample of {stream.name} would move: use a larger share, or more tasks.")
    plans = tuple(
        replace(plan, train=torch.from_numpy(np.flatnonzero(after == task))) for task, plan in enumerate(stream.plans)
    )
    return replace(stream, plans=plans)


def _drawn(rows: NDArray[np.int64], count: int, draw: torch.Generator) -> NDArray[np.int64]:
    return rows.take(torch.randperm(len(rows), generator=draw)[: max(count, 0)].numpy())


_BLOCK = 4096


@dataclass(frozen=True)
class Permutation:
    """Permute the pixels of every image, or the columns of a table: permutation ``number`` of a seeded sequence."""

    seed: int
    number: int

    def __call__(self, x: Tensor) -> Tensor:
        """Permute a batch; channels stay together."""
        channels = 1 if x.ndim < 4 else x.shape[1]
        pixels = x.reshape(len(x), channels, -1)
        draw = generator(self.seed)
        for _ in range(self.number + 1):
            order = torch.randperm(pixels.shape[2], generator=draw)
        return pixels[:, :, order].reshape(x.shape)


@dataclass(frozen=True)
class Rotation:
    """Rotate every image about its centre, counter-clockwise, filling with 0."""

    degrees: float

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate a batch with bilinear interpolation."""
        height, width = x.shape[-2:]
        c, s = cos(self.degrees * pi / 180), sin(self.degrees * pi / 180)
        # The grid's coordinates run from -1 to 1 along either side.
        turn = torch.tensor([[c, -s * height / width, 0.0], [s * width / height, c, 0.0]], dtype=torch.float64)
        grid = F.affine_grid(turn[None], [1, 1, height, width], align_corners=False)
        turned = torch.empty_like(x)
        for first in range(0, len(x), _BLOCK):  # in float64, so in blocks
            block = x[first : first + _BLOCK].reshape(-1, 1, height, width).double()
            found = F.grid_sample(block, grid.expand(len(block), -1, -1, -1), align_corners=False)
            found = found if x.is_floating_point() else found.round()
            turned[first : first + _BLOCK] = found.reshape(-1, *x.shape[1:]).to(x.dtype)
        return turned


def permutations(tasks: int, seed: int = 0) -> list[Permutation | None]:
    """Permutations for a number of tasks; the first task is unchanged."""
    return [None, *(Permutation(seed, number) for number in range(tasks - 1))]


def rotations(tasks: int, seed: int = 0) -> list[Rotation | None]:
    """Rotations by random angles from 0 to 180 degrees, for a number of tasks; the first task is unchanged."""
    angles = torch.rand(tasks - 1, generator=generator(seed), dtype=torch.float64) * 180
    return [None, *(Rotation(round(angle, 2)) for angle in angles.tolist())]


def domains(data: Dataset, changes: Sequence[Callable[[Tensor], Tensor] | None], name: str) -> Stream:
    """Create a stream whose tasks are the whole data set, each with its own change."""
    assert data.test is not None
    whole = Stream.from_dataset(data, classes_per_task=len(set(data.train.y.tolist())), seed=None).plans[0]
    plans = tuple(Plan(whole.classes, whole.train, whole.test, change) for change in changes)
    return Stream(name, plans, data.train, data.test)


@dataclass(frozen=True)
class NamedStream:
    """A stream's description, its known data set (``"digits"`` is scikit-learn's) and the default number of tasks.

    ``changes`` makes the change of every task of a domain stream, from their number and a seed; ``reading`` has options of
    the reader.
    """

    summary: str
    data: str
    tasks: int
    changes: Callable[[int, int], Any] | None = None
    reading: Mapping[str, Any] = field(default_factory=dict)


#: The streams of this library.
STREAMS: Mapping[str, NamedStream] = {
    "split-digits": NamedStream("1,797 real 8×8 digits, bundled with scikit-learn, 5 tasks of 2 classes", "digits", 5),
    "split-mnist": NamedStream("MNIST, 5 tasks of 2 classes", "mnist", 5),
    "split-fmnist": NamedStream("FashionMNIST, 5 tasks of 2 classes", "fashion-mnist", 5),
    "split-cifar10": NamedStream("CIFAR-10, 5 tasks of 2 classes", "cifar-10", 5),
    "split-cifar100": NamedStream("CIFAR-100, 10 tasks of 10 classes", "cifar-100", 10),
    "split-imagenet-r": NamedStream("ImageNet-R, 24,000 + 6,000 images, 10 tasks of 20 classes", "imagenet-r", 10),
    "split-tiny-imagenet": NamedStream(
        "Tiny-ImageNet at 64×64, 10 tasks of 20 classes", "tiny-imagenet", 10, reading={"size": 64, "resize": 64}
    ),
    "split-cub200": NamedStream("CUB-200-2011, 10 tasks of 20 classes", "cub-200", 10),
    "split-clinc150": NamedStream("CLINC150, sentences, 10 tasks: the 15 intents of one domain each", "clinc150", 10),
    "permuted-mnist": NamedStream("MNIST, 10 tasks, each with its own order of pixels", "mnist", 10, permutations),
    "rotated-mnist": NamedStream("MNIST, 10 tasks, each turned by its own angle", "mnist", 10, rotations),
}

#: Streams from your own files, ``kind:PATH``.
SOURCES: Mapping[str, str] = {
    "folder": "a folder of photos, one folder per class: folder:PATH",
    "arrays": "arrays X and y in one .npz file, or in a folder of .npy files: arrays:PATH",
    "table": "a CSV or Parquet table with a label column: table:PATH,label=NAME",
}

#: Options of the readers that a user may set.
_READING: Mapping[str, Sequence[str]] = {
    "cifar-100": ("labels",),
    "clinc150": ("part",),
    "table": ("label",),
    **dict.fromkeys(("folder", "imagenet-r", "tiny-imagenet", "cub-200"), ("size", "resize")),
}

_VARIANTS: Mapping[str, Callable[[Stream, Any, int], Stream]] = {
    "long_tail": long_tailed,
    "validation": lambda stream, share, seed: stream.with_validation(share),
    "train": thinned,
    "blurry": blurry,
    "returning": returning,
    "online": online,
    "until": until,
}


def stream_by_name(
    text: str,
    seed: int | None = 0,
    *,
    data: Path | str | None = None,
    on_bad: Literal["skip", "stop"] = "stop",
    on_progress: Callable[[int, int], None] | None = None,
) -> Stream:
    """Create a stream by its name and options, with the class order of a seed.

    Parameters
    ----------
    text : str
        A name in `STREAMS`, or a kind in `SOURCES` with a path; then `OPTIONS`, separated by commas.
    seed : int or None
        Seed of the class order (``None``: sorted), of domains, and of random variants.
    data : path, optional
        Folder to search first for data sets; see `cldnet.data.catalog.search_path`.
    on_bad : {"stop", "skip"}
        Whether unreadable photos raise an error or are left out.
    on_progress : callable, optional
        Called with the number of photos read, and of all.

    Examples
    --------
    >>> stream_by_name("split-digits,first=6,blurry=0.1", seed=None).tasks
    ((0, 1, 2, 3, 4, 5), (6, 7), (8, 9))
    >>> stream_by_name("split-digit")
    Traceback (most recent call last):
    ...
    ValueError: There is no stream 'split-digit'. Did you mean 'split-digits'...
    """
    spec = StreamSpec.parse(text, SOURCES)
    if spec.path is None and spec.name.lower() in SOURCES:
        raise ValueError(f"{text!r} lacks a path: write {spec.name.lower()}:PATH.")
    if spec.path is None and spec.name not in STREAMS:
        raise ValueError(f"There is no stream {spec.name!r}. {nearest_names(spec.name, [*STREAMS, *SOURCES])}")
    named = STREAMS.get(spec.name)
    found = _read(spec, named, data, {"on_bad": on_bad, "on_progress": on_progress})
    if named is not None and named.changes is not None:
        if set(spec.split) - {"tasks"}:
            raise ValueError(f"All tasks of {spec.name} have all classes: the only split option is tasks=N.")
        tasks = spec.split.get("tasks", named.tasks)
        if tasks < 1:
            raise ValueError(f"tasks={tasks} is not possible; expected at least 1.")
        stream = domains(found, named.changes(tasks, seed or 0), spec.base)
    else:
        stream = Stream.from_dataset(found, name=spec.base, **_splitting(spec, named, found, seed))
    for option, value in spec.variants.items():
        stream = replace(_VARIANTS[option](stream, value, seed or 0), name=f"{stream.name},{option}={value:g}")
    return stream


def _read(spec: StreamSpec, named: NamedStream | None, data: Path | str | None, photos: Mapping[str, Any]) -> Dataset:
    """Read the data of a stream with its reader."""
    if named is None:
        found = read_source(spec, **photos)
        if spec.name == "folder" and len(classes := set(found.train.y.tolist())) == 1:
            (label,) = classes
            raise ValueError(
                f"All photos under {spec.path} are of one class, {label!r}. Name the folder with one folder per class: "
                f"perhaps {spec.path}/{label}, or the one above it."
            )
        return found
    _check_reading(spec, named.data)
    if named.data == "digits":
        from sklearn.datasets import load_digits  # noqa: PLC0415  (each source imports only what it needs)

        digits = load_digits()  # grey values from 0 to 16
        part = Part(torch.from_numpy(digits.images.astype(np.uint8)), digits.target.astype(np.int64))
        return Dataset("digits", part)
    from cldnet.data.catalog import load_set  # noqa: PLC0415

    options = {**named.reading, **spec.reading, **(photos if "size" in _READING.get(named.data, ()) else {})}
    return load_set(named.data, None if data is None else Path(data), **options)


def read_source(spec: StreamSpec, **photos: Any) -> Dataset:
    """Read the files of one of `SOURCES`; ``photos`` are options for reading a folder."""
    _check_reading(spec, spec.name)
    path = Path(spec.path or "").expanduser()
    if spec.name == "folder":
        from cldnet.data.images.cache import read_images  # noqa: PLC0415

        return read_images(path, **spec.reading, **photos)
    from cldnet.data.files import read_arrays, read_table  # noqa: PLC0415

    return read_arrays(path) if spec.name == "arrays" else read_table(path, **spec.reading)


def _check_reading(spec: StreamSpec, source: str) -> None:
    useless = set(spec.reading) - set(_READING.get(source, ()))
    if useless:
        raise ValueError(f"{spec.name} does not take the option {min(useless)!r}: leave it out.")


def _splitting(spec: StreamSpec, named: NamedStream | None, data: Dataset, seed: int | None) -> dict[str, Any]:
    """Options of `Stream.from_dataset`, from the text and the stream's defaults."""
    chosen: dict[str, Any] = {"seed": seed, **spec.split}
    if "test_size" in chosen and data.test is not None:
        raise ValueError(f"{data.name} has a test part, so test_size has no effect: leave it out.")
    if len({"tasks", "split", "classes_per_task"} & set(chosen)) > 1 or {"split", "first"} <= set(chosen):
        raise ValueError(
            f"{spec.base!r} sets the classes per task twice: give one of tasks, classes_per_task and split."
        )
    if data.groups is not None and not spec.split:
        return {"seed": seed, **_grouped(data.groups, seed)}
    classes = np.unique(data.train.y).tolist()
    if "order" in chosen:
        chosen.update(_order(chosen.pop("order"), classes, seed))
    count = len(chosen["order"]) if isinstance(chosen.get("order"), list) else len(classes)
    if not {"tasks", "classes_per_task", "split"} & set(chosen):
        # Two classes per task, but at most ten tasks: what most papers do.
        usual = len(classes) // named.tasks if named else max(2, ceil(count / 10))
        chosen["classes_per_task"] = max(usual, 1)
    if "tasks" in chosen:
        chosen["split"] = _equal(count, chosen.pop("tasks"), chosen.pop("first", None))
    return chosen


def _grouped(groups: Sequence[Sequence[Any]], seed: int | None) -> dict[str, Any]:
    """One task per group of classes: the groups in the order of a seed, and the classes within each."""
    draw = None if seed is None else generator(seed)

    def shuffled(values: Sequence[Any]) -> list[Any]:
        return [*values] if draw is None else [values[n] for n in torch.randperm(len(values), generator=draw).tolist()]

    tasks = [shuffled(group) for group in shuffled(groups)]
    return {"order": [label for task in tasks for label in task], "split": [len(task) for task in tasks]}


def _equal(count: int, tasks: int, first: int | None) -> list[int]:
    """Sizes of tasks, nearly equal after an optional first one."""
    begin = [] if first is None else [first]
    left, others = count - sum(begin), tasks - len(begin)
    if others < 1 or left < others:
        raise ValueError(f"tasks={tasks} is not possible: there are {count} classes, and every task has at least 1.")
    fewer, more = divmod(left, others)
    return [*begin, *(fewer + (task < more) for task in range(others))]


#: The task orders A to E of APD's released code for CIFAR-100: a task is a block of ten classes, which are sorted.
_APD_ORDERS = ("0123456789", "1745208693", "7051843629", "5829043761", "2954806137")


def _order(text: str, classes: list[Any], seed: int | None) -> dict[str, Any]:
    """Parse a class order: sorted, numpy:SEED, apd, a JSON file, or labels joined by plus signs."""
    if text == "sorted":
        return {"seed": None}
    if text == "apd":
        if len(classes) != 100:
            raise ValueError(
                f"order=apd is for 100 classes, in ten blocks, and there are {len(classes)}: leave it out."
            )
        blocks = _APD_ORDERS[(seed or 0) % len(_APD_ORDERS)]
        return {"order": [label for block in blocks for label in classes[10 * int(block) : 10 * int(block) + 10]]}
    if text.startswith("numpy:"):
        return {"order": text}
    if not text.endswith(".json"):
        by_name = {str(label): label for label in classes}
        return {"order": [by_name.get(name, name) for name in text.split("+")]}
    path = Path(text).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path} with a class order. Check the path.")
    try:
        order = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        order = None
    if not isinstance(order, list) or not all(type(label) in (int, str) for label in order):
        raise ValueError(f'{path} should hold a JSON list of labels, as [3, 1, 4] or ["cat", "dog"].')
    return {"order": order}


#: The name of random inputs, which need no download.
NOISE = "noise"
_NOISE_ROWS = 2000

#: Streams by the names of their data: ``fashion-mnist`` and ``fmnist`` as ``split-fmnist``.
_BY_DATA = {
    name: stream
    for stream, named in STREAMS.items()
    if stream.startswith("split-")
    for name in (named.data, stream.removeprefix("split-"))
}


@dataclass(frozen=True, eq=False)
class Outside:
    """Unlabelled inputs from outside a stream, for methods that use them, and how they are recorded.

    ``name`` has no folders; ``hash`` is that of the stream that the inputs were read as, or ``"noise"``; ``data`` is the
    digest of their data set, or of the noise itself.
    """

    name: str
    hash: str
    data: str
    x: Tensor

    def to_json(self) -> dict[str, str | int]:
        """Describe the inputs for a result file."""
        return {"name": self.name, "hash": self.hash, "data": self.data, "rows": len(self.x)}


def shown_outside(text: str) -> str:
    """Return the text without the folders of a path, which are private."""
    return StreamSpec.parse(text, SOURCES).shown if text else ""


def read_outside(text: str, stream: Stream, data: Path | None = None) -> Outside:
    """Read inputs for a stream from elsewhere: the training inputs of a data set, never its test inputs or labels.

    ``text`` is a data set, as ``"fmnist"``; a stream, as ``"split-fmnist,train=0.5"`` or ``"folder:PATH"``; or ``"noise"``:
    2,000 inputs drawn uniformly between the smallest and the largest value of the first task's training inputs.
    """
    if text == NOISE:
        return _noise(stream)
    found = stream_by_name(check_outside(text), None, data=data)
    if found.train_part.digest == stream.train_part.digest:
        raise ValueError(f"outside={text!r} is the data of {stream.name} itself: name other data.")
    if found.input_shape != stream.input_shape:
        raise ValueError(
            f"outside={text!r} has inputs of shape {found.input_shape}, and {stream.name} of {stream.input_shape}: name data "
            f"of the same shape, or {NOISE!r}."
        )
    if (found.train_part.x.dtype == torch.uint8) != (stream.train_part.x.dtype == torch.uint8):
        raise ValueError(
            f"Either outside={text!r} or {stream.name} has pixels from 0 to 255, and the other numbers of another range: name "
            "data in the same units."
        )
    return Outside(shown_outside(text), found.hash, found.data_digest, found.train.x)


def hash_outside(text: str, data: Path | None = None) -> str:
    """`Outside.hash` of the inputs that a text names; empty for an empty text."""
    return text if text in ("", NOISE) else stream_by_name(check_outside(text), None, data=data).hash


def check_outside(text: str) -> str:
    """Return the stream that a text names, perhaps by its data set, or raise."""
    spec = StreamSpec.parse(text, SOURCES)
    if spec.name == NOISE and spec.options:
        raise ValueError(f"outside={text!r} has options, but noise takes none: write {NOISE!r}.")
    if spec.path is not None or spec.name in STREAMS or spec.name == NOISE:
        return text
    if spec.name not in _BY_DATA:
        known = [NOISE, *_BY_DATA, *STREAMS, *SOURCES]
        raise ValueError(f"There is no data set {spec.name!r}. {nearest_names(spec.name, known)}")
    return _BY_DATA[spec.name] + text.removeprefix(spec.name)


def _noise(stream: Stream) -> Outside:
    first = stream[0].train.x
    low, high = first.amin(), first.amax()
    drawn = torch.rand((_NOISE_ROWS, *stream.input_shape), generator=generator(0))
    if first.is_floating_point():
        x = (low + drawn * (high - low)).to(first.dtype)
    else:  # integers, both ends included
        x = (low + (drawn * (high.double() - low.double() + 1)).floor()).to(first.dtype)
    return Outside(NOISE, NOISE, Dataset(NOISE, Part(x, np.zeros(len(x), np.int64))).digest, x)
