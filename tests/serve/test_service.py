"""A model that is served: many threads predict, one teaches, and nothing is lost or half done."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.exceptions import NotFittedError
from tests.estimator.test_forget import assert_same_sums
from tests.serving import birds, photos, sheep, stored, table

from cldnet import CLDNetClassifier, locked
from cldnet.estimator.history import today
from cldnet.serve import service as module
from cldnet.serve.service import Answers, Busy, Joined, ModelService, Repeated

Opened = Callable[..., ModelService]
ROWS, _ = table("cat", "dog", "emu", count=4, seed=9)


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    """Serve a classifier of which a copy is on disk."""
    with ExitStack() as ending:

        def open_service(clf: CLDNetClassifier | None, new: Any = None) -> ModelService:
            if clf is not None:
                clf.save(tmp_path / "model.cldnet")
            return ending.enter_context(closing(ModelService(tmp_path / "model.cldnet", new)))

        yield open_service


@pytest.fixture
def service(opened: Opened) -> ModelService:
    return opened(sheep().fit(*table("cat", "dog")))


def learn(service: ModelService, *labels: str, seed: int = 0, **how: Any) -> Future[module.Change]:
    return service.learn(*table(*labels, seed=seed), "row", **how)


def shares(service: ModelService, X: Any = ROWS) -> np.ndarray[Any, Any]:
    return service.predict(list(X)).result(60).probabilities


class Gate:
    """Holds the writer's thread before it saves, until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        save = module.save_solved

        def waiting(*arguments: Any) -> None:
            self.reached.set()
            assert self.open.wait(60)
            save(*arguments)

        monkeypatch.setattr(module, "save_solved", waiting)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch, service: ModelService) -> Iterator[Gate]:
    """It is opened at the end, before the service is closed."""
    gate = Gate(monkeypatch)
    yield gate
    gate.open.set()


# -- predictions -------------------------------------------------------------------------------------------------------


def test_predictions_of_rows_are_those_of_the_classifier(service: ModelService) -> None:
    clf, answers = stored(service.path), service.predict(list(ROWS)).result()
    assert answers.classes == ["cat", "dog"]
    np.testing.assert_array_equal(answers.probabilities, clf.predict_proba(ROWS))
    assert answers.known is not None
    np.testing.assert_array_equal(answers.known, clf.known_probability(ROWS))


def test_predictions_of_photos_are_those_of_the_classifier(opened: Opened) -> None:
    clf = birds().fit(*photos("owl", "wren", "emu"))
    service, X = opened(clf), photos("owl", "emu", seed=5)[0]
    assert service.noun == "photo"
    np.testing.assert_allclose(shares(service, X), clf.predict_proba(X), rtol=0, atol=1e-6)


def test_a_model_of_the_other_solver_predicts_and_does_not_know_what_is_known(
    opened: Opened, other_solver: CLDNetClassifier
) -> None:
    answers = opened(other_solver).predict(list(ROWS)).result()
    assert answers.known is None
    np.testing.assert_array_equal(answers.probabilities, other_solver.predict_proba(ROWS))


def test_predictions_go_on_with_the_old_model_while_a_lesson_is_learned(service: ModelService, gate: Gate) -> None:
    before = shares(service)
    lesson = learn(service, "emu")
    assert gate.reached.wait(60)
    np.testing.assert_array_equal(shares(service), before)
    assert service.usable().classes_.tolist() == ["cat", "dog"]
    assert not lesson.done()
    gate.open.set()
    lesson.result(60)
    assert service.predict(list(ROWS)).result().classes == ["cat", "dog", "emu"]


def test_every_answer_is_by_one_state_of_the_model(service: ModelService) -> None:
    done = threading.Event()

    def ask() -> set[int]:
        found = set[int]()
        while not done.is_set():
            answers = service.predict(list(ROWS)).result(60)
            assert answers.probabilities.shape == (len(ROWS), len(answers.classes))
            np.testing.assert_allclose(answers.probabilities.sum(axis=1), 1)
            found.add(len(answers.classes))
        return found

    with ThreadPoolExecutor(3) as pool:
        asking = [pool.submit(ask) for _ in range(3)]
        try:
            for _ in range(6):
                learn(service, "emu", "owl").result(60)
                service.undo().result(60)
        finally:
            done.set()
        assert set.union(*(each.result(60) for each in asking)) == {2, 4}


