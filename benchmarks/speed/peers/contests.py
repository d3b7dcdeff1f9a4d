"""Which of our pieces stands beside which of theirs, and the turns that are taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from benchmarks.speed.peers.calls import Request, Worker
from benchmarks.speed.peers.protocol import CLASSES, Answer


@dataclass(frozen=True)
class Match:
    """One of our pieces beside one of theirs.

    Attributes
    ----------
    name, title : str
        Of what is found; the number of threads follows the name.
    ours, theirs : str
        Pieces of the two workers.
    target : float or None
        How many times as many images a second we have to learn.
    """

    name: str
    title: str
    ours: str
    theirs: str
    target: float | None = None


@dataclass(frozen=True)
class Contest:
    """Matches whose pieces take turns with each other, over some of the rows (all if none are given)."""

    peer: str
    matches: tuple[Match, ...]
    rows: int | None = None
    tests: int | None = None


@dataclass(frozen=True)
class Size:
    """How much is done: rows to learn and to test, and turns, each with another seed and order of the classes."""

    train: int
    test: int
    turns: int


_AVALANCHE = {
    "documented": ("by its documented path (torchvision images, one by one)", 5.0),
    "classic": ("by its ready-made SplitMNIST", None),
    "tensors": ("by its tensor path", 1.3),
}
_METHODS = {"finetune": "Fine-tuning", "ewc": "EWC with a batched Fisher", "replay": "Replay from 200 examples"}


def contests(threads: int) -> Iterator[Contest]:
    """All of them, for a number of threads."""
    for piece, method in _METHODS.items():
        matches = [
            Match(
                f"avalanche-{way}/{piece}",
                f"{method}: images a second over Avalanche {how}",
                f"{piece} of tensors"
                if way == "tensors"
                else piece,  # both sides the same numbers, normalised beforehand
                f"{way}/{piece}",
                target,
            )
            for way, (how, target) in _AVALANCHE.items()
        ]
        if threads > 1:  # a second core may as well decode images
            how = "by its documented path with two processes that load the images"
            title = f"{method}: images a second over Avalanche {how}"
            matches.append(Match(f"avalanche-documented-workers/{piece}", title, piece, f"documented-workers/{piece}"))
        yield Contest("avalanche", tuple(matches))
    net = Match("sklearn/mlp", "Fine-tuning: images a second over MLPClassifier.partial_fit", "finetune", "mlp")
    yield Contest("sklearn", (net,))
    over = "images a second over SGDClassifier.partial_fit"
    yield Contest(
        "sklearn",
        (
            Match("sklearn/sgd/linear", f"Fine-tuning a linear net: {over}", "linear", "sgd"),
            Match("sklearn/sgd/exact", f'CLDNetClassifier(solver="exact"): {over}', "exact", "sgd"),
            Match("sklearn/sgd/hbo", f'CLDNetClassifier(solver="hbo"): {over}', "hbo", "sgd"),
        ),
    )
    if threads == 1:  # river computes on one thread, whatever it is told
        title = "A linear net, row by row: images a second over river's SoftmaxRegression.learn_one"
        yield Contest("river", (Match("river/one", title, "linear-one", "one"),), rows=500, tests=500)
        title = "A linear net, in batches: images a second over river's OneVsRestClassifier.learn_many"
        yield Contest("river", (Match("river/many", title, "linear", "many"),), rows=3000, tests=2000)


def take_turns(
    contest: Contest, ours: Worker, theirs: Worker, threads: int, turns: int
) -> Mapping[str, Sequence[Answer]]:
    """Have every piece done once a turn; the first turn warms up and is not counted."""
    entrants = {f"ours:{match.ours}": (ours, match.ours) for match in contest.matches}
    entrants |= {f"theirs:{match.theirs}": (theirs, match.theirs) for match in contest.matches}
    answers: dict[str, list[Answer]] = {name: [] for name in entrants}
    blank = Request("", threads, (), 0, contest.rows, contest.tests)
    for turn in range(-1, turns):
        seed = max(turn, 0)
        order = tuple(int(label) for label in np.random.default_rng(seed).permutation(CLASSES))
        for name, (worker, piece) in entrants.items():
            answer = worker.ask(replace(blank, piece=piece, order=order, seed=seed))
            if turn >= 0:
                answers[name].append(answer)
    return answers
