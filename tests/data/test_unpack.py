"""Archives: honest ones become folders, damaged and malicious ones leave nothing behind."""

from __future__ import annotations

import errno
import io
import os
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cldnet.data.download import unpack

FILES = {"set/a.bin": bytes(range(256)) * 40, "set/deep/b.txt": b"b", "set/empty": b"", "set/block": b"x" * 1024}


def tar(path: Path, files: dict[str, bytes] = FILES, mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def odd_tar(path: Path, name: str = "odd", kind: bytes = tarfile.REGTYPE, link: str = "", size: int = 0) -> Path:
    with tarfile.open(path, "w") as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.size = kind, link, size
        archive.addfile(member)
    return path


def zipped(path: Path, files: dict[str, bytes] = FILES, mode: int = 0o644 << 16) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            member = zipfile.ZipInfo(name)
            member.external_attr = mode
            archive.writestr(member, content)
    return path


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(archive: Path, match: str, **limits: int) -> None:
    """The archive is refused in a sentence with its name, and nothing is written, here or elsewhere."""
    before = sorted(archive.parent.parent.rglob("*"))
    with pytest.raises(ValueError, match=match) as error:
        unpack(archive, archive.parent / "into", **limits)
    assert str(archive) in str(error.value)
    assert sorted(archive.parent.parent.rglob("*")) == before


@pytest.fixture
def box(tmp_path: Path) -> Path:
    """A folder inside of the test's own, so that what climbs out of it is seen."""
    folder = tmp_path / "box"
    folder.mkdir()
    return folder


@pytest.mark.parametrize(
    "make",
    [
        lambda path: tar(path),
        lambda path: tar(path, mode="w:gz"),
        lambda path: zipped(path),
    ],
    ids=["tar", "tar.gz", "zip"],
)
def test_an_archive_becomes_a_folder_whatever_its_name_ends_with(box: Path, make: Callable[[Path], Path]) -> None:
    unpack(make(box / "archive.download"), box / "into")
    assert content(box / "into") == FILES
    assert sorted(path.name for path in box.iterdir()) == ["archive.download", "into"]


def test_a_folder_that_is_there_is_left_alone(box: Path) -> None:
    (box / "into").mkdir()
    with pytest.raises(FileExistsError, match="into exists already"):
        unpack(tar(box / "a.tar"), box / "into")


@pytest.mark.parametrize("name", ["../outside", "set/../../outside", "/tmp/cldnet-outside", "a\\..\\b", "C:evil"])
def test_members_that_would_lie_outside_are_refused(box: Path, name: str) -> None:
    refused(tar(box / "a.tar", {"set/fine": b"fine", name: b"evil"}), "outside the folder")
    refused(zipped(box / "a.zip", {"set/fine": b"fine", name: b"evil"}), "outside the folder")
    assert not Path("/tmp/cldnet-outside").exists()


@pytest.mark.parametrize(
    ("kind", "link"),
    [
        (tarfile.SYMTYPE, "../../outside"),
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.LNKTYPE, "../outside"),
        (tarfile.SYMTYPE, "inside"),
        (tarfile.CHRTYPE, ""),
        (tarfile.BLKTYPE, ""),
        (tarfile.FIFOTYPE, ""),
    ],
)
def test_links_and_devices_are_refused(box: Path, kind: bytes, link: str) -> None:
    refused(odd_tar(box / "a.tar", kind=kind, link=link), "neither a plain file nor a folder")


def test_links_in_zip_archives_are_refused(box: Path) -> None:
    refused(zipped(box / "a.zip", {"link": b"/etc/passwd"}, mode=0o120777 << 16), "neither a plain file nor a folder")


def test_encrypted_members_are_refused(box: Path) -> None:
    archive = zipped(box / "a.zip", {"secret": b"x"})
    data = bytearray(archive.read_bytes())
    data[data.index(b"PK\x01\x02") + 8] |= 1  # the flag in the central directory
    archive.write_bytes(data)
    refused(archive, "'secret'.* is encrypted")


@pytest.mark.parametrize("make", [lambda path, files: tar(path, files, "w:gz"), zipped], ids=["tar.gz", "zip"])
def test_bombs_are_refused(box: Path, make: Callable[[Path, dict[str, bytes]], Path]) -> None:
    bomb = make(box / "bomb", {f"{i}": bytes(1 << 16) for i in range(20)})
    refused(bomb, "more than 1,000,000 bytes", max_bytes=1_000_000)
    refused(bomb, "more than 19 members", max_members=19)
    unpack(bomb, box / "into", max_bytes=20 << 16, max_members=20)


def test_a_header_that_lies_about_its_size_is_refused(box: Path) -> None:
    with tarfile.open(box / "a.tar", "w", format=tarfile.GNU_FORMAT) as archive:
        member = tarfile.TarInfo("liar")
        member.size = -512
        archive.addfile(member)
    refused(box / "a.tar", "would take more than")


def test_a_flipped_bit_is_noticed(box: Path) -> None:
    archive = zipped(box / "a.zip")
    data = bytearray(archive.read_bytes())
    data[len(data) // 2] ^= 16
    archive.write_bytes(data)
    refused(archive, "was not unpacked")


def test_other_files_are_refused(box: Path) -> None:
    (box / "page.tar.gz").write_text("<html>Please log in to this network.</html>" * 100)
    refused(box / "page.tar.gz", "was not unpacked")


def test_a_full_disk_is_said_in_a_sentence(box: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(tarfile.TarFile, "extractall", full)
    with pytest.raises(OSError, match=r"a.tar cannot be unpacked into .*into: No space left on device"):
        unpack(tar(box / "a.tar"), box / "into")
    assert [path.name for path in box.iterdir()] == ["a.tar"]


def test_a_kind_of_compression_that_nobody_knows_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "odd.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("a.txt", "abc")
    content = bytearray(archive.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        content[content.index(mark) + offset] = 99
    archive.write_bytes(content)
    with pytest.raises(ValueError, match=r"odd\.zip"):
        unpack(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()
