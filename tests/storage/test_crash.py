"""A few kills of the crash test that anyone can run (``make crash-test``), and that it would tell.

Both happen in one process: importing everything takes as long as a run.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "crash.py"

#: What a library could do wrong, and what the crash test says to it.
HARMS = {
    "checkpoints_are_not_read": "only 0 sessions were gone on with",
    "a_step_is_left_out": "differs from that of an undisturbed run",
    # On a slow machine the session that was not saved has left a checkpoint, which the next one refuses.
    "models_are_not_saved": "sessions were saved, 0 are there|a process failed",
    "models_are_halved": "a process failed",
}
CODE = f"""
import sys
from dataclasses import replace
sys.path.append({str(SCRIPT.parent)!r})
import crash
from cldnet.storage.checkpoint import SessionCheckpoint

begun, save = SessionCheckpoint.resume, crash.CLDNetClassifier.save

def checkpoints_are_not_read(self, *arguments, **named):
    begun(self, *arguments, **named)

def a_step_is_left_out(self, *arguments, **named):
    midway = begun(self, *arguments, **named)
    return midway and replace(midway, batches=midway.batches + 1)

def models_are_not_saved(self, path):
    pass

def models_are_halved(self, path):
    save(self, path)
    path.write_bytes(path.read_bytes()[:-1])

crash.EPOCHS = 2
crash.main(["--kills", "3"])  # one of each kind: midway, while it saves, and at any time
for harm in ({", ".join(HARMS)}):
    of_models = harm.__name__.startswith("models")
    SessionCheckpoint.resume, crash.CLDNetClassifier.save = (begun, harm) if of_models else (harm, save)
    try:
        crash.main(["--kills", "3", "--solver", "hbo"])
        said = "nothing"
    except AssertionError as error:
        said = error
    print(f"{{harm.__name__}}: {{said}}")
"""


@pytest.fixture(scope="module")
def done() -> subprocess.CompletedProcess[str]:
    if not hasattr(os, "fork"):
        pytest.skip("processes are forked, which this system cannot do")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=environment)


def test_a_model_that_is_killed_while_it_learns_loses_nothing_and_ends_in_the_same_bits(
    done: subprocess.CompletedProcess[str],
) -> None:
    assert done.returncode == 0, done.stderr
    assert all(f"{solver}: nothing lost, nothing corrupt\n" in done.stdout for solver in ("exact", "hbo"))


def test_it_tells_whatever_is_lost(done: subprocess.CompletedProcess[str]) -> None:
    told = dict(line.split(": ", 1) for line in done.stdout.splitlines() if line.split(":")[0] in HARMS)
    assert told.keys() == HARMS.keys(), done.stderr
    assert {harm: said for harm, said in told.items() if not re.search(HARMS[harm], said)} == {}, done.stderr
