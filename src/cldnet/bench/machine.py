"""What a run stood on: versions, machine, and the most memory that it held."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

import numpy as np
import torch

from cldnet.version import __version__

__all__ = ["cores", "machine_text", "peak_rss", "reset_peak_rss", "versions"]

_STATUS, _RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def versions() -> dict[str, str]:
    """Versions of what a result depends on.

    Examples
    --------
    >>> sorted(versions())
    ['cldnet', 'numpy', 'python', 'torch']
    """
    return {
        "cldnet": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def cores() -> int:
    """Count the processor cores that this process may use.

    Examples
    --------
    >>> cores() >= 1
    True
    """
    if hasattr(os, "sched_getaffinity"):  # in a container there may be fewer than the machine has
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def machine_text() -> str:
    """Say the machine's system, processor and cores in one line.

    Examples
    --------
    >>> machine_text().endswith(("core", "cores"))
    True
    """
    count = cores()
    processor = _processor()
    parts = [f"{platform.system()} {platform.machine()}", *([processor] if processor else [])]
    return ", ".join([*parts, f"{count} core{'' if count == 1 else 's'}"])


def _processor() -> str:
    file = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", file.read_text(errors="replace"), re.M) if file.is_file() else None
    return found[1].strip() if found else platform.processor()


def reset_peak_rss() -> None:
    """Begin to measure the most memory anew, where the system can (Linux); else it is the process's from its start."""
    try:
        _RESET.write_text("5")
    except OSError:
        return


def peak_rss() -> int | None:
    """Most memory that the process held since `reset_peak_rss`, in bytes; unknown on Windows.

    Examples
    --------
    >>> (peak_rss() or 1) > 0
    True
    """
    if sys.platform == "win32":
        return None
    if _STATUS.is_file():
        found = re.search(r"^VmHWM:\s*(\d+) kB$", _STATUS.read_text(), re.M)
        if found:
            return int(found[1]) * 1024
    import resource  # noqa: PLC0415  (Windows has no such module)

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