def together(batches: list[int], gate: threading.Event, reached: threading.Event) -> Callable[[Sequence[Any]], Answers]:
    """Predict numbers as themselves, note the sizes of batches, and fail for those below zero."""

    def predict(inputs: Sequence[Any]) -> Answers:
        batches.append(len(inputs))
        reached.set()
        assert gate.wait(60)
        if min(inputs) < 0:
            raise ValueError("below zero")
        return Answers(["x"], np.array(inputs, dtype=np.float64)[:, None], None)

    return predict


@pytest.fixture
def joined() -> Iterator[tuple[Joined, list[int], threading.Event]]:
    """A batch of one sample is being predicted; it ends when the event is set."""
    batches, gate, reached = list[int](), threading.Event(), threading.Event()
    made = Joined(together(batches, gate, reached))
    made.submit([7])
    assert reached.wait(60)
    yield made, batches, gate
    gate.set()
    made.close()


def test_requests_that_wait_are_joined_and_each_gets_its_own_rows(
    joined: tuple[Joined, list[int], threading.Event],
) -> None:
    made, batches, gate = joined
    waiting = [made.submit(inputs) for inputs in ([1], [2, 3], [4])]
    gate.set()
    answers = [each.result(60).probabilities[:, 0].tolist() for each in waiting]
    assert answers == [[1], [2, 3], [4]]
    assert batches == [1, 4]


def test_a_request_that_fails_does_not_fail_those_that_it_was_joined_with(
    joined: tuple[Joined, list[int], threading.Event],
) -> None:
    made, batches, gate = joined
    good, bad, late = (made.submit(inputs) for inputs in ([1], [-1], [2]))
    gate.set()
    assert good.result(60).probabilities.tolist() == [[1]]
    with pytest.raises(ValueError, match="below zero"):
        bad.result(60)
    assert late.result(60).probabilities.tolist() == [[2]]
    assert batches == [1, 3, 1, 1, 1]
    assert made.submit([5]).result(60).probabilities.tolist() == [[5]]


def test_batches_are_bounded_and_abandoned_requests_are_not_predicted(
    joined: tuple[Joined, list[int], threading.Event],
) -> None:
    made, batches, gate = joined
    waiting = [made.submit([1] * 20) for _ in range(4)]
    assert waiting[1].cancel()
    gate.set()
    for each in (waiting[0], *waiting[2:]):
        each.result(60)
    assert batches == [1, 20, 40]


def test_of_requests_predicted_together_a_wrong_one_fails_alone(service: ModelService) -> None:
    with ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(service.predict, [ROWS[0][: 8 - number % 2]]) for number in range(32)]
        answers = [each.result(60) for each in asked]
    for number, each in enumerate(answers):
        if number % 2:
            with pytest.raises(ValueError, match="expecting 8 features"):
                each.result(60)
        else:
            np.testing.assert_allclose(each.result(60).probabilities, shares(service)[:1], rtol=0, atol=1e-6)


# -- lessons -----------------------------------------------------------------------------------------------------------


def test_a_lesson_is_on_disk_when_it_is_answered(service: ModelService) -> None:
    change = learn(service, "emu", "dog", name="wool").result(60)
    on_disk = stored(service.path)
    assert change.new == ("emu",)
    assert change.lesson == on_disk.lessons_[-1]
    assert change.lesson is not None
    assert (change.lesson.name, change.lesson.samples) == ("wool", {"dog": 10, "emu": 10})
    assert on_disk.model_.exact.is_fresh, "the file has the solution"
    assert on_disk.model_.labels.dates["emu"] == (today(), today())
    np.testing.assert_array_equal(on_disk.predict_proba(ROWS), shares(service))


def test_lessons_equal_those_of_a_classifier(service: ModelService) -> None:
    learn(service, "emu").result(60)
    learn(service, "owl", "cat").result(60)
    taught = sheep().fit(*table("cat", "dog")).partial_fit(*table("emu")).partial_fit(*table("owl", "cat"))
    assert_same_sums(stored(service.path), taught)


def test_of_lessons_from_many_threads_none_is_lost_and_none_is_twice(service: ModelService) -> None:
    with ThreadPoolExecutor(6) as pool:
        sent = [pool.submit(learn, service, "emu", seed=seed, name=f"lesson {seed}") for seed in range(12)]
        for each in sent:
            each.result(60).result(60)
    lessons = stored(service.path).lessons_
    assert sorted(record.name for record in lessons[1:]) == sorted(f"lesson {seed}" for seed in range(12))
    assert stored(service.path).model_.labels.counts["emu"] == 120


