"""Headers of model files: manifest, names and shapes of tensors, and the checksum. Nothing here imports torch.

`cldnet inspect` reads this much of a file; `cldnet.storage.format` reads the tensors, too.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import BufferedReader
from math import isfinite, prod
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from cldnet.storage.migrations import NEWEST, migrate

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
#: Where a header has texts, and the name of ours among them.
METADATA, MANIFEST = "__metadata__", "cldnet"
LENGTH_BYTES = 8
#: Bytes of a header that readers of the format accept.
MAX_HEADER = 100_000_000
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
_CHUNK = 1 << 20
#: The format's names of types: torch's name, and the bytes of one number.
DTYPES: Mapping[str, tuple[str, int]] = {
    **{"F64": ("float64", 8), "F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2)},
    **{"I64": ("int64", 8), "I32": ("int32", 4), "I16": ("int16", 2), "I8": ("int8", 1)},
    **{"U64": ("uint64", 8), "U32": ("uint32", 4), "U16": ("uint16", 2), "U8": ("uint8", 1)},
    **{"F8_E4M3": ("float8_e4m3fn", 1), "F8_E5M2": ("float8_e5m2", 1), "C64": ("complex64", 8), "BOOL": ("bool", 1)},
}
_Content = TypeVar("_Content")
#: A tensor's name, type, shape and content, for a digest.
_Named = tuple[str, str, Sequence[int], Iterable[bytes | memoryview]]


class Entry(NamedTuple):
    """Where a tensor is in a file, counted from the end of the header."""

    begin: int
    end: int
    name: str
    dtype: str
    shape: list[int]

    @classmethod
    def parse(cls, name: str, entry: Any) -> Entry:
        """Validate the entry of a header, as untrusted input."""
        if not isinstance(entry, dict) or {*entry} != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"{name!r:.80} is not described as a tensor")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise ValueError(f"{name!r:.80} has an unknown type, {dtype!r:.80}")
        lists = all(
            isinstance(each, list) and all(type(n) is int and n >= 0 for n in each) for each in (shape, offsets)
        )
        if not lists:
            raise ValueError(f"{name!r:.80} has an invalid shape or offset")
        size = prod(shape) * DTYPES[dtype][1]
        if not is_storable(shape) or len(offsets) != 2 or offsets[1] - offsets[0] != size:
            raise ValueError(f"{name!r:.80} has another size than its shape")
        return cls(offsets[0], offsets[1], name, dtype, shape)


def read_header(path: str | os.PathLike[str]) -> tuple[dict[str, Entry], dict[str, Any]]:
    """Read where a file's tensors are and its manifest; the tensors are compared with the checksum, not kept."""
    opened, manifest = read_file(path, Opened.read, lambda manifest, opened: opened.digest(manifest))
    return {entry.name: entry for entry in opened.entries}, manifest


def read_part(path: str | os.PathLike[str], name: str, size: int) -> tuple[bytes, dict[str, Any]]:
    """Read a manifest and the content of one tensor of up to so many bytes, which is empty if it is not there."""

    def read(file: BufferedReader, length: int) -> tuple[tuple[Opened, bytes], dict[str, str]]:
        opened, texts = Opened.read(file, length)
        found = [entry for entry in opened.entries if entry.name == name and entry.end - entry.begin <= size]
        return (opened, b"".join(bytes(piece) for entry in found for piece in opened._pieces(entry))), texts

    (_, content), manifest = read_file(path, read, lambda manifest, read: read[0].digest(manifest))
    return content, manifest


def read_file(
    path: str | os.PathLike[str],
    read: Callable[[BufferedReader, int], tuple[_Content, Mapping[str, str]]],
    digest: Callable[[Mapping[str, Any], _Content], str],
) -> tuple[_Content, dict[str, Any]]:
    """Read a file's content and manifest, or say why the file is not one of CLDNet's.

    ``read`` takes the file and its size, and returns content and metadata. ``digest`` of manifest and content is compared
    with the file's checksum while the file is still open.
    """
    name = os.fspath(path)
    with explain_memory_error(f"to read {name!r}, which may be valid"):
        with reading(path):
            exists = Path(path).is_file()
        if not exists:
            raise FileNotFoundError(f"There is no model file {name!r}. Check the path, or save a model there first.")
        with reading(path), Path(path).open("rb") as file:
            try:
                content, texts = read(file, os.fstat(file.fileno()).st_size)
            except (ValueError, RuntimeError) as error:
                raise ValueError(f"{name!r} is not a valid safetensors file ({error}): restore a backup.") from error
            if MANIFEST not in texts:
                raise ValueError(f"{name!r} is a safetensors file, but not one that cldnet wrote: check the path.")
            return content, _read_manifest(name, texts[MANIFEST], lambda manifest: digest(manifest, content))


