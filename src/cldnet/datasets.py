"""Labelled data of your own, as `cldnet learn` reads them: folders of photos or texts, tables of sentences or numbers.

A folder is read in batches, so it may be larger than memory. Files that cannot be read are left out and named.
"""

from __future__ import annotations

import codecs
import logging
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from cldnet.data.files import has_sentences, is_table, read_rows, read_sentences
from cldnet.data.images.folders import Photo, Tree, holds_texts, list_photos, list_texts
from cldnet.text import shown

__all__ = ["Batch", "LabelledData", "Photos", "Rows", "Sentences", "Texts", "folder", "load", "table"]

#: Samples that are read at once.
BATCH = 256
#: Bytes of a text file that are read: more than any encoder takes.
_MOST_TEXT = 1 << 16
_NAMED = 10
_log = logging.getLogger("cldnet")


class Batch(NamedTuple):
    """Some samples: inputs for a classifier, their labels, and what each sample is called."""

    X: Any
    y: list[Any]
    names: list[str]


class Skipped(NamedTuple):
    """A file that could not be read, and why."""

    name: str
    reason: str


@dataclass(repr=False)
class LabelledData(ABC):
    """Labelled samples on disk. ``X`` and ``y`` read all of them, `batches` some at a time.

    Attributes
    ----------
    path : Path
        The folder or the file.
    labels : list
        The label of every sample, readable or not.
    test : LabelledData or None
        The samples of the test part, if there is one; they are not among these.
    skipped : list of Skipped
        The files that could not be read, known after reading.
    notes : list of str
        What else is worth knowing, such as class folders without a file.
    """

    #: What one sample is called.
    noun: ClassVar[str] = "sample"
    path: Path
    labels: list[Any]
    test: Self | None = None
    skipped: list[Skipped] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        about = f"path={str(self.path)!r}, {self.noun}s={len(self)}, classes={len({*self.labels})}"
        return f"{type(self).__name__}({about})"

    @abstractmethod
    def batches(self, size: int = BATCH, on_progress: Callable[[int, int], None] | None = None) -> Iterator[Batch]:
        """Read the samples in batches of at most ``size``; raise if none can be read.

        ``on_progress`` is called with the number of samples read, and of all.
        """

    @property
    def X(self) -> Any:
        """The inputs of all samples that can be read."""
        return self._all.X

    @property
    def y(self) -> NDArray[Any]:
        """Their labels."""
        return np.array(self._all.y)

    @cached_property
    def _all(self) -> Batch:
        found = [*self.batches()]
        if self.skipped:
            _log.warning("%s", self.describe_skipped())
        whole = Batch(found[0].X, [*found[0].y], [*found[0].names])
        for batch in found[1:]:
            whole.y.extend(batch.y)
            whole.names.extend(batch.names)
        return whole if len(found) == 1 else whole._replace(X=self._joined([batch.X for batch in found]))

    @staticmethod
    def _joined(pieces: list[Any]) -> Any:
        return np.concatenate(pieces)

    def describe_skipped(self) -> str:
        """Name the files that could not be read, for a message."""
        named = ", ".join(f"{shown(each.name)} ({each.reason})" for each in self.skipped[:_NAMED])
        return named + (f", and {len(self.skipped) - _NAMED:,} more" if len(self.skipped) > _NAMED else "")


