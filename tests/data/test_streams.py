"""Streams by name, over small data in the official formats."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.streams import split_digits

from cldnet.data.streams import STREAMS, Permutation, stream_by_name

SHAPES = {
    "split-digits": (5, 10, (8, 8)),
    "split-mnist": (5, 10, (28, 28)),
    "split-fmnist": (5, 10, (28, 28)),
    "split-cifar10": (5, 10, (3, 32, 32)),
    "split-cifar100": (10, 100, (3, 32, 32)),
    "split-imagenet-r": (10, 20, (3, 224, 224)),
    "split-tiny-imagenet": (10, 20, (3, 64, 64)),
    "split-cub200": (10, 20, (3, 224, 224)),
    "split-clinc150": (10, 20, (2048,)),
    "permuted-mnist": (10, 10, (28, 28)),
    "rotated-mnist": (10, 10, (28, 28)),
}


def test_split_digits_has_1797_images_of_ten_digits_in_five_tasks() -> None:
    stream = split_digits(seed=3)
    assert (len(stream), len(stream.train), len(stream.test)) == (5, 1347, 450)
    assert stream.input_shape == (8, 8)
    assert stream.train.x.dtype == torch.uint8
    assert sorted(stream.class_order) == list(range(10))
    assert all(len(task) == 2 for task in stream.tasks)
    assert stream == stream_by_name("split-digits", seed=3)
    assert split_digits(0).hash != stream.hash


@pytest.mark.parametrize("name", STREAMS)
def test_every_named_stream_can_be_made(name: str, small_data: Path) -> None:
    stream = stream_by_name(name, seed=1, data=small_data)
    tasks, classes, shape = SHAPES[name]
    assert (stream.name, len(stream), len(stream.class_order), stream.input_shape) == (name, tasks, classes, shape)
    assert stream.train_part.x.dtype == torch.uint8
    task = stream[1]
    assert len(task.train) > 0
    assert {stream.class_order[row] for row in task.test.y.tolist()} == set(task.classes)


def test_permuted_mnist_permutes_and_takes_a_number_of_tasks(small_data: Path) -> None:
    stream = stream_by_name("permuted-mnist,tasks=3", seed=4, data=small_data)
    assert len(stream) == 3
    assert torch.equal(stream[2].test.x, Permutation(4, 1)(stream[0].test.x))
    assert stream != stream_by_name("permuted-mnist,tasks=3", seed=5, data=small_data)
    with pytest.raises(ValueError, match="All tasks of permuted-mnist have all classes"):
        stream_by_name("permuted-mnist,first=3", data=small_data)


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ("first=50", [50, 10, 10, 10, 10, 10]),
        ("first=40,tasks=4", [40, 20, 20, 20]),
        ("tasks=3", [34, 33, 33]),
        ("classes_per_task=30", [30, 30, 30, 10]),
        ("split=1+99", [1, 99]),
        ("labels=coarse,tasks=4", [5, 5, 5, 5]),
        ("labels=coarse", [2] * 10),
    ],
)
def test_any_split_can_be_asked_for(options: str, sizes: list[int], small_data: Path) -> None:
    stream = stream_by_name(f"split-cifar100,{options}", data=small_data)
    assert [len(task) for task in stream.tasks] == sizes
    assert stream.name == f"split-cifar100,{options}"


def test_a_class_order_can_be_given_in_every_way(tmp_path: Path) -> None:
    file = tmp_path / "order.json"
    file.write_text(json.dumps([7, 1, 0, 2, 3, 4, 5, 6, 8, 9]))
    assert stream_by_name(f"split-digits,order={file}").class_order[:3] == (7, 1, 0)
    assert stream_by_name("split-digits,order=3+1+4").tasks == ((3, 1), (4,))
    assert stream_by_name("split-digits,order=sorted", seed=5).class_order == tuple(range(10))
    expected = np.random.RandomState(1993).permutation(10).tolist()
    assert list(stream_by_name("split-digits,order=numpy:1993").class_order) == expected


def test_the_seed_chooses_one_of_apds_five_task_orders(small_data: Path) -> None:
    classes = stream_by_name("split-cifar100,order=sorted", data=small_data).class_order
    second = stream_by_name("split-cifar100,order=apd", seed=1, data=small_data)
    assert [[classes.index(label) for label in task] for task in second.tasks[:2]] == [
        [*range(10, 20)],
        [*range(70, 80)],
    ]
    for seed in range(5):
        assert sorted(stream_by_name("split-cifar100,order=apd", seed=seed, data=small_data).class_order) == [*classes]
    assert stream_by_name("split-cifar100,order=apd", seed=5, data=small_data).class_order == classes
    with pytest.raises(ValueError, match="is for 100 classes, in ten blocks, and there are 10"):
        stream_by_name("split-digits,order=apd")


def test_photos_of_one_class_are_most_likely_the_wrong_folder(small_data: Path, tmp_path: Path) -> None:
    shutil.copytree(small_data / "pets", tmp_path / "mine")
    with pytest.raises(ValueError, match=r"are of one class, 'mine'.* perhaps .*mine, or the one above it"):
        stream_by_name(f"folder:{tmp_path},size=8")


@pytest.mark.parametrize("content", ["{}", "[[1]]", "[1,", "\xff", "3", "[true]"])
def test_a_file_that_holds_no_order_is_refused(content: str, tmp_path: Path) -> None:
    file = tmp_path / "order.json"
    with pytest.raises(FileNotFoundError, match=r"There is no file .*order\.json with a class order"):
        stream_by_name(f"split-digits,order={file}")
    file.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError, match="list of labels"):
        stream_by_name(f"split-digits,order={file}")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("folder", "'folder' lacks a path: write folder:PATH"),
        ("split-digit", "There is no stream 'split-digit'. Did you mean 'split-digits'"),
        ("split-digits,size=32", "split-digits does not take the option 'size'"),
        ("split-mnist,test_size=0.3", "has a test part, so test_size has no effect"),
        ("split-mnist,tasks=3,classes_per_task=2", "sets the classes per task twice"),
        ("split-mnist,split=5+5,first=5", "sets the classes per task twice"),
        ("split-mnist,tasks=11", "tasks=11 is not possible: there are 10 classes"),
        ("split-mnist,order=3+77", "The class order has '77', which is not a label"),
    ],
)
def test_what_cannot_be_is_refused(text: str, complaint: str, small_data: Path) -> None:
    with pytest.raises(ValueError, match=complaint):
        stream_by_name(text, data=small_data)


def test_rows_are_chosen_before_they_are_moved_however_the_options_are_written() -> None:
    stream = stream_by_name("split-digits,returning=0.9,long_tail=0.01", seed=0)
    assert stream.name == "split-digits,long_tail=0.01,returning=0.9"
    assert len(stream.class_order) == 10


def test_data_that_are_nowhere_are_missed_with_a_command_that_mends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLDNET_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="cldnet data get cifar-10"):
        stream_by_name("split-cifar10", data=tmp_path)


def test_a_folder_of_photos_an_npz_file_and_a_table_become_streams(small_data: Path, tmp_path: Path) -> None:
    photos = stream_by_name(f"folder:{small_data / 'pets'},size=8,tasks=2")
    assert photos.name == "folder:pets,size=8,tasks=2"
    assert sorted(photos.class_order) == ["cat", "dog", "emu"]
    assert photos.input_shape == (3, 8, 8)

    y = np.repeat(["u", "v", "w"], 4)
    np.savez(tmp_path / "own.npz", X=np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32), y=y)
    arrays = stream_by_name(f"arrays:{tmp_path / 'own.npz'},test_size=0.5")
    assert (len(arrays), len(arrays.test), arrays.input_shape) == (2, 6, (5,))

    lines = [f"{i},{i * i},{label}" for i, label in enumerate(y)]
    (tmp_path / "own.csv").write_text("\n".join(["a,b,kind", *lines]) + "\n")
    table = stream_by_name(f"table:{tmp_path / 'own.csv'},label=kind")
    assert (sorted(table.class_order), table.input_shape) == (["u", "v", "w"], (2,))


def test_the_same_seed_gives_the_same_streams_in_another_process(small_data: Path) -> None:
    texts = ["split-cifar100,first=50,blurry=0.4", "permuted-mnist", "rotated-mnist,online=10", "split-tiny-imagenet"]
    program = (
        "import sys; from cldnet.data.streams import stream_by_name;"
        "print(*(stream_by_name(text, 7, data=sys.argv[1]).hash for text in sys.argv[2:]))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "99", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program, str(small_data), *texts]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.split() == [stream_by_name(text, 7, data=small_data).hash for text in texts]


def test_the_hash_does_not_depend_on_the_order_of_the_file_system(
    small_data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scan = os.scandir
    hashes = set()
    for turn in range(3):
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / str(turn)))  # nothing comes from a cache

        class Shuffled(list):  # type: ignore[type-arg]
            def __enter__(self) -> Shuffled:
                return self

            def __exit__(self, *_: object) -> None:
                pass

        def shuffled(path: str, turn: int = turn) -> Shuffled:
            entries = sorted(scan(path), key=lambda entry: (hash((entry.name, turn)), entry.name))
            return Shuffled(entries)

        monkeypatch.setattr(os, "scandir", shuffled)
        hashes.add(stream_by_name(f"folder:{small_data / 'pets'},size=8", seed=3).hash)
    assert len(hashes) == 1


def test_clinc150_has_one_task_per_domain_in_an_order_of_the_seed(small_data: Path) -> None:
    stream = stream_by_name("split-clinc150", seed=1, data=small_data)
    groups = [{intent[:-1] for intent in task} for task in stream.tasks]  # intents 30 and 31 are of domain 3
    assert [len(group) for group in groups] == [1] * 10
    assert stream.tasks != stream_by_name("split-clinc150", seed=2, data=small_data).tasks
    assert stream_by_name("split-clinc150", None, data=small_data).tasks[3] == ("intent30", "intent31")
    assert stream.train_part.text
    held = stream_by_name("split-clinc150,validation=0.25", seed=1, data=small_data)
    assert held.tasks == stream.tasks
    assert (len(held.train), len(held.test)) == (60, 20)
    official = stream_by_name("split-clinc150,part=val", seed=1, data=small_data)
    assert official.tasks == stream.tasks
    assert (len(official.train), len(official.test)) == (len(stream.train), 20)
    with pytest.raises(ValueError, match="part='oos_val' should be"):
        stream_by_name("split-clinc150,part=oos_val", seed=1, data=small_data)
    assert [len(task) for task in stream_by_name("split-clinc150,tasks=4", seed=1, data=small_data).tasks] == [5] * 4
