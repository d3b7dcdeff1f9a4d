"""Where shards are summed: in processes of this machine, on a Dask cluster, or on a Ray cluster.

An engine takes tasks, and adds up their results where these are. `reduce_shards` is the same for all: it keeps at most twice
as many tasks under way as there are workers, and adds sums in pairs as they come. So the workers hold a few sums at a time,
however many shards there are, and the last sums form a tree.

A task is a pure function of its shard. An engine may run it again, on another worker, if the first one was lost.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, Generic, TypeVar

_Part = TypeVar("_Part")
_Sum = TypeVar("_Sum")
#: How often a task may lose its worker before the run ends.
_ATTEMPTS = 3
#: Seconds in which a cluster should answer.
_ANSWER = 20
ENGINES = ("local", "dask", "ray")
#: Dask has glibc return every freed megabyte to the system, which then zeroes it again: a third more processor time.
_DASK_ENVIRONMENT = {
    "OMP_NUM_THREADS": 1,
    "MALLOC_TRIM_THRESHOLD_": 1 << 30,
    "MALLOC_MMAP_THRESHOLD_": 32 << 20,
}


class EngineError(RuntimeError):
    """An engine that cannot be reached, or that stopped."""


class Engine(ABC, Generic[_Part, _Sum]):
    """Runs ``task`` on shards and ``add`` on pairs of results. Handles stand for results, which stay where they are made."""

    #: Number of tasks that run at the same time.
    workers: int

    @abstractmethod
    def submit(self, part: _Part) -> Any:
        """Start the task of a shard; return a handle of its result."""

    @abstractmethod
    def add(self, one: Any, other: Any) -> Any:
        """Start adding two results; return a handle of the sum."""

    @abstractmethod
    def wait(self, handles: Sequence[Any]) -> list[Any]:
        """Wait until at least one of some handles is done, and return those that are; raise what a task has raised."""

    @abstractmethod
    def result(self, handle: Any) -> _Sum:
        """The result that a handle stands for."""


def reduce_shards(engine: Engine[_Part, _Sum], parts: Sequence[_Part], on_done: Callable[[int], None]) -> _Sum:
    """The sum of the tasks' results over all shards. ``on_done`` is called with the number of finished tasks."""
    waiting, tasks, sums, ready, done = deque(parts), list[Any](), list[Any](), list[Any](), 0
    while waiting or tasks or sums or len(ready) > 1:
        while len(ready) > 1:
            sums.append(engine.add(ready.pop(), ready.pop()))
        while waiting and len(tasks) < 2 * engine.workers:
            tasks.append(engine.submit(waiting.popleft()))
        finished = {id(handle) for handle in engine.wait([*tasks, *sums])}
        ready += [handle for handle in (*tasks, *sums) if id(handle) in finished]
        before, done = done, done + sum(id(handle) in finished for handle in tasks)
        tasks, sums = ([each for each in group if id(each) not in finished] for group in (tasks, sums))
        if done > before:
            on_done(done)
    return engine.result(ready[0])


@contextmanager
def opened_engine(
    name: str,
    task: Callable[[_Part], _Sum],
    add: Callable[[_Sum, _Sum], _Sum],
    *,
    workers: int | None = None,
    address: str | None = None,
) -> Iterator[Engine[_Part, _Sum]]:
    """Open an engine for a block: a cluster at an address, or processes of this machine, one per core by default."""
    check_engine(name, workers, address)
    count = workers or _cores()
    if name == "local":
        with _local(task, add, count) as engine:
            yield engine
    else:
        with (_dask if name == "dask" else _ray)(task, add, count, address) as engine:
            yield engine


def check_engine(name: str, workers: int | None, address: str | None) -> None:
    """Refuse an engine that is not known, and options that do not go with it."""
    if name not in ENGINES:
        raise ValueError(f"engine={name!r} is not known; use one of {', '.join(map(repr, ENGINES))}.")
    if address is not None and (name == "local" or workers is not None):
        what = "engine='local' has no address" if name == "local" else "A cluster has its own number of workers"
        raise ValueError(f"{what}: leave address or workers out.")
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ValueError(f"workers={workers!r} should be a whole number of at least 1.")


def _cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


# --- processes of this machine ---

_task: Callable[[Any], Any] | None = None


def _begin(content: bytes, threads: int) -> None:
    """Prepare a process: the task with its feature map is sent once."""
    import torch  # noqa: PLC0415  (a process should begin quickly)

    global _task
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the driver, which ends the processes
    torch.set_num_threads(threads)
    _task = pickle.loads(content)


def _run(part: Any) -> Any:
    assert _task is not None
    return _task(part)


