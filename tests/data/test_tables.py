"""Tables: CSV and Parquet give the same data, and whatever is no number is named."""

from __future__ import annotations

import csv
import datetime
import gzip
import random
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from cldnet.data.files import read_features, read_table

FRAME = pd.DataFrame(
    {"length": [1.5, 2.25, 3.0], "count": [7, -8, 9], "wet": [True, False, True], "class": ["oak", "elm", "oak"]}
)


def write(path: Path, text: str) -> Path:
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


def save(path: Path, **columns: Any) -> Path:
    parquet.write_table(pa.table(columns), path)
    return path


def test_csv_agrees_with_a_plain_reading(tmp_path: Path) -> None:
    source = random.Random(0)
    rows = [
        [source.uniform(-9, 9), source.randrange(-99, 99), source.choice("ab"), source.uniform(-1, 1)]
        for _ in range(50)
    ]
    path = tmp_path / "plain.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([["p", "q", "label", "r"], *rows])
    data = read_table(path)
    with path.open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert data.name == "plain"
    assert data.test is None
    assert data.train.x.tolist() == [[float(line[name]) for name in ("p", "q", "r")] for line in lines]
    assert data.train.y.tolist() == [line["label"] for line in lines]
    assert data.train.x.dtype == torch.float64
    assert data.train.x.is_contiguous()


def test_every_kind_of_file_has_the_same_digest(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "a.csv", index=False)
    FRAME.to_csv(tmp_path / "a.tsv", index=False, sep="\t")
    FRAME.to_csv(tmp_path / "a.csv.gz", index=False)
    (tmp_path / "b.csv").write_bytes((tmp_path / "a.csv.gz").read_bytes())  # told by content
    (tmp_path / "b.tsv.gz").write_bytes((tmp_path / "a.tsv").read_bytes())
    FRAME.to_parquet(tmp_path / "a.parquet")
    FRAME.astype({"class": "category"}).iloc[[0, 1, 2]].set_axis([5, 3, 9]).to_parquet(tmp_path / "b.parquet")
    data = [read_table(path) for path in sorted(tmp_path.iterdir())]
    assert len(data) == 7
    assert {each.name for each in data} == {"a", "b"}
    assert data[0].train.x.tolist() == [[1.5, 7, 1], [2.25, -8, 0], [3, 9, 1]]
    assert len({each.digest for each in data}) == 1


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (("uint8", "uint8"), torch.uint8),
        (("bool", "bool"), torch.float32),
        (("int16", "float32"), torch.float32),
        (("int8", "uint16"), torch.float64),  # numpy needs int32 for both
        (("int32", "float32"), torch.float64),
        (("int64", "bool"), torch.float64),
        (("float16", "int8"), torch.float32),
    ],
)
def test_numbers_keep_all_their_digits(tmp_path: Path, types: tuple[str, str], expected: torch.dtype) -> None:
    first, second = (pa.array(np.array([0, 1, 1]).astype(each)) for each in types)
    data = read_table(save(tmp_path / "a.parquet", a=first, b=second, y=[1, 2, 3]))
    assert data.train.x.dtype == expected
    assert data.train.x.tolist() == [[0, 0], [1, 1], [1, 1]]


def test_decimals_are_numbers(tmp_path: Path) -> None:
    column = pa.array([1, 2], pa.int64()).cast(pa.decimal128(20, 1))
    assert read_table(save(tmp_path / "a.parquet", a=column, y=[1, 2])).train.x.tolist() == [[1.0], [2.0]]


@pytest.mark.parametrize("name", ["label", "class", "target", "y", "Class", "LABEL"])
def test_the_labels_are_found_by_name(tmp_path: Path, name: str) -> None:
    data = read_table(write(tmp_path / "a.csv", f"a,{name},b\n1,x,2\n3,y,4\n"))
    assert data.train.x.tolist() == [[1, 2], [3, 4]]
    assert data.train.y.tolist() == ["x", "y"]


