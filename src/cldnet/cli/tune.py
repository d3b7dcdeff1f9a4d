"""The command that chooses settings: ``cldnet tune``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from cldnet.cli.datasets import DataOption
from cldnet.cli.show import progress, say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from cldnet.bench.trials import Found, Search, Trial

__all__ = ["tune_command"]


def tune_command(
    stream: Annotated[str, typer.Argument(help="Name of a stream, with options; see `cldnet streams`.")],
    methods: Annotated[
        list[str] | None, typer.Option("--methods", help="A method to tune; repeat it. By default all are.")
    ] = None,
    trials: Annotated[
        int, typer.Option(min=1, help="Settings to try for each method; one that has fewer gets all of them.")
    ] = 24,
    seeds: Annotated[
        list[int] | None,
        typer.Option("--seeds", min=0, help="A seed of weights and class order; repeat it. By default 10 and 11."),
    ] = None,
    on: Annotated[
        str,
        typer.Option("--on", help="whole: score after the whole sequence; first=2: look at the first 2 tasks only."),
    ] = "whole",
    share: Annotated[float, typer.Option(help="Part of the training data to score on.")] = 0.2,
    of: Annotated[float, typer.Option("--of", help="Part of the rest to learn from, as 0.33; 1 is all of it.")] = 1.0,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over each task; by default the preset's.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Examples a step; by default the preset's.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes side by side; by default one a core, at most 4.")
    ] = None,
    outside: Annotated[
        str, typer.Option(help="Unlabelled data for methods that learn from such, as fmnist or noise.")
    ] = "",
    data: DataOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the trials; by default results/tune/STREAM.", file_okay=False)
    ] = None,
    presets: Annotated[Path, typer.Option(help="Folder for the preset file.", file_okay=False)] = Path("presets"),
) -> None:
    """Choose settings of methods on a part of the training data, all with equally many trials.

    Every method states what is searched in its own file; the test data are never looked at.
    """
    from cldnet.bench.machine import cores
    from cldnet.bench.trials import Search
    from cldnet.methods import METHODS

    search = Search(
        stream,
        tuple(dict.fromkeys(methods or METHODS)),
        trials,
        tuple(dict.fromkeys(seeds or (10, 11))),
        share,
        _first_tasks(on),
        epochs,
        batch_size,
        of,
        outside,
    )
    folder = out or Path("results/tune") / re.sub(r"[^\w.,=+-]+", "-", stream)
    found, path = _run(search, folder, presets, jobs or min(cores(), 4), data)
    _show(found)
    if any(one.best for one in found):
        say(f"preset  {path}, for {path.stem} and all its variants")
    say(f"trials  {folder / 'trials.json'}")
    if not all(one.best for one in found):
        raise typer.Exit(1)


def _run(search: Search, folder: Path, presets: Path, jobs: int, data: Path | None) -> tuple[list[Found], Path]:
    """Run a search and show its trials as they end."""
    from cldnet.bench.trials import plan_methods
    from cldnet.bench.tune import tune

    plans = plan_methods(search, presets)
    names = {
        (plan.method, number): f"{plan.method}, trial {number + 1} of {plan.trials}"
        for number in range(search.trials)
        for plan in plans
        if number < plan.trials
    }
    places = {key: place for place, key in enumerate(names)}
    say(f"{len(names)} trials on {search.text}, {len(search.seeds)} seeds each; the test data are not looked at.")
    kept = 0

    def on_trial(trial: Trial) -> None:
        nonlocal kept
        kept += 1
        tell(places[trial.method, trial.number], _outcome(trial))

    try:
        with progress(list(names.values())) as (on_progress, tell):
            return tune(
                search,
                folder,
                presets,
                jobs=jobs,
                data=data,
                on_progress=lambda method, number, done: on_progress(places[method, number], done),
                on_trial=on_trial,
            )
    except KeyboardInterrupt:
        say(f"\nStopped. {kept} trials are kept in {folder}; the same command goes on.", error=True)
        raise typer.Exit(130) from None


def _first_tasks(text: str) -> int | None:
    match = re.fullmatch(r"first=(\d+)", text)
    if match is None and text != "whole":
        raise ValueError(f"--on {text!r} is neither whole nor a number of first tasks, as first=2.")
    return None if match is None else int(match[1])


def _outcome(trial: Trial) -> str:
    from cldnet.bench.wording import percent

    if trial.accuracy is None:
        return f"failed ({trial.why}) with {_options(trial.options)}"
    return f"{percent(trial.accuracy)} with {_options(trial.options)}"


def _options(options: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={json.dumps(value)}" for name, value in options.items()) or "its defaults"


def _show(found: Sequence[Found]) -> None:
    """Show the best of every method, and say where there may be better."""
    from cldnet.bench.wording import percent
    from cldnet.methods.ranges import edge

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    for heading in ("validation\naccuracy", "trials"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("best options", overflow="fold")
    remarks = []
    for one in found:
        plan, best = one.plan, one.best
        count = f"{len(one.trials)}" + (f", {one.failed} failed" if one.failed else "")
        if best is None:
            table.add_row(Text(plan.method), "none", count, "every trial failed")
            remarks.append(f"{plan.method} has no settings: its last trial failed, {one.trials[-1].why}")
            continue
        table.add_row(Text(plan.method), percent(best.accuracy), count, Text(_options(best.options)))
        if plan.needs_task:
            remarks.append(f"{plan.method}: the figure is a task-IL accuracy, since the method needs the task.")
        for name, span in plan.ranges.items():
            end = edge(span, best.options[name])
            if end is not None:
                remarks.append(
                    f"{plan.method}: {name}={best.options[name]:g} is at the {end} end of its range ({span}): widen it."
                )
    Console().print(table)
    for remark in remarks:
        say(remark)
