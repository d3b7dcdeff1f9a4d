"""`tools/install.py`: where torch comes from, tested against a local index with a tiny wheel in torch's place."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import time
import venv
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "install.py"
NVIDIA_SMI = "#!/bin/sh\nexit {}\n"
#: An in-tree build backend, so that the project in the end-to-end test needs no build tools.
BACKEND = """
import zipfile
def build_editable(folder, config_settings=None, metadata_directory=None):
    with zipfile.ZipFile(folder + "/house-1-py3-none-any.whl", "w") as file:
        info = "house-1.dist-info/"
        file.writestr(info + "METADATA", "Metadata-Version: 2.1\\nName: house\\nVersion: 1\\nRequires-Dist: torch\\n")
        file.writestr(info + "WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        file.writestr(info + "RECORD", "")
    return "house-1-py3-none-any.whl"
"""
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder without a log."""

    def log_message(self, format: str, *args: object) -> None:
        pass


def write_wheel(folder: Path, name: str, version: str) -> Path:
    """Write the smallest wheel that pip installs."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    content = {
        f"{name}.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    digests = {
        path: base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        for path, text in content.items()
    }
    content[f"{info}/RECORD"] = "".join(f"{path},sha256={digest},\n" for path, digest in digests.items())
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as file:
        for path, text in content.items():
            file.writestr(zipfile.ZipInfo(path), text)  # without the time of day, which would change the hash
    return wheel


@pytest.fixture(scope="module")
def indexes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A CPU index and a default one, each with its own build of torch, and an index without any."""
    root = tmp_path_factory.mktemp("indexes")
    write_wheel(root / "cpu" / "torch", "torch", "9.9+cpu")
    write_wheel(root / "default" / "torch", "torch", "9.9")
    write_wheel(root / "default" / "brick", "brick", "1")
    (root / "empty" / "torch").mkdir(parents=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(root))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield {name: f"http://127.0.0.1:{server.server_port}/{name}" for name in ("cpu", "default", "empty")}
        server.shutdown()


@pytest.fixture
def closed() -> str:
    """An index on a port where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}/cpu"


@pytest.fixture
def hanging() -> Iterator[str]:
    """An index that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/cpu"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with pip in it."""
    folder = tmp_path_factory.mktemp("environment") / ".venv"
    venv.create(folder, with_pip=True)
    return folder


@pytest.fixture
def install(indexes: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script as a module, on a machine without a GPU whose pip knows the local default index alone."""
    for name in [name for name in os.environ if name.startswith("PIP_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", indexes["default"])
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    gpu(tmp_path, works=False)
    spec = importlib.util.spec_from_file_location("install", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def gpu(folder: Path, *, works: bool) -> None:
    """Put an nvidia-smi on the path that finds a GPU, or that finds none."""
    (folder / "nvidia-smi").write_text(NVIDIA_SMI.format(0 if works else 9))
    (folder / "nvidia-smi").chmod(0o755)


def install_torch(install: ModuleType, home: Path, cpu_index: str) -> tuple[str, str]:
    """Install torch into an empty environment; return its version and why it is not the CPU index's, if so."""
    python, constraints = home / "bin" / "python", home / "constraints.txt"
    constraints.write_text("torch==9.9\n")
    subprocess.run([python, "-m", "pip", "uninstall", "--quiet", "--yes", "torch"], check=True, stderr=subprocess.PIPE)
    reason = install.default_index_reason(cpu_index)
    assert install.install_torch(python, "9.9", cpu_index, reason, constraints)
    return install.installed_torch(python), reason


def test_torch_comes_from_the_cpu_index_if_that_answers(
    install: ModuleType, home: Path, indexes: dict[str, str]
) -> None:
    assert install_torch(install, home, indexes["cpu"]) == ("9.9+cpu", "")


def test_a_gpu_means_the_default_index(
    install: ModuleType, home: Path, indexes: dict[str, str], tmp_path: Path
) -> None:
    gpu(tmp_path, works=True)
    assert install_torch(install, home, indexes["cpu"]) == ("9.9", "this machine has an NVIDIA GPU")


def test_an_index_that_cannot_be_reached_means_the_default_index(install: ModuleType, home: Path, closed: str) -> None:
    assert install_torch(install, home, closed) == ("9.9", f"{closed} cannot be reached")


def test_an_index_that_hangs_is_given_up_soon(
    install: ModuleType, hanging: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert install.reachable.__defaults__ == (5.0,)
    monkeypatch.setattr(install.reachable, "__defaults__", (0.3,))
    begun = time.monotonic()
    assert install.default_index_reason(hanging) == f"{hanging} cannot be reached"
    assert time.monotonic() - begun < 3


def test_an_index_without_a_wheel_for_this_machine_means_the_default_index(
    install: ModuleType, home: Path, indexes: dict[str, str], capfd: pytest.CaptureFixture[str]
) -> None:
    assert install_torch(install, home, indexes["empty"])[0] == "9.9"
    assert f"{indexes['empty']} has no torch 9.9 for this machine" in capfd.readouterr().out


def test_progress_is_shown_while_pip_says_nothing(
    install: ModuleType, home: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(install, "QUIET", 0.01)
    assert install.pip(home / "bin" / "python", "check")
    assert " s, 0.0" in capfd.readouterr().out  # seconds, and gigabytes in .venv


def test_a_failure_shows_what_pip_says(install: ModuleType, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert not install.pip(home / "bin" / "python", "install", "--quiet", "nothing-of-this-name")
    assert "No matching distribution found for nothing-of-this-name" in capfd.readouterr().out


@pytest.mark.usefixtures("install")  # for its environment variables
def test_the_whole_installation_says_what_it_does_and_is_not_repeated(indexes: dict[str, str], tmp_path: Path) -> None:
    root = tmp_path / "clone"
    (root / "tools").mkdir(parents=True)
    (root / "requirements").mkdir()
    shutil.copy(SCRIPT, root / "tools")
    (root / "pyproject.toml").write_text(PROJECT)
    (root / "backend.py").write_text(BACKEND)
    (root / "constraints.txt").write_text("torch==9.9\n")
    digest = hashlib.sha256(write_wheel(tmp_path, "brick", "1").read_bytes()).hexdigest()
    lock = root / "requirements" / "demo.lock"

    def run() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "tools/install.py", "demo", "--cpu-index", indexes["cpu"]]
        return subprocess.run(command, cwd=root, capture_output=True, text=True)

    lock.write_text(f"brick==1 --hash=sha256:{'0' * 64}\n")
    failed = run()
    assert failed.returncode == 1
    assert "DO NOT MATCH THE HASHES" in failed.stdout
    assert "The installation failed" in failed.stderr

    lock.write_text(f"brick==1 --hash=sha256:{digest}\n")
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    first, *_, last = done.stdout.splitlines()
    assert first == f"Installing into {root / '.venv'}:"
    assert "the core and the plots: 1 packages, verified by hash; about 0.1 GB to download" in done.stdout
    assert f"torch 9.9 from {indexes['cpu']}; about 0.2 GB to download" in done.stdout
    assert last.startswith(f"Installed: {root / '.venv'} takes 0.0")
    assert last.endswith("with torch 9.9+cpu.")
    assert not (root / ".venv" / "tmp").exists()

    again = run()
    assert again.returncode == 0, again.stderr
    assert "torch 9.9 is there already" in again.stdout
    assert "Downloading torch" not in again.stdout
