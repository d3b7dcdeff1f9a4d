"""An audit reports sizes, counts and promises, as sentences and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cldnet import CLDNetClassifier
from cldnet.estimator.audit import Audit
from cldnet.estimator.model import Sizes

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(80, 20))
Y = np.repeat(["cat", "dog", "emu", "owl"], 20)
SOLVERS = ("exact", "hbo")


def taught(solver: str, **parameters: Any) -> CLDNetClassifier:
    # All samples activate all units of this net. A ReLU net has units that few samples activate, see below.
    net = (
        {}
        if solver == "exact"
        else {"backbone": nn.Sequential(nn.Linear(20, 10), nn.Tanh()), "embed_dim": 16, "epochs": 1}
    )
    clf = CLDNetClassifier(solver, **{"capacity": 6, "random_state": 0, **net, **parameters})
    return clf.partial_fit(X[:40], Y[:40]).partial_fit(X[40:], Y[40:])


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_sound_model_holds_its_promises(solver: str) -> None:
    audit = taught(solver).audit(X)
    assert audit.holds
    assert [promise.holds for promise in audit.promises] == [True, True]
    assert (audit.tasks, audit.classes, audit.compared, audit.given) == (2, 4, 80, 80)
    assert audit.counts == dict.fromkeys(("cat", "dog", "emu", "owl"), 20)
    beside = sum(audit.footprint.bytes.get(kind, 0) for kind in ("lesson ids", "history"))
    assert audit.footprint.total == sum(audit.sizes.changes[0].bytes.values()) + beside
    assert "does not" not in str(audit)
    assert str(audit).count("holds") == 2


def test_without_samples_similarity_is_unknown() -> None:
    audit = taught("exact").audit()
    assert audit.findings is None
    assert [promise.holds for promise in audit.promises] == [True, None]
    assert audit.holds


def test_rows_sets_how_many_samples_are_compared() -> None:
    clf = taught("exact")
    assert (clf.audit(X, rows=7).compared, clf.audit(X, rows=None).compared) == (7, 80)
    with pytest.raises(ValueError, match="rows=0 should be a whole number of at least 1"):
        clf.audit(X, rows=0)
    with pytest.raises(ValueError, match="X has 3 features"):
        clf.audit(X[:, :3])


def test_an_input_that_one_sample_alone_uses_reveals_it() -> None:
    rows = np.zeros((80, 20))
    rows[:, :19] = np.abs(X[:, :19])
    rows[40, 19] = 5.0  # a word in one text only
    clf = CLDNetClassifier("hbo", nn.Sequential(nn.Linear(20, 10), nn.Tanh()), embed_dim=16, capacity=6, random_state=0)
    audit = clf.partial_fit(rows[:40], Y[:40]).partial_fit(rows[40:], Y[40:]).audit(rows)
    assert not audit.holds
    worst = audit.like[0]
    assert (worst.tensor, worst.at, worst.space) == ("projection.layers.0.A", 19, "scaled")
    assert "one sample alone" in audit.reveals


def test_a_class_with_one_sample_is_revealing_and_its_sum_is_found() -> None:
    clf = taught("exact").partial_fit(X[:1] + 1, ["bee"])
    audit = clf.audit(np.concatenate([X, X[:1] + 1]))
    assert audit.revealing == {"bee": 1}
    assert "'bee' (1)" in audit.examples
    assert "join_classes" in audit.examples
    assert not audit.holds
    worst = audit.like[0]
    assert (worst.tensor, worst.verdict, worst.at, worst.copies) == ("class_sums", "revealing", 4, 1)


def test_a_class_with_one_sample_breaks_the_promise_without_a_comparison() -> None:
    """The samples drawn would hardly ever include that one."""
    clf = taught("exact").partial_fit(X[:1] + 1, ["bee"])
    for audit in (clf.audit(), clf.audit(X, rows=5), clf.audit(X)):
        assert not audit.holds
        assert audit.promises[1].reason.endswith("features, whatever is compared: 'bee'.")
        assert audit.to_json()["single"] == ["bee"]
    assert clf.partial_fit(X[1:2] + 1, ["bee"]).audit().holds


def test_noise_is_noticed_and_does_not_shorten_the_list() -> None:
    clf = taught("exact").partial_fit(X[:1] + 1, ["bee"]).add_noise(40.0, random_state=0)
    audit = clf.audit(np.concatenate([X, X[:1] + 1]))
    assert (audit.single, audit.moved, audit.holds) == ((), ("bee",), True)
    assert audit.revealing == {"bee": 1}
    assert "'bee' (1, moved by noise)" in audit.examples
    assert "Noise moves their sums but does not shorten this list" in audit.examples
    assert clf.forget_class("bee").audit().moved == ()


def test_weights_and_forgotten_samples_are_no_noise() -> None:
    clf = taught("exact", backbone=taught("exact").feature_map_)
    clf.partial_fit(X[:5], Y[:5], sample_weight=[0.1, 0.3, 1 / 3, 7.7, 1e-3])
    assert clf.forget(X[20:23], Y[20:23]).audit().moved == ()


def test_a_verdict_says_how_many_samples_were_compared() -> None:
    clf = taught("exact")
    assert clf.audit(X).promises[1].reason.startswith("All 80 samples given were compared; the largest is 0.")
    reason = clf.audit(X, rows=30).promises[1].reason
    assert reason.startswith(
        "This holds for the 30 samples compared of 80 (rows=None, or --rows 0, for all); the largest is 0."
    )


def test_what_many_share_is_counted_in_samples_that_were_not_drawn() -> None:
    alike = RANDOM.normal(size=20) * 3 + 0.02 * RANDOM.normal(size=(30, 20))
    clf, rows = taught("exact").partial_fit(alike, ["bee"] * 30), np.concatenate([X, alike])
    for seed in range(3):
        audit = clf.audit(rows, rows=20, random_state=seed)
        assert audit.promises[1].holds is not False, audit.promises[1].reason
    assert clf.audit(rows).promises[1].holds is None


def test_the_solution_in_memory_is_not_part_of_the_constant_size() -> None:
    audit = taught("exact").audit()
    assert audit.solved == (1001, 4)
    assert "The constant size is that of the stored model." in audit.memory
    assert "1,001 × 4 numbers (features × classes)" in str(audit)
    assert "Nothing else is in memory" in taught("hbo").audit().memory


def test_joining_noise_and_forgetting_mend_a_revealing_class() -> None:
    rows = np.concatenate([X, X[:1] + 1])
    for mend in (
        lambda clf: clf.join_classes(["bee"], "emu"),
        lambda clf: clf.add_noise(40.0, random_state=0),
        lambda clf: clf.forget(X[:1] + 1, ["bee"]),
    ):
        clf = taught("exact").partial_fit(X[:1] + 1, ["bee"])
        mend(clf)
        assert clf.audit(rows).holds


def test_counts_follow_what_is_learned_forgotten_and_merged() -> None:
    clf = taught("exact", backbone=taught("exact").feature_map_)
    clf.partial_fit(X[:5], Y[:5], sample_weight=[2.0] * 5).forget(X[20:23], Y[20:23])
    other = CLDNetClassifier(backbone=clf.feature_map_, capacity=6).fit(X[40:44], Y[40:44])
    clf.merge([other])
    assert clf.audit().counts == {"cat": 25, "dog": 17, "emu": 24, "owl": 20}
    assert clf.join_classes(["cat"], "dog").audit().counts == {"dog": 42, "emu": 24, "owl": 20}
    assert clf.forget_class("emu").audit().counts == {"dog": 42, "owl": 20}


@pytest.mark.parametrize("solver", SOLVERS)
def test_sizes_and_counts_survive_the_file_and_an_extension_is_no_growth(solver: str, tmp_path: Path) -> None:
    clf = taught(solver)
    clf.save(tmp_path / "model")
    before = clf.audit().to_json()
    clf = CLDNetClassifier.load(tmp_path / "model", backbone=None if solver == "exact" else clf.backbone)
    assert clf.audit().to_json() == before
    clf.extend(9).partial_fit(X[:20], ["fox"] * 20)
    audit = clf.audit()
    assert [(size.tasks, size.asked) for size in audit.sizes.changes] == [
        (2 if solver == "exact" else 1, False),
        (2, True),
    ]
    assert audit.promises[0].holds
    assert "only with the room for classes, after task 2" in audit.promises[0].reason


def test_a_file_of_an_old_version_says_what_is_unknown() -> None:
    old = Path(__file__).parents[1] / "fixtures" / "store" / "2"
    exact = CLDNetClassifier.load(old / "exact.cldnet").audit()
    assert exact.promises[0].holds is None
    assert exact.counts == {"cat": 6, "dog": 6, "owl": 6}  # from the sums
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5))
    hbo = CLDNetClassifier.load(old / "hbo.cldnet", backbone=module).audit()
    assert hbo.counts == dict.fromkeys(("cat", "dog", "owl"))
    assert "did not count" in hbo.examples


def test_a_model_that_grew_breaks_its_promise() -> None:
    audit = taught("exact").audit()
    grown = Audit(**{**vars(audit), "sizes": Sizes().record(1, {"sums": 8}).record(2, {"sums": 16})})
    assert not grown.holds
    assert grown.promises[0].reason == "Its bytes have changed: 8 from task 1 on, 16 from task 2 on."


@pytest.mark.parametrize("solver", SOLVERS)
def test_the_json_says_all_that_the_audit_does(solver: str) -> None:
    audit = taught(solver).audit(X)
    said = json.loads(json.dumps(audit.to_json()))
    assert said["holds"] is True
    assert said["total_bytes"] == audit.footprint.total
    assert len(said["findings"]) == len(audit.findings or ())
    assert "not differential privacy" in " ".join(said["reveals"].split())


def test_multiply_adds_are_those_of_one_prediction() -> None:
    clf = CLDNetClassifier("hbo", nn.Linear(20, 5), capacity=4, embed_dim=8, epochs=1, random_state=0).fit(X, Y)
    assert clf.audit().macs == 20 * 5 + 5 * 8 + 8 * 4
    assert taught("exact").audit().macs == 20 * 1000 + 1001 * 4 + 4 * 4
