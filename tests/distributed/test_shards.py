"""Shards cover a source exactly once, and read what `cldnet.datasets` reads."""

from __future__ import annotations

import gzip
import os
import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from cldnet import datasets
from cldnet.data.arrays import as_inputs, layout
from cldnet.data.files import read_arrays
from cldnet.distributed.shards import CsvShard, ParquetShard, Shard, find_shards

pa = pytest.importorskip("pyarrow", reason="tables need pyarrow")
pytest.importorskip("fsspec", reason="URLs need fsspec")
from pyarrow import csv, parquet  # noqa: E402


def numbers(rows: int, seed: int = 0, **more: Any) -> Any:
    draw = np.random.default_rng(seed)
    columns = {"a": draw.normal(size=rows), "b": draw.integers(-9, 9, rows), "wet": draw.random(rows) < 0.5}
    return pa.table(columns | {"label": draw.integers(0, 4, rows)} | more)


def save(path: Path, table: Any, groups: int = 7) -> Path:
    path.parent.mkdir(exist_ok=True, parents=True)
    if path.name.endswith(".parquet"):
        parquet.write_table(table, path, row_group_size=groups)
        return path
    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink, csv.WriteOptions(delimiter="\t" if ".tsv" in path.name else ","))
    content = sink.getvalue().to_pybytes()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def read(shards: Sequence[Shard], size: int = 8192) -> tuple[torch.Tensor, list[Any]]:
    """All samples, as the estimator sees them, and labels."""
    batches = [batch for shard in shards for batch in shard.batches(size)]
    assert all(0 < len(y) <= size for _, y in batches)
    return torch.cat([as_inputs(X) for X, _ in batches]), [label for _, y in batches for label in y.tolist()]


def loaded(*paths: Path) -> tuple[torch.Tensor, list[Any]]:
    parts = [datasets.load(path) for path in paths]
    return torch.cat([as_inputs(part.X) for part in parts]), [label for part in parts for label in part.y.tolist()]


def same(found: tuple[torch.Tensor, list[Any]], expected: tuple[torch.Tensor, list[Any]]) -> bool:
    return found[0].dtype == expected[0].dtype and torch.equal(found[0], expected[0]) and found[1] == expected[1]


def covers(shards: Sequence[Shard], rows: dict[str, int]) -> bool:
    """Whether the ranges of shards follow each other and have all rows of every file."""
    ends = dict.fromkeys(rows, 0)
    for shard in shards:
        if shard.first != ends[shard.path] or shard.rows < 1:
            return False
        ends[shard.path] += shard.rows
    return ends == rows


@pytest.mark.parametrize("rows", [1, 7, 10, 21, 1000])
@pytest.mark.parametrize("size", [3, 8192])
def test_shards_of_parquet_are_whole_row_groups_that_cover_the_files(tmp_path: Path, rows: int, size: int) -> None:
    paths = [save(tmp_path / f"part-{n}.parquet", numbers(40 + n, seed=n)) for n in range(3)]
    shards = find_shards(tmp_path, rows=rows)
    assert covers(shards, {str(path): 40 + n for n, path in enumerate(paths)})
    assert same(read(shards, size), loaded(*paths))
    assert {shard.kind for shard in shards} == {"parquet"}
    for shard in shards:
        assert isinstance(shard, ParquetShard)
        assert shard.rows <= max(rows, 7)
        assert shard.first % 7 == 0
    whole = sum(path.stat().st_size for path in paths)
    assert whole - len(shards) <= sum(shard.size for shard in shards) <= whole
    assert pickle.loads(pickle.dumps(shards)) == shards


def test_row_groups_are_joined_up_to_the_wanted_rows_and_larger_ones_stay_whole(tmp_path: Path) -> None:
    with parquet.ParquetWriter(tmp_path / "a.parquet", numbers(0).schema) as writer:
        for rows in (0, 5, 5, 5, 0, 40, 0, 0, 5, 6, 40, 0):
            writer.write_table(numbers(rows))
    shards = find_shards(tmp_path, rows=10)
    assert [shard.rows for shard in shards] == [10, 5, 40, 5, 6, 40]
    assert [len(y) for shard in shards for _, y in shard.batches()] == [10, 5, 40, 5, 6, 40]


