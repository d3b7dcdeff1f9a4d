"""Install CLDNet from a clone into ``.venv``: ``python3 tools/install.py demo``, or ``test`` to add the test tools.

Packages come from ``requirements/demo.lock`` or ``requirements/test.lock``, by hash. torch is the exception, because its
builds differ by index: PyTorch's index of CPU wheels is tried first, and pip's default index is used if that index cannot
be reached or if this machine has an NVIDIA GPU. This script runs before anything is installed, so it needs only the
standard library.
"""

from __future__ import annotations

import argparse
import os
import queue
import re
import shutil
import ssl
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
#: What each set of packages is, and its download and size on disk without torch.
SETS = {
    "demo": ("the core and the plots", "0.1 GB", "0.5 GB"),
    "test": ("the core, all extras and the test tools", "0.4 GB", "1.5 GB"),
}
CPU_SIZE = "about 0.2 GB to download, 0.8 GB on disk"
CUDA_SIZE = "on Linux usually the CUDA build: about 3 GB to download, 5 GB on disk"
#: Seconds without output from pip after which the progress is shown.
QUIET = 10.0
_SHOWN = ("Downloading", "Using cached", "Processing", "Installing", "ERROR")


def has_gpu() -> bool:
    """Tell whether this machine has an NVIDIA GPU with a driver."""
    command = shutil.which("nvidia-smi")
    try:
        return command is not None and subprocess.run([command], capture_output=True, timeout=20).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def reachable(index: str, timeout: float = 5.0) -> bool:
    """Tell whether an index answers a request for torch in time; one attempt."""
    # pip verifies the certificate with its own list when it downloads. Here only an answer counts, and nothing is read.
    unverified = ssl.create_default_context()
    unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(f"{index.rstrip('/')}/torch/", timeout=timeout, context=unverified):
            return True
    except (OSError, ValueError):
        return False


def default_index_reason(cpu_index: str) -> str:
    """Say why torch has to come from pip's default index; empty if the CPU index will do."""
    if has_gpu():
        return "this machine has an NVIDIA GPU"
    return "" if reachable(cpu_index) else f"{cpu_index} cannot be reached"


