"""A model on disk: one file of tensors whose header carries a JSON manifest and a digest of it all. Nothing in it can run."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from cldnet.migrations import NEWEST, migrate
from cldnet.store.disk import reading, sweep, write_atomically, write_parts
from cldnet.store.layout import check_kinds, laid_out, read_tensors, tensor_content
from cldnet.store.lock import locked
from cldnet.store.plain import plain_json
from cldnet.store.seen import FileChangedError, SeenFiles

__all__ = [
    "ODD",
    "SCHEMA",
    "FileChangedError",
    "SeenFiles",
    "digest",
    "enough_memory",
    "lack_of_memory",
    "locked",
    "read",
    "reading",
    "sweep",
    "write",
    "write_atomically",
]

#: Version of the file's layout.
SCHEMA = NEWEST
#: What Python, numpy and torch raise over values that nobody foresaw.
ODD = (ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RuntimeError, TypeError)
_KEY = "cldnet"
#: How torch says that there is no memory, on different systems and devices.
_NO_MEMORY = ("allocate memory", "not enough memory", "out of memory")


def write(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Tensor],
    manifest: Mapping[str, Any],
    check: Callable[[dict[str, Tensor], dict[str, Any]], object] | None = None,
) -> None:
    """Write tensors and a manifest to one file.

    Parameters
    ----------
    path : path-like
    tensors : mapping of Tensor
        Two names may stand for the same numbers; the file has them twice.
    manifest : mapping
        What there is to say beside, in JSON's types.
    check : callable, optional
        What the reader of such a file does with its content. If it refuses that, nothing is written: the file that is there
        is replaced only by one that can be loaded.

    Examples
    --------
    >>> import tempfile, torch
    >>> folder = tempfile.TemporaryDirectory()
    >>> write(Path(folder.name) / "model.cldnet", {"a": torch.ones(2)}, {"kind": "example"})
    >>> tensors, manifest = read(Path(folder.name) / "model.cldnet")
    >>> tensors["a"], manifest["kind"], manifest["schema"]
    (tensor([1., 1.]), 'example', 4)
    >>> folder.cleanup()
    """
    name = os.fspath(path)
    with enough_memory(f"to write {name!r}; what was there before is as it was"):
        try:
            check_kinds(tensors)
            kept = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
            said = plain_json(json.dumps({**manifest, "schema": SCHEMA}))
            if check is not None:
                check(kept, said)
            signed = {**said, "digest": digest(said, kept)}
            parts = laid_out(kept, {_KEY: json.dumps(signed)})
        except (ValueError, *ODD) as error:
            if lack_of_memory(error) is not None:
                raise
            why = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            raise ValueError(
                f"{name!r} was not written, since it could not be read again ({why:.500}): set that right, or go on from the "
                "last good copy. What was there before is as it was."
            ) from error
        write_parts(path, parts)


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and manifest back, or say in a sentence why the file is not a model."""
    name = os.fspath(path)
    with enough_memory(f"to read {name!r}, which may well be whole"):
        with reading(path):
            there = Path(path).is_file()
        if not there:
            raise FileNotFoundError(f"There is no model file {name!r}. Check the path, or save a model there first.")
        try:
            with reading(path), Path(path).open("rb") as file:
                tensors, texts = read_tensors(file, os.fstat(file.fileno()).st_size)
        except (ValueError, RuntimeError) as error:
            if lack_of_memory(error) is not None:
                raise
            raise ValueError(f"{name!r} is not a whole safetensors file ({error}): use the last good copy.") from error
        if _KEY not in texts:
            raise ValueError(f"{name!r} is a safetensors file, but not a model that cldnet wrote: check the path.")
        return tensors, _manifest(name, texts[_KEY], tensors)


def _manifest(name: str, text: str, tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Read a manifest, hold it and the tensors against its digest, and bring it up to date."""
    try:
        manifest = plain_json(text)
        version, signature = manifest["schema"], manifest.pop("digest", None)
        signed = json.dumps({**manifest, "digest": digest(manifest, tensors)})
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{name!r} has a damaged manifest: use the last good copy.") from error
    try:
        newest = migrate(manifest)
    except ValueError as error:
        raise ValueError(f"{name!r} cannot be read: {error}") from error
    # Version 1 had no digest: a file that says it is one and has one was something else before.
    if signature is not None if version == 1 else text != signed:
        raise ValueError(f"{name!r} holds something else than was written: use the last good copy.")
    return newest


def digest(manifest: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Digest of a manifest, and of each tensor's name, type, shape and numbers: of everything that a file says.

    Examples
    --------
    >>> import torch
    >>> digest({"epochs": 3}, {"a": torch.zeros(2)}) == digest({"epochs": 3}, {"a": torch.zeros(2, 1)})
    False
    """
    found = hashlib.sha256(json.dumps(manifest).encode())
    for name, tensor in sorted(tensors.items()):
        found.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        found.update(tensor_content(tensor.cpu()))
    return found.hexdigest()


@contextmanager
def enough_memory(what: str) -> Iterator[None]:
    """Say what there is not enough memory for, if that is what goes wrong; else leave errors as they are.

    Examples
    --------
    >>> with enough_memory("for the sums"):
    ...     raise RuntimeError("DefaultCPUAllocator: can't allocate memory")
    Traceback (most recent call last):
    ...
    MemoryError: There is not enough memory for the sums: close other programs, or use a larger machine.
    """
    try:
        yield
    except (ValueError, *ODD) as error:
        cause = lack_of_memory(error)
        if cause is None:
            raise
        raise MemoryError(
            f"There is not enough memory {what}: close other programs, or use a larger machine."
        ) from cause


def lack_of_memory(error: BaseException) -> BaseException | None:
    """Find the lack of memory that an error, or one that it was made of, tells of; nothing if it is about something else.

    Examples
    --------
    >>> lack_of_memory(RuntimeError("CUDA out of memory")), lack_of_memory(ValueError("labels"))
    (RuntimeError('CUDA out of memory'), None)
    """
    cause: BaseException | None = error
    while cause is not None:
        said = isinstance(cause, RuntimeError) and any(words in str(cause) for words in _NO_MEMORY)
        if said or isinstance(cause, MemoryError):
            return cause
        cause = cause.__cause__
    return None
