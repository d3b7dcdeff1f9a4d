"""Shards that are summed on engines: the same bits as one process, whatever fails on the way."""

from __future__ import annotations

import os
import pickle
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cldnet import CLDNetClassifier, save_map
from cldnet.distributed import fit
from cldnet.distributed.engines import EngineError, reduce_shards
from cldnet.distributed.fit import Job, SumShard, fit_shards
from cldnet.distributed.shards import find_shards
from cldnet.estimator.statistics import Statistics
from cldnet.nets import RandomReLU

ROOT = Path(__file__).parents[2]
RNG = np.random.default_rng(0)
Y = RNG.integers(0, 5, size=900)
X = (RNG.normal(size=(900, 6)) + Y[:, None]).astype(np.float32)
#: Those that the tests of a machine without them leave out.
ENGINES = [
    "local",
    pytest.param(
        "dask",
        marks=pytest.mark.skipif("not __import__('importlib.util').util.find_spec('distributed')", reason="needs Dask"),
    ),
    pytest.param(
        "ray", marks=pytest.mark.skipif("not __import__('importlib.util').util.find_spec('ray')", reason="needs Ray")
    ),
]


@pytest.fixture(scope="module")
def features() -> RandomReLU:
    made = RandomReLU((6,), features=40, seed=0)
    made.fit(torch.from_numpy(X[:50]))
    return made


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("arrays")
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", Y)
    return folder


@pytest.fixture(scope="module")
def whole(features: RandomReLU) -> CLDNetClassifier:
    return CLDNetClassifier(backbone=features, random_state=0).partial_fit(X, Y)


def assert_same(clf: CLDNetClassifier, other: CLDNetClassifier) -> None:
    one, two = clf.statistics(), other.statistics()
    assert one.labels.by_row.tolist() == two.labels.by_row.tolist()
    assert all(torch.equal(one.tensors[name], two.tensors[name]) for name in two.tensors)
    assert one.labels.counts == two.labels.counts
    assert clf.lessons_[-1].digest == other.lessons_[-1].digest
    assert (clf.predict(X) == other.predict(X)).all()


