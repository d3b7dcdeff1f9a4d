"""The accuracies of ``tables`` in Markdown, from a result file."""

from __future__ import annotations

import json
from pathlib import Path


def render(file: Path) -> str:
    """One line for each table: mean ± std of every method, and which maps were chosen."""
    found = json.loads(file.read_text())["tables"]
    tables = {name: each for name, each in found.items() if isinstance(each, dict) and "methods" in each}
    methods = [row["method"] for row in next(iter(tables.values()))["methods"]]
    lines = [f"| data | splits | {' | '.join(methods)} | map |", f"|{'---|' * (len(methods) + 3)}"]
    for name, each in tables.items():
        cells = [f"{row['mean']:.2f} ± {row['std']:.2f}" for row in each["methods"]]
        maps = each["methods"][0]["maps"]
        lines.append(f"| {name} | {each['splits']} | {' | '.join(cells)} | {', '.join(maps)} |")
    return f"# Tables\n\n{chr(10).join(lines)}\n"
