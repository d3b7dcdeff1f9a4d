"""A model on disk: one safetensors file whose header carries a JSON manifest and a digest of it all. Nothing in it can run."""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cldnet.migrations import NEWEST, migrate

__all__ = ["SCHEMA", "digest", "read", "reading", "write", "write_atomically"]

#: Version of the file's layout.
SCHEMA = NEWEST
_KEY = "cldnet"  # one entry alone, since safetensors writes several in any order: the same model is the same file
#: Bytes that are compared at a time.
_PART = 1 << 20
#: Seconds after which a half-written file is nobody's: a younger one may be that of another process, which writes right now.
_ABANDONED = 3600.0
_MOST_LISTS = 10_000
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*"')
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
    errno.EEXIST: "name a file of its own",
}
_log = logging.getLogger("cldnet")


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
    temporary = path.parent / f"{_draft_of(path)}{secrets.token_hex(8)}.tmp"
    try:
        _check_place(path)
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if not _holds(temporary, content):
            raise OSError(errno.EIO, "the disk gave back other bytes than were written")
        temporary.replace(path)
    except OSError as error:
        _discard(temporary)
        advice = _ADVICE.get(error.errno or 0, "try again, or choose another disk")
        reason = (
            f"It could not be written ({error.strerror or error}), and what was there before is as it was: {advice}."
        )
        raise OSError(error.errno or errno.EIO, reason, os.fspath(path)) from error
    except BaseException:
        _discard(temporary)
        raise
    _keep_name(path)  # from here on the file is written: whatever fails must not say otherwise
    _sweep(path)


def _check_place(path: Path) -> None:
    """Refuse what is there and is no file: a rename would put one in the place of a device, such as the system's /dev/null."""
    if path.is_dir():
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    if path.exists() and not path.is_file():
        raise OSError(errno.EEXIST, "what is there is no file")


def _draft_of(path: Path) -> str:
    """How the names of half-written files begin that are to become this one."""
    return f".{path.name[:64]}."


def _discard(temporary: Path) -> None:
    """Remove a half-written file if the disk lets us; what is wrong already is what the user has to hear of."""
    with suppress(OSError):
        temporary.unlink(missing_ok=True)


def _holds(path: Path, content: bytes) -> bool:
    """Tell whether a file has this content, a part at a time: a model may have a gigabyte."""
    view = memoryview(content)
    with path.open("rb") as file:
        return all(
            file.read(_PART) == view[start : start + _PART] for start in range(0, len(view), _PART)
        ) and not file.read(1)


def _keep_name(path: Path) -> None:
    """Have the folder's new entry on disk too, where the system can: after a loss of power the name leads to the new file."""
    if os.name != "posix":
        return
    try:
        handle = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        _log.warning(
            "%s is written, but its folder could not be brought to disk (%s): after a loss of power the name may lead to the "
            "file before, which is whole, too.",
            path,
            error.strerror or error,
        )


def _sweep(path: Path) -> None:
    """Remove what writers of this file left half-written that were killed long ago."""
    draft = re.compile(re.escape(_draft_of(path)) + "[0-9a-f]{16}[.]tmp")
    with suppress(OSError):
        now = path.stat().st_mtime  # by the clock of the disk, which may be another machine's
        with os.scandir(path.parent) as entries:
            for entry in entries:
                if draft.fullmatch(entry.name) and now - entry.stat(follow_symlinks=False).st_mtime > _ABANDONED:
                    _discard(path.with_name(entry.name))


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> None:
    """Write tensors and a manifest to one file.

    Examples
    --------
    >>> import tempfile, torch
    >>> folder = tempfile.TemporaryDirectory()
    >>> write(Path(folder.name) / "model.cldnet", {"a": torch.ones(2)}, {"kind": "example"})
    >>> tensors, manifest = read(Path(folder.name) / "model.cldnet")
    >>> tensors["a"], manifest["kind"], manifest["schema"]
    (tensor([1., 1.]), 'example', 3)
    >>> folder.cleanup()
    """
    from safetensors.torch import save  # noqa: PLC0415  (only those who save need it)

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    said = {**manifest, "schema": SCHEMA}
    signed = {**said, "digest": digest(said, contiguous)}
    write_atomically(path, save(contiguous, metadata={_KEY: json.dumps(signed)}))


@contextmanager
def reading(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn what a disk says while a file is looked for or read into a sentence.

    Examples
    --------
    >>> with reading("model"):
    ...     raise PermissionError(errno.EACCES, "Permission denied")
    Traceback (most recent call last):
    ...
    PermissionError: [Errno 13] It could not be read (Permission denied): see that you may read it, and that ...: 'model'
    """
    try:
        yield
    except OSError as error:
        reason = (
            f"It could not be read ({error.strerror or error}): see that you may read it, and that the disk is whole."
        )
        raise OSError(error.errno or errno.EIO, reason, os.fspath(path)) from error


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and manifest back, or say in a sentence why the file is not a model."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415

    name = os.fspath(path)
    with reading(path):
        there = Path(path).is_file()
    if not there:
        raise FileNotFoundError(f"There is no model file {name!r}. Check the path, or save a model there first.")
    try:
        with reading(path), safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  (not a dict)
    except (SafetensorError, ValueError, TypeError, RuntimeError) as error:  # the last three for types that torch lacks
        raise ValueError(f"{name!r} is not a whole safetensors file ({error}): use the last good copy.") from error
    if _KEY not in header:
        raise ValueError(f"{name!r} is a safetensors file, but not a model that cldnet wrote: check the path.")
    try:
        _check_lists(header[_KEY])
        manifest = json.loads(header[_KEY])
        version, signature = manifest["schema"], manifest.pop("digest", None)
        _check_plain(manifest)
        found = digest(manifest, tensors)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{name!r} has a damaged manifest: use the last good copy.") from error
    try:
        newest = migrate(manifest)
    except ValueError as error:
        raise ValueError(f"{name!r} cannot be read: {error}") from error
    # Version 1 had no digest: a file that says it is one and has one was something else before.
    if signature != (found if version > 1 else None):
        raise ValueError(f"{name!r} holds something else than was written: use the last good copy.")
    return tensors, newest


def _check_lists(text: str) -> None:
    """Refuse more lists and objects than any manifest has: a million of them, one in another, take seconds to read."""
    for shown in (text, _TEXT.sub("", text)):  # the second look, without what stands in quotes, is for odd labels alone
        if shown.count("[") + shown.count("{") <= _MOST_LISTS:
            return
    raise ValueError("lists within lists")


def _check_plain(manifest: Any) -> None:
    """Refuse numbers that no manifest of ours has, and that would surprise whoever computes with them."""
    waiting = [manifest]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict | list):
            waiting.extend(value.values() if isinstance(value, dict) else value)
        elif isinstance(value, float) and not isfinite(value):
            raise ValueError(f"{value} is no number")
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            raise ValueError("a number is beyond 64 bits")


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
