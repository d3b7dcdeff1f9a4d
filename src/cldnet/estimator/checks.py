"""Checks of the contract of every learner. Run `check_learner` on a method that you write."""

from __future__ import annotations

import copy
import gc
import tempfile
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import cldnet.storage as store
from cldnet.data.labels import LabelTable
from cldnet.device import generator
from cldnet.estimator.audit import compare, dissimilar_samples
from cldnet.estimator.footprint import footprint
from cldnet.methods.fit import TaskCheckpoint, fit_task
from cldnet.methods.learner import Learner, Setting, TakesOutsideData, TaskData, predict_logits

#: Makes the learner to check for a setting (inputs are vectors of 8 numbers, and of 64).
Make = Callable[[Setting], Learner]

_SHAPE, _CAPACITY = (8,), 8
_CENTRES = 4.0 * torch.randn(_CAPACITY, *_SHAPE, generator=generator(5))
_OUTSIDE = 4.0 * torch.randn(100, *_SHAPE, generator=generator(6))


def check_learner(make: Make) -> None:
    """Check everything that a learner promises; an AssertionError names the promise that is broken.

    Parameters
    ----------
    make : callable
        Makes a fresh learner from a `cldnet.methods.learner.Setting`. Keep it small and quick: it is trained often.

    Examples
    --------
    >>> from cldnet.methods import build_learner
    >>> check_learner(lambda setting: build_learner("exact", setting, backbone_options={"features": 30}))
    """
    for check in CHECKS.values():
        check(make)


def check_same_seed_same_bits(make: Make) -> None:
    """The same seed and data give the same state and scores, bit for bit."""
    _assert_same_state(_taught(make, 3), _taught(make, 3), "two learners with one seed")


def check_state_is_all(make: Make) -> None:
    """A state that went through a file gives the same learner, and a run resumed from it equals an uninterrupted one."""
    straight, resumed = _made(make), _made(make)
    for number in range(3):
        _teach(straight, _task(number))
        _teach(resumed, _task(number))
        loose = [name for name, tensor in straight.state_dict().items() if not tensor.is_contiguous()]
        assert not loose, f"{loose} will have another memory layout after loading, so products may round differently"
        with tempfile.TemporaryDirectory() as folder:
            store.write(Path(folder) / "state", resumed.state_dict(), {})
            state, _ = store.read(Path(folder) / "state")
        resumed = _made(make)
        resumed.load_state(state)
        resumed.eval()
        _assert_same_state(straight, resumed, f"a resumed learner after task {number}")


def check_resume_within_task(make: Make) -> None:
    """A task that was interrupted after any step and resumed from a checkpoint ends in the same bits."""
    straight, before, checkpoints = _taught(make, 1), _state(_taught(make, 1)), list[TaskCheckpoint]()
    fit_task(straight, _task(1), epochs=2, batch_size=8, on_checkpoint=lambda now: checkpoints.append(now()))
    for checkpoint in checkpoints:
        resumed = _made(make)
        resumed.load_state(before)
        fit_task(resumed, _task(1), epochs=2, batch_size=8, resume=checkpoint)
        where = f"a task resumed after {checkpoint.epoch} epochs and {checkpoint.batches} batches"
        _assert_same_state(straight, resumed, where)


def check_predict_is_pure(make: Make) -> None:
    """Scoring changes nothing, in the learner or around it, and does not depend on the batch, nor on other threads."""
    learner, x = _taught(make, 2), _task(0).x
    before, around = _state(learner), _surroundings()
    scores = predict_logits(learner, x)
    assert torch.isfinite(scores).all(), "scores are not finite"
    assert scores.shape == (len(x), learner.seen), f"scores have shape {tuple(scores.shape)}"
    for size in (1, 3, len(x)):
        torch.testing.assert_close(predict_logits(learner, x, size), scores, rtol=1e-5, atol=1e-5)
    with ThreadPoolExecutor(4) as pool:
        for other in pool.map(lambda _: learner.logits(x), range(8)):
            torch.testing.assert_close(other, scores, rtol=1e-5, atol=1e-5)
    _assert_equal(before, _state(learner), "predicting changed the state")
    assert around == _surroundings(), "predicting changed torch's global settings"