@pytest.mark.parametrize("end", [".csv", ".parquet"])
def test_blanks_around_names_and_labels_do_not_count(tmp_path: Path, end: str) -> None:
    path = tmp_path / f"a{end}"
    frame = pd.DataFrame({" a": [1, 2], "b ": [3, 4], " label ": [" oak", "elm "], "Split ": ["train", "test"]})
    frame.to_csv(path, index=False) if end == ".csv" else frame.to_parquet(path)
    data = read_table(path)
    assert data.train.x.tolist() == [[1, 3]]
    assert data.train.y.tolist() == ["oak"]
    assert data.test is not None
    assert data.test.y.tolist() == ["elm"]
    assert read_features(path, [" b", "a"])[0].tolist() == [[3, 1], [4, 2]]


def test_the_labels_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "a.csv", "a,species,y\n1,x,2\n3,z,4\n")
    assert read_table(path, label="species").train.x.tolist() == [[1, 2], [3, 4]]
    assert read_table(write(tmp_path / "b.csv", "a,b\n1,5\n3,6\n"), label="a").train.y.tolist() == [1, 3]
    with pytest.raises(ValueError, match=r"a\.csv has no column 'specie'\. Did you mean 'species'"):
        read_table(path, label="specie")


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (["3", "-1"], [3, -1]),
        (["1.0", "2.0"], [1, 2]),
        (["true", "false"], [1, 0]),
        (["NA", "oak"], ["NA", "oak"]),
        (["1a", "2"], ["1a", "2"]),
        (["héron", "日本"], ["héron", "日本"]),
    ],
)
def test_labels_keep_their_type(tmp_path: Path, labels: list[str], expected: list[Any]) -> None:
    y = read_table(write(tmp_path / "a.csv", f"a,y\n1,{labels[0]}\n2,{labels[1]}\n")).train.y
    assert y.tolist() == expected
    assert y.dtype == np.int64 or y.dtype.kind == "U"


def test_a_column_may_begin_with_whole_numbers_and_go_on_with_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cldnet.data.files._CSV_BLOCK", 64)
    data = read_table(write(tmp_path / "a.csv", "a,b,y\n" + "1,2,x\n" * 100 + "1.5,2,z\n"))
    assert data.train.x[-1].tolist() == [1.5, 2]
    assert len(data.train) == 101


def test_a_column_of_words_makes_the_test_part(tmp_path: Path) -> None:
    text = "a,split,y\n1,train,p\n2,test,q\n3, Train,q\n4,test,p\n"
    data = read_table(write(tmp_path / "a.csv", text))
    assert data.train.x.tolist() == [[1], [3]]
    assert data.train.y.tolist() == ["p", "q"]
    assert data.test is not None
    assert data.test.x.tolist() == [[2], [4]]
    assert data.test.y.tolist() == ["q", "p"]
    assert read_table(write(tmp_path / "b.csv", "a,split,y\n1,train,p\n")).test is None


def test_a_column_named_split_with_numbers_is_a_feature_and_may_be_the_label(tmp_path: Path) -> None:
    assert read_table(write(tmp_path / "a.csv", "a,split,y\n1,5,p\n")).train.x.tolist() == [[1, 5]]
    assert read_table(write(tmp_path / "b.csv", "a,split\n1,train\n2,test\n"), "split").train.y.tolist() == [
        "train",
        "test",
    ]


