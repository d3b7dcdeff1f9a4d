"""Storage of models: the file format, validation, migrations, checkpoints, locks. It knows no estimator."""

from __future__ import annotations

from cldnet.storage.disk import locked, sweep, write_atomically
from cldnet.storage.format import SCHEMA, FileChangedError, SeenFiles, digest, read, reading, write

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
