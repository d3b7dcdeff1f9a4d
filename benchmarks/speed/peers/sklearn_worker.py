"""scikit-learn's learners that take data in portions. They have to be told all classes before the first one."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

import numpy as np
from benchmarks.speed.peers import protocol
from benchmarks.speed.peers.protocol import Labels, Make, Stream
from sklearn.linear_model import SGDClassifier
from sklearn.neural_network import MLPClassifier
from threadpoolctl import threadpool_limits


class Portions:
    """An estimator with a stream to learn: one `partial_fit` a task, which is one pass over it."""

    def __init__(self, stream: Stream, estimator: Any) -> None:
        self.estimator = estimator
        chance = np.random.default_rng(stream.seed)
        self.tasks = []
        for task in stream.tasks:
            order = chance.permutation(len(task.y))
            self.tasks.append((task.flat()[order], task.y[order]))
        self.test = stream.test.flat()

    def train(self) -> int:
        for x, y in self.tasks:
            for _ in range(protocol.EPOCHS):
                self.estimator.partial_fit(x, y, classes=np.arange(protocol.CLASSES))
        return protocol.EPOCHS * sum(len(y) for _, y in self.tasks)

    def predict(self) -> Labels:
        labels: Labels = self.estimator.predict(self.test)
        return labels

    def state_bytes(self) -> int:
        single = isinstance(self.estimator, SGDClassifier)
        weights = (
            [self.estimator.coef_, self.estimator.intercept_]
            if single
            else [
                *self.estimator.coefs_,
                *self.estimator.intercepts_,
            ]
        )
        return sum(int(each.nbytes) for each in weights)


def perceptron(stream: Stream) -> Portions:
    """The net, batches and steps of the other sides."""
    return Portions(
        stream,
        MLPClassifier(
            protocol.WIDTHS,
            solver="sgd",
            alpha=0.0,
            batch_size=protocol.BATCH,
            learning_rate_init=stream.lr,
            momentum=protocol.MOMENTUM,
            nesterovs_momentum=False,
            random_state=stream.seed,
        ),
    )


def linear(stream: Stream) -> Portions:
    """Logistic regression, a row at a time, with its own rates."""
    return Portions(stream, SGDClassifier(loss="log_loss", random_state=stream.seed))


if __name__ == "__main__":
    makes: dict[str, Make] = {"mlp": perceptron, "sgd": linear}
    protocol.serve(makes, {name: version(name) for name in ("scikit-learn", "numpy")}, threadpool_limits)
