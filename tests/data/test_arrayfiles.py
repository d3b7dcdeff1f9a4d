"""Arrays that numpy saved: every spelling, every layout, nothing unpickled, nothing damaged taken."""

from __future__ import annotations

import io
import os
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cldnet.data.files import read_arrays, whole_or_text

X = np.arange(4 * 6, dtype=np.uint8).reshape(4, 6)
Y = np.array(["ant", "bee", "ant", "cat"])
IMAGES = np.random.default_rng(0).integers(0, 256, (4, 5, 7, 3), np.uint8)

Save = Callable[[Path, dict[str, Any]], Path]


def save_npz(place: Path, arrays: dict[str, Any]) -> Path:
    np.savez(place / "set.npz", **arrays)
    return place / "set.npz"


def save_compressed(place: Path, arrays: dict[str, Any]) -> Path:
    np.savez_compressed(place / "set.npz", **arrays)
    return place / "set.npz"


def save_folder(place: Path, arrays: dict[str, Any]) -> Path:
    folder = place / "set"
    folder.mkdir(exist_ok=True)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


SAVES: dict[str, Save] = {"npz": save_npz, "compressed": save_compressed, "folder": save_folder}


@pytest.fixture(params=SAVES)
def save(request: Any) -> Save:
    return SAVES[request.param]


@pytest.mark.parametrize("names", [("X", "y"), ("x", "Y"), ("x_train", "y_train"), ("X_Train", "Y_TRAIN")])
@pytest.mark.parametrize("tests", [(), ("X_test", "y_test"), ("x_test", "y_test")])
def test_inputs_and_labels_are_found_by_name(
    tmp_path: Path, save: Save, names: tuple[str, str], tests: tuple[str, ...]
) -> None:
    arrays = dict(zip((*names, *tests, "other"), (X, Y, *((X[:2] + 1, Y[2:]) if tests else ()), X), strict=True))
    data = read_arrays(save(tmp_path, arrays))
    assert data.name == "set"
    assert data.train.x.dtype == torch.uint8
    assert data.train.x.tolist() == X.tolist()
    assert data.train.y.tolist() == Y.tolist()
    if not tests:
        assert data.test is None
        return
    assert data.test is not None
    assert data.test.x.tolist() == (X[:2] + 1).tolist()
    assert data.test.y.tolist() == ["ant", "cat"]


def test_the_digest_does_not_depend_on_the_kind_of_file(tmp_path: Path) -> None:
    arrays = {"X": IMAGES, "y": Y}
    assert len({read_arrays(way(tmp_path, arrays)).digest for way in SAVES.values()}) == 1


def test_values_agree_with_a_plain_reading(tmp_path: Path) -> None:
    floats = np.random.default_rng(1).normal(size=(3, 4))
    folder = save_folder(tmp_path, {"X": floats, "y": [5, -3, 5]})
    content = (folder / "X.npy").read_bytes()
    first = 10 + struct.unpack("<H", content[8:10])[0]
    expected = struct.unpack("<12d", content[first:])
    data = read_arrays(folder)
    assert data.train.x.flatten().tolist() == list(expected)
    assert data.train.x.dtype == torch.float64
    assert data.train.y.tolist() == [5, -3, 5]
    assert data.train.y.dtype == np.int64


def test_one_of_the_files_stands_for_its_folder(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, {"X": X, "y": Y, "other": X})
    assert read_arrays(folder / "X.npy").digest == read_arrays(folder).digest
    with pytest.raises(ValueError, match=r"other\.npy is one array; expected X\.npy with y\.npy beside it"):
        read_arrays(folder / "other.npy")


