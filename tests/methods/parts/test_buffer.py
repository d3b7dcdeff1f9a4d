"""Buffers: what they store and return, the reservoir against counts, and GDumb's greedy balance against a slow rule."""

from __future__ import annotations

import pytest
import torch

from cldnet.device import generator
from cldnet.methods.parts.buffer import Buffer, GreedyBalanced, Reservoir


def test_a_buffer_returns_copies_of_what_was_put_with_its_logits():
    buffer = Buffer(5, torch.zeros(0, 2, dtype=torch.uint8), width=3)
    x, logits = torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8), torch.randn(2, 3, requires_grad=True)
    buffer.put(torch.tensor([4, 1]), x, torch.tensor([7, 8]), logits)
    taken = buffer.take(torch.tensor([1, 4, 0]))
    assert taken.x.tolist() == [[3, 4], [1, 2], [0, 0]]
    assert taken.x.dtype == torch.uint8
    assert taken.y.tolist() == [8, 7, 0]
    assert taken.places.tolist() == [1, 4, 0]
    assert torch.equal(taken.logits, torch.cat([logits[[1, 0]], torch.zeros(1, 3)]))
    assert not taken.logits.requires_grad
    taken.x.fill_(9)
    assert buffer.take(torch.tensor([1])).x.tolist() == [[3, 4]]


def test_a_buffer_without_logits_returns_none_and_refuses_other_types():
    buffer = Buffer(2, torch.zeros(0, 2))
    buffer.put(torch.tensor([0]), torch.ones(1, 2), torch.tensor([1]))
    assert buffer.take(torch.tensor([0])).logits.shape == (1, 0)
    with pytest.raises(ValueError, match=r"convert X to torch\.float32"):
        buffer.check(torch.ones(1, 2, dtype=torch.uint8))


@pytest.mark.parametrize("sizes", [(50,), (7,) * 7 + (1,), (1,) * 50])
def test_the_reservoir_is_a_uniform_sample_of_the_stream(sizes):
    source, counts, trials = generator(0), torch.zeros(50), 300
    x = torch.arange(50.0).reshape(50, 1)
    for _ in range(trials):
        reservoir = Reservoir(5, like=x)
        for part in x.split(sizes):
            reservoir.add(part, part[:, 0].long(), source)
        assert torch.equal(reservoir.x[:, 0].long(), reservoir.y), "inputs stay with their labels"
        counts[reservoir.y] += 1
    assert counts.sum() == 5 * trials, "no example is held twice"
    expected = trials * 5 / 50
    chi_squared = float(((counts - expected) ** 2 / expected).sum() / (1 - 5 / 50))
    assert chi_squared < 85.4, "the 99.9 % quantile for 49 degrees of freedom"


def test_a_reservoir_holds_everything_until_it_is_full():
    reservoir = Reservoir(6, like=torch.zeros(0, 2))
    reservoir.add(torch.arange(8.0).reshape(4, 2), torch.arange(4), generator(0))
    assert len(reservoir) == 4
    x, y, _, _ = reservoir.sample(10, generator(1))
    assert sorted(y.tolist()) == [0, 1, 2, 3]
    assert torch.equal(x[:, 0], 2.0 * y)
    assert len(reservoir.sample(3, generator(1)).y.unique()) == 3


def slow_greedy(labels: list[int], size: int, source: torch.Generator) -> list[int]:
    """Numbers of the stored samples, by the paper's algorithm 1: lists of samples by class."""
    stored: dict[int, list[int]] = {}
    for number, row in enumerate(labels):
        if row in stored and len(stored[row]) >= size // len(stored):
            continue
        if sum(map(len, stored.values())) >= size:
            largest = max(len(own) for own in stored.values())
            own = next(stored[other] for other in sorted(stored) if len(stored[other]) == largest)
            own.pop(int(torch.randint(len(own), (), generator=source)))
        stored.setdefault(row, []).append(number)
    return sorted(number for own in stored.values() for number in own)


def filled(labels: list[int], size: int, batch: int, source: torch.Generator) -> GreedyBalanced:
    buffer = GreedyBalanced(size, torch.zeros(0, 1), classes=10)
    y = torch.tensor(labels)
    for part in torch.arange(len(y)).split(batch):
        buffer.add(part[:, None].float(), y[part], source)
    return buffer


@pytest.mark.parametrize(
    "labels", [[0] * 9 + [1] * 7 + [2] * 3 + [3] * 8, [0, 1, 2, 1, 0, 2] * 4, [5, 5, 3, 3, 5, 3, 0]]
)
def test_greedy_balance_stores_as_many_of_each_class_as_the_papers_algorithm(labels):
    stored = slow_greedy(labels, 8, generator(1))
    buffer = filled(labels, 8, 4, generator(2))
    taken = buffer.take(torch.arange(len(buffer)))
    assert sorted(taken.y.tolist()) == sorted(labels[number] for number in stored), "counts do not depend on the draws"
    assert [labels[int(number)] for number in taken.x[:, 0]] == taken.y.tolist(), "a sample has its own label"
    assert len(set(taken.x[:, 0].tolist())) == len(taken.y)


def test_greedy_balance_drops_a_random_sample_of_the_largest_class():
    dropped = set()
    for seed in range(40):
        buffer = filled([0, 0, 0, 1, 2], 4, 5, generator(seed))
        stored = {int(number) for number in buffer.take(torch.arange(4)).x[:, 0]}
        assert stored >= {3, 4}
        dropped |= {0, 1, 2} - stored
    assert dropped == {0, 1, 2}


def test_greedy_balance_does_not_depend_on_how_the_stream_is_cut_nor_on_a_copy_of_its_state():
    labels = torch.randint(6, (60,), generator=generator(0)).tolist()
    whole, pieces = filled(labels, 7, 60, generator(3)), filled(labels, 7, 1, generator(3))
    assert torch.equal(whole.x, pieces.x)
    loaded = GreedyBalanced.like_state(whole.state_dict(prefix="buffer."), "buffer.")
    loaded.load_state_dict(whole.state_dict())
    for buffer in (whole, loaded):
        buffer.add(torch.full((3, 1), 99.0), torch.tensor([8, 8, 9]), generator(4))
    assert torch.equal(whole.x, loaded.x)
    assert torch.equal(whole.y, loaded.y)


def test_a_class_that_lost_its_last_exemplar_is_not_new_again():
    buffer = filled([0, 1, 2, 0, 0, 0], 2, 6, generator(0))
    assert sorted(buffer.y.tolist()) == [1, 2], "2 // 3 classes = 0: only a class's first sample is stored"


def test_a_memory_of_no_places_stores_nothing():
    assert len(filled([0, 1], 0, 1, generator(0))) == 0
