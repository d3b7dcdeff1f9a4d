"""A cell: one run of a bench, with a key that tells it from every other, and the file that its result goes to."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import cldnet
from cldnet.bench.recording import Record
from cldnet.bench.run import RunSpec, run
from cldnet.bench.wording import display_name
from cldnet.data.outside import hash_outside, shown_outside
from cldnet.data.spec import StreamSpec
from cldnet.data.stream import Stream
from cldnet.data.streams import SOURCES, stream_by_name
from cldnet.methods import read_method

__all__ = [
    "Cell",
    "cell_of_result",
    "code_digest",
    "hashes_of",
    "outside_hash",
    "result_text",
    "run_cell",
    "stream_hash",
]

#: A list that holds no other list or table, as ``json.dumps`` spreads it over lines.
_FLAT_LIST = re.compile(r"\[\n\s+([^\[\]{}]*?)\n\s+\]")


@dataclass(frozen=True)
class Cell:
    """One run on a stream by name; the run's seed is also the seed of the class order.

    Attributes
    ----------
    stream : str
        A stream's name with its options.
    spec : RunSpec
        Everything about the run, the preset's settings included.
    label : str
        Name of the configuration, to be shown; empty where a method has only one.
    record : Record
        What to write down beside the figures.

    Examples
    --------
    >>> cell = Cell("split-digits", RunSpec("ewc", seed=1))
    >>> cell.name, cell.file("0123456789abcdef").rpartition("_")[0]
    ('split-digits/ewc/seed1', 'split-digits_ewc_seed1')
    """

    stream: str
    spec: RunSpec
    label: str = ""
    record: Record = Record()

    @property
    def name(self) -> str:
        """The cell's name for people and for patterns: stream, method or configuration, seed."""
        return f"{self.shown_stream}/{self.label or self.spec.method}/seed{self.spec.seed}"

    @property
    def shown_stream(self) -> str:
        """The stream's text without the path to its data, which is nobody else's business."""
        return StreamSpec.parse(self.stream, SOURCES).shown

    @property
    def title(self) -> str:
        """The cell's name on the terminal."""
        return f"{self.label or display_name(self.spec.method)}, {self.shown_stream}, seed {self.spec.seed}"

    def load(self, data: Path | None = None) -> Stream:
        """Make the stream, with the class order of the seed."""
        return stream_by_name(self.stream, self.spec.seed, data=data)

    def to_json(self) -> dict[str, Any]:
        """Give all that it takes to run the cell again, but for its data and the path to them."""
        return {
            "stream": self.shown_stream,
            "label": self.label,
            "spec": {**self.spec.to_json(), "outside": shown_outside(self.spec.outside)},
            "record": asdict(self.record),
            "method_version": read_method(self.spec.method).version,
        }

    def key(self, stream_hash: str, outside_hash: str = "") -> str:
        """Digest of the cell's specification, its data and the method's version. Threads and names do not count."""
        what = self.to_json()
        del what["label"], what["spec"]["threads"], what["stream"]
        if not self.spec.outside:  # keys are older than this setting
            del what["spec"]["outside"]
        text = json.dumps([what, stream_hash, *([outside_hash] if outside_hash else [])], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def same(self) -> str:
        """What two cells have in common if they are the same but for threads, and for data that cannot be looked at."""
        return json.dumps([self.shown_stream, self.label, self.key("")])

    def file(self, stream_hash: str, outside_hash: str = "") -> str:
        """Name of the result's file."""
        stream, label = (
            re.sub(r"[^\w.,=+-]+", "-", text) for text in (self.shown_stream, self.label or self.spec.method)
        )
        names = f"{stream}_{label}".encode()[:120].decode(errors="ignore")  # file systems count bytes
        return f"{names}_seed{self.spec.seed}_{self.key(stream_hash, outside_hash)}.json"


def run_cell(
    cell: Cell, stream: Stream, on_progress: Callable[[float], None] | None = None, data: Path | None = None
) -> dict[str, Any]:
    """Run a cell on its stream; the result tells how to run it again. Outside data are looked for in ``data`` first.

    Examples
    --------
    >>> from cldnet.data.streams import split_digits
    >>> cell = Cell("split-digits,until=1", RunSpec("exact", backbone_options={"features": 50}))
    >>> result = run_cell(cell, cell.load())
    >>> cell_of_result(result) == cell
    True
    """
    result = run(cell.spec, stream, on_progress, cell.record, data)
    head = {"schema": result.pop("schema"), "key": cell.key(*hashes_of(result)), "label": cell.label}
    return {**head, **result, "cell": cell.to_json(), "code": code_digest(cell.spec.method)}


def hashes_of(result: Mapping[str, Any]) -> tuple[str, str]:
    """Give the hashes of a result's stream and of its outside data, empty where it has none: what a key is made with.

    Examples
    --------
    >>> hashes_of({"stream": {"hash": "0123"}, "outside": None})
    ('0123', '')
    """
    return result["stream"]["hash"], (result.get("outside") or {}).get("hash", "")


def cell_of_result(result: Mapping[str, Any]) -> Cell:
    """Make the cell that a result came from."""
    try:
        told = result["cell"]
        spec, record = RunSpec.from_json(told["spec"]), Record(**told["record"])
        return Cell(str(told["stream"]), spec, str(told["label"]), record)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"This result does not tell how to run it again ({error} is missing or wrong): an older version made it."
        ) from error


