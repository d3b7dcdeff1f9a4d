"""A model that is served: many threads predict with it while one teaches it, and a lesson counts when it is on disk."""

from __future__ import annotations

import copy
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import NotFittedError

from cldnet.estimator.classifier import CLDNetClassifier, note_date, trace_text
from cldnet.estimator.history import LessonRecord, today
from cldnet.estimator.predictor import Predictor
from cldnet.estimator.teaching import save_solved
from cldnet.storage import locked

#: Samples of several requests that are predicted together at most.
TOGETHER = 32
#: Changes that may wait for the one that is being made.
_WAITING = 64
_log = logging.getLogger("cldnet.serve")


class Busy(RuntimeError):
    """Too many changes are waiting."""


class Repeated(ValueError):
    """The same data were learned before."""


class Answers(NamedTuple):
    """Predictions of one request, all by one state of the model."""

    classes: list[Any]
    probabilities: NDArray[np.float64]
    known: NDArray[np.float64] | None  # see `CLDNetClassifier.known_probability`; None if the solver cannot tell


@dataclass(frozen=True)
class Change:
    """What a change did. ``lesson`` is None for changes that are not lessons."""

    classifier: CLDNetClassifier
    lesson: LessonRecord | None = None
    new: tuple[Any, ...] = ()
    gone: tuple[Any, ...] = ()
    notes: tuple[str, ...] = ()
    repeated: bool = False  # a lesson of this name was there already, and nothing was changed


class ModelService:
    """One model's file, open for predictions from many threads and for one change at a time.

    Predictions use the model as it is; a change is made on a copy, which is saved and then takes its place. So predictions
    never wait for a lesson, and a change that fails leaves model and file as they were. The file's lock
    (`cldnet.locked`) is held until `close`: no other process can change the file meanwhile.

    Parameters
    ----------
    path : Path
        The model's file. It need not exist if there is ``new``.
    new : callable, optional
        Makes a classifier for samples of a kind, ``"photo"`` or ``"text"``, when the first ones come.
    """

    def __init__(self, path: Path, new: Callable[[str], CLDNetClassifier] | None = None) -> None:
        self.path, self.new = path, new
        self._closing = ExitStack()
        # The lock belongs to the thread that takes it, so all changes are made in one.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="cldnet-writer")
        self._changes = threading.BoundedSemaphore(_WAITING)
        try:
            self._writer.submit(self._open).result()
            self._joined = Joined(self._predict)
        except BaseException:
            self._writer.shutdown()
            raise

    def _open(self) -> None:
        self._closing.enter_context(locked(self.path, wait=False))
        try:
            if self.new is None and not self.path.exists():
                raise ValueError(
                    f"There is no model {str(self.path)!r}. Make one with `cldnet learn`, or check the path."
                )
            self._classifier = CLDNetClassifier.load(self.path) if self.path.exists() else None
            self._noun = None if self._classifier is None else self._classifier.model_.inputs.noun
        except BaseException:
            self._closing.close()
            raise

    def close(self) -> None:
        """Finish the changes that are waiting, and give the file's lock back."""
        self._joined.close()
        self._writer.submit(self._closing.close).result()
        self._writer.shutdown()

    @property
    def classifier(self) -> CLDNetClassifier | None:
        """The classifier as it is on disk, or None if it was not taught yet. Do not change it."""
        return self._classifier

    @property
    def noun(self) -> str | None:
        """What a sample is called, ``"photo"``, ``"text"`` or ``"row"``; None as long as that is open."""
        return self._noun

    def usable(self) -> CLDNetClassifier:
        """The classifier, if it knows a class."""
        clf = self._classifier
        if clf is None or not len(clf.classes_):
            raise NotFittedError("The model knows no class yet: teach it some first.")
        return clf

    def predict(self, inputs: Sequence[Any]) -> Future[Answers]:
        """Predict samples, together with those of other requests that wait at the same time."""
        self.usable()
        return self._joined.submit(inputs)

    def _predict(self, inputs: Sequence[Any]) -> Answers:
        clf = self.usable()
        x: Any = inputs if self._noun == "text" else np.stack([*inputs])
        predictor = Predictor(clf.model_, clf.n_threads)
        classes = predictor.classes.tolist()
        if not clf.model_.learner.keeps_sums:
            return Answers(classes, predictor.predict_proba(x), None)
        return Answers(classes, *predictor.predict_known(x))

    def learn(
        self,
        X: Any,
        y: Sequence[Any],
        noun: str,
        *,
        name: str | None = None,
        once: bool = False,
        duplicates: bool = False,
    ) -> Future[Change]:
        """Learn samples as one lesson.

        Parameters
        ----------
        X, y : array-like
            The samples and their labels.
        noun : str
            What the samples are, for a model that is to be made.
        name : str, optional
            Name of the lesson.
        once : bool
            Learn nothing if the model remembers a lesson of this name: for requests that are sent again.
        duplicates : bool
            Learn the same samples again; otherwise `Repeated` is raised.
        """

        def learn(clf: CLDNetClassifier) -> Change:
            before = _classes_of(clf)
            if once and name is not None:
                same = [record for record in _lessons_of(clf) if record.name == name and record.action == "learned"]
                if same:
                    return Change(clf, same[-1], repeated=True)
            with clf.lesson(name):
                clf.partial_fit(X, y)
            note_date(clf, y, today())
            lesson = clf.lessons_[-1]
            if lesson.repeated and not duplicates:
                raise Repeated(
                    "The model has learned these samples before. Send them with allow_duplicates to have each count twice."
                )
            return Change(clf, lesson, new=tuple(sorted(_classes_of(clf) - before)))

        return self._change(learn, noun)

    def forget(self, X: Any, y: Sequence[Any]) -> Future[Change]:
        """Remove samples exactly; see `CLDNetClassifier.forget`."""

        def forget(clf: CLDNetClassifier) -> Change:
            notes = _trace(clf, y)
            return Change(clf.forget(X, y), notes=notes)

        return self._change(forget)

    def forget_class(self, label: Any) -> Future[Change]:
        """Drop a class without its samples."""
        return self._change(lambda clf: Change(clf.forget_class(label)))

    def rename(self, old: Any, new: Any) -> Future[Change]:
        """Give a class another label."""
        return self._change(lambda clf: Change(clf.rename_class(old, new)))

    def undo(self, lesson: int | str | None = None) -> Future[Change]:
        """Take a lesson back; see `CLDNetClassifier.undo`."""

        def undo(clf: CLDNetClassifier) -> Change:
            before = clf.lessons_
            left = {record.number for record in clf.undo(lesson).lessons_}
            undone = next(record for record in before if record.number not in left)
            return Change(clf, undone, notes=_trace(clf, undone.samples or ()))

        return self._change(undo)

    def _change(self, change: Callable[[CLDNetClassifier], Change], noun: str | None = None) -> Future[Change]:
        """Make a change in the writer's thread, after those that wait."""
        if not self._changes.acquire(blocking=False):
            raise Busy(f"{_WAITING} changes are waiting already: try again in a few seconds.")
        try:
            future = self._writer.submit(self._changed, change, noun)
        except BaseException:
            self._changes.release()
            raise
        future.add_done_callback(lambda _: self._changes.release())
        return future

    def _changed(self, change: Callable[[CLDNetClassifier], Change], noun: str | None) -> Change:
        begun, current = time.perf_counter(), self._classifier
        work = self._new(noun) if current is None else copy.copy(current)
        before = _classes_of(work)
        done = change(work)
        if not done.repeated:
            save_solved(work, self.path)
            # The file is written: from here on, nothing may fail.
            self._classifier, self._noun = work, work.model_.inputs.noun
            _log.info("changed in %.2f s", time.perf_counter() - begun)
        return replace(done, gone=tuple(sorted(before - _classes_of(work))))

    def _new(self, noun: str | None) -> CLDNetClassifier:
        if self.new is None or noun is None:
            raise NotFittedError("The model knows no class yet: teach it some first.")
        return self.new(noun)