REFUSED: dict[str, tuple[str, str]] = {
    "empty": ("", "cannot be read as a table: Empty CSV file"),
    "no rows": ("a,y\n", "has no rows below the names of its columns"),
    "no label column": ("a,b\n1,2\n", r"has no columns named label, class, target or y: .* columns are 'a', 'b'"),
    "two label columns": ("a,y,class\n1,2,3\n", "has 2 columns named label, class, target or y"),
    "no features": ("y\n1\n2\n", "has only a label column"),
    "no features but a split": ("y,split\n1,train\n", "has only a label column"),
    "text as a feature": ("a,b,y\n1,red,x\n2,blue,y\n", r"features that are not numbers \(text\): 'b'\. Encode or drop"),
    "a date as a feature": ("a,b,y\n1,2020-01-01,x\n", r"features that are not numbers \(date32\[day\]\): 'b'"),
    "dates as labels": ("a,y\n1,2020-01-01\n", r"column 'y', are date32\[day\]; expected text or integers"),
    "numbers between as labels": ("a,y\n1,0.5\n2,1\n", "Labels that are floats should be whole"),
    "missing": ("a,b,y\n1,2,x\n3,,x\n4,NA,z\n", r"column 'b': 2 values are missing, the first in line 3\. Fill in the values"),
    "a column of nothing": ("a,b,y\n1,,x\n3,,x\n", "column 'b': 2 values are missing, the first in line 2"),
    "missing label": ("a,y\n1,x\n2,\n", "column 'y': 1 values are missing, the first in line 3"),
    "missing number of a label": ("a,y\n1,4\n2,\n", "column 'y': 1 values are missing, the first in line 3"),
    "missing split": ("a,y,split\n1,4,train\n2,4,\n", "column 'split': 1 values are missing, the first in line 3"),
    "infinite": ("a,y\n1,x\ninf,y\n", "column 'a': 1 values are infinite or NaN, the first in line 3"),
    "beyond float32": ("a,y\n1,x\n1e200,y\n", "too large for float32"),
    "ragged": ("a,b,y\n1,2,x\n3,4\n", "cannot be read as a table: CSV parse error: .*Expected 3 columns, got 2"),
    "too many": ("a,y\n1,2\n1,2,3\n", "Expected 2 columns, got 3"),
    "one name twice": ("a,a,y\n1,2,3\n", "has more than one column named 'a'"),
    "no name": (",a,y\n0,1,x\n", "has a column without a name. If it counts the rows, save the table without an index"),
    "validation": ("a,y,split\n1,x,train\n2,x,validation\n", "says 'validation' in its .* mark its rows as train"),
    "only a test part": ("a,y,split\n1,x,test\n", "has no row with train in its column 'split'"),
}  # fmt: skip


@pytest.mark.parametrize("end", [".csv", ".csv.gz"])
@pytest.mark.parametrize("name", REFUSED)
def test_tables_that_make_no_set_are_refused_with_a_sentence(tmp_path: Path, name: str, end: str) -> None:
    text, complaint = REFUSED[name]
    with pytest.raises(ValueError, match=rf"set{end}.*({complaint})"):
        read_table(write(tmp_path / f"set{end}", text))


def test_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for content in (b"a,y\n1,\xff\n", b"\xff,y\n1,2\n", bytes(range(256))):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.csv"):
            read_table(path)


def test_text_in_parquet_is_checked(tmp_path: Path) -> None:
    bytes_as_text = pa.array([b"oak", b"\xff\xfe"]).view(pa.string())
    with pytest.raises(ValueError, match=r"a\.parquet cannot be read as a table: .*UTF8"):
        read_table(save(tmp_path / "a.parquet", a=[1, 2], y=bytes_as_text))


DAY = datetime.date(2020, 1, 1)
REFUSED_PARQUET: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({"a": [1.0, None, None], "y": [1, 2, 3]}, "column 'a': 2 values are missing, the first in row 2"),
    "nothing": ({"a": pa.nulls(2), "y": [1, 2]}, "column 'a': 2 values are missing, the first in row 1"),
    "missing boolean": ({"a": [True, None], "y": [1, 2]}, "column 'a': 1 values are missing, the first in row 2"),
    "NaN": ({"a": [1.0, float("nan")], "y": [1, 2]}, "column 'a': 1 values are infinite or NaN, the first in row 2"),
    "NaN as label": ({"a": [1.0, 2.0], "y": [1.0, float("nan")]}, "column 'y': 1 values are infinite or NaN"),
    "missing label": ({"a": [1, 2], "y": ["x", None]}, "column 'y': 1 values are missing, the first in row 2"),
    "categories": ({"a": pa.array(["u", "v"]).dictionary_encode(), "y": [1, 2]}, r"\(categories of text\): 'a'"),
    "lists": ({"a": [[1], [2]], "y": [1, 2]}, r"\(list<.*int64>\): 'a'"),
    "times": ({"a": [DAY, DAY], "y": [1, 2]}, r"\(date32\[day\]\): 'a'"),
    "dates as labels": ({"a": [1, 2], "y": [DAY, DAY]}, r"column 'y', are date32\[day\]"),
    "bytes as labels": ({"a": [1, 2], "y": [b"x", b"y"]}, "column 'y', are binary"),
    "labels beyond": ({"a": [1], "y": pa.array([2**64 - 1], pa.uint64())}, "labels beyond 2⁶³"),
    "no rows": ({"a": pa.array([], pa.int64()), "y": pa.array([], pa.int64())}, "has no rows"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED_PARQUET)
