"""Shards: the parts that a source of samples is read in, each by whichever process or machine sums it.

A source is one or several tables (Parquet, CSV), arrays of NumPy, or a folder of photos with one folder per class.
`find_shards` checks what can be checked without reading the samples; `Shard.batches` reads one shard in small pieces, so
memory does not grow with it. A shard can be pickled, is read by its path alone, and nothing in a file is executed.

What shards there are depends on the source and on ``rows`` alone, neither on the file system nor on the number of workers:

- Parquet: whole row groups of one file, about ``rows`` rows together. A larger row group is one shard: write files with
  ``row_group_size=100_000`` or less if you have few of them.
- CSV: one file is one shard, because only reading it tells where its rows begin. Split large files, or save them as Parquet.
- Arrays: ``rows`` samples of ``X.npy`` and ``y.npy``, which are mapped and not read as a whole.
- Photos: at most 2,000 of them, in the order of their classes and names.
"""

from __future__ import annotations

import glob
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from cldnet.data.dataset import check_file
from cldnet.data.files import (
    ARRAY_NAMES,
    TABLE_ENDS,
    TEXT_NAMES,
    Columns,
    array_header,
    choose_arrays,
    choose_columns,
    column_values,
    csv_types,
    explaining,
    is_table,
    is_text,
    open_csv,
    require_pyarrow,
    stripped,
    table_end,
    tested_rows,
    unique_names,
    whole_or_text,
    with_whole_labels,
)
from cldnet.data.images.folders import holds_class_folders, holds_texts, list_photos

__all__ = ["ArrayShard", "CsvShard", "OnSkip", "ParquetShard", "PhotoShard", "Shard", "Source", "find_shards"]

#: Photos of one shard: a few minutes of a net's time.
MOST_PHOTOS = 2_000
#: Photos that are decoded at once.
_PHOTO_BATCH = 256
#: Bytes of every CSV file but the first that are read before work starts, to compare its columns with those of the first.
_HEAD = 1 << 20
#: Columns of which a row may not fit into that.
_WIDE = 10_000
#: Bytes of a file that are read at once, so that memory does not grow with its row groups.
_BUFFER = 1 << 20
#: Files on other machines that are looked at at the same time.
_LOOKING = 16
_NAMED = 5
_NPY = ".npy"
_TABLE, _ARRAY, _PHOTOS = "a table", "an array", "a folder of photos"
_SIDE = 224
_NO_TEXTS = "texts are not read in shards. Use `cldnet learn` without --engine, or partial_fit."
_ONE_TYPE = (
    "Labels of one source have one type: write them all alike, or save Parquet, where the column has the type text or "
    "integers."
)
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
_GLOB = re.compile(r"[*?[]")

#: One source, by its path or URL.
Source = str | os.PathLike[str]
#: Called with the name of a file that cannot be read, and the reason.
OnSkip = Callable[[str, str], None]


@dataclass(frozen=True)
class Shard(ABC):
    """A part of a source: a range of samples of one file or folder. It can be pickled, and is all that a task needs to read it.

    Attributes
    ----------
    path : str
        An absolute path, or a URL that fsspec opens.
    first, rows : int
        The place of the first sample in the file, from 0, and the number of samples. ``rows`` is -1 for CSV files, which do
        not say how many they have. Rows of a test part count, and are left out when the shard is read.
    size : int
        Bytes of this range in the file; those of its photos.
    """

    #: What the shard is read from.
    kind: ClassVar[str]
    #: What a sample is called.
    noun: ClassVar[str] = "row"
    path: str
    first: int
    rows: int
    size: int

    @abstractmethod
    def batches(self, size: int = 8192, on_skip: OnSkip | None = None) -> Iterator[tuple[Any, NDArray[Any]]]:
        """Read the shard in order as ``(X, y)`` of at most ``size`` samples, as `CLDNetClassifier.partial_fit` takes them.

        ``on_skip`` is called with the name of every photo that cannot be read, and the reason.
        """

    @property
    def name(self) -> str:
        """The file or folder without those that it is in."""
        return self.path.rstrip("/\\").replace("\\", "/").rpartition("/")[2]

    def describe(self) -> str:
        """Name the shard for a message."""
        return f"{self.name}, {self.noun}s {self.first + 1:,}–{self.first + self.rows:,}"


