"""Spoil and forge files of every kind that the library reads, and see that it refuses them in a sentence or is not harmed.

    python tests/fuzz.py --store 20000 --data 2000

Files are loaded by processes that are forked from this one, which has everything imported. Whatever the file, its process
takes at most 5 seconds of processor time, and memory of four times the file's size and 512 MiB on top of what it had. It
imports, runs and starts nothing, opens no socket, asks nobody, reads no file outside of its folder (the store's), and writes
nowhere but into it. What it raises is a ValueError or an OSError with a sentence.

A file of the store (models and maps over every kind of backbone, statistics, sessions, older layouts) that was spoiled is
refused, or the object is the one that was written: saved again, it is the same file, byte for byte. A forged one, whose
digest was computed afresh, may also be another model that can be: it answers with finite numbers, or refuses in a sentence,
and is saved and loaded again. So may a spoiled one of the first layout, which had no digest. Files of data have none either,
so that a changed pixel cannot be told: they are refused, or give finite inputs with a label each. Whoever refuses a file for
want of memory has asked for it: that is no refusal.

Exits with 1 if anything of this does not hold; every such file is named, with its number, by which ``--only`` repeats it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
os.environ["OMP_STACKSIZE"] = (
    "1M"  # as torch reads it when it is imported: addresses are bounded here, and stacks take many
)

import torch

from fuzzing import datafiles, storefiles
from fuzzing.guard import Bounds, Trial, ViolationError, Watch, judge

#: From one line of progress to the next.
STEP = 2000
#: Bytes that data are taken for, which are unpacked: their readers have limits of their own.
MEMORY = 1 << 27


class Place:
    """A folder for one file at a time, with a guard around it: what is written beside it is found."""

    def __init__(self, root: Path) -> None:
        self.root, self.mark = root, root / "outside" / "mark"
        self.folder = root / "outside" / "a" / "b" / "c"

    def clear(self) -> None:
        shutil.rmtree(self.root / "outside", ignore_errors=True)
        self.folder.mkdir(parents=True)

    def check(self) -> None:
        """Refuse what was written outside of the folder."""
        outside = self.root / "outside"
        found = [path for path in (outside, outside / "a", outside / "a" / "b") for path in path.iterdir()]
        strange = [path.name for path in found if path.name not in ("a", "b", "c")]
        if strange:
            raise ViolationError(f"wrote {strange} outside of its folder")


def fuzz_store(number: int, seed: int, place: Place, originals: Path) -> Trial:
    """Make one file of the store to be tried."""
    draw = random.Random(f"{seed} store {number}")
    name = storefiles.kind_of(number)
    place.clear()
    original, path = originals / name, place.folder / "file"
    way, forged, note = storefiles.mutate(original, path, draw, place.mark)
    whole = (originals / "again" / name).read_bytes()

    def work(watch: Watch) -> str:
        said = storefiles.verdict(storefiles.KINDS[name], path, whole, forged, watch)
        place.check()
        return said

    size = path.stat().st_size if path.is_file() else 0
    return Trial(f"{name}: {way}", note, Bounds(reads=place.folder, size=size), work)


def fuzz_data(number: int, seed: int, place: Place, originals: Path) -> Trial:
    """Make one file of data to be tried."""
    draw = random.Random(f"{seed} data {number}")
    name = list(datafiles.KINDS)[number % len(datafiles.KINDS)]
    place.clear()
    folder = place.folder / "data"
    shutil.copytree(originals / name, folder)
    way, note = datafiles.mutate(name, folder, draw, place.mark)

    def work(watch: Watch) -> str:
        said = datafiles.verdict(name, folder, place.folder, watch)
        place.check()
        return said

    return Trial(f"{name}: {way}", note, Bounds(writes=place.folder, size=MEMORY), work)


def campaign(
    part: str,
    numbers: range,
    seed: int,
    place: Place,
    originals: Path,
    one: Callable[[int, int, Place, Path], Trial],
) -> int:
    """Try many files; print how it goes, every violation, and what became of them; tell how many violations there were."""
    counts: Counter[tuple[str, str]] = Counter()
    violations, begun = 0, time.monotonic()
    for number, outcome in judge(numbers, lambda number: one(number, seed, place, originals)):
        kind, verdict = outcome.kind, outcome.verdict
        counts[kind, verdict or "VIOLATION"] += 1
        if verdict is None:
            violations += 1
            print(f"VIOLATION {part} {number} (seed {seed}), {kind}: {outcome.note}: {outcome.detail}", flush=True)
        elif len(numbers) == 1:
            print(f"{part} {number}, {kind}: {outcome.note}: {verdict}", flush=True)
        if (number + 1) % STEP == 0:
            rate = (number + 1 - numbers.start) / (time.monotonic() - begun)
            print(f"{part}: {number + 1} files, {violations} violations, {rate:.0f} a second", flush=True)
    print(f"{part}: {len(numbers)} files in {time.monotonic() - begun:.0f} s, {violations} violations", flush=True)
    for kind in sorted({kind for kind, _ in counts}):
        each = sorted((verdict, count) for (found, verdict), count in counts.items() if found == kind)
        print(f"  {kind:44} " + ", ".join(f"{count} {verdict}" for verdict, count in each), flush=True)
    return violations


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", type=int, default=20_000, help="files of the store")
    parser.add_argument("--data", type=int, default=2_000, help="files of data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="PART:NUMBER", help="one file again, as store:17 or data:3")
    chosen = parser.parse_args(arguments)
    # Before pyarrow is imported: its own pools reserve more addresses than a process may have here.
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    threading.stack_size(1 << 20)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of torch, over what is forged
    parts = {"store": (chosen.store, storefiles, fuzz_store), "data": (chosen.data, datafiles, fuzz_data)}
    if chosen.only is not None:
        part, _, number = chosen.only.partition(":")
        parts = {part: (range(int(number), int(number) + 1), *parts[part][1:])}  # type: ignore[dict-item]
    violations = 0
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        place = Place(Path(folder))
        for part, (count, files, one) in parts.items():
            numbers = count if isinstance(count, range) else range(count)
            if not numbers:
                continue
            originals = Path(folder) / part
            files.prepare(originals)
            violations += campaign(part, numbers, chosen.seed, place, originals, one)
    print(
        f"{violations} violations" if violations else "nothing crashed, hung, ran, or was taken for what it is not",
        flush=True,
    )
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
