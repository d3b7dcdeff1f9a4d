"""The file format: safetensors whose header carries a JSON manifest and a SHA-256 digest of everything.

The layout (https://github.com/huggingface/safetensors#format) is read and written here, not by the library of that name: where
memory is short, that library ends the whole process, and what it reads stays mapped from the file and changes with it. Here a
file takes no more memory than its tensors, every size is compared before memory is allocated, and nothing can run code.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedReader
from math import isfinite, prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cldnet.storage.disk import write_atomically, writing
from cldnet.storage.migrations import NEWEST, migrate

#: Version of the manifest's schema.
SCHEMA = NEWEST
#: Errors that Python, numpy and torch raise for unexpected values.
UNEXPECTED_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)
_METADATA, _KEY = "__metadata__", "cldnet"
_LENGTH_BYTES = 8
#: Bytes of a header that readers of the format accept.
_MAX_HEADER = 100_000_000
_MAX_DIMENSIONS = 64
_MAX_EMPTY = 1 << 22
#: JSON: lists and objects that any text may have, characters for each one beyond, and how deep they may be nested.
_MAX_LISTS = 10_000
_CHARACTERS_PER_LIST = 8
_MAX_DEPTH = 32
#: A JSON string, also one without an end; possessive, so that no text is scanned twice.
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
#: How torch reports a lack of memory on different systems and devices.
_NO_MEMORY = ("allocate memory", "not enough memory", "out of memory")
#: Files that a model remembers.
_MAX_FILES = 100
#: The format's names of types.
_DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, known)
    for name, known in {
        **{"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "C64": "complex64"},
        **{"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "BOOL": "bool"},
        **{"U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8"},
        **{"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"},
    }.items()
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def write(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    manifest: Mapping[str, Any],
    check: Callable[[dict[str, Tensor], dict[str, Any]], object] | None = None,
) -> None:
    """Write tensors and a manifest to one file, atomically.

    ``check`` does what the reader of such a file does with its content. If it raises, nothing is written: a file is only
    replaced by one that can be loaded.
    """
    name = os.fspath(path)
    with explain_memory_error(f"to write {name!r}. The previous file, if any, is unchanged"):
        try:
            kept: dict[str, Tensor] = {}
            for key, tensor in tensors.items():
                if tensor.dtype not in _NAMES or tensor.layout != torch.strided or key == _METADATA:
                    raise ValueError(f"a file cannot store {key!r} of type {tensor.dtype} and layout {tensor.layout}")
                if not _is_storable(tensor.shape):
                    raise ValueError(f"a file cannot store {key!r} of shape {tuple(tensor.shape)}")
                kept[key] = tensor.detach().cpu().contiguous()
            content = parse_json(json.dumps({**manifest, "schema": SCHEMA}))
            if check is not None:
                check(kept, content)
            parts = _serialize(kept, {_KEY: json.dumps({**content, "digest": digest(content, kept)})})
        except UNEXPECTED_ERRORS as error:
            why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise ValueError(
                f"{name!r} was not saved, because it could not be loaded again ({why:.500}). The previous file, if any, is "
                "unchanged: correct that, or continue from the last model that was saved."
            ) from error
        write_atomically(path, *parts)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and manifest, or say why the file is not one of CLDNet's."""
    name = os.fspath(path)
    with explain_memory_error(f"to read {name!r}, which may be valid"):
        with reading(path):
            exists = Path(path).is_file()
        if not exists:
            raise FileNotFoundError(f"There is no model file {name!r}. Check the path, or save a model there first.")
        try:
            with reading(path), Path(path).open("rb") as file:
                tensors, texts = read_tensors(file, os.fstat(file.fileno()).st_size)
        except (ValueError, RuntimeError) as error:
            raise ValueError(f"{name!r} is not a valid safetensors file ({error}): restore a backup.") from error
        if _KEY not in texts:
            raise ValueError(f"{name!r} is a safetensors file, but not one that cldnet wrote: check the path.")
        return tensors, _read_manifest(name, texts[_KEY], tensors)