KINDS = [pa.float64(), pa.float32(), pa.float16(), pa.int64(), pa.int8(), pa.uint8(), pa.bool_(), pa.decimal128(25, 2)]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_table_reads_as_one(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("any")
    kinds = data.draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))
    count, files = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 3))
    labels = data.draw(st.sampled_from([[0, 1, 2], ["oak", "elm", "07"], [1.0, 2.0, -3.0], [True, False]]))
    with_test = data.draw(st.booleans())
    paths = []
    for number in range(files):
        values = st.lists(st.integers(0, 1), min_size=count, max_size=count)
        columns = {f"f{at}": pa.array(data.draw(values)).cast(kind) for at, kind in enumerate(kinds)}
        columns["y"] = pa.array([labels[at % len(labels)] for at in range(count)])
        if with_test:
            columns["split"] = pa.array(["train", *[("test", " Train")[at] for at in data.draw(values)][1:]])
        paths.append(save(folder / f"{number}.parquet", pa.table(columns), data.draw(st.integers(1, 12))))
    shards = find_shards(folder, rows=data.draw(st.integers(1, 40)))
    assert covers(shards, dict.fromkeys(map(str, paths), count))
    assert same(read(shards, data.draw(st.integers(1, 40))), loaded(*paths))


@pytest.mark.parametrize("end", ["csv", "csv.gz", "tsv", "tsv.gz"])
@pytest.mark.parametrize("block", [200, 1 << 20])
def test_a_csv_file_is_one_shard_read_in_blocks(
    tmp_path: Path, end: str, block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cldnet.data.files._CSV_BLOCK", block)
    paths = [save(tmp_path / f"{n}.{end}", numbers(50, seed=n)) for n in range(2)]
    shards = find_shards(tmp_path / f"*.{end}")
    assert [(shard.kind, shard.first, shard.rows) for shard in shards] == [("csv", 0, -1)] * 2
    assert [shard.size for shard in shards] == [path.stat().st_size for path in paths]
    for size in (3, 8192):
        assert same(read(shards, size), loaded(*paths))
    assert pickle.loads(pickle.dumps(shards)) == shards
    assert shards[0].describe() == f"0.{end}"


def test_labels_of_csv_that_are_written_like_text_are_text(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,label \n1,01\n2,2\n")
    (shard,) = find_shards(tmp_path / "a.csv")
    assert read([shard])[1] == ["01", "2"]
    assert same(read([shard]), loaded(tmp_path / "a.csv"))


def test_the_test_part_is_left_out(tmp_path: Path) -> None:
    split = ["train"] * 8 + ["test"] * 12
    path = save(tmp_path / "a.parquet", numbers(20, split=split), groups=4)
    shards = find_shards(path, rows=4)
    assert [sum(len(y) for _, y in shard.batches()) for shard in shards] == [4, 4, 0, 0, 0]
    assert same(read(shards), loaded(path))


def test_only_the_columns_that_are_needed_are_read(tmp_path: Path) -> None:
    frame = numbers(9).to_pandas().set_index(np.arange(9) * 2)
    frame.to_parquet(tmp_path / "a.parquet")
    (shard,) = find_shards(tmp_path)
    ((X, _),) = shard.batches()
    assert X.column_names == ["a", "b", "wet"]


def test_columns_follow_the_order_of_the_first_file(tmp_path: Path) -> None:
    table = numbers(5)
    save(tmp_path / "a.parquet", table)
    save(tmp_path / "b.parquet", table.select(["label", "wet", "b", "a"]))
    first, second = find_shards(tmp_path)
    assert torch.equal(read([first])[0], read([second])[0])


def write_arrays(folder: Path, x: np.ndarray, y: np.ndarray) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "X.npy", x)
    np.save(folder / "y.npy", y)
    return folder


@pytest.mark.parametrize("rows", [1, 4, 10, 99])
@pytest.mark.parametrize("kind", ["float32", "float64", "uint8", "int64", ">f4", "bool"])
def test_arrays_are_cut_by_rows(tmp_path: Path, rows: int, kind: str) -> None:
    draw = np.random.default_rng(0)
    x = (9 * draw.random((10, 6))).astype(kind)
    write_arrays(tmp_path, np.asfortranarray(x), np.arange(10.0).reshape(-1, 1))
    shards = find_shards(tmp_path, rows=rows)
    assert covers(shards, {str(tmp_path / "X.npy"): 10})
    assert sum(shard.size for shard in shards) == x.nbytes
    expected = read_arrays(tmp_path).train
    assert same(read(shards, 3), (expected.x, expected.y.tolist()))
    assert pickle.loads(pickle.dumps(shards)) == shards


def test_images_in_arrays_and_a_test_part(tmp_path: Path) -> None:
    write_arrays(tmp_path, np.arange(5 * 4 * 4 * 3, dtype=np.uint8).reshape(5, 4, 4, 3), np.array(list("abcab")))
    np.save(tmp_path / "X_test.npy", np.zeros((2, 4, 4, 3), np.uint8))
    np.save(tmp_path / "y_test.npy", np.array(["a", "b"]))
    shards = find_shards([tmp_path / "X.npy", tmp_path / "y.npy", str(tmp_path / "*.npy"), tmp_path], rows=2)
    assert [shard.rows for shard in shards] == [2, 2, 1]
    assert torch.equal(layout(read(shards)[0], None), read_arrays(tmp_path).train.x)
    assert read(shards)[1] == list("abcab")


def test_a_mapped_array_is_not_read_beyond_its_shard_and_is_copied(tmp_path: Path) -> None:
    write_arrays(tmp_path, np.ones((6, 2)), np.arange(6))
    ((X, _),) = find_shards(tmp_path, rows=3)[1].batches()
    assert type(X) is np.ndarray
    assert X.base is None
    X[:] = 5  # a copy: the file stays
    assert np.load(tmp_path / "X.npy").max() == 1


def write_photos(folder: Path, count: int = 5) -> Path:
    for at, label in enumerate(("dog", "cat")):
        (folder / label).mkdir(parents=True)
        for number in range(count):
            Image.new("RGB", (40, 30), (90 * at, 20 * number, 0)).save(folder / label / f"{number}.png")
    return folder


@pytest.mark.parametrize("rows", [1, 3, 100])
def test_photos_are_read_in_listed_order_without_the_test_part(tmp_path: Path, rows: int) -> None:
    write_photos(tmp_path / "train")
    write_photos(tmp_path / "test", 1)
    data = datasets.folder(tmp_path, size=32)
    assert isinstance(data, datasets.Photos)
    shards = find_shards(tmp_path, rows=rows, side=32)
    assert covers(shards, {str(tmp_path): 10})
    assert shards[0].size == sum(file.size for file in data.files[:rows])
    assert same(read(shards, 2), (torch.from_numpy(data.X), data.y.tolist()))
    assert pickle.loads(pickle.dumps(shards)) == shards
    assert shards[0].describe() == f"{tmp_path.name}, photos 1–{min(rows, 10)}"


@pytest.mark.parametrize(("rows", "size"), [(3, 2), (100, 100)])
def test_unreadable_photos_are_reported_and_left_out(tmp_path: Path, rows: int, size: int) -> None:
    write_photos(tmp_path)
    (tmp_path / "cat" / "1.png").write_bytes(b"no image")
    (tmp_path / "dog" / "z.png").symlink_to("nowhere")
    skipped: list[tuple[str, str]] = []
    shards = find_shards(tmp_path, rows=rows, side=32)
    labels = [
        label for shard in shards for _, y in shard.batches(size, lambda *each: skipped.append(each)) for label in y
    ]
    assert labels == ["cat"] * 4 + ["dog"] * 5
    assert [name for name, _ in skipped] == ["cat/1.png", "dog/z.png"]
    assert "not an image" in skipped[0][1]
    assert read(shards)[1] == labels  # nobody need listen


def test_a_shard_of_unreadable_photos_has_no_batch(tmp_path: Path) -> None:
    write_photos(tmp_path, 2)
    for name in ("0.png", "1.png"):
        (tmp_path / "cat" / name).write_bytes(b"no image")
    first, second = find_shards(tmp_path, rows=2, side=32)
    assert [*first.batches()] == []
    assert len([*second.batches()]) == 1


def test_photos_need_pillow_before_work_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_photos(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="needs Pillow"):
        find_shards(tmp_path)


def test_a_photo_shard_has_at_most_2000(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cldnet.distributed.shards.MOST_PHOTOS", 4)
    assert [shard.rows for shard in find_shards(write_photos(tmp_path), rows=1000)] == [4, 4, 2]


def test_tables_and_arrays_beside_class_folders_are_not_the_source(tmp_path: Path) -> None:
    write_photos(tmp_path)
    (tmp_path / "about.csv").write_text("file,who\n")
    np.save(tmp_path / "mean.npy", np.zeros(3))
    assert {shard.kind for shard in find_shards(tmp_path)} == {"photos"}


def test_the_order_is_that_of_paths_however_they_are_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [save(tmp_path / f"{name}.parquet", numbers(9)) for name in "badc"]
    expected = find_shards(tmp_path, rows=7)
    assert [shard.path for shard in expected] == sorted(shard.path for shard in expected)
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: sorted(listed(path), reverse=True))
    for source in (tmp_path, paths, paths[::-1], [str(tmp_path / "*.parquet"), *paths, tmp_path]):
        assert find_shards(source, rows=7) == expected


def test_a_file_with_two_names_is_read_once_and_keeps_the_first(tmp_path: Path) -> None:
    save(tmp_path / "b.parquet", numbers(9))
    (tmp_path / "a.parquet").symlink_to("b.parquet")
    assert [shard.path for shard in find_shards(tmp_path)] == [str(tmp_path / "a.parquet")]


def test_a_link_to_a_file_without_an_ending_is_a_table(
    tmp_path: Path,
) -> None:  # as the Hugging Face hub's cache has them
    save(tmp_path / "x.parquet", numbers(9)).rename(tmp_path / "0f3a")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "a.parquet").symlink_to("../0f3a")
    assert find_shards(tmp_path / "snapshot")[0].rows == 9


