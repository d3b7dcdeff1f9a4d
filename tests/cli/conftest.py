"""The command line in the test's own process."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from cldnet.cli import main


class Ended(NamedTuple):
    """What a process would have left."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Callable[..., Ended]:
    """Run a command with its entry point: a process of its own would import torch, for seconds."""

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr("sys.argv", ["cldnet", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        return Ended(int(end.value.code or 0), *capfd.readouterr())

    return run
