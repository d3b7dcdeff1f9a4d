"""Small sets of data in every format that is read, and what a stranger or a bad disk may make of them."""

from __future__ import annotations

import codecs
import gzip
import io
import os
import pickle
import random
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cldnet.data.dataset import Dataset
from cldnet.data.download import unpack
from cldnet.data.files import read_arrays, read_table
from cldnet.data.images.cache import read_images
from cldnet.data.published import read_cifar10, read_cifar100, read_mnist
from fuzzing.guard import ViolationError, Watch, watched
from fuzzing.mutations import Payload, foreign, gzip_bomb, misplace, spoil, zlib_bomb

#: Bytes that an archive may unpack to, and that one array may take.
ROOM = 1 << 25
DRAW = np.random.default_rng(0)


def _idx(array: np.ndarray[Any, Any]) -> bytes:
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


def _write_idx(folder: Path, end: str = "") -> None:
    for part, count in (("train", 12), ("t10k", 5)):
        for role, array in (
            ("images-idx3", DRAW.integers(0, 256, (count, 6, 6))),
            ("labels-idx1", np.arange(count) % 10),
        ):
            content = _idx(array)
            (folder / f"{part}-{role}-ubyte{end}").write_bytes(gzip.compress(content) if end else content)


def _records(count: int, classes: tuple[int, ...]) -> bytes:
    labels = [np.arange(count)[:, None] % each for each in classes]
    return np.hstack([*labels, DRAW.integers(0, 256, (count, 3072))]).astype(np.uint8).tobytes()


def _write_cifar10(folder: Path) -> None:
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        (folder / f"{name}.bin").write_bytes(_records(2, (10,)))


def _write_cifar100(folder: Path) -> None:
    for name in ("train", "test"):
        (folder / f"{name}.bin").write_bytes(_records(3, (20, 100)))
    (folder / "fine_label_names.txt").write_text("".join(f"fine {number}\n" for number in range(100)))


def _write_npz(folder: Path) -> None:
    np.savez_compressed(
        folder / "set.npz", X=DRAW.normal(size=(8, 5)), y=[*"aabbccdd"], X_test=np.ones((1, 5)), y_test=["a"]
    )


def _write_npy(folder: Path) -> None:
    np.save(folder / "X.npy", DRAW.integers(0, 256, (8, 4, 4), dtype=np.uint8))
    np.save(folder / "y.npy", np.arange(8) % 3)


def _table() -> str:
    return "length,width,class\n" + "".join(
        f"{number / 3},{number},{'oak' if number % 2 else 'elm'}\n" for number in range(20)
    )


def _write_csv(folder: Path) -> None:
    (folder / "set.csv").write_text(_table())


def _write_csv_gz(folder: Path) -> None:
    (folder / "set.csv.gz").write_bytes(gzip.compress(_table().encode()))


def _write_parquet(folder: Path) -> None:
    from pyarrow import parquet, table

    columns = {"length": np.arange(20) / 3, "width": np.arange(20), "class": ["oak", "elm"] * 10}
    parquet.write_table(table(columns), folder / "set.parquet", write_page_checksum=True)


def _write_photos(folder: Path) -> None:
    from PIL import Image

    for number, end in enumerate(("png", "jpg", "gif", "bmp", "webp", "tiff", "ppm")):
        place = folder / ("cat" if number % 2 else "dog")
        place.mkdir(exist_ok=True)
        Image.fromarray(DRAW.integers(0, 256, (20, 24, 3), dtype=np.uint8)).save(place / f"{number}.{end}")


def _write_tar(folder: Path, end: str = "") -> None:
    with tarfile.open(folder / f"set.tar{end}", "w:gz" if end else "w") as archive:
        for name in ("a/one.txt", "a/two.txt", "b.bin"):
            member = tarfile.TarInfo(name)
            member.size = 700
            archive.addfile(member, io.BytesIO(DRAW.bytes(700)))


def _write_zip(folder: Path) -> None:
    with zipfile.ZipFile(folder / "set.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a/one.txt", "a/two.txt", "b.bin"):
            archive.writestr(name, DRAW.bytes(700))


