"""The commands about data, as a person sees them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from cldnet.cli import app

runner = CliRunner()


def test_list_says_what_is_here_and_whether_it_is_the_published_data(small_data: Path) -> None:
    shown = runner.invoke(app, ["data", "list", "--data", str(small_data)], env={"COLUMNS": "80"}).output
    lines = {line.split()[0]: line.split() for line in shown.partition(" in /")[0].splitlines() if line.split()}
    assert lines["fashion-mnist"][:6] == ["fashion-mnist", "other", "data", "40", "+", "20"]  # random images
    assert lines["tiny-imagenet"][1] == "damaged"  # too few photos
    assert f"cifar-100 in {small_data / 'cifar-100-binary'}" in shown
    assert "3 + 1 per class, channel means 0.49" in shown or "3 + 1 per class, channel means 0.50" in shown
    assert f"Looked in {small_data}" in shown


def test_list_as_json_counts_every_class(small_data: Path) -> None:
    shown = runner.invoke(app, ["data", "list", "--json", "--data", str(small_data)])
    found = {one["name"]: one for one in json.loads(shown.stdout)}
    assert found["mnist"]["per_class"] == {str(digit): [4, 2] for digit in range(10)}
    assert found["fashion-mnist"]["folder"] == str(small_data / "fashion-mnist")
    assert len(found["cifar-100"]["means"]) == 3


def test_a_file_that_is_missing_or_cut_off_is_named(
    small_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CLDNET_DATA", raising=False)  # another MNIST, a whole one, would be preferred
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-labels-idx1"):
        content = (small_data / "mnist" / f"{name}-ubyte").read_bytes()
        (tmp_path / "mnist").mkdir(exist_ok=True)
        (tmp_path / "mnist" / f"{name}-ubyte").write_bytes(content)
    assert "t10k-images-idx3-ubyte is missing" in runner.invoke(app, ["data", "list", "--data", str(tmp_path)]).output
    cut = (small_data / "mnist" / "t10k-images-idx3-ubyte").read_bytes()[:-100]
    (tmp_path / "mnist" / "t10k-images-idx3-ubyte").write_bytes(cut)
    shown = runner.invoke(app, ["data", "list", "--data", str(tmp_path)]).output
    assert "damaged" in shown
    assert "t10k-images-idx3-ubyte" in shown


def test_get_without_a_network_says_what_to_do_by_hand(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("urllib.request._opener", None)  # the first download of a process decides on the proxy of all
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # where nothing listens, wherever this test runs
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    done = command("data", "get", "cifar-10", "--data", str(tmp_path))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for part in (
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        "c32a1d4ab5d03f1284b67883e8d87530",
        f"Put what you downloaded into {tmp_path}",
        f"cldnet data get cifar-10 --data {tmp_path}",
    ):
        assert part in done.stderr


def test_a_data_folder_that_is_not_there_is_not_passed_over() -> None:
    for command in (["data", "list"], ["run", "--stream", "split-digits", "--method", "exact"]):
        answer = runner.invoke(app, [*command, "--data", "/no/such/folder"], env={"COLUMNS": "200"})
        assert answer.exit_code == 2
        assert "'/no/such/folder' does not exist" in answer.output


def test_get_of_an_unknown_set_gives_a_hint(command: Callable[..., Any]) -> None:
    done = command("data", "get", "cifar10")
    assert done.returncode == 2
    assert "cifar-10" in done.stderr


def test_a_bad_photo_stops_a_run_or_is_skipped_as_asked(
    command: Callable[..., Any], small_data: Path, tmp_path: Path
) -> None:
    photos = tmp_path / "photos"
    for photo in (small_data / "pets").rglob("*.png"):
        target = photos / photo.relative_to(small_data / "pets")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(photo.read_bytes())
    (photos / "dog" / "broken.jpg").write_bytes(b"\xff\xd8\xff no photo at all")
    run = ["run", "--stream", f"folder:{photos},size=8", "--method", "exact", "--out", str(tmp_path / "out")]
    stopped = command(*run)
    assert stopped.returncode == 2
    assert "broken.jpg" in stopped.stderr
    assert "--on-bad skip" in stopped.stderr
    assert not (tmp_path / "out").exists()
    program = [sys.executable, "-c", "from cldnet.cli import main; main()"]  # a process, whose log goes to stderr
    skipped = subprocess.run([*program, *run, "--on-bad", "skip"], capture_output=True, text=True, check=False)
    assert skipped.returncode == 0, skipped.stderr
    assert "broken.jpg" in skipped.stderr
    (result,) = (tmp_path / "out").glob("folder-photos,size=8_exact_seed0_*.json")
    assert sorted(json.loads(result.read_text())["stream"]["class_order"]) == ["cat", "dog", "emu"]


def test_a_malicious_pickle_runs_nothing(command: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    marker = tmp_path / "owned"
    evil = b"cos\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR."
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch", "batches.meta"):
        (folder / name).write_bytes(evil)
    done = command("run", "--stream", "split-cifar10", "--method", "exact", "--data", str(tmp_path))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "not one of the official pickles" in done.stderr.lower()
    assert not marker.exists()


def test_a_run_on_small_cifar_takes_augmentation_and_constants(small_data: Path, tmp_path: Path) -> None:
    arguments = ["run", "--stream", "split-cifar100,tasks=2,labels=coarse", "--method", "finetune", "--epochs", "1"]
    arguments += ["--augment", "crop=4,flip,cutout=8", "--normalise", "cifar-100", "--data", str(small_data)]
    answer = runner.invoke(app, [*arguments, "--batch-size", "100", "--out", str(tmp_path)])
    assert answer.exit_code == 0, answer.output
    (path,) = tmp_path.glob("*.json")
    result = json.loads(path.read_text())
    assert result["config"]["augment"] == "crop=4,flip,cutout=8"
    assert result["config"]["normalise"] == "cifar-100"
    assert np.shape(result["matrix"][1]) == (2,)
