"""The file format: safetensors whose header carries a JSON manifest and a SHA-256 digest of everything.

The layout (https://github.com/huggingface/safetensors#format) is read and written here, not by the library of that name: where
memory is short, that library ends the whole process, and what it reads stays mapped from the file and changes with it. Here a
file takes no more memory than its tensors, every size is compared before memory is allocated, and nothing can run code.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Set
from contextlib import suppress
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cldnet.storage.disk import write_atomically, writing
from cldnet.storage.header import (
    DTYPES,
    LENGTH_BYTES,
    MANIFEST,
    MAX_HEADER,
    METADATA,
    UNEXPECTED_ERRORS,
    Opened,
    digest_of,
    explain_memory_error,
    fill,
    is_storable,
    parse_json,
    read_file,
)
from cldnet.storage.migrations import NEWEST

#: Version of the manifest's schema.
SCHEMA = NEWEST
#: Files that a model remembers.
_MAX_FILES = 100
_NAMES: Mapping[torch.dtype, str] = {getattr(torch, known): name for name, (known, _) in DTYPES.items()}


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
                if tensor.dtype not in _NAMES or tensor.layout != torch.strided or key == METADATA:
                    raise ValueError(f"a file cannot store {key!r} of type {tensor.dtype} and layout {tensor.layout}")
                if not is_storable(tensor.shape):
                    raise ValueError(f"a file cannot store {key!r} of shape {tuple(tensor.shape)}")
                kept[key] = tensor.detach().cpu().contiguous()
            content = parse_json(json.dumps({**manifest, "schema": SCHEMA}))
            if check is not None:
                check(kept, content)
            parts = _serialize(kept, {MANIFEST: json.dumps({**content, "digest": digest(content, kept)})})
        except UNEXPECTED_ERRORS as error:
            why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise ValueError(
                f"{name!r} was not saved, because it could not be loaded again ({why:.500}). The previous file, if any, is "
                "unchanged: correct that, or continue from the last model that was saved."
            ) from error
        write_atomically(path, *parts)


def read(
    path: str | os.PathLike[str], unneeded: Callable[[Set[str]], Set[str]] = lambda names: frozenset()
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and manifest, or say why the file is not one of CLDNet's.

    ``unneeded`` chooses among the names of the tensors those whose content is compared with the checksum and not kept: they
    are returned on the meta device.
    """
    opened: list[Opened] = []

    def read_needed(file: BufferedReader, size: int) -> tuple[dict[str, Tensor], dict[str, str]]:
        found, texts = Opened.read(file, size)
        opened.append(found)
        return _read_content(found, unneeded({entry.name for entry in found.entries})), texts

    def digest_read(manifest: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
        kept = {name: _content(tensor) for name, tensor in tensors.items() if not tensor.is_meta}
        return opened[0].digest(manifest, kept)

    return read_file(path, read_needed, digest_read)


def read_tensors(file: BufferedReader, size: int) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read the tensors and metadata of a safetensors file of a known size."""
    found, metadata = Opened.read(file, size)
    return _read_content(found, frozenset()), metadata


def _read_content(opened: Opened, unneeded: Set[str]) -> dict[str, Tensor]:
    """Read the tensors behind a header, except for some that get a type and a shape only."""
    tensors: dict[str, Tensor] = {}
    for entry in opened.entries:
        device = "meta" if entry.name in unneeded else "cpu"
        tensors[entry.name] = torch.empty(entry.shape, dtype=getattr(torch, DTYPES[entry.dtype][0]), device=device)
        if device == "meta":
            opened.file.seek(entry.end - entry.begin, os.SEEK_CUR)
        else:
            fill(_content(tensors[entry.name]), opened.file)
    return tensors


def digest(manifest: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of a manifest and of each tensor's name, type, shape and content."""
    named = ((name, str(each.dtype)[6:], each.shape, [_content(each.cpu())]) for name, each in sorted(tensors.items()))
    return digest_of(manifest, named)


def _content(tensor: Tensor) -> memoryview:
    """The bytes of a CPU tensor, in order; they share its memory if it is contiguous."""
    content: memoryview = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data
    return content


def _serialize(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> list[memoryview]:
    """Lay out CPU tensors and texts as the parts of a file, which share the tensors' memory."""
    header: dict[str, Any] = {METADATA: dict(metadata)}
    parts, begin = list[memoryview](), 0
    # The largest numbers first, so that each tensor is aligned.
    for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0])):
        parts.append(_content(tensor))
        end = begin + len(parts[-1])
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        begin = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % LENGTH_BYTES)
    if len(text) > MAX_HEADER:
        raise ValueError(f"its labels and names take {len(text):,} bytes, and a file has room for {MAX_HEADER:,}")
    return [memoryview(len(text).to_bytes(LENGTH_BYTES, "little") + text), *parts]


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
        length = file.read(LENGTH_BYTES)
        return hashlib.sha256(length + file.read(min(int.from_bytes(length, "little"), MAX_HEADER))).hexdigest()
    return None
