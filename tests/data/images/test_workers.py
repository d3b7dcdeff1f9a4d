"""Worker processes: the same rows whatever their number, and none left over."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image
from tests.data.images.hostile import slow_jpeg

from cldnet.data.dataset import Dataset
from cldnet.data.images import decode as decoding
from cldnet.data.images.cache import read_images
from cldnet.data.images.decode import FEW, BadImage, Limits, decode_all, read_photos, usable_cpus

COUNT = FEW + 20


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for label in ("a", "b"):
        (folder / label).mkdir()
    for i in range(COUNT):
        Image.new("RGB", (12, 10), (i, 50, 100)).save(folder / "ab"[i % 2] / f"{i}.png")
    (folder / "b" / "bad.png").touch()
    return folder


def read(photos: Path, cache: Path, **options: Any) -> Dataset:
    return read_images(photos, **{"size": 8, "cache": cache, "on_bad": "skip", "workers": 2, **options})


def test_two_workers_give_the_same_rows_as_one(photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    seen: list[tuple[int, int]] = []
    several = read(photos, tmp_path / "several", on_progress=lambda *numbers: seen.append(numbers))
    one = read(photos, tmp_path / "one", workers=1)
    assert several.digest == one.digest
    assert seen == [(i, COUNT + 1) for i in range(1, COUNT + 2)]
    assert caplog.text.count("'b/bad.png' (an empty file)") == 2
    assert multiprocessing.active_children() == []


def test_an_interrupt_ends_the_workers_and_leaves_nothing_that_would_be_used(photos: Path, tmp_path: Path) -> None:
    def interrupt(done: int, _: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read(photos, tmp_path, on_progress=interrupt)
    assert multiprocessing.active_children() == []
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    assert len(read(photos, tmp_path, workers=1).train) == COUNT


def test_a_worker_that_dies_is_answered_with_what_to_do(photos: Path, tmp_path: Path) -> None:
    def kill(done: int, _: int) -> None:
        if done == 1:
            for worker in multiprocessing.active_children():
                os.kill(worker.pid or 0, signal.SIGKILL)

    with pytest.raises(
        ChildProcessError, match=r"The process that decoded '.*png' died \(exit code -9\), .*fewer workers"
    ):
        read(photos, tmp_path, on_progress=kill)
    assert multiprocessing.active_children() == []
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


@pytest.fixture
def few(tmp_path: Path) -> list[str]:
    """Photos that are decoded in a worker."""
    paths = [tmp_path / f"{i}.jpg" for i in range(5)]
    for path in paths:
        Image.new("RGB", (300, 300), (50, 100, 150)).save(path, format="BMP")  # too many bytes to be quick for certain
    return [str(path) for path in paths]


def test_a_photo_that_takes_too_long_is_named_and_the_rest_goes_on(few: list[str]) -> None:
    Path(few[2]).write_bytes(slow_jpeg())  # in the middle, so that others wait behind it
    read = read_photos(few, 8, 9, Limits(seconds=0))
    assert read.bad == (BadImage(few[2], "took longer than 0 s to decode"),)
    assert read.places.tolist() == [0, 1, 3, 4]
    assert (read.x.min(axis=(0, 2, 3)) > [40, 90, 140]).all()  # their own pixels
    assert multiprocessing.active_children() == []


def test_a_photo_that_takes_too_much_memory_is_named(few: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    Image.new("RGB", (5_000, 5_000)).save(few[2], format="PNG")
    monkeypatch.setattr(decoding, "MAX_MEMORY", 50 << 20)
    assert read_photos(few, 8, 9).bad == (BadImage(few[2], "not enough memory to decode it", passing=True),)


def test_a_worker_that_does_not_answer_is_replaced(few: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "_TICK", 0.1)
    started: list[int] = []

    class FirstFrozen(decoding._Worker):
        def __init__(self, *options: int) -> None:
            super().__init__(*options)
            if not started:
                os.kill(self.process.pid or 0, signal.SIGSTOP)
            started.append(self.process.pid or 0)

    monkeypatch.setattr(decoding, "_Worker", FirstFrozen)
    read = read_photos(few[:2], 8, 9, Limits(wait=3.0))
    assert read.bad == (BadImage(few[0], "took longer than 3 s to read", passing=True),)
    assert len(started) == 2
    assert multiprocessing.active_children() == []


def test_a_crash_of_the_decoder_costs_one_photo(photos: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def crash(done: int, _: int) -> None:
        if done == 1:
            for worker in multiprocessing.active_children():
                os.kill(worker.pid or 0, signal.SIGSEGV)

    data = read(photos, tmp_path, on_progress=crash)
    assert COUNT - 2 <= len(data.train) < COUNT
    assert "(made the decoder crash)" in caplog.text
    assert multiprocessing.active_children() == []


def test_a_script_needs_no_guard_and_is_not_run_again_by_the_workers(photos: Path, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "print('begun')\nimport sys\nfrom cldnet.data.images.decode import decode_all\n"
        "done = list(decode_all([sys.argv[1]] * 100, 4, 4, 2))\nprint(len(done), done[0][1].shape[1], __name__)\n"
    )
    command = [sys.executable, str(tmp_path / "script.py"), str(photos / "a" / "0.png")]
    assert subprocess.check_output(command, text=True).split() == ["begun", "100", "4", "__main__"]


def test_workers_import_neither_torch_nor_scikit_learn() -> None:
    code = "import sys, cldnet.data.images.decode; print({'torch', 'sklearn', 'scipy'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "set()"


@pytest.mark.parametrize(("count", "jobs", "daemon"), [(8, FEW, False), (1, FEW + 1, False), (8, FEW + 1, True)])
def test_few_images_one_worker_and_daemons_start_no_processes(
    monkeypatch: pytest.MonkeyPatch, count: int, jobs: int, daemon: bool
) -> None:
    monkeypatch.setattr(multiprocessing, "current_process", lambda: SimpleNamespace(daemon=daemon))
    monkeypatch.delattr(decoding, "_Worker")
    done = list(decode_all(["nowhere.jpg"] * jobs, 4, 4, count))
    assert [row for row, _ in done] == list(range(jobs))


def test_the_number_of_processors_is_what_this_process_may_use() -> None:
    assert 1 <= usable_cpus() <= (os.cpu_count() or 1)
