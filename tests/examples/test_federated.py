"""Masked sums of several clients: they add up to the plain total, look random alone, and a wrong total is noticed."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from cldnet import CLDNetClassifier, load_map, save_map
from cldnet.nets import RandomFourier, RandomReLU

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "federated"
FLOWER = os.environ.get("CLDNET_FLOWER")
needs_flower = pytest.mark.skipif(
    FLOWER is None, reason="set CLDNET_FLOWER to an environment with Flower (examples/federated/README.md)"
)


def module(name: str) -> ModuleType:
    sys.path.insert(0, str(EXAMPLE))
    try:
        return importlib.import_module(f"secure_sums.{name}")
    finally:
        sys.path.remove(str(EXAMPLE))


masks, sums, demo = module("masks"), module("sums"), module("demo")
WORD = st.integers(0, 2**64 - 1)
SESSION, PURPOSE = bytes(range(16)), hashlib.sha256(b"what is summed").digest()


# A key exchange for tests: anyone could compute it, but both sides compute the same.


def public(secret: bytes) -> bytes:
    return bytes(reversed(secret))


def exchange(secret: bytes, other: bytes) -> bytes:
    return hashlib.sha256(b"".join(sorted((public(secret), other)))).digest()


def secret_of(client: int, tag: str = "") -> bytes:
    return hashlib.sha256(f"{tag} {client}".encode()).digest()


def roster(clients: Any, session: bytes = SESSION, purpose: bytes = PURPOSE, tag: str = "") -> Any:
    return masks.Roster(session, {client: public(secret_of(client, tag)) for client in clients}, purpose)


def answered(plain: Mapping[int, Any], shown: Any = None, tag: str = "") -> dict[int, Any]:
    shown = roster(plain, tag=tag) if shown is None else shown
    return {own: masks.masked(words, own, secret_of(own, tag), shown, exchange) for own, words in plain.items()}


def words(*values: int) -> Any:
    return np.array(values, dtype=np.uint64)


def rows_of_words(clients: int) -> Any:
    row = st.lists(WORD, min_size=3, max_size=3).map(lambda values: words(*values))
    return st.lists(row, min_size=clients, max_size=clients)


# -- masks -------------------------------------------------------------------------------------------------------------


def test_keys_are_derived_as_the_standard_says() -> None:
    info, salt = bytes.fromhex("f0f1f2f3f4f5f6f7f8f9"), bytes(range(13))
    derived = masks.hkdf(b"\x0b" * 22, salt=salt, info=info, length=42)  # RFC 5869, A.1
    assert derived.hex() == ("3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865")
    derived = masks.hkdf(b"\x0b" * 22, salt=b"", info=b"", length=42)  # A.3
    assert derived.hex() == ("8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d9d201395faa4b61a96c8")


@settings(max_examples=100, deadline=None)
@given(data=st.data(), ids=st.sets(WORD, min_size=2, max_size=7))
def test_the_total_of_masked_words_is_that_of_the_plain_ones(data: st.DataObject, ids: set[int]) -> None:
    plain = dict(zip(sorted(ids), data.draw(rows_of_words(len(ids))), strict=True))
    expected = [sum(int(each[place]) for each in plain.values()) % 2**64 for place in range(3)]
    assert masks.total(answered(plain), roster(ids)).tolist() == expected


def test_the_words_that_a_client_sends_look_random_whatever_its_sums_are() -> None:
    for plain in (np.zeros(1 << 15, dtype=np.uint64), np.arange(1 << 15, dtype=np.uint64)):
        sent = masks.masked(plain, 1, secret_of(1), roster((1, 2, 3)), exchange)
        counts = np.bincount(sent.view(np.uint8), minlength=256)
        expected = counts.sum() / 256
        statistic = float(((counts - expected) ** 2 / expected).sum())
        assert chi2.cdf(statistic, 255) == pytest.approx(0.5, abs=0.4999)
        assert len(np.unique(sent)) == len(sent)
        for bit in range(64):
            share = float((sent >> np.uint64(bit) & np.uint64(1)).mean())
            assert share == pytest.approx(0.5, abs=0.02), bit


def test_another_round_masks_the_same_sums_by_other_words() -> None:
    plain = words(*range(1000))
    other = public(secret_of(2, "other"))
    rounds = [
        roster((1, 2, 3)),
        roster((1, 2, 3), session=bytes(16)),
        roster((1, 2, 3), purpose=bytes(32)),
        roster((1, 2)),
        roster((1, 2, 4)),
        masks.Roster(SESSION, {**roster((1, 2, 3)).keys, 2: other}, PURPOSE),
    ]
    sent = [masks.masked(plain, 1, secret_of(1), each, exchange) for each in rounds]
    for number, each in enumerate(sent):
        for before in sent[:number]:
            assert not (each == before).any()
            # Two masked copies of the same words would have the same differences if the masks were the same.
            assert not (np.diff(each) == np.diff(before)).any()


def test_two_pairs_of_clients_have_different_masks_and_both_sides_the_same_one() -> None:
    digest = roster((1, 2, 3)).digest
    seeds = {
        (one, other): masks.pair_seed(exchange(secret_of(one), public(secret_of(other))), digest, one, other)
        for one in (1, 2, 3)
        for other in (1, 2, 3)
        if one != other
    }
    assert len({*seeds.values()}) == 3
    assert all(seed == seeds[other, one] for (one, other), seed in seeds.items())
    # The ids are part of the seed, even if two pairs shared a secret.
    assert masks.pair_seed(b"same", digest, 1, 2) != masks.pair_seed(b"same", digest, 1, 3)
    assert masks.pair_seed(b"same", digest, 1, 23) != masks.pair_seed(b"same", digest, 12, 3)


@pytest.mark.parametrize("clients", [2, 3, 5])
def test_a_client_that_drops_out_is_noticed(clients: int) -> None:
    plain = {client: words(*range(20)) for client in range(clients)}
    sent, shown = answered(plain), roster(plain)
    for gone in plain:
        left = {client: each for client, each in sent.items() if client != gone}
        with pytest.raises(masks.RoundError, match=f"1 of {clients} clients are missing"):
            masks.total(left, shown)
        for pretended in (clients, clients - 1):  # even by a server that does not count
            with pytest.raises(masks.RoundError, match="masks did not cancel"):
                masks.without_checks(masks.add_up(left.values()), shown.digest, pretended)


def test_the_round_is_repeated_with_those_that_are_left() -> None:
    plain = {client: words(client, 10 * client) for client in (1, 2, 3)}
    first = answered(plain)
    del plain[3], first[3]
    with pytest.raises(masks.RoundError, match="missing"):
        masks.total(first, roster((1, 2, 3)))
    again = answered(plain, tag="fresh")
    assert masks.total(again, roster(plain, tag="fresh")).tolist() == [3, 30]
    mixed = {1: first[1], 2: again[2]}  # an answer to the round that was refused
    with pytest.raises(masks.RoundError, match="did not cancel"):
        masks.total(mixed, roster(plain, tag="fresh"))


@settings(max_examples=100, deadline=None)
@given(place=st.integers(0, 9), change=st.integers(1, 2**64 - 1), client=st.integers(1, 3))
def test_any_word_that_is_changed_on_its_way_is_noticed(place: int, change: int, client: int) -> None:
    plain = {each: words(*range(each, each + 8)) for each in (1, 2, 3)}
    sent = answered(plain)
    sent[client][place : place + 1] += np.uint64(change)
    with pytest.raises(masks.RoundError, match="did not cancel, or a word was changed"):
        masks.total(sent, roster(plain))


def test_clients_that_were_shown_different_rosters_make_no_total() -> None:
    plain = {client: words(*range(5)) for client in (1, 2, 3)}
    for other in (roster(plain, session=bytes(16)), roster(plain, purpose=bytes(32)), roster((1, 2, 3, 4))):
        sent = answered(plain) | {2: answered({2: plain[2]}, other)[2]}
        with pytest.raises(masks.RoundError, match="did not cancel"):
            masks.total(sent, roster(plain))


def test_a_client_answers_no_roster_that_would_unmask_it() -> None:
    shown, own = roster((1, 2, 3)), public(secret_of(2))
    shown.check(2, own, least=3)
    with pytest.raises(masks.RoundError, match="has 3 clients and this one takes part with 4 to 1023"):
        shown.check(2, own, least=4)
    with pytest.raises(masks.RoundError, match="has 1 clients"):
        roster((2,)).check(2, own, least=0)
    for wrong in (roster((1, 3)), roster((1, 2, 3), tag="older")):
        with pytest.raises(masks.RoundError, match="does not have the key"):
            wrong.check(2, own)
    with pytest.raises(masks.RoundError, match="same key"):
        masks.Roster(SESSION, {**shown.keys, 3: own}, PURPOSE).check(2, own)
    with pytest.raises(masks.RoundError, match="has 1024 clients"):
        roster(range(1024)).check(2, own)


def test_a_total_needs_the_same_words_of_two_clients_or_more() -> None:
    plain = {1: words(1, 2), 2: words(1, 2, 3)}
    with pytest.raises(masks.RoundError, match="different numbers of words"):
        masks.total(answered(plain), roster(plain))
    alone = {1: words(1, 2)}
    with pytest.raises(masks.RoundError, match="needs 2 clients"):
        masks.total(answered(alone), roster(alone))
    with pytest.raises(masks.RoundError, match="needs 2 clients"):
        masks.total({}, roster(()))
    for wrong in (np.zeros(3), np.zeros((2, 3), dtype=np.uint64), np.zeros(3, dtype=np.int64)):
        with pytest.raises(masks.RoundError, match="one row of uint64"):
            masks.add_up([words(1, 2, 3), wrong])


def test_the_masks_import_nothing_but_the_standard_library_and_numpy() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(EXAMPLE)!r}); import secure_sums.masks; "
        "print([name for name in ('torch', 'cldnet', 'flwr', 'cryptography') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


# -- keys --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def keys() -> ModuleType:
    pytest.importorskip("cryptography", reason="X25519 needs the package cryptography, which comes with Flower")
    return module("keys")


def test_keys_are_exchanged_as_the_standard_says(keys: ModuleType) -> None:
    nine = bytes([9, *bytes(31)])  # RFC 7748, 5.2: the first iteration
    expected = "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
    assert keys.public_key(nine).hex() == keys.shared_secret(nine, nine).hex() == expected
    alice = keys.new_secret()
    bob = keys.new_secret()
    assert keys.shared_secret(alice, keys.public_key(bob)) == keys.shared_secret(bob, keys.public_key(alice))
    assert alice != bob


def test_a_key_that_shares_a_known_secret_with_everybody_is_refused(keys: ModuleType) -> None:
    with pytest.raises(ValueError, match="shared key"):
        keys.shared_secret(keys.new_secret(), bytes(32))


def test_words_that_are_masked_by_exchanged_keys_add_up(keys: ModuleType) -> None:
    secrets = {client: keys.new_secret() for client in (1, 2, 3)}
    shown = masks.Roster(SESSION, {client: keys.public_key(secret) for client, secret in secrets.items()}, PURPOSE)
    sent = {
        own: masks.masked(words(own, 2**64 - own), own, secret, shown, keys.shared_secret)
        for own, secret in secrets.items()
    }
    assert masks.total(sent, shown).tolist() == [6, 2**64 - 6]


# -- sums --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def agreement() -> Any:
    features = RandomReLU((64,), features=100, seed=0)
    source = torch.Generator().manual_seed(0)
    features.fit(torch.randint(0, 17, (200, 64), generator=source, dtype=torch.float64))
    return sums.Agreement(features, tuple(range(10)))


def summed(agreement: Any, parts: Any) -> Any:
    plain = {number: sums.words_of(X, y, agreement) for number, (X, y) in enumerate(parts)}
    shown = roster(plain, purpose=agreement.digest)
    return sums.model_of(masks.total(answered(plain, shown), shown), agreement, demo.LARGEST)


def test_the_servers_model_has_the_bits_of_one_model_of_all_rows(agreement: Any, tmp_path: Path) -> None:
    clf = summed(agreement, [demo.rows_of(client) for client in range(3)])
    assert demo.check(clf)
    assert not demo.check(clf, [0, 1])
    assert clf.statistics().rows == 1437 == sum(clf.model_.labels.counts.values())
    clf.save(tmp_path / "model.cldnet")
    again = CLDNetClassifier.load(tmp_path / "model.cldnet")
    assert demo.check(again)
    # It goes on learning, and still has the bits of one model.
    X, y = demo.held_out()
    more = again.partial_fit(X, y).statistics().tensors
    everything = demo.rows_of_all()
    order = everything[1].argsort(kind="stable")
    whole = CLDNetClassifier(backbone=agreement.features).fit(everything[0][order], everything[1][order])
    assert all(torch.equal(more[name], each) for name, each in whole.partial_fit(X, y).statistics().tensors.items())


def test_the_model_remembers_no_lesson_of_a_client(agreement: Any) -> None:
    clf = summed(agreement, [demo.rows_of(client) for client in range(3)])
    stats = clf.statistics()
    assert stats.lessons.ids == ()
    assert stats.receipts is None
    assert [(record.action, record.total, record.digest) for record in clf.lessons_] == [("merged", 1437, None)]
    assert stats.fitted_on == frozenset()


def test_however_the_rows_are_spread_the_model_is_the_same(agreement: Any) -> None:
    X, y = demo.rows_of_all()
    for seed, count in enumerate((2, 4, 9)):
        owner = np.random.default_rng(seed).integers(count, size=len(y))
        assert demo.check(summed(agreement, [(X[owner == each], y[owner == each]) for each in range(count)]))


def test_a_client_without_rows_and_a_class_without_samples_change_nothing(agreement: Any) -> None:
    wider = sums.Agreement(agreement.features, (*range(10), 10, 11))
    parts = [*(demo.rows_of(client) for client in range(3)), (np.zeros((0, 64)), np.zeros(0, dtype=int))]
    clf = summed(wider, parts)
    assert clf.classes_.tolist() == [*range(10)]
    assert demo.check(clf)


def test_labels_may_be_strings_and_features_negative() -> None:
    X, y = demo.rows_of_all()
    names = np.array(["nought", *(f"class {n}" for n in range(1, 10))])
    features = RandomFourier((64,), features=60, seed=0)
    features.fit(torch.rand(100, 64, generator=torch.Generator().manual_seed(0)) * 16)
    assert float(features(torch.from_numpy(X)).min()) < 0
    agreed = sums.Agreement(features, tuple(names.tolist()))
    clf = summed(agreed, [(X[::2], names[y[::2]]), (X[1::2], names[y[1::2]])])
    whole = CLDNetClassifier(backbone=features).fit(X, names[y])
    own, expected = clf.statistics(), whole.statistics()
    order = expected.labels.rows(own.labels.by_row)
    for name, table in own.tensors.items():
        assert torch.equal(
            table, expected.tensors[name][order] if name.startswith("class_") else expected.tensors[name]
        )
    assert clf.predict(X).tolist() == whole.predict(X).tolist()


def test_negative_sums_keep_their_sign() -> None:
    parts = ([-5.0, 3.0, -(2.0**53) + 1], [-1.0, -9.0, 0.0])
    total = masks.add_up([sums._to_words(torch.tensor(part, dtype=torch.float64), "sums") for part in parts])
    assert total.view(np.int64).tolist() == [-6, -6, -(2**53) + 1]


def test_what_cannot_be_added_up_exactly_is_refused(agreement: Any) -> None:
    for wrong in (0.5, 2.0**53, -(2.0**53), float("nan"), float("inf")):
        with pytest.raises(ValueError, match="not whole numbers below 2\\^53"):
            sums._to_words(torch.tensor([1.0, wrong], dtype=torch.float64), "class_sums")
    with pytest.raises(ValueError, match="2 labels are not among the agreed classes"):
        sums.words_of(np.zeros((3, 64)), [1, 77, 78], agreement)


def test_a_total_of_no_samples_is_refused(agreement: Any) -> None:
    length = sum(int(np.prod(shape)) for shape in agreement.shapes.values())
    with pytest.raises(ValueError, match="No client had a sample"):
        sums.model_of(np.zeros(length, dtype=np.uint64), agreement, 16)
    with pytest.raises(ValueError, match="were agreed on"):
        sums.model_of(np.zeros(length + 1, dtype=np.uint64), agreement, 16)
    more = np.zeros(length, dtype=np.uint64)
    more[0] = 5
    with pytest.raises(ValueError, match="do not add up to its rows"):
        sums.model_of(more, agreement, 16)
    more[-1] = 2**53
    with pytest.raises(ValueError, match="2\\^53 or more"):
        sums.model_of(more, agreement, 16)


def test_what_is_agreed_on_is_part_of_the_round(agreement: Any, tmp_path: Path) -> None:
    save_map(agreement.features, tmp_path / "shared.map")
    same = sums.Agreement(load_map(tmp_path / "shared.map"), tuple(range(10)))
    assert same.digest == agreement.digest
    other = RandomReLU((64,), features=100, seed=1)
    with pytest.raises(ValueError, match="not fitted"):
        sums.Agreement(other, (1, 2))
    other.fit(torch.rand(100, 64))
    digests = [
        agreement.digest,
        sums.Agreement(other, tuple(range(10))).digest,
        sums.Agreement(agreement.features, tuple(range(9))).digest,
        sums.Agreement(agreement.features, tuple(map(str, range(10)))).digest,
        sums.Agreement(agreement.features, tuple(reversed(range(10)))).digest,
    ]
    assert len({*digests}) == len(digests)
    for classes in ((), (1, 1)):
        with pytest.raises(ValueError, match="different labels"):
            sums.Agreement(agreement.features, classes)
    assert sums.read_classes('["cat", "dog"]') == ("cat", "dog")
    with pytest.raises(ValueError, match="JSON list"):
        sums.read_classes('"cat"')


def test_each_client_of_the_demonstration_has_rows_of_its_own() -> None:
    parts = [demo.rows_of(client) for client in range(3)]
    assert [sorted({*y.tolist()}) for _, y in parts] == [list(classes) for classes in demo.CLASSES]
    taken = [{row.tobytes() for row in X} for X, _ in parts]
    assert all(not one & other for one, other in pairwise([*taken, taken[0]]))


# -- Flower ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert FLOWER is not None
    return Path(FLOWER) / "bin" / "python"


@needs_flower
def test_a_client_sends_masked_words_and_nothing_else_and_answers_once(flower: Path, tmp_path: Path) -> None:
    command = [flower, Path(__file__).with_name("flower_client.py"), tmp_path]
    environment = {**os.environ, "PYTHONPATH": str(EXAMPLE)}
    shown = subprocess.run(command, env=environment, text=True, capture_output=True)
    assert shown.returncode == 0, shown.stderr
    said = json.loads(shown.stdout.splitlines()[-1])
    assert said == {
        "key": {"answer": ["public"]},
        "sums": {"answer": ["refused"], "masked": ["words"]},
        "kept": [],
        "same": True,
        "again": {"answer": ["refused"]},
        "other map": {"answer": ["refused"]},
        "too few": {"answer": ["refused"]},
    }


@needs_flower
@pytest.mark.parametrize("drop", [None, 1])
def test_the_app_runs_with_flower(flower: Path, tmp_path: Path, drop: int | None) -> None:
    command = [flower, EXAMPLE / "run_demo.py", "--folder", tmp_path]
    command += [] if drop is None else ["--drop", str(drop)]
    shown = subprocess.run(command, text=True, capture_output=True, timeout=700)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "one model of all rows of clients " + ("[0, 1, 2]: yes" if drop is None else "[0, 2]: yes") in shown.stdout
    assert ("1 of 3 clients are missing" in shown.stdout) == (drop is not None)
