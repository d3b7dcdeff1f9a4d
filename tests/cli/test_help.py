"""Every command explains itself."""

from __future__ import annotations

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from cldnet.cli import app

COMMANDS = sorted(getattr(get_command(app), "commands"))  # noqa: B009  # typer has its own class for groups of commands


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=lambda command: "".join(command) or "all")
def test_help_of_every_command(command: list[str]) -> None:
    result = CliRunner().invoke(app, [*command, "--help"])
    assert result.exit_code == 0, result.exception
    assert " ".join(["Usage:", "root", *command]) in result.output