@dataclass(repr=False)
class _Files(LabelledData):
    """Files of one folder per class."""

    tree: Tree = field(kw_only=True)
    files: Sequence[Photo] = field(kw_only=True)

    @classmethod
    def listed(cls, path: Path, tree: Tree, **options: Any) -> Self:
        """The training files of a tree, with its test files as ``test``."""
        train, tested = (
            cls(path, [file.label for file in files], tree=tree, files=files, **options)
            for files in ([file for file in tree.photos if file.test == test] for test in (False, True))
        )
        train.notes = [f"In {str(path)!r}, {gap}." for gap in tree.empty]
        tested.notes = [*train.notes, *(f"In {str(path)!r}, {gap}." for gap in tree.untested)]
        if tree.ignored:
            were = "other file was" if tree.ignored == 1 else "other files were"
            a_file = "an image's" if tree.noun == "image" else "a text's"
            note = f"{tree.ignored:,} {were} skipped: hidden, outside the class folders, or without {a_file} file name."
            train.notes.append(note)
            tested.notes.append(note)
        train.test = tested if tested.files else None
        return train

    def batches(self, size: int = BATCH, on_progress: Callable[[int, int], None] | None = None) -> Iterator[Batch]:
        """Read the files in batches of at most ``size``; raise if none can be read."""
        tell = on_progress or (lambda done, total: None)
        self.skipped = []
        tell(0, len(self))
        for first in range(0, len(self), size):
            part = self.files[first : first + size]
            X, places = self._read(part)
            if places:
                yield Batch(X, [part[at].label for at in places], [self._name(part[at]) for at in places])
            tell(first + len(part), len(self))
        if len(self.skipped) == len(self):
            raise ValueError(
                f"None of the {len(self):,} {self.noun}s under {str(self.path)!r} can be read: {self.describe_skipped()}."
            )

    def _name(self, file: Photo) -> str:
        return (self.tree.folder / file.name).relative_to(self.path.expanduser()).as_posix()

    @abstractmethod
    def _read(self, files: Sequence[Photo]) -> tuple[Any, list[int]]:
        """Read some files: the inputs, and the places of those that can be read; note the others as skipped."""


@dataclass(repr=False)
class Photos(_Files):
    """Photos in one folder per class, as uint8 images ``(n, 3, size, size)``: the middle of each, whatever its shape."""

    noun = "photo"
    size: int = 224

    def _read(self, files: Sequence[Photo]) -> tuple[NDArray[np.uint8], list[int]]:
        from cldnet.data.images.decode import cut_from, read_photos  # noqa: PLC0415  (needs Pillow)

        read = read_photos([self.tree.folder / file.name for file in files], self.size, cut_from(self.size))
        self.skipped += [Skipped(bad.path, bad.reason) for bad in read.bad]
        return read.x, [int(place) for place in read.places]


@dataclass(repr=False)
class Texts(_Files):
    """Text files in one folder per class: each is one sentence to the encoder."""

    noun = "text"

    def _read(self, files: Sequence[Photo]) -> tuple[list[str], list[int]]:
        texts, places = [], []
        for place, file in enumerate(files):
            path = self.tree.folder / file.name
            try:
                texts.append(read_text(path))
                places.append(place)
            except (OSError, ValueError) as error:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                self.skipped.append(Skipped(str(path), reason))
        return texts, places

    @staticmethod
    def _joined(pieces: list[list[str]]) -> list[str]:
        return [text for piece in pieces for text in piece]


@dataclass(repr=False)
class Sentences(LabelledData):
    """The sentences of a table."""

    noun = "text"
    texts: list[str] = field(default_factory=list)

    def batches(self, size: int = BATCH, on_progress: Callable[[int, int], None] | None = None) -> Iterator[Batch]:
        """Yield the sentences in batches of at most ``size``."""
        tell = on_progress or (lambda done, total: None)
        tell(0, len(self))
        for first in range(0, len(self), size):
            part = slice(first, first + size)
            yield Batch(self.texts[part], self.labels[part], self.texts[part])
            tell(min(first + size, len(self)), len(self))

    @staticmethod
    def _joined(pieces: list[list[str]]) -> list[str]:
        return [text for piece in pieces for text in piece]


@dataclass(repr=False)
class Rows(LabelledData):
    """The rows of a table of numbers, with the names of its columns."""

    noun = "row"
    features: Any = None  # a pyarrow.Table, which the classifier takes with its columns' names
    numbers: list[int] = field(default_factory=list)

    def batches(
        self, size: int | None = None, on_progress: Callable[[int, int], None] | None = None
    ) -> Iterator[Batch]:
        """Yield the rows, all at once by default: the classifier chooses its feature map from the first batch."""
        tell, step = on_progress or (lambda done, total: None), size or len(self)
        tell(0, len(self))
        for first in range(0, len(self), step):
            part = slice(first, first + step)
            names = [f"row {number:,}" for number in self.numbers[part]]
            yield Batch(self.features.slice(first, step), self.labels[part], names)
            tell(min(first + step, len(self)), len(self))

    @staticmethod
    def _joined(pieces: list[Any]) -> Any:
        from pyarrow import concat_tables  # noqa: PLC0415

        return concat_tables(pieces)


