"""A few kills of the crash test that anyone can run (``make crash-test``)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked, which this system cannot do")
@pytest.mark.parametrize("solver", ["exact", "hbo"])
def test_a_model_that_is_killed_while_it_learns_loses_nothing_and_ends_in_the_same_bits(solver: str) -> None:
    script = Path(__file__).with_name("crash.py")
    command = [sys.executable, script, "--kills", "5", "--solver", solver]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"{solver}: nothing lost, nothing corrupt\n")