def _read_manifest(name: str, text: str, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Parse a manifest, compare it and the tensors with its digest, and migrate it."""
    try:
        manifest: dict[str, Any] = parse_json(text)
        version, signature = manifest["schema"], manifest.pop("digest", None)
        signed = json.dumps({**manifest, "digest": digest(manifest, tensors)})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{name!r} has a damaged manifest: restore a backup.") from error
    if type(version) is not int or version != NEWEST:
        try:
            manifest = migrate(manifest)
        except ValueError as error:
            raise ValueError(f"{name!r} cannot be read: {error}") from error
    # Version 1 had no digest: a file of that version with one has been changed.
    if signature is not None if version == 1 else text != signed:
        raise ValueError(f"{name!r} has changed since it was written (wrong checksum): restore a backup.")
    return manifest


def digest(manifest: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a manifest and of each tensor's name, type, shape and content."""
    result = hashlib.sha256(json.dumps(manifest).encode())
    for name, tensor in sorted(tensors.items()):
        result.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        result.update(_content(tensor.cpu()))
    return result.hexdigest()


def parse_json(text: str) -> Any:
    """Parse untrusted JSON, in time bounded by its length: no deep nesting, no NaN, no integers beyond 64 bits."""
    limit = _MAX_LISTS + len(text) // _CHARACTERS_PER_LIST
    if _count_lists(text) > limit and _count_lists(_STRING.sub("", text)) > limit:  # labels may contain brackets
        raise ValueError("it has too many nested lists")  # millions of them take seconds
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("it has too many nested lists") from error
    level, depth = [value], 0
    while level:
        if depth > _MAX_DEPTH:
            raise ValueError("it has too many nested lists")
        deeper: list[Any] = []
        for each in level:
            if isinstance(each, dict | list):
                deeper.extend(each.values() if isinstance(each, dict) else each)
            elif isinstance(each, float) and not isfinite(each):
                raise ValueError(f"{each} is not a finite number")
            elif isinstance(each, int) and not -(2**63) <= each < 2**63:
                raise ValueError("a number exceeds 64 bits")
        level, depth = deeper, depth + 1
    return value


def _count_lists(text: str) -> int:
    return text.count("[") + text.count("{")


def _content(tensor: Tensor) -> memoryview:
    """The bytes of a CPU tensor, in order; they share its memory if it is contiguous."""
    content: memoryview = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data
    return content


def _is_storable(shape: Sequence[int]) -> bool:
    """Refuse useless shapes: a billion empty rows take no memory until they are listed."""
    return len(shape) <= _MAX_DIMENSIONS and (0 not in shape or prod(filter(None, shape)) <= _MAX_EMPTY)


def _serialize(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> list[memoryview]:
    """Lay out CPU tensors and texts as the parts of a file, which share the tensors' memory."""
    header: dict[str, Any] = {_METADATA: dict(metadata)}
    parts, begin = list[memoryview](), 0
    # The largest numbers first, so that each tensor is aligned.
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        parts.append(_content(tensor))
        end = begin + len(parts[-1])
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH_BYTES)
    if len(text) > _MAX_HEADER:
        raise ValueError(f"its labels and names take {len(text):,} bytes, and a file has room for {_MAX_HEADER:,}")
    return [memoryview(len(text).to_bytes(_LENGTH_BYTES, "little") + text), *parts]


class _Entry(NamedTuple):
    """Where a tensor is in a file, counted from the end of the header."""

    begin: int
    end: int
    name: str
    dtype: str
    shape: list[int]

    @classmethod
    def parse(cls, name: str, entry: Any) -> _Entry:
        """Validate the entry of a header, as untrusted input."""
        if not isinstance(entry, dict) or {*entry} != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"{name!r:.80} is not described as a tensor")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _DTYPES:
            raise ValueError(f"{name!r:.80} has an unknown type, {dtype!r:.80}")
        lists = all(
            isinstance(each, list) and all(type(n) is int and n >= 0 for n in each) for each in (shape, offsets)
        )
        if not lists:
            raise ValueError(f"{name!r:.80} has an invalid shape or offset")
        size = prod(shape) * _DTYPES[dtype].itemsize
        if not _is_storable(shape) or len(offsets) != 2 or offsets[1] - offsets[0] != size:
            raise ValueError(f"{name!r:.80} has another size than its shape")
        return cls(offsets[0], offsets[1], name, dtype, shape)


