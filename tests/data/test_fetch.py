"""Known data sets, made small, are downloaded, unpacked and checked before they come into their place."""

from __future__ import annotations

import gzip
import hashlib
import io
import logging
import os
import struct
import subprocess
import sys
import tarfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cldnet.data import download as download_module
from cldnet.data.catalog import KNOWN_SETS, Download, examine
from cldnet.data.download import get_set


def md5(content: bytes) -> str:
    return f"md5:{hashlib.md5(content).hexdigest()}"


def idx(*shape: int) -> bytes:
    content = bytes(i % 10 for i in range(shape[0] * (16 if len(shape) > 1 else 1)))
    return gzip.compress(struct.pack(f">BBBB{len(shape)}I", 0, 0, 8, len(shape), *shape) + content, mtime=0)


IDX = {
    "train-images-idx3-ubyte.gz": idx(20, 4, 4),
    "train-labels-idx1-ubyte.gz": idx(20),
    "t10k-images-idx3-ubyte.gz": idx(10, 4, 4),
    "t10k-labels-idx1-ubyte.gz": idx(10),
}
CIFAR = {
    f"cifar-10-batches-bin/{name}.bin": b"".join(bytes([label]) * 3073 for label in range(10))
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch")
}


def archive(files: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return gzip.compress(buffer.getvalue(), mtime=0)  # the same bytes in any second


def offer(server: Any, monkeypatch: pytest.MonkeyPatch, name: str, files: dict[str, bytes], digest: str | None) -> None:
    """Let the server have small files in the place of a known set's."""
    server.files = {f"/{file}": content for file, content in files.items()}
    downloads = tuple(Download(f"{server.url}/{file}", md5(body), len(body)) for file, body in files.items())
    monkeypatch.setitem(KNOWN_SETS, name, replace(KNOWN_SETS[name], downloads=downloads, digest=digest))  # type: ignore[arg-type]


@pytest.fixture
def mnist(server: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in IDX.items():
        (folder / name).write_bytes(content)
    offer(server, monkeypatch, "mnist", IDX, examine(KNOWN_SETS["mnist"], folder).digest)
    return server


@pytest.fixture
def cifar(server: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    folder = tmp_path / "model" / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for name, content in CIFAR.items():
        (folder.parent / name).write_bytes(content)
    digest = examine(KNOWN_SETS["cifar-10"], folder).digest
    offer(server, monkeypatch, "cifar-10", {"cifar-10-binary.tar.gz": archive(CIFAR)}, digest)
    return server


get = partial(get_set, timeout=0.3, pause=0, retries=1)


def listing(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_set_of_several_files_is_got_and_then_left_alone(mnist: Any, tmp_path: Path) -> None:
    mnist.plans = {"/t10k-images-idx3-ubyte.gz": ["honest 20"]}
    told: list[tuple[int, int]] = []
    dest = tmp_path / "dest"
    assert get("mnist", dest, on_progress=lambda *now: told.append(now)) == dest / "mnist"
    assert listing(dest) == sorted(f"mnist/{name}" for name in IDX)
    assert examine(KNOWN_SETS["mnist"], dest / "mnist").state == "whole"
    assert all((len(content), len(content)) in told for content in IDX.values())
    asked = len(mnist.asked)
    assert get("mnist", dest) == dest / "mnist"
    assert len(mnist.asked) == asked


def test_a_packed_set_is_got_and_unpacked(cifar: Any, tmp_path: Path) -> None:
    dest = tmp_path / "dest"
    assert get("cifar-10", dest) == dest / "cifar-10-batches-bin"
    assert listing(dest) == sorted(CIFAR)
    assert [path.name for path in dest.iterdir()] == ["cifar-10-batches-bin"]


def test_an_archive_that_was_copied_by_hand_is_used_and_kept(cifar: Any, tmp_path: Path) -> None:
    dest = tmp_path / "dest"
    dest.mkdir()
    (dest / "cifar-10-binary.tar.gz").write_bytes(archive(CIFAR))
    get("cifar-10", dest)
    assert cifar.asked == []
    assert listing(dest) == sorted([*CIFAR, "cifar-10-binary.tar.gz"])


def test_only_the_missing_file_is_downloaded_and_the_damaged_folder_is_kept_aside(
    mnist: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "dest" / "mnist"
    folder.mkdir(parents=True)
    for name in list(IDX)[1:]:
        (folder / name).write_bytes(IDX[name])
    (folder / "notes.txt").write_text("mine")
    with caplog.at_level(logging.WARNING, logger="cldnet"):
        get("mnist", folder.parent)
    assert [path for path, _ in mnist.asked] == ["/train-images-idx3-ubyte.gz"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(IDX)
    (aside,) = folder.parent.glob("mnist.damaged-*")
    assert (aside / "notes.txt").read_text() == "mine"
    assert str(aside) in caplog.text


def test_an_interrupted_set_goes_on_next_time(cifar: Any, tmp_path: Path) -> None:
    cifar.plan = ["honest 100"] * 2
    with pytest.raises(ConnectionError, match="ended after 100"):
        get("cifar-10", tmp_path / "dest")
    assert not (tmp_path / "dest" / "cifar-10-batches-bin").exists()
    (tmp_path / "dest" / ".cifar-10.download" / "unpacked").mkdir()  # as a killed call may leave it
    get("cifar-10", tmp_path / "dest")
    assert cifar.asked[-1][1]["Range"] == "bytes=100-"
    assert listing(tmp_path / "dest") == sorted(CIFAR)


def test_other_data_are_not_overwritten(mnist: Any, tmp_path: Path) -> None:
    folder = tmp_path / "dest" / "mnist"
    folder.mkdir(parents=True)
    (folder / "drawing.png").write_bytes(b"png")
    with pytest.raises(FileExistsError, match=r"mnist holds other data than mnist. Move it away"):
        get("mnist", folder.parent)
    for name, content in {**IDX, "train-labels-idx1-ubyte.gz": idx(21)}.items():
        (folder / name).write_bytes(idx(21, 4, 4) if name.startswith("train-i") else content)
    with pytest.raises(FileExistsError, match="holds other data than mnist"):
        get("mnist", folder.parent)
    assert mnist.asked == []
    assert (folder / "drawing.png").exists()


def test_a_set_that_does_not_read_as_it_should_does_not_come_into_its_place(
    server: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offer(server, monkeypatch, "mnist", IDX, "0123456789abcdef")
    with pytest.raises(ValueError, match="What was downloaded for mnist is other data"):
        get("mnist", tmp_path / "dest")
    offer(server, monkeypatch, "cifar-10", {"cifar-10-binary.tar.gz": archive({"readme": b"moved"})}, None)
    with pytest.raises(ValueError, match=r"downloaded for cifar-10 is damaged: data_batch_1.bin, .* are missing"):
        get("cifar-10", tmp_path / "dest")
    evil = archive({**CIFAR, "../../../evil": b"evil"})
    offer(server, monkeypatch, "cifar-10", {"cifar-10-binary.tar.gz": evil}, None)
    with pytest.raises(ValueError, match="would lie outside the folder"):
        get("cifar-10", tmp_path / "dest")
    assert [path.name for path in (tmp_path / "dest").iterdir() if not path.name.startswith(".")] == []
    assert not list(tmp_path.rglob("evil"))


def test_photos_are_counted(server: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = {f"imagenet-r/n0000000{c}/{i}.jpg": b"jpg" for c in range(2) for i in range(50)}
    offer(server, monkeypatch, "imagenet-r", {"imagenet-r.tar": archive(files)}, None)
    with pytest.raises(
        ValueError, match=r"has 80 \+ 20 images in 2 classes, and the whole set has 24,000 \+ 6,000 in 200"
    ):
        get("imagenet-r", tmp_path / "dest")
    small = replace(KNOWN_SETS["imagenet-r"], train=80, test=20, classes=2)
    monkeypatch.setitem(KNOWN_SETS, "imagenet-r", small)  # type: ignore[arg-type]
    assert get("imagenet-r", tmp_path / "dest") == tmp_path / "dest" / "imagenet-r"


@pytest.mark.parametrize("name", KNOWN_SETS)
def test_without_a_network_a_user_is_told_what_to_do_by_hand(
    nowhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("urllib.request._opener", None)  # the first download of a process decides on the proxy of all
    monkeypatch.setenv("https_proxy", nowhere)
    with pytest.raises(ConnectionError, match="cannot be reached") as error:
        get(name, tmp_path / "dest")
    text = str(error.value)
    for file in KNOWN_SETS[name].downloads:
        assert file.url in text
        assert file.checksum.replace(":", " ") in text
    assert f"cldnet data get {name} --data {tmp_path / 'dest'}" in text
    assert not [path for path in (tmp_path / "dest").rglob("*") if path.is_file() and path.name != "lock"]


def test_a_file_without_a_checksum_is_neither_requested_nor_unpacked(
    cifar: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (file,) = KNOWN_SETS["cifar-10"].downloads
    known = replace(KNOWN_SETS["cifar-10"], downloads=(replace(file, checksum=""),))
    monkeypatch.setitem(KNOWN_SETS, "cifar-10", known)  # type: ignore[arg-type]
    monkeypatch.setattr(download_module, "unpack", lambda *_: pytest.fail("should not be unpacked"))
    with pytest.raises(ValueError, match="is not a checksum"):
        get("cifar-10", tmp_path / "dest")
    assert cifar.asked == []


def test_a_download_that_is_killed_goes_on_next_time(cifar: Any, tmp_path: Path) -> None:
    cifar.plan = ["stall"]
    dest = tmp_path / "dest"
    (file,) = KNOWN_SETS["cifar-10"].downloads
    code = f"""if True:
        from dataclasses import replace; from pathlib import Path
        from cldnet.data.catalog import KNOWN_SETS, Download; from cldnet.data.download import get_set
        KNOWN_SETS["cifar-10"] = replace(KNOWN_SETS["cifar-10"], downloads=({file!r},))
        get_set("cifar-10", Path({str(dest)!r}))"""
    process = subprocess.Popen([sys.executable, "-c", code])
    part = dest / ".cifar-10.download" / "cifar-10-binary.tar.gz.part"
    until = time.monotonic() + 20
    while not part.exists() and time.monotonic() < until:
        time.sleep(0.01)
    with pytest.raises(OSError, match="Another process is downloading"):
        get("cifar-10", dest)
    process.kill()
    process.wait()
    assert get("cifar-10", dest) == dest / "cifar-10-batches-bin"
    assert listing(dest) == sorted(CIFAR)


def test_fetching_is_light_until_something_is_read() -> None:
    code = (
        "import sys, cldnet.data.download; print([name for name in ('torch', 'numpy', 'PIL') if name in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True, env={**os.environ}).strip() == "[]"
