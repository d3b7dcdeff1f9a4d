"""Every call is a transaction: whatever fails in it, and wherever, model, disk and torch are as before, to the last bit.

    python tests/estimator/test_faults.py

Faults are put at every operation of torch and at every operation on a file that a call makes. All of torch's operations, each
with an error, an interrupt and a lack of memory, take some twenty minutes: the line above does that. In a run of all tests
it is some of each call, evenly spaced, other ones each time; ``CLDNET_FAULTS=17`` repeats those of a run that said 17.

What cannot be had: an interrupt that comes when a file has got its name, or a model its place, is raised though the call is
done; and where a disk fails for good, half-written litter stays (nobody can remove it), until a later call that writes the
same file sweeps it away.
"""

from __future__ import annotations

import builtins
import copy
import errno
import io
import itertools
import logging
import os
import pickle
import re
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.files import files_in
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import cldnet.storage as store
from cldnet import CLDNetClassifier, Statistics, load_map, save_map
from cldnet.methods.exact import Exact
from cldnet.nets import RandomReLU
from cldnet.storage.disk import _unreleased

fcntl: Any = pytest.importorskip("fcntl")  # locks, which this system may not have
RANDOM = np.random.default_rng(0)
Y = np.arange(12) % 3
X = RANDOM.normal(size=(12, 4)) + 3 * Y[:, None]
MORE = RANDOM.normal(size=(6, 4)) - 3
NEW = np.array([3, 4, 3, 4, 3, 4])
SOLVERS = ("exact", "hbo")
#: Which of torch's operations are made to fail: "all", or every so many-th, from the one on that a number says.
TRIED = os.environ.get("CLDNET_FAULTS", str(secrets.randbelow(1000)))
#: Operations of a call that are tried, if not all.
SOME = 20
NO_MEMORY = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8000000000 bytes."


def failures(number: int) -> tuple[BaseException, ...]:
    """What an operation may fail with; a lack of memory is said by Python, or by torch."""
    memory = MemoryError("out of memory") if number % 2 else RuntimeError(NO_MEMORY)
    return RuntimeError("a kernel went wrong"), memory, KeyboardInterrupt()


def net() -> nn.Module:
    """Dropout draws from torch's own generator, which has to be as before afterwards."""
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 6))


def make(solver: str) -> CLDNetClassifier:
    backbone = RandomReLU((4,), features=10, seed=0) if solver == "exact" else net()
    small: dict[str, Any] = {"capacity": 6, "embed_dim": 8, "epochs": 1, "batch_size": 6, "n_threads": 1}
    small["keep_lessons"] = 2 if solver == "exact" else 0
    return CLDNetClassifier(solver, backbone, **small, random_state=np.random.RandomState(0))


class World(NamedTuple):
    """What a call may touch: a model, others that it takes in, and a folder."""

    clf: CLDNetClassifier
    others: tuple[CLDNetClassifier | Statistics, ...]
    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / "file"


def world_for(solver: str, folder: Path) -> World:
    torch.manual_seed(0)
    clf = make(solver).fit(X, Y).partial_fit(MORE, NEW)
    others: tuple[Any, ...] = ()
    if solver == "exact":
        twin = CLDNetClassifier(backbone=clf.feature_map_, capacity=6, n_threads=1, random_state=0).fit(
            X[:5], Y[:5] + 2
        )
        others = twin, twin.statistics()
    folder.mkdir()
    clf.save(folder / "file")
    return World(clf, others, folder)


def bits(clf: CLDNetClassifier, answers: bool = True) -> tuple[Any, ...]:
    """Everything that a user could see of a classifier, now and later; answers take longest, and follow from the rest."""
    parameters = {name: value for name, value in clf.get_params(deep=False).items() if name != "random_state"}
    drawn = clf.random_state.get_state()[1:3] if hasattr(clf.random_state, "get_state") else clf.random_state
    seen = [repr(parameters), pickle.dumps(drawn), sorted({*vars(clf)} - {"_unsaved"})]
    seen.append(getattr(clf.backbone, "training", None))
    return *seen, *learned(clf, answers)


