"""Learn more samples than one process can: sum them shard by shard, on an engine, and solve once."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from sklearn.base import clone

from cldnet.data.labels import LabelTable
from cldnet.distributed.engines import check_engine, opened_engine, reduce_shards
from cldnet.distributed.shards import PhotoShard, Shard, Source, find_shards
from cldnet.estimator.accumulator import Accumulator
from cldnet.estimator.classifier import CLDNetClassifier
from cldnet.estimator.history import History, Manifest, ShardRecord, check_name
from cldnet.estimator.lessons import Lesson, Lessons
from cldnet.estimator.statistics import Statistics
from cldnet.estimator.teaching import label_as, new_classifier
from cldnet.nets import FeatureMap
from cldnet.storage import write_atomically
from cldnet.storage.header import parse_json
from cldnet.storage.maps import load_map

__all__ = ["fit_shards"]

_log = logging.getLogger("cldnet")


class Job(NamedTuple):
    """A shard, its place among all, and the name of the file that its sums may be kept in."""

    place: int
    shard: Shard
    key: str


class Entry(NamedTuple):
    """What is known of a shard that was summed."""

    place: int
    samples: int
    digest: str | None
    labels: tuple[Any, ...]  # in the order in which they came
    skipped: tuple[tuple[str, str], ...]  # files that could not be read, and why


@dataclass(frozen=True)
class Sums:
    """The sums of some shards; None for shards without a sample."""

    statistics: Statistics | None
    lesson: Lesson
    entries: tuple[Entry, ...]

    def plus(self, other: Sums) -> Sums:
        """The sums of both, whatever shards they are of: shards that are given twice are found at the end."""
        both, parts = None, [each.statistics for each in (self, other) if each.statistics is not None]
        if parts:
            both = parts[0] if len(parts) == 1 else parts[0].add(parts[1], allow_duplicates=True)
        return Sums(both, self.lesson.plus(other.lesson), (*self.entries, *other.entries))


@dataclass(frozen=True)
class SumShard:
    """The task: a pure function of a shard. It reads the shard in batches and sums them over a fitted map.

    With a ``folder`` the sums are written there, and read from there if they are there already. ``kind`` is the type of the
    model's labels, if it has some.
    """

    features: FeatureMap
    gram: str | int
    dtype: str
    kind: str | None
    folder: Path | None

    def __call__(self, job: Job) -> Sums:
        kept = None if self.folder is None else self.folder / job.key
        if kept is not None and (found := _read(kept, job.place)) is not None:
            return found
        sums, skipped = Accumulator.over(self.features, gram=self.gram, dtype=self.dtype), list[tuple[str, str]]()
        for X, y in job.shard.batches(on_skip=lambda name, reason: skipped.append((name, reason))):
            sums.add(X, self._labels(y))
        made = _summed(sums, job.place, tuple(skipped))
        if kept is not None:
            _write(kept, made)
        return made

    def _labels(self, y: Any) -> Any:
        """Labels in the type of the model's: a folder's name is text, and in a table 1 is a number."""
        if self.kind is None:
            return y
        own = {label: label_as(str(label), self.kind) for label in {*y.tolist()}}
        return np.array([own[label] for label in y.tolist()])


def _summed(sums: Accumulator, place: int, skipped: tuple[tuple[str, str], ...]) -> Sums:
    samples, labels = sum(sums.counts.values()), tuple(sums.labels.by_row.tolist())
    statistics = None if sums.inputs is None else replace(sums.statistics(), lessons=Lessons(), history=History())
    return Sums(statistics, sums.lesson, (Entry(place, samples, sums.lesson.digest, labels, skipped),))


def _add(one: Sums, other: Sums) -> Sums:
    return one.plus(other)


# --- sums of shards on disk ---


def _write(kept: Path, made: Sums) -> None:
    """Write the sums, then what belongs to them: that file says that both are there."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    if made.statistics is not None:
        made.statistics.save(kept.with_suffix(".sums"))
    (entry,) = made.entries
    about = {"lesson": made.lesson.to_json(), "samples": entry.samples, "skipped": entry.skipped}
    write_atomically(kept.with_suffix(".json"), json.dumps(about).encode())


