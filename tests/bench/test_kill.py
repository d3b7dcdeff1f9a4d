"""A bench that is killed again and again; `make kill-test` does it twenty times to a larger one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SPEC = """
streams = ["split-digits,until=2"]
methods = ["exact"]
seeds = [0, 1, 2]
"""


def test_a_bench_that_is_killed_twice_gives_what_an_unharmed_one_gives(tmp_path: Path) -> None:
    spec = tmp_path / "small.toml"
    spec.write_text(SPEC)
    script = Path(__file__).with_name("kill.py")
    command = [sys.executable, str(script), str(spec), "--kills", "2", "--jobs", "1", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "after 2 kills the table is the same" in done.stdout
