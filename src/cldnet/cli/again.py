"""``cldnet run --again``: from a figure's file back to the figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from cldnet.cli.runs import OnBad, load_stream, run_and_show
from cldnet.cli.show import say

__all__ = ["repeat"]


def repeat(
    file: Path, data: Path | None, stream: str = "", method: str = "", on_bad: OnBad = OnBad.stop, outside: str = ""
) -> None:
    """Run a result's cell again, with as many threads, and say whether the accuracies are the same to the last bit."""
    from cldnet.bench.cell import cell_of_result, hashes_of
    from cldnet.bench.results import read_result
    from cldnet.data.outside import hash_outside

    then = read_result(file)
    if then is None:
        raise ValueError(f"{file} is no result of a run.")
    cell = cell_of_result(then)
    own = cell.spec.method
    if method not in ("", own):
        raise ValueError(f"{file} is of {own}, not of {method}: leave --method out.")
    if ":" in own and not method:  # a file should not make us import whatever it names
        raise ValueError(f"{file} is of {own}, which is code of its own: say --method {own} if that may run.")
    spec = replace(cell.spec, threads=then.get("threads"), outside=outside or cell.spec.outside)
    spec.check_outside()
    cell = replace(cell, stream=stream or cell.stream, spec=spec)
    tasks = load_stream(cell, data, on_bad)
    for what, today, before in zip(
        (cell.shown_stream, f"The outside data {spec.outside}"),
        (tasks.hash, hash_outside(spec.outside, data)),
        hashes_of(then),
        strict=True,
    ):
        if today != before:
            raise ValueError(f"{what} is another one now ({today}) than in {file} ({before}).")
    say(repr(tasks))
    now = run_and_show(cell, tasks, data)
    if (now["matrix"], now["task_il_matrix"]) == (then["matrix"], then["task_il_matrix"]):
        say(f"The same accuracy matrix as in {file}, bit for bit.")
        return
    say(f"Not the same accuracy matrix as in {file}.", error=True)
    for what, before, today in _grounds(then, now):
        say(f"The {what} then: {before}; now: {today}.", error=True)
    raise typer.Exit(1)


def _grounds(then: dict[str, Any], now: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """What may be the reason for another matrix."""
    pairs = [
        ("version of the method", then["cell"].get("method_version"), now["cell"]["method_version"]),
        *((what, then.get(what), now[what]) for what in ("code", "versions", "machine", "config")),
    ]
    return [(what, before, today) for what, before, today in pairs if before != today]
