"""A cell: one run of a bench, with a unique key that names its result file."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import cldnet
from cldnet.bench.run import Execution, Record, RunSpec, run
from cldnet.data.stream import Stream
from cldnet.data.streams import SOURCES, StreamSpec, hash_outside, shown_outside, stream_by_name
from cldnet.methods import display_name, read_method
from cldnet.nets import FEATURE_MAPS, backbone_defaults

#: A list that holds no other list or table, as ``json.dumps`` spreads it over lines.
_FLAT_LIST = re.compile(r"\[\n\s+([^\[\]{}]*?)\n\s+\]")


@dataclass(frozen=True)
class Cell:
    """One run on a stream by name; the run's seed is also the seed of the class order."""

    stream: str  # a stream's name with its options
    spec: RunSpec  # everything about the run, including the preset's settings
    label: str = ""  # name of the configuration, for display
    record: Record = Record()

    @property
    def name(self) -> str:
        """Name for people and for patterns: stream, method or configuration, seed."""
        return f"{self.shown_stream}/{self.label or self.spec.method}/seed{self.spec.seed}"

    @property
    def shown_stream(self) -> str:
        """The stream's text without the path to its data, which is private."""
        return StreamSpec.parse(self.stream, SOURCES).shown

    @property
    def title(self) -> str:
        """Name on the terminal."""
        return f"{self.label or display_name(self.spec.method)}, {self.shown_stream}, seed {self.spec.seed}"

    def load(self, data: Path | None = None) -> Stream:
        """Load the stream, with the class order of the seed."""
        return stream_by_name(self.stream, self.spec.seed, data=data)

    def to_json(self) -> dict[str, Any]:
        """Everything needed to run the cell again, except its data and the path to them."""
        return {
            "stream": self.shown_stream,
            "label": self.label,
            "spec": {**self.spec.to_json(), "outside": shown_outside(self.spec.outside)},
            "record": self.record.model_dump(),
            "method_version": read_method(self.spec.method).version,
        }

    def key(self, stream_hash: str, outside_hash: str = "") -> str:
        """Digest of the cell's settings, its data and the method's version. Threads and names do not count."""
        what = self.to_json()
        del what["label"], what["spec"]["threads"], what["stream"]
        if not self.spec.outside:  # keys are older than this setting
            del what["spec"]["outside"]
        if self.spec.backbone == "patches":  # and than this default: a cell without it used to mirror
            what["spec"]["backbone_options"] = {"mirror": "auto", **self.spec.backbone_options}
        text = json.dumps([what, stream_hash, *([outside_hash] if outside_hash else [])], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def same(self) -> str:
        """Equal for cells that differ only in threads, and in data that cannot be compared."""
        return json.dumps([self.shown_stream, self.label, self.key("")])

    def file(self, stream_hash: str, outside_hash: str = "") -> str:
        """Name of the result file."""
        names = (self.shown_stream, self.label or self.spec.method)
        short = "_".join(re.sub(r"[^\w.,=+-]+", "-", name) for name in names).encode()[:120]  # file systems count bytes
        return f"{short.decode(errors='ignore')}_seed{self.spec.seed}_{self.key(stream_hash, outside_hash)}.json"


def run_cell(
    cell: Cell,
    stream: Stream,
    on_progress: Callable[[float], None] | None = None,
    data: Path | None = None,
    execution: Execution | None = None,
) -> dict[str, Any]:
    """Run a cell on its stream. The result says how to repeat it. Outside data are searched in ``data`` first."""
    if execution is not None:
        outside = hash_outside(cell.spec.outside, data) if cell.spec.outside else ""
        identity = f"{cell.key(stream.hash, outside)} {code_digest(cell.spec.method)}"
        execution = replace(execution, identity=identity)
    result = run(cell.spec, stream, on_progress, cell.record, data, execution)
    head = {"schema": result.pop("schema"), "key": cell.key(*hashes_of(result)), "label": cell.label}
    return {**head, **result, "cell": cell.to_json(), "code": code_digest(cell.spec.method)}


def hashes_of(result: Mapping[str, Any]) -> tuple[str, str]:
    """Hashes of a result's stream and of its outside data ("" if it has none), from which its key is made."""
    return result["stream"]["hash"], (result.get("outside") or {}).get("hash", "")


def cell_of_result(result: Mapping[str, Any]) -> Cell:
    """Make the cell that a result came from."""
    try:
        cell = result["cell"]
        spec, record = _with_former_defaults(RunSpec.from_json(cell["spec"]), result), Record(**cell["record"])
        return Cell(str(cell["stream"]), spec, str(cell["label"]), record)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"This result cannot be repeated: {error} is missing or wrong, because an older version of cldnet wrote it."
        ) from error


