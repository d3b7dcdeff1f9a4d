"""A model on disk: one safetensors file whose header carries a JSON manifest. Nothing in it can be executed."""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

__all__ = ["SCHEMA", "read", "write", "write_atomically"]

#: Version of the file's layout.
SCHEMA = 1
_KEY = "cldnet"


def write_atomically(path: str | os.PathLike[str], content: bytes) -> None:
    """Write a file so that it is there whole or not at all, whatever happens meanwhile.

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
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write(path: str | os.PathLike[str], tensors: Mapping[str, Tensor], manifest: Mapping[str, Any]) -> None:
    """Write tensors and a manifest to one file.

    Examples
    --------
    >>> import tempfile, torch
    >>> folder = tempfile.TemporaryDirectory()
    >>> write(Path(folder.name) / "model.cldnet", {"a": torch.ones(2)}, {"kind": "example"})
    >>> tensors, manifest = read(Path(folder.name) / "model.cldnet")
    >>> tensors["a"], manifest["kind"], manifest["schema"]
    (tensor([1., 1.]), 'example', 1)
    >>> folder.cleanup()
    """
    from safetensors.torch import save  # noqa: PLC0415  (only those who save need it)

    header = {_KEY: json.dumps({"schema": SCHEMA, **manifest})}
    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, save(contiguous, metadata=header))


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read tensors and manifest back, or say in a sentence why the file is not a model."""
    from safetensors import SafetensorError, safe_open  # noqa: PLC0415

    if not Path(path).is_file():
        raise FileNotFoundError(
            f"There is no model file {os.fspath(path)!r}. Check the path, or save a model there first."
        )
    try:
        with safe_open(path, framework="pt") as file:
            header = (file.metadata() or {}).get(_KEY)
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except SafetensorError as error:
        raise ValueError(
            f"{os.fspath(path)!r} is not a whole safetensors file ({error}): use the last good copy."
        ) from error
    if header is None:
        raise ValueError(f"{os.fspath(path)!r} is a safetensors file, but not a model that cldnet wrote.")
    try:
        manifest = json.loads(header)
        schema = manifest["schema"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{os.fspath(path)!r} has a damaged manifest: use the last good copy.") from error
    if schema != SCHEMA:
        raise ValueError(
            f"{os.fspath(path)!r} has layout {schema}, this version reads {SCHEMA}: install a newer cldnet."
        )
    return tensors, manifest
