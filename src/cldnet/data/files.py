"""Files of your own: NumPy's ``.npz`` and ``.npy``, and tables (CSV, Parquet) of numbers or sentences. Nothing is unpickled."""

from __future__ import annotations

import csv
import gzip
import io
import math
import os
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from cldnet.data.arrays import as_inputs, layout
from cldnet.data.dataset import Dataset, Part, check_file, gather
from cldnet.data.labels import as_labels
from cldnet.device import memory_limit
from cldnet.text import nearest_names

_TRAIN_PAIRS = (("x", "y"), ("x_train", "y_train"))
_TEST_PAIR = ("x_test", "y_test")
#: Names of the arrays of samples and labels, in lower case.
ARRAY_NAMES = {name for pair in (*_TRAIN_PAIRS, _TEST_PAIR) for name in pair}
_MAPPED_TYPES = (np.uint8, np.float32, np.float64)
_ARRAY_BLOCK = 1 << 26
_LARGEST_WHOLE = 2**53
_LAST_LETTER = 0x10FFFF
_SURROGATES = 0xD800 >> 11
#: Endings of tables' names, in lower case.
TABLE_ENDS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
_LABEL_NAMES = ("label", "class", "target", "y")
#: Names of a table's column of sentences, in lower case.
TEXT_NAMES = ("text", "sentence", "utterance", "message", "query")
_SPLIT = "split"
_WHOLE = "0|-?[1-9][0-9]{0,18}"
_CSV_BLOCK = 1 << 24  # types are guessed from a file's first block
_MOST_NAMES = 20


def read_arrays(path: Path) -> Dataset:
    """Read samples and labels that NumPy saved. Images get their channels first; a large ``.npy`` file is mapped.

    ``path`` is an ``.npz`` file with arrays ``X``, ``y`` and perhaps ``X_test``, ``y_test``, or ``x_train``, ``y_train``,
    ``x_test``, ``y_test``, as Keras names them; or a folder with ``X.npy``, ``y.npy`` and so on, or the path of one of these.
    Case does not matter, and other arrays are ignored.
    """
    if not path.exists():
        raise FileNotFoundError(f"There is no file or folder {path}. Check the path.")
    if path.suffix.lower() == ".npy" and path.is_file():
        if path.stem.lower() not in ARRAY_NAMES:
            raise ValueError(f"{path} is one array; expected X.npy with y.npy beside it. Rename it, or save an .npz.")
        path = path.parent
    if path.is_dir():
        files = {file.stem: file for file in sorted(path.iterdir()) if file.suffix.lower() == ".npy"}
        return _arrays_dataset(path.resolve().name, path, files, _load_file)
    check_file(path)
    with explaining(path, "arrays"):
        archive = zipfile.ZipFile(path)
    with archive:
        members = {info.filename[:-4]: info for info in archive.infolist() if info.filename.endswith(".npy")}
        return _arrays_dataset(path.stem, path, members, lambda info: _load_member(path, archive, info))


def whole_or_text(labels: Any) -> NDArray[Any]:
    """Check labels and return them as int64 or text; whole floats and booleans become int64."""
    array = as_labels(labels)
    if array.dtype.kind == "U":
        text = array.astype(array.dtype.newbyteorder("="))
        letters = text.view(np.uint32)  # a damaged file may hold invalid code points, which crash Python
        if ((letters > _LAST_LETTER) | (letters >> 11 == _SURROGATES)).any():
            raise ValueError("y has labels that are not valid text.")
        return text
    if array.dtype.kind == "f" and (np.abs(array) > _LARGEST_WHOLE).any():
        raise ValueError("y has floats beyond 2⁵³, which are not exact: use integers or text.")
    return array.astype(np.int64)


def _arrays_dataset(name: str, source: Path, found: Mapping[str, Any], load: Callable[[Any], NDArray[Any]]) -> Dataset:
    pairs = choose_arrays(source, found)
    parts = [_part(source, found, pair, load) for pair in pairs]
    kinds = [(tuple(part.x.shape[1:]), str(part.x.dtype)) for part in parts]
    if kinds[0] != kinds[-1]:
        raise ValueError(
            f"In {source} {pairs[0][0]} has samples of {kinds[0]} and {pairs[1][0]} of {kinds[1]}: "
            "they should have the same shape and type."
        )
    return Dataset(name, *parts)


