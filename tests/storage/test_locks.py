"""A few lessons of the lock test that anyone can run (``make lock-test``), and that it would tell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "locks.py"
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked, which this system cannot do")

CODE = f"""
import sys
from contextlib import nullcontext
sys.path.append({str(SCRIPT.parent)!r})
import cldnet.storage as store
import locks

small = ["--small", "--lessons", "30", "--processes", "8"]
locks.main(small)

# A library without locks that replaces whatever is there.
store.locked = locks.locked = lambda *path, **options: nullcontext()
store.SeenFiles.check_unchanged = lambda self, path: None
try:
    locks.main(small)
except AssertionError as error:
    print(error)
"""


def test_eight_processes_teach_one_file_and_no_lesson_is_lost_without_being_noticed() -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    well, without = done.stdout.split("every acknowledged lesson is there once")
    assert "killed" in well
    assert "acknowledged lessons are lost" in without
