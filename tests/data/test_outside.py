"""Unlabelled inputs from outside a stream: whose they are, and whose they may not be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.streams import split_digits

from cldnet import Stream
from cldnet.data.streams import check_outside, hash_outside, read_outside, shown_outside, stream_by_name


def save(folder: Path, shape: tuple[int, ...] = (8, 8), kind: type[np.generic] = np.uint8, count: int = 12) -> str:
    """Write arrays of four classes to a file, and give the stream's text."""
    x = np.random.default_rng(0).integers(0, 17, (count, *shape)).astype(kind)
    np.savez(folder / "other.npz", X=x, y=np.arange(count) % 4)
    return f"arrays:{folder / 'other.npz'},test_size=0.25"


def test_only_training_inputs_are_read_and_what_they_are_is_told(tmp_path: Path) -> None:
    text = save(tmp_path)
    whole, found = stream_by_name(text, None), read_outside(text, split_digits(0))
    assert torch.equal(found.x, whole.train.x)
    assert len(found.x) == 8  # the other 4 are to test on, and not looked at
    told = found.to_json()
    assert told == {"name": "arrays:other.npz,test_size=0.25", "hash": whole.hash, "data": whole.data_digest, "rows": 8}
    assert hash_outside(text) == whole.hash


@pytest.mark.parametrize("text", ["digits", "split-digits", "split-digits,train=0.5"])
def test_a_stream_s_own_data_are_not_from_outside(text: str) -> None:
    with pytest.raises(ValueError, match="is the data of split-digits,until=2 itself: name other data"):
        read_outside(text, stream_by_name("split-digits,until=2", 3))


def test_data_sets_go_by_their_own_names_and_by_those_of_streams(small_data: Path) -> None:
    stream = stream_by_name("split-mnist", 0, data=small_data)
    names = ("fmnist", "fashion-mnist", "split-fmnist")
    inputs = [read_outside(name, stream, small_data) for name in names]
    assert all(torch.equal(one.x, inputs[0].x) for one in inputs)
    assert len({one.hash for one in inputs}) == 1
    assert [one.name for one in inputs] == list(names)
    fewer = read_outside("fmnist,train=0.5", stream, small_data)
    assert len(fewer.x) == pytest.approx(len(inputs[0].x) / 2, abs=5)


def test_inputs_of_another_shape_or_kind_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"shape \(8, 9\), and split-digits of \(8, 8\): name data of the same shape"):
        read_outside(save(tmp_path, (8, 9)), split_digits(0))
    with pytest.raises(ValueError, match="or split-digits has pixels from 0 to 255, and the other numbers"):
        read_outside(save(tmp_path, kind=np.float32), split_digits(0))


def test_noise_fills_the_range_of_the_first_task_and_is_the_same_every_time() -> None:
    first, second = (read_outside("noise", split_digits(seed)) for seed in (0, 0))
    assert torch.equal(first.x, second.x)
    assert first.to_json() == second.to_json()
    assert first.x.dtype == torch.uint8
    counts = torch.bincount(first.x.flatten().long())
    assert len(counts) == 17  # grey values from 0 to 16
    assert float(counts.max() / counts.min()) < 1.1


def test_noise_knows_nothing_of_later_tasks() -> None:
    x = np.concatenate([np.linspace(-1, 1, 40), np.linspace(50, 90, 40)]).reshape(80, 1).repeat(3, axis=1)
    stream = Stream.from_arrays(x, np.arange(80) // 20, seed=None, classes_per_task=2)
    noise = read_outside("noise", stream).x
    assert noise.is_floating_point()
    assert -1 <= float(noise.min()) < -0.95
    assert 0.95 < float(noise.max()) <= 1


def test_names_that_nothing_has_are_refused() -> None:
    for text in ("noise", "mnist", "cifar-100", "cifar10,train=0.1", "folder:/nowhere"):
        check_outside(text)
    with pytest.raises(ValueError, match=r"There is no data set 'cifar1O'\. Did you mean 'cifar10'"):
        check_outside("cifar1O")
    with pytest.raises(ValueError, match=r"'noise,train=0\.1' has options, but noise takes none"):
        check_outside("noise,train=0.1")


def test_a_path_is_not_told() -> None:
    assert shown_outside("folder:/home/me/photos,size=32") == "folder:photos,size=32"
    assert shown_outside("") == ""