def _unpacked(folder: Path) -> None:
    archive = next(path for path in sorted(folder.iterdir()) if path.name.startswith("set."))
    into = folder / "unpacked"
    unpack(archive, into, max_bytes=ROOM, max_members=1000)
    size = sum(path.stat().st_size for path in into.rglob("*") if path.is_file())
    if size > ROOM or any(path.is_symlink() for path in into.rglob("*")):
        raise ViolationError(f"{size} bytes were unpacked, or links")


def _only(folder: Path) -> Path:
    return next(path for path in sorted(folder.iterdir()) if path.name.startswith("set."))


#: How each kind is written, and read.
KINDS: dict[str, tuple[Callable[[Path], None], Callable[[Path], Dataset | None]]] = {
    "idx": (_write_idx, lambda folder: read_mnist(folder, "set")),
    "idx.gz": (lambda folder: _write_idx(folder, ".gz"), lambda folder: read_mnist(folder, "set")),
    "cifar-10": (_write_cifar10, read_cifar10),
    "cifar-100": (_write_cifar100, read_cifar100),
    "npz": (_write_npz, lambda folder: read_arrays(_only(folder))),
    "npy": (_write_npy, read_arrays),
    "csv": (_write_csv, lambda folder: read_table(_only(folder))),
    "csv.gz": (_write_csv_gz, lambda folder: read_table(_only(folder))),
    "parquet": (_write_parquet, lambda folder: read_table(_only(folder))),
    "photos": (_write_photos, lambda folder: read_images(folder, size=16, cache=folder.parent / "cache", workers=1)),
    "tar": (_write_tar, lambda folder: _unpacked(folder)),
    "tar.gz": (lambda folder: _write_tar(folder, ".gz"), lambda folder: _unpacked(folder)),
    "zip": (_write_zip, lambda folder: _unpacked(folder)),
}


# -- what becomes of them ----------------------------------------------------------------------------------------------


def _npy(text: str, rest: bytes, version: int = 1) -> bytes:
    header = text.encode("latin-1", "replace")
    return b"\x93NUMPY" + bytes([version, 0]) + len(header).to_bytes(2 if version == 1 else 4, "little") + header + rest


_SHAPES = (
    "(8, 5)",
    "(2**40,)",
    "(1099511627776, 5)",
    "(-1, 5)",
    "(8, 0)",
    "()",
    "(8, 5, 1, 1, 1, 1)",
    "(True, 5)",
    "8",
    "(8.0, 5)",
)
_DESCRS = (
    "'<f8'",
    "'|O'",
    "'<U5'",
    "'|V8'",
    "'<c16'",
    "'<M8[s]'",
    "[('a', '<f8')]",
    "'>f8'",
    "'<f2'",
    "'|b1'",
    "'|S0'",
    "5",
    "None",
)


def _forge_npy(draw: random.Random, mark: Path) -> tuple[bytes, str]:
    shape, descr = draw.choice(_SHAPES), draw.choice(_DESCRS)
    if draw.random() < 0.1:
        text = draw.choice(
            ("(" * 3000, "__import__('os').system('touch x')", "{}", "[" * 200 + "]" * 200, "{'descr': " * 500)
        )
    else:
        order = draw.choice(("False", "True", "1", "'x'"))
        text = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}\n"
    rest = draw.choice(
        (bytes(320), draw.randbytes(320), b"", np.full(40, np.nan).tobytes(), pickle.dumps(Payload(mark)))
    )
    return _npy(text, rest, draw.choice((1, 1, 1, 2, 3))), f"a header of {text!r:.80}"


def _forge_npz(draw: random.Random, mark: Path) -> tuple[bytes, str]:
    out, note = io.BytesIO(), []
    with zipfile.ZipFile(
        out, "w", draw.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_STORED, zipfile.ZIP_BZIP2))
    ) as archive:
        for name in ("X.npy", "y.npy", draw.choice(("x.npy", "../../x.npy", "z.npy", "X.npy", "note.txt"))):
            content, what = _forge_npy(draw, mark)
            if draw.random() < 0.5:
                plain = io.BytesIO()
                np.save(plain, np.ones((8, 5)) if name == "X.npy" else np.arange(8))
                content, what = plain.getvalue(), "honest"
            archive.writestr(name, content)
            note.append(f"{name}: {what}")
    return out.getvalue(), "; ".join(note)


