"""Files that are there whole or not at all: whose they are, what a killed writer leaves, and the layout of tensors in them."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import cldnet.storage as store
import cldnet.storage.disk as disk
import cldnet.storage.format as layout

CODE = "0123456789abcdef"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# -- whose a file is ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666, 0o755])
def test_a_file_keeps_the_rights_of_the_one_whose_place_it_takes(
    mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen, fsync = tmp_path / "model", list[int](), os.fsync
    path.write_bytes(b"old")
    path.chmod(mode)

    def watched(handle: int) -> None:
        seen.extend(stat.S_IMODE(file.stat().st_mode) for file in tmp_path.glob(".model.*.tmp"))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    store.write_atomically(path, b"new")
    assert (path.read_bytes(), stat.S_IMODE(path.stat().st_mode)) == (b"new", mode)
    assert seen == [mode], "while it was written, others could have read it"


def test_a_half_written_file_is_never_open_to_those_who_could_not_read_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, modes, opened = tmp_path / "model", list[int](), os.open
    path.write_bytes(b"old")
    path.chmod(0o600)

    def watched(name: Any, flags: int, mode: int = 0o777, **named: Any) -> int:
        handle = opened(name, flags, mode, **named)
        if flags & os.O_CREAT:
            modes.append(stat.S_IMODE(os.fstat(handle).st_mode))
        return handle

    monkeypatch.setattr(os, "open", watched)
    store.write_atomically(path, b"new")
    assert modes == [0o600]


@pytest.mark.parametrize(("mode", "left"), [(0o660, 0o600), (0o664, 0o604), (0o600, 0o600)])
def test_a_file_that_cannot_have_the_old_ones_group_gives_another_group_no_rights(
    mode: int, left: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    def of_another_group(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        values = list(found(path, follow_symlinks=follow_symlinks))
        values[5] += path.name == "model"
        return os.stat_result(values)

    found = Path.stat
    (tmp_path / "model").write_bytes(b"old")
    (tmp_path / "model").chmod(mode)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fchown", refused)
        patch.setattr(Path, "stat", of_another_group)
        store.write_atomically(tmp_path / "model", b"new")
    assert ((tmp_path / "model").read_bytes(), stat.S_IMODE((tmp_path / "model").stat().st_mode)) == (b"new", left)


def test_a_new_name_is_on_disk_before_the_writer_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First the content, then the name: the folder is brought to disk when the name leads to the new file."""
    path, synced, fsync = tmp_path / "model", list[tuple[bool, bool]](), os.fsync

    def watched(handle: int) -> None:
        synced.append((os.path.samestat(os.fstat(handle), tmp_path.stat()), path.exists()))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", watched)
    store.write_atomically(path, b"new")
    assert synced == [(False, False), (True, True)]


def test_a_file_behind_a_link_is_written_and_the_link_stays(tmp_path: Path) -> None:
    (tmp_path / "shelf").mkdir()
    real, link, second = tmp_path / "shelf" / "model", tmp_path / "link", tmp_path / "second"
    link.symlink_to(Path("shelf") / "model")
    second.symlink_to(link)
    for content, place in ((b"first", link), (b"second", second), (b"third", real)):  # at first it leads to nothing yet
        store.write_atomically(place, content)
        assert link.is_symlink()
        assert second.is_symlink()
        assert real.read_bytes() == link.read_bytes() == content
    assert names(tmp_path / "shelf") == ["model"]
    assert names(tmp_path) == ["link", "second", "shelf"]


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    with pytest.raises(OSError, match=r"links lead nowhere.*unchanged: remove the link, or choose another name"):
        store.write_atomically(tmp_path / "one", b"content")
    assert all(path.is_symlink() for path in tmp_path.iterdir())


@pytest.mark.parametrize("linked", [False, True])
def test_a_write_protected_file_is_not_replaced(linked: bool, tmp_path: Path) -> None:
    path = place = tmp_path / "model"
    path.write_bytes(b"old")
    path.chmod(0o444)
    if linked:
        place = tmp_path / "link"
        place.symlink_to(path)
    before = names(tmp_path)
    with pytest.raises(OSError, match=r"write-protected\).*unchanged: allow writing to it, or choose another name"):
        store.write_atomically(place, b"new")
    assert (path.read_bytes(), names(tmp_path)) == (b"old", before)


