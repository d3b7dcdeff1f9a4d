"""``cldnet tune``: choose settings without using test data."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from cldnet.bench.formatting import percent
from cldnet.cli.datasets import DataOption
from cldnet.cli.show import new_table, progress, say

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from cldnet.bench.tune import MethodSearch, Trial


def tune_command(
    stream: Annotated[str, typer.Argument(help="Name of a stream, with options; see `cldnet streams`.")],
    methods: Annotated[
        list[str] | None,
        typer.Option("--methods", help="A method to tune; by default all that need no pretrained net. Repeatable."),
    ] = None,
    trials: Annotated[
        int, typer.Option(min=1, help="Trials per method. A method with fewer possible settings tries all of them.")
    ] = 24,
    seeds: Annotated[
        list[int] | None,
        typer.Option("--seeds", min=0, help="Seed of weights and class order; default 10 and 11. Repeatable."),
    ] = None,
    on: Annotated[
        str,
        typer.Option("--on", help="whole: score after the whole sequence; first=2: use only the first 2 tasks."),
    ] = "whole",
    share: Annotated[float, typer.Option(help="Fraction of the training data to validate on.")] = 0.2,
    of: Annotated[float, typer.Option("--of", help="Fraction of the other training data to learn from.")] = 1.0,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs per task; by default the preset's.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Samples per step; by default the preset's.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Number of processes; by default one per core, at most 4.")
    ] = None,
    outside: Annotated[
        str, typer.Option(help="Unlabelled data for methods that use them, such as fmnist or noise.")
    ] = "",
    data: DataOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the trials; by default results/tune/STREAM.", file_okay=False)
    ] = None,
    presets: Annotated[Path, typer.Option(help="Folder for the preset file.", file_okay=False)] = Path("presets"),
) -> None:
    """Choose settings of methods on a part of the training data, with the same number of trials for each.

    Every method states what is searched in its own file; the test data are never used.
    """
    from cldnet.bench.machine import cores
    from cldnet.bench.tune import Search, plan_methods, tune
    from cldnet.methods import METHODS, read_method
    from cldnet.nets import FROZEN

    search = Search(
        stream,
        tuple(dict.fromkeys(methods or (name for name in METHODS if read_method(name).default_backbone not in FROZEN))),
        trials=trials,
        seeds=tuple(dict.fromkeys(seeds or (10, 11))),
        share=share,
        first=_first_tasks(on),
        epochs=epochs,
        batch_size=batch_size,
        of=of,
        outside=outside,
    )
    folder = out or Path("results/tune") / re.sub(r"[^\w.,=+-]+", "-", stream)
    plans = plan_methods(search, presets)
    names = {
        (plan.method, number): f"{plan.method}, trial {number + 1} of {plan.count}"
        for number in range(search.trials)
        for plan in plans
        if number < plan.count
    }
    places = {key: place for place, key in enumerate(names)}
    say(f"{len(names)} trials on {search.text}, {len(search.seeds)} seeds each; the test data are not used.")
    finished = []

    def on_trial(trial: Trial) -> None:
        finished.append(trial)
        outcome = f"failed ({trial.why})" if trial.accuracy is None else percent(trial.accuracy)
        tell(places[trial.method, trial.number], f"{outcome} with {_options(trial.options)}")

    try:
        with progress(list(names.values())) as (on_progress, tell):
            how: Any = {"jobs": jobs or min(cores(), 4), "data": data, "on_trial": on_trial}
            how["on_progress"] = lambda method, number, done: on_progress(places[method, number], done)
            found, path = tune(search, folder, presets, **how)
    except KeyboardInterrupt:
        say(f"\nStopped. {len(finished)} trials are kept in {folder}; run the same command to resume.", error=True)
        raise typer.Exit(130) from None
    _show(found)
    if any(one.best for one in found):
        say(f"preset  {path}, for {path.stem} and all its variants")
    say(f"trials  {folder / 'trials.json'}")
    if not all(one.best for one in found):
        raise typer.Exit(1)


def _first_tasks(text: str) -> int | None:
    match = re.fullmatch(r"first=(\d+)", text)
    if match is None and text != "whole":
        raise ValueError(f"--on {text!r} should be whole, or a number of first tasks such as first=2.")
    return None if match is None else int(match[1])


def _options(options: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={json.dumps(value)}" for name, value in options.items()) or "its defaults"


def _show(found: Sequence[MethodSearch]) -> None:
    """Show the best setting of every method, and say which ranges may be too narrow."""
    from cldnet.methods.config import edge

    table = new_table()
    table.add_column("method", no_wrap=True)
    for heading in ("validation\naccuracy", "trials"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("best options", overflow="fold")
    remarks = []
    for one in found:
        method, best = one.method, one.best
        count = f"{len(one.trials)}" + (f", {one.failed} failed" if one.failed else "")
        if best is None:
            table.add_row(Text(method), "none", count, "every trial failed")
            remarks.append(f"{method} has no settings: its last trial failed, {one.trials[-1].why}")
            continue
        table.add_row(Text(method), percent(best.accuracy), count, Text(_options(best.options)))
        if one.needs_task:
            remarks.append(f"{method}: this is a task-IL accuracy, since the method needs the task.")
        for name, span in one.ranges.items():
            value = best.options[name]
            end = edge(span, value)
            if end is not None:
                remarks.append(f"{method}: {name}={value:g} is at the {end} end of its range ({span}): widen it.")
    Console().print(table)
    for remark in remarks:
        say(remark)
