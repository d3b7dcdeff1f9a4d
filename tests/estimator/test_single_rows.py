"""Rows that come one by one: the solution is followed, refreshed from the sums, and the first few choose the map together."""

import copy
import gc
import pickle
import threading
import weakref

import numpy as np
import pytest
import torch

from cldnet import CLDNetClassifier, MapTraceWarning
from cldnet.nets import RandomReLU


def samples(count, classes=3, columns=6, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(count) % classes
    return 2.0 * rng.normal(size=(classes, columns))[y] + rng.normal(size=(count, columns)), y


def fixed_map(columns=6, features=40):
    made = RandomReLU((columns,), features, seed=0)
    made.fit(torch.from_numpy(samples(200, columns=columns)[0]))
    return made


def one_by_one(clf, X, y, predict=True):
    for row in range(len(y)):
        clf.partial_fit(X[row : row + 1], y[row : row + 1])
        if predict:
            clf.predict(X[:1])
    return clf


@pytest.mark.parametrize("weighted", [False, True])
def test_after_a_refresh_scores_are_those_of_one_fit(weighted):
    X, y = samples(300)
    weight = np.random.default_rng(1).uniform(0.5, 2.0, 300) if weighted else np.ones(300)
    clf = CLDNetClassifier(backbone=fixed_map()).partial_fit(X[:100], y[:100], sample_weight=weight[:100])
    for row in range(100, 300):
        clf.partial_fit(X[row : row + 1], y[row : row + 1], sample_weight=weight[row : row + 1])
        clf.predict(X[:1])
    whole = CLDNetClassifier(backbone=fixed_map()).fit(X, y, sample_weight=weight)
    assert np.abs(clf.refresh().decision_function(X) - whole.decision_function(X)).max() < 1e-6


def test_between_refreshes_the_solution_is_that_of_all_samples():
    X, y = samples(220)
    clf = one_by_one(CLDNetClassifier(backbone=fixed_map()).partial_fit(X[:210], y[:210]), X[210:], y[210:])
    learner = clf.model_.exact
    assert not learner.is_fresh
    assert learner._solved.recursion is not None
    alone = CLDNetClassifier(backbone=fixed_map(), alpha=learner.ridge.alpha).fit(X, y)
    assert torch.allclose(learner.ridge.solution, alone.model_.exact.ridge.solution, atol=1e-10)


def test_it_is_refreshed_when_samples_have_grown_by_an_eighth_or_a_class_is_new():
    X, y = samples(400)
    clf = CLDNetClassifier(backbone=fixed_map()).partial_fit(X[:200], y[:200])
    clf.predict(X[:1])
    one_by_one(clf, X[200:225], y[200:225])
    assert not clf.model_.exact.is_fresh
    one_by_one(clf, X[225:226], y[225:226])
    assert clf.model_.exact.is_fresh
    clf.partial_fit(X[:1], [7]).predict(X[:1])
    assert clf.model_.exact.is_fresh
    clf.partial_fit(X[:33], y[:33]).predict(X[:1])  # more than a few
    assert clf.model_.exact.is_fresh


def test_a_failed_call_leaves_the_model_and_its_answers_as_they_were(monkeypatch):
    X, y = samples(120)
    clf = one_by_one(CLDNetClassifier(backbone=fixed_map()).partial_fit(X[:100], y[:100]), X[100:105], y[100:105])
    before, sums = clf.decision_function(X), clf.statistics().tensors
    monkeypatch.setattr("cldnet.estimator.model.sample_digests", lambda samples: 1 / 0)  # after the sums were changed
    with pytest.raises(ZeroDivisionError):
        clf.partial_fit(X[105:106], y[105:106])
    assert np.array_equal(clf.decision_function(X), before)
    assert all(torch.equal(sums[name], each) for name, each in clf.statistics().tensors.items())


def test_a_saved_a_copied_and_a_pickled_model_answers_as_the_original_does(tmp_path):
    X, y = samples(130)
    clf = one_by_one(CLDNetClassifier(backbone=fixed_map()).partial_fit(X[:120], y[:120]), X[120:], y[120:])
    clf.save(tmp_path / "model.cldnet")
    scores = clf.decision_function(X)
    loaded = CLDNetClassifier.load(tmp_path / "model.cldnet")
    for other in (loaded, copy.deepcopy(clf), pickle.loads(pickle.dumps(clf))):
        assert np.array_equal(other.decision_function(X), scores)


def test_copies_that_share_their_sums_do_not_change_each_other():
    X, y = samples(200)
    clf = CLDNetClassifier(backbone=fixed_map()).partial_fit(X[:100], y[:100])
    twin, before = copy.deepcopy(clf), clf.statistics().tensors["second.packed"]
    twin.partial_fit(X[100:], y[100:])  # many samples at once: the sums are changed in place
    assert torch.equal(clf.statistics().tensors["second.packed"], before)
    clf.partial_fit(X[100:], y[100:])
    assert torch.equal(clf.statistics().tensors["second.packed"], twin.statistics().tensors["second.packed"])


def test_other_threads_predict_while_rows_are_learned():
    X, y = samples(400)
    clf = CLDNetClassifier(backbone=fixed_map()).partial_fit(X[:200], y[:200])
    errors, done = [], threading.Event()

    def ask():
        while not done.is_set():
            try:
                assert np.isfinite(clf.decision_function(X[:5])).all()
            except Exception as error:
                errors.append(error)
                return

    asking = threading.Thread(target=ask)
    asking.start()
    one_by_one(clf, X[200:260], y[200:260])
    done.set()
    asking.join()
    assert not errors


# -- the first samples -------------------------------------------------------------------------------------------------


def test_a_model_may_begin_with_a_single_row_and_is_that_of_all_first_rows():
    X, y = samples(20)
    clf = CLDNetClassifier(random_state=0)
    assert clf.partial_fit(X[:1], y[:1]).predict(X[:3]).tolist() == [0, 0, 0]
    one_by_one(clf, X[1:], y[1:])
    whole = CLDNetClassifier(random_state=0).fit(X, y)
    assert np.array_equal(clf.decision_function(X), whole.decision_function(X))
    assert clf.feature_map_.map_id == whole.feature_map_.map_id
    assert clf.model_.labels.counts == whole.model_.labels.counts


def test_rows_are_held_until_there_are_50_and_dropped_then():
    X, y = samples(60)
    clf = CLDNetClassifier(random_state=0)
    one_by_one(clf, X[:49], y[:49], predict=False)
    held = weakref.ref(clf._first.x)
    clf.partial_fit(X[49:50], y[49:50])
    gc.collect()
    assert clf._first is None
    assert held() is None
    chosen = clf.feature_map_.map_id
    assert clf.partial_fit(X[50:], y[50:]).feature_map_.map_id == chosen
    large = CLDNetClassifier(random_state=0).fit(*samples(50))
    assert large._first is None


def test_what_is_saved_or_copied_has_no_rows_and_its_map_stays(tmp_path):
    X, y = samples(12)
    for leave in (lambda clf: clf.save(tmp_path / "m.cldnet"), copy.deepcopy, pickle.dumps, lambda clf: clf.statistics()):
        clf = CLDNetClassifier(random_state=0).partial_fit(X[:6], y[:6])
        leave(clf)
        assert clf._first is None
        chosen = clf.feature_map_.map_id
        assert clf.partial_fit(X[6:], y[6:]).feature_map_.map_id == chosen


def test_a_failed_call_keeps_the_first_rows():
    X, y = samples(12)
    clf = CLDNetClassifier(random_state=0).partial_fit(X[:6], y[:6])
    with pytest.raises(ValueError, match="Input X contains NaN"):
        clf.partial_fit(np.full((1, 6), np.nan), [0])
    with pytest.raises(ValueError, match="features"):
        clf.partial_fit(X[:1, :3], [0])
    clf.partial_fit(X[6:], y[6:])
    whole = CLDNetClassifier(random_state=0).fit(X, y)
    assert np.array_equal(clf.decision_function(X), whole.decision_function(X))


def test_receipts_and_lessons_of_the_first_rows_are_counted_once():
    X, y = samples(24)
    clf = CLDNetClassifier(random_state=0, receipts=True)
    for first in (0, 12):
        clf.partial_fit(X[first : first + 12], y[first : first + 12])
    assert len(clf.model_.lessons.ids) == 2
    assert clf.model_.learner.tasks == 2
    with pytest.warns(MapTraceWarning):
        clf.forget(X[:12], y[:12])
    assert clf.statistics().rows == 12.0
    with pytest.raises(ValueError, match="no receipt"):
        clf.forget(X[:12], y[:12])


def test_memory_stays_flat_over_many_single_rows():
    X, y = samples(300)
    clf = CLDNetClassifier(backbone=fixed_map()).partial_fit(X, y)
    one_by_one(clf, X[:50], y[:50])
    gc.collect()
    tensors = sum(type(each) is torch.Tensor for each in gc.get_objects())
    one_by_one(clf, X[50:200], y[50:200])
    gc.collect()
    assert sum(type(each) is torch.Tensor for each in gc.get_objects()) <= tensors + 2