# -- what writers leave ------------------------------------------------------------------------------------------------


@contextmanager
def writing(path: Path) -> Iterator[Path]:
    """Hold a half-written file as its writer does."""
    draft = path.with_name(f".{path.name}.{CODE}.tmp")
    with draft.open("xb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(b"half")
        yield draft


def test_half_written_files_that_nobody_writes_are_swept_away_and_others_stay(tmp_path: Path) -> None:
    litter = [f".model.{CODE}.tmp", ".model.fedcba9876543210.tmp"]
    others = [f".model2.{CODE}.tmp", ".model.tmp", f".model.{CODE}.tmp.txt", f"model.{CODE}.tmp"]
    for name in (*litter, *others):
        (tmp_path / name).write_bytes(b"half")
    store.sweep(tmp_path / "model")
    assert names(tmp_path) == sorted(others)
    store.sweep(tmp_path / "nowhere" / "model")
    with writing(tmp_path / "model") as draft:
        store.sweep(tmp_path / "model")
        store.write_atomically(tmp_path / "model", b"whole")
        assert draft.read_bytes() in (b"", b"half")
    store.sweep(tmp_path / "model")
    assert names(tmp_path) == sorted([*others, "model"])


def test_litter_goes_before_anything_is_written_even_if_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f".model.{CODE}.tmp").write_bytes(b"half")

    def full(*arguments: Any) -> None:
        assert f".model.{CODE}.tmp" not in names(tmp_path)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.write_atomically(tmp_path / "model", b"new")
    assert names(tmp_path) == []


def test_litter_beside_the_file_behind_a_link_is_swept_too(tmp_path: Path) -> None:
    (tmp_path / "shelf").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "shelf" / "model")
    (tmp_path / "shelf" / f".model.{CODE}.tmp").write_bytes(b"half")
    store.sweep(tmp_path / "link")
    assert names(tmp_path / "shelf") == []


def test_what_a_killed_writer_left_goes_with_the_next_writing(tmp_path: Path) -> None:
    code = (
        "import os, sys, time; import cldnet.storage as store; "
        "os.fsync = lambda _: (print('half', flush=True), time.sleep(60)); "
        "store.write_atomically(sys.argv[1], b'never')"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path / "model"], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"half\n"
        store.sweep(tmp_path / "model")
        assert len(names(tmp_path)) == 1, "it was at work"
        writer.send_signal(signal.SIGKILL)
    store.write_atomically(tmp_path / "model", b"new")
    assert names(tmp_path) == ["model"]


def test_writers_and_sweepers_do_not_get_into_each_others_way(tmp_path: Path) -> None:
    path, contents, errors, done = tmp_path / "model", [bytes([n]) * 1000 for n in range(3)], [], threading.Event()

    def write(content: bytes) -> None:
        try:
            for _ in range(40):
                store.write_atomically(path, content)
        except BaseException as error:
            errors.append(error)

    def sweep() -> None:
        while not done.is_set():
            store.sweep(path)

    sweepers = [threading.Thread(target=sweep) for _ in range(2)]
    writers = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in (*sweepers, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in sweepers:
        thread.join()
    assert errors == []
    assert path.read_bytes() in contents
    assert names(tmp_path) == ["model"]


def test_a_draft_that_was_swept_before_it_was_locked_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dup, swept = os.dup, list[str]()

    def too_late(handle: int) -> int:
        if not swept:
            swept.extend(names(tmp_path))
            store.sweep(tmp_path / "model")
        return dup(handle)

    monkeypatch.setattr(os, "dup", too_late)
    store.write_atomically(tmp_path / "model", b"whole")
    assert len(swept) == 1
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"whole"]