def result_text(result: Mapping[str, Any]) -> bytes:
    """Write a result as its file has it: a line for every name and for every list of numbers.

    Examples
    --------
    >>> result_text({"matrix": [[0.5], [0.25, 1.0]]}).decode().splitlines()
    ['{', ' "matrix": [', '  [0.5],', '  [0.25, 1.0]', ' ]', '}']
    """
    spread = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)
    # A line break is never part of a string in JSON, so only lists can match.
    return _FLAT_LIST.sub(
        lambda found: "[" + " ".join(line.strip() for line in found[1].split("\n")) + "]", spread
    ).encode()


@cache
def stream_hash(stream: str, seed: int, data: Path | None = None) -> str | Exception:
    """Hash of a stream with the class order of a seed, or why it cannot be made; read once.

    Examples
    --------
    >>> stream_hash("split-digits", 0) == stream_hash("split-digits", 1), len(stream_hash("split-digits", 1))
    (False, 16)
    """
    try:
        return stream_by_name(stream, seed, data=data).hash
    except (ValueError, OSError, ImportError) as error:
        return error


@cache
def outside_hash(text: str, data: Path | None = None) -> str | Exception:
    """Hash of the outside data that a cell names, or why they cannot be read; read once.

    Examples
    --------
    >>> outside_hash(""), outside_hash("noise")
    ('', 'noise')
    """
    try:
        return hash_outside(text, data)
    except (ValueError, OSError, ImportError) as error:
        return error


@cache
def code_digest(method: str) -> str:
    """Digest of the code that a method rests on, without comments and docstrings.

    That is the files of its class and of those it is derived from, the parts, nets and mathematics of this library, and the
    training loop.

    Examples
    --------
    >>> len(code_digest("ewc"))
    12
    """
    library = Path(cldnet.__file__).parent
    shared = [path for room in ("math", "nets", "methods/parts") for path in (library / room).glob("*.py")]
    classes = [
        each for each in read_method(method).__mro__ if not each.__module__.startswith(("torch", "builtins", "abc"))
    ]
    own = {Path(file) for each in classes if (file := inspect.getsourcefile(each)) is not None}
    digest = hashlib.sha256()
    for path in sorted({*shared, *own, library / "fit.py", library / "methods" / "batch.py"}, key=Path.as_posix):
        digest.update(_bare(path))
    return digest.hexdigest()[:12]


@cache
def _bare(file: Path) -> bytes:
    """The syntax of a file, its comments and docstrings left out."""
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).digest()
