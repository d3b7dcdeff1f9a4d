"""What leaks would have shown, next to what is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from cldnet.bench.evaluate import Evaluation
from cldnet.bench.leaky import EpochWatch, with_own_statistics
from cldnet.bench.preset import preset
from cldnet.bench.run import run
from cldnet.data.stream import Stream
from cldnet.data.streams import split_digits
from cldnet.fit import fit_task, predict_logits
from cldnet.methods import build_learner
from cldnet.methods.learner import Setting
from cldnet.nets.scale import InputScale


def test_own_statistics_are_those_that_the_learners_scale_would_have_been_given() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(200, 6, generator=generator), torch.arange(200) % 4
    x = x + 3 * nn.functional.one_hot(y, 6)
    stream = Stream.from_arrays(x.numpy(), y.numpy(), classes_per_task=2, seed=0)
    learner = build_learner("finetune", Setting((6,), 4, 0))
    for task in stream:
        fit_task(learner, task.train, epochs=3, batch_size=20)
    expected = []
    usual = learner.scale
    for plan in stream.plans:
        test = stream.rows(stream.test_part, plan.test)
        own = InputScale((6,))
        own.fit(test.x)
        learner.scale = own
        expected.append(float((predict_logits(learner, test.x).argmax(1) == test.y).double().mean()))
    learner.scale = usual
    assert with_own_statistics(learner, stream) == pytest.approx(sum(expected) / len(expected))


def test_the_best_epoch_is_never_below_the_last_and_the_task_never_hurts() -> None:
    result = run(replace(preset("split-digits", "finetune", 0), epochs=4), split_digits(0)[:3])
    leaky = result["diagnostics"]["leaky"]
    assert leaky["best_epoch"] >= result["scores"]["average_accuracy"]
    assert leaky["task_known"] == result["scores"]["task_il_accuracy"]
    assert 0 <= leaky["own_test_statistics"] <= 1
    assert "Not results" in leaky["note"]


def test_a_method_that_needs_the_task_has_no_leaks_to_tell_of() -> None:
    result = run(replace(preset("split-digits", "pnn", 0), epochs=1), split_digits(0)[:2])
    assert result["diagnostics"]["leaky"] is None


def test_watching_epochs_puts_every_module_back_as_it_was() -> None:
    stream = split_digits(0)[:1]
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Dropout(0.5), nn.ReLU())
    learner = build_learner("finetune", Setting((8, 8), 10, 0), backbone=net)
    fit_task(learner, stream[0].train, epochs=1, batch_size=32)
    learner.train()
    net[2].eval()
    watch = EpochWatch(Evaluation(stream), learner, 1)
    watch(0)
    assert learner.training
    assert not net[2].training
    assert len(watch.accuracies) == 1