def test_parquet_that_makes_no_set_is_refused_with_a_sentence(tmp_path: Path, name: str) -> None:
    columns, complaint = REFUSED_PARQUET[name]
    with pytest.raises(ValueError, match=complaint):
        read_table(save(tmp_path / "set.parquet", **columns))


def test_wide_tables_do_not_fill_the_screen(tmp_path: Path) -> None:
    names = ",".join(f"c{number}" for number in range(100))
    with pytest.raises(ValueError, match="'c18', 'c19' and 80 more"):
        read_table(write(tmp_path / "a.csv", f"{names}\n{','.join('1' * 100)}\n"))


def test_missing_and_unknown_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"There is no file .*a\.csv"):
        read_table(tmp_path / "a.csv")
    with pytest.raises(ValueError, match=r"a\.xlsx has an unknown ending; expected one of \.csv, \.tsv"):
        read_table(write(tmp_path / "a.xlsx", "a,y\n1,2\n"))


@pytest.mark.parametrize("end", [".csv", ".csv.gz", ".parquet"])
def test_a_table_beyond_its_share_of_memory_is_refused(
    tmp_path: Path, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cldnet.data.files.memory_limit", lambda: 1000)
    path = tmp_path / f"a{end}"
    if end == ".parquet":
        save(path, a=np.arange(100), y=np.arange(100))
    else:
        write(path, "a,y\n" + "1,2\n" * 100)
    with pytest.raises(ValueError, match=r"it takes more than the 1,000 bytes of memory allowed; save it as X\.npy"):
        read_table(path)


def test_a_cut_or_flipped_gzip_stream_is_refused(tmp_path: Path) -> None:
    text = "a,y\n" + "".join(f"{random.Random(number).random()},{number % 7}\n" for number in range(500))
    whole = gzip.compress(text.encode())
    path = tmp_path / "a.csv.gz"
    middle = len(whole) // 2
    for damaged in (whole[:-9], whole[:middle], whole[:middle] + b"\xff\xff\xff" + whole[middle + 3 :]):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"a\.csv\.gz cannot be read as a table"):
            read_table(path)


def test_damaged_parquet_is_refused_or_read_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"a": np.arange(20.0), "b": np.arange(20), "y": ["u", "v"] * 10})
    parquet.write_table(table, path, write_page_checksum=True)
    whole = path.read_bytes()
    expected = read_table(path).digest
    source = random.Random(3)
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        if source.random() < 0.3:
            del damaged[source.randrange(len(damaged)) :]
        else:
            damaged[source.randrange(len(damaged))] ^= source.randrange(1, 256)
        path.write_bytes(damaged)
        try:
            data = read_table(path)
        except ValueError as error:
            assert "a.parquet" in str(error)  # noqa: PT017
            refused += 1
        else:
            assert data.train.x.shape[1] in (1, 2) or data.digest == expected
    assert refused > 75


@pytest.mark.parametrize("failure", [ImportError("no such module"), RuntimeError("binary of another build")])
def test_without_pyarrow_the_extra_is_named(
    tmp_path: Path, failure: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "pyarrow":
                raise failure

    monkeypatch.delitem(sys.modules, "pyarrow")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(ImportError, match=r'Reading tables needs pyarrow: pip install "\.\[tables\]"'):
        read_table(write(tmp_path / "a.csv", "a,y\n1,2\n"))


def test_labels_that_only_look_like_numbers_stay_apart(tmp_path: Path) -> None:
    path = tmp_path / "codes.csv"
    path.write_text("a,label\n1,01\n2,1\n3,10\n")
    assert read_table(path).train.y.tolist() == ["01", "1", "10"]
    path.write_text("a,label\n1,-1\n2,1\n3,10\n")
    assert read_table(path).train.y.tolist() == [-1, 1, 10]