def _trace(clf: CLDNetClassifier, labels: Iterable[Any]) -> tuple[str, ...]:
    """What to know if samples of some labels are taken off: the same that `MapTraceWarning` says."""
    traced = sorted(clf.model_.map_labels.intersection(labels))
    return (trace_text(traced),) if traced else ()


def _lessons_of(clf: CLDNetClassifier) -> Iterable[LessonRecord]:
    return clf.lessons_ if hasattr(clf, "model_") else ()


def _classes_of(clf: CLDNetClassifier) -> set[Any]:
    return {*clf.classes_.tolist()} if hasattr(clf, "model_") else set()


class _Job(NamedTuple):
    inputs: Sequence[Any]
    result: Future[Answers]


class Joined:
    """Predict the samples of several small requests in one batch, which takes less time than one after the other.

    A request that comes alone is predicted at once. While a batch is being predicted, those that come are collected.
    """

    def __init__(self, predict: Callable[[Sequence[Any]], Answers], most: int = TOGETHER) -> None:
        self._predict, self._most = predict, most
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="cldnet-predictions", daemon=True)
        self._thread.start()

    def submit(self, inputs: Sequence[Any]) -> Future[Answers]:
        """Predict samples as soon as the batch before is done."""
        job = _Job(inputs, Future())
        self._jobs.put(job)
        return job.result

    def close(self) -> None:
        """Finish what was submitted, and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        going = True
        while going:
            jobs, going = self._collected()
            # A request may have been given up while it waited.
            jobs = [job for job in jobs if job.result.set_running_or_notify_cancel()]
            if jobs:
                self._answer(jobs)

    def _collected(self) -> tuple[list[_Job], bool]:
        """The jobs that wait, up to the most samples of a batch, and whether there may be more later."""
        jobs, count = list[_Job](), 0
        while count < self._most:
            try:
                job = self._jobs.get(block=not jobs)
            except queue.Empty:
                break
            if job is None:
                return jobs, False
            jobs.append(job)
            count += len(job.inputs)
        return jobs, True

    def _answer(self, jobs: Sequence[_Job]) -> None:
        try:
            classes, probabilities, known = self._predict([sample for job in jobs for sample in job.inputs])
        except BaseException as error:
            if len(jobs) == 1:
                jobs[0].result.set_exception(error)
                return
            for job in jobs:  # one request's failure is not the others'
                self._answer([job])
            return
        first = 0
        for job in jobs:
            rows = slice(first, first := first + len(job.inputs))
            job.result.set_result(Answers(classes, probabilities[rows], None if known is None else known[rows]))