@dataclass(frozen=True)
class _TableShard(Shard):
    """Rows of a table. ``file_size`` are the bytes of the whole file, which should be the same when it is read."""

    columns: Columns
    file_size: int

    def batches(self, size: int = 8192, on_skip: OnSkip | None = None) -> Iterator[tuple[Any, NDArray[Any]]]:
        """Read the training rows as pyarrow tables with the names of their columns, and labels."""
        require_pyarrow()
        done = 0
        with _opened(self.path) as file:
            self._check_unchanged(file)
            for table in self._tables(file, size):
                word, first = self.columns.first_row
                place = replace(self.columns, first_row=(word, first + self.first + done))
                done += len(table)
                batch = _training_rows(self.path, table, place)
                if batch is not None:
                    yield batch

    def _check_unchanged(self, file: Any) -> None:
        now = _size_of(file)
        if now != self.file_size:
            raise ValueError(
                f"{self.path} has changed since its rows were listed: it had {self.file_size:,} bytes and has {now:,}. "
                "Start again."
            )

    @abstractmethod
    def _tables(self, file: Any, size: int) -> Iterator[Any]:
        """Read all rows in order as tables of at most ``size`` rows, whose columns have no blanks around their names."""


@dataclass(frozen=True)
class ParquetShard(_TableShard):
    """Whole row groups of a Parquet file."""

    kind = "parquet"
    groups: tuple[int, ...]

    def _tables(self, file: Any, size: int) -> Iterator[Any]:
        from pyarrow import Table  # noqa: PLC0415

        wanted = self.columns.names
        with explaining(self.path, "a table"), _parquet_file(file) as opened:
            names = [name for name in opened.schema_arrow.names if name.strip() in wanted]
            for batch in opened.iter_batches(size, [*self.groups], names, use_threads=False):
                batch.validate(full=True)  # Parquet's reader takes text on trust
                yield stripped(Table.from_batches([batch]))


@dataclass(frozen=True)
class CsvShard(_TableShard):
    """A CSV file. ``types`` are those of its columns, and ``whole`` says whether labels are integers: as in the first file."""

    kind = "csv"
    types: tuple[tuple[str, str], ...]
    whole: bool

    def describe(self) -> str:
        """Name the shard for a message."""
        return self.name

    def _tables(self, file: Any, size: int) -> Iterator[Any]:
        done = 0
        for table in _csv_tables(self.path, file, dict(self.types)):
            typed = self._with_labels(table, done) if self.whole else table
            for first in range(0, len(table), size):
                yield typed.slice(first, size)
            done += len(table)

    def _with_labels(self, table: Any, done: int) -> Any:
        """A table with integers as labels; a missing one stays, to be named later."""
        assert self.columns.label is not None
        typed = with_whole_labels(table, self.columns.label)
        if typed is not None:
            return typed
        for place, label in enumerate(table.column(self.columns.label).to_pylist()):
            if label.strip() and with_whole_labels(table.slice(place, 1), self.columns.label) is None:
                raise ValueError(
                    f"{self.path}, column {self.columns.label!r}: the label {label.strip()!r} in line "
                    f"{self.columns.first_row[1] + done + place:,} is text, and those before it are integers. {_ONE_TYPE}"
                )
        return table


@dataclass(frozen=True)
class ArrayShard(Shard):
    """Samples of ``X.npy`` and of ``y.npy``, which is at ``labels``."""

    kind = "npy"
    noun = "sample"
    labels: str

    @property
    def name(self) -> str:
        """The folder and the file, as all these files have one name."""
        return "/".join(Path(self.path).parts[-2:])

    def batches(self, size: int = 8192, on_skip: OnSkip | None = None) -> Iterator[tuple[Any, NDArray[Any]]]:
        """Read the samples as arrays of their own type, and labels."""
        x, y = _mapped(Path(self.path)), _mapped(Path(self.labels))
        end = self.first + self.rows
        if end > len(x) or len(x) != y.size:
            raise ValueError(
                f"{self.path} has changed since its samples were listed: it has {len(x):,}, and {y.size:,} labels. Start again."
            )
        for first in range(self.first, end, size):
            part = slice(first, min(first + size, end))
            yield self._checked(x[part], first), self._labels(y.reshape(-1)[part])

    def _checked(self, part: NDArray[Any], first: int) -> NDArray[Any]:
        samples = np.array(part, dtype=part.dtype.newbyteorder("="), order="C")  # no mapping: its pages count as memory
        if samples.dtype.kind == "f" and not np.isfinite(samples).all():
            bad = ~np.isfinite(samples).reshape(len(samples), -1).all(1)
            raise ValueError(
                f"{self.path}: {bad.sum():,} samples have NaN or infinity, the first is sample {first + bad.argmax() + 1:,}. "
                "Fill in the values, or drop those samples."
            )
        return samples

    def _labels(self, labels: NDArray[Any]) -> NDArray[Any]:
        try:
            return whole_or_text(np.array(labels))
        except ValueError as error:
            raise ValueError(f"{self.labels}: {error}") from error