def learned(clf: CLDNetClassifier, answers: bool = True) -> tuple[Any, ...]:
    """What a classifier has learned, whatever its parameters are."""
    model = clf._model
    if model is None:
        return ()
    manifest = {
        "labels": model.labels.to_json(),
        "inputs": model.inputs.to_json(),
        "borrowed": sorted(model.merged_map_labels),
        "history": model.history.to_bytes().decode(),
        "kept": [(one.number, one.labels, one.counts, store.digest({}, one.tensors)) for one in model.kept],
    }
    modes = [module.training for module in model.learner.modules()]
    state = store.digest(manifest, model.learner.state_dict()), modes
    return (*state, clf.decision_function(X).tobytes()) if answers else state


def of_others(world: World, answers: bool = True) -> list[Any]:
    return [
        bits(other, answers)
        if isinstance(other, CLDNetClassifier)
        else store.digest({"labels": other.labels.to_json(), "inputs": other.inputs.to_json()}, other.tensors)
        for other in world.others
    ]


def everything(world: World, answers: bool = True) -> tuple[Any, ...]:
    return bits(world.clf, answers), of_others(world, answers), files(world.folder), surroundings()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in files_in(folder)}


def surroundings() -> tuple[Any, ...]:
    """What is torch's, and numpy's, and everybody's."""
    modes = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype()
    chance = torch.get_rng_state().numpy().tobytes(), pickle.dumps(np.random.get_state())  # noqa: NPY002
    return chance, torch.get_num_threads(), modes


class Failing(TorchDispatchMode):
    """Count torch's operations, and raise an error instead of one of them."""

    def __init__(self, at: int = 0, error: BaseException | None = None) -> None:
        super().__init__()
        self.count, self.at, self.error = 0, at, error

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        if self.count == self.at and self.error is not None:
            raise self.error
        return func(*args, **(kwargs or {}))


def teach_in_pieces(world: World, checkpoint: Path | None = None) -> CLDNetClassifier:
    with world.clf.session(checkpoint, every=0.0):
        world.clf.partial_fit(MORE[:4], NEW[:4] + 1)
        world.clf.partial_fit(X[:8], Y[:8], sample_weight=np.linspace(0.5, 1.5, 8))
    return world.clf


def saved(world: World) -> CLDNetClassifier:
    world.clf.save(world.path)
    return world.clf


def added(world: World) -> CLDNetClassifier:
    total = world.others[1]
    total += world.clf.statistics()
    return world.clf


Call = Callable[[World], CLDNetClassifier]
#: Calls of both solvers, and of the exact one alone. Each returns the classifier that it leaves behind.
BOTH: dict[str, Call] = {
    "fit": lambda world: world.clf.fit(MORE, NEW, sample_weight=np.linspace(0.5, 1.5, 6)),
    "partial_fit": lambda world: world.clf.partial_fit(MORE, NEW + 1),
    "session": teach_in_pieces,
    "extend": lambda world: world.clf.extend(7),
    "rename_class": lambda world: world.clf.rename_class(3, 9),
    "save": saved,
    "load": lambda world: CLDNetClassifier.load(
        world.path, backbone=world.clf.backbone if world.clf.solver == "hbo" else None
    ),
    "predict": lambda world: (world.clf.predict_proba(X), world.clf)[1],
}
EXACT: dict[str, Call] = {
    "forget": lambda world: world.clf.forget(MORE[1:4], NEW[1:4]),
    "forget_class": lambda world: world.clf.forget_class(3),
    "undo": lambda world: world.clf.undo(),
    "join_classes": lambda world: world.clf.join_classes([0, 3], into=5),
    "add_noise": lambda world: world.clf.add_noise(5.0, [1, 4], random_state=0),
    "add_noise to the few": lambda world: world.clf.add_noise(5.0, random_state=0),
    "merge": lambda world: world.clf.merge(world.others),
    "known_probability": lambda world: (copy.deepcopy(world.clf).known_probability(X), world.clf)[1],
    "add sums": added,
}
CALLS = [("exact", name) for name in (*BOTH, *EXACT)] + [("hbo", name) for name in BOTH]