def read_text(path: Path) -> str:
    """Read the first 64 KiB of a text file in UTF-8, without the line ends that editors add."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("not a regular file")
        content = file.read(_MOST_TEXT)
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(content, final=len(content) < _MOST_TEXT)
    except UnicodeDecodeError:
        raise ValueError("not text in UTF-8") from None
    if not text.strip():
        raise ValueError("empty")
    return text.rstrip("\r\n")  # so that its id is that of the same sentence in a table


def folder(path: str | os.PathLike[str], *, size: int = 224) -> Photos | Texts:
    """Open a folder of photos or of ``.txt`` files with one folder per class, whose names are the labels.

    Parameters
    ----------
    path : path-like
        The classes may be within ``train`` and ``test`` (or ``val``): the latter is then the attribute ``test``. Other
        layouts of photos that are known are those of ImageNet-R, Tiny-ImageNet and CUB-200-2011.
    size : int
        Side of the square that photos are cut to, in pixels.

    Examples
    --------
    >>> import tempfile
    >>> from cldnet import datasets
    >>> with tempfile.TemporaryDirectory() as place:
    ...     for label, text in {"greet": "hello there", "pay": "I lost my card"}.items():
    ...         (Path(place) / label).mkdir()
    ...         _ = (Path(place) / label / "1.txt").write_text(text)
    ...     data = datasets.folder(place)
    ...     data.X, data.y.tolist()
    (['hello there', 'I lost my card'], ['greet', 'pay'])
    """
    place = Path(path).expanduser()
    if place.is_dir() and holds_texts(place):
        return Texts.listed(Path(path), list_texts(place))
    return Photos.listed(Path(path), list_photos(place), size=size)


def table(path: str | os.PathLike[str], *, label: str | None = None, text: str | None = None) -> Sentences | Rows:
    r"""Open a table (``.csv``, ``.tsv``, either with ``.gz``, or ``.parquet``) of sentences or of numbers, with labels.

    Parameters
    ----------
    path : path-like
    label : str, optional
        The column of labels; by default the one named label, class, target or y.
    text : str, optional
        The column of sentences; by default the one named text, sentence, utterance, message or query. Without such a
        column, all others are numbers. A column named ``split`` with the words train and test defines a test part.

    Examples
    --------
    >>> import tempfile
    >>> from cldnet import datasets
    >>> with tempfile.TemporaryDirectory() as place:
    ...     path = Path(place) / "intents.csv"
    ...     _ = path.write_text("text,label\nhello there,greet\nI lost my card,pay\n")
    ...     datasets.table(path).X
    ['hello there', 'I lost my card']
    """
    place, shown = Path(path).expanduser(), Path(path)
    if text is not None or has_sentences(place):
        found = read_sentences(place, label, text)
        assert found.y is not None
        y = found.y.tolist()
        parts = [
            Sentences(shown, [y[at] for at in rows], texts=[found.texts[at] for at in rows])
            for rows in _parts(len(y), found.tested)
        ]
        return replace(parts[0], test=parts[1] if len(parts[1]) else None)
    from pyarrow import table as arrow_table  # noqa: PLC0415

    rows_of = read_rows(place, label)
    columns = arrow_table(dict(zip(rows_of.names, rows_of.x.numpy().T, strict=True)))
    labels = rows_of.y.tolist()
    train, test = (
        Rows(shown, [labels[at] for at in rows], features=columns.take(rows), numbers=(rows + 1).tolist())
        for rows in _parts(len(labels), rows_of.tested)
    )
    return replace(train, test=test if len(test) else None)


def _parts(count: int, tested: NDArray[np.bool_] | None) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Numbers of the training rows and of the test rows."""
    test = np.zeros(count, dtype=bool) if tested is None else tested
    return np.flatnonzero(~test), np.flatnonzero(test)


def load(path: str | os.PathLike[str], *, label: str | None = None, text: str | None = None) -> LabelledData:
    """Open a folder or a table, as `cldnet learn` does: see `folder` and `table`."""
    place = Path(path).expanduser()
    if not place.is_dir() and is_table(place):
        return table(path, label=label, text=text)
    if label is not None or text is not None:
        raise ValueError(f"{os.fspath(path)!r} is no table, so it has no columns: leave label and text out.")
    return folder(path)
