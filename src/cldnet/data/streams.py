"""Streams by name, with options behind the name: ``split-cifar100,first=50,classes_per_task=10,online=10``."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from cldnet.data.dataset import Dataset, Part
from cldnet.data.domains import domains, permutations, rotations
from cldnet.data.spec import StreamSpec
from cldnet.data.stream import Stream
from cldnet.data.variants import blurry, long_tailed, online, returning, thinned, until
from cldnet.names import nearest_names

__all__ = ["SOURCES", "STREAMS", "NamedStream", "split_digits", "stream_by_name"]


@dataclass(frozen=True)
class NamedStream:
    """A stream's data set, how it is cut into tasks, and what it is in one line.

    Attributes
    ----------
    summary : str
    data : str
        Name of a known data set; ``"digits"`` is scikit-learn's.
    tasks : int
        Number of tasks where the user does not say otherwise.
    changes : callable, optional
        For domains: the change of every task, from their number and a seed.
    reading : dict
        Options of the reader.
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
    "permuted-mnist": NamedStream("MNIST, 10 tasks, each with its own order of pixels", "mnist", 10, permutations),
    "rotated-mnist": NamedStream("MNIST, 10 tasks, each turned by its own angle", "mnist", 10, rotations),
}

#: Streams from what lies on a disk, ``kind:PATH``.
SOURCES: Mapping[str, str] = {
    "folder": "a folder of photos, one folder a class: folder:PATH",
    "arrays": "arrays X and y in one .npz file, or in a folder of .npy files: arrays:PATH",
    "table": "a CSV or Parquet table with a label column: table:PATH,label=NAME",
}

#: The reader's options that a user may set.
_READING: Mapping[str, Sequence[str]] = {
    "cifar-100": ("labels",),
    "table": ("label",),
    **dict.fromkeys(("folder", "imagenet-r", "tiny-imagenet", "cub-200"), ("size", "resize")),
}

_VARIANTS: Mapping[str, Callable[[Stream, Any, int], Stream]] = {
    "online": lambda stream, size, seed: online(stream, size),
    "blurry": blurry,
    "returning": returning,
    "long_tail": long_tailed,
    "validation": lambda stream, share, seed: stream.with_validation(share),
    "train": lambda stream, share, seed: thinned(stream, share),
    "until": lambda stream, count, seed: until(stream, count),
}


def split_digits(seed: int | None = 0) -> Stream:
    """Split Digits: scikit-learn's 1,797 real 8×8 images of digits, five tasks of two classes.

    A quarter of every class is the test part, the same for every class order.

    Examples
    --------
    >>> stream = split_digits(seed=0)
    >>> len(stream), len(stream.train), len(stream.test), stream.input_shape
    (5, 1347, 450, (8, 8))
    """
    return stream_by_name("split-digits", seed)


