"""L2P: which prompts an input selects, what the head reads, and what learns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.nets.berts import save_bert
from tests.nets.encoders import TinyEncoder
from torch import Tensor

from cldnet.data.sentences import TEXT_BYTES, encode_sentences
from cldnet.device import generator
from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.l2p import L2P
from cldnet.methods.learner import Setting, TaskData
from cldnet.nets import MLP, FrozenNet

SHAPE = (6,)
X = torch.randn(20, *SHAPE, generator=generator(1))


def made(**options: Any) -> L2P:
    learner = build_learner("l2p", Setting(SHAPE, 6, seed=0), options, backbone=TinyEncoder(SHAPE))
    assert isinstance(learner, L2P)
    return learner


def cosine(first: Tensor, second: Tensor) -> float:
    return float((first @ second / first.norm() / second.norm()).detach())


def nearest(learner: L2P, x: Tensor) -> list[int]:
    """The prompts of one scaled input, by sorting."""
    query = learner.net(x[None])[0]
    near = [cosine(query, key) for key in learner.keys]
    return sorted(range(len(near)), key=lambda number: -near[number])[: learner.config.top]


def test_an_input_selects_the_prompts_whose_keys_are_nearest() -> None:
    learner = made(pool=7, top=3)
    selected = learner.select(learner.query(X))
    assert selected.tolist() == [nearest(learner, x) for x in X]
    assert len({tuple(row) for row in selected.tolist()}) > 5


def test_the_size_of_a_key_does_not_matter() -> None:
    learner = made(pool=7, top=3)
    before = learner.select(learner.query(X))
    with torch.no_grad():
        learner.keys *= torch.linspace(0.1, 10, 7)[:, None]
    assert torch.equal(learner.select(learner.query(X)), before)


def test_prompts_and_keys_begin_uniform_between_minus_one_and_one() -> None:
    learner = made(pool=50)
    for numbers in (learner.prompts, learner.keys):
        assert -1 <= numbers.min() < -0.9
        assert 0.9 < numbers.max() <= 1
    assert learner.prompts.shape == (50, 5, 12)
    assert not learner.head.weight.any()


def test_the_head_reads_the_mean_output_at_the_prompts_places() -> None:
    learner = made(pool=4, top=2, length=3)
    selected = learner.select(learner.query(X))
    features = learner.features(X, selected)
    for row in range(len(X)):
        prompts = torch.cat([learner.prompts[number] for number in selected[row]])
        output = learner.encoder.read(X[row : row + 1], prompts[None]).prompts[0]
        torch.testing.assert_close(features[row], torch.stack([*output]).sum(0) / 6)


def test_the_loss_is_its_formula() -> None:
    """The classes of the task are 1, 3 and 4; the sixth sample counts twice, and the last not at all."""
    learner = made(pool=5, top=2, length=2, pull=0.3)
    y, weight = torch.tensor([1, 3, 4] * 3), torch.tensor([1.0] * 5 + [2.0, 1.0, 1.0, 0.0])
    task = TaskData(X[:9], y, weight)
    learner.begin_task(task)
    torch.nn.init.normal_(learner.head.weight, generator=generator(2))
    expected = 0.0
    learner.requires_grad_(False)
    for x, label, count in zip(learner.scale(X[:9]), y.tolist(), weight.tolist(), strict=True):
        query, chosen = learner.net(x[None])[0], nearest(learner, x)
        prompts = torch.cat([learner.prompts[number] for number in chosen])
        scores = learner.head(learner.encoder.read(x[None], prompts[None]).prompts[0].mean(0))
        own = scores[[1, 3, 4]].exp()
        distance = sum(1 - cosine(query, learner.keys[number]) for number in chosen)
        expected += count * (float((own.sum() / scores[label].exp()).log()) + 0.3 * distance)
    (batch,) = task.batches(9)
    assert float(learner.loss(batch)) == pytest.approx(expected / 9, rel=1e-4)


def test_only_prompts_keys_and_the_heads_rows_of_the_task_learn() -> None:
    learner = made(pool=8, top=2)
    first = TaskData(X, torch.arange(20) % 2)
    fit_task(learner, first, epochs=1, batch_size=10)
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    second = TaskData(X[:3], torch.tensor([2, 3, 2]))
    used = learner.select(learner.query(learner.scale(X[:3]))).unique()
    fit_task(learner, second, epochs=2, batch_size=3)  # the head of zeros is the first to learn
    after = learner.state_dict()
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name])}
    assert changed == {"prompts", "keys", "head.weight", "head.bias", "counters", "random"}
    assert (after["head.weight"] != before["head.weight"]).any(1).tolist() == [False, False, True, True, False, False]
    for name in ("prompts", "keys"):
        moved = (after[name] != before[name]).flatten(1).any(1)
        assert moved.nonzero()[:, 0].tolist() == used.tolist()
        assert len(used) < 8


def test_the_gradient_is_clipped() -> None:
    learner = made(clip=1e-3)
    task = TaskData(X, torch.arange(20) % 3)
    learner.begin_task(task)
    learner.observe(next(task.batches(20)))
    gradients = [parameter.grad for parameter in learner.parameters() if parameter.grad is not None]
    assert len(gradients) == 4
    assert float(sum(gradient.square().sum() for gradient in gradients)) == pytest.approx(1e-6, rel=0.01)


def test_scores_are_the_heads_of_the_vectors_however_many_inputs_there_are() -> None:
    learner = made()
    fit_task(learner, TaskData(X, torch.arange(20) % 3), epochs=2, batch_size=10)
    x = torch.randn(150, *SHAPE, generator=generator(3))
    torch.testing.assert_close(learner.logits(x), learner.head(learner.vectors(x))[:, :3])
    torch.testing.assert_close(learner.logits(x)[120:], learner.logits(x[120:]))


def test_what_is_kept_beside_the_frozen_net_is_counted() -> None:
    learner = made()
    assert learner.network_size == 10 * 5 * 12 + 10 * 12
    assert learner.class_width == 13
    assert learner.bytes_by_kind()["prompts"] == 4 * learner.network_size


def test_a_backbone_that_reads_no_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match="for one frozen transformer, and MLP is none"):
        build_learner("l2p", Setting(SHAPE, 6, seed=0), backbone=MLP(SHAPE, (4,), generator=generator(0)))


@pytest.mark.parametrize("method", ["l2p", "dualprompt"])
def test_sentences_are_learned_through_a_frozen_bert(tmp_path: Path, method: str) -> None:
    body = FrozenNet((TEXT_BYTES,), seed=0, bodies=[save_bert(tmp_path)])
    options = {"lr": 0.01} if method == "l2p" else {"general_layers": (0,), "expert_layers": (1,)}
    learner = build_learner(method, Setting((TEXT_BYTES,), 4, seed=0), options, backbone=body)
    said = ["my card was stolen", "play some music", "where is it", "bye bye now"]
    x = encode_sentences([f"{text}{end}" for text in said for end in ("", " now", " there", " hello there")])
    y = torch.arange(16) // 4
    frozen = body.body.state_dict()
    for chosen in (y < 2, y >= 2):
        fit_task(learner, TaskData(x[chosen], y[chosen]), epochs=10, batch_size=4)
        scores = learner.logits(x[chosen])[:, y[chosen].unique()]
        assert (scores.argmax(1) == y[chosen] - y[chosen].min()).float().mean() > 0.9
    torch.testing.assert_close(
        torch.cat([learner.logits(row) for row in x.split(1)]), learner.logits(x), rtol=1e-4, atol=1e-4
    )
    learning = {name.split(".")[0] for name, _ in learner.named_parameters()}
    assert learning <= {"prompts", "keys", "general", "experts", "head"}
    assert all(tensor.any() for name, tensor in frozen.items() if name.endswith("weight"))
