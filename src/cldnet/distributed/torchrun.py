"""Training under ``torchrun``: every batch is split over the ranks, and what belongs to the whole batch is exchanged (gloo).

Every rank holds the same learner and draws the same random order. After each exchange all ranks have the same bits: what ranks
send is collected and added up in their order, not in the order in which it arrives.
"""

from __future__ import annotations

import hashlib
import signal
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from itertools import accumulate
from math import prod
from os import getpid
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from cldnet.data.arrays import Batch
from cldnet.distributed.batchnorm import synchronise
from cldnet.distributed.environment import World
from cldnet.methods.parts.ranks import Ranks

#: How long a rank waits for the others. They are in step except while they read data and while one writes a checkpoint.
TIMEOUT = timedelta(minutes=10)
#: How often, and how many seconds apart, a rank looks which of the others is gone.
_TRIES, _PAUSE = 10, 0.05
#: Bytes for the number of a process and the name of its machine.
_NAME = 128
#: Bytes to which every tensor of a message is aligned, so that it can be read in place.
_ALIGNMENT = 16


class RankStopped(BaseException):
    """Another rank stopped, or this one was told to. ``speaks`` says whether this rank is the one to tell the user.

    It is raised anywhere, as KeyboardInterrupt is, so it is no Exception: who handles errors should not take it for one.
    """

    def __init__(self, said: str, speaks: bool) -> None:
        super().__init__(said)
        self.speaks = speaks

    @staticmethod
    def behind(error: BaseException | None) -> RankStopped | None:
        """Find it behind an error that it caused: what a signal raises within a C function is wrapped by that function."""
        while error is not None and not isinstance(error, RankStopped):
            error = error.__cause__ or error.__context__
        return error


