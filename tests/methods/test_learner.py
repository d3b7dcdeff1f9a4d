"""What all methods get from `Learner`."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cldnet.methods import build_learner
from cldnet.methods.learner import Learner, Setting

STATM = Path("/proc/self/statm")
TINY = {"exact": {"features": 8}, "finetune": {"widths": (4,)}}


def tiny(method: str) -> Learner:
    learner: Learner = build_learner(method, Setting((4,), capacity=2, seed=0), {}, backbone_options=TINY[method])
    return learner


def pickled(learner: Learner) -> Learner:
    copied: Learner = pickle.loads(pickle.dumps(learner))
    return copied


def resident_pages() -> int:
    gc.collect()
    return int(STATM.read_text().split()[1])


@pytest.mark.skipif(not STATM.exists(), reason="reads the memory of the process from /proc")
@pytest.mark.parametrize(("method", "copier"), [("exact", copy.deepcopy), ("finetune", pickled)])
def test_copies_of_a_learner_leave_no_memory_behind(method: str, copier: Callable[[Any], Any]) -> None:
    learner, copies = tiny(method), 400
    for _ in range(200):  # the allocator fills up what it holds first
        copier(learner)
    before = resident_pages()
    for _ in range(copies):
        copier(learner)
    # The state of a generator has 5 kB, 2.6 kB to 5 kB of which torch leaks with each generator that it copies.
    assert (resident_pages() - before) * 4096 < copies * 1000


@pytest.mark.parametrize("copier", [copy.deepcopy, pickled])
@pytest.mark.parametrize("method", TINY)
def test_a_copy_of_a_learner_draws_the_same_numbers_from_its_own_generator(
    method: str, copier: Callable[[Any], Any]
) -> None:
    learner = tiny(method)
    torch.rand(5, generator=learner.generator)
    twin = copier(learner)
    drawn = torch.randn(5, generator=twin.generator)
    assert torch.equal(torch.randn(5, generator=learner.generator), drawn)


def test_a_pickle_of_an_older_version_with_a_generator_in_it_is_read() -> None:
    learner = tiny("finetune")
    twin = copy.deepcopy(learner)
    twin.__setstate__({**learner.__dict__, "generator": torch.Generator().manual_seed(7)})
    assert torch.equal(
        torch.rand(3, generator=twin.generator), torch.rand(3, generator=torch.Generator().manual_seed(7))
    )
