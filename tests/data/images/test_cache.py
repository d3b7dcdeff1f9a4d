"""The cache of decoded images: used while nothing changes, built anew when something does, never half of one."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import PIL
import pytest
from PIL import Image

from cldnet.data.dataset import Dataset, Part
from cldnet.data.images import cache
from cldnet.data.images import decode as decoding
from cldnet.data.images.cache import read_images
from cldnet.data.images.decode import BadImage, decode

NAMES = ("train/a/1.png", "train/a/2.png", "train/b/3.png", "test/a/4.png", "test/b/5.png")


class Reader:
    """Reads a folder into a cache of its own, and counts the files that had to be decoded."""

    def __init__(self, place: Path) -> None:
        self.photos, self.cache = place / "photos", place / "cache"
        for number, name in enumerate(NAMES):
            self.paint(name, number)

    def paint(self, name: str, number: int) -> None:
        (self.photos / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (12, 10), (number, 50, 100)).save(self.photos / name)

    def __call__(self, **options: Any) -> Dataset:
        self.done: list[tuple[int, int]] = []
        take = lambda done, of: self.done.append((done, of))  # noqa: E731
        return read_images(self.photos, **{"size": 8, "cache": self.cache, "on_progress": take, **options})

    def files(self, ending: str = "") -> list[Path]:
        return sorted(path for path in self.cache.glob(f"*{ending}") if path.suffix != ".lock")

    @property
    def index(self) -> Path:
        (path,) = self.files(".json")
        return path

    @property
    def pixels(self) -> Path:
        (path,) = self.files(".u8")
        return path


@pytest.fixture
def read(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


def reds(data: Dataset) -> list[int]:
    return [int(value) for part in (data.train, data.test) if part for value in part.x[:, 0, 0, 0]]


def test_the_second_call_decodes_nothing(read: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    first = read()
    assert read.done == [(i, 5) for i in range(1, 6)]

    def not_again(*_: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(decoding, "decode", not_again)
    second = read()
    assert read.done == []
    assert reds(first) == reds(second) == [0, 1, 2, 3, 4]
    assert first.digest == second.digest
    assert second.train.y.tolist() == first.train.y.tolist()


def touch(path: Path) -> None:
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))


CHANGES: dict[str, tuple[Callable[[Reader], Any], list[int]]] = {
    "changed": (lambda read: read.paint("train/a/1.png", 99), [99, 1, 2, 3, 4]),
    "touched": (lambda read: touch(read.photos / "train/a/1.png"), [0, 1, 2, 3, 4]),
    "added": (lambda read: read.paint("train/a/11.png", 77), [0, 77, 1, 2, 3, 4]),
    "removed": (lambda read: (read.photos / "train/a/1.png").unlink(), [1, 2, 3, 4]),
    "renamed": (lambda read: (read.photos / "train/a/1.png").rename(read.photos / "train/a/9.png"), [1, 0, 2, 3, 4]),
    "moved": (lambda read: (read.photos / "train/a/1.png").rename(read.photos / "test/b/1.png"), [1, 2, 3, 0, 4]),
}


@pytest.mark.parametrize("kind", sorted(CHANGES))
def test_a_change_builds_it_anew_and_removes_the_old_one(read: Reader, kind: str) -> None:
    read()
    old = read.files()
    change, expected = CHANGES[kind]
    change(read)
    assert reds(read()) == expected
    assert read.done != []
    assert len(read.files()) == 2
    assert not set(old) & set(read.files())
    assert reds(read()) == expected
    assert read.done == []


def test_other_sizes_and_other_folders_have_caches_of_their_own(read: Reader) -> None:
    read()
    read(size=6)
    read(resize=8)
    shutil.copytree(read.photos, read.photos.with_name("copy"))
    read_images(read.photos.with_name("copy"), size=8, cache=read.cache)
    assert len(read.files(".u8")) == 4
    for options in ({}, {"size": 6}, {"resize": 8}):
        read(**options)
        assert read.done == []


def test_the_index_says_what_the_rows_are_and_has_their_digests(read: Reader) -> None:
    (read.photos / "train/a/bad.png").touch()
    data = read(on_bad="skip")
    state = json.loads(read.index.read_text())
    assert [part["names"] for part in state["parts"]] == [list(NAMES[:3]), list(NAMES[3:])]
    assert [part["labels"] for part in state["parts"]] == [["a", "a", "b"], ["a", "b"]]
    assert state["bad"] == [{"path": "train/a/bad.png", "reason": "an empty file", "passing": False}]
    assert (state["size"], state["resize"], state["pillow"]) == (8, 9, PIL.__version__)
    assert state["folder"] == str(read.photos)
    for part, said in zip((data.train, data.test), state["parts"], strict=True):
        assert part is not None
        assert part.known_digest == said["digest"] == Part(part.x.clone(), part.y).digest
    assert read.pixels.stat().st_size == 5 * 3 * 8 * 8


@pytest.mark.parametrize(
    "damage",
    [
        lambda read: os.truncate(read.pixels, 100),
        lambda read: read.pixels.write_bytes(read.pixels.read_bytes() + b"more"),
        lambda read: read.pixels.unlink(),
        lambda read: read.index.unlink(),
        lambda read: read.index.write_bytes(read.index.read_bytes()[:-50]),
        lambda read: read.index.write_bytes(b"\xff\xfe"),
        lambda read: read.index.write_text("[]"),
        lambda read: read.index.write_text("{}"),
        lambda read: read.index.write_text("[" * 100_000),
        lambda read: read.index.write_text(read.index.read_text().replace('"digest": "', '"digest": "g')),
        lambda read: read.index.write_text(read.index.read_text().replace('"digest": "', '"digest": 1, "x": "')),
        lambda read: read.index.write_text(read.index.read_text().replace('"bad": []', '"bad": null')),
    ],
)
def test_a_damaged_cache_is_built_anew(read: Reader, damage: Callable[[Reader], Any]) -> None:
    before = read()
    damage(read)
    after = read()
    assert len(read.done) == 5
    assert after.digest == before.digest
    assert reds(after) == [0, 1, 2, 3, 4]
    read()
    assert read.done == []


def test_a_cache_with_bad_files_does_not_satisfy_a_call_that_asks_to_stop(
    read: Reader, caplog: pytest.LogCaptureFixture
) -> None:
    (read.photos / "train/a/bad.png").touch()
    for _ in range(2):
        caplog.clear()
        assert reds(read(on_bad="skip")) == [0, 1, 2, 3, 4]
        assert "1 of 6 images" in caplog.text
        assert "'train/a/bad.png' (an empty file)" in caplog.text
    with pytest.raises(ValueError, match=r"1 of 6 images .* cannot be read: 'train/a/bad.png' \(an empty file\)\. "):
        read()
    assert read.done == []


def test_bad_rows_in_the_middle_and_at_the_ends_leave_no_gaps(read: Reader) -> None:
    for name in ("train/a/0.png", "train/a/15.png", "train/b/9.png", "test/a/0.png", "test/b/9.png"):
        (read.photos / name).write_bytes(b"bad")
    data = read(on_bad="skip")
    assert reds(data) == [0, 1, 2, 3, 4]
    assert (len(data.train), len(data.test or ())) == (3, 2)


def test_a_file_that_could_not_be_opened_is_tried_again(read: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    def locked(path: str, *sides: int) -> Any:
        return BadImage(path, "Permission denied", passing=True) if path.endswith("2.png") else decode(path, *sides)

    with monkeypatch.context() as patch:
        patch.setattr(decoding, "decode", locked)
        for _ in range(2):
            assert reds(read(on_bad="skip")) == [0, 2, 3, 4]
        assert read.done == []
    assert reds(read()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("after", [1, 3, 5])
def test_an_interrupted_run_leaves_nothing_that_would_be_used(read: Reader, after: int) -> None:
    def interrupt(done: int, _: int) -> None:
        if done == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read(on_progress=interrupt)
    assert read.files() == []
    assert reds(read()) == [0, 1, 2, 3, 4]
    assert len(read.done) == 5


def in_another_process(read: Reader, line: Connection, kill_at: int) -> None:
    def step(done: int, _: int) -> None:
        if done == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    line.send(read(on_progress=step).digest)


def start(read: Reader, kill_at: int = 0) -> tuple[Any, Connection]:
    fork = multiprocessing.get_context("fork")  # torch is loaded already, which takes a new process seconds
    ours, theirs = fork.Pipe()
    process = fork.Process(target=in_another_process, args=(read, theirs, kill_at))
    process.start()
    return process, ours


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_what_a_killed_run_leaves_is_cleared_away_and_two_runs_at_once_both_end_well(read: Reader) -> None:
    killed, _ = start(read, kill_at=3)
    killed.join(60)
    assert killed.exitcode == -signal.SIGKILL
    assert [path.suffix for path in read.files()] == [".tmp"]
    runs = [start(read), start(read)]
    digests = {line.recv() for _, line in runs}
    for process, _ in runs:
        process.join(60)
        assert process.exitcode == 0
    assert digests == {read().digest}
    assert read.done == []
    assert [path.suffix for path in read.files()] == [".json", ".u8"]


def test_a_cache_that_cannot_be_written_is_answered_with_what_to_do(read: Reader) -> None:
    read.cache.write_text("a file, not a folder")
    with pytest.raises(OSError, match=r"cannot be written to .*cache' \(.*\)\. .* XDG_CACHE_HOME"):
        read()


@pytest.mark.skipif(not hasattr(os, "posix_fallocate"), reason="this system cannot reserve room")
def test_a_disk_without_room_is_found_out_before_decoding(read: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match=r"\(No space left on device\)\. Free some space there"):
        read()
    assert read.done == []
    assert read.files() == []


def test_a_whole_cache_is_used_where_nothing_can_be_written(read: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read().digest

    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(cache.Cache, "locked", refuse)
    assert read().digest == before


def test_the_default_place_follows_the_environment(read: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    home = read.cache.parent
    monkeypatch.setenv("HOME", str(home))
    # The convention says to ignore relative paths.
    for text, place in ((str(home / "xdg"), home / "xdg"), ("", home / ".cache"), ("a/b", home / ".cache")):
        monkeypatch.setenv("XDG_CACHE_HOME", text)
        read(cache=None)
        assert list((place / "cldnet" / "images").glob("*.u8"))
