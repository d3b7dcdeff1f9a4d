"""river: what of it takes many classes of numbers in a stream; a row at a time, which is its way, and in mini-batches."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
import pandas as pd
from benchmarks.speed.peers import protocol
from benchmarks.speed.peers.protocol import Labels, Make, Rows, Stream
from river.linear_model import LogisticRegression, SoftmaxRegression  # type: ignore[import-not-found]
from river.multiclass import OneVsRestClassifier  # type: ignore[import-not-found]
from river.optim import SGD  # type: ignore[import-not-found]


def _shuffled(stream: Stream) -> list[Rows]:
    chance = np.random.default_rng(stream.seed)
    orders = [chance.permutation(len(task.y)) for task in stream.tasks]
    return [Rows(task.x[order], task.y[order]) for task, order in zip(stream.tasks, orders, strict=True)]


class OneByOne:
    """Softmax regression that learns and predicts dictionaries, which are made beforehand."""

    def __init__(self, stream: Stream) -> None:
        self.model = SoftmaxRegression(SGD(protocol.LR_ONE))
        self.rows = [
            pair for task in _shuffled(stream) for pair in zip(_dictionaries(task), task.y.tolist(), strict=True)
        ]
        self.test = _dictionaries(stream.test)

    def train(self) -> int:
        for x, y in self.rows:
            self.model.learn_one(x, y)
        return len(self.rows)

    def predict(self) -> Labels:
        return np.array([self.model.predict_one(x) for x in self.test], dtype=np.int64)

    def state_bytes(self) -> int:
        """Its weights as plain numbers; in Python they take several times as much."""
        return 8 * sum(len(weights) for weights in self.model.weights.values())


def _dictionaries(rows: Rows) -> list[dict[int, float]]:
    return [dict(enumerate(row)) for row in rows.flat().tolist()]


class Batches:
    """One logistic regression a class, by data frames of one batch each, which are made beforehand."""

    def __init__(self, stream: Stream) -> None:
        self.model = OneVsRestClassifier(LogisticRegression(SGD(protocol.LR)))
        self.frames: list[tuple[Any, Any]] = []
        for task in _shuffled(stream):
            x, y = pd.DataFrame(task.flat()), pd.Series(task.y)
            for first in range(0, len(y), protocol.BATCH):
                batch = slice(first, first + protocol.BATCH)
                self.frames.append((x[batch].reset_index(drop=True), y[batch].reset_index(drop=True)))
        self.test = pd.DataFrame(stream.test.flat())

    def train(self) -> int:
        for x, y in self.frames:
            self.model.learn_many(x, y)
        return sum(len(y) for _, y in self.frames)

    def predict(self) -> Labels:
        return np.asarray(self.model.predict_many(self.test)).astype(np.int64)

    def state_bytes(self) -> int:
        return 8 * sum(len(each.weights) + 1 for each in self.model.classifiers.values())


if __name__ == "__main__":
    makes: dict[str, Make] = {"one": OneByOne, "many": Batches}
    names = ("river", "numpy", "pandas")
    protocol.serve(makes, {name: version(name) for name in names}, lambda count: None)