def _read(kept: Path, place: int) -> Sums | None:
    """Read what `_write` wrote, as untrusted input; None if it is not there."""
    about = kept.with_suffix(".json")
    if not about.is_file():
        return None
    try:
        content = parse_json(about.read_text("utf-8"))
        lesson, samples = Lesson.from_json(content["lesson"]), content["samples"]
        skipped = tuple((str(name), str(reason)) for name, reason in content["skipped"])
        statistics = Statistics.load(kept.with_suffix(".sums")) if samples else None
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{str(kept)!r} has no sums of a shard ({error}): delete it, and start again.") from error
    labels = () if statistics is None else tuple(statistics.labels.by_row.tolist())
    return Sums(statistics, lesson, (Entry(place, samples, lesson.digest, labels, skipped),))


# --- the driver ---


def fit_shards(
    source: Source | Sequence[Source] | Sequence[Shard],
    *,
    label: str | None = None,
    map: FeatureMap | str | os.PathLike[str] | None = None,
    clf: CLDNetClassifier | None = None,
    engine: str = "local",
    workers: int | None = None,
    address: str | None = None,
    rows: int = 100_000,
    sample: int = 10_000,
    sums: str | os.PathLike[str] | None = None,
    name: str | None = None,
    allow_duplicates: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
    on_skip: Callable[[str, str], None] | None = None,
) -> CLDNetClassifier:
    """Learn the samples of files that are too large for one process, as one lesson.

    Every shard is summed by itself, the sums are added up, and the model is, bit for bit, the one that a single process would
    have: whatever the engine, the number of workers and the order in which they finish. A task that is lost is run again, and
    counts once. If anything fails, the model stays as it was.

    Parameters
    ----------
    source : path-like, list of them, or list of Shard
        Parquet or CSV files, ``X.npy`` with ``y.npy``, folders of photos, patterns such as ``'data/*.parquet'``, or URLs that
        fsspec opens; or what `cldnet.distributed.shards.find_shards` has found. All workers have to be able to read it.
    label : str, optional
        Of tables: the column of labels.
    map : FeatureMap or path-like, optional
        A fitted feature map, or the file that `cldnet.save_map` wrote. By default it is fitted on a sample, as ``clf`` says.
    clf : CLDNetClassifier, optional
        The classifier to teach, fitted or not; the fitted map becomes the ``backbone`` of a new one. By default one with
        ``random_state=0``.
    engine : {"local", "dask", "ray"}
        Processes of this machine, or a cluster.
    workers : int, optional
        Number of processes; by default one per core. A cluster at an ``address`` has its own.
    address : str, optional
        Where the cluster is. By default a small one is started on this machine.
    rows : int
        Samples of a shard, as far as the files allow it.
    sample : int
        Samples that a new model chooses and fits its map on: as many from the beginning of each shard.
    sums : path-like, optional
        A folder, visible to all workers, for the sums of each shard. A run that was killed goes on from there.
    name : str, optional
        Name of the lesson.
    allow_duplicates : bool
        Learn shards that are given twice or were learned before; their samples count twice then.
    on_progress : callable, optional
        Called with the number of finished shards, and of all.
    on_skip : callable, optional
        Called with every photo that cannot be read, and the reason.

    Returns
    -------
    CLDNetClassifier
        ``clf``, which has learned. Its last lesson has a list of the shards: `CLDNetClassifier.lessons_`.

    Examples
    --------
    >>> import tempfile
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.normal(size=(300, 4)), np.repeat([0, 1, 2], 100)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/X.npy", X + 3 * y[:, None])
    ...     np.save(f"{folder}/y.npy", y)
    ...     clf = fit_shards(folder, rows=100, workers=1)
    >>> clf.predict([[0.0, 0, 0, 0], [6.0, 6, 6, 6]]), clf.lessons_[-1].manifest.count
    (array([0, 2]), 3)
    """
    check_name(name)
    check_engine(engine, workers, address)
    map = load_map(map) if isinstance(map, str | os.PathLike) else map
    clf, shards = _listed(clf, source, label, rows, map)
    _check_can_learn(clf, map, sums)
    fitted = _is_fitted(clf)
    features, fitted_on = _map_of(clf, map, shards, sample)
    kind = clf.model_.labels.kind if fitted else None
    task = SumShard(features, clf.gram, clf.dtype, kind, None if sums is None else Path(sums).resolve())
    jobs = [Job(place, shard, _key(task, shard)) for place, shard in enumerate(shards)]
    tell = on_progress or (lambda done, total: None)
    tell(0, len(jobs))
    with opened_engine(engine, task, _add, workers=workers, address=address) as opened:
        total = reduce_shards(opened, jobs, lambda done: tell(done, len(jobs)))
    entries = sorted(total.entries, key=lambda entry: entry.place)
    if [entry.place for entry in entries] != [job.place for job in jobs]:
        raise RuntimeError("A shard was lost, or was counted twice. Nothing was learned: please report this.")
    for skipped in (each for entry in entries for each in entry.skipped):
        if on_skip is not None:
            on_skip(*skipped)
    if not allow_duplicates:
        _check_twice(shards, entries)
        _check_learned_before(clf, shards, entries)
    whole = _one_lesson(total, shards, entries, name, fitted_on)
    return _merged(clf, features, whole, allow_duplicates)


