"""Files of a pretrained model: in a local folder, or on the hub under a model's name."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any


def find_file(name: str, file: str) -> Path | None:
    """Path of one of a model's files, in its folder or through the hub's cache; None if there is none."""
    folder = Path(name).expanduser()
    path = folder / file
    if not folder.is_dir():
        try:
            from huggingface_hub import hf_hub_download  # noqa: PLC0415  (comes with transformers)
        except (ImportError, RuntimeError) as error:
            raise ImportError(
                f"There is no folder {name!r}, and models on the hub need the package huggingface_hub: "
                f'pip install ".[text]" or ".[pretrained]" in a clone of CLDNet ({error}).'
            ) from error
        with suppress(Exception):  # no such name, no network, no rights
            path = Path(hf_hub_download(name, file))
    return path if path.is_file() else None


def read_json(name: str, file: str) -> dict[str, Any] | None:
    """One of a model's JSON files."""
    path = find_file(name, file)
    if path is None:
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is not JSON ({error}).") from error
    if not isinstance(found, dict):
        raise ValueError(f"{str(path)!r} should contain a JSON object.")
    return found
