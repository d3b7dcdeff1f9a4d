"""Sums in shards: equal to the bit, safe from kills, and how fast; results/benchmarks/distributed.json.

    python -m benchmarks.distributed equal     1, 2 and 4 shards on every engine, and sums added in any order
    python -m benchmarks.distributed kill      workers and the driver are killed
    python -m benchmarks.distributed speed     two workers beside one process with one thread
    python -m benchmarks.distributed stream    ten million rows of Parquet in one process
    python -m benchmarks.distributed ranks     hbo on two ranks of torchrun
    python -m benchmarks.distributed scale     the numbers of the cost formula in docs/scale.md
    python -m benchmarks.distributed table     the tables of docs/distributed.md

Each part replaces its own section of the file. Data are random numbers, but for the digits of scikit-learn.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from benchmarks.cluster.table import table

from cldnet import CLDNetClassifier, save_map
from cldnet.bench.machine import machine_text, peak_rss, versions
from cldnet.device import threads
from cldnet.distributed import fit
from cldnet.distributed.engines import Engine, opened_engine, reduce_shards
from cldnet.distributed.fit import Job, SumShard, fit_shards
from cldnet.distributed.shards import Shard, find_shards
from cldnet.estimator.statistics import Statistics
from cldnet.math import symmetric
from cldnet.math.ridge import ridge
from cldnet.nets import RandomReLU
from cldnet.storage import write_atomically

ROOT = Path(__file__).resolve().parents[1]
OUT = Path("results/benchmarks/distributed.json")
ENGINES = ("local", "dask", "ray")
#: Where a task that ends its own process notes that it has done so.
_MARKER = "CLDNET_BENCH_MARKER"


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def fitted(shape: tuple[int, ...], features: int, sample: np.ndarray) -> RandomReLU:
    """A feature map that was fitted on a sample."""
    made = RandomReLU(shape, features=features, seed=0)
    made.fit(torch.from_numpy(sample))
    return made


@contextlib.contextmanager
def running(engine: str) -> Iterator[dict[str, Any]]:
    """A cluster of two workers on this machine, and how `fit_shards` reaches it."""
    if engine == "dask":
        from distributed import LocalCluster

        with LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address="127.0.0.1:0", silence_logs=50
        ) as cluster:
            yield {"engine": engine, "address": cluster.scheduler_address}
    elif engine == "ray":
        import ray

        ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level=40, log_to_driver=False)
        try:
            yield {"engine": engine}
        finally:
            ray.shutdown()
    else:
        yield {"engine": engine, "workers": 2}


# --- equal ---


def write_parquet(folder: Path, x: np.ndarray, y: np.ndarray, files: int, group: int) -> None:
    """Write samples as Parquet files of row groups."""
    import pyarrow as pa
    from pyarrow import parquet

    for number, rows in enumerate(np.array_split(np.arange(len(x)), files)):
        columns = {f"c{at}": x[rows, at] for at in range(x.shape[1])}
        parquet.write_table(
            pa.table({**columns, "label": y[rows]}), folder / f"part-{number:04d}.parquet", row_group_size=group
        )


def write_photos(folder: Path, x: np.ndarray, y: np.ndarray) -> None:
    """Write grey images ``(n, side, side)`` as PNG files, one folder per class."""
    from PIL import Image

    for number, (image, label) in enumerate(zip(x, y, strict=True)):
        place = folder / f"digit {label}"
        place.mkdir(exist_ok=True)
        Image.fromarray(image).save(place / f"{number:05d}.png")


def sums_of(clf: CLDNetClassifier) -> dict[str, str]:
    """A digest of every sum, those of classes by label."""
    sums = clf.statistics()
    found = {name: each for name, each in sums.tensors.items() if not name.startswith("class_")}
    for row, label in enumerate(sums.labels.by_row.tolist()):
        found |= {f"{name} of {label}": sums.tensors[name][row] for name in ("class_sums", "class_weights")}
    return {name: hashlib.sha256(each.numpy().tobytes()).hexdigest() for name, each in found.items()}


class Shuffled:
    """An engine in this process whose tasks and sums finish in a random order."""

    workers = 3

    def __init__(self, here: Any, seed: int) -> None:
        self.here, self.rng = here, np.random.default_rng(seed)
        self.submit, self.add, self.result = here.submit, here.add, here.result

    def wait(self, handles: Sequence[Any]) -> list[Any]:
        return [handles[self.rng.integers(len(handles))]]


def digits(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Digits of scikit-learn, as images from 0 to 255."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return (found.images[:count] * 15.9).astype(np.uint8), found.target[:count]


def equal(options: argparse.Namespace) -> dict[str, Any]:
    """1, 2 and 4 shards on every engine, and sums added in any order."""
    images, y = digits(options.samples)
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="cldnet-shards-") as folder:
        tables, photos = Path(folder, "tables"), Path(folder, "photos")
        tables.mkdir()
        photos.mkdir()
        write_parquet(tables, images.reshape(len(images), -1).astype(np.float32), y, 1, -(-len(images) // 4))
        write_photos(photos, images, y)
        sources = {
            "parquet": (tables, fitted((64,), options.features, images[:200].reshape(-1, 64).astype(np.float32))),
            "photos": (photos, fitted((3, 8, 8), options.features, np.repeat(images[:200, None], 3, axis=1))),
        }
        wholes = {kind: _one_process(*source) for kind, source in sources.items()}
        for engine in ENGINES:
            with running(engine) as where:
                for kind, (source, features) in sources.items():
                    for count in (1, 2, 4):
                        rows = -(-len(images) // count)
                        shards = [_small(shard) for shard in find_shards(source, rows=rows)]
                        clf = fit_shards(shards, map=features, **where)
                        runs.append(
                            {"engine": engine, "source": kind, "shards": len(shards), **_compared(clf, wholes[kind])}
                        )
                        say(f"{runs[-1]}")
        for kind, (source, features) in sources.items():
            for seed in range(options.orders):
                shards = [_small(shard) for shard in find_shards(source, rows=-(-len(images) // 4))]
                clf = _in_some_order(shards, features, seed)
                runs.append({"engine": "any order", "source": kind, "shards": 4, **_compared(clf, wholes[kind])})
    return {"samples": len(images), "features": options.features, "runs": runs}


def _small(shard: Shard) -> Shard:
    """A shard of photos of 8 × 8 pixels."""
    from dataclasses import replace

    return replace(shard, side=8) if shard.kind == "photos" else shard  # type: ignore[call-arg]


def _one_process(source: Path, features: RandomReLU) -> tuple[CLDNetClassifier, list[Any]]:
    """A model that learned all samples by `partial_fit`, batch by batch, and the batches."""
    clf = CLDNetClassifier(backbone=features, random_state=0)
    batches = [batch for shard in find_shards(source) for batch in _small(shard).batches()]
    for X, y in batches:
        clf.partial_fit(X, y)
    return clf, [X for X, _ in batches]


def _compared(clf: CLDNetClassifier, whole: tuple[CLDNetClassifier, list[Any]]) -> dict[str, bool]:
    one, inputs = whole
    return {
        "sums": sums_of(clf) == sums_of(one),
        "predictions": all((clf.predict(X) == one.predict(X)).all() for X in inputs),
        "scores": all((clf.predict_proba(X) == one.predict_proba(X)).all() for X in inputs),
    }


def _in_some_order(shards: Sequence[Shard], features: RandomReLU, seed: int) -> CLDNetClassifier:
    real = fit.reduce_shards
    fit.reduce_shards = lambda engine, jobs, tell: reduce_shards(Shuffled(engine, seed), jobs, tell)  # type: ignore[assignment,arg-type]
    try:
        return fit_shards([*shards], map=features, workers=1)
    finally:
        fit.reduce_shards = real


# --- kill ---


@dataclass(frozen=True)
class KillsItsWorker(SumShard):
    """A task that ends its own process half-way through the third shard, the first time."""

    def __call__(self, job: Job) -> fit.Sums:
        marker = Path(os.environ[_MARKER])
        if job.place == 2 and not marker.exists():
            for at, _ in enumerate(job.shard.batches(size=100)):
                if at == 1:
                    marker.touch()
                    os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(job)


def kill(options: argparse.Namespace) -> dict[str, Any]:
    """Workers and the driver are killed."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, size=options.rows)
    x = (rng.normal(size=(options.rows, 50)) + y[:, None] / 3).astype(np.float32)
    features = fitted((50,), options.features, x[:1000])
    whole = CLDNetClassifier(backbone=features, random_state=0).partial_fit(x, y)
    with tempfile.TemporaryDirectory(prefix="cldnet-kill-") as name:
        folder = Path(name)
        source = folder / "data"
        source.mkdir()
        np.save(source / "X.npy", x)
        np.save(source / "y.npy", y)
        workers = {engine: _worker_killed(engine, source, features, whole, folder) for engine in ENGINES}
        save_map(features, folder / "map")
        driver = _driver_killed(source, folder)
        model = CLDNetClassifier.load(folder / "driver.cldnet")
        driver |= {"sums": sums_of(model) == sums_of(whole)}
        return {
            "rows": options.rows,
            "features": options.features,
            "workers": workers,
            "driver": driver,
            **_twice(source, model),
        }