def pinned_torch(root: Path = ROOT) -> str:
    """Read the version of torch that the library is tested with."""
    found = re.search(r"^torch==(\S+)$", (root / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    if found is None:
        raise SystemExit("constraints.txt has no line torch==VERSION.")
    return found[1]


def has_pip(python: Path) -> bool:
    """Tell whether there is an environment already, and it works."""
    return (
        python.exists() and subprocess.run([str(python), "-m", "pip", "--version"], capture_output=True).returncode == 0
    )


def installed_torch(python: Path) -> str:
    """Read the version of torch that an environment has; empty if it has none."""
    code = "from importlib.metadata import version; print(version('torch'))"
    if not python.exists():
        return ""
    return subprocess.run([str(python), "-c", code], capture_output=True, text=True).stdout.strip()


def size_of(folder: Path) -> str:
    """Size of a folder in GB."""
    sizes = (os.lstat(os.path.join(where, name)).st_size for where, _, names in os.walk(folder) for name in names)
    try:
        return f"{sum(sizes) / 1e9:.2f} GB"
    except FileNotFoundError:  # pip removed a temporary file in the meantime
        return "? GB"


def pip(python: Path, *arguments: str) -> bool:
    """Run pip and show its progress; tell whether it succeeded."""
    home = python.parents[1]
    downloads = home / "tmp"  # inside the environment, so that its size shows how a download gets on
    downloads.mkdir(exist_ok=True)
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--no-color", *arguments]
    environment = {**os.environ, "TMPDIR": str(downloads), "PYTHONUNBUFFERED": "1", "PIP_PROGRESS_BAR": "off"}
    begun, output = time.monotonic(), []
    lines: queue.Queue[str] = queue.Queue()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment
    ) as process:
        threading.Thread(target=_forward, args=(process, lines), daemon=True).start()
        while True:
            try:
                line = lines.get(timeout=QUIET)
            except queue.Empty:
                print(
                    f"  … {time.monotonic() - begun:.0f} s, {size_of(home)} in {home.name}, downloads included",
                    flush=True,
                )
                continue
            if not line:
                break
            output.append(line)
            if line.strip().startswith(_SHOWN) and ".metadata" not in line:
                print(f"  {line.strip():.118}", flush=True)
    shutil.rmtree(downloads, ignore_errors=True)
    if process.returncode:
        print("".join(output[-20:]), flush=True)
    return process.returncode == 0


def _forward(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    """Put a process's lines into a queue, and an empty text after the last one."""
    for line in process.stdout or ():
        lines.put(line)
    lines.put("")


def install_torch(python: Path, version: str, cpu_index: str, reason: str, constraints: Path) -> bool:
    """Install torch from the CPU index, or from the default one if there is a reason to or the CPU index has no wheel."""
    if not reason:
        # Its dependencies are in the lock.
        if pip(
            python,
            "install",
            "--no-deps",
            "--timeout=20",
            "--retries=1",
            f"--index-url={cpu_index}",
            f"torch=={version}",
        ):
            return True
        print(f"{cpu_index} has no torch {version} for this machine: trying pip's default index.", flush=True)
    return pip(python, "install", "--constraint", str(constraints), f"torch=={version}")


def install(kind: str, cpu_index: str = CPU_INDEX, root: Path = ROOT) -> None:
    """Make ``.venv`` if need be, install one of `SETS` and torch, and print what is done, why, and the size."""
    home, lock, version = root / ".venv", root / "requirements" / f"{kind}.lock", pinned_torch(root)
    python = home / ("Scripts" if os.name == "nt" else "bin") / "python"
    what, download, disk = SETS[kind]
    packages = len(re.findall(r"^[\w.-]+==", lock.read_text("utf-8"), re.MULTILINE))
    there = installed_torch(python).partition("+")[0] == version
    reason = "" if there else default_index_reason(cpu_index)
    print(f"Installing into {home}:")
    print(f"- {what}: {packages} packages, verified by hash; about {download} to download, {disk} on disk")
    if there:
        print(f"- torch {version} is there already")
    elif reason:
        size = CUDA_SIZE if sys.platform == "linux" else CPU_SIZE
        print(f"- torch {version} from pip's default index, because {reason}; {size}")
    else:
        print(f"- torch {version} from {cpu_index}; {CPU_SIZE}")
    print("Packages that are there already are not downloaded again.", flush=True)
    if not has_pip(python) and subprocess.run([sys.executable, "-m", "venv", str(home)]).returncode:
        raise SystemExit("Python could not make an environment. On Debian and Ubuntu: apt install python3-venv")
    done = (
        pip(python, "install", "--no-deps", "--require-hashes", "--requirement", str(lock))
        and (there or install_torch(python, version, cpu_index, reason, root / "constraints.txt"))
        and pip(python, "install", "--no-deps", "--no-build-isolation", "--editable", str(root))
        and pip(python, "check")
    )
    if not done:
        raise SystemExit("The installation failed; pip says why above. Run the command again to resume it.")
    print(f"Installed: {home} takes {size_of(home)}, with torch {installed_torch(python)}.", flush=True)


def main() -> None:
    """Read the command line."""
    if sys.version_info < (3, 11):
        raise SystemExit(
            f"CLDNet needs Python 3.11 or newer, this is {sys.version.split()[0]}: make PYTHON=python3.12 …"
        )
    parser = argparse.ArgumentParser(description="Install CLDNet from a clone into .venv.")
    parser.add_argument("kind", choices=SETS)
    parser.add_argument("--cpu-index", default=CPU_INDEX, help="index of torch's CPU wheels (default: %(default)s)")
    chosen = parser.parse_args()
    install(chosen.kind, chosen.cpu_index)


if __name__ == "__main__":
    main()