def _read_manifest(name: str, text: str, digest: Callable[[Mapping[str, Any]], str]) -> dict[str, Any]:
    """Parse a manifest, compare it and the tensors with its digest, and migrate it."""
    try:
        manifest: dict[str, Any] = parse_json(text)
        version, signature = manifest["schema"], manifest.pop("digest", None)
        signed = json.dumps({**manifest, "digest": digest(manifest)})
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


def digest_of(
    manifest: Mapping[str, Any], tensors: Iterable[tuple[str, str, Sequence[int], Iterable[bytes | memoryview]]]
) -> str:
    """SHA-256 of a manifest and of each tensor's name, type, shape and content, given in the order of the names."""
    result = hashlib.sha256(json.dumps(manifest).encode())
    for name, dtype, shape, content in tensors:
        result.update(f"\0{name}\0torch.{dtype}\0{tuple(shape)}\0".encode())
        for part in content:
            result.update(part)
    return result.hexdigest()


def read_entries(file: BufferedReader, size: int) -> tuple[list[Entry], dict[str, str]]:
    """Read the header of a safetensors file of a known size: its tensors, in the order of the file, and metadata."""
    prefix = bytearray(LENGTH_BYTES)
    fill(prefix, file)
    length = int.from_bytes(prefix, "little")
    if length > min(size - LENGTH_BYTES, MAX_HEADER):
        raise ValueError("its header is too long")
    text = bytearray(length)
    fill(text, file)
    header = parse_json(text.decode())
    if not isinstance(header, dict):
        raise ValueError("its header is not an object")
    metadata = header.pop(METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise ValueError("its metadata are not strings")
    entries = sorted(Entry.parse(name, entry) for name, entry in header.items())
    ends = [0, *(entry.end for entry in entries)]
    if ends != [*(entry.begin for entry in entries), size - LENGTH_BYTES - length]:
        raise ValueError("its tensors do not fill the file exactly")
    return entries, metadata


def fill(buffer: bytearray | memoryview, file: BufferedReader) -> None:
    """Read as many bytes as a buffer has."""
    if file.readinto(buffer) < len(buffer):
        raise ValueError("it ends too soon")


class Opened(NamedTuple):
    """An open file, where the content of its tensors begins, and their entries."""

    file: BufferedReader
    start: int
    entries: list[Entry]

    @classmethod
    def read(cls, file: BufferedReader, size: int) -> tuple[Opened, dict[str, str]]:
        """Read the header only."""
        entries, texts = read_entries(file, size)
        return cls(file, file.tell(), entries), texts

    def digest(self, manifest: Mapping[str, Any], read: Mapping[str, memoryview] | None = None) -> str:
        """Digest of a manifest and the tensors, which are read in pieces, except for those that were ``read`` before."""
        known, entries = read or {}, sorted(self.entries, key=lambda entry: entry.name)
        contents = ([known[each.name]] if each.name in known else self._pieces(each) for each in entries)
        named = ((each.name, DTYPES[each.dtype][0], each.shape) for each in entries)
        return digest_of(manifest, ((*of, content) for of, content in zip(named, contents, strict=True)))

    def _pieces(self, entry: Entry) -> Iterator[memoryview]:
        self.file.seek(self.start + entry.begin)
        left, buffer = entry.end - entry.begin, memoryview(bytearray(min(_CHUNK, entry.end - entry.begin)))
        while left:
            piece = buffer[:left]
            fill(piece, self.file)
            left -= len(piece)
            yield piece


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


def is_storable(shape: Sequence[int]) -> bool:
    """Refuse useless shapes: a billion empty rows take no memory until they are listed."""
    return len(shape) <= _MAX_DIMENSIONS and (0 not in shape or prod(filter(None, shape)) <= _MAX_EMPTY)


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


@contextmanager
def describe_content_error(
    path: str | os.PathLike[str], what: str, advice: str = "restore a backup", passing: type[Exception] | tuple[()] = ()
) -> Iterator[None]:
    """Turn whatever goes wrong over a file's content into one sentence, but for a ``passing`` kind of error."""
    with explain_memory_error(f"for the content of {os.fspath(path)!r}"):
        try:
            yield
        except passing:
            raise
        except UNEXPECTED_ERRORS as error:
            why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise ValueError(f"{os.fspath(path)!r} is not a valid {what} ({why:.500}): {advice}.") from error