def read_tensors(file: BufferedReader, size: int) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and metadata of a safetensors file of a known size."""
    prefix = bytearray(_LENGTH_BYTES)
    _fill(prefix, file)
    length = int.from_bytes(prefix, "little")
    if length > min(size - _LENGTH_BYTES, _MAX_HEADER):
        raise ValueError("its header is too long")
    text = bytearray(length)
    _fill(text, file)
    header = parse_json(text.decode())
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    metadata = header.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("its metadata are not strings")
    entries = sorted(_Entry.parse(name, entry) for name, entry in header.items())
    ends = [0, *(entry.end for entry in entries)]
    if ends != [*(entry.begin for entry in entries), size - _LENGTH_BYTES - length]:
        raise ValueError("its tensors do not fill the file exactly")
    tensors: dict[str, Tensor] = {}
    for entry in entries:
        tensors[entry.name] = torch.empty(entry.shape, dtype=_DTYPES[entry.dtype], device="cpu")
        _fill(_content(tensors[entry.name]), file)
    return tensors, metadata


def _fill(buffer: bytearray | memoryview, file: BufferedReader) -> None:
    if file.readinto(buffer) < len(buffer):
        raise ValueError("it ends too soon")


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Add advice to disk errors: what the user can do."""
    try:
        yield
    except OSError as error:
        if error.errno == errno.ENOMEM:  # not the disk's fault
            raise MemoryError(os.strerror(errno.ENOMEM)) from error
        reason = f"Reading failed ({error.strerror or error}): check its permissions, and the disk."
        raise OSError(error.errno or errno.EIO, reason, os.fspath(path)) from error


@contextmanager
def explain_memory_error(what: str) -> Iterator[None]:
    """Say what there is not enough memory for if that is the cause of an error, however Python or torch report it."""
    try:
        yield
    except UNEXPECTED_ERRORS as error:
        cause: BaseException | None = error
        while cause is not None:
            reported = isinstance(cause, RuntimeError) and any(words in str(cause) for words in _NO_MEMORY)
            if reported or isinstance(cause, MemoryError):
                raise MemoryError(
                    f"There is not enough memory {what}: close other programs, or use a larger machine."
                ) from cause
            cause = cause.__cause__
        raise


class FileChangedError(OSError):
    """A model's file has changed since it was loaded: replacing it would lose what was saved there meanwhile."""


@dataclass(frozen=True)
class SeenFiles:
    """The files that a model was last loaded from or saved to, to notice when another process has changed one.

    A file is known by its own path and by the one that it links to. Paths are kept as digests, so that a pickled model does
    not tell where its files are.
    """

    versions: Mapping[str, str] = field(default_factory=dict)

    def remember(self, path: str | os.PathLike[str]) -> SeenFiles:
        """Remember a file as it is now. Whatever is found where no file was, or none that could be read, is a change."""
        version = None
        with suppress(OSError):
            version = _version(path)
        names = _path_digests(path)
        others = [(name, known) for name, known in self.versions.items() if name not in names]
        return SeenFiles(dict([*others, *((name, version or "") for name in names)][-_MAX_FILES:]))

    def check_unchanged(self, path: str | os.PathLike[str]) -> None:
        """Refuse a file that has changed since it was remembered. Call this with the file's lock held."""
        known = {self.versions[name] for name in _path_digests(path) if name in self.versions}
        with writing(path):
            version = _version(path) if known else None
        if version is not None and version not in known:
            raise FileChangedError(
                f"{os.fspath(path)!r} has changed since this model was loaded from it or saved to it, and saving would undo "
                "that change. Load the file again and repeat your changes, save under another name, or replace the file with "
                "save(path, overwrite=True)."
            )


def _path_digests(path: str | os.PathLike[str]) -> set[str]:
    paths = {os.path.abspath(path), os.path.realpath(path)}
    return {hashlib.sha256(os.fsencode(each)).hexdigest() for each in paths}


def _version(path: str | os.PathLike[str]) -> str | None:
    """Digest of a file's header, which contains a digest of its content; None if there is no file."""
    if not Path(path).is_file():
        return None
    with suppress(FileNotFoundError), open(path, "rb") as file:
        length = file.read(_LENGTH_BYTES)
        return hashlib.sha256(length + file.read(min(int.from_bytes(length, "little"), _MAX_HEADER))).hexdigest()
    return None
