"""DualPrompt: one general prompt, one expert prompt per task, and how a test input finds its own."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.nets.encoders import TinyEncoder
from tests.nets.vits import save_vit
from torch import Tensor

from cldnet.device import generator
from cldnet.estimator.footprint import footprint
from cldnet.methods import build_learner
from cldnet.methods.dualprompt import DualPrompt
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Setting, TaskData
from cldnet.nets import FrozenNet

SHAPE, WIDTH = (6,), 12
X = torch.randn(20, *SHAPE, generator=generator(1))


def made(**options: Any) -> DualPrompt:
    learner = build_learner("dualprompt", Setting(SHAPE, 6, seed=0), options, backbone=TinyEncoder(SHAPE))
    assert isinstance(learner, DualPrompt)
    return learner


def task(number: int) -> TaskData:
    return TaskData(X, 2 * number + torch.arange(20) % 2)


def taught(tasks: int, **options: Any) -> DualPrompt:
    learner = made(**options)
    for number in range(tasks):
        fit_task(learner, task(number), epochs=2, batch_size=10)
    return learner


def cosine(first: Tensor, second: Tensor) -> float:
    return float((first @ second / first.norm() / second.norm()).detach())


def state(learner: DualPrompt) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in learner.state_dict().items()}


def test_every_task_adds_a_prompt_and_a_key_and_nothing_else() -> None:
    learner, new = made(expert_length=4, expert_layers=(2, 4)), 2 * 2 * 4 * WIDTH + WIDTH
    sizes = [footprint(learner).total]
    for number in range(3):
        assert learner.growth(task(number)) == 4 * new
        fit_task(learner, task(number), epochs=1, batch_size=10)
        sizes.append(footprint(learner).total)
    assert {after - before for before, after in itertools.pairwise(sizes)} == {4 * new}
    assert learner.general.shape == (2, 2, 5, WIDTH)
    assert learner.network_size == 2 * 2 * 5 * WIDTH + 3 * new


def test_a_new_prompt_begins_as_a_copy_of_the_last_and_its_key_anew() -> None:
    learner = taught(2)
    first, last = (expert.prompt.detach().clone() for expert in learner.experts)
    assert not torch.equal(first, last)
    learner.begin_task(task(2))
    new = learner.experts[2]
    assert [expert.key.requires_grad and expert.prompt.requires_grad for expert in learner.experts] == [
        False,
        False,
        True,
    ]
    assert torch.equal(new.prompt, last)
    assert 0 <= new.key.min() < new.key.max() <= 0.01
    assert 0 <= made().general.min() < made().general.max() <= 0.01


def test_older_experts_rest_and_the_general_prompt_learns_in_every_task() -> None:
    learner = taught(1)
    before = state(learner)
    resumed = made()
    resumed.load_state(before)
    resumed.eval()
    for continued in (learner, resumed):
        fit_task(continued, task(1), epochs=1, batch_size=10)
        after = continued.state_dict()
        changed = {name for name in before if not torch.equal(after[name], before[name])}
        assert changed == {"general", "head.weight", "head.bias", "counters", "random"}
        assert (after["head.weight"] != before["head.weight"]).any(1).tolist() == [
            False,
            False,
            True,
            True,
            False,
            False,
        ]


def test_a_test_input_gets_the_prompt_with_the_nearest_key() -> None:
    learner = taught(3)
    with torch.no_grad():
        for number, expert in enumerate(learner.experts):
            expert.key.copy_(torch.randn(WIDTH, generator=generator(number)) * 10**number)
    scaled = learner.scale(X)
    near = [[cosine(query, expert.key) for expert in learner.experts] for query in learner.net(scaled)]
    nearest = [cosines.index(max(cosines)) for cosines in near]
    assert learner.select(learner.query(scaled))[:, 0].tolist() == nearest
    assert {*nearest} == {0, 1, 2}
    for row, number in enumerate(nearest):
        alone = learner.features(scaled[row : row + 1], torch.tensor([[number]]))
        torch.testing.assert_close(learner.vectors(X)[row], alone[0])
    assert torch.equal(learner.logits(X), learner.head(learner.vectors(X)))


def test_prefixes_lie_in_their_layers() -> None:
    learner = made(general_layers=(3, 0), expert_layers=(4, 1), general_length=2, expert_length=3)
    learner.begin_task(task(0))
    for tensor in (learner.general, learner.experts[0].prompt):
        torch.nn.init.normal_(tensor, generator=generator(2))
    prompt = learner.experts[0].prompt
    prefixes = {3: learner.general[0], 0: learner.general[1], 4: prompt[0], 1: prompt[1]}
    expected = learner.encoder.read(X, prefixes={layer: one.expand(20, -1, -1, -1) for layer, one in prefixes.items()})
    torch.testing.assert_close(learner.features(X, torch.zeros(20, 1, dtype=torch.int64)), expected.vectors)


def test_the_loss_is_its_formula_with_the_tasks_own_prompt() -> None:
    """Also where another key is nearer. The classes of the task are 1 and 4; the third sample counts twice."""
    learner = taught(1, pull=0.3)
    y, weight = torch.tensor([1, 4] * 4), torch.tensor([1.0, 1.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    data = TaskData(X[:8], y, weight)
    learner.begin_task(data)
    torch.nn.init.normal_(learner.head.weight, generator=generator(2))
    torch.nn.init.normal_(learner.experts[1].prompt, generator=generator(3))
    scaled = learner.scale(X[:8])
    with torch.no_grad():
        learner.experts[0].key.copy_(learner.net(scaled).mean(0))
        learner.experts[1].key.copy_(-learner.net(scaled).mean(0))
    assert 0 in learner.select(learner.query(scaled))
    expected = 0.0
    learner.requires_grad_(False)
    for x, label, count in zip(scaled, y.tolist(), weight.tolist(), strict=True):
        scores = learner.head(learner.features(x[None], torch.tensor([[1]]))[0])
        entropy = float((scores[[1, 4]].exp().sum() / scores[label].exp()).log())
        expected += count * (entropy + 0.3 * (1 - cosine(learner.net(x[None])[0], learner.experts[1].key)))
    (batch,) = data.batches(8)
    assert float(learner.loss(batch)) == pytest.approx(expected / 8, rel=1e-4)


def test_layers_that_the_transformer_does_not_have_are_refused() -> None:
    with pytest.raises(ValueError, match="There is no layer 5 in a transformer of 5 layers"):
        made(expert_layers=(2, 5))
    assert made(general_layers=(), expert_layers=(4,)).general.numel() == 0


def test_images_are_learned_through_a_frozen_vit(tmp_path: Path) -> None:
    shape = (3, 20, 20)
    body = FrozenNet(shape, seed=0, bodies=[save_vit(tmp_path)])
    options = {"general_layers": (0,), "expert_layers": (1, 2)}
    learner = build_learner("dualprompt", Setting(shape, 4, seed=0), options, backbone=body)
    x, y = torch.randint(0, 256, (24, *shape), generator=generator(0), dtype=torch.uint8), torch.arange(24) // 6
    for label in range(4):
        x[y == label, label % 3] //= 3 if label < 3 else 1
    for chosen in (y < 2, y >= 2):
        fit_task(learner, TaskData(x[chosen], y[chosen]), epochs=10, batch_size=4)
        scores = learner.logits(x[chosen])[:, y[chosen].unique()]
        assert (scores.argmax(1) == y[chosen] - y[chosen].min()).float().mean() > 0.9
    assert {name.split(".")[0] for name, _ in learner.named_parameters()} == {"general", "experts", "head"}
