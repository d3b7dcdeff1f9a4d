"""Two ranks under torchrun learn what one process learns, with the same bits on both; a killed one costs nothing but time."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import TypeVar

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

from benchmarks import distributed_ranks
from cldnet.bench.run import RunSpec
from cldnet.cli import app
from cldnet.data.arrays import Batch
from cldnet.distributed.batchnorm import RankBatchNorm, synchronise
from cldnet.distributed.environment import World
from cldnet.distributed.torchrun import TorchrunRanks, part_sizes
from cldnet.methods import METHODS, read_method
from cldnet.methods.parts.ranks import ALONE, Ranks, state_digest

runner = CliRunner()
T = TypeVar("T")


@pytest.fixture
def second_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.filterwarnings("ignore:No projector can protect")
def test_two_ranks_learn_what_one_process_learns_and_resume_during_a_task() -> None:
    weights, resumed = distributed_ranks.train_on_ranks([*distributed_ranks.CASES])
    assert {name: found for name, found in weights.items() if not found["ranks_bit_equal"]} == {}
    assert {name: found for name, found in weights.items() if not found["max_difference"] < 1e-7} == {}
    assert resumed == dict.fromkeys(distributed_ranks.RESUMED, True)


def test_a_killed_rank_ends_the_run_in_one_sentence_and_the_same_command_resumes_it() -> None:
    assert distributed_ranks.kill_and_resume() == {
        "exit_code": 1,
        "sentences": [
            "Rank 1 of 2 stopped, so the run ended. Resume it with the same command: the last checkpoint is FILE."
        ],
        "traceback_of_ours": False,
        "checkpoint_left": True,
        "resumed_to_the_same_bits": True,
        "checkpoint_removed": True,
        "ranks_recorded": 2,
    }


def test_only_methods_that_can_be_split_run_on_ranks(second_of_two: None) -> None:
    assert {name for name in METHODS if read_method(name).spreads} == {
        *("aop", "cldnet", "cldnet-paper", "finetune", "owm")
    }
    refused = runner.invoke(app, ["run", "--stream", "split-digits", "--method", "ewc"]).exception
    assert str(refused) == (
        "ewc cannot be trained on several ranks. Start it without torchrun, or choose one of aop, cldnet, cldnet-paper, "
        "finetune, owm."
    )
    with pytest.raises(ValueError, match=r"exact cannot be .* `cldnet learn --engine` or `fit_shards`\.$"):
        RunSpec("exact").check_spreads()
    other = runner.invoke(app, ["streams"]).exception
    assert str(other) == "`cldnet streams` is one process: start it without torchrun."


def test_the_world_is_read_from_what_torchrun_sets(monkeypatch: pytest.MonkeyPatch, second_of_two: None) -> None:
    assert World.from_environment() == World(1, 2, 2)
    monkeypatch.delenv("MASTER_ADDR")
    assert World.from_environment() == World()
    assert not World().several


def test_parts_of_a_batch_differ_by_one_sample_and_none_is_empty() -> None:
    for samples in range(2, 40):
        for count in (2, 3, 5):
            sizes = part_sizes(samples, count)
            assert sum(sizes) == samples
            assert min(sizes) >= 1 and max(sizes) - min(sizes) <= 1 if samples >= count else sizes[0] == samples


class ThreadRanks(TorchrunRanks):
    """Ranks that are threads of one process."""

    def __init__(self, rank: int, sent: list[Tensor], barrier: Barrier) -> None:
        self.rank, self.count, self._sizes = rank, len(sent), []
        self.sent, self.barrier = sent, barrier

    def _all(self, message: Tensor) -> list[Tensor]:
        self.sent[self.rank] = message
        self.barrier.wait(10)
        received = [each.clone() for each in self.sent]
        self.barrier.wait(10)
        return received


def on_threads(count: int, work: Callable[[Ranks], T]) -> list[T]:
    """What ``work`` returns on each of so many ranks."""
    sent, barrier = [torch.empty(0)] * count, Barrier(count)
    with ThreadPoolExecutor(count) as pool:
        return [*pool.map(lambda rank: work(ThreadRanks(rank, sent, barrier)), range(count))]


@pytest.mark.parametrize("samples", [2, 3, 8])
def test_rows_are_gathered_in_the_batchs_order_and_sums_count_every_sample_once(samples: int) -> None:
    x, y = torch.randn(samples, 2, 3), torch.arange(samples)
    batch = Batch(x, y, torch.rand(samples), 4, 9, 1, original=x + 1)

    def check(ranks: Ranks) -> tuple[int, Tensor]:
        with ranks.share(batch) as own:
            assert torch.equal(own.plain, own.x + 1)
            assert (own.step, own.steps, own.epoch) == (4, 9, 1)
            assert own.weight is not None
            tokens = own.x.flatten(0, 1)  # two rows per sample
            assert (ranks.length(own.x), ranks.length(tokens)) == (samples, 2 * samples)
            first, second, third = ranks.gather(own.x, own.y, tokens)
            assert torch.equal(first, x)
            assert torch.equal(second, y)
            assert torch.equal(third, x.flatten(0, 1))
            assert torch.equal(ranks.own(third)[0], tokens)
            (across,) = ranks.gather(own.x.movedim(0, 1), dim=1)
            assert torch.equal(across, x.movedim(0, 1))
            assert torch.equal(ranks.own(across, dim=1)[0], own.x.movedim(0, 1))
            torch.testing.assert_close(ranks.mean(own.x), x.mean(0, keepdim=True))
            loss, other = ranks.total([ranks.weigh((own.x * own.weight[:, None, None]).mean()), torch.ones(2)])
            torch.testing.assert_close(loss, (x * batch.weight[:, None, None]).mean())
            assert other.tolist() == [min(samples, 3) if samples >= 3 else 1] * 2
        assert ranks.gather(x)[0] is x, "outside of a batch every rank computes the whole"
        return len(own.x), loss

    found = on_threads(3, check)
    assert [length for length, _ in found] == {2: [2, 2, 2], 3: [1, 1, 1], 8: [3, 3, 2]}[samples]
    assert len({loss.item() for _, loss in found}) == 1


def test_a_layer_without_a_row_per_sample_is_refused() -> None:
    def check(ranks: Ranks) -> None:
        batch = Batch(torch.zeros(4, 1), torch.zeros(4), None, 0, 1, 0)
        with ranks.share(batch), pytest.raises(ValueError, match="A layer has 3 rows for 2 samples"):
            ranks.gather(torch.zeros(3))

    on_threads(2, check)


def test_ranks_that_differ_are_refused() -> None:
    def check(ranks: Ranks) -> None:
        ranks.check_equal(lambda: "same", "never")
        with pytest.raises(ValueError, match="they differ"):
            ranks.check_equal(lambda: str(ranks.rank), "they differ")

    on_threads(2, check)


@pytest.mark.parametrize("samples", [2, 10])
def test_batchnorm_is_that_of_the_whole_batch_forwards_and_backwards(samples: int) -> None:
    x, scale = torch.randn(samples, 2, 3, dtype=torch.float64) + 5, torch.randn(samples, 2, 3, dtype=torch.float64)

    def norm() -> nn.BatchNorm1d:
        return nn.BatchNorm1d(2, dtype=torch.float64)

    def by(net: nn.Module, part: Tensor, weights: Tensor) -> Tensor:
        part = part.clone().requires_grad_()
        (net(part) * weights).square().sum().backward()
        assert part.grad is not None
        return part.grad

    whole = nn.Sequential(norm())
    expected = by(whole, x, scale)

    def check(ranks: Ranks) -> None:
        net = nn.Sequential(norm())
        ranks.prepare(net)
        with ranks.share(Batch(x, torch.zeros(samples), scale, 0, 1, 0)) as own:
            assert own.weight is not None
            found = by(net, own.x, own.weight)
            torch.testing.assert_close(found, ranks.own(expected)[0])
            total = ranks.total([parameter.grad for parameter in net.parameters()])  # type: ignore[misc]
        for gradient, parameter in zip(total, whole.parameters(), strict=True):
            torch.testing.assert_close(gradient, parameter.grad)
        for name, tensor in whole.state_dict().items():
            torch.testing.assert_close(net.state_dict()[name], tensor)

    on_threads(3, check)


@pytest.mark.filterwarnings("ignore:No projector can protect")
@pytest.mark.parametrize(
    "name", [name for name in distributed_ranks.CASES if "CNN" not in name]
)  # dropout: one at a time
def test_three_ranks_learn_what_one_process_learns(name: str) -> None:
    case = replace(
        distributed_ranks.CASES[name], every=12, batch_size=35
    )  # uneven parts; the last batch has 10 samples
    states = on_threads(3, case.train)
    assert len({state_digest(state) for state in states}) == 1
    assert distributed_ranks.largest_difference(states[0], case.train(ALONE)) < 1e-5


def test_alone_changes_nothing() -> None:
    rows = torch.randn(4, 2)
    batch = Batch(rows, torch.zeros(4), None, 0, 1, 0)
    with ALONE.share(batch) as own:
        assert own is batch
    assert ALONE.gather(rows, rows)[1] is rows
    assert ALONE.own(rows)[0] is rows
    assert ALONE.weigh(rows) is rows
    assert ALONE.total([rows])[0] is rows
    assert torch.equal(ALONE.mean(rows), rows.mean(0, keepdim=True))


def test_batchnorm_keeps_its_names_and_is_torchs_own_between_batches() -> None:
    class Single:
        sharing = False

        def exchange(self, tensors: object) -> list[tuple[int, list[torch.Tensor]]]:
            raise AssertionError("nothing is split")

    norm = nn.BatchNorm2d(2)
    net = nn.Sequential(norm, nn.ReLU(), norm)
    names, x = [*net.state_dict()], torch.randn(5, 2, 3, 3)
    expected = nn.BatchNorm2d(2)(x)
    synchronise(net, Single())
    assert isinstance(net[0], RankBatchNorm)
    assert net[0] is net[2], "a module that is used twice stays one"
    assert net[0].weight is norm.weight
    assert [*net.state_dict()] == names
    assert torch.equal(net[0](x), expected)
    assert torch.equal(net[0].running_mean, norm.running_mean)