def _worker_killed(
    engine: str, source: Path, features: RandomReLU, whole: CLDNetClassifier, folder: Path
) -> dict[str, Any]:
    marker = folder / f"killed-{engine}"
    os.environ[_MARKER] = str(marker)
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    real, fit.SumShard = fit.SumShard, KillsItsWorker  # type: ignore[misc]
    try:
        clf = fit_shards(source, map=features, engine=engine, workers=2, rows=-(-len(np.load(source / "y.npy")) // 8))
    finally:
        fit.SumShard = real  # type: ignore[misc]
    found = {"killed": marker.exists(), "sums": sums_of(clf) == sums_of(whole)}
    say(f"{engine}: {found}")
    return found


_DRIVER = """
import sys
from cldnet.distributed.fit import fit_shards
if __name__ == "__main__":
    source, folder = sys.argv[1:]
    clf = fit_shards(source, map=f"{folder}/map", workers=2, rows=2000, sums=f"{folder}/sums")
    clf.save(f"{folder}/driver.cldnet")
"""


def _driver_killed(source: Path, folder: Path) -> dict[str, Any]:
    """Kill the driver with its workers when some shards are finished, and start it again."""
    script, sums = folder / "driver.py", folder / "sums"
    script.write_text(_DRIVER)
    command = [sys.executable, str(script), str(source), str(folder)]
    first = subprocess.Popen(command, start_new_session=True)
    while len(list(sums.glob("*.json"))) < 2 and first.poll() is None:
        time.sleep(0.01)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    finished = {path.name: path.stat().st_mtime_ns for path in sums.glob("*.json")}
    subprocess.run(command, check=True)
    again = {path.name: path.stat().st_mtime_ns for path in sums.glob("*.json")}
    found = {"finished": len(finished), "shards": len(again), "kept": finished.items() <= again.items()}
    say(f"driver: {found}")
    return found


def _twice(source: Path, model: CLDNetClassifier) -> dict[str, Any]:
    before = sums_of(model)
    try:
        fit_shards(source, clf=model, workers=1, rows=2000)
    except ValueError as error:
        return {"twice": {"refused": str(error), "unchanged": sums_of(model) == before}}
    return {"twice": {"refused": None, "unchanged": False}}


# --- speed ---


def speed(options: argparse.Namespace) -> dict[str, Any]:
    """Two workers beside one process with one thread."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, size=options.rows)
    x = rng.integers(0, 256, size=(options.rows, options.columns), dtype=np.uint8)
    features = fitted((options.columns,), options.features, x[:2000])
    seconds: dict[str, list[dict[str, float]]] = {name: [] for name in ("one process", *ENGINES)}
    with tempfile.TemporaryDirectory(prefix="cldnet-speed-") as folder:
        np.save(f"{folder}/X.npy", x)
        np.save(f"{folder}/y.npy", y)
        shards = find_shards(folder, rows=-(-options.rows // options.shards))
        jobs = [Job(place, shard, "") for place, shard in enumerate(shards)]
        task = SumShard(features, "full", "float32", None, None)
        for _ in range(options.repeats):
            with threads(1):
                begun = time.perf_counter(), time.process_time()
                total = task(jobs[0])
                for job in jobs[1:]:
                    total = total.plus(task(job))
                ended = time.perf_counter(), time.process_time()
            seconds["one process"].append({"wall": ended[0] - begun[0], "cpu": ended[1] - begun[1]})
            say(f"one process: {seconds['one process'][-1]}")
            for engine in ENGINES:
                seconds[engine].append(_timed(engine, task, jobs, total))
                say(f"{engine}: {seconds[engine][-1]}")
    wall = {name: median(each["wall"] for each in found) for name, found in seconds.items()}
    ratios = {name: wall["one process"] / wall[name] for name in ENGINES}
    about = {"rows": options.rows, "columns": options.columns, "features": options.features, "shards": len(jobs)}
    return {**about, "seconds": seconds, "ratios": ratios, "target": {"ratio": 1.6}}


@dataclass(frozen=True)
class Timed:
    """A task that also says how much processor time it took."""

    task: SumShard

    def __call__(self, job: Job) -> tuple[fit.Sums, float]:
        begun = time.process_time()
        return self.task(job), time.process_time() - begun


def _plus(one: tuple[fit.Sums, float], other: tuple[fit.Sums, float]) -> tuple[fit.Sums, float]:
    return one[0].plus(other[0]), one[1] + other[1]


def _timed(engine: str, task: SumShard, jobs: Sequence[Job], total: fit.Sums) -> dict[str, float]:
    """Seconds of a run on two workers that have started and have imported torch."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    opened: Any
    with opened_engine(engine, Timed(task), _plus, workers=2) as opened:
        warm: Engine[Job, tuple[fit.Sums, float]] = opened
        from dataclasses import replace

        few = [job._replace(shard=replace(job.shard, rows=64)) for job in (*jobs, *jobs)]
        reduce_shards(warm, few, lambda done: None)
        begun = time.perf_counter()
        found, cpu = reduce_shards(warm, jobs, lambda done: None)
        wall = time.perf_counter() - begun
    assert found.statistics is not None
    assert total.statistics is not None
    assert all(
        torch.equal(found.statistics.tensors[name], total.statistics.tensors[name])
        for name in ("second.packed", "rows")
    )
    return {"wall": wall, "cpu": cpu}


# --- stream ---


def stream(options: argparse.Namespace) -> dict[str, Any]:
    """Ten million rows of Parquet in one process."""
    with tempfile.TemporaryDirectory(prefix="cldnet-stream-", dir=options.folder) as name:
        folder = Path(name)
        _write_many(folder, options.rows, options.columns)
        sample, _ = next(find_shards(folder)[0].batches(size=10_000))
        features = fitted(
            (options.columns,), options.features, np.column_stack([each.to_numpy() for each in sample.columns])
        )
        save_map(features, folder / "map")
        whole = _streamed(folder, options.chunk, None)
        part = {
            size: [_streamed(folder, size, options.fewer)["rows_per_cpu_second"] for _ in range(options.repeats)]
            for size in (options.chunk, 1000)
        }
    rates = {str(size): median(found) for size, found in part.items()}
    return {
        "rows": options.rows,
        "columns": options.columns,
        "features": options.features,
        "chunk": options.chunk,
        **whole,
        "chunks": {"rows": options.fewer, "rates": {str(size): found for size, found in part.items()}},
        "ratio": rates["1000"] / rates[str(options.chunk)],
        "target": {"rows_per_cpu_second": 30_000, "growth": 0.1, "ratio": 0.8},
    }


def _write_many(folder: Path, rows: int, columns: int) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    for number in range(-(-rows // 500_000)):
        count = min(500_000, rows - number * 500_000)
        rng = np.random.default_rng(number)
        y = rng.integers(0, 10, size=count)
        x = rng.normal(size=(columns, count)).astype(np.float32) + (y / 5).astype(np.float32)
        parquet.write_table(
            pa.table({**{f"c{at}": x[at] for at in range(columns)}, "label": y}),
            folder / f"part-{number:03d}.parquet",
            row_group_size=100_000,
        )
        say(f"written: {(number + 1) * 500_000:,} rows")


_STREAM = """
import json, os, resource, sys, time
from cldnet import CLDNetClassifier, load_map
from cldnet.distributed.shards import find_shards
folder, chunk, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
clf = CLDNetClassifier(backbone=load_map(f"{folder}/map"), n_threads=1, random_state=0)
rows, chunks, memory = 0, 0, []
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
begun, wall = time.process_time(), time.perf_counter()
with clf.session(stream=True):
    for shard in find_shards(f"{folder}/*.parquet"):
        for X, y in shard.batches(size=chunk):
            clf.partial_fit(X, y)
            rows, chunks = rows + len(y), chunks + 1
            if chunks == 10 or rows % 1_000_000 < len(y):
                memory.append({"chunks": chunks, "rows": rows, "bytes": resident()})
        if rows >= most:
            break
memory.append({"chunks": chunks, "rows": rows, "bytes": resident()})
cpu, wall = time.process_time() - begun, time.perf_counter() - wall
print(json.dumps({"learned": clf.statistics().rows, "cpu": cpu, "wall": wall, "memory": memory}))
"""


def _streamed(folder: Path, chunk: int, most: int | None) -> dict[str, Any]:
    """Learn the files in chunks, in a process of its own with one thread."""
    command = [sys.executable, "-c", _STREAM, str(folder), str(chunk), str(most or 10**12)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout)
    tenth = next(each["bytes"] for each in found["memory"] if each["chunks"] >= 10)
    found |= {
        "rows_per_cpu_second": found["learned"] / found["cpu"],
        "growth": found["memory"][-1]["bytes"] / tenth - 1,
    }
    say(
        f"chunks of {chunk:,}: {found['rows_per_cpu_second']:,.0f} rows per CPU second, memory {100 * found['growth']:+.1f} %"
    )
    return found


# --- ranks ---


def ranks(options: argparse.Namespace) -> dict[str, Any]:
    """hbo on two ranks of torchrun."""
    from benchmarks.distributed_ranks import measure

    return measure()


# --- scale ---


def scale(options: argparse.Namespace) -> dict[str, Any]:
    """The numbers of the cost formula in docs/scale.md."""
    return {"columns": 50, "classes": 100, "measured": [_costs(features, options) for features in options.features]}


def _costs(width: int, options: argparse.Namespace) -> dict[str, Any]:
    """Rows per CPU second of one thread, bytes of the sums, and seconds to send, add and solve."""
    rng = np.random.default_rng(0)
    rows = max(2048, min(100_000, int(4e11 / width**2)))
    y = rng.integers(0, 100, size=rows)
    x = (rng.normal(size=(rows, 50)) + y[:, None] / 30).astype(np.float32)
    features = fitted((50,), width - 1, x[:1000])
    assert features.out_features == width
    with threads(1):
        sums = Statistics.accumulator(features).add(x[:1024], y[:1024])
        begun = time.process_time()
        sums.add(x, y)
        rate = rows / (time.process_time() - begun)
    own = sums.statistics()
    size = sum(each.nbytes for each in own.tensors.values())
    begun = time.perf_counter()
    buffers: list[pickle.PickleBuffer] = []
    content = pickle.dumps(own, protocol=5, buffer_callback=buffers.append)
    received = pickle.loads(content, buffers=[bytes(each.raw()) for each in buffers])
    copied = time.perf_counter() - begun
    begun = time.perf_counter()
    both = own.add(received, allow_duplicates=True)
    added = time.perf_counter() - begun
    seconds = {"pickle": copied, "add": added}
    if width <= options.most_solved:
        seconds["solve"] = _solved(both, width)
    say(f"{width:,} features: {rate:,.0f} rows per CPU second, {size / 1e6:,.1f} MB, {seconds}")
    return {"features": width, "rows_per_cpu_second": rate, "bytes": size, "seconds": seconds, "peak": peak_rss()}


def _solved(sums: Statistics, width: int) -> float:
    """Seconds to choose α and solve, on all threads."""
    gram = symmetric.unpack(sums.tensors["second.packed"], width)
    gram.diagonal().add_(gram.diagonal().mean())  # of full rank, as that of many rows is: else there is a shorter way
    begun = time.perf_counter()
    ridge(gram, sums.tensors["class_sums"].T, sums.tensors["class_weights"], sums.rows, None)
    return time.perf_counter() - begun


# --- the command ---

PARTS: Mapping[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "equal": equal,
    "kill": kill,
    "speed": speed,
    "stream": stream,
    "ranks": ranks,
    "scale": scale,
}
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "equal": {"samples": 1700, "features": 300, "orders": 5},
    "kill": {"rows": 16_000, "features": 1000},
    "speed": {"rows": 60_000, "columns": 784, "features": 4000, "shards": 8, "repeats": 3},
    "stream": {"rows": 10_000_000, "columns": 50, "features": 500, "chunk": 100_000, "fewer": 1_000_000, "repeats": 3},
    "ranks": {},
    "scale": {"most_solved": 20_000},
}


def _measured(part: str, options: argparse.Namespace) -> dict[str, Any]:
    begun = time.perf_counter()
    found = PARTS[part](options)
    arguments = {name: value for name, value in vars(options).items() if name not in ("part", "out", "path", "folder")}
    packages = {name: version(name) for name in ("distributed", "ray", "pyarrow")}
    about = {
        "seconds_in_all": time.perf_counter() - begun,
        "machine": machine_text(),
        "versions": {**versions(), **packages},
    }
    return {"arguments": arguments, **about, **found}


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        "python -m benchmarks.distributed", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    for name, work in PARTS.items():
        one = parts.add_parser(name, help=(work.__doc__ or "").partition("\n")[0])
        one.add_argument("--out", type=Path, default=OUT)
        for option, value in DEFAULTS[name].items():
            one.add_argument(f"--{option}", type=type(value), default=value, help=f"by default {value}")
        if name == "stream":
            one.add_argument("--folder", help="where the Parquet files are written for a while (2 GB)")
        if name == "scale":
            one.add_argument("--features", type=int, nargs="+", default=[1000, 4000, 12_801])
    shown = parts.add_parser("table", help="print the tables of the docs")
    shown.add_argument("path", type=Path, nargs="?", default=OUT)
    shown.add_argument("only", nargs="?", default="", help="one section, such as scale or projection")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Measure a part and write it down, or print the tables."""
    options = _options(arguments)
    if options.part == "table":
        sys.stdout.write(table(options.path, options.only))
        return 0
    section = _measured(options.part, options)
    found = json.loads(options.out.read_text("utf-8")) if options.out.exists() else {"benchmark": "distributed"}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(
        options.out, (json.dumps(found | {options.part: section}, indent=1, allow_nan=False) + "\n").encode()
    )
    say(f"written to {options.out}")
    return 0


if __name__ == "__main__":
    from benchmarks import distributed  # so that workers know the tasks by this module's name

    sys.exit(distributed.main(sys.argv[1:]))