def check_learning_stays_inside(make: Make) -> None:
    """Learning leaves its inputs and torch's global settings as they were."""
    learner, task, around = _made(make), _task(0), _surroundings()
    x, y = task.x.clone(), task.y.clone()
    _teach(learner, task)
    assert torch.equal(task.x, x), "learning changed its inputs"
    assert torch.equal(task.y, y), "learning changed its labels"
    assert around == _surroundings(), "learning changed torch's random state, threads, grad mode or default dtype"
    assert not learner.training, "the learner is left in training mode"


def check_learns(make: Make) -> None:
    """After a task, its classes are classified correctly among each other."""
    learner = _made(make)
    for number in range(2):
        task = _task(number)
        _teach(learner, task, epochs=20)
        right = task.class_rows[learner.logits(task.x)[:, task.class_rows].argmax(1)] == task.y
        assert right.float().mean() > 0.9, f"only {float(right.float().mean()):.0%} of task {number} is correct"


def check_odd_tasks(make: Make) -> None:
    """Labels of any type; a task of one class; a class that comes back; weights; a single sample."""
    for labels in (["ant", "bee", "cat"], [-7, 40, 3], [True, False]):
        learner, table = _made(make), LabelTable(_CAPACITY)
        for classes in (labels[:2], labels[-1:], labels[:1]):
            y = torch.from_numpy(table.learn(np.repeat(classes, 6)))
            x = _CENTRES[y] + 0.1 * torch.randn(len(y), *_SHAPE, generator=generator(1))
            _teach(learner, TaskData(x, y, torch.linspace(0.5, 1.5, len(y))))
            scores = learner.logits(x)
            assert torch.isfinite(scores).all(), f"scores are not finite after classes {classes}"
            assert scores.shape[1] == len(table), f"{scores.shape[1]} scores for {len(table)} classes"
        _teach(learner, TaskData(x[:1], y[:1]))
        assert torch.isfinite(learner.logits(x)).all(), "scores are not finite after a task of one sample"


def check_copies_are_independent(make: Make) -> None:
    """Teaching a copy leaves the original as it was: this is how a failed call leaves no trace."""
    learner = _taught(make, 1)
    before = _state(learner)
    other = copy.deepcopy(learner)
    _teach(other, _task(1))
    _assert_equal(before, _state(learner), "teaching a copy changed the original")
    _teach(learner, _task(1))
    _assert_same_state(learner, other, "a copy that was taught the same")


def check_size(make: Make) -> None:
    """The state grows exactly as the learner declares: not at all if it has constant size."""
    learner = _taught(make, 1)
    size = footprint(learner).total
    for number in (1, 2, 3):
        task = _task(number)
        declared = learner.growth(task)
        _teach(learner, task)
        declared = learner.grown if declared is None else declared
        grown = footprint(learner).total - size
        assert grown == declared, f"the state grew by {grown} bytes in task {number}; {declared} were declared"
        assert grown == 0 or not learner.traits.constant_size, f"a constant learner grew by {grown} bytes"
        size += grown
    named = {name.split(".")[0] for name in learner.state_dict()} - {"scale", "counters", "random"}
    assert named <= set(learner.kinds), f"no kind is named for {sorted(named - set(learner.kinds))}"


def check_keeps_no_data(make: Make) -> None:
    """A rehearsal-free learner lets go of its training tensors, and no training sample is in its state."""
    learner = _made(make)
    if not learner.traits.rehearsal_free:
        return
    tasks = [_task(number) for number in range(2)]
    x = torch.cat([task.x for task in tasks])
    references = [weakref.ref(tensor) for task in tasks for tensor in (task.x, task.y)]
    while tasks:
        _teach(learner, tasks.pop(0))
    gc.collect()
    assert not any(reference() is not None for reference in references), "training tensors are still alive"
    for samples in (x, learner.scale(x)):
        for name, tensor in learner.state_dict().items():
            if tensor.numel() % samples.shape[1] == 0 and not tensor.is_complex():
                kept = (tensor.reshape(-1, 1, samples.shape[1]).to(samples.dtype) == samples).all(-1)
                assert not kept.any(), f"{name} holds a training sample"


