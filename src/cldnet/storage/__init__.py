"""Storage of models: the file format, validation, migrations, checkpoints, locks. It knows no estimator."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cldnet.storage.disk import locked as locked
    from cldnet.storage.disk import sweep as sweep
    from cldnet.storage.disk import write_atomically as write_atomically
    from cldnet.storage.format import SCHEMA as SCHEMA
    from cldnet.storage.format import FileChangedError as FileChangedError
    from cldnet.storage.format import SeenFiles as SeenFiles
    from cldnet.storage.format import digest as digest
    from cldnet.storage.format import read as read
    from cldnet.storage.format import write as write
    from cldnet.storage.header import reading as reading

# Read on first use: a file's header can be read without torch.
_HOMES = {
    **dict.fromkeys(("locked", "sweep", "write_atomically"), "cldnet.storage.disk"),
    **dict.fromkeys(("SCHEMA", "FileChangedError", "SeenFiles", "digest", "read", "write"), "cldnet.storage.format"),
    "reading": "cldnet.storage.header",
}

__all__ = [
    "SCHEMA",
    "FileChangedError",
    "SeenFiles",
    "digest",
    "locked",
    "read",
    "reading",
    "sweep",
    "write",
    "write_atomically",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cldnet.storage' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
