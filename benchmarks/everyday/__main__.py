"""What a practitioner does every day, measured: one JSON file with a part for each of them.

    python -m benchmarks.everyday [PART …] [--data DIR] [--out results/benchmarks/everyday.json] [--quick]
    python -m benchmarks.everyday table FILE    prints the accuracies of tables in Markdown

The parts are ``rows`` (learn and predict a row at a time), ``tables`` (the map that ``backbone="auto"`` chooses, beside joint
scikit-learn), ``sparse`` (TF-IDF of sentences), ``startup`` (CPU seconds of commands, bytes of models) and ``mirror``
(characters and photos with ``backbone="patches"``). A part replaces its own figures in the file and no others. What could not
be measured says why.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.everyday.table import render

from cldnet.bench.machine import machine_text, versions
from cldnet.storage import write_atomically

OUT = Path("results/benchmarks/everyday.json")


def main() -> None:
    """Measure the parts that are named, or all, and write each down when it is done."""
    if sys.argv[1:2] == ["table"]:
        sys.stdout.write(render(Path(sys.argv[2])))
        return
    from benchmarks.everyday import mirror, rows, sparse, startup, tables  # heavy

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = ("rows", "tables", "sparse", "startup", "mirror")
    parser.add_argument("parts", nargs="*", choices=[*names, []], help="by default all")
    parser.add_argument("--data", type=Path, help="folder with the public data sets")
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--quick", action="store_true", help="less of everything, to see that it works")
    given = parser.parse_args()
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "rows": partial(rows.measure, given.quick),
        "tables": partial(tables.measure, given.quick),
        "sparse": partial(sparse.measure, given.data, given.quick),
        "startup": partial(startup.measure, given.quick),
        "mirror": partial(mirror.measure, given.data, given.quick),
    }
    for name in given.parts or names:
        print(f"{name} …", file=sys.stderr, flush=True)
        begun = time.perf_counter()
        found = parts[name]()
        said = {"quick": given.quick, "seconds": round(time.perf_counter() - begun, 1), "machine": machine_text()}
        result = json.loads(given.out.read_text()) if given.out.is_file() else {"benchmark": "everyday"}
        result[name] = {**said, "versions": versions(), **found}
        given.out.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(given.out, json.dumps(result, indent=1).encode())
        print(f"{name}: written to {given.out}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