def stays(service: ModelService, change: Callable[[], Future[Any]], error: type[Exception], match: str) -> None:
    """A change fails, and model, file and predictions are as they were; the next one is made."""
    clf, content, before = service.classifier, service.path.read_bytes(), shares(service)
    with pytest.raises(error, match=match):
        change().result(60)
    assert service.classifier is clf
    assert service.path.read_bytes() == content
    np.testing.assert_array_equal(shares(service), before)
    assert stored(service.path).classes_.tolist() == service.usable().classes_.tolist()


def test_a_lesson_that_fails_leaves_everything_as_it_was(service: ModelService) -> None:
    X, y = table("emu")
    for data, match in {(): "8 features", ("nan",): "NaN"}.items():
        wrong = np.where(np.arange(8) > 6, np.nan, X) if data else X[:, :5]
        stays(service, lambda wrong=wrong: service.learn(wrong, y, "row"), ValueError, match)  # type: ignore[misc]
    stays(service, lambda: service.learn(X, [1] * len(y), "row"), ValueError, "one type")
    stays(service, lambda: service.undo(9), ValueError, "There is no lesson 9")
    stays(service, lambda: service.forget_class("yak"), ValueError, "no class 'yak'")
    stays(service, lambda: service.forget(X, y), ValueError, "emu")
    stays(service, lambda: service.rename("cat", "dog"), ValueError, "There is a class 'dog' already")
    assert learn(service, "emu").result(60).new == ("emu",)


def test_more_classes_than_there_is_room_for_leave_everything_as_it_was(opened: Opened) -> None:
    service = opened(sheep(capacity=3).fit(*table("cat", "dog")))
    stays(service, lambda: learn(service, "emu", "owl"), ValueError, "extend")


@pytest.mark.parametrize("step", ["replace", "fsync"])
def test_a_lesson_that_cannot_be_saved_leaves_everything_as_it_was(
    service: ModelService, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, step, full)
        stays(service, lambda: learn(service, "emu"), OSError, "No space left")
    assert {path.name for path in service.path.parent.iterdir()} == {"model.cldnet", ".model.cldnet.lock"}
    learn(service, "emu").result(60)
    assert "emu" in stored(service.path).classes_


def test_a_lesson_of_a_name_is_learned_once(service: ModelService) -> None:
    first = learn(service, "emu", name="twice", once=True).result(60)
    content = service.path.read_bytes()
    again = learn(service, "emu", name="twice", once=True).result(60)
    assert (first.repeated, again.repeated) == (False, True)
    assert again.lesson == first.lesson
    assert again.new == ()
    assert service.path.read_bytes() == content
    learn(service, "emu", seed=2, name="twice").result(60)
    assert len(stored(service.path).lessons_) == 3, "without once, the same name may come again"


def test_the_same_data_are_refused_unless_that_is_wanted(service: ModelService) -> None:
    stays(service, lambda: learn(service, "cat", "dog"), Repeated, "allow_duplicates")
    change = learn(service, "cat", "dog", duplicates=True).result(60)
    assert change.lesson is not None
    assert change.lesson.repeated
    assert stored(service.path).model_.labels.counts == {"cat": 20, "dog": 20}


def test_what_is_undone_was_never_taught(service: ModelService) -> None:
    never = stored(service.path)
    learn(service, "emu", "cat", name="wrong").result(60)
    undone = service.undo("wrong").result(60)
    assert undone.gone == ("emu",)
    assert undone.lesson is not None
    assert undone.lesson.name == "wrong"
    assert_same_sums(stored(service.path), never)
    np.testing.assert_allclose(shares(service), never.predict_proba(ROWS), rtol=0, atol=1e-6)


def test_an_earlier_lesson_is_undone_and_later_ones_stay(service: ModelService) -> None:
    learn(service, "emu").result(60)
    learn(service, "owl").result(60)
    assert service.undo(2).result(60).gone == ("emu",)
    assert_same_sums(stored(service.path), sheep().fit(*table("cat", "dog")).partial_fit(*table("owl")))


def test_samples_and_classes_are_forgotten(service: ModelService) -> None:
    X, y = table("cat", "dog")
    assert service.forget(X[:3], y[:3]).result(60).gone == ()
    assert_same_sums(stored(service.path), sheep().fit(X[3:], y[3:]))
    assert service.forget_class("cat").result(60).gone == ("cat",)
    assert stored(service.path).classes_.tolist() == ["dog"]