@dataclass(frozen=True)
class PhotoShard(Shard):
    """Photos of a folder: their names in it, their labels, and the side of the square that they are cut to."""

    kind = "photos"
    noun = "photo"
    photos: tuple[str, ...]
    labels: tuple[str, ...]
    side: int

    def batches(self, size: int = 8192, on_skip: OnSkip | None = None) -> Iterator[tuple[Any, NDArray[Any]]]:
        """Read the photos as uint8 images ``(n, 3, side, side)``, at most 256 at once, in this process if they are harmless."""
        from cldnet.data.images.decode import cut_from, read_photos  # noqa: PLC0415  (needs Pillow)

        step = min(size, _PHOTO_BATCH)
        for first in range(0, self.rows, step):
            names, labels = self.photos[first : first + step], np.array(self.labels[first : first + step])
            paths = [os.path.join(self.path, name) for name in names]
            read = read_photos(paths, self.side, cut_from(self.side), workers=1)  # tasks are many already
            for bad in read.bad:
                if on_skip is not None:
                    on_skip(os.path.relpath(bad.path, self.path).replace(os.sep, "/"), bad.reason)
            if len(read.x):
                yield read.x, labels[read.places]


def find_shards(
    source: Source | Sequence[Source], *, label: str | None = None, rows: int = 100_000, side: int | None = None
) -> list[Shard]:
    """List the shards of a source, after checking all that can be checked without reading the samples.

    Parameters
    ----------
    source : path-like, or list of them
        A table (``.parquet``, ``.csv``, ``.tsv``, the latter two also with ``.gz``), a folder of tables, a folder with one
        folder per class of photos, ``X.npy`` with ``y.npy`` beside it or their folder; a pattern of such, as
        ``'data/*.parquet'``; or a URL or a pattern of tables that fsspec opens, as ``'s3://bucket/part-*.parquet'``. A file
        that is named twice is read once. A test part is left out.
    label : str, optional
        Of tables: the column of labels; by default the one named label, class, target or y.
    rows : int
        Samples of a shard: see the top of this module.
    side : int, optional
        Of photos: the side of the square that they are cut to, in pixels; by default 224.

    Returns
    -------
    list of Shard
        In the order of their paths. No two have a sample in common, and together they have all.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/X.npy", np.zeros((5, 2)))
    ...     np.save(f"{folder}/y.npy", np.arange(5))
    ...     [(shard.first, shard.rows) for shard in find_shards(folder, rows=2)]
    [(0, 2), (2, 2), (4, 1)]
    """
    for name, number in (("rows", rows), ("side", side)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, int | np.integer) or number < 1):
            raise ValueError(f"{name}={number!r} should be a whole number of at least 1.")
    given = [source] if isinstance(source, str | os.PathLike) else [*source]
    if not given:
        raise ValueError("source is an empty list; expected paths or URLs of tables, arrays or folders of photos.")
    found = sorted({place for each in given for place in _expanded(each)})
    what = found[0].what
    if other := next((place for place in found if place.what != what), None):
        raise ValueError(
            f"{found[0].path} is {what} and {other.path} is {other.what}; expected one kind of samples in a source. Learn "
            "one after the other."
        )
    paths = _without_repeats([place.path for place in found])
    if what == _TABLE:
        return _table_shards(paths, label, rows)
    if label is not None:
        raise ValueError(f"{paths[0]!r} is no table, so it has no columns: leave label out.")
    if what == _ARRAY:
        return [shard for path in paths for shard in _array_shards(Path(path), rows)]
    return _photo_shards(paths, min(rows, MOST_PHOTOS), side or _SIDE)


