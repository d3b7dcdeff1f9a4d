"""A few hundred files of the fuzz test that anyone can run (``make fuzz-test``), and that it would tell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "fuzz.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}
forks = pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="processes are forked and bounded as Linux does"
)


@forks
def test_files_of_strangers_and_of_bad_disks_are_refused_or_harmless() -> None:
    command = [sys.executable, SCRIPT, "--store", "200", "--data", "100", "--seed", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "store: 200 files" in done.stdout
    assert "data: 100 files" in done.stdout
    assert all(verdict in done.stdout for verdict in (" refused", " equal", " taken", " read"))


HARMS = {
    "time.sleep(9)": "hang: no answer in 2 s",
    "sum(1 for _ in iter(int, 1))": "hang: too much processor time",
    "socket.socket()": "did socket.__new__",
    "socket.getaddrinfo(b'localhost', 80)": "did socket.getaddrinfo",
    "open('/etc/hostname')": "did open",
    "input()": "did builtins.input",
    "os.kill(os.getpid(), 11)": "crash: ended by SIGSEGV",
    "torch.empty(1 << 29)": "asked for memory beyond the bound: RuntimeError",
    "[None] * (1 << 29)": "asked for memory beyond the bound: MemoryError",
    "{}['labels']": "KeyError",
    "__import__('wave')": "did import",
    "os.system('true')": "did os.system",
    "open(path.with_name('extra'), 'w')": "did open",
    "pickle.loads(pickle.dumps(os.getcwd))": "did pickle.find_class",
    "exec('1')": "did",
    "masked(lambda: [None] * (1 << 29))": "asked for memory beyond the bound: MemoryError",
    "masked(lambda: torch.empty(1 << 29))": "asked for memory beyond the bound: RuntimeError",
    "masked(lambda: np.empty(1 << 29))": "asked for memory beyond the bound",
}


@forks
def test_it_tells_whatever_a_file_does(tmp_path: Path) -> None:
    lines = ", ".join(f"lambda: {harm}" for harm in HARMS)
    code = f"""
import numpy as np, os, pickle, socket, sys, time, torch
from pathlib import Path
sys.path.append({str(SCRIPT.parent)!r})
from fuzzing.guard import Bounds, Trial, judge, watched
path = Path("file")
def masked(harm):
    try:
        harm()
    except Exception as error:
        raise ValueError("This is not a whole model: restore a backup.") from error
harms = [{lines}]
def make(number):
    bounds = Bounds(reads=Path.cwd(), seconds=1, patience=60 if number else 2)  # the first one sleeps
    return Trial("", "", bounds, lambda watch: str(watched(harms[number], watch)))
for number, outcome in judge(range(len(harms)), make):
    print(outcome.detail, flush=True)  # or the next process, a fork of this one, might write it again
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=ENVIRONMENT)
    told = dict(zip(HARMS, done.stdout.splitlines(), strict=False))
    assert len(told) == len(done.stdout.splitlines()) == len(HARMS), done.stdout + done.stderr
    assert {harm: said for harm, said in told.items() if HARMS[harm] not in said} == {}, done.stderr