def choose_arrays(source: Path, found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Find the arrays of samples and labels of either part, ignoring case."""
    spelled: dict[str, str] = {}
    for key in found:
        if key.lower() in ARRAY_NAMES & spelled.keys():
            raise ValueError(f"{source} has both {spelled[key.lower()]} and {key}: keep one of them.")
        spelled[key.lower()] = key
    begun = [pair for pair in _TRAIN_PAIRS if spelled.keys() & set(pair)]
    if len(begun) == 2:
        raise ValueError(f"{source} has arrays named x or y and others named x_train or y_train: keep one pair.")
    wanted = begun or [_TRAIN_PAIRS[0]]
    if spelled.keys() & set(_TEST_PAIR):
        wanted.append(_TEST_PAIR)
    missing = [key for pair in wanted for key in pair if key not in spelled]
    if missing:
        raise ValueError(
            f"{source} lacks {' and '.join(missing)}; it has {', '.join(found) or 'no arrays'}. "
            "Expected X and y, or x_train and y_train, and for a test part X_test and y_test."
        )
    return [(spelled[x], spelled[y]) for x, y in wanted]


def _part(source: Path, found: Mapping[str, Any], pair: tuple[str, str], load: Callable[[Any], NDArray[Any]]) -> Part:
    inputs, labels = (load(found[key]) for key in pair)
    if not inputs.dtype.isnative and not isinstance(inputs, np.memmap):
        inputs = inputs.astype(inputs.dtype.newbyteorder("="))
    if inputs.dtype.kind not in "biuf" or not 2 <= inputs.ndim <= 4:
        raise ValueError(
            f"{pair[0]} in {source} has shape {inputs.shape} and type {inputs.dtype}; expected numbers of shape "
            "(n, features), (n, height, width) or (n, height, width, channels)."
        )
    if len(inputs) != labels.size or labels.ndim not in (1, 2):  # Keras saves labels as a column
        raise ValueError(
            f"In {source} {pair[0]} has {len(inputs):,} samples and {pair[1]} has shape {labels.shape}: "
            "expected one label per sample."
        )
    try:
        x = _mapped_inputs(inputs) if isinstance(inputs, np.memmap) else layout(as_inputs(inputs), None).contiguous()
        return Part(x, whole_or_text(labels.reshape(-1)))
    except ValueError as error:
        raise ValueError(f"{source}, {pair[0]} and {pair[1]}: {error}") from error


def _mapped_inputs(array: NDArray[Any]) -> Tensor:
    """Check an array that is too large for memory, block by block."""
    if array.dtype not in _MAPPED_TYPES:
        raise ValueError(
            f"X has type {array.dtype} and is too large for memory. "
            "Save it as uint8, float32 or float64, which can be mapped from disk."
        )
    x = torch.from_numpy(array)
    step = max(1, _ARRAY_BLOCK // (x[:1].numel() * x.element_size()))
    for first in range(0, 1 if x.dtype == torch.uint8 else len(x), step):
        as_inputs(x[first : first + step])
    if layout(x[:1], None).shape != x[:1].shape:
        x = x.permute(0, 3, 1, 2)
    return x if x.is_contiguous() else gather(x, torch.arange(len(x)))


def _load_file(path: Path) -> NDArray[Any]:
    check_file(path)
    with explaining(path, "arrays"), path.open("rb") as file:
        shape, order, dtype = array_header(file, path.stat().st_size)
        if math.prod(shape) * dtype.itemsize > memory_limit():
            return np.memmap(file, dtype, mode="c", offset=file.tell(), shape=shape, order=order)
        return np.fromfile(file, dtype).reshape(shape, order=order)


def _load_member(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    limit = memory_limit()
    if info.file_size > limit:
        raise ValueError(
            f"{info.filename} in {path} takes {info.file_size:,} bytes, and one array may take {limit:,} of memory. "
            "Save it as an .npy file, which can be mapped from disk, or set CLDNET_MEMORY_SHARE."
        )
    with explaining(path, "arrays"):
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{info.filename} is compressed in a way that NumPy does not use")
        with archive.open(info) as file:
            shape, order, dtype = array_header(file, info.file_size)
            return np.frombuffer(file.read(), dtype).reshape(shape, order=order)


def array_header(file: IO[bytes], length: int) -> tuple[tuple[int, ...], Any, np.dtype[Any]]:
    """Read an array's shape, order and type, and check them against the file's length before memory is allocated."""
    version = np.lib.format.read_magic(file)
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    if version not in readers:
        raise ValueError(f"version {version} of the format is not known")
    shape, fortran, dtype = readers[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which could carry code: save numbers, and labels as y.astype(str)")
    expected = file.tell() + math.prod(shape) * dtype.itemsize
    if dtype.itemsize == 0 or min(shape, default=0) < 0 or expected != length:
        raise ValueError(f"its header says {shape} of {dtype}, {expected:,} bytes in all, and it has {length:,}")
    return shape, "F" if fortran else "C", dtype


def read_table(path: Path, label: str | None = None) -> Dataset:
    """Read a table of numbers (``.csv``, ``.tsv``, either with ``.gz``, or ``.parquet``) with a column of labels.

    ``label`` names that column; by default it is the one named label, class, target or y. A column named ``split`` with the
    words train and test defines a test part. All other columns are features: numbers or booleans, without missing values.
    The index that pandas writes into Parquet is ignored.
    """
    name, found = path.name[: -len(table_end(path))], read_rows(path, label)
    x, y, tested = found.x, found.y, found.tested
    if tested is None:
        return Dataset(name, Part(x, y))
    train = Part(x[torch.from_numpy(~tested)], y[~tested])
    return Dataset(name, train, Part(x[torch.from_numpy(tested)], y[tested]) if tested.any() else None)


class Rows(NamedTuple):
    """The rows of a table: features, the names of their columns, labels, and which rows are of the test part, if any is."""

    x: Tensor
    names: tuple[str, ...]
    y: NDArray[Any]
    tested: NDArray[np.bool_] | None


def read_rows(path: Path, label: str | None = None) -> Rows:
    """Read a table as `read_table` does, all rows in their order, with the names of the columns."""
    table, columns = _read(path, lambda schema, first_row: choose_columns(path, schema, label, first_row))
    assert columns.label is not None
    labels = column_values(path, table, columns.label, columns)
    with explaining(path, "a table"):
        y = whole_or_text(labels)
    tested = None if columns.split is None else _parts(path, column_values(path, table, columns.split, columns))
    return Rows(_features(path, table, columns), columns.features, y, tested)


def read_features(path: Path, names: Sequence[str] | None) -> tuple[Tensor, tuple[str, ...]]:
    """Read the columns of a table that have some names, in that order; without names all but those of labels and parts."""

    def chosen(schema: Any, first_row: tuple[str, int]) -> Columns:
        present = unique_names(path, schema)
        missing = [name for name in wanted or () if name not in present]
        if missing:
            raise ValueError(f"{path} lacks the columns {_listed(missing)} of the model; it has {_listed(present)}.")
        others = [name for name in present if name.lower() not in (*_LABEL_NAMES, _SPLIT)]
        return _numeric(path, schema, Columns(None, None, tuple(others if wanted is None else wanted), first_row))

    wanted = None if names is None else [name.strip() for name in names]
    table, columns = _read(path, chosen)
    return _features(path, table, columns), columns.features


def _read(path: Path, choose: _Choice) -> tuple[Any, Columns]:
    """Read the columns of a table that a function of its schema and of the place of its first row chooses."""
    end = table_end(path)
    require_pyarrow()
    table, columns = _read_parquet(path, choose) if end == ".parquet" else _read_csv(path, choose)
    if not len(table):
        raise ValueError(f"{path} has no rows below the names of its columns.")
    return table, columns


def _features(path: Path, table: Any, columns: Columns) -> Tensor:
    features = [column_values(path, table, column, columns) for column in columns.features]
    with explaining(path, "a table"):
        return as_inputs(np.column_stack(features))


def table_end(path: Path) -> str:
    """The ending of a table's name, in lower case; raise unless there is such a file and it has one."""
    check_file(path)
    end = next((end for end in TABLE_ENDS if path.name.lower().endswith(end)), None)
    if end is None:
        raise ValueError(f"{path} has an unknown ending; expected one of {', '.join(TABLE_ENDS)}.")
    return end


def require_pyarrow() -> Any:
    """Return pyarrow, or say how to install it."""
    try:
        import pyarrow  # noqa: PLC0415  (an extra that only tables need)
    except (ImportError, RuntimeError) as error:
        raise ImportError('Reading tables needs pyarrow: pip install ".[tables]" in a clone of CLDNet.') from error
    return pyarrow


class Sentences(NamedTuple):
    """The sentences of a table, their labels if it has some, and which are of the test part, if any is."""

    texts: list[str]
    y: NDArray[Any] | None
    tested: NDArray[np.bool_] | None


def is_table(path: str | os.PathLike[str]) -> bool:
    """Whether a file's name has the ending of a table."""
    return os.fspath(path).lower().endswith(TABLE_ENDS)


def has_sentences(path: Path) -> bool:
    """Whether a table has a column named text, sentence, utterance, message or query with values that are not all numbers."""
    names = [name for name in _names(path) if name.lower() in TEXT_NAMES]
    return bool(names) and any(not _is_number(value) for row in _words(path, names) for value in row)


def _is_number(text: str) -> bool:
    """Whether a table of numbers may have such a value."""
    try:
        float(text)
    except ValueError:
        return text.strip().lower() in ("true", "false")
    return True


def read_sentences(
    path: Path, label: str | None = None, text: str | None = None, *, labelled: bool = True
) -> Sentences:
    """Read a table with a column of sentences and, if ``labelled``, one of labels; other columns are ignored.

    ``text`` names the column of sentences, by default the one named text, sentence, utterance, message or query; ``label``
    and a column named ``split`` are as for `read_table`. CSV files are read by Python alone, Parquet by pyarrow.
    """
    names = _names(path)
    wanted = {"text": _column(path, names, text, TEXT_NAMES, "text")}
    if labelled:
        wanted |= {"label": _label_column(path, names, label)}
        split = _split_column(name for name in names if name not in wanted.values())
        wanted |= {} if split is None else {"split": split}
    columns: dict[str, list[str]] = {name: [] for name in wanted.values()}
    for row in _words(path, list(columns)):
        for name, value in zip(columns, row, strict=True):
            columns[name].append(value)
    if not columns[wanted["text"]]:
        raise ValueError(f"{path} has no rows below the names of its columns.")
    if not labelled:
        return Sentences(columns[wanted["text"]], None, None)
    with explaining(path, "a table"):
        y = whole_or_text(_whole_numbers([label.strip() for label in columns[wanted["label"]]]))
    tested = _parts(path, np.array(columns[wanted["split"]], dtype=object)) if "split" in wanted else None
    return Sentences(columns[wanted["text"]], y, tested)


def _names(path: Path) -> list[str]:
    """Names of a table's columns, without blanks around them; raise if two are the same."""
    if table_end(path) == ".parquet":
        require_pyarrow()
        from pyarrow import parquet  # noqa: PLC0415

        with explaining(path, "a table"):
            names = list(parquet.read_schema(path).names)
    else:
        with explaining(path, "a table"), _open_text(path) as file:
            names = next(iter(_lines_of(path, file)), (0, []))[1]
    names = [name.strip() for name in names]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{path} has more than one column named {_listed(twice)}: rename them.")
    return names


def _words(path: Path, names: list[str]) -> Iterator[list[str]]:
    """Read columns as text, row by row; raise at the first missing value, with its place."""
    parquet = table_end(path) == ".parquet"
    limit, size = memory_limit(), 0
    for number, row in (_parquet_words if parquet else _csv_words)(path, names):
        for name, value in zip(names, row, strict=True):
            if value is None or not value.strip():
                place = f"{'row' if parquet else 'line'} {number:,}"
                raise ValueError(
                    f"{path}, column {name!r}: a value is missing in {place}. Fill it in, or drop that row."
                )
            size += len(value)
        if size > limit:
            raise ValueError(f"{path} takes more than the {limit:,} bytes of memory allowed: split it.")
        yield row


def _parquet_words(path: Path, names: list[str]) -> Iterator[tuple[int, list[Any]]]:
    from pyarrow import parquet, string  # noqa: PLC0415

    with explaining(path, "a table"), parquet.ParquetFile(path, page_checksum_verification=True) as file:
        table = stripped(_collect(file.schema_arrow, file.iter_batches()))
        columns = [table.column(name).cast(string()).to_pylist() for name in names]
    yield from enumerate(map(list, zip(*columns, strict=True)), 1)


def _csv_words(path: Path, names: list[str]) -> Iterator[tuple[int, list[Any]]]:
    with explaining(path, "a table"), _open_text(path) as file:
        lines = _lines_of(path, file)
        head = [name.strip() for name in next(lines)[1]]
        places = [head.index(name) for name in names]
        for number, row in lines:
            if len(row) != len(head):
                raise ValueError(f"line {number:,} has {len(row)} columns and the first has {len(head)}")
            yield number, [row[place] for place in places]


@contextmanager
def _open_text(path: Path) -> Iterator[IO[str]]:
    """Open a text file in UTF-8, with or without a byte order mark, compressed or not."""
    with path.open("rb") as raw:
        zipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        with gzip.open(raw) if zipped else raw as file:
            yield io.TextIOWrapper(file, "utf-8-sig", newline="")


def _lines_of(path: Path, file: IO[str]) -> Iterator[tuple[int, list[str]]]:
    """The lines of a CSV file that are not empty, with the number of the last line of each."""
    reader = csv.reader(file, delimiter="\t" if ".tsv" in path.name.lower() else ",", strict=True)
    for row in reader:
        if row:
            yield reader.line_num, row


def _whole_numbers(labels: list[str]) -> list[str] | list[int]:
    """Labels as integers if all are written like some: not 01, which is text."""
    whole = all(re.fullmatch(_WHOLE, text) for text in labels)
    return [int(text) for text in labels] if whole else labels


@dataclass(frozen=True)
class Columns:
    """What each column is for, and how an editor numbers the first row."""

    label: str | None
    split: str | None
    features: tuple[str, ...]
    first_row: tuple[str, int]

    @property
    def names(self) -> set[str]:
        """Names of all these columns."""
        return {name for name in (self.label, self.split, *self.features) if name is not None}


#: Chooses columns from a table's schema and the place of its first row.
_Choice = Callable[[Any, tuple[str, int]], Columns]


def _read_csv(path: Path, choose: _Choice) -> tuple[Any, Columns]:
    with explaining(path, "a table"), open_csv(path) as first:
        schema = first.schema
        named = stripped(schema.empty_table()).schema
    columns = choose(named, ("line", 2))
    column_types = csv_types(named, columns)
    as_written = dict(zip(named.names, schema.names, strict=True))
    with (
        explaining(path, "a table"),
        open_csv(path, {as_written[name]: kind for name, kind in column_types.items()}) as batches,
    ):
        table = stripped(_collect(batches.schema, batches))
    return (table if columns.label not in column_types else with_whole_labels(table, columns.label) or table), columns


def open_csv(
    path: Path | str, column_types: Mapping[str, Any] | None = None, source: Any = None, **options: Any
) -> Any:
    """Open a CSV file to be read in batches, whose types are guessed from the first block.

    ``source`` is a binary file, if ``path`` is only its name, and ``options`` are those of `pyarrow.csv.ReadOptions`.
    """
    from pyarrow import csv as arrow_csv  # noqa: PLC0415
    from pyarrow import input_stream  # noqa: PLC0415

    if source is None:
        with open(path, "rb") as file:
            start = file.read(2)
    else:
        source.seek(0)
        start = source.read(2)
        source.seek(0)
    return arrow_csv.open_csv(
        input_stream(str(path) if source is None else source, compression="gzip" if start == b"\x1f\x8b" else None),
        read_options=arrow_csv.ReadOptions(**{"block_size": _CSV_BLOCK, **options}),
        parse_options=arrow_csv.ParseOptions(delimiter=_delimiter(path)),
        convert_options=arrow_csv.ConvertOptions(column_types=column_types),
    )


def _delimiter(path: Path | str) -> str:
    return "\t" if str(path).lower().endswith((".tsv", ".tsv.gz")) else ","


def csv_types(schema: Any, columns: Columns) -> dict[str, Any]:
    """Types of a CSV file's columns where the first block may mislead.

    A column may begin with integers and go on with others; labels that look like integers may be text: 01 and 1.
    """
    from pyarrow import float64, string, types  # noqa: PLC0415

    found = {name: float64() for name in columns.features if not types.is_boolean(schema.field(name).type)}
    if columns.label is not None and types.is_integer(schema.field(columns.label).type):
        found[columns.label] = string()
    return found


def with_whole_labels(table: Any, label: str) -> Any | None:
    """A table whose labels are integers, if all are written like some, else nothing: 01 is text."""
    from pyarrow import compute, int64  # noqa: PLC0415

    labels = compute.utf8_trim_whitespace(table.column(label))
    if not compute.all(compute.match_substring_regex(labels, rf"\A(?:{_WHOLE})\z"), min_count=0).as_py():
        return None
    return table.set_column(table.column_names.index(label), label, labels.cast(int64()))


def _read_parquet(path: Path, choose: _Choice) -> tuple[Any, Columns]:
    from pyarrow import parquet  # noqa: PLC0415

    with explaining(path, "a table"):
        file = parquet.ParquetFile(path, page_checksum_verification=True)
        named = stripped(file.schema_arrow.empty_table()).schema
    with file:
        columns = choose(named, ("row", 1))
        with explaining(path, "a table"):
            return stripped(_collect(file.schema_arrow, file.iter_batches())), columns


def stripped(table: Any) -> Any:
    """A table whose columns have no blanks around their names."""
    return table.rename_columns([name.strip() for name in table.column_names])


def _collect(schema: Any, batches: Iterable[Any]) -> Any:
    from pyarrow import Table  # noqa: PLC0415

    limit, size, collected = memory_limit(), 0, []
    for batch in batches:
        batch.validate(full=True)  # Parquet's reader takes text on trust
        size += batch.nbytes
        if size > limit:
            raise ValueError(
                f"it takes more than the {limit:,} bytes of memory allowed; "
                "save it as X.npy and y.npy, which can be mapped from disk, or set CLDNET_MEMORY_SHARE"
            )
        collected.append(batch)
    return Table.from_batches(collected, schema)


def unique_names(path: Path | str, schema: Any) -> list[str]:
    """Names of a table's columns, without the index of pandas; raise for a column without a name or with another's."""
    with explaining(path, "a table"):
        names = [name for name in schema.names if not name.startswith("__index_level_")]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{path} has more than one column named {_listed(twice)}: rename them.")
    if "" in names:
        raise ValueError(f"{path} has a column without a name. If it counts the rows, save the table without an index.")
    return names


def choose_columns(path: Path | str, schema: Any, label: str | None, first_row: tuple[str, int]) -> Columns:
    """Decide what each column is for, before the table is read."""
    names = unique_names(path, schema)
    label = _label_column(path, names, label)
    kinds = {name: _kind(schema.field(name).type) for name in names}
    split = _split_column(name for name in names if name != label and kinds[name].endswith("text"))
    if kinds[label].removeprefix("categories of ") not in ("text", "numbers"):
        raise ValueError(f"The labels of {path}, column {label!r}, are {kinds[label]}; expected text or integers.")
    return _numeric(
        path, schema, Columns(label, split, tuple(name for name in names if name not in (label, split)), first_row)
    )


def _numeric(path: Path | str, schema: Any, columns: Columns) -> Columns:
    """Refuse features that are not numbers, or none."""
    kinds = {name: _kind(schema.field(name).type) for name in columns.features}
    bad = [name for name in columns.features if kinds[name] != "numbers"]
    if bad:
        found = ", ".join(sorted({kinds[name] for name in bad}))
        sentences = ""
        if kinds[bad[0]] == "text":
            sentences = f", or name the column of sentences with text={bad[0]!r} (on the command line --text)"
        raise ValueError(
            f"{path} has features that are not numbers ({found}): {_listed(bad)}. Encode or drop them{sentences}."
        )
    if not columns.features:
        raise ValueError(f"{path} has only a label column; expected numeric feature columns as well.")
    return columns


def _split_column(names: Iterable[str]) -> str | None:
    """The column that says which rows are for training and which for tests, if there is one."""
    return next((name for name in names if name.lower() == _SPLIT), None)


def _label_column(path: Path | str, names: list[str], label: str | None) -> str:
    return _column(path, names, label, _LABEL_NAMES, "label")


def _column(path: Path | str, names: list[str], given: str | None, usual: Sequence[str], what: str) -> str:
    """The column that a user named, or the only one with one of the usual names."""
    if given is not None:
        if given not in names:
            known = nearest_names(given, names[:_MOST_NAMES])
            raise ValueError(f"{path} has no column {given!r}. {known}{_other_separator(names)}")
        return given
    found = [name for name in names if name.lower() in usual]
    if len(found) != 1:
        raise ValueError(
            f"{path} has {len(found) or 'no'} columns named {', '.join(usual[:-1])} or {usual[-1]}: "
            f"name the {what} column with {what}=… (on the command line --{what}). Its columns are {_listed(names)}."
            f"{_other_separator(names)}"
        )
    return found[0]


def _other_separator(names: list[str]) -> str:
    """What to do if a table seems to have one column only because others are separated in another way."""
    if len(names) != 1 or not re.search(r"[;|,\t]", names[0]):
        return ""
    return " Columns should be separated by commas, in .tsv files by tabs: save the table so."


def is_text(arrow_type: Any) -> bool:
    """Whether a column of some type has text, perhaps as categories."""
    return _kind(arrow_type).endswith("text")


def _kind(arrow_type: Any) -> str:
    """Name a column's type in plain words."""
    from pyarrow import types  # noqa: PLC0415

    if types.is_dictionary(arrow_type):
        return f"categories of {_kind(arrow_type.value_type)}"
    if types.is_string(arrow_type) or types.is_large_string(arrow_type):
        return "text"
    numbers = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
    return "numbers" if any(check(arrow_type) for check in numbers) else str(arrow_type)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(map(repr, names[:_MOST_NAMES])) + more


def column_values(path: Path | str, table: Any, name: str, columns: Columns) -> NDArray[Any]:
    """Return a column as an array, or raise with the place of its first missing value."""
    from pyarrow import float64, types  # noqa: PLC0415

    column = table.column(name)
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_decimal(column.type) or types.is_null(column.type):
        column = column.cast(float64())
    values: NDArray[Any] = column.to_numpy()
    if values.dtype.kind in "biuf" and not column.null_count and np.isfinite(values).all():
        return values  # most columns by far
    if values.dtype.kind == "O":
        values = np.array([value.strip() if isinstance(value, str) else value for value in values], dtype=object)
    missing = column.is_null().to_numpy() if column.null_count else np.zeros(1, dtype=bool)
    if values.dtype.kind == "O":
        missing = missing | (values == "")
    infinite = ~np.isfinite(values) if values.dtype.kind == "f" else missing
    for bad, what in ((missing, "missing"), (infinite, "infinite or NaN")):
        if bad.any():
            word, first = columns.first_row
            raise ValueError(
                f"{path}, column {name!r}: {bad.sum():,} values are {what}, the first in {word} {first + bad.argmax():,}. "
                "Fill in the values, or drop those rows."
            )
    return values


def tested_rows(path: Path | str, words: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows are of the test part, by the words of the column named split."""
    found = {word: word.strip().lower() for word in set(words.tolist())}
    unknown = sorted(word for word, part in found.items() if part not in ("train", "test"))
    if unknown:
        raise ValueError(
            f"{path} says {_listed(unknown)} in its column {_SPLIT!r}; expected train or test. A validation part is cut "
            "from the training rows when a stream is made, so mark its rows as train."
        )
    return np.array([found[word] == "test" for word in words.tolist()], dtype=bool)


def _parts(path: Path, words: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows of a whole table are of the test part; raise if none is left for training."""
    tested = tested_rows(path, words)
    if tested.all():
        raise ValueError(f"{path} has no row with train in its column {_SPLIT!r}.")
    return tested


@contextmanager
def explaining(path: Path | str, what: str) -> Iterator[None]:
    """Turn whatever the readers of damaged files raise into an error that names the file."""
    try:
        yield
    except Exception as error:  # on damaged files zipfile, zlib, numpy and pyarrow raise nearly anything
        if isinstance(error, UnicodeDecodeError) or "to string: invalid UTF8" in str(error):
            raise ValueError(f"{path} is not text in UTF-8: save it as UTF-8.") from error
        raise ValueError(f"{path} cannot be read as {what}: {str(error).rstrip('.'):.300}.") from error