@pytest.mark.filterwarnings("ignore::cldnet.MapTraceWarning")  # `cldnet serve` ignores it, since answers have it
def test_what_the_library_warns_of_is_noted(opened: Opened) -> None:
    clf = CLDNetClassifier(keep_lessons=1, random_state=0).fit(*table("cat", "dog"))
    change = opened(clf).undo().result(60)
    assert [note for note in change.notes if "their trace in the map" in note]


def test_a_class_gets_another_label(service: ModelService) -> None:
    change = service.rename("dog", "wolf").result(60)
    assert change.gone == ("dog",)
    assert stored(service.path).classes_.tolist() == ["cat", "wolf"]


def test_changes_wait_for_each_other_up_to_a_number(service: ModelService, gate: Gate) -> None:
    waiting = [learn(service, "emu", seed=0)]
    assert gate.reached.wait(60)
    waiting += [service.rename("cat", "cat") for _ in range(module._WAITING - 1)]
    with pytest.raises(Busy, match="try again"):
        learn(service, "owl")
    gate.open.set()
    assert waiting[0].result(60).new == ("emu",)
    for each in waiting[1:]:
        assert each.exception(60) is None or isinstance(each.exception(60), ValueError)
    assert learn(service, "owl").result(60).new == ("owl",)


# -- the file ----------------------------------------------------------------------------------------------------------


def test_nobody_else_may_change_the_file_while_it_is_served(service: ModelService) -> None:
    with pytest.raises(BlockingIOError, match="locked by"):
        ModelService(service.path)
    with pytest.raises(BlockingIOError, match="locked by"), locked(service.path, wait=False):
        pass


def test_the_file_is_free_when_the_service_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "model.cldnet"
    sheep().fit(*table("cat", "dog")).save(path)
    service = ModelService(path)
    service.close()
    with locked(path, wait=False):
        pass
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("cldnet-")]


def test_closing_finishes_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.cldnet"
    sheep().fit(*table("cat", "dog")).save(path)
    service, gate = ModelService(path), Gate(monkeypatch)
    lessons = [learn(service, label) for label in ("emu", "owl")]
    asked = service.predict(list(ROWS))
    assert gate.reached.wait(60)
    closing_ = threading.Thread(target=service.close)
    closing_.start()
    gate.open.set()
    closing_.join(60)
    assert [each.result(0).new for each in lessons] == [("emu",), ("owl",)]
    assert asked.result(0).classes == ["cat", "dog"]
    assert stored(path).classes_.tolist() == ["cat", "dog", "emu", "owl"]


@pytest.mark.parametrize("content", [None, b"", b"no model"])
def test_a_file_that_is_no_model_is_refused_and_not_locked(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "model.cldnet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=r"no model|not a"):
        ModelService(path)
    with locked(path, wait=False):
        pass
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("cldnet-")]


def test_the_first_lesson_makes_a_model_of_its_kind(opened: Opened) -> None:
    made = []

    def new(noun: str) -> CLDNetClassifier:
        made.append(noun)
        return birds(keep_lessons=2)

    service = opened(None, new)
    assert (service.classifier, service.noun) == (None, None)
    with pytest.raises(NotFittedError, match="knows no class yet"):
        service.predict(list(ROWS))
    with pytest.raises(NotFittedError, match="knows no class yet"):
        service.undo().result(60)
    with pytest.raises(ValueError, match="shape"):
        service.learn(ROWS[:, :, None], ["owl"] * len(ROWS), "photo").result(60)
    assert not service.path.exists(), "a lesson that fails makes no file"
    X, y = photos("owl", "wren")
    assert service.learn(X, y, "photo").result(60).new == ("owl", "wren")
    assert (made, service.noun) == (["photo", "photo"], "photo")
    assert stored(service.path).predict(X).tolist() == y


def test_a_model_without_a_class_left_says_so_and_learns_again(service: ModelService) -> None:
    for label in ("cat", "dog"):
        service.forget_class(label).result(60)
    with pytest.raises(NotFittedError, match="teach it some first"):
        service.predict(list(ROWS))
    assert learn(service, "emu").result(60).new == ("emu",)
    assert service.predict(list(ROWS)).result(60).classes == ["emu"]