@pytest.mark.parametrize("dtype", ["u1", "?", "<i2", ">u2", "<i4", "<f2", "<f4", ">f4", "<f8", ">f8"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_type_of_number_and_either_order_are_read(tmp_path: Path, save: Save, dtype: str, order: Any) -> None:
    array = np.array(np.arange(24).reshape(4, 6) % 2, dtype=dtype, order=order)
    x = read_arrays(save(tmp_path, {"X": array, "y": Y})).train.x
    assert x.tolist() == (np.arange(24).reshape(4, 6) % 2).tolist()
    assert x.is_contiguous()
    assert x.dtype == (torch.uint8 if dtype == "u1" else torch.float64 if dtype[1:] in ("i4", "f8") else torch.float32)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("share", ["0", "1"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_channels_come_first_in_memory_and_mapped(
    tmp_path: Path, order: Any, share: str, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLDNET_MEMORY_SHARE", share)
    last = np.asarray(IMAGES.astype(dtype), order=order)
    first = np.asarray(IMAGES.transpose(0, 3, 1, 2).astype(dtype), order=order)
    found = []
    for name, images in (("last", last), ("first", first), ("grey", last[..., 0])):
        (tmp_path / name).mkdir()
        x = read_arrays(save_folder(tmp_path / name, {"X": images, "y": Y})).train.x
        assert x.is_contiguous()
        found.append(x)
    assert torch.equal(found[0], found[1])
    assert found[0].numpy().tobytes() == IMAGES.transpose(0, 3, 1, 2).astype(dtype).tobytes()
    assert found[2].shape == (4, 5, 7)


def test_large_files_are_mapped_and_never_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = save_folder(tmp_path, {"X": X, "y": Y, "X_test": X, "y_test": Y})
    digest = read_arrays(folder).digest
    monkeypatch.setenv("CLDNET_MEMORY_SHARE", "0")
    monkeypatch.delattr(np, "fromfile")
    mapped = read_arrays(folder)
    assert mapped.digest == digest
    mapped.train.x.fill_(9)
    assert read_arrays(folder).digest == digest


@pytest.mark.parametrize("share", ["0", "1"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
def test_what_is_not_finite_is_refused(
    tmp_path: Path, share: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLDNET_MEMORY_SHARE", share)
    monkeypatch.setattr("cldnet.data.files._ARRAY_BLOCK", 50)  # two rows
    bad = np.zeros((5, 3))
    bad[4, 1] = value
    with pytest.raises(ValueError, match=r"set, X and y: Input X contains"):
        read_arrays(save_folder(tmp_path, {"X": bad, "y": np.arange(5)}))


def test_types_that_would_have_to_be_converted_cannot_be_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLDNET_MEMORY_SHARE", "0")
    with pytest.raises(ValueError, match=r"X has type int32 and is too large for memory\. Save it as uint8"):
        read_arrays(save_folder(tmp_path, {"X": X.astype(np.int32), "y": Y}))


LABELS: dict[str, tuple[Any, list[Any]]] = {
    "a column, as Keras saves it": (np.array([[3], [1], [1], [0]], np.uint8), [3, 1, 1, 0]),
    "whole floats": (np.array([1.0, 2.0, -3.0, 0.0]), [1, 2, -3, 0]),
    "booleans": (np.array([True, False, True, True]), [1, 0, 1, 1]),
    "the other byte order": (np.array([1, 2, 3, 4], ">i4"), [1, 2, 3, 4]),
    "text in the other byte order": (Y.astype(">U3"), Y.tolist()),
}


@pytest.mark.parametrize("name", LABELS)
def test_labels_come_as_whole_numbers_or_text(tmp_path: Path, save: Save, name: str) -> None:
    saved, expected = LABELS[name]
    y = read_arrays(save(tmp_path, {"X": X, "y": saved})).train.y
    assert y.tolist() == expected
    assert y.dtype == np.int64 or y.dtype.kind == "U"
    assert y.dtype.isnative


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no labels": ({"X": X, "z": X}, "lacks y; it has X, z. Expected X and y, or x_train and y_train"),
    "no inputs": ({"y_train": Y}, "lacks x_train; it has y_train"),
    "nothing known": ({"a": X, "b": Y}, "lacks x and y; it has a, b"),
    "no test labels": ({"X": X, "y": Y, "X_test": X}, "lacks y_test; it has X"),
    "two pairs": ({"X": X, "y": Y, "x_train": X}, "arrays named x or y and others named x_train or y_train"),
    "one name twice": ({"X": X, "x": X, "y": Y}, "has both X and x|has both x and X"),
    "labels too few": ({"X": X, "y": Y[:3]}, r"X has 4 samples and y has shape \(3,\): expected one label per sample"),
    "one-hot labels": ({"X": X, "y": np.eye(4)}, r"y has shape \(4, 4\): expected one label per sample"),
    "labels between": ({"X": X, "y": np.array([0.5, 1, 2, 3])}, "Labels that are floats should be whole"),
    "labels beyond": ({"X": X, "y": np.array([1e300, 1, 2, 3])}, "floats beyond 2⁵³"),
    "labels in bytes": ({"X": X, "y": Y.astype("S3")}, "y has dtype |S3"),
    "one dimension": ({"X": X[:, 0], "y": Y}, r"X in .* has shape \(4,\) and type uint8; expected numbers of shape"),
    "five dimensions": ({"X": IMAGES[None, ...], "y": Y[:1]}, r"has shape \(1, 4, 5, 7, 3\)"),
    "text": ({"X": np.array([["a", "b"]] * 4), "y": Y}, "type <U1; expected numbers"),
    "complex": ({"X": X * 1j, "y": Y}, "type complex128; expected numbers"),
    "no rows": ({"X": X[:0], "y": Y[:0]}, "cannot be read|0 sample"),
    "test rows of another shape": ({"X": X, "y": Y, "X_test": X[:, :5], "y_test": Y}, "should have the same shape and type"),
    "test rows of another type": ({"X": X, "y": Y, "X_test": X / 2, "y_test": Y}, "should have the same shape and type"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_arrays_that_make_no_set_are_refused_with_a_sentence(tmp_path: Path, save: Save, name: str) -> None:
    arrays, complaint = REFUSED[name]
    with pytest.raises(ValueError, match=complaint):
        read_arrays(save(tmp_path, arrays))


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("key", ["X", "y"])
def test_arrays_of_objects_are_refused_and_no_code_runs(tmp_path: Path, save: Save, key: str) -> None:
    marker = tmp_path / "marker"
    arrays = {"X": X, "y": Y, key: np.array([Evil(marker)] * 4, dtype=object)}
    path = save(tmp_path, arrays)
    with pytest.raises(
        ValueError, match="it holds Python objects, which could carry code: save numbers, and labels as"
    ):
        read_arrays(path)
    assert not marker.exists()
    loaded = np.load(path / f"{key}.npy" if path.is_dir() else path, allow_pickle=True)
    _ = loaded if path.is_dir() else loaded[key]
    assert marker.exists()  # in numpy's hands it would have run


def test_missing_places_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no file or folder .*nowhere"):
        read_arrays(tmp_path / "nowhere.npz")
    with pytest.raises(ValueError, match="lacks x and y; it has no arrays"):
        read_arrays(tmp_path)


def npy(header: str, content: bytes, version: bytes = b"\x01\x00") -> bytes:
    return b"\x93NUMPY" + version + struct.pack("<H", len(header)) + header.encode("latin-1") + content


BROKEN: dict[str, bytes] = {
    "empty": b"",
    "text": b"hello",
    "half a header": npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4, 6)}", b"")[:30],
    "absurd shape": npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4, 99999999999999999999)}", bytes(24)),
    "negative shape": npy("{'descr': '|u1', 'fortran_order': False, 'shape': (-4, -6)}", bytes(24)),
    "nothing an item": npy("{'descr': '|V0', 'fortran_order': False, 'shape': (99999999999999,)}", b""),
    "too short": npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4, 6)}", bytes(23)),
    "too long": npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4, 6)}", bytes(25)),
    "code for a header": npy("__import__('os').system('true')", bytes(24)),
    "nested brackets": npy("(" * 9000, b""),
    "another version": npy("{'descr': '|u1', 'fortran_order': False, 'shape': (4, 6)}", bytes(24), b"\x07\x00"),
    "unknown type": npy("{'descr': 'wonder', 'fortran_order': False, 'shape': (4, 6)}", bytes(24)),
    "keys of two types": npy("{1: 2, 'shape': 3}", bytes(24)),
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("name", BROKEN)
def test_broken_arrays_are_refused(tmp_path: Path, name: str, zipped: bool) -> None:
    path = save_folder(tmp_path, {"X": X, "y": Y})
    (path / "X.npy").write_bytes(BROKEN[name])
    if zipped:
        path = tmp_path / "set.npz"
        with zipfile.ZipFile(path, "w") as archive:
            for key in ("X", "y"):
                archive.write(tmp_path / "set" / f"{key}.npy", f"{key}.npy")
    with pytest.raises(ValueError, match=r"cannot be read as arrays: "):
        read_arrays(path)


def test_labels_that_are_no_letters_are_refused(tmp_path: Path) -> None:
    folder = save_folder(tmp_path, {"X": X, "y": Y})
    content = bytearray((folder / "y.npy").read_bytes())
    for number in (0x7FFFFFFF, 0x110000, 0xFFFFFFFF, 0xD800, 0xDFFF):
        content[-4:] = struct.pack("<I", number)
        (folder / "y.npy").write_bytes(content)
        with pytest.raises(ValueError, match=r"set, X and y: y has labels that are not valid text\."):
            read_arrays(folder)
    content[-4:] = struct.pack("<I", 0x10FFFF)
    (folder / "y.npy").write_bytes(content)
    assert read_arrays(folder).train.y[-1] == "ca\U0010ffff"


def test_an_archive_that_claims_too_much_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = save_compressed(tmp_path, {"X": X, "y": Y})
    content = bytearray(path.read_bytes())
    entry = content.index(b"PK\x01\x02")
    content[entry + 24 : entry + 28] = struct.pack("<I", 0xFFFFFFF0)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"set\.npz"):
        read_arrays(path)


def test_a_member_larger_than_its_share_of_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save_compressed(tmp_path, {"X": np.zeros((1000, 1000), np.uint8), "y": np.zeros(1000)})
    monkeypatch.setattr("cldnet.data.files.memory_limit", lambda: 900_000)
    with pytest.raises(
        ValueError, match=r"X\.npy in .* takes 1,000,128 bytes, and one array may take 900,000 of memory"
    ):
        read_arrays(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_other_kinds_of_compression_are_refused(tmp_path: Path, method: int) -> None:
    folder = save_folder(tmp_path, {"X": X, "y": Y})
    with zipfile.ZipFile(tmp_path / "set.npz", "w", method) as archive:
        for key in ("X", "y"):
            archive.write(folder / f"{key}.npy", f"{key}.npy")
    with pytest.raises(ValueError, match=r"X\.npy is compressed in a way that NumPy does not use"):
        read_arrays(tmp_path / "set.npz")


def saved(way: Callable[..., None], arrays: dict[str, NDArray[Any]]) -> bytes:
    file = io.BytesIO()
    way(file, **arrays)
    return file.getvalue()


ARCHIVES = [saved(way, {"X": X, "y": Y, "X_test": X, "y_test": Y}) for way in (np.savez, np.savez_compressed)]


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.sampled_from(ARCHIVES),
    flips=st.lists(st.tuples(st.floats(0, 0.999), st.integers(1, 255)), max_size=3),
    cut=st.floats(0, 1),
)
def test_damaged_archives_give_the_same_data_or_a_sentence(
    tmp_path: Path, content: bytes, flips: list[tuple[float, int]], cut: float
) -> None:
    damaged = bytearray(content if cut > 0.5 else content[: int(2 * cut * len(content))])
    for place, bits in flips if damaged else ():
        damaged[int(place * len(damaged))] ^= bits
    path = tmp_path / "damaged.npz"
    path.write_bytes(damaged)
    try:
        data = read_arrays(path)
    except ValueError as error:
        assert "damaged.npz" in str(error)  # noqa: PT017
        return
    assert data.train.x.tolist() == X.tolist()
    assert data.train.y.tolist() == Y.tolist()


@settings(deadline=None, max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    key=st.sampled_from(["X", "y"]), place=st.integers(0, 160), bits=st.integers(1, 255), share=st.sampled_from("01")
)
def test_damaged_arrays_give_as_many_rows_or_a_sentence(
    tmp_path: Path, key: str, place: int, bits: int, share: str
) -> None:
    folder = save_folder(tmp_path, {"X": X, "y": Y})
    content = bytearray((folder / f"{key}.npy").read_bytes())
    content[place % len(content)] ^= bits
    (folder / f"{key}.npy").write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CLDNET_MEMORY_SHARE", share)
        try:
            data = read_arrays(folder)
        except ValueError as error:
            assert str(folder) in str(error)  # noqa: PT017
            return
    assert len(data.train) == 4
    assert len(data.digest) == 16


def test_labels_by_themselves() -> None:
    generator = random.Random(0)
    values = [generator.randrange(-100, 100) for _ in range(50)]
    assert whole_or_text(values).tolist() == values
    assert whole_or_text([str(value) for value in values]).tolist() == [str(value) for value in values]
    with pytest.raises(ValueError, match="mixes labels"):
        whole_or_text([1, "a"])