def check_stores_no_sample(make: Make) -> None:
    """Nothing that a rehearsal-free learner keeps has a |cosine| beyond 0.99 with a sample, in any form in which it met it."""
    y = torch.arange(160) // 40
    for kind, x in dissimilar_samples().items():
        learner = _made(make, (64,))
        if not learner.traits.rehearsal_free:
            return
        for chosen in (y < 2, y >= 2):
            _teach(learner, TaskData(x[chosen], y[chosen]))
        for found in compare(learner, x):
            what = f"{found.form} {found.at} of {found.tensor}"
            like = f"is like one of the {kind} samples {found.space}: |cosine| {found.cosine:.4f}"
            assert found.verdict != "revealing", f"{what} {like}"


def check_outside_data(make: Make) -> None:
    """A learner that needs outside data says so before anything changes, and keeps none of it."""
    learner = make(Setting(_SHAPE, _CAPACITY, seed=3))
    assert learner.traits.outside_data == isinstance(learner, TakesOutsideData), "the trait outside_data is wrong"
    if not isinstance(learner, TakesOutsideData):
        return
    before = _state(learner)
    _assert_refused(lambda: _teach(learner, _task(0)))
    for wrong in (_OUTSIDE[:0], _OUTSIDE[:, 1:]):
        _assert_refused(lambda wrong=wrong: learner.take_outside(wrong))  # type: ignore[misc]
    _assert_equal(before, _state(learner), "learning without outside data changed the state")
    learner.take_outside(_OUTSIDE)
    assert learner.state_dict().keys() == before.keys(), "outside data became a part of the state"


#: All checks by name, in the order in which they run.
CHECKS: Mapping[str, Callable[[Make], None]] = {
    check.__name__: check
    for check in (
        check_same_seed_same_bits,
        check_state_is_all,
        check_resume_within_task,
        check_predict_is_pure,
        check_learning_stays_inside,
        check_learns,
        check_odd_tasks,
        check_copies_are_independent,
        check_size,
        check_keeps_no_data,
        check_stores_no_sample,
        check_outside_data,
    )
}


def _made(make: Make, shape: tuple[int, ...] = _SHAPE) -> Learner:
    """A fresh learner, with outside inputs if it uses them."""
    learner = make(Setting(shape, _CAPACITY, seed=3))
    if isinstance(learner, TakesOutsideData):
        learner.take_outside(4.0 * torch.randn(100, *shape, generator=generator(6)))
    return learner


def _task(number: int) -> TaskData:
    """Two classes around centres of their own, 24 samples."""
    y = torch.arange(2 * number, 2 * number + 2).repeat(12)
    return TaskData(_CENTRES[y] + torch.randn(len(y), *_SHAPE, generator=generator(number)), y)


def _teach(learner: Learner, task: TaskData, epochs: int = 2) -> None:
    fit_task(learner, task, epochs=epochs, batch_size=8)


def _taught(make: Make, tasks: int) -> Learner:
    learner = _made(make)
    for number in range(tasks):
        _teach(learner, _task(number))
    return learner


def _state(learner: Learner) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in learner.state_dict().items()}


def _surroundings() -> tuple[Any, ...]:
    random = tuple(torch.get_rng_state().tolist())
    return random, torch.get_num_threads(), torch.is_grad_enabled(), torch.get_default_dtype()


def _assert_equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor], message: str) -> None:
    different = [name for name in {*first, *second} if not torch.equal(first[name], second[name])]
    assert not different, f"{message}: {sorted(different)}"


def _assert_same_state(first: Learner, second: Learner, who: str) -> None:
    _assert_equal(first.state_dict(), second.state_dict(), f"{who}: states differ")
    x = _task(0).x
    assert torch.equal(first.logits(x), second.logits(x)), f"{who}: scores differ"


def _assert_refused(call: Callable[[], Any]) -> None:
    try:
        call()
    except (ValueError, TypeError) as error:
        assert len(str(error).split()) > 3, f"{error!r} is not a sentence"
    else:
        raise AssertionError("bad input was accepted")
