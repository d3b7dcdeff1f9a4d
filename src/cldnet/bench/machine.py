"""What a run depends on: versions, machine, and the most memory that it used."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path

import numpy as np
import torch

from cldnet.version import __version__


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    python = platform.python_version()
    return {"cldnet": __version__, "torch": torch.__version__, "numpy": np.__version__, "python": python}


def cores() -> int:
    """Count the processor cores that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine_text() -> str:
    """Describe the machine's system, processor and cores in one line."""
    count, info = cores(), Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", info.read_text(errors="replace"), re.M) if info.is_file() else None
    processor = found[1].strip() if found else platform.processor()
    parts = [f"{platform.system()} {platform.machine()}", *([processor] if processor else [])]
    return ", ".join([*parts, f"{count} core{'' if count == 1 else 's'}"])


def reset_peak_rss() -> None:
    """Reset the measurement of peak memory (Linux only); elsewhere it counts from the start of the process."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return


def peak_rss() -> int | None:
    """Most memory that the process used since `reset_peak_rss`, in bytes; None on Windows."""
    if sys.platform == "win32":
        return None
    status = Path("/proc/self/status")
    found = re.search(r"^VmHWM:\s*(\d+) kB$", status.read_text(), re.M) if status.is_file() else None
    if found:
        return int(found[1]) * 1024
    import resource  # noqa: PLC0415  (Windows has no such module)

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