def places(count: int, some: int = SOME) -> list[int]:
    """Every operation of a call, or some, the first and the last among them."""
    step = 1 if TRIED == "all" else max(1, count // some)
    first = 1 if TRIED == "all" else 1 + int(TRIED) % step
    return sorted({1, *range(first, count + 1, step), count})


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the exact solver go in steps of a few rows, so that it has something to write midway; and have threads to restore."""
    monkeypatch.setattr(Exact, "min_batch", 1)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


def is_told(made: BaseException, error: BaseException) -> bool:
    """Whether an error came through, or was made a sentence of; a lack of memory is told as one, and an interrupt as itself."""
    if made is error:
        return True
    chain = [made]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    # Where torch loads a state it makes one error of all of them, and keeps but their words.
    known = error in chain or any(str(error) in str(each) for each in chain)
    if isinstance(error, KeyboardInterrupt) or not known or len(str(made).split()) < 5:
        return False
    lacks = isinstance(error, MemoryError) or str(error) == NO_MEMORY
    return "memory" in str(made) if lacks else isinstance(made, ValueError)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.filterwarnings("ignore::cldnet.MapTraceWarning")
@pytest.mark.parametrize(("solver", "name"), CALLS)
def test_an_operation_of_torch_that_fails_leaves_everything_as_it_was(solver: str, name: str, tmp_path: Path) -> None:
    call = {**BOTH, **EXACT}[name]
    undisturbed, world = world_for(solver, tmp_path / "undisturbed"), world_for(solver, tmp_path / "world")
    assert everything(undisturbed) == everything(world)
    with Failing() as counting:
        result = call(undisturbed)
    expected, model = bits(result), world.clf._model
    before = {answers: everything(world, answers) for answers in (True, False)}
    for number in places(counting.count):
        for error in failures(number):
            with pytest.raises(BaseException) as caught, Failing(number, error):  # noqa: PT011  (looked at below)
                call(world)
            said = f"{error!r} at operation {number} of {counting.count}, CLDNET_FAULTS={TRIED}"
            assert is_told(caught.value, error), f"{said} became {caught.value!r}"
            assert world.clf._model is model, said
            answers = number % 10 == 0
            assert everything(world, answers) == before[answers], said
    assert everything(world) == before[True]
    again = call(world)
    assert bits(again) == expected
    assert again.predict_proba(X).tobytes() == result.predict_proba(X).tobytes()
    assert of_others(world) == of_others(undisturbed)
    assert files(world.folder) == files(undisturbed.folder)


def teach_and_save(world: World) -> None:
    """Learn a session that has a checkpoint, and save the model, which removes the checkpoint."""
    teach_in_pieces(world, world.folder / "session")
    world.clf.save(world.path, overwrite=True)  # tests put other files in its place


def go_on(world: World) -> CLDNetClassifier:
    """Do what a user does whose process was gone: load the model, and teach it the session, if it does not know that yet."""
    clf = CLDNetClassifier.load(world.path, backbone=net() if world.clf.solver == "hbo" else None)
    if len(clf.classes_) == len(world.clf.classes_):
        teach_and_save(world._replace(clf=clf))
    return clf


class Twins(NamedTuple):
    """A world in which things fail, and what became of another one that was the same, and in which nothing did."""

    world: World
    expected: tuple[Any, ...]
    new: bytes

    def check(self, said: str) -> None:
        """See that model and disk are as before, or as they should be, and that whoever goes on comes to the same bits."""
        world, old = self.world, learned(self.world.clf)
        assert {*files(world.folder)} <= {"file", "session"}, said
        assert learned(go_on(world)) == self.expected, said
        assert world.path.read_bytes() == self.new, said
        assert learned(world.clf) == old, said
        (world.folder / "session").unlink(missing_ok=True)  # of an interrupt between saving and removing it


def twins(solver: str, folder: Path) -> tuple[Twins, World]:
    undisturbed, world = world_for(solver, folder / "undisturbed"), world_for(solver, folder / "world")
    loaded = CLDNetClassifier.load(undisturbed.path, backbone=net() if solver == "hbo" else None)
    teach_and_save(undisturbed._replace(clf=loaded))
    return Twins(world, learned(loaded), undisturbed.path.read_bytes()), undisturbed


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_session_with_a_checkpoint_that_fails_is_gone_on_with_to_the_same_bits(solver: str, tmp_path: Path) -> None:
    """The checkpoint is the one file that may be another one afterwards: that is what it is for."""
    both, counted = twins(solver, tmp_path)
    world, old = both.world, both.world.path.read_bytes()
    with Failing() as counting:
        teach_and_save(counted)
    for number in places(counting.count):
        error = failures(number)[number % 3]
        said = f"{error!r} at operation {number} of {counting.count}, CLDNET_FAULTS={TRIED}"
        clf = copy.deepcopy(world.clf)
        with pytest.raises(BaseException) as caught, Failing(number, error):  # noqa: PT011  (looked at below)
            teach_and_save(world._replace(clf=clf))
        assert is_told(caught.value, error), f"{said} became {caught.value!r}"
        assert learned(clf) in (learned(world.clf), both.expected), said
        both.check(said)
        world.path.write_bytes(old)


class Handle:
    """A file of a disk that fails."""

    def __init__(self, file: Any, disk: Disk) -> None:
        self.file, self.disk = file, disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, content: Any) -> int:
        part = content
        if self.disk.spoils == "short write":
            part = content[: len(content) // 2]  # and the disk says that all of it is written
        try:
            self.disk.step("write")
        except BaseException:
            self.file.write(content[: len(content) // 2])
            raise
        self.file.write(part)
        return len(content)

    def read(self, size: int = -1) -> bytes:
        self.disk.step("read")
        content = self.file.read(size)
        return content[:-1] + bytes([content[-1] ^ 1]) if content and self.disk.spoils == "other bytes" else content

    def flush(self) -> None:
        self.disk.step("flush")
        self.file.flush()

    def readinto(self, buffer: Any) -> int:
        self.disk.step("read")
        return int(self.file.readinto(buffer))

    def close(self) -> None:
        if self.file.closed:
            return
        handle = self.file.fileno()
        try:
            self.disk.step("close")
        finally:
            self.disk.closed(handle)
            self.file.close()


class Disk:
    """What is done to files in one folder: counted, and made to fail once, or from then on for good.

    What is done to a lock, which is a handle of its own, is named as such: a disk may have none.
    """

    def __init__(
        self, folder: Path, at: int = 0, error: Callable[[], BaseException] | None = None, spoils: str = ""
    ) -> None:
        self.folder, self.at, self.error, self.spoils = str(folder), at, error, spoils
        self.lasting, self.steps, self.failed = False, [], []
        self.handles: set[int] = set()
        self.locks: set[int] = set()

    def step(self, name: str) -> None:
        self.steps.append(name)
        if self.error is not None and (len(self.steps) == self.at or (self.lasting and len(self.steps) > self.at)):
            self.failed.append(name)
            raise self.error()

    def owner(self, place: Any) -> str | None:
        """Whose a path or a handle is: a file's, a lock's, or none of ours."""
        if isinstance(place, int):
            return "file" if place in self.handles else "lock" if place in self.locks else None
        if not str(place).startswith(self.folder):
            return None
        return "lock" if str(place).endswith(".lock") else "file"

    def watched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def operation(place: Any, *arguments: Any, **named: Any) -> Any:
            owner = self.owner(place)
            if owner is None:
                return original(place, *arguments, **named)
            try:
                self.step(name if owner == "file" else f"{name} of a lock")
            except BaseException:
                if name == "os.close":
                    self.closed(place)
                    original(place)
                raise
            found = original(place, *arguments, **named)
            if name == "os.close":
                self.closed(place)
            if name in ("os.open", "os.dup"):
                (self.handles if name == "os.open" and owner == "file" else self.locks).add(found)
            if name == "open":
                self.handles.add(found.fileno())
                return Handle(found, self)
            return found

        return operation

    def closed(self, handle: int) -> None:
        """A number that is free again may be anybody's."""
        self.handles.discard(handle)
        self.locks.discard(handle)

    @contextmanager
    def in_place(self) -> Iterator[Disk]:
        with pytest.MonkeyPatch.context() as patch:
            for name in (
                "open",
                "close",
                "dup",
                "fsync",
                "stat",
                "lstat",
                "fstat",
                "fchmod",
                "scandir",
                "read",
                "write",
            ):
                patch.setattr(os, name, self.watched(f"os.{name}", getattr(os, name)))
            for name in ("replace", "rename", "link", "unlink", "remove", "truncate", "ftruncate"):
                patch.setattr(os, name, self.watched(f"os.{name}", getattr(os, name)))
            patch.setattr(fcntl, "flock", self.watched("flock", fcntl.flock))
            opened = self.watched("open", io.open)
            patch.setattr(io, "open", opened)
            patch.setattr(builtins, "open", opened)
            yield self


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def broken() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))


