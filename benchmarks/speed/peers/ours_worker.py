"""Our side, in a process like those of the others: learners of the library by `fit_task`, and its face."""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
from benchmarks.speed.peers import protocol
from benchmarks.speed.peers.protocol import Labels, Make, Rows, Stream
from numpy.typing import NDArray

from cldnet import CLDNetClassifier
from cldnet.device import tensor_bytes
from cldnet.methods import build_learner
from cldnet.methods.fit import fit_task
from cldnet.methods.learner import Setting, TaskData, predict_logits

#: Nobody else clips gradients here.
_GRADIENT = {"momentum": protocol.MOMENTUM, "clip": float("inf")}
#: Method and settings of each piece. Theirs is ``λ Σ F (θ − θ*)²`` and ours has a half before it.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "finetune": ("finetune", _GRADIENT),
    "ewc": ("ewc-batched", {**_GRADIENT, "strength": 2 * protocol.EWC, "fisher_batch": protocol.BATCH}),
    "replay": ("er", {**_GRADIENT, "memory": protocol.MEMORY, "replay": protocol.BATCH}),
    "one": ("finetune", {**_GRADIENT, "lr": protocol.LR_ONE}),
}


_MEAN, _SPREAD = 255 * protocol.MEAN, 255 * protocol.SPREAD


def _bytes(rows: Rows) -> NDArray[Any]:
    return rows.x


class Learned:
    """A method of the library, with a stream to learn: images in bytes, or rows of numbers normalised beforehand."""

    def __init__(
        self,
        stream: Stream,
        piece: str,
        widths: tuple[int, ...] = protocol.WIDTHS,
        batch: int = protocol.BATCH,
        normalised: bool = False,
    ) -> None:
        self.stream, self.batch = stream, batch
        self.inputs = Rows.flat if normalised else _bytes
        rows = {label: row for row, label in enumerate(stream.order)}
        self.tasks = [
            TaskData(torch.from_numpy(self.inputs(task)), torch.tensor([rows[label] for label in task.y.tolist()]))
            for task in stream.tasks
        ]
        name, options = METHODS[piece]
        shape = tuple(self.tasks[0].x.shape[1:])
        # Normalised rows are not scaled once more; bytes are, batch by batch while it learns.
        mean, spread = ((0.0,) * shape[0], (1.0,) * shape[0]) if normalised else ((_MEAN,), (_SPREAD,))
        setting = Setting(shape, capacity=protocol.CLASSES, seed=stream.seed, scaling=(mean, spread))
        self.learner = build_learner(name, setting, {"lr": stream.lr, **options}, "mlp", {"widths": widths})
        self.images = 0
        self.learner.get_submodule("net").register_forward_pre_hook(self._count)

    def _count(self, net: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        if net.training:
            self.images += len(inputs[0])

    def train(self) -> int:
        for task in self.tasks:
            fit_task(self.learner, task, epochs=protocol.EPOCHS, batch_size=self.batch)
        return self.images

    def predict(self) -> Labels:
        best = predict_logits(self.learner, torch.from_numpy(self.inputs(self.stream.test))).argmax(1).numpy()
        labels: Labels = np.array(self.stream.order)[best]
        return labels

    def state_bytes(self) -> int:
        return sum(tensor_bytes(tensor) for tensor in self.learner.state_dict().values())


class Face:
    """`CLDNetClassifier` as it comes, one `partial_fit` a task, and one pass over the data as everybody here has."""

    def __init__(self, stream: Stream, solver: str) -> None:
        self.tasks, self.test = stream.tasks, stream.test
        self.model = CLDNetClassifier(
            solver, capacity=protocol.CLASSES, epochs=protocol.EPOCHS, device="cpu", random_state=stream.seed
        )

    def train(self) -> int:
        for task in self.tasks:
            self.model.partial_fit(task.x, task.y)
        self.model.predict(self.test.x[:1])  # the exact solver solves when it is first asked
        return protocol.EPOCHS * sum(len(task.y) for task in self.tasks)

    def predict(self) -> Labels:
        return np.asarray(self.model.predict(self.test.x), dtype=np.int64)

    def state_bytes(self) -> int:
        return self.model.footprint().total


if __name__ == "__main__":
    makes: dict[str, Make] = {piece: partial(Learned, piece=piece) for piece in ("finetune", "ewc", "replay")}
    makes |= {
        f"{piece} of tensors": partial(Learned, piece=piece, normalised=True) for piece in ("finetune", "ewc", "replay")
    }
    makes["linear"] = partial(Learned, piece="finetune", widths=())
    makes["linear-one"] = partial(Learned, piece="one", widths=(), batch=1)
    makes["exact"] = partial(Face, solver="exact")
    makes["hbo"] = partial(Face, solver="hbo")
    protocol.serve(makes, {name: version(name) for name in ("cldnet", "torch", "numpy")}, torch.set_num_threads)
