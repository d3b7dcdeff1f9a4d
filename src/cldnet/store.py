"""A model on disk: one safetensors file whose header carries a JSON manifest and a digest of it all. Nothing in it can run."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cldnet.migrations import NEWEST, migrate

__all__ = ["SCHEMA", "digest", "read", "write", "write_atomically"]

#: Version of the file's layout.
SCHEMA = NEWEST
_KEY = "cldnet"  # one entry alone, since safetensors writes several in any order: the same model is the same file
#: Bytes that are compared at a time.
_PART = 1 << 20
#: What to do about the errors that a disk has.
_ADVICE = {
    errno.ENOENT: "make the folder first",
    errno.ENOTDIR: "what should be a folder is a file: choose another path",
    errno.EISDIR: "this is a folder: name a file in it",
    errno.EACCES: "choose a folder that you may write to",
    errno.EPERM: "choose a folder that you may write to",
    errno.EROFS: "choose a folder that you may write to",
    errno.ENOSPC: "make room on the disk, or choose another one",
    errno.EDQUOT: "make room within your quota, or choose another disk",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that it is there whole or not at all, whatever happens meanwhile; what was there before stays until then.

    Examples
    --------
    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> write_atomically(Path(folder.name) / "note.txt", b"whole")
    >>> (Path(folder.name) / "note.txt").read_bytes()
    b'whole'
    >>> folder.cleanup()
    """
    path = Path(path)
    # In the same folder, because a rename is atomic only within one file system.
    temporary = path.with_name(f".{path.name[:64]}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if not _holds(temporary, content):
            raise OSError(errno.EIO, "the disk gave back other bytes than were written")
        temporary.replace(path)
        _keep_name(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        advice = _ADVICE.get(error.errno or 0, "try again, or choose another disk")
        reason = (
            f"It could not be written ({error.strerror or error}), and what was there before is as it was: {advice}."
        )
        raise OSError(error.errno or errno.EIO, reason, os.fspath(path)) from error
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _holds(path: Path, content: bytes) -> bool:
    """Tell whether a file has this content, a part at a time: a model may have a gigabyte."""
    view = memoryview(content)
    with path.open("rb") as file:
        return all(
            file.read(_PART) == view[start : start + _PART] for start in range(0, len(view), _PART)
        ) and not file.read(1)


def _keep_name(folder: Path) -> None:
    """Have the folder's new entry on disk too, where the system can: after a loss of power the name leads to the new file."""
    if os.name != "posix":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> None:
    """Write tensors and a manifest to one file.

    Examples
    --------
    >>> import tempfile, torch
    >>> folder = tempfile.TemporaryDirectory()
    >>> write(Path(folder.name) / "model.cldnet", {"a": torch.ones(2)}, {"kind": "example"})
    >>> tensors, manifest = read(Path(folder.name) / "model.cldnet")
    >>> tensors["a"], manifest["kind"], manifest["schema"]
    (tensor([1., 1.]), 'example', 2)
    >>> folder.cleanup()
    """
    from safetensors.torch import save  # noqa: PLC0415  (only those who save need it)

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    said = {**manifest, "schema": SCHEMA}
    signed = {**said, "digest": digest(said, contiguous)}
    write_atomically(path, save(contiguous, metadata={_KEY: json.dumps(signed)}))


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and manifest back, or say in a sentence why the file is not a model."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415

    name = os.fspath(path)
    if not Path(path).is_file():
        raise FileNotFoundError(f"There is no model file {name!r}. Check the path, or save a model there first.")
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a dict)
    except (SafetensorError, ValueError, TypeError, RuntimeError) as error:  # the last three for types that torch lacks
        raise ValueError(f"{name!r} is not a whole safetensors file ({error}): use the last good copy.") from error
    if _KEY not in header:
        raise ValueError(f"{name!r} is a safetensors file, but not a model that cldnet wrote.")
    try:
        manifest = json.loads(header[_KEY])
        version = manifest["schema"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{name!r} has a damaged manifest: use the last good copy.") from error
    try:
        newest = migrate(manifest)
    except ValueError as error:
        raise ValueError(f"{name!r} cannot be read: {error}") from error
    if version > 1 and newest.pop("digest", None) != digest(newest, tensors):  # version 1 had no digest
        raise ValueError(f"{name!r} holds something else than was written: use the last good copy.")
    return tensors, newest


def digest(manifest: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Digest of a manifest, and of each tensor's name, type, shape and numbers: of everything that a file says.

    Examples
    --------
    >>> digest({"epochs": 3}, {"a": torch.zeros(2)}) == digest({"epochs": 3}, {"a": torch.zeros(2, 1)})
    False
    """
    found = hashlib.sha256(json.dumps(manifest).encode())
    for name, tensor in sorted(tensors.items()):
        found.update(f"\0{name}\0{tensor.dtype}\0{tuple(tensor.shape)}\0".encode())
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()
