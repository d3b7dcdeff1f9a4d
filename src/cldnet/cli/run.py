"""``cldnet run``: run one method on one stream, or a result file again; and the lists of methods and streams."""

from __future__ import annotations

import tomllib
import warnings
from contextlib import nullcontext
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console

from cldnet.cli.bench import make_folder
from cldnet.cli.datasets import DataOption
from cldnet.cli.models import given_options
from cldnet.cli.show import counting, new_table, outcome_text, progress, result_tables, say
from cldnet.distributed.environment import World

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cldnet.bench.cell import Cell
    from cldnet.bench.checkpoint import RunCheckpoint
    from cldnet.bench.run import Execution, RunSpec
    from cldnet.data.stream import Stream


class OnBad(StrEnum):
    """What to do about files that cannot be read."""

    skip = "skip"
    stop = "stop"


def run_command(
    context: typer.Context,
    stream: Annotated[str, typer.Option(help="Name of a stream, with options; see `cldnet streams`.")] = "",
    method: Annotated[str, typer.Option(help="Name of a method; see `cldnet methods`.")] = "",
    again: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Repeat the run of a result file and compare; --data, --stream or --outside say where its data are.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of weights, shuffling and class order.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the result file.")] = Path("results"),
    epochs: Annotated[int | None, typer.Option(help="Epochs per task; by default the preset's.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Samples per step; by default the preset's.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; by default torch's.")] = None,
    options: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the method, as lr=0.1. Repeatable.")
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="The backbone, such as patches or mlp; by default the preset's.")
    ] = None,
    backbone_options: Annotated[
        list[str] | None, typer.Option("--backbone-set", help="An option of the backbone, as filters=400. Repeatable.")
    ] = None,
    validation: Annotated[
        float | None,
        typer.Option(
            help="Evaluate on this fraction of the training data instead of the test data, to choose settings."
        ),
    ] = None,
    data: DataOption = None,
    on_bad: Annotated[OnBad, typer.Option(help="Photos that cannot be read: skip them, or stop.")] = OnBad.stop,
    augment: Annotated[str | None, typer.Option(help="Augmentation, such as crop=4,flip,cutout=8.")] = None,
    normalise: Annotated[
        str | None,
        typer.Option(
            help="first-task (its training statistics), image (each image's own mean and std), or constants, in pixel "
            "values: imagenet, 127.5:127.5, …"
        ),
    ] = None,
    outside: Annotated[
        str | None,
        typer.Option(
            help="Unlabelled data for a method that uses them: a data set or stream, such as fmnist, or noise."
        ),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            dir_okay=False,
            help="File to resume from, with the same command, if the run is interrupted. It is removed at the end.",
        ),
    ] = None,
) -> None:
    """Run one method on one stream and write one JSON file, or repeat the run of a result file.

    Under torchrun, as in `torchrun --nproc_per_node=2 -m cldnet run …`, every batch is split over the processes.
    """
    from cldnet.bench.cell import Cell, hashes_of, result_text
    from cldnet.bench.checkpoint import RunCheckpoint
    from cldnet.bench.preset import override, preset
    from cldnet.bench.summary import summarise
    from cldnet.storage import write_atomically

    if again is not None:
        others = sorted(given_options(context) - {"again", "stream", "method", "data", "on_bad", "outside"})
        if others:
            option = others[0].replace("_", "-")
            raise ValueError(f"--again takes its settings from the result file: leave --{option} out.")
        _repeat(again, data, stream, method, on_bad, outside or "")
        return
    if not stream or not method:
        raise ValueError("A run needs --stream and --method; or --again with a result file.")
    settings = {
        "epochs": epochs,
        "batch_size": batch_size,
        "augment": augment,
        "normalise": normalise,
        "outside": outside,
        "options": _read_options("--set", options or []),
        "backbone": backbone,
        "backbone_options": _read_options("--backbone-set", backbone_options or []),
    }
    given = {name: value for name, value in settings.items() if value is not None}
    world = World.from_environment()
    spec = override(preset(stream, method, seed, threads), given)
    spec.check()
    spec = _for_ranks(spec, world)
    cell = Cell(stream if validation is None else f"{stream},validation={validation:g}", spec)
    tasks = _load_stream(cell, data, on_bad, world)
    if tasks.online is not None and (epochs, batch_size) != (None, None):
        raise ValueError(
            f"{tasks.name} has one pass, in batches of {tasks.online}: leave --epochs and --batch-size out."
        )
    make_folder(out)
    file = None if checkpoint is None else RunCheckpoint(checkpoint, writes=world.first)
    if world.first:
        say(repr(tasks))
    result = _run_and_show(cell, tasks, data, file, world)
    if not world.first:
        return
    path = out / cell.file(*hashes_of(result))
    write_atomically(path, result_text(result))
    if file is not None:
        file.remove(path)
    for table in result_tables(summarise([{**result, "file": path.name}])):
        Console().print(table)
    say(f"Written to {path}")


