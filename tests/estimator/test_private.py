"""Private sums: the guarantee against slow formulas of our own and an attack, and what is released and refused."""

from __future__ import annotations

import builtins
import doctest
from functools import cache
from math import exp, sqrt
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
import torch
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import kstest, norm

from cldnet import CLDNetClassifier, Statistics
from cldnet.device import generator
from cldnet.estimator import private
from cldnet.estimator.private import SHARES, consistent, deviations, noise_multiplier, secure_normal
from cldnet.math import symmetric
from cldnet.nets import Clipped, Linear, RandomReLU

DELTA = 1e-5


def draw(n: int, seed: int = 0, classes: int = 3) -> tuple[NDArray[np.float64], NDArray[Any]]:
    """Samples of classes that are apart."""
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=n)
    return np.eye(4)[y] * 4 + rng.normal(size=(n, 4)), np.array(["cat", "dog", "emu", "owl"])[y]


@cache
def shared(norm: float = 250, features: int = 20) -> Clipped:
    public = RandomReLU((4,), features, seed=3)
    public.fit(torch.randn(200, 4, generator=generator(5)) * 2 + 1)
    return Clipped(public, norm)


def taught(n: int = 600, **options: Any) -> CLDNetClassifier:
    return CLDNetClassifier(backbone=shared(), random_state=0, **options).fit(*draw(n))


# -- the guarantee -----------------------------------------------------------------------------------------------------


def delta_of(epsilon: float, multiplier: float) -> float:
    """δ of Gaussian noise, the formula of Balle and Wang (2018), theorem 8, written down anew."""
    half = 1 / (2 * multiplier)
    return float(norm.cdf(half - epsilon * multiplier) - exp(epsilon) * norm.cdf(-half - epsilon * multiplier))


@pytest.mark.parametrize("delta", [1e-5, 1e-9, 0.1])
@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0, 3.0, 8.0])
def test_the_multiplier_gives_what_was_asked_for_and_hardly_more(epsilon: float, delta: float) -> None:
    multiplier = noise_multiplier(epsilon, delta)
    assert 0.999 * delta < delta_of(epsilon, multiplier) <= delta
    assert 0.9999 * epsilon < dp_accounting.get_epsilon_gaussian(multiplier, delta) <= epsilon


def test_dp_accounting_finds_the_epsilon_of_the_noise_by_another_way() -> None:
    accountant = PLDAccountant(dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE)
    spent = accountant.compose(dp_accounting.GaussianDpEvent(noise_multiplier(1.0, DELTA))).get_epsilon(DELTA)
    assert spent == pytest.approx(1.0, abs=1e-4)  # it rounds up


def change_in_units_of_noise(h: NDArray[np.float64], bound: float, multiplier: float) -> float:
    """How far one sample moves the released numbers, each divided by the std of its noise; a slow sum of its own."""
    stds = deviations(bound, multiplier)
    total = (1 / stds.counts) ** 2
    for i in range(len(h)):
        total += (h[i] / stds.sums) ** 2
        for j in range(i, len(h)):
            total += (h[i] * h[j] / (stds.products * (sqrt(2) if i == j else 1))) ** 2
    return sqrt(total)


@given(st.lists(st.floats(-20, 20), min_size=4, max_size=4), st.sampled_from([1.0, 90.0, 250.0, 500.0]))
@settings(max_examples=200, deadline=None)
def test_no_sample_moves_the_sums_by_more_than_the_noise_is_made_for(row: list[float], bound: float) -> None:
    h = shared(bound)(torch.tensor([row], dtype=torch.float64))[0].double().numpy()
    assert (h == h.round()).all()
    assert change_in_units_of_noise(h, bound, 2.5) <= (1 / 2.5) * (1 + 1e-9)


def test_a_sample_as_long_as_the_bound_uses_up_all_of_it() -> None:
    for h in (np.array([100.0, 0, 0]), np.array([60.0, -80.0, 0])):
        assert change_in_units_of_noise(h, 100, 2.5) == pytest.approx(1 / 2.5)
    assert sum(SHARES) == pytest.approx(1)