ERRORS: tuple[Callable[[], BaseException], ...] = (no_space, broken, KeyboardInterrupt)
ADVICE = re.compile(r"(Writing|Reading) failed \(.+\).*: \w+ \w+|There is no model file .*: ?\w+|is not .*: use")


def raised_by(call: Callable[[], object], disk: Disk) -> BaseException | None:
    """Call on a disk that fails, and tell the error that came through."""
    try:
        with disk.in_place():
            call()
    except (OSError, ValueError, KeyboardInterrupt) as error:
        return error
    return None


def is_sentence(error: BaseException) -> bool:
    return bool(ADVICE.search(str(error)))


def after_the_name(disk: Disk) -> bool:
    """Whether the first failure came when the new file had its name."""
    return "os.replace" in disk.steps[: disk.at - 1]


WRITERS: dict[str, Callable[[World], None]] = {
    "model": lambda world: world.clf.save(world.path, overwrite=True),
    "sums": lambda world: world.clf.statistics().save(world.path),
    "map": lambda world: save_map(world.clf.feature_map_, world.path),
}
READERS: dict[str, Callable[[Path], Any]] = {
    "model": lambda path: bits(CLDNetClassifier.load(path)),
    "sums": lambda path: Statistics.load(path).rows,
    "map": lambda path: load_map(path).map_id,
}


