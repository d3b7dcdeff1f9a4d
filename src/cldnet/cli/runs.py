"""Commands that run methods on streams, and those that list both."""

from __future__ import annotations

import time
import tomllib
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cldnet.cli.datasets import DataOption
from cldnet.cli.show import counting, progress, result_tables, say
from cldnet.names import nearest_names

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cldnet.bench.cell import Cell
    from cldnet.bench.run import RunSpec
    from cldnet.data.stream import Stream

__all__ = ["OnBad", "demo", "load_stream", "methods", "run_and_show", "run_command", "streams"]


class OnBad(Enum):
    """What to do about files that cannot be read."""

    skip = "skip"
    stop = "stop"


def demo(
    out: Annotated[Path, typer.Option(help="Folder for result files, page and plots.")] = Path("results/demo"),
    jobs: Annotated[int, typer.Option(min=1, help="Processes side by side.")] = 2,
) -> None:
    """Watch six methods learn ten digits two at a time, in three class orders (about a minute)."""
    from cldnet.bench.demo import demo_spec
    from cldnet.bench.report import write_report
    from cldnet.cli.bench import run_bench

    begun = time.perf_counter()
    outcome = run_bench(demo_spec(), out, jobs=jobs)
    report = write_report(out)
    say(
        "Accuracy after the last task: average over the tasks' test images, all ten classes as\n"
        "candidates, no task given; mean ± standard deviation over three class orders. Settings\n"
        f"were chosen on a validation part of the training data. {time.perf_counter() - begun:.0f} s.\n"
        f"page     {report.page}\nplots    {report.missing or report.page.parent / 'plots'}\nresults  {out}/*.json"
    )
    if outcome is not None and outcome.failures:
        raise typer.Exit(1)


def run_command(
    context: typer.Context,
    stream: Annotated[str, typer.Option(help="Name of a stream, with options; see `cldnet streams`.")] = "",
    method: Annotated[str, typer.Option(help="Name of a method; see `cldnet methods`.")] = "",
    again: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            dir_okay=False,
            help="Run a result file's own cell again, and compare; --data, --stream, --outside may tell where its data are.",
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Seed of weights, shuffling and class order.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the result file.")] = Path("results"),
    epochs: Annotated[int | None, typer.Option(help="Passes over each task; by default the preset's.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples a step; by default the preset's.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; by default torch's.")] = None,
    options: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the method, as lr=0.1; repeat it.")
    ] = None,
    backbone: Annotated[
        str | None, typer.Option(help="What maps inputs to vectors, as patches or mlp; by default the preset's.")
    ] = None,
    backbone_options: Annotated[
        list[str] | None, typer.Option("--backbone-set", help="An option of the backbone, as filters=400; repeat it.")
    ] = None,
    validation: Annotated[
        float | None,
        typer.Option(
            help="Evaluate on this share of the training data instead of the test data, to choose settings by."
        ),
    ] = None,
    data: DataOption = None,
    on_bad: Annotated[OnBad, typer.Option(help="Photos that cannot be read: skip them, or stop.")] = OnBad.stop,
    augment: Annotated[str | None, typer.Option(help="Vary training images, as crop=4,flip,cutout=8.")] = None,
    normalise: Annotated[
        str | None,
        typer.Option(
            help="first-task (its training statistics), or constants, in pixel values: imagenet, 127.5:127.5, …"
        ),
    ] = None,
    outside: Annotated[
        str | None,
        typer.Option(
            help="Unlabelled data for a method that learns from such: a data set or stream, as fmnist, or noise."
        ),
    ] = None,
) -> None:
    """Run one method on one stream and write one JSON file; or run a result file again."""
    from dataclasses import replace

    from cldnet.bench.cell import Cell, hashes_of, result_text
    from cldnet.bench.preset import preset
    from cldnet.bench.summary import summarise
    from cldnet.cli.again import repeat
    from cldnet.methods import read_method
    from cldnet.store import write_atomically

    if again is not None:
        _refuse_others(context)
        repeat(again, data, stream, method, on_bad, outside or "")
        return
    if not stream or not method:
        raise ValueError("A run needs --stream and --method; or --again with a result file.")
    read_method(method)
    spec = preset(stream, method, seed, threads)
    chosen: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size, "augment": augment, "normalise": normalise}
    chosen["outside"] = outside
    spec = replace(spec, **{name: value for name, value in chosen.items() if value is not None})
    spec = replace(spec, options={**spec.options, **_read_options("--set", options or [])})
    spec = _with_backbone(spec, backbone, _read_options("--backbone-set", backbone_options or []))
    spec.check_outside()
    cell = Cell(stream if validation is None else f"{stream},validation={validation:g}", spec)
    tasks = load_stream(cell, data, on_bad)
    if tasks.online is not None and (epochs, batch_size) != (None, None):
        raise ValueError(
            f"{tasks.name} is passed once, in batches of {tasks.online}: leave --epochs and --batch-size out."
        )
    say(repr(tasks))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"{out} cannot be made a folder ({error.strerror}): name another one with --out.") from error
    result = run_and_show(cell, tasks, data)
    path = out / cell.file(*hashes_of(result))
    write_atomically(path, result_text(result))
    for table in result_tables(summarise([{**result, "file": path.name}])):
        Console().print(table)
    say(f"Written to {path}")