@given(st.integers(0, 29), st.sampled_from([60.0, 250.0]))
@settings(max_examples=30, deadline=None)
def test_removing_any_one_sample_changes_the_sums_by_its_features_and_by_nothing_else(place: int, bound: float) -> None:
    X, y = draw(30)
    left = np.arange(30) != place
    one, other = (
        CLDNetClassifier(backbone=shared(bound), random_state=0).fit(*some).statistics()
        for some in ((X, y), (X[left], y[left]))
    )
    h = shared(bound)(torch.from_numpy(X[place : place + 1]))[0].double()
    gram = [symmetric.unpack(each.tensors["second.packed"], each.width) for each in (one, other)]
    assert torch.equal(gram[0] - gram[1], torch.outer(h, h))
    assert float(h.norm()) <= bound
    for label in one.classes.tolist():
        parts = [
            (each.tensors["class_sums"][row], each.tensors["class_weights"][row])
            for each in (one, other)
            for row in [int(each.labels.rows([label])[0])]
        ]
        own = float(label == y[place])
        assert torch.equal(parts[0][0] - parts[1][0], own * h)
        assert float(parts[0][1] - parts[1][1]) == own


def raw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Release the sums as they are after the noise: what follows can only make an attack harder."""
    monkeypatch.setattr(private, "consistent", lambda gram, sums, counts, *_: (gram, sums, counts))
    monkeypatch.setattr(private.LabelTable, "add_counts", lambda *_: None)  # noise may make them negative


def numbers(released: Statistics) -> NDArray[np.float64]:
    """All that an attacker sees, once each."""
    gram = symmetric.unpack(released.tensors["second.packed"], released.width)
    upper = gram[torch.ones_like(gram, dtype=torch.bool).triu()]
    parts = [upper, released.tensors["class_sums"].flatten(), released.tensors["class_weights"]]
    return torch.cat(parts).numpy()


def test_the_noise_has_the_stds_that_were_calibrated_and_no_two_numbers_share_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raw(monkeypatch)
    clf = taught(50)
    exact, m = clf.statistics(), shared().out_features
    stds = deviations(250, noise_multiplier(1.0, DELTA))
    order = torch.from_numpy(exact.labels.rows(exact.classes))
    noises = []
    for _ in range(60):
        released = clf.private_statistics(1.0, DELTA)
        gram, truth = (symmetric.unpack(each.tensors["second.packed"], m) for each in (released, exact))
        noise = gram - truth
        assert torch.equal(noise, noise.mT)
        noises.append(
            (
                noise[torch.ones_like(noise, dtype=torch.bool).triu(1)] / stds.products,
                noise.diagonal() / (sqrt(2) * stds.products),
                (released.tensors["class_sums"] - exact.tensors["class_sums"][order]).flatten() / stds.sums,
                (released.tensors["class_weights"] - exact.tensors["class_weights"][order]) / stds.counts,
            )
        )
    for part in zip(*noises, strict=True):
        found = torch.stack(part)
        size = found.numel()
        assert float(found.square().mean()) == pytest.approx(1, abs=5 * sqrt(2 / size))
        assert float(found.mean()) == pytest.approx(0, abs=5 / sqrt(size))
    every = torch.cat([torch.stack(part) for part in zip(*noises, strict=True)], dim=1)
    correlations = torch.corrcoef(every.T).fill_diagonal_(0)
    assert float(correlations.abs().max()) < 0.8  # 60 draws; numbers that share their noise have 1


ATTACKED = Clipped(Linear((2,)), 60)
ATTACKED.features.fit(torch.tensor([[0.0, 1.0], [2.0, 3.0]]))
TRIALS, EPSILON, LARGE_DELTA = 800, 1.0, 0.1


def advantage(trials: int = TRIALS) -> float:
    """How much TPR exceeds ``e^ε · FPR`` when an attacker, who knows all other samples, guesses whether one was there.

    The attacker learns the stds of the noise from the releases, not from the code, and tests the likelihood ratio.
    """
    X, y = np.array([[0.0, 1.0], [2.0, 3.0], [1.0, 0.0]]), ["a", "b", "a"]
    released = []
    for count in (3, 2):
        clf = CLDNetClassifier(backbone=ATTACKED, random_state=0).fit(X[:count], y[:count])
        releases = (clf.private_statistics(EPSILON, LARGE_DELTA, random_state=2 * n + count % 2) for n in range(trials))
        released.append(np.stack([numbers(each) for each in releases]))
    present, absent = released
    variance = (present.var(0) + absent.var(0)) / 2 + 1e-12
    # What the sample changes is known exactly.
    one = CLDNetClassifier(backbone=ATTACKED, random_state=0).fit(X, y).statistics()
    two = CLDNetClassifier(backbone=ATTACKED, random_state=0).fit(X[:2], y[:2]).statistics()
    direction = (numbers(one) - numbers(two)) / variance
    scores = [each @ direction for each in released]
    thresholds = np.quantile(np.concatenate(scores), np.linspace(0, 1, 60))
    return max(float((scores[0] > t).mean() - exp(EPSILON) * (scores[1] > t).mean()) for t in thresholds)


def test_an_attacker_who_knows_everything_else_does_not_beat_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    raw(monkeypatch)
    monkeypatch.setattr(private, "noise_multiplier", cache(noise_multiplier))  # it takes longer than the noise
    found = advantage()
    assert found <= LARGE_DELTA + 0.1  # two standard errors; the seeds are fixed
    assert found > 0.02  # the attack is not a weak one: with the exact likelihood ratio it reaches δ
    stated = private.deviations
    monkeypatch.setattr(private, "deviations", lambda *given: stated(*given)._replace(counts=1e-9))
    assert advantage(150) > 0.9  # it notices that the counts have no noise
    monkeypatch.setattr(private, "deviations", lambda *given: stated(*given)._replace(sums=stated(*given).sums / 4))
    assert advantage(400) > LARGE_DELTA + 0.15


def test_the_noise_of_the_operating_system_is_normal_and_never_the_same() -> None:
    found = secure_normal(200_001)
    assert len(found) == 200_001
    assert np.isfinite(found).all()
    assert kstest(found, "norm").pvalue > 1e-6
    assert abs(np.corrcoef(found[:100_000], found[100_000:200_000])[0, 1]) < 0.02
    assert not np.array_equal(secure_normal(4), secure_normal(4))
    assert [len(secure_normal(n)) for n in (0, 1, 2)] == [0, 1, 2]
    clf = taught(50)
    one, other = (clf.private_statistics(1.0, DELTA) for _ in range(2))
    assert not torch.equal(one.tensors["class_sums"], other.tensors["class_sums"])


def test_a_seed_repeats_the_noise_for_experiments() -> None:
    clf = taught(50)
    one, same, other = (clf.private_statistics(1.0, DELTA, random_state=seed) for seed in (1, np.int64(1), 2))
    for name, tensor in one.tensors.items():
        assert torch.equal(tensor, same.tensors[name])
    assert not torch.equal(one.tensors["second.packed"], other.tensors["second.packed"])


# -- what is released --------------------------------------------------------------------------------------------------


def test_nothing_else_of_the_data_is_released() -> None:
    X, y = draw(600)
    clf = taught(keep_lessons=2)
    model = clf.model_
    model.labels.note_date(["dog"], "2026-11-17")
    released, exact = clf.private_statistics(1.0, DELTA), clf.statistics()
    assert exact.lessons.ids
    assert exact.history.records
    assert exact.labels.dates
    assert (released.lessons.ids, released.history.records, released.receipts) == ((), (), None)
    assert (released.labels.dates, released.fitted_on, released.inputs.largest) == ({}, frozenset(), 0.0)
    assert released.labels.to_json()["labels"] == ["cat", "dog", "emu"] != exact.labels.to_json()["labels"]
    assert (released.map_id, released.gram, released.inputs.shape) == (exact.map_id, "full", (4,))
    counts = released.labels.counts
    assert [counts[label] for label in ("cat", "dog", "emu")] == released.tensors["class_weights"].tolist()
    assert counts != exact.labels.counts
    assert released.rows == sum(n for n in counts.values() if n is not None)
    for name, tensor in released.tensors.items():
        assert torch.equal(tensor, tensor.round()), name
        assert not torch.equal(tensor, exact.tensors[name]), name
    assert set(released.tensors) == set(exact.tensors)
    assert len(X) == len(y) == exact.rows  # the model stays as it is


def test_an_order_of_classes_and_the_way_that_samples_came_leave_no_trace() -> None:
    X, y = draw(600)
    one = taught().private_statistics(1.0, DELTA, random_state=1)
    clf = CLDNetClassifier(backbone=shared(), random_state=7)
    for part in np.array_split(np.arange(600)[::-1], 7):
        clf.partial_fit(X[part], y[part])
    other = clf.private_statistics(1.0, DELTA, random_state=1)
    assert one.labels.to_json() == other.labels.to_json()
    assert one.inputs == other.inputs
    for name, tensor in one.tensors.items():
        assert torch.equal(tensor, other.tensors[name])


def test_what_is_released_is_saved_loaded_added_and_learned_from(tmp_path: Path) -> None:
    X, y = draw(6000)
    X_test, y_test = draw(500, seed=9)
    parts = [
        CLDNetClassifier(backbone=shared(), random_state=0).fit(X[half], y[half]).private_statistics(3.0, DELTA)
        for half in (slice(3000), slice(3000, None))
    ]
    parts[0].save(tmp_path / "released")
    loaded = Statistics.load(tmp_path / "released")
    for name, tensor in parts[0].tensors.items():
        assert torch.equal(tensor, loaded.tensors[name])
    clf = CLDNetClassifier(backbone=shared()).merge([loaded, parts[1]])
    exact = CLDNetClassifier(backbone=shared()).fit(X, y)
    assert (clf.predict(X_test) == y_test).mean() > (exact.predict(X_test) == y_test).mean() - 0.03 > 0.9
    assert np.allclose(clf.predict_proba(X_test).sum(1), 1)
    assert 0 <= clf.known_probability(X_test).min() <= clf.known_probability(X_test).max() <= 1
    clf.save(tmp_path / "model")
    assert np.array_equal(CLDNetClassifier.load(tmp_path / "model").predict(X_test), clf.predict(X_test))
    both = loaded + parts[1]
    assert torch.equal(both.tensors["class_sums"], clf.statistics().tensors["class_sums"])
    clf.partial_fit(X[:50] * 100, y[:50])  # no range is known of the released inputs


@pytest.mark.parametrize("n", [1, 5, 200])
@pytest.mark.parametrize("epsilon", [1e-3, 0.3, 100.0])
def test_sums_of_few_samples_with_much_noise_can_be_used_all_the_same(epsilon: float, n: int) -> None:
    X, y = draw(n)
    clf = CLDNetClassifier(backbone=shared(), random_state=0).fit(X, y)
    released = clf.private_statistics(epsilon, DELTA, classes=["cat", "dog", "emu", "owl"], random_state=3)
    again = CLDNetClassifier(backbone=shared()).merge([released])
    assert {*again.predict(X)} <= {"cat", "dog", "emu", "owl"}
    assert np.isfinite(again.predict_proba(X)).all()


def test_public_classes_hide_which_labels_there_were() -> None:
    clf = taught(900)
    released = clf.private_statistics(1.0, DELTA, classes=iter(["owl", "emu", "dog", "cat"]), random_state=1)
    assert released.classes.tolist() == ["cat", "dog", "emu", "owl"]
    assert abs(float(released.tensors["class_weights"][3])) < 200
    twin = clf.private_statistics(1.0, DELTA, classes=["cat", "dog", "emu", "owl"], random_state=1)
    assert torch.equal(released.tensors["class_sums"], twin.tensors["class_sums"])
    predicted = CLDNetClassifier(backbone=shared()).merge([released]).predict(draw(300, seed=4)[0])
    assert (predicted == "owl").mean() < 0.1
    with pytest.raises(ValueError, match=r"has the classes \['cat', 'emu'\], which classes=\['dog'\] does not name"):
        clf.private_statistics(1.0, DELTA, classes=["dog"])
    with pytest.raises(ValueError, match=r"which classes=\[1, 2\] does not name"):
        clf.private_statistics(1.0, DELTA, classes=[1, 2])
    with pytest.raises(ValueError, match=r"write \['cat'\] for one label"):
        clf.private_statistics(1.0, DELTA, classes="cat")
    with pytest.raises(ValueError, match="There are no classes to release"):
        clf.private_statistics(1.0, DELTA, classes=[])


def test_the_sums_are_made_those_that_samples_can_have() -> None:
    source = generator(0)
    noise = torch.randn(8, 8, generator=source, dtype=torch.float64) * 500
    sums = torch.tensor([[900.0] * 8, [3.0] * 8, [0.0] * 8], dtype=torch.float64)
    counts = torch.tensor([10.0, -4.0, 7.0], dtype=torch.float64)
    gram, means, weights = consistent(noise + noise.mT, sums, counts, 50.0, 200.0)
    assert weights.tolist() == [10, 1, 7]
    assert bool((means.norm(dim=1) <= 50 * weights + 2).all())  # rounded
    assert torch.equal(means[1], sums[1])
    scatter = gram - means.mT @ (means / weights[:, None])
    assert float(torch.linalg.eigvalsh(scatter).min()) > 200 - 8
    samples = torch.randint(-9, 9, (100, 8), generator=source).double()
    exact = samples.mT @ samples, samples.sum(0, keepdim=True), torch.tensor([100.0], dtype=torch.float64)
    for before, after in zip(exact, consistent(*exact, 50.0, 0.0), strict=True):
        assert torch.equal(before, after)


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0, -1.0, float("nan"), float("inf"), True, "1", None])
def test_an_epsilon_that_means_nothing_is_refused(epsilon: Any) -> None:
    with pytest.raises(ValueError, match=r"^epsilon=.* should be a positive number"):
        taught(20).private_statistics(epsilon, DELTA)


@pytest.mark.parametrize("delta", [0, 1, -1e-5, 2.0, float("nan"), False, "1e-5", None])
def test_a_delta_that_means_nothing_is_refused(delta: Any) -> None:
    with pytest.raises(ValueError, match=r"^delta=.* should be between 0 and 1, and far below"):
        taught(20).private_statistics(1.0, delta)


def test_a_map_that_is_not_clipped_or_not_public_is_refused() -> None:
    X, y = draw(60)
    with pytest.raises(ValueError, match=r"map is RandomFourier, .*backbone=Clipped\(features, norm\)"):
        CLDNetClassifier(random_state=0).fit(X, y).private_statistics(1.0, DELTA)

    class Louder(Clipped):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) * 9

    louder = Louder(shared().features, 200)
    with pytest.raises(ValueError, match="map is Louder"):
        CLDNetClassifier(backbone=louder, random_state=0).fit(X, y).private_statistics(1.0, DELTA)
    with pytest.raises(ValueError, match="solver='hbo' learns by gradient steps and keeps no sums"):
        CLDNetClassifier("hbo", epochs=1, embed_dim=20, capacity=4, random_state=0).fit(X, y).private_statistics(
            1.0, DELTA
        )
    traced = taught(60).statistics()
    traced.fitted_on = frozenset({"cat"})
    with pytest.raises(ValueError, match=r"was fitted on samples of labels \['cat'\]"):
        CLDNetClassifier(backbone=shared()).merge([traced]).private_statistics(1.0, DELTA)


@pytest.mark.parametrize("gram", ["diagonal", 5])
def test_other_second_moments_are_refused(gram: Any) -> None:
    with pytest.raises(ValueError, match=r"has no private sums: make the model with gram='full'"):
        taught(60, gram=gram).private_statistics(1.0, DELTA)


def heavier(clf: CLDNetClassifier) -> CLDNetClassifier:
    X, y = draw(3, seed=2)
    return clf.partial_fit(X, y, sample_weight=[2.0, 0.5, 0.5])  # which add up to the number of samples


def test_samples_that_count_for_more_than_one_are_refused_wherever_the_sums_went(tmp_path: Path) -> None:
    refused: dict[str, CLDNetClassifier] = {"learned": heavier(taught(60))}
    heavier(taught(60)).save(tmp_path / "model")
    refused["saved"] = CLDNetClassifier.load(tmp_path / "model")
    heavier(taught(60)).statistics().save(tmp_path / "sums")
    refused["merged"] = taught(30).merge([Statistics.load(tmp_path / "sums")])
    refused["added"] = CLDNetClassifier(backbone=shared()).merge(
        [taught(30).statistics() + heavier(taught(60)).statistics()]
    )
    refused["noise"] = taught(60).add_noise(3.0, ["cat"])
    refused["undone"] = heavier(taught(60, keep_lessons=1)).undo()  # to be on the safe side
    X, y = draw(60)
    lighter = CLDNetClassifier(backbone=shared(), random_state=0).fit(X, y, sample_weight=np.full(60, 0.5))
    for _ in range(3):
        lighter.partial_fit(X, y, sample_weight=np.full(60, 0.5))
    assert lighter.private_statistics(1.0, DELTA).classes.tolist() == ["cat", "dog", "emu"]
    refused["forgot"] = lighter.forget(X[:9], y[:9], sample_weight=np.full(9, 2.0))
    for clf in refused.values():
        with pytest.raises(ValueError, match="had a weight above 1, or add_noise moved some"):
            clf.private_statistics(1.0, DELTA)
    assert refused["learned"].fit(X, y).private_statistics(1.0, DELTA).rows


def test_sums_after_forgetting_and_joining_can_be_released() -> None:
    X, y = draw(60)
    clf = taught(60).forget(X[:9], y[:9]).forget_class("dog").join_classes(["cat"], into="owl")
    assert clf.private_statistics(1.0, DELTA).classes.tolist() == ["emu", "owl"]


def test_a_model_that_has_learned_nothing_or_is_learning_is_refused() -> None:
    clf = CLDNetClassifier(backbone=shared())
    with pytest.raises(ValueError, match="is not fitted"):
        clf.private_statistics(1.0, DELTA)
    with pytest.raises(RuntimeError, match="A session is open"), clf.session():
        clf.private_statistics(1.0, DELTA)


@pytest.mark.parametrize("seed", [-1, 1.5, "1", True])
def test_a_seed_that_is_none_is_refused(seed: Any) -> None:
    with pytest.raises(ValueError, match=r"^random_state="):
        taught(20).private_statistics(1.0, DELTA, random_state=seed)


@pytest.mark.parametrize("error", [ImportError, RuntimeError])
def test_without_dp_accounting_it_says_what_to_install(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    clf, real = taught(20), builtins.__import__

    def broken(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "dp_accounting":
            raise error("not here")
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(ImportError, match=r'needs dp-accounting: pip install "\.\[privacy\]" in a clone of CLDNet'):
        clf.private_statistics(1.0, DELTA)


def test_the_examples_of_the_page_run() -> None:
    page = Path(__file__).parents[2] / "docs" / "privacy.md"
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    found = doctest.testfile(str(page), module_relative=False, optionflags=flags)
    assert found.attempted > 5
    assert found.failed == 0
