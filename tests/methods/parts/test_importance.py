"""Powers of single samples' gradients, and the two Fishers, against a loop over samples."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.device import generator
from cldnet.methods.parts import importance as module
from cldnet.methods.parts.importance import PerSample, batched_fisher, fisher, mean_powers

cross_entropies = partial(F.cross_entropy, reduction="none")


class Tied(nn.Module):
    """One weight in two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.b(torch.tanh(self.a(x))))  # type: ignore[no-any-return]


class Behind(nn.Module):
    """Uses a layer's weight behind the layer's back, where no hook sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(6, 6, bias=False), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.linear(self.a(x).tanh(), self.a.weight.T))  # type: ignore[no-any-return]


class Overwriting(nn.Module):
    """Writes over a layer's output."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu_(self.a(x)))  # type: ignore[no-any-return]


class Tokens(nn.Module):
    """A linear layer over three rows a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.a(x.reshape(-1, 3, 2))).mean(1))  # type: ignore[no-any-return]


class ForNothing(nn.Module):
    """Calls a layer and does not use what it says."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.out = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.a(x)
        return self.out(x)  # type: ignore[no-any-return]


def frozen_below() -> nn.Module:
    net = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    net[0].requires_grad_(False)
    return net


def convolutions(**options: object) -> nn.Module:
    first = nn.Conv2d(2, 4, 3, padding=1, **options)  # type: ignore[arg-type]
    return nn.Sequential(
        first, nn.ReLU(inplace=True), nn.Conv2d(4, 4, 2, stride=2, bias=False), nn.Flatten(), nn.LazyLinear(3)
    )


#: Name: the net, the shape of an input, whether its layers tell each sample's gradient.
NETS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], bool]] = {
    "linear": (lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3, bias=False)), (6,), True),
    "convolutions": (convolutions, (2, 5, 5), True),
    "groups": (lambda: convolutions(groups=2, padding_mode="reflect"), (2, 5, 5), True),
    "one dimension": (lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(9, 3)), (2, 5), True),
    "frozen below": (frozen_below, (6,), True),
    "normalised": (lambda: nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 3)), (6,), False),
    "tied": (Tied, (6,), False),
    "behind its back": (Behind, (6,), False),
    "overwriting": (Overwriting, (6,), False),
    "tokens": (Tokens, (6,), False),
    "for nothing": (ForNothing, (6,), False),
}


def made(name: str) -> tuple[nn.Module, Tensor, bool]:
    make, shape, quick = NETS[name]
    net = make()
    net(torch.zeros(1, *shape))  # lazy layers take their shape
    return net.double().eval(), torch.randn(9, *shape, generator=generator(1), dtype=torch.float64), quick


def by_loop(net: nn.Module, x: Tensor, y: Tensor, power: int, weight: Tensor | None = None) -> dict[str, Tensor]:
    parameters = dict(net.requires_grad_().named_parameters())
    sums = {name: torch.zeros_like(p) for name, p in parameters.items()}
    for i in range(len(x)):
        loss = -F.log_softmax(net(x[i : i + 1]), 1)[0, y[i]]
        for name, g in zip(
            sums, torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True), strict=True
        ):
            sums[name] += (1.0 if weight is None else float(weight[i])) * g.abs() ** power
    return sums


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("name", NETS)
def test_sums_are_those_of_a_loop_over_samples(name: str, power: int, weighted: bool) -> None:
    net, x, quick = made(name)
    y = torch.arange(9) % 3
    weight = torch.linspace(0, 2, 9) if weighted else None
    per_sample = PerSample(net, tuple(x.shape[1:]), cross_entropies, power)
    found = per_sample.sums(x, lambda _: y, weight)
    assert per_sample.quick is quick
    expected = by_loop(net, x, y, power, weight)
    assert found.keys() == expected.keys()
    for parameter, value in expected.items():
        torch.testing.assert_close(found[parameter], value, rtol=1e-6, atol=1e-12)