def _without_repeats(paths: Sequence[str]) -> list[str]:
    """Leave out what has an earlier path as well, such as a link."""
    first: dict[str, str] = {}
    for path in paths:
        first.setdefault(path if _URL.match(path) else os.path.realpath(path), path)
    return [*first.values()]


class _Place(NamedTuple):
    """A table, the samples among arrays or a folder of photos, by its absolute path or URL."""

    what: str
    path: str


def _expanded(source: Source) -> list[_Place]:
    """The places that a path, a URL or a pattern of either means."""
    given = os.fspath(source)
    if not isinstance(given, str) or not given:
        raise ValueError(f"{source!r} is no path; expected the path, the URL or the pattern of samples.")
    if _URL.match(given):
        return [_Place(_TABLE, table) for table in _expanded_url(given)]
    path = os.path.abspath(os.path.expanduser(given))
    if os.path.lexists(path) or not _GLOB.search(given):
        return _expanded_path(Path(path))
    found = glob.glob(path, recursive=True)
    if not found:
        raise FileNotFoundError(f"No file or folder matches {given!r}. Check the pattern.")
    return [place for each in found for place in _expanded_path(Path(each))]


def _expanded_path(path: Path) -> list[_Place]:
    """The places that a file or folder means."""
    if not path.exists():
        raise FileNotFoundError(f"There is no file or folder {path}. Check the path.")
    if not path.is_dir():
        if path.suffix.lower() == _NPY:
            return [_array_of(path)]
        table_end(path)
        return [_Place(_TABLE, str(path))]
    if holds_class_folders(path):
        if holds_texts(path):
            raise ValueError(f"{path} holds texts: {_NO_TEXTS}")
        return [_Place(_PHOTOS, str(path))]
    inside = [name for name in os.listdir(path) if not name.startswith((".", "_"))]
    tables = [path / name for name in inside if is_table(name)]
    arrays = any(name.lower().endswith(_NPY) for name in inside)
    if tables and arrays:
        raise ValueError(f"{path} has tables and arrays: name those to learn, for example with '{path / '*.parquet'}'.")
    if arrays:
        return [_array_of(path)]
    return [_Place(_TABLE, str(table)) for table in tables] or [_Place(_PHOTOS, str(path))]


def _array_of(path: Path) -> _Place:
    """The samples among the arrays of a folder, which may be given by one of its files."""
    folder = path if path.is_dir() else path.parent
    if path != folder and path.stem.lower() not in ARRAY_NAMES:
        raise ValueError(f"{path} is one array; expected X.npy with y.npy beside it. Rename it.")
    return _Place(_ARRAY, str(_pair_in(folder)[0]))


def _pair_in(folder: Path) -> tuple[Path, Path]:
    """The files of samples and labels for training in a folder."""
    files = {file.stem: file for file in sorted(folder.iterdir()) if file.suffix.lower() == _NPY}
    x, y = choose_arrays(folder, files)[0]
    return files[x], files[y]


def _fsspec(url: str) -> Any:
    try:
        import fsspec  # noqa: PLC0415  (an extra)
    except ImportError as error:
        raise ImportError(
            f'Reading {url} needs fsspec: pip install ".[dask]" or ".[ray]" in a clone of CLDNet, and the package of the '
            "service, such as s3fs for s3://."
        ) from error
    return fsspec


@contextmanager
def _asking(url: str) -> Iterator[None]:
    """Turn whatever a service raises into an error that names the URL."""
    try:
        yield
    except FileNotFoundError as error:
        raise FileNotFoundError(f"There is no file {url}. Check the URL.") from error
    except ImportError as error:
        raise ImportError(f"{url} cannot be opened: {error}.") from error
    except Exception as error:
        raise ValueError(f"{url} cannot be opened: {str(error) or type(error).__name__:.300}") from error