def _for_ranks(spec: RunSpec, world: World) -> RunSpec:
    """Refuse a method that cannot be split over the ranks, and give each rank its share of the machine's cores."""
    from cldnet.bench.machine import cores

    if not world.several:
        return spec
    spec.check_spreads()
    return spec if spec.threads is not None else replace(spec, threads=max(1, cores() // world.local_size))


def _repeat(file: Path, data: Path | None, stream: str, method: str, on_bad: OnBad, outside: str) -> None:
    """Repeat the run of a result file with the same number of threads, and say whether the accuracies are equal."""
    from cldnet.bench.cell import cell_of_result, hashes_of
    from cldnet.bench.results import read_result
    from cldnet.data.streams import hash_outside

    then = read_result(file)
    if then is None:
        raise ValueError(f"{file} is not the result of a run: give a JSON file that cldnet run or cldnet bench wrote.")
    cell = cell_of_result(then)
    own = cell.spec.method
    if method not in ("", own):
        raise ValueError(f"{file} is a result of {own}, not of {method}: leave --method out.")
    if ":" in own and not method:  # a file should not make us import whatever it names
        raise ValueError(f"{file} is a result of {own}, which imports code: add --method {own} to allow that.")
    world = World.from_environment()
    spec = replace(cell.spec, threads=then.get("threads"), outside=outside or cell.spec.outside)
    spec.check_outside()
    spec = _for_ranks(spec, world)
    cell = replace(cell, stream=stream or cell.stream, spec=spec)
    tasks = _load_stream(cell, data, on_bad, world)
    names = cell.shown_stream, f"The outside data {spec.outside}"
    hashes = tasks.hash, hash_outside(spec.outside, data)
    for what, today, before in zip(names, hashes, hashes_of(then), strict=True):
        if today != before:
            raise ValueError(f"{what} has changed: its hash is {today}, and {before} in {file}.")
    if world.first:
        say(repr(tasks))
    now = _run_and_show(cell, tasks, data, None, world)
    if not world.first:
        return
    if (now["matrix"], now["task_il_matrix"]) == (then["matrix"], then["task_il_matrix"]):
        say(f"The same accuracy matrix as in {file}, bit for bit.")
        return
    say(f"The accuracy matrix is not the same as in {file}.", error=True)
    versions = then["cell"].get("method_version"), now["cell"]["method_version"]
    reasons = {"version of the method": versions}
    reasons["number of ranks"] = then.get("processes", 1), now["processes"]
    reasons |= {what: (then.get(what), now[what]) for what in ("code", "versions", "machine", "config")}
    for what, (before, today) in reasons.items():
        if before != today:
            say(f"The {what} then: {before}; now: {today}.", error=True)
    raise typer.Exit(1)


def _load_stream(cell: Cell, data: Path | None, on_bad: OnBad, world: World) -> Stream:
    """Read a cell's stream, with progress if that takes long."""
    from cldnet.data.streams import stream_by_name

    bad: Literal["skip", "stop"] = "skip" if on_bad is OnBad.skip else "stop"
    try:
        with counting("reading photos", "files") if world.first else nullcontext() as tell:
            return stream_by_name(cell.stream, cell.spec.seed, data=data, on_bad=bad, on_progress=tell)
    except KeyboardInterrupt:
        say("\nStopped while reading. Nothing was run.", error=True)
        raise typer.Exit(130) from None


def _run_and_show(
    cell: Cell, tasks: Stream, data: Path | None, checkpoint: RunCheckpoint | None, world: World
) -> dict[str, Any]:
    """Run a cell in this process, which may be one of several ranks, and show progress on the first."""
    from cldnet.bench.run import Execution

    try:
        if not world.several:
            return _shown(cell, tasks, data, Execution(checkpoint=checkpoint))
        return _run_on_ranks(cell, tasks, data, checkpoint, world)
    except KeyboardInterrupt:  # said when the bars are gone
        if world.first:
            say(f"\nStopped. {_how_to_resume(checkpoint) or 'Nothing was finished.'}", error=True)
        raise typer.Exit(130) from None


def _run_on_ranks(
    cell: Cell, tasks: Stream, data: Path | None, checkpoint: RunCheckpoint | None, world: World
) -> dict[str, Any]:
    """Run a cell together with the other ranks; end in one sentence if one of them stops."""
    from cldnet.bench.cell import run_cell
    from cldnet.bench.run import Execution
    from cldnet.distributed.torchrun import RankStopped, joined

    try:
        with joined(world) as ranks:
            execution = Execution(ranks, checkpoint)
            if world.first:
                return _shown(cell, tasks, data, execution)
            with warnings.catch_warnings(action="ignore"):  # the first rank shows them
                return run_cell(cell, tasks, data=data, execution=execution)
    except BaseException as error:
        stopped = RankStopped.behind(error)
        if stopped is None:
            raise
        if stopped.speaks:
            advice = _how_to_resume(checkpoint) or "With --checkpoint FILE, the same command would resume it."
            say(f"{stopped} {advice}", error=True)
        raise typer.Exit(1) from None


def _shown(cell: Cell, tasks: Stream, data: Path | None, execution: Execution) -> dict[str, Any]:
    from cldnet.bench.cell import run_cell

    with progress([cell.title]) as (on_progress, tell):
        result = run_cell(cell, tasks, lambda share: on_progress(0, share), data, execution)
        tell(0, outcome_text(result))
    return result


def _how_to_resume(checkpoint: RunCheckpoint | None) -> str:
    """The way to go on from a checkpoint, if there is one."""
    if checkpoint is None or not checkpoint.path.exists():
        return ""
    return f"Resume it with the same command: the last checkpoint is {checkpoint.path}."


def _read_options(option: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Read ``name=value`` pairs as TOML."""
    options: dict[str, Any] = {}
    for pair in pairs:
        try:
            options.update(tomllib.loads(pair))
        except tomllib.TOMLDecodeError as error:
            raise ValueError(
                f"{option} {pair!r} should be a name and a value (numbers as 0.1, text in quotes), such as lr=0.1 or "
                'alpha={kind="ConstantAlpha", value=0.5}.'
            ) from error
    return options


def methods() -> None:
    """List the methods."""
    from cldnet.methods import known_methods, read_method

    table = new_table("method", "what it is", "but")
    for name, path in known_methods().items():
        method = read_method(name)
        traits = method.traits
        reservations = {
            "keeps data": not traits.rehearsal_free,
            "grows": not traits.constant_size,
            "needs the task": traits.needs_task_id,
            "needs outside data": traits.outside_data,
        }
        table.add_row(
            name, method.summary or f"from {path}", ", ".join(text for text, holds in reservations.items() if holds)
        )
    Console().print(table)


def streams() -> None:
    """List the streams, and the options that may follow a stream's name."""
    from cldnet.data.streams import OPTIONS, SOURCES, STREAMS

    table = new_table("stream", "what it is")
    for name, stream in STREAMS.items():
        table.add_row(name, stream.summary)
    for kind, summary in SOURCES.items():
        table.add_row(f"{kind}:PATH", summary)
    Console().print(table)
    say("Options follow the name after commas, such as split-cifar100,first=50,classes_per_task=10,online=10:")
    for option, meaning in OPTIONS.items():
        say(f"  {option:<22}{meaning}")