def test_a_net_that_is_sure_of_its_answers_is_looked_through_all_the_same() -> None:
    """For its own answers all gradients would vanish, and any two ways to compute them would agree."""
    net, x, _ = made("behind its back")
    net.out.weight.data.mul_(1e5)  # type: ignore[operator, union-attr]
    y = net(x).argmin(1)
    per_sample = PerSample(net, (6,), cross_entropies, power=2)
    found = per_sample.sums(x, lambda _: y)
    assert per_sample.quick is False
    for parameter, value in by_loop(net, x, y, 2).items():
        torch.testing.assert_close(found[parameter], value, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", ["convolutions", "tied"])
def test_more_samples_than_are_worked_on_at_a_time_add_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net, x, _ = made(name)
    x = torch.cat([x, -x, 2 * x])
    y, weight = torch.arange(27) % 3, torch.linspace(0, 2, 27)
    monkeypatch.setattr(module, "_NUMBERS", 5 * sum(parameter.numel() for parameter in net.parameters()))
    found = PerSample(net, tuple(x.shape[1:]), cross_entropies, power=2).sums(x, lambda _: y, weight)
    for parameter, value in by_loop(net, x, y, 2, weight).items():
        torch.testing.assert_close(found[parameter], value, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("name", [name for name, (_, _, quick) in NETS.items() if quick])
def test_the_quick_way_is_that_of_torch_func(name: str) -> None:
    net, x, _ = made(name)
    y = torch.arange(9) % 3
    quick, slow = (PerSample(net, tuple(x.shape[1:]), cross_entropies, power=2) for _ in range(2))
    slow.quick = False
    for (parameter, value), other in zip(
        quick.sums(x, lambda _: y).items(), slow.sums(x, lambda _: y).values(), strict=True
    ):
        torch.testing.assert_close(value, other, rtol=1e-6, atol=1e-12, msg=parameter)


@settings(deadline=None, max_examples=25)
@given(st.lists(st.integers(0, 3), min_size=2, max_size=8).filter(any), st.integers(1, 2))
def test_a_weight_counts_as_repetitions(weights: list[int], power: int) -> None:
    net, x, _ = made("linear")
    x, weight = x[: len(weights)], torch.tensor(weights)
    per_sample = PerSample(net, (6,), cross_entropies, power)
    weighted = mean_powers(
        per_sample, [(x[:2], weight[:2].float()), (x[2:], weight[2:].float())], lambda o: o.argmax(1)
    )
    repeated = mean_powers(per_sample, [(x.repeat_interleave(weight, 0), None)], lambda o: o.argmax(1))
    for name, value in repeated.items():
        torch.testing.assert_close(weighted[name], value, rtol=1e-6, atol=1e-12)


def test_samples_of_no_weight_have_no_importance() -> None:
    net, x, _ = made("linear")
    found = mean_powers(PerSample(net, (6,), cross_entropies, 2), [(x, torch.zeros(9))], lambda o: o.argmax(1))
    assert not any(bool(value.any()) for value in found.values())


def test_the_fisher_is_the_expectation_over_the_models_own_labels() -> None:
    """Enough draws come near the sum over all labels, weighted by their probabilities."""
    net, x, _ = made("linear")
    draws = 4000
    drawn = fisher(net, (6,), [(x[:1].expand(draws, -1), None)], generator(0))
    probabilities = net(x[:1]).softmax(1)[0].detach()
    assert probabilities.max() < 0.9, "several labels are likely"
    exact = {name: torch.zeros_like(value) for name, value in drawn.items()}
    for label, p in enumerate(probabilities):
        for name, value in by_loop(net, x[:1], torch.tensor([label]), 2).items():
            exact[name] += p * value
    for name, value in exact.items():
        torch.testing.assert_close(drawn[name], value, rtol=0.15, atol=0.05 * float(value.max()))


def test_the_batched_fisher_squares_means_and_the_exact_one_does_not() -> None:
    net, x, _ = made("linear")
    y, parameters = torch.arange(9) % 3, dict(net.named_parameters())

    def loss(x: Tensor, y: Tensor, weight: Tensor | None) -> Tensor:
        losses = cross_entropies(net(x), y)
        return losses.mean() if weight is None else (losses * weight).mean()

    ones = batched_fisher(loss, parameters, [(x[i : i + 1], y[i : i + 1], None) for i in range(9)])
    whole = batched_fisher(loss, parameters, [(x, y, None)])
    weighted = batched_fisher(loss, parameters, [(x, y, torch.tensor([0.0] * 8 + [3.0])), (x, y, torch.zeros(9))])
    gradients = torch.autograd.grad(F.cross_entropy(net(x), y), list(parameters.values()))
    per_sample, last = by_loop(net, x, y, 2), by_loop(net, x[8:], y[8:], 2)
    for name, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(ones[name], per_sample[name] / 9)
        torch.testing.assert_close(whole[name], gradient**2)
        torch.testing.assert_close(weighted[name], last[name])
        assert float(whole[name].sum()) < 0.7 * float(ones[name].sum())


class Unused(nn.Module):
    """Runs a layer for nothing, and another one without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.frozen, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.idle(x)
        with torch.no_grad():
            z = self.frozen(x)
        return self.out(z + x)  # type: ignore[no-any-return]


def test_layers_without_a_part_in_the_outputs_have_no_importance() -> None:
    net, x = Unused(), torch.randn(5, 6, generator=generator(1))
    sums = PerSample(net, (6,), cross_entropies, power=2).sums(x, lambda outputs: outputs.argmax(1))
    assert not sums["idle.weight"].any()
    assert not sums["frozen.weight"].any()
    assert bool(sums["out.weight"].any())