class _Local(Engine[_Part, _Sum]):
    """Processes. Results come back to this process, which adds them up."""

    def __init__(self, task: Callable[[_Part], _Sum], add: Callable[[_Sum, _Sum], _Sum], workers: int) -> None:
        self.workers, self._sum = workers, add
        self._content = pickle.dumps(task)
        self._parts: dict[Future[_Sum], _Part] = {}
        self._lost = 0
        self._pool = self._new_pool()

    def _new_pool(self) -> ProcessPoolExecutor:
        threads = max(1, _cores() // self.workers)
        context = get_context("spawn")  # a fork would copy the locks of torch's threads
        return ProcessPoolExecutor(self.workers, context, _begin, (self._content, threads))

    def submit(self, part: _Part) -> _Handle[_Sum]:
        handle = _Handle(self._pool.submit(_run, part))
        self._parts[handle.future] = part
        return handle

    def add(self, one: _Handle[_Sum], other: _Handle[_Sum]) -> _Handle[_Sum]:
        future: Future[_Sum] = Future()
        future.set_result(self._sum(self.result(one), self.result(other)))
        return _Handle(future)

    def wait(self, handles: Sequence[_Handle[_Sum]]) -> list[_Handle[_Sum]]:
        wait([each.future for each in handles], return_when=FIRST_COMPLETED)
        if any(each.future.done() and isinstance(each.future.exception(), BrokenExecutor) for each in handles):
            self._replace_pool(handles)
        done = [each for each in handles if each.future.done()]
        for each in done:
            each.future.result()  # raises what the task has raised
        return done

    def _replace_pool(self, handles: Sequence[_Handle[_Sum]]) -> None:
        """Begin with new processes: one has ended, which breaks the pool, so unfinished tasks run again."""
        self._lost += 1
        if self._lost >= _ATTEMPTS:
            raise EngineError(
                f"A process that summed shards has ended {self._lost} times. It may need more memory than there is: use fewer "
                "workers, or fewer features."
            )
        wait([each.future for each in handles])  # a broken pool ends all of its tasks
        self._pool.shutdown()
        self._pool = self._new_pool()
        for each in handles:
            if isinstance(each.future.exception(), BrokenExecutor):
                part = self._parts.pop(each.future)
                each.future = self._pool.submit(_run, part)
                self._parts[each.future] = part

    def result(self, handle: _Handle[_Sum]) -> _Sum:
        self._parts.pop(handle.future, None)
        return handle.future.result()

    def close(self, *, at_once: bool) -> None:
        """End the processes; ``at_once`` does not wait for what they do."""
        if at_once:
            for process in [*(self._pool._processes or {}).values()]:
                process.terminate()
        self._pool.shutdown(cancel_futures=True)


class _Handle(Generic[_Sum]):
    """A future that may be replaced by that of a second attempt."""

    def __init__(self, future: Future[_Sum]) -> None:
        self.future = future


class _Here(Engine[_Part, _Sum]):
    """One process, the driver's, with all of its threads."""

    workers = 1

    def __init__(self, task: Callable[[_Part], _Sum], add: Callable[[_Sum, _Sum], _Sum]) -> None:
        self._run, self._sum = task, add

    def submit(self, part: _Part) -> tuple[_Sum]:
        return (self._run(part),)

    def add(self, one: tuple[_Sum], other: tuple[_Sum]) -> tuple[_Sum]:
        return (self._sum(*one, *other),)

    def wait(self, handles: Sequence[tuple[_Sum]]) -> list[tuple[_Sum]]:
        return [*handles]

    def result(self, handle: tuple[_Sum]) -> _Sum:
        return handle[0]


@contextmanager
def _local(
    task: Callable[[_Part], _Sum], add: Callable[[_Sum, _Sum], _Sum], workers: int
) -> Iterator[Engine[_Part, _Sum]]:
    if workers == 1:
        yield _Here(task, add)
        return
    engine = _Local(task, add, workers)
    try:
        yield engine
    except BaseException:
        engine.close(at_once=True)
        raise
    engine.close(at_once=False)


# --- Dask ---


class _Dask(Engine[_Part, _Sum]):
    """A Dask cluster. A worker's result that is lost is computed again from its shards."""

    def __init__(self, client: Any, task: Callable[[_Part], _Sum], add: Callable[[_Sum, _Sum], _Sum]) -> None:
        self._client, self._sum = client, add
        self.workers = max(1, sum(client.nthreads().values()))
        self._task = client.scatter(task, broadcast=True, hash=False)

    def submit(self, part: _Part) -> Any:
        return self._client.submit(_on_one_thread, self._task, part, pure=False)

    def add(self, one: Any, other: Any) -> Any:
        return self._client.submit(self._sum, one, other, pure=False, priority=10)

    def wait(self, handles: Sequence[Any]) -> list[Any]:
        from distributed import wait as wait_for  # noqa: PLC0415

        done, _ = wait_for([*handles], return_when="FIRST_COMPLETED")
        for handle in done:
            if handle.status in ("cancelled", "lost"):
                raise EngineError("The Dask cluster has dropped a task: its scheduler may have been started again.")
            if handle.status == "error":
                handle.result()
        return [handle for handle in handles if handle in done]

    def result(self, handle: Any) -> _Sum:
        found: _Sum = handle.result()
        return found


def _on_one_thread(task: Callable[[_Part], _Sum], part: _Part) -> _Sum:
    """Run a task on one thread of torch's, since the cluster runs as many tasks as it has threads."""
    from cldnet.device import threads  # noqa: PLC0415  (imported on the worker)

    with threads(1):
        return task(part)


@contextmanager
def _dask(
    task: Callable[[_Part], _Sum], add: Callable[[_Sum, _Sum], _Sum], workers: int, address: str | None
) -> Iterator[Engine[_Part, _Sum]]:
    try:
        from dask import config as dask_config  # noqa: PLC0415
        from distributed import Client, LocalCluster  # noqa: PLC0415
        from distributed.scheduler import KilledWorker  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:
        raise ImportError('engine="dask" needs Dask: pip install ".[dask]" in a clone of CLDNet.') from error
    cluster = None
    try:
        if address is None:
            with dask_config.set({"distributed.nanny.pre-spawn-environ": _DASK_ENVIRONMENT}):
                cluster = LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    host="127.0.0.1",
                    dashboard_address="127.0.0.1:0",  # any free port; the default may be taken
                    memory_limit=0,
                    silence_logs=logging.CRITICAL,
                )
        client = Client(address if cluster is None else cluster, timeout=_ANSWER)
    except (OSError, ValueError) as error:
        raise EngineError(f"No Dask scheduler answers at {address}: {_first_line(error)}") from error
    try:
        yield _Dask(client, task, add)
    except (OSError, TimeoutError, KilledWorker) as error:
        raise EngineError(f"The Dask cluster has stopped, or lost too many workers: {_first_line(error)}") from error
    finally:
        client.close(timeout=5)
        if cluster is not None:
            cluster.close(timeout=5)


