"""Streams made from streams: one pass, blurry boundaries, classes that come back, long tails, fewer rows, fewer tasks.

Each function takes a stream and returns another. Only training rows move; every task is tested on its own classes, as before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cldnet.data.stream import Stream
from cldnet.device import generator

__all__ = ["blurry", "long_tailed", "online", "returning", "thinned", "until"]


def online(stream: Stream, batch_size: int = 10) -> Stream:
    """Allow one pass over each task, in small batches; whoever runs the stream keeps to it.

    Examples
    --------
    >>> from cldnet.data.streams import split_digits
    >>> online(split_digits(0)).online
    10
    """
    if batch_size < 1:
        raise ValueError(f"An online stream comes in batches of {batch_size}; expected at least 1 example.")
    return replace(stream, name=f"{stream.name},online={batch_size}", online=batch_size)


def until(stream: Stream, count: int) -> Stream:
    """Keep the first tasks only, as settings are chosen where the later ones must not be known.

    Examples
    --------
    >>> from cldnet.data.streams import split_digits
    >>> until(split_digits(None), 2).tasks
    ((0, 1), (2, 3))
    """
    if not 1 <= count <= len(stream):
        raise ValueError(f"until={count} cannot be: {stream.name} has {len(stream)} tasks, and at least 1 is needed.")
    return replace(stream[:count], name=f"{stream.name},until={count}")


def blurry(stream: Stream, share: float = 0.1, seed: int = 0) -> Stream:
    """Let a share of every class turn up in the other tasks, in equal parts (Bang et al. 2021, "blurry").

    Examples
    --------
    >>> from cldnet.data.streams import split_digits
    >>> stream = blurry(split_digits(0), 0.1)
    >>> stream.tasks[0], len(stream[0].train.rows)
    ((4, 1), 10)
    """
    _check_share(share)
    if len(stream) == 1:
        raise ValueError("A stream of one task has no other task that its rows could turn up in.")

    def scatter(rows: NDArray[np.int64], task: int, draw: torch.Generator) -> list[tuple[int, NDArray[np.int64]]]:
        others = [other for other in range(len(stream)) if other != task]
        # Dealt out like cards, beginning anywhere, so that every class is spread evenly and small ones reach all tasks.
        begin = int(torch.randint(len(others), (), generator=draw))
        return [(others[(begin + i) % len(others)], rows[i :: len(others)]) for i in range(len(others))]

    return replace(_moved(stream, share, seed, scatter), name=f"{stream.name},blurry={share:g}")


def returning(stream: Stream, share: float = 0.3, seed: int = 0) -> Stream:
    """Keep a share of every class back, and let it come back in one later task, drawn at random.

    The last task's classes have no later task and come whole.

    Examples
    --------
    >>> from cldnet.data.streams import split_digits
    >>> stream = returning(split_digits(0))
    >>> len(stream[0].train.rows), len(stream[-1].train.rows) > 2
    (2, True)
    """
    _check_share(share)

    def later(rows: NDArray[np.int64], task: int, draw: torch.Generator) -> list[tuple[int, NDArray[np.int64]]]:
        left = len(stream) - 1 - task
        return [(task + 1 + int(torch.randint(left, (), generator=draw)), rows)] if left else [(task, rows)]

    return replace(_moved(stream, share, seed, later), name=f"{stream.name},returning={share:g}")


def long_tailed(stream: Stream, ratio: float = 0.01, seed: int | None = 0) -> Stream:
    """Thin the classes out, from all of the first one's rows to ``ratio`` of that, in equal steps of the logarithm.

    Parameters
    ----------
    stream : Stream
    ratio : float
        Rows of the rarest class over rows of the most frequent one; every class keeps at least one.
    seed : int or None
        Seed of the classes' ranks and of the rows that stay; ``None`` lets classes grow rarer in their order of arrival.

    Examples
    --------
    >>> from cldnet.data.streams import split_digits
    >>> [len(task.train) for task in long_tailed(split_digits(0), 0.1, seed=None)]
    [242, 146, 87, 53, 32]
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"A long tail with the ratio {ratio} cannot be: expected more than 0, and 1 at most.")
    draw = generator(0 if seed is None else seed)
    classes = stream.class_order
    rank_of = dict(zip(classes, range(len(classes)), strict=True))
    if seed is not None:  # over sorted labels: the class order may come from the same seed
        rank_of = dict(zip(sorted(classes), torch.randperm(len(classes), generator=draw).tolist(), strict=True))
    most = max(map(len, _rows_of(stream, classes)))
    counts = [round(most * ratio ** (rank_of[label] / max(len(classes) - 1, 1))) for label in classes]
    return replace(_with_fewer(stream, classes, counts, draw), name=f"{stream.name},long_tail={ratio:g}")