def _refuse_others(context: typer.Context) -> None:
    """Refuse options that a result file answers itself."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    given = {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}
    others = sorted(given - {"again", "stream", "method", "data", "on_bad", "outside"})
    if others:
        raise ValueError(f"--again runs what the result file says: leave --{others[0].replace('_', '-')} out.")


def load_stream(cell: Cell, data: Path | None, on_bad: OnBad) -> Stream:
    """Read a cell's stream, with progress where that takes long."""
    from cldnet.data.streams import stream_by_name

    try:
        with counting("reading photos", "files") as tell:
            bad: Literal["skip", "stop"] = "skip" if on_bad is OnBad.skip else "stop"
            return stream_by_name(cell.stream, cell.spec.seed, data=data, on_bad=bad, on_progress=tell)
    except KeyboardInterrupt:
        say("\nStopped while reading. Nothing was run.", error=True)
        raise typer.Exit(130) from None


def run_and_show(cell: Cell, tasks: Stream, data: Path | None) -> dict[str, Any]:
    """Run a cell in this process, and show how far it is."""
    from cldnet.bench.cell import run_cell
    from cldnet.bench.wording import percent

    try:
        with progress([cell.title]) as (on_progress, tell):
            result = run_cell(cell, tasks, lambda share: on_progress(0, share), data)
            tell(0, f"{percent(result['scores']['average_accuracy'])} in {result['seconds']['total']:.1f} s")
    except KeyboardInterrupt:  # said when the bars are gone
        say("\nStopped. Nothing was finished.", error=True)
        raise typer.Exit(130) from None
    return result


def _with_backbone(spec: RunSpec, backbone: str | None, options: Mapping[str, Any]) -> RunSpec:
    """Take another backbone, whose options do not come from the preset of the one before, or other options of the same."""
    from dataclasses import replace

    from cldnet.nets import BACKBONES

    if backbone is not None and backbone not in BACKBONES:
        raise ValueError(f"There is no backbone {backbone!r}. {nearest_names(backbone, BACKBONES)}")
    same = backbone in (None, spec.backbone)
    kept = spec.backbone_options if same else {}
    return replace(spec, backbone=backbone or spec.backbone, backbone_options={**kept, **options})


def _read_options(option: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Read ``name=value`` pairs as TOML has them."""
    options: dict[str, Any] = {}
    for pair in pairs:
        try:
            options.update(tomllib.loads(pair))
        except tomllib.TOMLDecodeError as error:
            raise ValueError(
                f"{option} {pair!r} is not a name and a value (numbers as 0.1, text in quotes), as lr=0.1 or "
                'alpha={kind="ConstantAlpha", value=0.5}.'
            ) from error
    return options


def methods() -> None:
    """List the methods."""
    from cldnet.methods import known_methods

    table = Table("method", "what it is", "but", box=SIMPLE_HEAD)
    for name, method in known_methods().items():
        traits = method.load().traits
        reservations = {
            "keeps data": not traits.rehearsal_free,
            "grows": not traits.constant_size,
            "needs the task": traits.needs_task_id,
            "needs outside data": traits.outside_data,
        }
        table.add_row(name, method.summary, ", ".join(text for text, holds in reservations.items() if holds))
    Console().print(table)


def streams() -> None:
    """List the streams, and the options that may follow a stream's name."""
    from cldnet.data import spec
    from cldnet.data.streams import SOURCES, STREAMS

    table = Table("stream", "what it is", box=SIMPLE_HEAD)
    for name, stream in STREAMS.items():
        table.add_row(name, stream.summary)
    for kind, summary in SOURCES.items():
        table.add_row(f"{kind}:PATH", summary)
    Console().print(table)
    say("Options follow behind commas, as split-cifar100,first=50,classes_per_task=10,online=10:")
    for option, meaning in spec.OPTIONS.items():
        say(f"  {option:<22}{meaning}")