# --- Ray ---


class _Ray(Engine[_Part, _Sum]):
    """A Ray cluster. A result whose node is lost is computed again from its shards."""

    def __init__(self, ray: Any, task: Callable[[_Part], _Sum], add: Callable[[_Sum, _Sum], _Sum]) -> None:
        self._ray = ray
        self.workers = max(1, int(ray.cluster_resources().get("CPU", 1)))
        self._task = ray.put(task)
        self._run = ray.remote(max_retries=_ATTEMPTS, num_returns=2)(_with_mark)
        self._sum = ray.remote(max_retries=_ATTEMPTS, num_returns=2)(_with_mark_of(add))

    def submit(self, part: _Part) -> Any:
        return tuple(self._run.remote(self._task, part))

    def add(self, one: Any, other: Any) -> Any:
        return tuple(self._sum.remote(one[0], other[0]))

    def wait(self, handles: Sequence[Any]) -> list[Any]:
        by_mark = {mark: (result, mark) for result, mark in handles}
        done, _ = self._ray.wait([*by_mark], num_returns=1)
        self._get(done)  # raises what the task has raised
        return [handle for handle in handles if handle[1] in done]

    def result(self, handle: Any) -> _Sum:
        found: _Sum = self._get(handle[0])
        return found

    def _get(self, handles: Any) -> Any:
        try:
            return self._ray.get(handles)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None


def _with_mark(task: Callable[[_Part], _Sum], part: _Part) -> tuple[_Sum, bool]:
    """A task's result, and a mark that it is done: waiting for the mark does not move the result."""
    return _on_one_thread(task, part), True


def _with_mark_of(add: Callable[[_Sum, _Sum], _Sum]) -> Callable[[_Sum, _Sum], tuple[_Sum, bool]]:
    def added(one: _Sum, other: _Sum) -> tuple[_Sum, bool]:
        return add(one, other), True

    return added


@contextmanager
def _ray(
    task: Callable[[_Part], _Sum], add: Callable[[_Sum, _Sum], _Sum], workers: int, address: str | None
) -> Iterator[Engine[_Part, _Sum]]:
    try:
        import ray  # noqa: PLC0415
    except (ImportError, RuntimeError) as error:
        raise ImportError('engine="ray" needs Ray: pip install ".[ray]" in a clone of CLDNet.') from error
    started = not ray.is_initialized()
    if started:
        own: dict[str, Any] = {"num_cpus": workers, "include_dashboard": False} if address is None else {}
        try:
            ray.init(address=address or "local", logging_level=logging.ERROR, log_to_driver=False, **own)
        except (OSError, RuntimeError, ValueError) as error:
            raise EngineError(f"No Ray cluster answers at {address}: {_first_line(error)}") from error
    try:
        yield _Ray(ray, task, add)
    except ray.exceptions.RayError as error:
        raise EngineError(f"The Ray cluster has stopped, or lost too many workers: {_first_line(error)}") from error
    finally:
        if started:
            ray.shutdown()


def _first_line(error: BaseException) -> str:
    """The first line of an error, or its type, as a sentence."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return f"{line.rstrip('.')}."