def _expanded_url(url: str) -> list[str]:
    """The tables that a URL, of one table or a folder of them, or a pattern of URLs means."""
    fsspec = _fsspec(url)
    with _asking(url):
        files, place = fsspec.core.url_to_fs(url)
        if _GLOB.search(place):
            found = files.glob(place)
        elif files.isdir(place):
            found = [each for each in files.ls(place, detail=False) if is_table(each)]
        else:
            found = [place] if files.exists(place) else []
        visible = [each for each in found if not each.rpartition("/")[2].startswith((".", "_"))]
        tables = [files.unstrip_protocol(each) for each in visible]
    if not tables:
        raise FileNotFoundError(f"There is no table {url}. Check the URL.")
    for table in tables:
        if "::" in table:
            raise ValueError(f"{table} has '::' in its name, which fsspec would take for two URLs: rename it.")
        if not is_table(table):
            raise ValueError(
                f"{table} is no table; expected URLs that end in {', '.join(TABLE_ENDS)}. Download other data."
            )
    return tables


@contextmanager
def _opened(path: str) -> Iterator[Any]:
    """A local file as its path, which pyarrow reads fastest, or the open file of a URL."""
    if not _URL.match(path):
        check_file(Path(path))
        yield path
        return
    fsspec = _fsspec(path)
    with _asking(path):
        files, place = fsspec.core.url_to_fs(path)
        file = files.open(place, "rb")
    with file:
        yield file


def _size_of(file: Any) -> int:
    """Bytes of what `_opened` gives."""
    if isinstance(file, str):
        return os.stat(file).st_size
    size: int = file.seek(0, os.SEEK_END)
    file.seek(0)
    return size


class _Looked(NamedTuple):
    """What a table shows before its rows are read. ``groups`` are the rows of row groups, or -1 for a CSV file with some."""

    path: str
    size: int
    groups: tuple[int, ...]
    columns: Columns
    labels: str  # their type in words
    types: tuple[tuple[str, str], ...] = ()  # of a CSV file, by its columns' names as they are written


def _table_shards(paths: list[str], label: str | None, rows: int) -> list[Shard]:
    """Look at all tables. All should have the columns of the first one with rows; those without rows are left out."""
    require_pyarrow()
    kinds = {path.lower().endswith(".parquet"): path for path in paths}
    if len(kinds) > 1:
        raise ValueError(
            f"{kinds[True]} is Parquet and {kinds[False]} is not; save all tables of a source in one format."
        )
    empty = []
    for path in paths:
        first = _look(path, label, None)
        if first.groups:
            break
        empty.append(path)
    else:
        more = f", nor have the {len(paths) - 1:,} other tables" if paths[1:] else ""
        raise ValueError(f"{paths[0]} has no rows below the names of its columns{more}.")
    others = [path for path in paths if path != first.path]
    with ThreadPoolExecutor(_LOOKING if _URL.match(first.path) else 1) as pool:
        looked = {each.path: each for each in pool.map(lambda path: _look(path, label, first), others)}
    looked[first.path] = first
    return [shard for path in paths for shard in _shards_of(looked[path], rows)]


def _look(path: str, label: str | None, first: _Looked | None) -> _Looked:
    found = (_look_at_parquet if path.lower().endswith(".parquet") else _look_at_csv)(path, label, first)
    if first is not None and found.groups and found.labels != first.labels:
        raise ValueError(
            f"The labels of {path}, column {found.columns.label!r}, are {found.labels}, and those of {first.path} are "
            f"{first.labels}. {_ONE_TYPE}"
        )
    return found


def _chosen(path: str, schema: Any, label: str | None, first: _Looked | None, place: tuple[str, int]) -> Columns:
    """What the columns of a table are for, as in the first one, if there is one."""
    _check_names(path, unique_names(path, schema), first)
    if first is None:
        _refuse_sentences(path, schema)
        return choose_columns(path, schema, label, place)
    found = choose_columns(path, schema, first.columns.label, place)
    if found.split != first.columns.split:
        with_split, without = (path, first.path) if first.columns.split is None else (first.path, path)
        raise ValueError(
            f"{with_split} has words in its column 'split' and {without} has not: write train or test in both."
        )
    return first.columns  # in the order of the first one


