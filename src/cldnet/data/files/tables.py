"""Tables with a column of labels: CSV and Parquet, through pyarrow."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from cldnet.data.arrays import as_inputs
from cldnet.data.dataset import Dataset, Part
from cldnet.data.files.arrayfiles import whole_or_text
from cldnet.data.files.regular import check_file
from cldnet.data.memory import memory_limit
from cldnet.names import nearest_names

__all__ = ["read_table"]

_ENDS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
_LABEL_NAMES = ("label", "class", "target", "y")
_SPLIT = "split"
_BLOCK = 1 << 24  # types are guessed from a file's first block
_MOST_NAMES = 20


def read_table(path: Path, label: str | None = None) -> Dataset:
    r"""Read a table of numbers with a column of labels.

    Parameters
    ----------
    path : Path
        A file that ends in ``.csv``, ``.tsv``, either followed by ``.gz``, or ``.parquet``, with names for its columns.
    label : str, optional
        The column of the labels; without it the one named label, class, target or y. Labels are text or whole numbers.

    Returns
    -------
    Dataset
        One input a row. A column named ``split`` with the words train and test makes a test part; all other columns are
        features: numbers or booleans, without gaps. An index that pandas has put into a Parquet file is left out.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> path = Path(folder.name) / "leaves.csv"
    >>> _ = path.write_text("length,width,class\n1.5,2,oak\n3,1,elm\n")
    >>> leaves = read_table(path)
    >>> leaves.train.x.tolist(), leaves.train.y
    ([[1.5, 2.0], [3.0, 1.0]], array(['oak', 'elm'], dtype='<U3'))
    >>> folder.cleanup()
    """
    check_file(path)
    end = next((end for end in _ENDS if path.name.lower().endswith(end)), None)
    if end is None:
        raise ValueError(f"{path} has an unknown ending; expected one of {', '.join(_ENDS)}.")
    _check_pyarrow()
    delimiter = "\t" if end.startswith(".tsv") else ","
    table, columns = _read_parquet(path, label) if end == ".parquet" else _read_csv(path, delimiter, label)
    return _dataset(path, path.name[: -len(end)], table, columns)


@dataclass(frozen=True)
class _Columns:
    """The names of the columns by what they are for, and how an editor numbers the first row."""

    label: str
    split: str | None
    features: tuple[str, ...]
    first_row: tuple[str, int]


def _check_pyarrow() -> None:
    try:
        import pyarrow  # noqa: F401, PLC0415  (an extra that only tables need)
    except (ImportError, RuntimeError) as error:
        raise ImportError('Reading tables needs pyarrow: pip install "cldnet[tables]".') from error


def _read_csv(path: Path, delimiter: str, label: str | None) -> tuple[Any, _Columns]:
    from pyarrow import csv, float64, input_stream, string, types  # noqa: PLC0415

    with path.open("rb") as file:
        compression = "gzip" if file.read(2) == b"\x1f\x8b" else None

    def read(column_types: dict[str, Any], only: Sequence[str] = ()) -> Any:
        return csv.open_csv(
            input_stream(str(path), compression=compression),
            read_options=csv.ReadOptions(block_size=_BLOCK),
            parse_options=csv.ParseOptions(delimiter=delimiter),
            convert_options=csv.ConvertOptions(column_types=column_types, include_columns=list(only)),
        )

    with _reason_in_words(path), read({}) as first:
        schema = first.schema
    columns = _columns(path, schema, label, ("line", 2))
    # A column may begin with whole numbers and go on with others.
    open_types = [name for name in columns.features if not types.is_boolean(schema.field(name).type)]
    with _reason_in_words(path), read(dict.fromkeys(open_types, float64())) as batches:
        table = _collect(batches.schema, batches)
    if types.is_integer(schema.field(columns.label).type):
        with _reason_in_words(path), read({columns.label: string()}, [columns.label]) as batches:
            table = _as_written(table, columns.label, _collect(batches.schema, batches))
    return table, columns


def _as_written(table: Any, label: str, text: Any) -> Any:
    """Take labels as text where they only look like numbers: 01 and 1 are two classes."""
    written = text.column(label).to_pylist()
    plain = all(value == str(int(value)) for value in written if value)
    if plain or table.column(label).null_count:
        return table
    return table.set_column(table.column_names.index(label), label, text.column(label))


def _read_parquet(path: Path, label: str | None) -> tuple[Any, _Columns]:
    from pyarrow import parquet  # noqa: PLC0415

    with _reason_in_words(path):
        file = parquet.ParquetFile(path, page_checksum_verification=True)
    with file:
        columns = _columns(path, file.schema_arrow, label, ("row", 1))
        with _reason_in_words(path):
            return _collect(file.schema_arrow, file.iter_batches()), columns


def _collect(schema: Any, batches: Iterable[Any]) -> Any:
    from pyarrow import Table  # noqa: PLC0415

    limit, size, collected = memory_limit(), 0, []
    for batch in batches:
        batch.validate(full=True)  # Parquet's reader takes text on trust
        size += batch.nbytes
        if size > limit:
            raise ValueError(
                f"it takes more than the {limit:,} bytes of memory that it may; "
                "save it as X.npy and y.npy, which can be mapped from disk, or set CLDNET_MEMORY_SHARE"
            )
        collected.append(batch)
    return Table.from_batches(collected, schema)


@contextmanager
def _reason_in_words(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # pyarrow has a dozen kinds for damaged files
        raise ValueError(f"{path} cannot be read as a table: {str(error).rstrip('.')}.") from error


def _columns(path: Path, schema: Any, label: str | None, first_row: tuple[str, int]) -> _Columns:
    """Find out what each column is for, before the table is read."""
    with _reason_in_words(path):
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
        raise ValueError(f"The labels of {path}, column {label!r}, are {kinds[label]}; expected text or whole numbers.")
    features = [name for name in names if name not in (label, split)]
    bad = [name for name in features if kinds[name] != "numbers"]
    if bad:
        found = ", ".join(sorted({kinds[name] for name in bad}))
        raise ValueError(f"{path} has features that are no numbers ({found}): {_listed(bad)}. Encode or drop them.")
    if not features:
        raise ValueError(f"{path} has no columns but its labels; expected features, which are numbers.")
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
            f"say which one has the labels. Its columns are {_listed(names)}."
        )
    return found[0]


def _kind(arrow_type: Any) -> str:
    """Name the type of a column in words that a reader of messages knows."""
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


def _dataset(path: Path, name: str, table: Any, columns: _Columns) -> Dataset:
    if not len(table):
        raise ValueError(f"{path} has no rows below the names of its columns.")
    features = [_values(path, table, column, columns) for column in columns.features]
    together = np.empty((len(table), len(features)), np.result_type(*features))
    for position, values in enumerate(features):
        together[:, position] = values
    labels = _values(path, table, columns.label, columns)
    with _reason_in_words(path):
        x, y = as_inputs(together), whole_or_text(labels)
    if columns.split is None:
        return Dataset(name, Part(x, y))
    tested = _test_rows(path, _values(path, table, columns.split, columns))
    train = Part(x[torch.from_numpy(~tested)], y[~tested])
    return Dataset(name, train, Part(x[torch.from_numpy(tested)], y[tested]) if tested.any() else None)


def _values(path: Path, table: Any, name: str, columns: _Columns) -> NDArray[Any]:
    """Return a column as an array, or say where its first gap is."""
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
                "Fill in or drop those rows."
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
