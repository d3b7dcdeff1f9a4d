"""The tutorial: every command that it shows is run in an empty folder, and prints what it shows.

What may differ is said at the end of docs/tutorial-photos.md, and here in `comparable`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from typer.testing import CliRunner

import cldnet
from cldnet.cli import app

PAGE = Path(__file__).parents[1] / "docs" / "tutorial-photos.md"
#: Percentage points by which another processor's rounding may change a probability.
TOLERANCE = 5.0

_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_PROGRESS = re.compile(
    r"(learning|forgetting|looking at|evaluating|comparing): [\d,]+ of [\d,]+ (photos|inputs)|exporting "
)
_PERCENT = re.compile(r"(\d+\.\d+)%")
#: Dates, times with their rates, sizes, and how closely an exported file agrees.
_CHANGING = {
    r"\b\d{4}-\d\d-\d\d\b": "DATE",
    r"\bin [\d.]+ s \([\d.,]+ photos/s\)": "in SECONDS",
    r"\b\d[\d.,]* [kMGT]?B\b": "SIZE",
    r"within \d\.\de-\d+": "within ROUNDING",
    r"[\d.]+ points": "POINTS",
}


@dataclass
class Step:
    """A command, and the lines that it should print; or a file to be written."""

    command: str
    shown: list[str] = field(default_factory=list)


def steps(page: str) -> Iterator[Step]:
    """What a reader does, in order: a Python block is a file, named by its first line; a console's `$` is a command."""
    for language, text in _BLOCK.findall(page):
        if language == "python":
            name = text.partition("\n")[0].removeprefix("# ")
            yield Step(f"cat > {name} <<'END'\n{text}END")
        elif language == "console":
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                command, *shown = part.splitlines()
                yield Step(command, shown)


def comparable(lines: list[str]) -> tuple[list[str], list[float]]:
    """Lines without what may change, and the probabilities in them."""
    kept = [line.rstrip() for line in lines if line.strip() and not _PROGRESS.match(line)]
    percents = [float(percent) for line in kept for percent in _PERCENT.findall(line)]
    for pattern, word in _CHANGING.items():
        kept = [re.sub(pattern, word, line) for line in kept]
    return [_PERCENT.sub("PERCENT", line) for line in kept], percents


def same(printed: list[str], shown: list[str]) -> bool:
    ones, others = comparable(printed), comparable(shown)
    return ones[0] == others[0] and ones[1] == pytest.approx(others[1], abs=TOLERANCE)


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A shell that has this Python and these commands, and no network where it can be cut off."""
    tools, folder = tmp_path / "tools", tmp_path / "empty"
    tools.mkdir()
    folder.mkdir()
    for name, code in (("python", ""), ("cldnet", "-c 'from cldnet.cli import main; main()'")):
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {code} "$@"\n')
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(Path(cldnet.__file__).parents[1]))
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(folder)
    cut_off = ["unshare", "--map-root-user", "--net"]
    can = shutil.which("unshare") is not None and not subprocess.run([*cut_off, "true"], capture_output=True).returncode
    return [*(cut_off if can else []), "bash", "-c"]


def run_here(command: str) -> tuple[int, str]:
    """Run `cldnet … [> FILE]` or `python FILE` in this process, which saves the seconds that imports take."""
    command, _, file = command.partition(" > ")
    name, *arguments = shlex.split(command)
    if name == "python":
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            runpy.run_path(*arguments)
        return 0, printed.getvalue()
    done = CliRunner().invoke(app, arguments)
    if not file:
        return done.exit_code, done.output
    Path(file).write_text(done.stdout)
    return done.exit_code, done.stderr


def run_in(shell: list[str], command: str) -> tuple[int, str]:
    done = subprocess.run([*shell, command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def test_every_command_prints_what_the_page_shows(shell: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first `learn` is a process of its own, as a reader's are; files and folders are the shell's."""
    monkeypatch.setattr(socket.socket, "connect", lambda *_: pytest.fail("the network was used"))
    verbs: set[str] = set()
    for step in steps(PAGE.read_text()):
        name, verb, *_ = step.command.split()
        here = name == "python" or (name == "cldnet" and (verb != "learn" or verb in verbs))
        verbs |= {verb} if name == "cldnet" else set()
        code, printed = run_here(step.command) if here else run_in(shell, step.command)
        assert code == 0, f"{step.command}\n{printed}"
        assert same(printed.splitlines(), step.shown), f"{step.command}\n{printed}"
    assert verbs >= {"learn", "predict", "inspect", "forget", "merge"}


@pytest.mark.parametrize(
    ("printed", "as_shown"),
    [
        ("learned  2 photos of 1 class in 1.5 s (1.3 photos/s)", True),
        ("learned  3 photos of 1 class in 0.6 s (39 photos/s)", False),
        ("a.jpg: lake 95.0%, trees 2.9%", True),
        ("a.jpg: trees 91.0%, lake 2.9%", False),
        ("a.jpg: lake 96.1%, trees 2.9%", False),
        ("model: 1 class, room for 9 more, 1.1 MB", True),
        ("model: 1 class, room for 8 more, 28.7 MB", False),
        ("lake 12 2027-01-01", True),
        ("lake 13 2026-11-17", False),
        ("learning: 66 of 66 photos (17 photos/s)", False),
    ],
)
def test_what_may_differ_is_little(printed: str, as_shown: bool) -> None:
    shown = [
        "learned  2 photos of 1 class in 0.6 s (39 photos/s)",
        "a.jpg: lake 91.0%, trees 2.9%",
        "model: 1 class, room for 9 more, 28.7 MB",
        "lake 12 2026-11-17",
    ]
    assert any(same([printed, "", "looking at: 2 of 8 photos (5 photos/s)"], [line]) for line in shown) == as_shown
