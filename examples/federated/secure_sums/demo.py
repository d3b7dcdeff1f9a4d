"""The demonstration's data: scikit-learn's digits, of which each of three clients has other classes.

python -m secure_sums.demo map shared.map                    fits the shared map on random images and saves it
python -m secure_sums.demo check shared.map model.cldnet     compares the server's model with one model of all rows
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits

from cldnet import CLDNetClassifier, load_map, save_map
from cldnet.nets import RandomReLU

#: Classes of each client. Two of them share a class, so that its sums are spread.
CLASSES = ((0, 1, 2, 3), (3, 4, 5, 6), (6, 7, 8, 9))
#: Largest value of a pixel of these images.
LARGEST = 16
Rows = tuple[NDArray[np.float64], NDArray[np.int64]]


def rows_of(client: int) -> Rows:
    """The samples of one client. Of a class that two clients have, each sample belongs to one of them."""
    X, y = _learned()
    owners = [[number for number, classes in enumerate(CLASSES) if label in classes] for label in y]
    own = np.array([owner[place % len(owner)] == client for place, owner in enumerate(owners)])
    return X[own], y[own]


def rows_of_all(clients: Iterable[int] = range(len(CLASSES))) -> Rows:
    """The samples of several clients together, which nobody has but this demonstration."""
    parts = [rows_of(client) for client in clients]
    return np.concatenate([X for X, _ in parts]), np.concatenate([y for _, y in parts])


def held_out() -> Rows:
    """Every fifth digit, which no client has."""
    X, y = load_digits(return_X_y=True)
    return X[::5], y[::5]


def public_map() -> RandomReLU:
    """A map that no client's data went into: random weights, fitted on random images."""
    features = RandomReLU((64,), features=500, seed=0)
    source = torch.Generator().manual_seed(0)
    features.fit(torch.randint(0, LARGEST + 1, (1000, 64), generator=source, dtype=torch.float64))
    return features


def check(clf: CLDNetClassifier, clients: Iterable[int] = range(len(CLASSES))) -> bool:
    """Whether a model has the bits of one model that learned all rows: sums, scores and predictions."""
    X, y = rows_of_all(clients)
    order = y.argsort(kind="stable")  # classes get their rows in the order in which they come
    whole = CLDNetClassifier(backbone=clf.feature_map_).fit(X[order], y[order])
    sums, expected = (each.statistics().tensors for each in (clf, whole))
    X_test, _ = held_out()
    return (
        clf.classes_.tolist() == whole.classes_.tolist()
        and {*sums} == {*expected}
        and all(torch.equal(sums[name], expected[name]) for name in sums)
        and np.array_equal(clf.decision_function(X_test), whole.decision_function(X_test))
        and np.array_equal(clf.predict(X_test), whole.predict(X_test))
    )


def _learned() -> Rows:
    X, y = load_digits(return_X_y=True)
    kept = np.arange(len(y)) % 5 > 0
    return X[kept], y[kept]


def main(arguments: list[str]) -> int:
    """Run one of the two commands."""
    command, path, *others = arguments
    if command == "map":
        save_map(public_map(), path)
        return 0
    model, *clients = others
    clf = CLDNetClassifier.load(model)
    assert clf.feature_map_.map_id == load_map(path).map_id
    chosen = [int(client) for client in clients] or range(len(CLASSES))
    same = check(clf, chosen)
    X_test, y_test = held_out()
    known = np.isin(y_test, clf.classes_)
    accuracy = float((clf.predict(X_test[known]) == y_test[known]).mean())
    print(f"bit-equal to one model of all rows of clients {[*chosen]}: {'yes' if same else 'NO'}")
    print(f"accuracy on {known.sum()} held-out digits: {accuracy:.1%}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
