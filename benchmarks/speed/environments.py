"""Environments made once in a cache: the peers', whose packages are never dependencies of ours, and a newcomer's."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from benchmarks.speed.apart import ROOT, environment

_SECONDS = 1800


class NotInstalledError(Exception):
    """The packages of a peer could not be had; the text says why."""


@dataclass(frozen=True)
class Environment:
    """Packages with their versions; what we have as well (torch, numpy) comes in our version.

    Code of a folder, if one is given, can be imported there too, as it is now.
    """

    name: str
    packages: tuple[str, ...]
    source: Path | None = None

    def folder(self) -> Path:
        """Where it lies: other packages, constraints or another Python make another folder."""
        recipe = "\n".join(
            [*self.packages, *([str(self.source)] * bool(self.source)), _constraints().read_text(), sys.version]
        )
        return _cache() / f"{self.name}-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"

    def python(self) -> Path:
        """Its interpreter, installed with all packages if that has not been done yet."""
        folder = self.folder()
        python, done = folder / "bin" / "python", folder / "installed"
        if done.exists():
            return python
        print(f"  installing {', '.join(self.packages)} into {folder}: some minutes, once", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(folder)])
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, "--constraint", str(_constraints()), *self.packages])
        if self.source is not None:
            (site,) = folder.glob("lib/python*/site-packages")
            (site / "source.pth").write_text(f"{self.source}\n")
        done.touch()
        return python


def _dependencies() -> tuple[str, ...]:
    """What `pip install .` brings with it, without extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return tuple(project["dependencies"])


#: torch and its companions are in our constraints; torchvision is the one that goes with that torch.
AVALANCHE = Environment("avalanche", ("avalanche-lib==0.6.0", "torch", "torchvision==0.28.0", "numpy"))
NEWCOMER = Environment("newcomer", _dependencies(), source=ROOT / "src")
RIVER = Environment("river", ("river==0.26.1", "numpy", "pandas"))


def _run(command: list[str]) -> None:
    try:
        done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=_SECONDS)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalledError(f"its packages could not be installed: {error}") from error
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if "ERROR" in line] or done.stderr.splitlines()
        why = lines[-1].strip() if lines else f"pip ended with {done.returncode}"
        raise NotInstalledError(f"its packages could not be installed: {why}")


def _cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cldnet-benchmarks"


def _constraints() -> Path:
    return ROOT / "constraints.txt"