@dataclass(frozen=True)
class KillsItsWorker(SumShard):
    """A task whose process ends in the middle of the third shard, the first time."""

    marker: str = ""

    def __call__(self, job: Job) -> fit.Sums:
        marker = Path(os.environ["CLDNET_TEST_MARKER"])
        if job.place == 2 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(job)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_worker_that_is_killed_changes_no_bit(
    engine: str,
    features: RandomReLU,
    whole: CLDNetClassifier,
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    marker = tmp_path / "killed"
    monkeypatch.setenv("CLDNET_TEST_MARKER", str(marker))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    monkeypatch.setattr(fit, "SumShard", KillsItsWorker)
    done: list[int] = []
    clf = fit_shards(
        source, map=features, engine=engine, workers=2, rows=200, on_progress=lambda count, _: done.append(count)
    )
    assert marker.exists()
    assert_same(clf, whole)
    assert done == sorted(done)
    assert done[-1] == 5


@pytest.mark.parametrize("rows", [100, 450, 10_000])
def test_shards_of_any_size_are_what_one_process_learns(
    features: RandomReLU, whole: CLDNetClassifier, source: Path, rows: int
) -> None:
    clf = fit_shards(source, map=features, workers=1, rows=rows)
    assert_same(clf, whole)
    manifest = clf.lessons_[-1].manifest
    assert manifest is not None
    assert manifest.count == len(manifest.shards) == -(-900 // min(rows, 900))
    assert sum(shard.rows for shard in manifest.shards) == 900


class Shuffled:
    """An engine that finishes its tasks in a random order."""

    workers = 3

    def __init__(self, task: Any, add: Any, seed: int) -> None:
        self.task, self.sum, self.rng = task, add, np.random.default_rng(seed)

    def submit(self, part: Any) -> list[Any]:
        return [self.task(part)]

    def add(self, one: list[Any], other: list[Any]) -> list[Any]:
        return [self.sum(one[0], other[0])]

    def wait(self, handles: Any) -> list[Any]:
        return [handles[self.rng.integers(len(handles))]]

    def result(self, handle: list[Any]) -> Any:
        return handle[0]


@pytest.mark.parametrize("seed", range(5))
def test_the_order_of_the_sums_does_not_matter(
    features: RandomReLU, whole: CLDNetClassifier, source: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        fit,
        "reduce_shards",
        lambda engine, jobs, tell: reduce_shards(Shuffled(engine._run, engine._sum, seed), jobs, tell),
    )  # type: ignore[arg-type]
    assert_same(fit_shards(source, map=features, workers=1, rows=100), whole)


def test_a_driver_that_is_killed_goes_on_from_the_finished_shards(
    features: RandomReLU, whole: CLDNetClassifier, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    real = SumShard.__call__

    def stopping(self: SumShard, job: Job) -> fit.Sums:
        if len(read) == 3:
            raise KeyboardInterrupt
        read.append(job.place)
        return real(self, job)

    with monkeypatch.context() as patched:
        patched.setattr(SumShard, "__call__", stopping)
        with pytest.raises(KeyboardInterrupt):
            fit_shards(source, map=features, workers=1, rows=200, sums=tmp_path)
    assert len(list(tmp_path.glob("*.sums"))) == 3
    monkeypatch.setattr(type(find_shards(source)[0]), "batches", lambda self, **_: read.append(self.first) or iter(()))
    assert len(list(tmp_path.glob("*.sums"))) == 3
    monkeypatch.undo()
    read.clear()
    batches = type(find_shards(source)[0]).batches
    monkeypatch.setattr(
        type(find_shards(source)[0]),
        "batches",
        lambda self, *args, **options: read.append(self.first) or batches(self, *args, **options),
    )
    assert_same(fit_shards(source, map=features, workers=1, rows=200, sums=tmp_path), whole)
    assert read == [600, 800]


@pytest.mark.parametrize(
    "content", [b"{}", b'{"lesson": ["zz", 1], "samples": 1, "skipped": []}', b"[", b'{"lesson": 3}']
)
def test_a_spoiled_sum_of_a_shard_is_a_sentence(
    features: RandomReLU, source: Path, tmp_path: Path, content: bytes
) -> None:
    fit_shards(source, map=features, workers=1, rows=500, sums=tmp_path)
    next(tmp_path.glob("*.json")).write_bytes(content)
    with pytest.raises(ValueError, match="delete it"):
        fit_shards(source, map=features, workers=1, rows=500, sums=tmp_path)


def test_a_changed_file_is_summed_again(features: RandomReLU, tmp_path: Path) -> None:
    np.save(tmp_path / "X.npy", X[:100])
    np.save(tmp_path / "y.npy", Y[:100])
    sums = tmp_path / "sums"
    fit_shards(tmp_path / "X.npy", map=features, workers=1, sums=sums)
    np.save(tmp_path / "X.npy", X[100:200])
    os.utime(tmp_path / "X.npy", ns=(1, 1))
    clf = fit_shards(tmp_path / "X.npy", map=features, workers=1, sums=sums)
    assert_same(clf, CLDNetClassifier(backbone=features).partial_fit(X[100:200], Y[:100]))


def test_a_shard_that_was_learned_before_is_refused(features: RandomReLU, source: Path, tmp_path: Path) -> None:
    clf = fit_shards(source, map=features, workers=1, rows=300, name="march")
    before = pickle.dumps(clf.statistics())
    np.save(tmp_path / "X.npy", X[300:600])
    np.save(tmp_path / "y.npy", Y[300:600])
    with pytest.raises(ValueError, match="learned before, in lesson 'march'"):
        fit_shards(tmp_path, clf=clf, workers=1)
    assert pickle.dumps(clf.statistics()) == before
    fit_shards(tmp_path, clf=clf, workers=1, allow_duplicates=True)
    assert clf.statistics().rows == 1200
    assert clf.lessons_[-1].repeated is False


def test_samples_of_a_shard_that_come_again_by_themselves_are_noticed(features: RandomReLU, source: Path) -> None:
    clf = fit_shards(source, map=features, workers=1, rows=300)
    assert clf.partial_fit(X[300:600], Y[300:600]).lessons_[-1].repeated


def test_a_shard_of_data_that_were_learned_in_one_call_is_refused(features: RandomReLU, source: Path) -> None:
    clf = CLDNetClassifier(backbone=features).partial_fit(X[:300], Y[:300])
    with pytest.raises(ValueError, match="samples 1–300 was learned before, in lesson 1"):
        fit_shards(source, clf=clf, workers=1, rows=300)


def test_the_same_samples_in_two_files_are_refused(features: RandomReLU, tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "X.npy", X[:100])
        np.save(tmp_path / name / "y.npy", Y[:100])
    both = [tmp_path / "one", tmp_path / "two"]
    with pytest.raises(ValueError, match="has the same samples as"):
        fit_shards(both, map=features, workers=1)
    assert fit_shards(both, map=features, workers=1, allow_duplicates=True).statistics().rows == 200


def test_a_new_model_fits_its_map_on_a_sample_of_all_shards(source: Path) -> None:
    clf = fit_shards(source, workers=1, rows=300, sample=90)
    parts = [slice(first, first + 30) for first in (0, 300, 600)]
    scout = CLDNetClassifier(random_state=0)
    with scout.session():
        for part in parts:
            scout.partial_fit(X[part], Y[part])
    assert clf.feature_map_.map_id == scout.feature_map_.map_id
    assert clf.model_.map_labels == {*np.concatenate([Y[part] for part in parts]).tolist()}
    assert clf.statistics().rows == 900


def test_a_lesson_of_shards_can_be_undone(features: RandomReLU, source: Path) -> None:
    clf = CLDNetClassifier(backbone=features, keep_lessons=1).partial_fit(X[:50] - 9, [9] * 50)
    before = clf.statistics()
    fit_shards(source, clf=clf, workers=1, rows=300)
    assert clf.lessons_[-1].kept
    after = clf.undo().statistics()
    assert all(torch.equal(after.tensors[name], before.tensors[name]) for name in before.tensors)
    assert after.lessons == before.lessons
    fit_shards(source, clf=clf, workers=1, rows=300)


def test_labels_have_the_type_of_the_model(features: RandomReLU, source: Path) -> None:
    clf = CLDNetClassifier(backbone=features).partial_fit(X[:50] - 9, ["x"] * 50)
    assert fit_shards(source, clf=clf, workers=1).classes_.tolist() == ["0", "1", "2", "3", "4", "x"]


def test_a_map_may_be_a_file(features: RandomReLU, whole: CLDNetClassifier, source: Path, tmp_path: Path) -> None:
    save_map(features, tmp_path / "map")
    assert_same(fit_shards(source, map=tmp_path / "map", workers=1), whole)


def test_a_failed_call_leaves_the_classifier_as_it_was(
    features: RandomReLU, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clf = CLDNetClassifier(random_state=0)
    monkeypatch.setattr(Statistics, "check_addable", lambda *_: (_ for _ in ()).throw(ValueError("no")))
    with pytest.raises(ValueError, match="no"):
        fit_shards(source, clf=clf, map=features, workers=1)
    assert clf.backbone == "auto"
    assert not hasattr(clf, "classes_")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"clf": CLDNetClassifier("hbo")}, "keeps no sums"),
        ({"clf": CLDNetClassifier(receipts=True)}, "receipts=True"),
        ({"clf": CLDNetClassifier(), "sums": "somewhere"}, "the same map again"),
        ({"engine": "spark"}, "engine='spark' is not known"),
        ({"engine": "local", "address": "tcp://here"}, "has no address"),
        ({"engine": "dask", "address": "tcp://here", "workers": 2}, "its own number of workers"),
        ({"workers": 0}, "workers=0"),
        ({"map": RandomReLU((6,), features=4, seed=0)}, "not fitted"),
        ({"name": ""}, "name=''"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_summed(
    source: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        fit_shards(source, **options)


def test_a_failure_in_a_shard_is_raised_here(features: RandomReLU, tmp_path: Path) -> None:
    wrong = X.copy()
    wrong[850] = np.nan
    np.save(tmp_path / "X.npy", wrong)
    np.save(tmp_path / "y.npy", Y)
    with pytest.raises(ValueError, match="NaN or infinity, the first is sample 851"):
        fit_shards(tmp_path, map=features, workers=2, rows=300)


def test_a_cluster_that_does_not_answer_is_a_sentence(
    features: RandomReLU, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")
    monkeypatch.setattr("cldnet.distributed.engines._ANSWER", 0.2)
    with pytest.raises(EngineError, match=r"No Dask scheduler answers at tcp://127\.0\.0\.1:9"):
        fit_shards(source, map=features, engine="dask", address="tcp://127.0.0.1:9")


def test_workers_that_always_end_are_a_sentence(
    features: RandomReLU, source: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLDNET_TEST_MARKER", str(tmp_path / "no" / "such" / "folder"))
    monkeypatch.setattr(fit, "SumShard", AlwaysKilled)
    with pytest.raises(EngineError, match="has ended 3 times"):
        fit_shards(source, map=features, workers=2, rows=450)


@dataclass(frozen=True)
class AlwaysKilled(SumShard):
    """A task that ends its process."""

    def __call__(self, job: Job) -> fit.Sums:
        os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(job)