@pytest.mark.parametrize("old", [True, False])
@pytest.mark.parametrize("kind", WRITERS)
def test_a_disk_that_fails_once_while_a_file_is_written_leaves_the_old_one_or_the_new_one(
    kind: str, old: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    world, write = world_for("exact", tmp_path / "world"), WRITERS[kind]
    world.clf.refresh()  # a file has the solution if there is one
    with Disk(world.folder).in_place() as counting:
        write(world)
    new, memory = files(world.folder), bits(world.clf)
    assert {"open", "write", "flush", "os.fsync", "close", "read", "os.replace", "os.open"} <= {*counting.steps}
    before = {"file": b"what was there before"} if old else {}
    for number, error in itertools.product(range(1, len(counting.steps) + 1), ERRORS):
        world.path.unlink()
        for name, content in before.items():
            (world.folder / name).write_bytes(content)
        caplog.clear()
        disk = Disk(world.folder, number, error)
        raised = raised_by(lambda: write(world), disk)
        found = files(world.folder)
        assert found == (new if raised is None or after_the_name(disk) else before), disk.steps
        if isinstance(raised, OSError):
            assert is_sentence(raised), raised
            assert not after_the_name(disk)
        elif disk.failed and error is not KeyboardInterrupt and disk.failed[0] in ("os.open", "os.fsync", "os.close"):
            assert "is written, but its folder could not be flushed to disk" in caplog.text
        assert bits(world.clf) == memory
        write(world)
        assert files(world.folder) == new


@pytest.mark.parametrize("spoils", ["short write", "other bytes"])
def test_a_disk_that_says_nothing_but_holds_something_else_is_found_out(spoils: str, tmp_path: Path) -> None:
    world = world_for("exact", tmp_path / "world")
    before = files(world.folder)
    world.clf.partial_fit(X, Y)
    with Disk(world.folder, spoils=spoils).in_place(), pytest.raises(OSError, match="returned other bytes") as caught:
        world.clf.save(world.path, overwrite=True)  # or it would be taken for a file that has changed
    assert is_sentence(caught.value)
    assert files(world.folder) == before


def test_a_disk_that_fails_for_good_leaves_the_old_file_and_litter_that_is_swept_later(tmp_path: Path) -> None:
    world = world_for("exact", tmp_path / "world")
    world.clf.refresh()
    with Disk(world.folder).in_place() as counting:
        world.clf.save(world.path)
    before, memory, littered = files(world.folder), bits(world.clf), 0
    for number in range(1, counting.steps.index("os.replace") + 2):
        disk = Disk(world.folder, number, broken)
        disk.lasting = True
        with disk.in_place(), pytest.raises(OSError, match="unchanged: try again") as caught:
            world.clf.save(world.path)
        assert is_sentence(caught.value)
        assert bits(world.clf) == memory
        assert world.path.read_bytes() == before["file"]
        for litter in {*files(world.folder)} - {"file"}:
            littered += 1
            os.utime(world.folder / litter, (0, 0))
        while _unreleased:  # as if another process saved next
            _unreleased.pop().release(force=True)
        world.clf.save(world.path)
        assert files(world.folder) == before
    assert littered > 3


@pytest.mark.parametrize("kind", READERS)
def test_a_disk_that_fails_while_a_file_is_read_changes_nothing_and_is_named(kind: str, tmp_path: Path) -> None:
    world, read = world_for("exact", tmp_path / "world"), READERS[kind]
    WRITERS[kind](world)
    with Disk(world.folder).in_place() as counting:
        expected = read(world.path)
    before, memory = files(world.folder), bits(world.clf)
    assert {"os.stat", "open", "os.fstat", "read", "close"} <= {*counting.steps}
    assert counting.steps.count("read") > len(store.read(world.path)[0]), (
        "each tensor is read by itself, and the header"
    )
    for number, error in itertools.product(range(1, len(counting.steps) + 1), ERRORS):
        disk = Disk(world.folder, number, error)
        found: list[Any] = []
        raised = raised_by(lambda found=found: found.append(read(world.path)), disk)
        assert is_sentence(raised) if isinstance(raised, Exception) else raised is not None or found == [expected], (
            raised
        )
        assert files(world.folder) == before
        assert bits(world.clf) == memory
        assert read(world.path) == expected


def interrupted_session(world: World) -> dict[str, bytes]:
    """The checkpoint of a session that was learned by somebody who was gone before it was saved."""
    teach_in_pieces(world._replace(clf=copy.deepcopy(world.clf)), world.folder / "session")
    return {"session": (world.folder / "session").read_bytes()}


def put(contents: dict[str, bytes], folder: Path) -> None:
    for name, content in contents.items():
        (folder / name).write_bytes(content)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("interrupted", [False, True], ids=["anew", "interrupted before"])
@pytest.mark.parametrize("solver", SOLVERS)
def test_a_disk_that_fails_under_a_checkpoint_leaves_the_model_and_a_session_to_go_on_with(
    solver: str, interrupted: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    both, counted = twins(solver, tmp_path)
    world, old = both.world, both.world.path.read_bytes()
    begun = interrupted_session(counted) if interrupted else {}
    put(begun, counted.folder)
    with Disk(counted.folder).in_place() as counting:
        teach_and_save(counted)
    assert counting.steps.count("os.replace") >= 2 - interrupted
    for number in places(len(counting.steps), some=25):
        error = ERRORS[number % len(ERRORS)]
        put(begun, world.folder)
        caplog.clear()
        clf, disk = copy.deepcopy(world.clf), Disk(world.folder, number, error)
        raised = raised_by(lambda clf=clf: teach_and_save(world._replace(clf=clf)), disk)
        if raised is None:
            assert learned(clf) == both.expected, disk.failed
            assert world.path.read_bytes() == both.new, disk.failed
            if "session" in files(world.folder):
                assert disk.failed in (["os.unlink"], ["os.stat"])
                assert "The session is learned and saved, but its checkpoint" in caplog.text
        else:
            assert isinstance(raised, KeyboardInterrupt) or is_sentence(raised), raised
            assert learned(clf) in (learned(world.clf), both.expected), disk.failed
        both.check(f"{disk.failed} at step {number}, CLDNET_FAULTS={TRIED}")
        world.path.write_bytes(old)


def test_a_checkpoint_that_cannot_be_removed_is_named_and_not_in_the_way(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, twin = world_for("hbo", tmp_path / "world"), world_for("hbo", tmp_path / "twin")
    unlink = os.unlink

    def refuse(place: Any, *arguments: Any, **named: Any) -> None:
        if Path(place).name == "session":
            raise broken()
        unlink(place, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refuse)
        teach_and_save(world)
    assert "The session is learned and saved, but its checkpoint" in caplog.text
    assert (world.folder / "session").exists()
    teach_and_save(twin)
    for each in (world, twin):  # the next session has the same name
        with each.clf.session(each.folder / "session", every=0.0):
            each.clf.partial_fit(X, Y)
    assert bits(world.clf) == bits(twin.clf)


def test_a_folder_that_cannot_be_brought_to_disk_is_a_warning_since_the_file_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path, opened = tmp_path / "file", os.open
    path.write_bytes(b"old")

    def refuse(place: Any, *arguments: Any, **named: Any) -> int:
        if Path(place) == tmp_path:
            raise PermissionError(errno.EACCES, "Permission denied")
        return opened(place, *arguments, **named)

    monkeypatch.setattr(os, "open", refuse)
    store.write_atomically(path, b"new")
    assert files(tmp_path) == {"file": b"new"}
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("cldnet", logging.WARNING)
    assert "its folder could not be flushed to disk (Permission denied)" in record.getMessage()


def test_what_a_killed_writer_left_is_removed_by_the_next_one_if_it_is_of_the_same_name(tmp_path: Path) -> None:
    code = "0123456789abcdef"
    left = [tmp_path / f".model.{code}.tmp", tmp_path / ".model.fedcba9876543210.tmp"]
    kept = [
        tmp_path / name for name in (f".model2.{code}.tmp", ".model.tmp", f".model.{code}.tmp.txt", f"model.{code}.tmp")
    ]
    in_use = tmp_path / ".model.00000000ffffffff.tmp"
    for path in (*left, *kept, in_use):
        path.write_bytes(b"half")
        os.utime(path, (0, 0))
    with in_use.open("rb") as file:  # by somebody who is at work, and has a lock on it
        fcntl.flock(file, fcntl.LOCK_EX)
        store.write_atomically(tmp_path / "model", b"whole")
        assert {*tmp_path.iterdir()} == {tmp_path / "model", in_use, *kept}
    store.write_atomically(tmp_path / "model", b"whole")
    assert {*tmp_path.iterdir()} == {tmp_path / "model", *kept}


def test_a_writer_keeps_others_from_sweeping_what_it_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, fsync, swept = tmp_path / "model", os.fsync, []

    def sweep_now(handle: int) -> None:
        before = files(tmp_path)
        store.sweep(path)
        swept.append((before, files(tmp_path)))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", sweep_now)
    store.write_atomically(path, b"whole")
    (before, after), *_ = swept
    assert before == after
    assert [*before.values()] == [b"whole"]
    assert files(tmp_path) == {"model": b"whole"}


def test_a_device_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match=r"not a regular file.*unchanged: choose another name") as caught:
        store.write_atomically(pipe, b"content")
    assert is_sentence(caught.value)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]


@pytest.mark.parametrize("place", ["", ".", "/"])
def test_a_folder_instead_of_a_file_is_named(place: str) -> None:
    with pytest.raises(OSError, match="this is a folder: name a file in it"):
        store.write_atomically(place, b"content")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no disk that is always full")
def test_a_disk_that_is_really_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = os.open

    def full(place: Any, flags: int, *arguments: Any, **named: Any) -> int:
        return opened("/dev/full", os.O_WRONLY) if flags & os.O_EXCL else opened(place, flags, *arguments, **named)

    monkeypatch.setattr(os, "open", full)
    monkeypatch.setattr(os, "fchmod", lambda *_: pytest.fail("it is the system's device"))
    with pytest.raises(OSError, match=r"No space left on device.*unchanged: free some space on the disk"):
        store.write_atomically(tmp_path / "file", b"content")
    assert files(tmp_path) == {}


def test_a_file_that_is_really_too_large(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    path = tmp_path / "file"
    path.write_bytes(b"old")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large.*unchanged"):
            store.write_atomically(path, bytes(2 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert files(tmp_path) == {"file": b"old"}


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="whoever is root may write everywhere")
def test_a_folder_that_is_really_read_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OSError, match="unchanged: choose a folder that you may write to"):
            store.write_atomically(tmp_path / "file", b"new")
    finally:
        tmp_path.chmod(0o700)
    assert files(tmp_path) == {"file": b"old"}


@pytest.mark.parametrize("kind", WRITERS)
def test_a_folder_that_is_not_there(kind: str, tmp_path: Path) -> None:
    world = world_for("exact", tmp_path / "world")
    memory = bits(world.clf)
    with pytest.raises(OSError, match=r"No such file or directory.*unchanged: create the folder first"):
        WRITERS[kind](world._replace(folder=tmp_path / "nowhere"))
    assert bits(world.clf) == memory
    assert [path.name for path in tmp_path.iterdir()] == ["world"]


if __name__ == "__main__":
    os.environ["CLDNET_FAULTS"] = "all"
    sys.exit(pytest.main([__file__, *sys.argv[1:]]))