def _is_fitted(clf: CLDNetClassifier) -> bool:
    return getattr(clf, "model_", None) is not None


def _listed(
    clf: CLDNetClassifier | None,
    source: Source | Sequence[Source] | Sequence[Shard],
    label: str | None,
    rows: int,
    given: Any,
) -> tuple[CLDNetClassifier, list[Shard]]:
    """The classifier to teach and the shards, whose photos have the size that its map takes."""
    shards = [each for each in source if isinstance(each, Shard)] if isinstance(source, Sequence) else []
    if not shards:
        shards = find_shards(cast("Source | Sequence[Source]", source), label=label, rows=rows)
    clf = clf or new_classifier("photo" if shards[0].noun == "photo" and given is None else "row")
    shape = clf.model_.inputs.shape if _is_fitted(clf) else getattr(given or clf.backbone, "input_shape", ())
    return clf, [replace(each, side=shape[-1]) if isinstance(each, PhotoShard) and shape else each for each in shards]


def _check_can_learn(clf: CLDNetClassifier, given: Any, sums: Any) -> None:
    """Refuse what would only fail after all shards were summed."""
    if clf.solver != "exact":
        raise ValueError(f"solver={clf.solver!r} keeps no sums that could be added up: use solver='exact'.")
    if clf.receipts:
        raise ValueError("receipts=True keeps a digest of every sample, and shards return sums alone: leave it out.")
    if _is_fitted(clf) and given is not None:
        raise ValueError("The model has a feature map already: leave map out.")
    own = isinstance(clf.backbone, FeatureMap) and clf.backbone.fitted
    if sums is not None and clf.random_state is None and given is None and not (own or _is_fitted(clf)):
        raise ValueError(
            "To go on from the sums of shards, a run needs the same map again: give clf a random_state, or map."
        )