def _check_names(path: str, names: Sequence[str], first: _Looked | None) -> None:
    """Raise for columns that the first table does not have, and the other way round."""
    if first is None:
        return
    known = first.columns.names
    if lacking := [
        f"{lacks} lacks {', '.join(map(repr, sorted(columns)[:_NAMED]))}{' and others' * (len(columns) > _NAMED)}"
        for lacks, columns in ((path, known - {*names}), (first.path, {*names} - known))
        if columns
    ]:
        raise ValueError(
            f"{path} and {first.path} have different columns: {', and '.join(lacking)}. Give tables with the same columns."
        )


def _refuse_sentences(path: str, schema: Any) -> None:
    found = next((each.name for each in schema if each.name.lower() in TEXT_NAMES and is_text(each.type)), None)
    if found is not None:
        raise ValueError(f"{path} has sentences, in its column {found!r}: {_NO_TEXTS}")


def _parquet_file(file: Any) -> Any:
    from pyarrow import parquet  # noqa: PLC0415

    local = isinstance(file, str)  # elsewhere few large requests are faster
    return parquet.ParquetFile(
        file, page_checksum_verification=True, buffer_size=_BUFFER if local else 0, pre_buffer=not local
    )


def _look_at_parquet(path: str, label: str | None, first: _Looked | None) -> _Looked:
    with _opened(path) as file:
        size = _size_of(file)
        with explaining(path, "a table"), _parquet_file(file) as opened:
            schema = stripped(opened.schema_arrow.empty_table()).schema
            about = opened.metadata
            groups = tuple(about.row_group(number).num_rows for number in range(about.num_row_groups))
    if first is not None and not any(groups):  # pandas writes no types then
        _check_names(path, unique_names(path, schema), first)
        return first._replace(path=path, size=size, groups=())
    columns = _chosen(path, schema, label, first, ("row", 1))
    return _Looked(path, size, groups if any(groups) else (), columns, _label_words(schema, columns))


def _label_words(schema: Any, columns: Columns) -> str:
    return "text" if is_text(schema.field(columns.label).type) else "integers"


def _look_at_csv(path: str, label: str | None, first: _Looked | None) -> _Looked:
    """Look at the first block of a file. The types of a source's first file hold for all."""
    from pyarrow.types import is_null  # noqa: PLC0415

    options = {} if first is None or len(first.columns.features) > _WIDE else {"block_size": _HEAD}
    with _opened(path) as file:
        size = _size_of(file)
        with explaining(path, "a table"), open_csv(path, {}, _binary(file), **options) as reader:
            schema = reader.schema
    named = stripped(schema.empty_table()).schema
    if first is not None and all(is_null(each.type) for each in schema):  # there may be no rows
        _check_names(path, unique_names(path, named), first)
        columns = first.columns
    else:
        columns = _chosen(path, named, label, first, ("line", 2))
    types = _types_of(named, columns, first)
    written = tuple((name, types[name.strip()]) for name in schema.names if name.strip() in types)
    with _opened(path) as file:
        head = next(_csv_tables(path, file, dict(written), **options), None)
    return _Looked(path, size, () if head is None else (-1,), columns, _label_kind(head, columns, types), written)


def _types_of(schema: Any, columns: Columns, first: _Looked | None) -> dict[str, str]:
    """Types of a CSV file's columns by their names: those of the first file, if there is one."""
    if first is not None:
        return {name.strip(): kind for name, kind in first.types}

    return {name: str(schema.field(name).type) for name in columns.names} | {
        name: str(kind) for name, kind in csv_types(schema, columns).items()
    }


def _label_kind(head: Any, columns: Columns, types: Mapping[str, str]) -> str:
    """The type of labels in words, as far as the first block shows it."""
    assert columns.label is not None
    if types[columns.label] != "string":
        return "integers"
    return "text" if head is None or with_whole_labels(head, columns.label) is None else "integers"


def _csv_tables(path: str, file: Any, types: Mapping[str, str], **options: Any) -> Iterator[Any]:
    """Read a CSV file block by block as tables whose columns have no blanks around their names."""
    from pyarrow import Table, type_for_alias  # noqa: PLC0415

    kinds = {name: type_for_alias(kind) for name, kind in types.items()}
    options["use_threads"] = False  # only then do pyarrow's errors name the row
    with explaining(path, "a table"), open_csv(path, kinds, _binary(file), **options) as batches:
        for batch in batches:
            batch.validate(full=True)
            yield stripped(Table.from_batches([batch]))


