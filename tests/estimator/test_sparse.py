"""A classifier over sparse rows: it does all that it does over dense ones, and never makes them dense."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.naive_bayes import MultinomialNB

from cldnet import CLDNetClassifier, Statistics
from cldnet.estimator.classifier import merge
from cldnet.math.naive_bayes import SMOOTHING
from cldnet.methods.exact import EVIDENCE
from cldnet.nets import Hashed

COLUMNS, EACH = 300, 60


def counts(labels: str = "abc", seed: int = 0) -> tuple[Any, np.ndarray[Any, Any]]:
    """Words of three classes: each has some of its own, and all have common ones."""
    random = np.random.default_rng(seed)
    y = np.repeat([*labels], EACH)
    own = 20 * np.array([ord(label) - ord("a") for label in y])
    words = np.concatenate(
        [own[:, None] + random.integers(0, 20, (len(y), 4)), random.integers(100, 300, (len(y), 6))], 1
    )
    rows = np.arange(len(y)).repeat(10)
    return sp.csr_array((np.ones(len(rows)), (rows, words.ravel())), shape=(len(y), COLUMNS)), y


X, Y = counts()
TEST, TRUTH = counts(seed=1)


def small(**options: Any) -> CLDNetClassifier:
    """A classifier whose map takes 128 columns, so that 300 are many."""
    return CLDNetClassifier(backbone=Hashed((128,)), random_state=0, **options)


def test_lessons_of_sparse_rows_are_learned_like_all_rows_at_once() -> None:
    lessons = small()
    for label in "abc":
        lessons.partial_fit(X[label == Y], Y[label == Y])
    assert lessons.n_features_in_ == COLUMNS
    assert lessons.model_.inputs.shape == (128,)
    assert lessons.score(TEST, TRUTH) > 0.8
    given = small().set_params(backbone=lessons.feature_map_)
    assert np.array_equal(given.fit(X, Y).predict_proba(TEST), lessons.predict_proba(TEST))


def test_auto_is_the_hashed_map_for_wide_rows() -> None:
    wide = sp.csr_array((X.data, X.indices * 15, X.indptr), shape=(X.shape[0], 15 * COLUMNS))
    clf = CLDNetClassifier(random_state=0).fit(wide, Y)
    assert type(clf.feature_map_) is Hashed
    assert clf.feature_map_.input_shape == (4000,)
    assert clf.score(wide, Y) > 0.9


@pytest.mark.parametrize(
    "make", [sp.csr_matrix, sp.csc_array, sp.coo_array, sp.lil_matrix, lambda rows: rows.toarray()]
)
def test_any_format_and_dense_rows_get_the_same_answers(make: Any) -> None:
    clf = small().fit(X, Y)
    for method in ("predict", "predict_proba", "decision_function", "known_probability"):
        assert np.array_equal(getattr(clf, method)(make(TEST)), getattr(clf, method)(TEST))
    twin = small().fit(make(X), Y) if sp.issparse(make(X)) else small().partial_fit(X[:90], Y[:90])
    if not sp.issparse(make(X)):
        clf = small().partial_fit(X[:90], Y[:90]).partial_fit(X[90:], Y[90:])
        twin.partial_fit(make(X[90:]), Y[90:])
    assert np.array_equal(twin.decision_function(TEST), clf.decision_function(TEST))


def test_few_columns_are_learned_as_if_they_were_dense() -> None:
    sparse, dense = CLDNetClassifier(random_state=0).fit(X, Y), CLDNetClassifier(random_state=0).fit(X.toarray(), Y)
    assert np.array_equal(sparse.predict_proba(TEST), dense.predict_proba(TEST))
    assert np.array_equal(sparse.predict_proba(TEST.toarray()), dense.predict_proba(TEST))


def test_other_columns_are_refused_and_change_nothing() -> None:
    clf = small().fit(X, Y)
    before = clf.decision_function(TEST)
    for rows in (X[:, :200], X[:, :128], X[:, :128].toarray()):
        for call in (lambda rows=rows: clf.predict(rows), lambda rows=rows: clf.partial_fit(rows, Y)):
            with pytest.raises(ValueError, match="features, but CLDNetClassifier is expecting 300 features"):
                call()
    assert np.array_equal(clf.decision_function(TEST), before)


def test_a_model_of_dense_rows_does_not_make_wide_ones_dense() -> None:
    dense = np.random.default_rng(0).normal(size=(20, 4100))
    clf = CLDNetClassifier(random_state=0).fit(dense, [0, 1] * 10)
    with pytest.raises(ValueError, match=r"^X is sparse and has 4,100 columns.*X\[i:j\]\.toarray\(\)"):
        clf.predict(sp.csr_array(dense))


def test_input_shape_cannot_fold_projected_rows() -> None:
    with pytest.raises(ValueError, match=r"which are projected to 128, and input_shape=\(15, 20\).*leave it out"):
        small(input_shape=(15, 20)).fit(X, Y)


def test_a_file_and_a_pickle_keep_the_projection(tmp_path: Path) -> None:
    clf = small().fit(X, Y)
    clf.save(tmp_path / "model.cldnet")
    for twin in (CLDNetClassifier.load(tmp_path / "model.cldnet"), pickle.loads(pickle.dumps(clf))):
        assert np.array_equal(twin.predict_proba(TEST), clf.predict_proba(TEST))
        again = twin.partial_fit(TEST, TRUTH).decision_function(X)
        assert np.array_equal(again, pickle.loads(pickle.dumps(clf)).partial_fit(TEST, TRUTH).decision_function(X))


def test_sparse_rows_are_forgotten_exactly_and_audited() -> None:
    public = small().fit(*counts(seed=2)).feature_map_
    clf = CLDNetClassifier(backbone=public, receipts=True).fit(X, Y)
    only = CLDNetClassifier(backbone=public).fit(X[EACH:], Y[EACH:])
    assert clf.audit(X).holds
    clf.forget(X[:EACH], Y[:EACH])
    assert np.array_equal(clf.decision_function(TEST), only.decision_function(TEST))
    with pytest.raises(ValueError, match="no receipt"):
        clf.forget(TEST[EACH:], TRUTH[EACH:])


def test_pieces_of_a_session_are_one_call() -> None:
    clf = small()
    with clf.session():
        clf.partial_fit(X[:50], Y[:50])
        clf.partial_fit(X[50:].toarray(), Y[50:])
    assert np.array_equal(clf.decision_function(TEST), small().fit(X, Y).decision_function(TEST))


def test_models_of_the_same_columns_are_merged_and_of_others_refused(tmp_path: Path) -> None:
    public = small().fit(*counts(seed=2)).feature_map_
    one, other = (CLDNetClassifier(backbone=public).fit(X[part], Y[part]) for part in (slice(90), slice(90, None)))
    other.statistics().save(tmp_path / "sums")
    both = merge([one, Statistics.load(tmp_path / "sums")])
    assert np.array_equal(
        both.decision_function(TEST), CLDNetClassifier(backbone=public).fit(X, Y).decision_function(TEST)
    )
    fewer = CLDNetClassifier(backbone=public).fit(X[:, :200], Y)
    with pytest.raises(ValueError, match=r"made for 300 columns, the other for 200.*cannot be merged"):
        merge([one, fewer])


def test_naive_bayes_is_asked_where_features_are_counts_and_not_where_they_are_negative() -> None:
    clf = small().fit(X, Y)
    learner = clf.model_.exact
    assert learner.vectors(clf.check_inputs(TEST)).shape[1] == 6
    negative = small().fit(-X, Y)
    assert negative.model_.exact.vectors(negative.check_inputs(TEST)).shape[1] == 3
    assert min(clf.score(TEST, TRUTH), negative.score(-TEST, TRUTH)) > 0.9


def test_likelihoods_of_naive_bayes_count_in_scores_and_agree_with_scikit_learns() -> None:
    clf = small().fit(X, Y)
    learner, x = clf.model_.exact, clf.check_inputs(TEST)
    vectors = learner.vectors(x)
    h = [learner.represent(clf.check_inputs(rows)).double().numpy()[:, :-1] for rows in (X, TEST)]
    reference = MultinomialNB(alpha=SMOOTHING).fit(h[0], Y)
    expected = h[1] @ reference.feature_log_prob_.T / Hashed.count
    assert np.allclose(vectors[:, 3:].numpy(), expected)
    ridge = learner.decide(vectors[:, :3]).numpy()
    assert np.allclose(clf.decision_function(TEST), (ridge + EVIDENCE * expected) / 2)


def test_hbo_learns_the_projected_rows() -> None:
    wide = sp.csr_array((X.data, X.indices * 15, X.indptr), shape=(X.shape[0], 15 * COLUMNS))
    clf = CLDNetClassifier("hbo", capacity=4, embed_dim=8, epochs=1, random_state=0).fit(wide, Y)
    assert clf.n_features_in_ == 15 * COLUMNS
    assert clf.predict(wide).shape == Y.shape


def test_an_export_of_projected_rows_is_refused(tmp_path: Path) -> None:
    from cldnet.export import to_torch

    with pytest.raises(ValueError, match="sparse rows that were projected"):
        to_torch(small().fit(X, Y), tmp_path / "model.pt2")


_WIDE = """
import resource
import numpy as np, scipy.sparse as sp
from cldnet import CLDNetClassifier
from cldnet.nets import Hashed
random = np.random.default_rng(0)
X = sp.csr_array((np.ones(200_000), random.integers(0, 1_000_000, 200_000), np.arange(0, 200_001, 10)), (20_000, 1_000_000))
y = np.arange(20_000) % 2
clf = CLDNetClassifier(backbone=Hashed((64,)), random_state=0).fit(X[:2], y[:2])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
clf.partial_fit(X, y).predict(X)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux")
def test_a_matrix_that_would_not_fit_into_memory_is_learned() -> None:
    """Dense it would take 80 GB; a block of 4,096 such rows would take 16."""
    done = subprocess.run([sys.executable, "-c", _WIDE], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 200_000