def _map_of(
    clf: CLDNetClassifier, given: FeatureMap | None, shards: Sequence[Shard], sample: int
) -> tuple[FeatureMap, frozenset[Any]]:
    """The fitted map to sum over, and the labels of the samples that it was fitted on here."""
    if _is_fitted(clf):
        return clf.feature_map_, frozenset()
    found = clf.backbone if given is None and isinstance(clf.backbone, FeatureMap) else given
    if found is not None and found.fitted:
        return found, frozenset()
    if given is not None:
        raise ValueError(
            f"The map, a {type(given).__name__}, is not fitted: call its fit(X) first, or pass it as clf's backbone."
        )
    _log.info("Fitting the feature map on a sample of %d shards", len(shards))
    scout, each = clone(clf), -(-sample // len(shards))
    with scout.session():
        for shard in shards:
            _take(scout, shard, each)
    return scout.feature_map_, frozenset(scout.model_.map_labels)


def _take(scout: CLDNetClassifier, shard: Shard, count: int) -> None:
    """Teach a classifier the first samples of a shard."""
    for X, y in shard.batches(size=min(count, 8192)):
        scout.partial_fit(X[:count], y[:count])
        count -= len(y)
        if count <= 0:
            return


def _key(task: SumShard, shard: Shard) -> str:
    """Name of the file with a shard's sums: that of the same samples over the same map."""
    changed = os.stat(shard.path).st_mtime_ns if os.path.exists(shard.path) else 0
    about = (task.features.map_id, task.gram, task.dtype, task.kind, repr(shard), changed)
    return hashlib.sha256(repr(about).encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _check_twice(shards: Sequence[Shard], entries: Sequence[Entry]) -> None:
    """Refuse two shards with the same samples."""
    first: dict[str, Shard] = {}
    for shard, entry in zip(shards, entries, strict=True):
        other = shard if entry.digest is None else first.setdefault(entry.digest, shard)
        if other is not shard:
            raise ValueError(
                f"{shard.describe()} has the same samples as {other.describe()}. Nothing was learned. Leave one out, or pass "
                "allow_duplicates=True (--allow-duplicates) if each should count twice."
            )


def _check_learned_before(clf: CLDNetClassifier, shards: Sequence[Shard], entries: Sequence[Entry]) -> None:
    """Refuse shards that a lesson of the model has, as far as its history says."""
    records = clf.lessons_ if _is_fitted(clf) else []
    for shard, entry in zip(shards, entries, strict=True):
        before = next((one for one in records if one.has(entry.digest)), None)
        if before is not None:
            when = f"lesson {before.number} ({before.date})" if before.name is None else f"lesson {before.name!r}"
            raise ValueError(
                f"{shard.describe()} was learned before, in {when}. Nothing was learned. Leave it out, or pass "
                "allow_duplicates=True (--allow-duplicates) if its samples should count twice."
            )


def _one_lesson(
    total: Sums, shards: Sequence[Shard], entries: Sequence[Entry], name: str | None, fitted_on: frozenset[Any]
) -> Statistics:
    """The sums of all shards as those of one lesson, with the classes in the order of the shards."""
    if total.statistics is None:
        raise ValueError("The shards have no samples to learn.")
    labels = list(dict.fromkeys(label for entry in entries for label in entry.labels))
    ordered = LabelTable()
    ordered.learn(np.array(labels))
    ordered.take_over(total.statistics.labels)
    rows = torch.from_numpy(total.statistics.labels.known_rows(labels))
    tensors = {**total.statistics.tensors}
    tensors |= {each: tensors[each][rows] for each in ("class_sums", "class_weights")}
    lesson = replace(total.lesson, name=name, apart=True)
    lessons, counts = lesson.learned(Lessons()), {label: count or 0 for label, count in ordered.counts.items()}
    history = lesson.noted(History(), "learned", {label: counts[label] for label in labels}, _manifest(shards, entries))
    whole = replace(total.statistics, labels=ordered, tensors=tensors, fitted_on=fitted_on)
    return replace(whole, lessons=lessons, history=history)


def _manifest(shards: Sequence[Shard], entries: Sequence[Entry]) -> Manifest:
    """The list of shards, whose files are named relative to the folder that all are in."""
    folder = os.path.commonpath([os.path.dirname(shard.path) for shard in shards]) if shards else ""
    return Manifest.of(
        [
            ShardRecord(
                os.path.relpath(shard.path, folder or None), shard.first, entry.samples, shard.size, entry.digest
            )
            for shard, entry in zip(shards, entries, strict=True)
        ]
    )


def _merged(clf: CLDNetClassifier, features: FeatureMap, whole: Statistics, allow_duplicates: bool) -> CLDNetClassifier:
    """Teach the classifier the sums; if they are refused, it is as it was."""
    before = clf.backbone
    if not _is_fitted(clf):
        clf.set_params(backbone=features)
    try:
        return clf.merge([whole], allow_duplicates=allow_duplicates)
    except BaseException:
        clf.set_params(backbone=before)
        raise