def test_where_a_disk_knows_no_locks_only_old_litter_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, fresh = tmp_path / f".model.{CODE}.tmp", tmp_path / ".model.fedcba9876543210.tmp"
    for path in (old, fresh):
        path.write_bytes(b"half")
    now = fresh.stat().st_mtime
    os.utime(old, (now - 3700, now - 3700))

    def no_locks(*arguments: Any) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    store.write_atomically(tmp_path / "model", b"whole")
    assert names(tmp_path) == sorted([fresh.name, "model"])


def test_a_lock_that_cannot_be_closed_when_the_file_has_its_name_is_nothing_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close, locks = os.close, list[int]()
    dup = os.dup
    monkeypatch.setattr(os, "dup", lambda handle: locks.append(dup(handle)) or locks[-1])

    def fail(handle: int) -> None:
        close(handle)
        if handle in locks:
            raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(disk.os, "close", fail)
    store.write_atomically(tmp_path / "model", b"whole")
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"whole"]


# -- the layout --------------------------------------------------------------------------------------------------------


def every_type() -> dict[str, torch.Tensor]:
    found = {str(dtype): torch.arange(6).to(dtype).reshape(2, 3) for dtype in layout._NAMES}
    return found | {
        "scalar": torch.tensor(7.0),
        "empty": torch.zeros(0, 3),
        "turned": torch.arange(6.0).reshape(2, 3).T,
    }