@cache
def _npz_bomb() -> bytes:
    """An array of 1.5 GiB of zeros, in a file of some megabytes."""
    out, count = io.BytesIO(), 1536 << 17
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (count // 8, 8)})
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("X.npy", "w", force_zip64=True) as file:
            file.write(header.getvalue())
            for _ in range(1536):
                file.write(bytes(1 << 20))
        archive.writestr("y.npy", b"")
    return out.getvalue()


def _png(width: int, height: int, pixels: bytes) -> bytes:
    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def _forge_text(draw: random.Random) -> tuple[bytes, str]:
    cell = draw.choice(
        ("nan", "inf", "1e999", "", '"', "a" * 100_000, "\0", "ü", "-0", "0x10", "1,2,3", "=cmd()", "1e-999")
    )
    lines = _table().splitlines()
    line = draw.randrange(len(lines))
    lines[line] = ",".join(draw.sample([cell, "1", "2"], 3)) if line else draw.choice((f"{cell},b,class", "a,a,class"))
    return "\n".join(lines).encode(), f"line {line} is {lines[line]!r:.60}"


_MEMBERS = (
    "../x",
    "../../x",
    "/tmp/fuzz-x",
    "a/../../x",
    "a\\..\\..\\x",
    "C:/x",
    "x\0y",
    "a",
    ".",
    "",
    "a" * 300,
    "con/" * 200 + "x",
    "é",
)


def _forge_tar(draw: random.Random, zipped: bool) -> tuple[bytes, str]:
    out, name = io.BytesIO(), draw.choice(_MEMBERS)
    kind = draw.choice(
        (tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.DIRTYPE)
    )
    with tarfile.open(fileobj=out, mode="w:gz" if zipped else "w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo(name)
        member.type, member.linkname = kind, draw.choice(("../../x", "/etc/passwd", "a/one.txt"))
        member.size = draw.choice((0, 10, 10)) if kind == tarfile.REGTYPE else 0
        if draw.random() < 0.2:
            member.pax_headers = {
                draw.choice(("path", "size", "GNU.sparse.map", "linkpath")): draw.choice(("../../x", "9" * 30, "-1"))
            }
        archive.addfile(member, io.BytesIO(bytes(member.size)))
        if draw.random() < 0.3:  # through a link that was made before
            later = tarfile.TarInfo(f"{name}/x")
            later.size = 4
            archive.addfile(later, io.BytesIO(b"evil"))
    return out.getvalue(), f"a member {name!r:.40} of type {kind!r}"


def _forge_zip(draw: random.Random) -> tuple[bytes, str]:
    out, name = io.BytesIO(), draw.choice([each for each in _MEMBERS if each])
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        member = zipfile.ZipInfo(name)
        member.external_attr = draw.choice((0, 0o120777 << 16, 0o010666 << 16, 0o100644 << 16))
        archive.writestr(member, draw.choice((b"../../x", bytes(5), bytes(1 << 16))))
        if draw.random() < 0.3:
            archive.writestr(name, b"twice")
    return out.getvalue(), f"a member {name!r:.40} with {member.external_attr:o}"


@cache
def _zip_bomb() -> bytes:
    out = io.BytesIO()
    with (
        zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("zeros", "w") as file,
    ):
        for _ in range(256):
            file.write(bytes(1 << 20))
    return out.getvalue()


@cache
def _tar_bomb() -> bytes:
    member = tarfile.TarInfo("zeros")
    member.size = 512 << 20
    return gzip.compress(member.tobuf()) + gzip_bomb()


def _bomb(name: str, draw: random.Random) -> bytes:
    if name == "idx.gz":
        count = draw.choice((1, 12, 128 << 10))  # it holds more than it says, and a lot of it at any rate
        return gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">III", count, 32, 32)) + gzip_bomb()
    if name in ("npz", "npy"):
        return _npz_bomb()
    if name == "photos":
        return draw.choice(
            (_png(30_000, 30_000, zlib_bomb(64)), _png(7000, 9000, zlib_bomb(181)), _png(60_000, 1000, zlib_bomb(172)))
        )
    if name == "csv.gz":
        return gzip.compress(_table().encode()) + gzip.compress(b"1,2," + b"o" * (1 << 12) + b"\n") * (1 << 16)
    return {"zip": _zip_bomb, "tar.gz": _tar_bomb}.get(name, gzip_bomb)()


