"""Files of your own: NumPy's ``.npz`` and ``.npy``, and tables (CSV, Parquet) with a column of labels. Nothing is unpickled."""

from __future__ import annotations

import math
import re
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

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
_KNOWN = {name for pair in (*_TRAIN_PAIRS, _TEST_PAIR) for name in pair}
_MAPPED_TYPES = (np.uint8, np.float32, np.float64)
_ARRAY_BLOCK = 1 << 26
_LARGEST_WHOLE = 2**53
_LAST_LETTER = 0x10FFFF
_SURROGATES = 0xD800 >> 11
_ENDS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
_LABEL_NAMES = ("label", "class", "target", "y")
_SPLIT = "split"
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
        if path.stem.lower() not in _KNOWN:
            raise ValueError(f"{path} is one array; expected X.npy with y.npy beside it. Rename it, or save an .npz.")
        path = path.parent
    if path.is_dir():
        files = {file.stem: file for file in sorted(path.iterdir()) if file.suffix.lower() == ".npy"}
        return _arrays_dataset(path.resolve().name, path, files, _load_file)
    check_file(path)
    with _explaining(path, "arrays"):
        archive = zipfile.ZipFile(path)
    with archive:
        members = {info.filename[:-4]: info for info in archive.infolist() if info.filename.endswith(".npy")}
        return _arrays_dataset(path.stem, path, members, lambda info: _load_member(path, archive, info))


def _whole_or_text(labels: Any) -> NDArray[Any]:
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
    pairs = _choose(source, found)
    parts = [_part(source, found, pair, load) for pair in pairs]
    kinds = [(tuple(part.x.shape[1:]), str(part.x.dtype)) for part in parts]
    if kinds[0] != kinds[-1]:
        raise ValueError(
            f"In {source} {pairs[0][0]} has samples of {kinds[0]} and {pairs[1][0]} of {kinds[1]}: "
            "they should have the same shape and type."
        )
    return Dataset(name, *parts)