def thinned(stream: Stream, share: float = 0.33, seed: int = 0) -> Stream:
    """Keep a share of every class's training rows, at least one, so that trial runs take less time.

    The same rows stay in every class order; test rows are those of the whole stream.

    Examples
    --------
    >>> from cldnet.data.streams import split_digits
    >>> whole, third = split_digits(0), thinned(split_digits(0), 1 / 3)
    >>> len(whole.train), len(third.train), len(third.test) == len(whole.test)
    (1347, 448, True)
    """
    if not 0 < share < 1:
        raise ValueError(f"A share of {share} of every class cannot stay; expected a number between 0 and 1.")
    classes = sorted(stream.class_order)  # not in order of arrival: which rows stay should not hang on that
    counts = [round(share * len(rows)) for rows in _rows_of(stream, classes)]
    return replace(_with_fewer(stream, classes, counts, generator(seed)), name=f"{stream.name},train={share:g}")


def _rows_of(stream: Stream, classes: Sequence[Any]) -> list[NDArray[np.int64]]:
    """Each class's training rows, once, whichever tasks they are in."""
    labels = stream.train_part.y
    used = np.unique(np.concatenate([plan.train.numpy() for plan in stream.plans]))
    return [used[labels[used] == label] for label in classes]


def _with_fewer(stream: Stream, classes: Sequence[Any], counts: Sequence[int], draw: torch.Generator) -> Stream:
    """Keep so many training rows of each class, drawn at random: at least one, and at most what there is."""
    pairs = zip(_rows_of(stream, classes), counts, strict=True)
    stays = np.concatenate([_drawn(rows, min(max(count, 1), len(rows)), draw) for rows, count in pairs])
    plans = tuple(replace(plan, train=torch.from_numpy(np.intersect1d(plan.train, stays))) for plan in stream.plans)
    return replace(stream, plans=plans)


_Move = Callable[[NDArray[np.int64], int, torch.Generator], Sequence[tuple[int, NDArray[np.int64]]]]


def _moved(stream: Stream, share: float, seed: int, move: _Move) -> Stream:
    """Take a share of the rows of every class away from its task and hand them to the tasks that ``move`` says."""
    if sum(map(len, stream.tasks)) > len(stream.class_order):
        raise ValueError(f"The tasks of {stream.name} share their classes: no row can move from one to another.")
    draw = generator(seed)
    labels = stream.train_part.y
    shares: list[list[Any]] = [[] for _ in stream.plans]
    moves = False
    for task, plan in enumerate(stream.plans):
        rows = plan.train.numpy()
        taken: list[NDArray[np.int64]] = []
        for label in plan.classes:
            of_class = rows[labels[rows] == label]
            some = _drawn(of_class, min(round(share * len(of_class)), len(of_class) - 1), draw)
            for other, moved in move(some, task, draw):
                shares[other].append(moved)
            taken.append(some)
        shares[task].append(np.setdiff1d(rows, np.concatenate(taken)))
        moves = moves or any(len(np.setdiff1d(some, np.concatenate(shares[task]))) for some in taken)
    if not moves:
        raise ValueError(f"No row of {stream.name} would move: expected a larger share, or more tasks.")
    plans = tuple(
        replace(plan, train=torch.from_numpy(np.unique(np.concatenate(rows))))
        for plan, rows in zip(stream.plans, shares, strict=True)
    )
    return replace(stream, plans=plans)


def _drawn(rows: NDArray[np.int64], count: int, draw: torch.Generator) -> NDArray[np.int64]:
    chosen: NDArray[np.int64] = rows[torch.randperm(len(rows), generator=draw)[: max(count, 0)].numpy()]
    return chosen


def _check_share(share: float) -> None:
    if not 0 < share < 1:
        raise ValueError(f"A share of {share} of every class cannot move; expected a number between 0 and 1.")
