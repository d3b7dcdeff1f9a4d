"""Write the tables in these documents from result files, or say which of them are no longer what the files say.

A table stands between ``<!-- cldnet table FOLDER … -->`` or ``<!-- python -m benchmarks.NAME table PATH -->`` with the name
``checks``, ``distributed``, ``everyday``, ``privacy``, ``serve`` or ``speed``, the command that makes it, and ``<!-- end -->``.

    python docs/tables.py            writes them
    python docs/tables.py --check    exits with 1 if any differs
"""

from __future__ import annotations

import contextlib
import re
import shlex
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner

from cldnet.cli import app

DOCS = Path(__file__).parent
COMMANDS = r"(?:cldnet|python -m benchmarks\.(?:checks|distributed|everyday|privacy|serve|speed)) table [^>]*?"
BLOCK = re.compile(rf"(<!-- ({COMMANDS}) -->\n).*?(<!-- end -->)", re.DOTALL)


def rendered(command: str) -> str:
    """What the command prints from the project's root, without its title and its list of files."""
    program, *arguments = shlex.split(command)
    if program == "cldnet":  # in this process: importing torch takes longer than a table
        with contextlib.chdir(DOCS.parent):
            text = CliRunner().invoke(app, arguments, catch_exceptions=False).stdout
    else:
        run = [sys.executable, *arguments]
        text = subprocess.run(run, cwd=DOCS.parent, check=True, capture_output=True, text=True).stdout
    body = text.split("\nFiles:\n")[0].split("\n\n", 1)[1]
    return f"\n{body.strip()}\n\n"


def refreshed(text: str) -> str:
    """The document with every table made anew."""
    return BLOCK.sub(lambda found: found[1] + rendered(found[2]) + found[3], text)


def main() -> int:
    """Write or check all documents."""
    check, stale = "--check" in sys.argv[1:], []
    for path in sorted(DOCS.glob("*.md")):
        old = path.read_text("utf-8")
        new = refreshed(old)
        if new != old:
            stale.append(path.name)
            if not check:
                path.write_text(new, "utf-8")
    sys.stdout.write(f"{'differ' if check else 'written'}: {', '.join(stale) or 'none'}\n")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