def _choose(source: Path, found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Find the arrays of samples and labels of either part, ignoring case."""
    spelled: dict[str, str] = {}
    for key in found:
        if key.lower() in _KNOWN & spelled.keys():
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
        return Part(x, _whole_or_text(labels.reshape(-1)))
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
    with _explaining(path, "arrays"), path.open("rb") as file:
        shape, order, dtype = _header(file, path.stat().st_size)
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
    with _explaining(path, "arrays"):
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{info.filename} is compressed in a way that NumPy does not use")
        with archive.open(info) as file:
            shape, order, dtype = _header(file, info.file_size)
            return np.frombuffer(file.read(), dtype).reshape(shape, order=order)


def _header(file: IO[bytes], length: int) -> tuple[tuple[int, ...], Any, np.dtype[Any]]:
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
    check_file(path)
    end = next((end for end in _ENDS if path.name.lower().endswith(end)), None)
    if end is None:
        raise ValueError(f"{path} has an unknown ending; expected one of {', '.join(_ENDS)}.")
    try:
        import pyarrow  # noqa: F401, PLC0415  (an extra that only tables need)
    except (ImportError, RuntimeError) as error:
        raise ImportError('Reading tables needs pyarrow: pip install ".[tables]" in a clone of CLDNet.') from error
    delimiter = "\t" if end.startswith(".tsv") else ","
    table, columns = _read_parquet(path, label) if end == ".parquet" else _read_csv(path, delimiter, label)
    if not len(table):
        raise ValueError(f"{path} has no rows below the names of its columns.")
    features = [_values(path, table, column, columns) for column in columns.features]
    labels = _values(path, table, columns.label, columns)
    with _explaining(path, "a table"):
        x, y = as_inputs(np.column_stack(features)), _whole_or_text(labels)
    name = path.name[: -len(end)]
    if columns.split is None:
        return Dataset(name, Part(x, y))
    tested = _test_rows(path, _values(path, table, columns.split, columns))
    train = Part(x[torch.from_numpy(~tested)], y[~tested])
    return Dataset(name, train, Part(x[torch.from_numpy(tested)], y[tested]) if tested.any() else None)


@dataclass(frozen=True)
class _Columns:
    """What each column is for, and how an editor numbers the first row."""

    label: str
    split: str | None
    features: tuple[str, ...]
    first_row: tuple[str, int]


def _read_csv(path: Path, delimiter: str, label: str | None) -> tuple[Any, _Columns]:
    from pyarrow import csv, float64, input_stream, int64, string, types  # noqa: PLC0415

    with path.open("rb") as file:
        compression = "gzip" if file.read(2) == b"\x1f\x8b" else None

    def read(column_types: dict[str, Any]) -> Any:
        return csv.open_csv(
            input_stream(str(path), compression=compression),
            read_options=csv.ReadOptions(block_size=_CSV_BLOCK),
            parse_options=csv.ParseOptions(delimiter=delimiter),
            convert_options=csv.ConvertOptions(column_types=column_types),
        )

    with _explaining(path, "a table"), read({}) as first:
        schema = first.schema
    columns = _columns(path, schema, label, ("line", 2))
    # A column may begin with integers and go on with others; labels that look like integers may be text: 01 and 1.
    column_types = {name: float64() for name in columns.features if not types.is_boolean(schema.field(name).type)}
    if types.is_integer(schema.field(columns.label).type):
        column_types[columns.label] = string()
    with _explaining(path, "a table"), read(column_types) as batches:
        table = _collect(batches.schema, batches)
    labels = table.column(columns.label)
    if columns.label in column_types and all(re.fullmatch("0|-?[1-9][0-9]{0,18}", text) for text in labels.to_pylist()):
        table = table.set_column(table.column_names.index(columns.label), columns.label, labels.cast(int64()))
    return table, columns


def _read_parquet(path: Path, label: str | None) -> tuple[Any, _Columns]:
    from pyarrow import parquet  # noqa: PLC0415

    with _explaining(path, "a table"):
        file = parquet.ParquetFile(path, page_checksum_verification=True)
    with file:
        columns = _columns(path, file.schema_arrow, label, ("row", 1))
        with _explaining(path, "a table"):
            return _collect(file.schema_arrow, file.iter_batches()), columns


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


def _columns(path: Path, schema: Any, label: str | None, first_row: tuple[str, int]) -> _Columns:
    """Decide what each column is for, before the table is read."""
    with _explaining(path, "a table"):
        names = [name for name in schema.names if not name.startswith("__index_level_")]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{path} has more than one column named {_listed(twice)}: rename them.")
    if "" in names:
        raise ValueError(f"{path} has a column without a name. If it counts the rows, save the table without an index.")
    label = _label_column(path, names, label)
    kinds = {name: _kind(schema.field(name).type) for name in names}
    split = _SPLIT if label != _SPLIT and kinds.get(_SPLIT) in ("text", "categories of text") else None
    if kinds[label].removeprefix("categories of ") not in ("text", "numbers"):
        raise ValueError(f"The labels of {path}, column {label!r}, are {kinds[label]}; expected text or integers.")
    features = [name for name in names if name not in (label, split)]
    bad = [name for name in features if kinds[name] != "numbers"]
    if bad:
        found = ", ".join(sorted({kinds[name] for name in bad}))
        raise ValueError(f"{path} has features that are not numbers ({found}): {_listed(bad)}. Encode or drop them.")
    if not features:
        raise ValueError(f"{path} has only a label column; expected numeric feature columns as well.")
    return _Columns(label, split, tuple(features), first_row)


def _label_column(path: Path, names: list[str], label: str | None) -> str:
    if label is not None:
        if label not in names:
            raise ValueError(f"{path} has no column {label!r}. {nearest_names(label, names[:_MOST_NAMES])}")
        return label
    found = [name for name in names if name.lower() in _LABEL_NAMES]
    if len(found) != 1:
        raise ValueError(
            f"{path} has {len(found) or 'no'} columns named {', '.join(_LABEL_NAMES[:-1])} or {_LABEL_NAMES[-1]}: "
            f"name the label column with label=…. Its columns are {_listed(names)}."
        )
    return found[0]


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


def _values(path: Path, table: Any, name: str, columns: _Columns) -> NDArray[Any]:
    """Return a column as an array, or raise with the place of its first missing value."""
    from pyarrow import float64, types  # noqa: PLC0415

    column = table.column(name)
    if types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if types.is_decimal(column.type) or types.is_null(column.type):
        column = column.cast(float64())
    values: NDArray[Any] = column.to_numpy()
    missing = column.is_null().to_numpy() | ((values == "") if values.dtype.kind == "O" else False)
    infinite = ~np.isfinite(values) if values.dtype.kind == "f" else missing
    for bad, what in ((missing, "missing"), (infinite, "infinite or NaN")):
        if bad.any():
            word, first = columns.first_row
            raise ValueError(
                f"{path}, column {name!r}: {bad.sum():,} values are {what}, the first in {word} {first + bad.argmax():,}. "
                "Fill in the values, or drop those rows."
            )
    return values


def _test_rows(path: Path, words: NDArray[Any]) -> NDArray[np.bool_]:
    found = {word: word.strip().lower() for word in set(words.tolist())}
    unknown = sorted(word for word, part in found.items() if part not in ("train", "test"))
    if unknown:
        raise ValueError(
            f"{path} says {_listed(unknown)} in its column {_SPLIT!r}; expected train or test. A validation part is cut "
            "from the training rows when a stream is made, so mark its rows as train."
        )
    tested = np.array([found[word] == "test" for word in words.tolist()])
    if tested.all():
        raise ValueError(f"{path} has no row with train in its column {_SPLIT!r}.")
    return tested


@contextmanager
def _explaining(path: Path, what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # on damaged files zipfile, zlib, numpy and pyarrow raise nearly anything
        raise ValueError(f"{path} cannot be read as {what}: {str(error).rstrip('.'):.300}.") from error