def _with_former_defaults(spec: RunSpec, result: Mapping[str, Any]) -> RunSpec:
    """Give the backbone the options that the result records where their defaults have changed since."""
    if spec.backbone not in FEATURE_MAPS:
        return spec
    recorded, now = result["config"]["backbone_options"], backbone_defaults(spec.backbone)
    former = {name: recorded[name] for name in now if recorded.get(name, now[name]) != now[name]}
    return replace(spec, backbone_options={**former, **spec.backbone_options})


def result_text(result: Mapping[str, Any]) -> bytes:
    """Write a result as JSON with one line for every name and for every list of numbers."""
    spread = json.dumps(result, indent=1, ensure_ascii=False, allow_nan=False)
    # JSON strings contain no line breaks, so only lists can match.
    return _FLAT_LIST.sub(
        lambda found: "[" + " ".join(line.strip() for line in found[1].split("\n")) + "]", spread
    ).encode()


def file_names(
    cells: Sequence[Cell], data: Path | None = None, on_progress: Callable[[int, int], None] = lambda done, total: None
) -> list[str | Exception]:
    """Return the name of each cell's result file, or the error if its stream or outside data cannot be read."""
    names: list[str | Exception] = []
    for number, cell in enumerate(cells):
        on_progress(number, len(cells))
        hashes = stream_hash(cell.stream, cell.spec.seed, data), _outside_hash(cell.spec.outside, data)
        errors = [error for error in hashes if isinstance(error, Exception)]
        names.append(errors[0] if errors else cell.file(*map(str, hashes)))
    return names


@cache
def stream_hash(stream: str, seed: int, data: Path | None = None) -> str | Exception:
    """Hash of a stream with the class order of a seed, or the error from reading it."""
    try:
        return stream_by_name(stream, seed, data=data).hash
    except (ValueError, OSError, ImportError) as error:
        return error


@cache
def _outside_hash(text: str, data: Path | None = None) -> str | Exception:
    try:
        return hash_outside(text, data)
    except (ValueError, OSError, ImportError) as error:
        return error


@cache
def code_digest(method: str) -> str:
    """Digest of the code that a method depends on, without comments and docstrings.

    That is: the files of its class and base classes, the shared parts, nets and mathematics, and the training loop.
    """
    library = Path(cldnet.__file__).parent
    shared = {path for room in ("math", "nets", "methods/parts") for path in (library / room).glob("*.py")}
    classes = [
        each for each in read_method(method).__mro__ if not each.__module__.startswith(("torch", "builtins", "abc"))
    ]
    own = {Path(file) for each in classes if (file := inspect.getsourcefile(each)) is not None}
    loop = {library / "methods" / "fit.py", library / "data" / "stream.py"}
    digest = hashlib.sha256()
    for path in sorted(shared | own | loop, key=Path.as_posix):
        digest.update(_syntax_digest(path))
    return digest.hexdigest()[:12]


@cache
def _syntax_digest(file: Path) -> bytes:
    tree = ast.parse(file.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return hashlib.sha256(ast.dump(tree).encode()).digest()
