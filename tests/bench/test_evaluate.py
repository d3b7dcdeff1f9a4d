"""Test images are mapped once where the map is fixed, and that changes no answer."""

from __future__ import annotations

import torch

from cldnet.bench.evaluate import Evaluation
from cldnet.data.streams import split_digits
from cldnet.fit import fit_task, predict_logits
from cldnet.methods import build_learner
from cldnet.methods.exact import Exact
from cldnet.methods.learner import Learner, Setting


def learner_for(shape: tuple[int, ...]) -> Learner:
    return build_learner("exact", Setting(shape, capacity=10, seed=0), backbone_options={"features": 60})


def test_what_is_kept_of_test_images_changes_no_answer() -> None:
    stream = split_digits(0)
    learner, kept = learner_for(stream.input_shape), Evaluation(stream)
    for number, task in enumerate(stream, start=1):
        fit_task(learner, task.train, epochs=1, batch_size=1024)
        assert kept.accuracies(learner, number) == Evaluation(stream).accuracies(learner, number)
        last = task.test
        right = (predict_logits(learner, last.x).argmax(1) == last.y).double().mean()
        assert kept.accuracies(learner, number)[0][-1] == float(right)


def test_every_test_image_is_mapped_once() -> None:
    stream = split_digits(0)
    learner, kept = learner_for(stream.input_shape), Evaluation(stream)
    assert isinstance(learner, Exact)
    mapped: list[torch.Tensor] = []
    represent = learner.represent
    learner.represent = lambda x: (mapped.append(x), represent(x))[1]  # type: ignore[method-assign, func-returns-value]
    for number, task in enumerate(stream, start=1):
        fit_task(learner, task.train, epochs=1, batch_size=1024)
        kept.accuracies(learner, number)
    assert sum(len(x) for x in mapped) == len(stream.test.y)


def test_another_learner_is_not_scored_by_the_images_of_the_first() -> None:
    stream = split_digits(0)
    kept = Evaluation(stream)
    for seed in (0, 1):
        learner = build_learner("exact", Setting(stream.input_shape, 10, seed), backbone_options={"features": 60})
        fit_task(learner, stream[0].train, epochs=1, batch_size=1024)
        assert kept.accuracies(learner, 1) == Evaluation(stream).accuracies(learner, 1)