def _binary(file: Any) -> Any:
    """What `open_csv` needs besides the name: the open file of a URL."""
    return None if isinstance(file, str) else file


def _shards_of(table: _Looked, rows: int) -> Iterator[Shard]:
    """Cut a table into shards of whole row groups with about so many rows together."""
    if table.types:
        if table.groups:
            label = next(kind for name, kind in table.types if name.strip() == table.columns.label)
            whole = table.labels == "integers" and label == "string"
            yield CsvShard(table.path, 0, -1, table.size, table.columns, table.size, table.types, whole)
        return
    first, some, total = 0, list[int](), sum(table.groups)
    for number, count in enumerate(table.groups):
        if some and (held := sum(table.groups[each] for each in some)) + count > rows:
            yield _parquet_shard(table, first, some, total)
            first, some = first + held, []
        some += [number] * (count > 0)
    if some:
        yield _parquet_shard(table, first, some, total)


def _parquet_shard(table: _Looked, first: int, groups: Sequence[int], total: int) -> Shard:
    rows = sum(table.groups[each] for each in groups)
    share = table.size * rows // total
    return ParquetShard(table.path, first, rows, share, table.columns, table.size, tuple(groups))


def _training_rows(path: str, table: Any, columns: Columns) -> tuple[Any, NDArray[Any]] | None:
    """Check the values of a table, and return its features and labels without those of the test part, if any are left."""
    from pyarrow import Table, array  # noqa: PLC0415

    assert columns.label is not None
    labels = column_values(path, table, columns.label, columns)
    with explaining(path, "a table"):
        y = whole_or_text(labels)
    features = {name: array(column_values(path, table, name, columns)) for name in columns.features}
    X = Table.from_arrays([*features.values()], names=[*features])
    if columns.split is None:
        return (X, y) if len(y) else None
    train = ~tested_rows(path, column_values(path, table, columns.split, columns))
    return (X.filter(array(train)), y[train]) if train.any() else None


def _array_shards(path: Path, rows: int) -> Iterator[Shard]:
    """Check the headers of X.npy and y.npy, and cut them into shards."""
    labels = _pair_in(path.parent)[1]
    x, y = _mapped(path), _mapped(labels)
    if x.dtype.kind not in "biuf" or not 2 <= x.ndim <= 4 or 0 in x.shape:
        raise ValueError(
            f"{path} has shape {x.shape} and type {x.dtype}; expected numbers of shape (n, features), (n, height, width) or "
            "(n, height, width, channels)."
        )
    if len(x) != y.size or y.ndim not in (1, 2):
        raise ValueError(
            f"{path} has {len(x):,} samples and {labels} has shape {y.shape}: expected one label per sample."
        )
    if y.dtype.kind not in "biufU":
        raise ValueError(f"{labels} has type {y.dtype}; expected labels that are text or integers.")
    for first in range(0, len(x), rows):
        count = min(rows, len(x) - first)
        yield ArrayShard(str(path), first, count, x[:1].nbytes * count, str(labels))


def _mapped(path: Path) -> NDArray[Any]:
    """Map an array from its file, read-only, after checking its header."""
    check_file(path)
    with explaining(path, "arrays"), path.open("rb") as file:
        shape, order, dtype = array_header(file, path.stat().st_size)
        if 0 in shape:
            raise ValueError("it is empty")
        return np.memmap(file, dtype, mode="r", offset=file.tell(), shape=shape, order=order)


def _photo_shards(folders: Sequence[str], rows: int, side: int) -> list[Shard]:
    """List the training photos of folders, none of which is in another one."""
    from cldnet.data.images.decode import pillow  # noqa: PLC0415  (as above)

    pillow()
    shards = list[Shard]()
    for folder in folders:
        if outer := next((each for each in folders if each != folder and Path(folder).is_relative_to(each)), None):
            raise ValueError(f"{folder} is within {outer}, so its photos would be learned twice: name one of them.")
        photos = [photo for photo in list_photos(Path(folder)).photos if not photo.test]
        for first in range(0, len(photos), rows):
            part = photos[first : first + rows]
            size = sum(max(0, photo.size) for photo in part)
            names, labels = tuple(photo.name for photo in part), tuple(photo.label for photo in part)
            shards.append(PhotoShard(folder, first, len(part), size, names, labels, side))
    return shards