def stream_by_name(
    text: str,
    seed: int | None = 0,
    *,
    data: Path | str | None = None,
    on_bad: Literal["skip", "stop"] = "stop",
    on_progress: Callable[[int, int], None] | None = None,
) -> Stream:
    """Make a stream by its name and options, with the class order of a seed.

    Parameters
    ----------
    text : str
        A name out of `STREAMS`, or a kind out of `SOURCES` with a path; options follow behind commas (see
        `cldnet.data.spec`).
    seed : int or None
        Seed of the class order (``None``: sorted), of domains, and of what `cldnet.data.variants` draw.
    data : path, optional
        Folder in which data sets are looked for first; see `cldnet.data.find.search_path`.
    on_bad : {"stop", "skip"}
        What is done about photos that cannot be read.
    on_progress : callable, optional
        Told how many photos are read, and of how many.

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
            raise ValueError(f"All tasks of {spec.name} have all classes: of the splits it takes only tasks=N.")
        stream = domains(found, named.changes(spec.split.get("tasks", named.tasks), seed or 0), spec.base)
    else:
        stream = Stream.from_dataset(found, name=spec.base, **_splitting(spec, named, found, seed))
    for option, value in spec.variants.items():
        stream = _VARIANTS[option](stream, value, seed or 0)
    return stream


def _read(spec: StreamSpec, named: NamedStream | None, data: Path | str | None, photos: Mapping[str, Any]) -> Dataset:
    """Read the data of a stream with the reader that it needs."""
    source = spec.name if named is None else named.data
    useless = set(spec.reading) - set(_READING.get(source, ()))
    if useless:
        raise ValueError(f"{spec.name} has no use for the option {min(useless)!r}: leave it out.")
    if source == "digits":
        return _digits()
    if named is not None:
        from cldnet.data.find import load_set  # noqa: PLC0415  (each source loads only what it needs)

        options = {**named.reading, **spec.reading}
        return load_set(
            source,
            None if data is None else Path(data),
            **options,
            **(photos if "size" in _READING.get(source, ()) else {}),
        )
    path = Path(spec.path or "").expanduser()
    if spec.name == "folder":
        from cldnet.data.images.reader import read_images  # noqa: PLC0415

        return _several_classes(read_images(path, **spec.reading, **photos), path)
    if spec.name == "arrays":
        from cldnet.data.files.arrayfiles import read_arrays  # noqa: PLC0415

        return read_arrays(path, **spec.reading)
    from cldnet.data.files.tables import read_table  # noqa: PLC0415

    return read_table(path, **spec.reading)


def _several_classes(photos: Dataset, folder: Path) -> Dataset:
    """Refuse photos of one class: most often the user pointed one level too high, or too low."""
    classes = sorted(set(photos.train.y.tolist()))
    if len(classes) == 1:
        raise ValueError(
            f"All photos under {folder} are of one class, {classes[0]!r}. Name the folder that holds a folder for every "
            f"class: perhaps {folder / classes[0]}, or the one above it."
        )
    return photos


def _digits() -> Dataset:
    from sklearn.datasets import load_digits  # noqa: PLC0415  (heavy, and only this stream needs it)

    digits = load_digits()
    images = digits.images.astype(np.uint8)  # grey values from 0 to 16
    return Dataset("digits", Part(torch.from_numpy(images), digits.target.astype(np.int64)))


def _splitting(spec: StreamSpec, named: NamedStream | None, data: Dataset, seed: int | None) -> dict[str, Any]:
    """Options of `Stream.from_dataset`, from what the user said and what the stream is."""
    chosen: dict[str, Any] = {"seed": seed, **spec.split}
    if "test_size" in chosen and data.test is not None:
        raise ValueError(f"{data.name} comes with a test part, so test_size has no meaning: leave it out.")
    if len({"tasks", "split", "classes_per_task"} & set(chosen)) > 1 or {"split", "first"} <= set(chosen):
        raise ValueError(
            f"{spec.base!r} says twice how many classes a task has: give tasks, classes_per_task or split."
        )
    classes = np.unique(data.train.y).tolist()
    if "order" in chosen:
        chosen.update(_order(chosen.pop("order"), classes))
    count = len(chosen["order"]) if isinstance(chosen.get("order"), list) else len(classes)
    if not {"tasks", "classes_per_task", "split"} & set(chosen):
        # Two classes a task unless that makes more than ten tasks: what most papers do.
        usual = len(classes) // named.tasks if named else max(2, ceil(count / 10))
        chosen["classes_per_task"] = max(usual, 1)
    if "tasks" in chosen:
        chosen["split"] = _equal(count, chosen.pop("tasks"), chosen.pop("first", None))
    return chosen


def _equal(count: int, tasks: int, first: int | None) -> list[int]:
    """Sizes of a number of tasks, as equal as can be behind a first one that may be given."""
    begin = [] if first is None else [first]
    left, others = count - sum(begin), tasks - len(begin)
    if others < 1 or left < others:
        raise ValueError(f"tasks={tasks} cannot be: there are {count} classes, and every task has at least 1.")
    fewer, more = divmod(left, others)
    return [*begin, *(fewer + (task < more) for task in range(others))]


def _order(text: str, classes: list[Any]) -> dict[str, Any]:
    """A class order from its text: sorted, numpy:SEED, a JSON file, or labels with a plus between them."""
    if text == "sorted":
        return {"seed": None}
    if text.startswith("numpy:"):
        return {"order": text}
    if text.endswith(".json"):
        return {"order": _order_in(Path(text).expanduser())}
    by_name = {str(label): label for label in classes}
    return {"order": [by_name.get(name, name) for name in text.split("+")]}


def _order_in(path: Path) -> list[Any]:
    if not path.is_file():
        raise FileNotFoundError(f"There is no file {path} with a class order. Check the path.")
    try:
        order = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON ({error}); expected a list of labels.") from error
    if not isinstance(order, list) or not all(type(label) in (int, str) for label in order):
        raise ValueError(f'{path} should hold a list of labels, as [3, 1, 4] or ["cat", "dog"].')
    return order