def _forge(name: str, draw: random.Random, mark: Path) -> tuple[bytes, str]:
    if name == "npz":
        return _forge_npz(draw, mark)
    if name == "npy":
        return _forge_npy(draw, mark)
    if name == "csv":
        return _forge_text(draw)
    if name == "csv.gz":
        content, note = _forge_text(draw)
        return gzip.compress(content), note
    if name in ("tar", "tar.gz"):
        return _forge_tar(draw, name == "tar.gz")
    if name == "zip":
        return _forge_zip(draw)
    if name == "photos":
        sides = [draw.choice((0, 1, 3, 24, 8000, 2**31 - 1, 2**32 - 1)) for _ in range(2)]
        return _png(*sides, zlib.compress(bytes(5000))), f"a PNG of {sides}"
    if name.startswith("idx"):
        sides = [draw.choice((0, 1, 5, 12, 2**16, 2**31, 2**32 - 1)) for _ in range(draw.randrange(6))]
        content = (
            bytes([0, 0, draw.choice((8, 8, 9, 13)), len(sides)]) + struct.pack(f">{len(sides)}I", *sides) + bytes(432)
        )
        return gzip.compress(content) if name == "idx.gz" else content, f"an idx file of {sides}"
    return draw.randbytes(3073 * draw.choice((0, 1, 2))), "random records"


def mutate(name: str, folder: Path, draw: random.Random, mark: Path) -> tuple[str, str]:
    """Change one file of a folder; tell the kind of the change, and what it was."""
    target = draw.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    kind = draw.choices(("bytes", "forged", "foreign", "misplaced", "bomb"), (50, 32, 8, 6, 4))[0]
    if kind == "misplaced":
        return kind, f"{target.name}: {misplace(target, draw)}"
    if kind == "bytes":
        changed, note = spoil(target.read_bytes(), draw)
    elif kind == "forged":
        changed, note = _forge(name, draw, mark)
    elif kind == "foreign":
        changed, note = foreign(draw, mark)
    else:
        changed, note = _bomb(name, draw), "a bomb"
    target.write_bytes(changed)
    return kind, f"{target.name}: {note}"


def verdict(name: str, folder: Path, room: Path, watch: Watch) -> str:
    """Read a set that anybody may have made: refused in a sentence, or whole by itself."""
    tempfile.tempdir = str(room)
    os.environ["CLDNET_MEMORY_SHARE"] = str(ROOM / (os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")))
    refused, dataset = watched(lambda: KINDS[name][1](folder), watch)
    if refused:
        return "refused"
    for part in () if dataset is None else (dataset.train, dataset.test):
        if part is not None:
            sound = len(part.x) == len(part.y) > 0 and all(
                bool(torch.isfinite(block).all()) for block in part.x.split(64)
            )
            if not sound:
                raise ViolationError("its rows are not finite, or have not a label each")
    return "read"


def prepare(folder: Path) -> None:
    """Write a set of every kind, and have all that a reader imports imported: what is imported later is the file's doing."""
    for codec in ("raw_unicode_escape", "unicode_escape"):  # of pickles of old
        codecs.lookup(codec)
    for name, (write, read) in KINDS.items():
        (folder / name).mkdir(parents=True)
        write(folder / name)
        with tempfile.TemporaryDirectory(dir=folder) as place:
            copy = Path(place) / "data"
            copy.mkdir()
            write(copy)
            read(copy)