def test_relative_paths_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "a.parquet", numbers(9))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for source in ("a.parquet", "*.parquet", ".", "~/a.parquet", "~"):
        assert find_shards(source)[0].path == str(path)


def test_a_name_may_have_the_letters_of_a_pattern(tmp_path: Path) -> None:
    path = save(tmp_path / "part[1].parquet", numbers(9))
    assert find_shards(path)[0].rows == 9


def test_hidden_files_and_those_of_writers_are_left_out(tmp_path: Path) -> None:
    for name in ("a.parquet", ".a.parquet", "_tmp.parquet"):
        save(tmp_path / name, numbers(9))
    (tmp_path / "_SUCCESS").touch()
    assert [shard.describe() for shard in find_shards(tmp_path)] == ["a.parquet, rows 1–9"]


def test_tables_without_rows_are_left_out(tmp_path: Path) -> None:
    table = numbers(9, split=["train"] * 9)
    save(tmp_path / "a.parquet", table.slice(0, 0))
    save(tmp_path / "b.parquet", table)
    save(tmp_path / "c.parquet", pa.table({name: pa.nulls(0) for name in table.column_names}))
    assert [shard.name for shard in find_shards(tmp_path)] == ["b.parquet"]


@pytest.mark.parametrize("end", ["parquet", "csv"])
def test_tables_without_rows_should_have_the_same_columns(tmp_path: Path, end: str) -> None:
    save(tmp_path / f"a.{end}", numbers(9))
    save(tmp_path / f"b.{end}", numbers(0).drop_columns(["wet"]))
    with pytest.raises(ValueError, match=r"have different columns: .*lacks 'wet'"):
        find_shards(tmp_path)


