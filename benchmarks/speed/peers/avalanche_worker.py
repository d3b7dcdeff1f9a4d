"""Avalanche 0.6.0 at its best: no loggers, no evaluation while it trains, batches of our size, its own EWC and replay.

Three ways for the data, all in its documentation: `documented` is `nc_benchmark` over torchvision's MNIST with ``ToTensor`` and
``Normalize``, as its tutorial and README have it; `classic` is its ready-made ``SplitMNIST``; `tensors` is
`class_incremental_benchmark` over a tensor dataset of numbers normalised beforehand.
"""

from __future__ import annotations

from functools import partial
from importlib.metadata import version
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from benchmarks.speed.peers import protocol
from benchmarks.speed.peers.protocol import Labels, Make, Stream

# The wheel of torchvision cannot find these two next to a CPU build of torch, and refuses to be imported without.
_schemas = torch.library.Library("torchvision", "DEF")
_schemas.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
_schemas.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from avalanche.benchmarks import (  # type: ignore[import-not-found]  # noqa: E402
    SplitMNIST,
    class_incremental_benchmark,
    nc_benchmark,
)
from avalanche.benchmarks.utils import as_classification_dataset  # type: ignore[import-not-found]  # noqa: E402
from avalanche.training.plugins import EWCPlugin, ReplayPlugin  # type: ignore[import-not-found]  # noqa: E402
from avalanche.training.supervised import Naive  # type: ignore[import-not-found]  # noqa: E402
from torchvision.datasets import MNIST  # type: ignore[import-not-found]  # noqa: E402
from torchvision.transforms import Compose, Normalize, ToTensor  # type: ignore[import-not-found]  # noqa: E402


def documented(stream: Stream) -> Any:
    """A benchmark over images that come one by one through Pillow."""
    transform = Compose([ToTensor(), Normalize((protocol.MEAN,), (protocol.SPREAD,))])
    parts = [MNIST(str(stream.folder), train=train, transform=transform) for train in (True, False)]
    return nc_benchmark(*parts, len(stream.groups), task_labels=False, fixed_class_order=stream.order)


def classic(stream: Stream) -> Any:
    """Its ready-made benchmark: tensors, normalised one by one."""
    return SplitMNIST(len(stream.groups), fixed_class_order=stream.order, dataset_root=str(stream.folder))


class Tensors(torch.utils.data.TensorDataset):
    """Tensors as Avalanche wants them: with their labels at hand."""

    @property
    def targets(self) -> torch.Tensor:
        return self.tensors[1]


def tensors(stream: Stream) -> Any:
    """A benchmark over tensors that are ready to be learned: the quickest of its ways that we found."""
    parts = {
        name: as_classification_dataset(Tensors(torch.from_numpy(part.flat()), torch.from_numpy(part.y)))
        for name, part in (("train", stream.train), ("test", stream.test))
    }
    return class_incremental_benchmark(parts, class_order=list(stream.order), num_experiences=len(stream.groups))


class Net(torch.nn.Module):
    """The net that all sides train; it counts the images that it is trained on."""

    def __init__(self, pixels: int) -> None:
        super().__init__()
        sizes = (pixels, *protocol.WIDTHS)
        hidden = [part for a, b in pairwise(sizes) for part in (torch.nn.Linear(a, b), torch.nn.ReLU())]
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), *hidden, torch.nn.Linear(sizes[-1], protocol.CLASSES))
        self.images = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.images += len(x)
        logits: torch.Tensor = self.layers(x)
        return logits


def plugins(piece: str) -> list[Any]:
    """What makes a method of fine-tuning."""
    if piece == "ewc":  # "separate", its default, would grow with every task
        return [EWCPlugin(protocol.EWC, mode="online", decay_factor=1.0)]
    return [ReplayPlugin(mem_size=protocol.MEMORY)] if piece == "replay" else []


class Strategy:
    """One of its strategies, with a stream to learn."""

    def __init__(self, stream: Stream, way: Any, piece: str, workers: int = 0) -> None:
        torch.manual_seed(stream.seed)
        self.stream, self.workers = stream, workers
        self.experiences = way(stream).train_stream
        self.net = Net(stream.train.x[0].size)
        self.plugins = plugins(piece)
        self.strategy = Naive(
            model=self.net,
            optimizer=torch.optim.SGD(self.net.parameters(), lr=stream.lr, momentum=protocol.MOMENTUM),
            train_mb_size=protocol.BATCH,
            train_epochs=protocol.EPOCHS,
            plugins=self.plugins,
            evaluator=None,
        )

    def train(self) -> int:
        for experience in self.experiences:
            self.strategy.train(experience, num_workers=self.workers)
        return self.net.images

    @torch.no_grad()
    def predict(self) -> Labels:
        self.net.eval()
        rows = torch.from_numpy(self.stream.test.flat())
        return np.concatenate([self.net(part).argmax(1).numpy() for part in rows.split(1024)])

    def state_bytes(self) -> int:
        kept: list[torch.Tensor] = [*self.net.parameters()]
        for plugin in self.plugins:
            if isinstance(plugin, EWCPlugin):
                both = (*plugin.importances.values(), *plugin.saved_params.values())
                kept += [each.data for group in both for each in group.values()]
        # It remembers examples by their places in the data, which have to stay: counted as the bytes that they are there.
        remembered = sum(isinstance(plugin, ReplayPlugin) for plugin in self.plugins) * protocol.MEMORY
        images = remembered * int(self.stream.train.x[0].size)
        return sum(each.numel() * each.element_size() for each in kept) + images


def makes() -> dict[str, Make]:
    """All pieces: every way with every method; the slow way with processes that load the images as well."""
    ways = ((documented, 0), (documented, 2), (classic, 0), (tensors, 0))
    return {
        f"{way.__name__}{'-workers' if workers else ''}/{piece}": partial(
            Strategy, way=way, piece=piece, workers=workers
        )
        for way, workers in ways
        for piece in ("finetune", "ewc", "replay")
    }


if __name__ == "__main__":
    names = ("avalanche-lib", "torch", "torchvision", "numpy")
    protocol.serve(makes(), {name: version(name) for name in names}, torch.set_num_threads)
