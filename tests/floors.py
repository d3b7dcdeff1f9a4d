"""`make floors`: run tests with the lowest versions that pyproject.toml states, in an environment under build/floors.

The environment is kept, and made anew when a stated version changes. The CPU build of torch's floor is tried first; where it
cannot be had, the version in constraints.txt is tested instead, and the first line of the output says so.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
HOME = ROOT / "build" / "floors"
PYTHON = HOME / "bin" / "python"
CPU_BUILDS = "https://download.pytorch.org/whl/cpu"
#: What the tests themselves need, in any version that goes with the others.
TOOLS = ("pytest", "hypothesis", "pandas", "efficientnet-lite-pytorch", "safetensors")
#: One or more for each package: every command, model files, tables, photos, plots, searches, exports and pretrained nets.
TESTS = (
    "tests/cli/test_help.py",
    "tests/cli/test_models.py",
    "tests/cli/test_show.py",
    "tests/data/test_tables.py",
    "tests/data/images",
    "tests/data/test_arrays.py",
    "tests/bench/report",
    "tests/bench/test_tune.py",
    "tests/export/test_write_onnx.py",
    "tests/nets/test_efficientnet.py",
    "tests/nets/test_scale.py",
    "tests/nets/test_bert.py",
    "tests/nets/test_transformer.py",
    "tests/estimator/test_classifier.py",
    "tests/storage/test_model_files.py",
)
#: Their set-up needs a newer Pillow: the library only reads such files.
LEFT_OUT = ("tests/data/images/test_decode.py::test_sixteen_bits_are_scaled_and_not_clipped[pgm]",)


def floors() -> dict[str, str]:
    """The lowest version of each dependency, of the core and of the extras that users install."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = (stated for name, stated in project["optional-dependencies"].items() if name != "dev")
    stated = [*project["dependencies"], *(line for lines in extras for line in lines)]
    return dict(line.split(">=") for line in stated if not line.startswith("cldnet["))  # an extra that includes another


def pip(*arguments: str) -> bool:
    """Install into the environment, and tell whether that worked."""
    return subprocess.run([PYTHON, "-m", "pip", "install", "--quiet", *arguments], check=False).returncode == 0


def install(lowest: dict[str, str]) -> str:
    """Make the environment, and return the version of torch that it has."""
    venv.create(HOME, clear=True, with_pip=True)
    floor = lowest.pop("torch")
    pinned = re.search(r"^torch==(\S+)$", (ROOT / "constraints.txt").read_text("utf-8"), re.MULTILINE)
    assert pinned, "constraints.txt pins no torch"
    if not pip("--extra-index-url", CPU_BUILDS, "--retries", "0", f"torch=={floor}+cpu"):
        floor = pinned[1]
        if not pip(f"torch=={floor}"):
            sys.exit(f"torch {floor} cannot be installed.")
    if not pip(f"torch=={floor}", *TOOLS, *(f"{name}=={version}" for name, version in lowest.items())):
        sys.exit("The lowest versions cannot be installed together: raise those that pip names.")
    return floor


def main() -> None:
    """Run the tests, after making the environment if pyproject.toml states other versions than it has."""
    lowest, made = floors(), HOME / "made-of.txt"
    wanted = f"{sys.version}\n{TOOLS}\n{lowest}\n"
    if not made.exists() or not made.read_text("utf-8").startswith(wanted):
        made.unlink(missing_ok=True)
        made.write_text(f"{wanted}{install(dict(lowest))}", "utf-8")
    torch = made.read_text("utf-8").removeprefix(wanted)
    print(", ".join(f"{name} {version}" for name, version in {**lowest, "torch": torch}.items()))
    if not f"{torch}.".startswith(f"{lowest['torch']}."):
        print(f"There is no CPU build of torch {lowest['torch']} here: torch {torch} is tested instead.")
    sys.stdout.flush()
    # Old releases use what newer ones of their own dependencies deprecate: only errors count here.
    quiet = ("-p", "no:cacheprovider", "-W", "ignore::DeprecationWarning", "-W", "ignore::FutureWarning")
    left_out = (f"--deselect={test}" for test in LEFT_OUT)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    command = [PYTHON, "-m", "pytest", "-q", *quiet, *left_out, *TESTS]
    sys.exit(subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
