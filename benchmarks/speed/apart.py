"""Call a function in a fresh process, where nothing is imported, cached or allocated yet."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
_CALL = (
    "import json, sys; from importlib import import_module; module, name, given = json.loads(sys.argv[1]); "
    "print(json.dumps(getattr(import_module(module), name)(**given)))"
)


def apart(
    function: Callable[..., Mapping[str, Any]], source: Path | None = None, python: Path | None = None, **given: Any
) -> dict[str, Any]:
    """What a function of a module returns in a process of its own; arguments and answer travel as JSON.

    ``source`` is a folder with another ``cldnet`` that is imported there, ``python`` the interpreter of another environment.
    """
    around = environment() | ({} if source is None else {"PYTHONPATH": str(source)})
    call = json.dumps([function.__module__, function.__qualname__, given])
    done = subprocess.run(
        [str(python or sys.executable), "-c", _CALL, call],
        cwd=ROOT,
        env=around,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{function.__qualname__} failed in a process of its own:\n{done.stderr}")
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def environment() -> dict[str, str]:
    """The surroundings of this process, without what a test or a debugger may have put there for Python."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def resident_bytes() -> int:
    """Memory that this process holds now (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
