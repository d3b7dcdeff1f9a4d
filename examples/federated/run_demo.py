"""Run the whole demonstration on this machine: one server, three clients, one round, and the check.

python run_demo.py              with Flower's programs of the environment that this Python belongs to
python run_demo.py --drop 1     client 1 drops out: the round is refused and repeated with the other two
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

HERE = Path(__file__).parent
BIN = Path(sys.executable).parent
CLASSES = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"
#: Seconds until a server answers, and until a run is over.
_START, _RUN = 60, 600


def main() -> int:
    """Run Flower's server, its clients and one run; return 0 if the model has the bits of one model of all rows."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, help="for the map, the model and the logs; a temporary one by default")
    parser.add_argument("--drop", type=int, choices=range(3), help="the number of a client that drops out")
    asked = parser.parse_args()
    with ExitStack() as stack:
        folder = asked.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder = folder.resolve()
        folder.mkdir(parents=True, exist_ok=True)
        return run(folder, asked.drop)


def run(folder: Path, drop: int | None) -> int:
    """Run all of it, with files and logs in a folder."""
    os.environ |= {
        "FLWR_HOME": str(folder / "flwr"),
        "FLWR_TELEMETRY_ENABLED": "0",  # Flower reports its use to its makers otherwise
        "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",  # its programs call each other by name
        "OMP_NUM_THREADS": "1",
    }
    subprocess.run([sys.executable, "-m", "secure_sums.demo", "map", folder / "shared.map"], cwd=HERE, check=True)
    port, *others = free_ports(4)
    (folder / "flwr").mkdir(exist_ok=True)
    config = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (folder / "flwr" / "config.toml").write_text(config)
    with ExitStack() as stack:
        server = ["flower-superlink", "--insecure", "--port", str(port), "--disable-runtime-dependency-installation"]
        stack.enter_context(started(server, folder / "server.log"))
        wait_for_port(port)
        for client, own_port in enumerate(others):
            node = ["flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}", "--port", str(own_port)]
            node += ["--node-config", node_config(folder, client, drop)]
            stack.enter_context(started(node, folder / f"client{client}.log"))
        paths = f'map="{folder / "shared.map"}" model="{folder / "model.cldnet"}"'
        flower = [str(BIN / "flwr"), "run", str(HERE), "here", "--stream", "--run-config", paths]
        # The stream of a run ends with the run.
        shown = subprocess.run(flower, timeout=_RUN, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    print(shown.stdout)
    clients = [str(client) for client in range(3) if client != drop]
    checked = [sys.executable, "-m", "secure_sums.demo", "check", folder / "shared.map", folder / "model.cldnet"]
    return subprocess.run([*checked, *clients], cwd=HERE).returncode


def node_config(folder: Path, client: int, drop: int | None) -> str:
    """What one client is told when it is started."""
    least = 3 if drop is None else 2
    config = f'map="{folder / "shared.map"}" classes="{CLASSES}" client={client} least={least}'
    return f"{config} drops=true" if client == drop else config


@contextmanager
def started(command: list[str], log: Path) -> Iterator[None]:
    """Run one of Flower's programs, and end it afterwards."""
    with log.open("w") as file:
        process = subprocess.Popen([BIN / command[0], *command[1:]], stdout=file, stderr=subprocess.STDOUT)
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def free_ports(count: int) -> list[int]:
    """Find ports that nobody listens at."""
    with ExitStack() as stack:
        found = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in found:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in found]


def wait_for_port(port: int) -> None:
    """Wait until somebody listens at a port."""
    end = time.monotonic() + _START
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.3)


if __name__ == "__main__":
    sys.exit(main())