class TorchrunRanks(Ranks):
    """The ranks of a process group.

    A batch of fewer samples than ranks belongs to the first rank. The others compute it as well, so that no module ever sees
    an empty batch, but nothing of theirs counts.
    """

    def __init__(self, rank: int, count: int) -> None:
        self.rank, self.count = rank, count
        self._sizes: list[int] = []  # each rank's samples of the batch that is shared; empty outside of `share`
        here = f"{getpid()} {socket.gethostname()}".encode()[:_NAME]
        self._processes = [bytes(sent.tolist()).rstrip(b"\0").decode() for sent in self._all(_text_tensor(here, _NAME))]

    def prepare(self, net: nn.Module) -> None:
        """Replace BatchNorm by one whose statistics are those of the whole batch."""
        synchronise(net, self)

    def reseed(self) -> None:
        """Seed by the previous seed: that is the same on all ranks, and part of a checkpoint, but for the rank within it."""
        step = torch.initial_seed() // self.count + 1
        torch.manual_seed(step * self.count + self.rank)

    def share(self, batch: Batch) -> AbstractContextManager[Batch]:
        """Split a batch into parts that differ by one sample at most."""
        return self._shared(batch)

    @contextmanager
    def _shared(self, batch: Batch) -> Iterator[Batch]:
        samples = len(batch.x)
        self._sizes = part_sizes(samples, self.count)
        begin = sum(self._sizes[: self.rank])
        part = slice(begin, begin + self._sizes[self.rank]) if self._sizes[self.rank] else slice(0, samples)
        weight, original = (None if rows is None else rows[part] for rows in (batch.weight, batch.original))
        try:
            yield batch._replace(x=batch.x[part], y=batch.y[part], weight=weight, original=original)
        finally:
            self._sizes = []

    def weigh(self, loss: Tensor) -> Tensor:
        """Weigh by this rank's part of the samples."""
        return loss * (self._sizes[self.rank] / sum(self._sizes)) if self._sizes else loss

    def length(self, rows: Tensor) -> int:
        """Count the rows of all ranks."""
        return self._rows_per_sample(rows) * sum(self._sizes) if self._sizes else len(rows)

    def gather(self, *rows: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
        """Collect rows of all ranks in one message. Parts differ in length, so shorter ones are padded on the way."""
        if not self._sizes:
            return rows
        first = [each.detach().movedim(dim, 0) for each in rows]
        per_sample = [self._rows_per_sample(each) for each in first]
        largest = [count * max(self._sizes) for count in per_sample]
        sent = self.exchange([_padded(each, most) for each, most in zip(first, largest, strict=True)])
        whole = []
        for number, count in enumerate(per_sample):
            parts = [tensors[number][: count * size] for size, tensors in sent]
            whole.append(torch.cat(parts).movedim(0, dim))
        return tuple(whole)

    def own(self, *rows: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
        """Take the rows of this rank."""
        if not self._sizes or not self._sizes[self.rank]:
            return rows
        begin, size, samples = sum(self._sizes[: self.rank]), self._sizes[self.rank], sum(self._sizes)
        counts = [each.shape[dim] // samples for each in rows]
        return tuple(each.narrow(dim, n * begin, n * size) for each, n in zip(rows, counts, strict=True))

    def mean(self, rows: Tensor) -> Tensor:
        """Mean over the rows of all ranks: only sums are sent."""
        if not self._sizes:
            return rows.mean(0, keepdim=True)
        (mean,) = self.total([rows.detach().sum(0, keepdim=True) / self.length(rows)])
        return mean

    def total(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Add up in the ranks' order, so that all of them have the same bits."""
        if not self._sizes or not tensors:
            return tensors
        (_, total), *others = self.exchange(tensors)
        for _, part in others:
            torch._foreach_add_(total, part)
        return total

    def exchange(self, tensors: Sequence[Tensor]) -> list[tuple[int, list[Tensor]]]:
        """Send tensors of the same shapes on all ranks, in one message; outside of `share` nothing is sent.

        Returns
        -------
        list of (int, list of Tensor)
            What each rank sent and its number of samples, in the ranks' order, without ranks of no samples.
        """
        if not self._sizes:
            return [(1, [*tensors])]
        sent = self._all(_pack(tensors))
        return [(size, _unpack(bytes_, tensors)) for size, bytes_ in zip(self._sizes, sent, strict=True) if size]

    @property
    def sharing(self) -> bool:
        """Whether a batch is split now."""
        return bool(self._sizes)

    def check_equal(self, value: Callable[[], str], otherwise: str) -> None:
        """Compare digests of the values."""
        sent = self._all(_text_tensor(hashlib.sha256(value().encode()).digest(), 32))
        if any(not torch.equal(sent[0], other) for other in sent[1:]):
            raise ValueError(otherwise)

    def _rows_per_sample(self, rows: Tensor) -> int:
        samples = self._sizes[self.rank] or sum(self._sizes)
        count, rest = divmod(len(rows), samples)
        if rest:
            raise ValueError(
                f"A layer has {len(rows)} rows for {samples} samples, so its batches cannot be split over several ranks: "
                "train this network without torchrun."
            )
        return count

    def _all(self, message: Tensor) -> list[Tensor]:
        """Send a message to all ranks, and return what each of them sent."""
        received = [torch.empty_like(message) for _ in range(self.count)]
        try:
            dist.all_gather(received, message)
        except RuntimeError as error:
            raise self.stopped() from error
        return received

    def stopped(self) -> RankStopped:
        """Say which rank stopped, when a message to it has failed."""
        _ignore_end()
        for _ in range(_TRIES):  # a process closes its connections a moment before it is gone
            if gone := self.gone():
                break
            time.sleep(_PAUSE)
        others = gone or ([1 - self.rank] if self.count == 2 else [])
        who = f"Rank {others[0]}" if others else "Another rank"
        return RankStopped(f"{who} of {self.count} stopped, so the run ended.", self.rank == min(self._left(gone)))

    def told(self) -> RankStopped:
        """Say why this rank was told to end: torchrun does that when another one has stopped."""
        _ignore_end()
        gone = self.gone()
        if gone:
            return self.stopped()
        return RankStopped("The run was told to end (SIGTERM).", self.rank == min(self._left(gone)))

    def gone(self) -> list[int]:
        """The ranks of this machine whose processes have ended."""
        here = socket.gethostname()
        processes = [named.split(" ", 1) for named in getattr(self, "_processes", [])]
        return [rank for rank, (process, host) in enumerate(processes) if host == here and not _is_alive(int(process))]

    def _left(self, gone: Sequence[int]) -> set[int]:
        return {*range(self.count)} - {*gone}


def _ignore_end() -> None:
    """Ignore that torchrun now ends this rank as well: it should finish its sentence."""
    with suppress(ValueError):  # in a thread other than the first
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


@contextmanager
def joined(world: World) -> Iterator[TorchrunRanks]:
    """Join the other ranks that torchrun started, and leave them at the block's end.

    ``SIGTERM``, which torchrun sends when a rank has stopped, raises `RankStopped` in the meantime.
    """
    try:
        store, _, _ = next(dist.rendezvous("env://", world.rank, world.size, timeout=TIMEOUT))
        # torchrun keeps its store when it starts ranks again: the addresses of those before them are still there.
        store = dist.PrefixStore(f"cldnet/{world.restarts}", store)
        dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size, timeout=TIMEOUT)
    except (RuntimeError, ValueError) as error:
        why = str(error).split("\n")[0]
        raise OSError(
            f"The {world.size} ranks did not find each other ({why:.200}): start them by torchrun."
        ) from error
    before = signal.getsignal(signal.SIGTERM)
    try:
        ranks = TorchrunRanks(world.rank, world.size)

        def end(number: int, frame: object) -> None:
            raise ranks.told()

        signal.signal(signal.SIGTERM, end)
        yield ranks
    except BaseException:
        _ignore_end()
        raise
    else:
        signal.signal(signal.SIGTERM, before)
    finally:
        with suppress(RuntimeError):
            dist.destroy_process_group()


def part_sizes(samples: int, count: int) -> list[int]:
    """How many samples of a batch each rank gets; the first one gets all if there are fewer samples than ranks.

    Examples
    --------
    >>> part_sizes(33, 2), part_sizes(2, 3)
    ([17, 16], [2, 0, 0])
    """
    if samples < count:
        return [samples] + [0] * (count - 1)
    return [samples // count + (rank < samples % count) for rank in range(count)]


def _padded(rows: Tensor, length: int) -> Tensor:
    if len(rows) == length:
        return rows
    return torch.cat([rows, rows.new_zeros(length - len(rows), *rows.shape[1:])])


def _offsets(tensors: Sequence[Tensor]) -> list[int]:
    """Where each tensor begins in a message, and the message's length."""
    sizes = [-(-tensor.numel() * tensor.element_size() // _ALIGNMENT) * _ALIGNMENT for tensor in tensors]
    return [0, *accumulate(sizes)]


def _pack(tensors: Sequence[Tensor]) -> Tensor:
    *begins, length = _offsets(tensors)
    message = torch.zeros(length, dtype=torch.uint8)
    for begin, tensor in zip(begins, tensors, strict=True):
        content = tensor.detach().contiguous().flatten().view(torch.uint8)
        message[begin : begin + len(content)] = content
    return message


def _unpack(message: Tensor, pattern: Sequence[Tensor]) -> list[Tensor]:
    found = []
    for begin, like in zip(_offsets(pattern), pattern, strict=False):
        size = prod(like.shape) * like.element_size()
        found.append(message[begin : begin + size].view(like.dtype).view(like.shape))
    return found


def _text_tensor(text: bytes, length: int) -> Tensor:
    return torch.tensor([*text.ljust(length, b"\0")], dtype=torch.uint8)


def _is_alive(process: int) -> bool:
    """Whether a process of this machine runs; where that cannot be seen, it does."""
    if not Path("/proc/self/stat").exists():
        return True
    try:
        state = Path(f"/proc/{process}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"