def test_csv_files_without_rows_are_left_out(tmp_path: Path) -> None:
    for name in ("a.csv", "c.csv"):
        (tmp_path / name).write_text("x,label,split\n")
    with pytest.raises(ValueError, match=r"a\.csv has no rows below the names of its columns, nor have the 1 other"):
        find_shards(tmp_path)
    (tmp_path / "b.csv").write_text("x,label,split\n1,2,train\n")
    (shard,) = find_shards(tmp_path)
    assert read([shard])[1] == [2]


def test_labels_of_csv_may_be_written_like_floats_or_booleans(tmp_path: Path) -> None:
    for name, label in (("floats", "1.0"), ("booleans", "true")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.csv").write_text(f"x,label\n1,{label}\n")
        (tmp_path / name / "b.csv").write_text("x,label\n1,0\n")
        assert read(find_shards(tmp_path / name))[1] == [1, 0]


def test_photos_are_decoded_in_the_process_that_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (shard,) = find_shards(write_photos(tmp_path, 40), side=32)
    monkeypatch.setattr("cldnet.data.images.decode._Worker", None)
    assert sum(len(y) for _, y in shard.batches()) == 80


@pytest.fixture
def remote() -> Any:
    import fsspec

    files = fsspec.filesystem("memory")
    yield files
    files.rm("/", recursive=True)


def upload(files: Any, path: Path, url: str) -> None:
    with files.open(url, "wb") as file:
        file.write(path.read_bytes())


@pytest.mark.parametrize("end", ["parquet", "csv", "csv.gz"])
def test_tables_of_a_service(tmp_path: Path, remote: Any, end: str) -> None:
    paths = [save(tmp_path / f"{n}.{end}", numbers(30, seed=n)) for n in range(2)]
    for path in paths:
        upload(remote, path, f"/bucket/{path.name}")
    upload(remote, paths[0], f"/bucket/_tmp.{end}")
    for source in (f"memory://bucket/*.{end}", "memory://bucket", [f"memory://bucket/{path.name}" for path in paths]):
        shards = find_shards(source, rows=7)
        assert [shard.describe() for shard in shards] == [shard.describe() for shard in find_shards(paths, rows=7)]
        assert same(read(pickle.loads(pickle.dumps(shards)), 4), loaded(*paths))


@pytest.mark.parametrize(
    ("url", "error", "message"),
    [
        ("memory://bucket/none.parquet", FileNotFoundError, "There is no table memory://bucket/none.parquet"),
        ("memory://bucket/*.tsv", FileNotFoundError, "There is no table"),
        ("memory://bucket/X.npy", ValueError, r"X\.npy is no table; expected URLs that end in \.csv"),
        ("memory://bucket/a*.csv", ValueError, "rename it"),
        ("nosuch://bucket/a.csv", ValueError, "nosuch://bucket/a.csv cannot be opened"),
    ],
)
def test_faults_of_urls(remote: Any, url: str, error: type[Exception], message: str) -> None:
    remote.pipe({"/bucket/X.npy": b"1", "/bucket/a::b.csv": b"x,y\n1,2\n"})
    with pytest.raises(error, match=message):
        find_shards(url)


def test_without_fsspec_only_urls_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    assert find_shards(save(tmp_path / "a.parquet", numbers(9)))
    with pytest.raises(ImportError, match=r"s3://bucket/a\.parquet needs fsspec: pip install .*dask.*ray"):
        find_shards("s3://bucket/a.parquet")


def broken(folder: Path, name: str) -> Any:
    """Sources with one fault each."""
    good = numbers(9)
    if name == "columns":
        save(folder / "a.parquet", good)
        save(folder / "b.parquet", good.rename_columns(["a", "c", "wet", "label"]))
    elif name == "csv columns":
        save(folder / "a.csv", good)
        save(folder / "b.csv", good.select(["a", "label"]))
    elif name == "label types":
        save(folder / "a.parquet", good)
        save(folder / "b.parquet", numbers(2, label=["01", "02"]))
    elif name == "csv label types":
        (folder / "a.csv").write_text("x,label\n1,1\n")
        (folder / "b.csv").write_text("x,label\n1,01\n")
    elif name == "csv label types the other way":
        (folder / "a.csv").write_text("x,label\n1,01\n")
        (folder / "b.csv").write_text("x,label\n1,1\n")
    elif name == "formats":
        save(folder / "a.parquet", good)
        save(folder / "b.csv", good)
    elif name == "kinds":
        return [save(folder / "a.parquet", good), write_photos(folder / "photos")]
    elif name == "texts":
        (folder / "a").mkdir()
        (folder / "a" / "1.txt").write_text("hello")
    elif name == "sentences":
        (folder / "a.csv").write_text("text,label\nhello,1\n")
    elif name == "text column":
        save(folder / "a.parquet", numbers(2, colour=["red", "blue"]))
    elif name == "no label":
        save(folder / "a.parquet", good.select(["a", "b"]))
    elif name == "split in one":
        save(folder / "a.parquet", numbers(2, split=["train", "test"]))
        save(folder / "b.parquet", numbers(2, split=[0, 1]))
    elif name == "damaged":
        (folder / "a.parquet").write_bytes(b"PAR1 and no more")
    elif name == "objects":
        (folder / "n").mkdir()
        np.save(folder / "X.npy", np.array([[{}]]), allow_pickle=True)
        np.save(folder / "y.npy", np.arange(1))
    elif name == "other length":
        write_arrays(folder, np.ones((3, 2)), np.arange(4))
    elif name == "no samples":
        write_arrays(folder, np.ones((0, 2)), np.arange(0))
    elif name == "words":
        write_arrays(folder, np.array([["a"], ["b"]]), np.arange(2))
    elif name == "an array":
        write_arrays(folder, np.ones((3, 2)), np.arange(3))
        np.save(folder / "mean.npy", np.ones(3))
        return folder / "mean.npy"
    elif name == "tables and arrays":
        write_arrays(folder, np.ones((3, 2)), np.arange(3))
        save(folder / "a.parquet", good)
    elif name == "within":
        write_photos(folder / "train")
        return [folder, folder / "train"]
    return folder


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "columns",
            r"b\.parquet and .*a\.parquet have different columns: .*b.parquet lacks 'b', and .*a.parquet lacks 'c'",
        ),
        ("csv columns", r"b\.csv and .*a\.csv have different columns: .*b.csv lacks 'b', 'wet'\. Give"),
        (
            "label types",
            r"b\.parquet, column 'label', are text, and those of .*a\.parquet are integers\. Labels of one",
        ),
        ("csv label types", r"b\.csv, column 'label', are text, and those of .*a\.csv are integers"),
        ("csv label types the other way", r"b\.csv, column 'label', are integers, and those of .*a\.csv are text"),
        ("formats", r"a\.parquet is Parquet and .*b\.csv is not"),
        ("kinds", r"photos is a folder of photos and .*a\.parquet is a table; expected one kind"),
        ("texts", "holds texts: texts are not read in shards. Use `cldnet learn` without --engine"),
        ("sentences", r"a\.csv has sentences, in its column 'text'"),
        ("text column", r"a\.parquet has features that are not numbers \(text\): 'colour'"),
        ("no label", r"a\.parquet has no columns named label, class, target or y"),
        ("split in one", r"a\.parquet has words in its column 'split' and .*b\.parquet has not"),
        ("damaged", r"a\.parquet cannot be read as a table"),
        ("objects", r"X\.npy cannot be read as arrays: it holds Python objects"),
        ("other length", r"X\.npy has 3 samples and .*y\.npy has shape \(4,\)"),
        ("no samples", r"X\.npy cannot be read as arrays: it is empty"),
        ("words", r"X\.npy has shape \(2, 1\) and type <U1; expected numbers"),
        ("an array", r"mean\.npy is one array; expected X\.npy with y\.npy beside it"),
        ("tables and arrays", "has tables and arrays: name those to learn"),
        ("within", r"train is within .*, so its photos would be learned twice"),
        ("empty", "has no images"),
    ],
)
def test_faults_that_show_before_work_starts(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_shards(broken(tmp_path, name))


def test_faults_of_the_arguments(tmp_path: Path) -> None:
    save(tmp_path / "a.parquet", numbers(9))
    with pytest.raises(ValueError, match="rows=0 should be a whole number"):
        find_shards(tmp_path, rows=0)
    with pytest.raises(ValueError, match="side=True should be"):
        find_shards(tmp_path, side=True)
    with pytest.raises(ValueError, match="source is an empty list"):
        find_shards([])
    with pytest.raises(ValueError, match="'' is no path"):
        find_shards("")
    with pytest.raises(FileNotFoundError, match=r"There is no file or folder .*none"):
        find_shards(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match=r"No file or folder matches .*\*\.csv"):
        find_shards(str(tmp_path / "*.csv"))
    with pytest.raises(ValueError, match="has no column 'kind'"):
        find_shards(tmp_path, label="kind")
    with pytest.raises(ValueError, match="is no table, so it has no columns: leave label out"):
        find_shards(write_photos(tmp_path / "photos"), label="kind")
    (tmp_path / "a.txt").touch()
    with pytest.raises(ValueError, match="unknown ending"):
        find_shards(tmp_path / "a.txt")


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("b", [1] * 12 + [None] + [1] * 7, r"a\.parquet, column 'b': 1 values are missing, the first in row 13\."),
        ("a", [1.0] * 17 + [float("nan")] * 3, r"column 'a': 1 values are infinite or NaN, the first in row 18\."),
        ("label", [1] * 19 + [None], "column 'label': 1 values are missing, the first in row 20"),
        ("label", [1.0] * 19 + [1.5], "a.parquet cannot be read as a table: Unknown label type: continuous"),
        ("split", ["train"] * 19 + ["dev"], r"a\.parquet says 'dev' in its column 'split'"),
    ],
)
def test_bad_values_are_named_with_file_and_row(tmp_path: Path, column: str, values: list[Any], message: str) -> None:
    table = numbers(20)
    if column in table.column_names:
        table = table.drop_columns([column])
    path = save(tmp_path / "a.parquet", table.append_column(column, pa.array(values)))
    with pytest.raises(ValueError, match=message):
        read(find_shards(path, rows=7), 2)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("word,1", r"a\.csv cannot be read as a table: In CSV column #0: Row #102: .*'word'"),
        ("5", r"a\.csv cannot be read as a table: .*Row #102: Expected 2 columns, got 1"),
        ("5,", r"a\.csv, column 'label': 1 values are missing, the first in line 102\."),
        (",5", r"a\.csv, column 'x': 1 values are missing, the first in line 102\."),
        ("5,01", r"a\.csv, column 'label': the label '01' in line 102 is text, and those before it are integers\."),
        ("5,oak", r"the label 'oak' in line 102 is text"),
    ],
)
def test_a_csv_file_that_changes_its_types_is_refused(
    tmp_path: Path, line: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cldnet.data.files._CSV_BLOCK", 64)
    (tmp_path / "a.csv").write_text("x,label\n" + "1,1\n" * 100 + line + "\n1,1\n")
    shards = find_shards(tmp_path)
    with pytest.raises(ValueError, match=message):
        read(shards, 3)


def test_labels_in_parquet_that_are_no_text_are_refused(tmp_path: Path) -> None:
    bad = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    shards = find_shards(save(tmp_path / "a.parquet", pa.table({"x": [1.0], "label": bad})))
    with pytest.raises(ValueError, match=r"a\.parquet cannot be read as a table: .*Invalid UTF8"):
        read(shards)


def test_a_folder_named_like_a_table_beside_tables_is_refused(tmp_path: Path) -> None:
    save(tmp_path / "a.parquet", numbers(9))
    save(tmp_path / "b.parquet" / "part.parquet", numbers(9))
    with pytest.raises(ValueError, match=r"b\.parquet is a folder; expected a file"):
        find_shards(tmp_path)
    assert find_shards(tmp_path / "b.parquet")[0].rows == 9


def test_bad_numbers_in_arrays_are_named(tmp_path: Path) -> None:
    x = np.ones((9, 2))
    x[7] = np.nan
    write_arrays(tmp_path, x, np.arange(9))
    with pytest.raises(ValueError, match=r"X\.npy: 1 samples have NaN or infinity, the first is sample 8\."):
        read(find_shards(tmp_path, rows=4), 2)
    write_arrays(tmp_path, np.ones((2, 2)), np.array([1.0, 1.5]))
    with pytest.raises(ValueError, match=r"y\.npy: Unknown label type: continuous"):
        read(find_shards(tmp_path))


def test_a_file_that_changed_meanwhile_is_refused(tmp_path: Path) -> None:
    shards = find_shards(save(tmp_path / "a.parquet", numbers(20)))
    save(tmp_path / "a.parquet", numbers(30))
    with pytest.raises(ValueError, match=r"a\.parquet has changed since its rows were listed"):
        read(shards)
    shards = find_shards(write_arrays(tmp_path / "n", np.ones((3, 2)), np.arange(3)))
    write_arrays(tmp_path / "n", np.ones((2, 2)), np.arange(2))
    with pytest.raises(ValueError, match=r"X\.npy has changed since its samples were listed"):
        read(shards)


def test_a_csv_shard_says_what_types_it_reads(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(" x ,wet,label,split\n1,true,3,train\n2,false,4,test\n")
    (shard,) = find_shards(tmp_path)
    assert isinstance(shard, CsvShard)
    assert dict(shard.types) == {" x ": "double", "wet": "bool", "label": "string", "split": "string"}
    assert shard.whole
    assert same(read([shard]), loaded(tmp_path / "a.csv"))