def test_files_go_to_and_fro_between_us_and_the_library_of_the_format(tmp_path: Path) -> None:
    tensors = every_type()
    store.write(tmp_path / "ours", tensors, {"kind": "example"})
    theirs = load_file(tmp_path / "ours")
    save_file(
        {name: tensor.contiguous() for name, tensor in tensors.items()}, tmp_path / "theirs", metadata={"note": "ä"}
    )
    with (tmp_path / "theirs").open("rb") as file:
        ours, texts = layout.read_tensors(file, (tmp_path / "theirs").stat().st_size)
    assert texts == {"note": "ä"}
    for found in (theirs, ours, store.read(tmp_path / "ours")[0]):
        assert {name: (t.dtype, t.tolist()) for name, t in found.items()} == {
            name: (t.dtype, t.tolist()) for name, t in tensors.items()
        }


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
HEADERS: dict[str, tuple[Any, str]] = {
    "a list": ([ENTRY], "its header is not an object"),
    "no description": ({"a": 3}, "not described as a tensor"),
    "too little of one": ({"a": {"dtype": "F32", "shape": [2]}}, "not described as a tensor"),
    "too much of one": ({"a": {**ENTRY, "code": "rm"}}, "not described as a tensor"),
    "an unknown type": ({"a": {**ENTRY, "dtype": "O8"}}, "unknown type, 'O8'"),
    "a type of lists": ({"a": {**ENTRY, "dtype": []}}, "unknown type"),
    "a negative size": ({"a": {**ENTRY, "shape": [-2]}}, "invalid shape or offset"),
    "half a number": ({"a": {**ENTRY, "shape": [0.5, 4]}}, "invalid shape or offset"),
    "a truth for a number": ({"a": {**ENTRY, "shape": [True, 2]}}, "invalid shape or offset"),
    "another size": ({"a": {**ENTRY, "shape": [3]}}, "another size"),
    "enormous": ({"a": {**ENTRY, "shape": [2**62]}}, "another size"),
    "sizes beyond any": ({"a": {**ENTRY, "shape": [2**62] * 60}}, "another size"),
    "nothing of the enormous": ({"a": {**ENTRY, "shape": [0] + [2**62] * 9, "data_offsets": [0, 0]}}, "another size"),
    "a billion rows of nothing": ({"a": {**ENTRY, "shape": [10**9, 0], "data_offsets": [0, 0]}}, "another size"),
    "too many sides": ({"a": {**ENTRY, "shape": [1] * 999 + [2]}}, "another size"),
    "backwards": ({"a": {**ENTRY, "data_offsets": [8, 0]}}, "another size"),
    "a gap": ({"a": ENTRY, "b": {**ENTRY, "data_offsets": [9, 17]}}, "do not fill the file exactly"),
    "one over the other": ({"a": ENTRY, "b": {**ENTRY, "data_offsets": [0, 8]}}, "do not fill the file exactly"),
    "less than there is": ({"a": {**ENTRY, "shape": [1], "data_offsets": [0, 4]}}, "do not fill the file exactly"),
    "more than there is": ({"a": {**ENTRY, "shape": [4], "data_offsets": [0, 16]}}, "do not fill the file exactly"),
    "numbers for texts": ({"a": ENTRY, "__metadata__": {"cldnet": 3}}, "metadata are not strings"),
    "a list of texts": ({"a": ENTRY, "__metadata__": ["cldnet"]}, "metadata are not strings"),
}  # fmt: skip


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_cannot_be_is_refused_before_room_is_made(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    header, complaint = HEADERS[name]
    text = json.dumps(header).encode()
    (tmp_path / "file").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(ValueError, match=f"is not a valid safetensors file .*{complaint}"):
        store.read(tmp_path / "file")


LENGTHS: dict[str, Callable[[int], int]] = {
    "none": lambda length: 0,
    "too short": lambda length: length - 1,
    "too long": lambda length: length + 1,
    "beyond the file": lambda length: 10**6,
    "beyond anything": lambda length: 2**64 - 1,
}


@pytest.mark.parametrize("name", LENGTHS)
def test_a_header_of_another_length_is_refused(name: str, tmp_path: Path) -> None:
    store.write(tmp_path / "file", {"a": torch.ones(2)}, {})
    content = (tmp_path / "file").read_bytes()
    length = LENGTHS[name](int.from_bytes(content[:8], "little"))
    (tmp_path / "file").write_bytes(length.to_bytes(8, "little") + content[8:])
    with pytest.raises(ValueError, match="is not a valid safetensors file"):
        store.read(tmp_path / "file")


def test_a_header_is_not_read_that_is_longer_than_the_file_or_than_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.write(tmp_path / "file", {"a": torch.ones(2)}, {})
    content = (tmp_path / "file").read_bytes()
    (tmp_path / "longer").write_bytes((len(content) - 7).to_bytes(8, "little") + content[8:])
    with pytest.raises(ValueError, match="its header is too long"):
        store.read(tmp_path / "longer")
    monkeypatch.setattr("cldnet.storage.header.MAX_HEADER", int.from_bytes(content[:8], "little"))
    store.read(tmp_path / "file")
    monkeypatch.setattr("cldnet.storage.header.MAX_HEADER", int.from_bytes(content[:8], "little") - 1)
    with pytest.raises(ValueError, match="its header is too long"):
        store.read(tmp_path / "file")


def test_what_a_file_cannot_hold_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    store.write(path, {"a": torch.ones(2)}, {})
    before = path.read_bytes()
    monkeypatch.setattr(layout, "MAX_HEADER", 10_000)
    for tensors, manifest, complaint in (
        ({"a": torch.ones(2, dtype=torch.complex128)}, {}, "cannot store 'a' of type torch.complex128"),
        ({"a": torch.ones(2).to_sparse()}, {}, "cannot store 'a' of type .* and layout torch.sparse_coo"),
        ({"a": torch.ones(10**9, 0)}, {}, "cannot store 'a' of shape"),
        (
            {"a": torch.ones(2)},
            {"labels": "x" * 10_000},
            "labels and names take .* bytes, and a file has room for 10,000",
        ),
        ({"a": torch.ones(2)}, {"lr": float("nan")}, "nan is not a finite number"),
        ({"a": torch.ones(2)}, {"seed": 2**63}, "a number exceeds 64 bits"),
        ({"a": torch.ones(2)}, {"code": print}, "not JSON serializable"),
        ({"a": torch.ones(2)}, {"lists": [[] for _ in range(40_000)]}, "too many nested lists"),
    ):
        with pytest.raises(ValueError, match=f"was not saved, because it could not be loaded again .*({complaint})"):
            store.write(path, tensors, manifest)
        assert [file.read_bytes() for file in tmp_path.iterdir()] == [before]
