"""Kill a bench again and again, start it again each time, and see that nothing is lost, halved or done twice.

    python tests/bench/kill.py specs/quick.toml --kills 20

An uninterrupted bench comes first. Then the same one is killed (``kill -9``, the whole process group, or only the process
that was started) at random moments; after each kill every result file must be whole, and no finished one may change. At the
end the tables of both must be the same, figure for figure. Exits with 1 if anything of this does not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cldnet.bench.results import read_folder
from cldnet.bench.summary import summarise


def start(spec: Path, folder: Path, jobs: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", "from cldnet.cli import main; main()", "bench", str(spec), "--out", str(folder)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([*command, "--jobs", str(jobs)], start_new_session=True, **quiet)


def finished(folder: Path) -> dict[str, tuple[int, int]]:
    """Result files that are there, each of which must be whole, with what would show that one was written again."""
    found = {}
    for path in folder.glob("*_seed*.json"):
        assert json.loads(path.read_bytes())["scores"], f"{path} is not whole"
        found[path.name] = (path.stat().st_mtime_ns, path.stat().st_ino)
    return found


def figures(folder: Path) -> dict[str, tuple[object, ...]]:
    """All that a table shows but the times."""
    found = read_folder(folder)
    rows = summarise(found.results, found.planned)
    return {f"{row.stream}, {row.name}": (row.seeds, row.accuracy, row.matrix, row.bytes_kept) for row in rows}


def kill(process: subprocess.Popen[bytes], draw: random.Random) -> str:
    """End everything at once, as a loss of power does, or only the process that was started, and its children follow."""
    if draw.random() < 0.5:
        os.killpg(process.pid, signal.SIGKILL)
        what = "all of it"
    else:
        process.kill()
        what = "its first process"
    process.wait()
    return what


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("spec", type=Path)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, default=None)
    chosen = parser.parse_args(arguments)
    draw = random.Random(chosen.seed)
    folder = chosen.folder or Path(tempfile.mkdtemp(prefix="kill-"))
    whole, killed = folder / "whole", folder / "killed"
    began = time.monotonic()
    assert start(chosen.spec, whole, chosen.jobs).wait() == 0, "the bench fails by itself"
    length = time.monotonic() - began
    print(f"uninterrupted: {len(finished(whole))} cells in {length:.0f} s", flush=True)
    before: dict[str, tuple[int, int]] = {}
    kills = 0
    while kills < chosen.kills:
        process = start(chosen.spec, killed, chosen.jobs)
        # From the first moment to half of a whole bench, so that some kills meet its beginning and some its end.
        moment = draw.uniform(0, length / 2)
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            what = kill(process, draw)
            kills += 1
        else:  # it was finished before: begin anew, so that every kill meets a bench at work
            what = "finished by itself"
            assert figures(killed) == figures(whole), "a finished table differs"
            for path in killed.glob("*.json"):
                path.unlink()
            before = {}
            continue
        now = finished(killed)
        assert all(now.get(name) == mark for name, mark in before.items()), "a finished cell was lost or written again"
        print(f"kill {kills} after {moment:.1f} s: {what}; {len(now)} cells are whole", flush=True)
        before = now
    assert start(chosen.spec, killed, chosen.jobs).wait() == 0, "the bench fails after the kills"
    now = finished(killed)
    assert all(now.get(name) == mark for name, mark in before.items()), "a finished cell was written again"
    assert figures(killed) == figures(whole), "the finished table differs from the uninterrupted one"
    left = [path for path in killed.rglob("*") if path.name.endswith((".tmp", ".draft"))]
    print(f"after {kills} kills the table is the same; {len(left)} temporary files were left behind", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
