"""What tests look at in folders."""

from __future__ import annotations

from pathlib import Path

__all__ = ["files_in"]


def files_in(folder: Path) -> list[Path]:
    """Everything in a folder but the lock files, which stay."""
    return sorted(path for path in folder.iterdir() if path.suffix != ".lock")
