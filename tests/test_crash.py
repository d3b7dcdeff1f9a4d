"""A few kills of the crash test that anyone can run (``make crash-test``), and that it would tell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("crash.py")
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked, which this system cannot do")


def run(*command: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, env=environment)


@forks
def test_a_model_that_is_killed_while_it_learns_loses_nothing_and_ends_in_the_same_bits() -> None:
    """One kill of each kind for each solver: midway, while it saves, and at any time."""
    done = run(SCRIPT, "--kills", "3")
    assert done.returncode == 0, done.stderr
    assert all(f"{solver}: nothing lost, nothing corrupt\n" in done.stdout for solver in ("exact", "hbo"))


#: What a library could do wrong, and what the crash test says to it.
HARMS = {
    "checkpoints_are_not_read": "only 0 sessions were gone on with",
    "a_step_is_left_out": "differs from that of an undisturbed run",
    "models_are_not_saved": "sessions were saved, 0 are there",
    "models_are_halved": "a process failed",
}
CODE = f"""
import sys
from dataclasses import replace
sys.path.append({str(SCRIPT.parent)!r})
import crash
from cldnet.midway import MidwayFile

begun, save = MidwayFile.begun, crash.CLDNetClassifier.save

def checkpoints_are_not_read(self, *arguments, **named):
    begun(self, *arguments, **named)

def a_step_is_left_out(self, *arguments, **named):
    midway = begun(self, *arguments, **named)
    return midway and replace(midway, batches=midway.batches + 1)

def models_are_not_saved(self, path):
    if len(self.classes_) > 8:
        save(self, path)

def models_are_halved(self, path):
    save(self, path)
    path.write_bytes(path.read_bytes()[:-1])

crash.EPOCHS = 2
for harm in ({", ".join(HARMS)}):
    of_models = harm.__name__.startswith("models")
    MidwayFile.begun, crash.CLDNetClassifier.save = (begun, harm) if of_models else (harm, save)
    try:
        crash.main(["--kills", "3", "--solver", "hbo"])
        said = "nothing"
    except AssertionError as error:
        said = error
    print(f"{{harm.__name__}}: {{said}}")
"""


@forks
def test_it_tells_whatever_is_lost() -> None:
    done = run("-c", CODE)
    told = dict(line.split(": ", 1) for line in done.stdout.splitlines() if line.split(":")[0] in HARMS)
    assert told.keys() == HARMS.keys(), done.stderr
    assert {harm: said for harm, said in told.items() if HARMS[harm] not in said} == {}, done.stderr
