"""Devices, precision, threads and generators."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from cldnet.device import generator, isolated_rng, resolve_device, resolve_dtype, run_in_threads, tensor_bytes, threads


def test_auto_is_a_device_that_is_there() -> None:
    assert resolve_device("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("name", ["abacus", "meta", "", None, 3.5])
def test_what_is_no_device_is_refused_with_a_sentence(name: Any) -> None:
    with pytest.raises(ValueError, match=r"device=.*; use 'auto', 'cpu' or 'cuda'"):
        resolve_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_on_a_machine_without_it_is_refused_with_a_sentence() -> None:
    with pytest.raises(ValueError, match="device='cuda' is not a device that this machine and torch support"):
        resolve_device("cuda")


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ValueError, match="dtype='float16' is not known; use one of"):
        resolve_dtype("float16")


def test_the_number_of_threads_is_restored_even_after_a_failure() -> None:
    before = torch.get_num_threads()

    def fail() -> None:
        with threads(before + 2):
            assert torch.get_num_threads() == before + 2
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.get_num_threads() == before


def test_the_number_of_threads_is_restored_by_who_is_interrupted_on_the_way_in(monkeypatch: pytest.MonkeyPatch) -> None:
    before, set_number = torch.get_num_threads(), torch.set_num_threads

    def interrupted(count: int) -> None:
        set_number(count)
        if count != before:
            raise KeyboardInterrupt

    monkeypatch.setattr(torch, "set_num_threads", interrupted)
    with pytest.raises(KeyboardInterrupt), threads(before + 2):
        pass
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("count", [0, -1, 1.5, True, "2"])
def test_a_number_of_threads_that_is_none_is_refused(count: Any) -> None:
    before = torch.get_num_threads()
    with pytest.raises(ValueError, match=r"n_threads=.* should be None or a whole number"), threads(count):
        pass
    assert torch.get_num_threads() == before


def test_blocks_that_set_the_number_of_threads_at_once_leave_it_as_it_was() -> None:
    before, inside = torch.get_num_threads(), threading.Event()
    seen: list[int] = []

    def other() -> None:
        inside.wait()
        with threads(before + 1):
            seen.append(torch.get_num_threads())
        with threads(None):
            seen.append(torch.get_num_threads())

    thread = threading.Thread(target=other)
    thread.start()
    with threads(before + 2):
        inside.set()
        thread.join(timeout=10)
        assert not thread.is_alive()  # a block does not wait for another one, which may train for hours
    assert torch.get_num_threads() == before
    later = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert seen == [before + 1, before + 2, before]  # the one around it is still open


def test_a_block_draws_from_a_source_and_leaves_the_global_generator_alone() -> None:
    source, before = generator(0), torch.get_rng_state()
    draws = []
    for _ in range(2):
        with isolated_rng(source, torch.device("cpu")):
            draws.append(float(torch.rand(())))
    assert draws[0] != draws[1]

    def fail() -> None:
        with isolated_rng(generator(0), torch.device("cpu")):
            assert float(torch.rand(())) == draws[0]
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert torch.equal(torch.get_rng_state(), before)


def test_bytes_count_what_the_numbers_take() -> None:
    assert tensor_bytes(torch.zeros(3, 2, dtype=torch.float64)) == 48
    assert tensor_bytes(torch.zeros(5, dtype=torch.uint8)) == 5
    assert tensor_bytes(torch.zeros(1).expand(7)) == 28


def test_a_block_within_a_block_gives_the_number_back_to_the_outer_one() -> None:
    before = torch.get_num_threads()
    with threads(3):
        with threads(1):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 3
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("count", [1, 2, 5])
def test_work_that_is_shared_out_is_all_done_once_on_one_thread_each(count: int) -> None:
    seen: list[int] = []
    numbers: list[int] = []
    with threads(count):
        run_in_threads(lambda piece: (seen.extend(piece), numbers.append(torch.get_num_threads())), 23, size=4)
        assert torch.get_num_threads() == count
    assert sorted(seen) == list(range(23))
    assert set(numbers) == {1}


def test_a_failure_in_shared_out_work_is_raised_and_the_threads_are_given_back() -> None:
    def fail(piece: range) -> None:
        raise ValueError(f"no {piece.start}")

    with threads(2), pytest.raises(ValueError, match="no 0"):
        run_in_threads(fail, 10, size=5)
