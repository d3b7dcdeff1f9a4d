"""Tables of the docs in Markdown, and what a section of a result file says of its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def rows_of(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A table whose first column is text, and whose others are numbers."""
    lines = [f"| {' | '.join(map(str, each))} |" for each in (head, *rows)]
    lines.insert(1, f"| --- |{' --: |' * (len(head) - 1)}")
    return "\n".join(lines)


def about(section: Mapping[str, Any]) -> str:
    """The machine and the versions of a section."""
    return f"{section['machine']}; {', '.join(f'{name} {number}' for name, number in section['versions'].items())}."
