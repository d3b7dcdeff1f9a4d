"""The command line: ``cldnet demo``, ``cldnet run``, ``cldnet methods``, ``cldnet streams``."""

from __future__ import annotations

import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cldnet.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cldnet.bench.pool import Cell

__all__ = ["app", "main"]


def _show_version(wanted: bool) -> None:
    if wanted:
        Console().print(f"cldnet {__version__}", highlight=False)
        raise typer.Exit


app = typer.Typer(
    help="Learn new classes for ever: keep no data, never grow, never forget.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def common(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version.")
    ] = False,
) -> None:
    """Learn new classes for ever: keep no data, never grow, never forget."""


def main() -> None:
    """Run the command line; what a user can mend is said in a sentence, without a traceback."""
    try:
        app()
    except (ValueError, OSError) as error:
        Console(stderr=True).print(f"Error: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for result files, page and picture.")] = Path("results/demo"),
    jobs: Annotated[int, typer.Option(min=1, help="Processes side by side.")] = 2,
) -> None:
    """Watch six methods learn ten digits two at a time, in three class orders (about a minute)."""
    from cldnet.bench.demo import demo_cells, in_order, write_report

    begun = time.perf_counter()
    cells = demo_cells()
    Console().print(
        f"Split Digits: 5 tasks of 2 classes, {len(cells)} runs in {jobs} processes.", highlight=False, markup=False
    )
    results = in_order(_run_and_write(cells, jobs, out))
    page, picture = write_report(results, out)
    Console().print(_table(results))
    Console().print(
        "Accuracy after the last task: average over the tasks' test images, all ten classes as\n"
        "candidates, no task given; mean ± standard deviation over three class orders. Settings\n"
        f"were chosen on a validation part of the training data. {time.perf_counter() - begun:.0f} s.\n"
        f"page     {page}\npicture  {picture}\nresults  {out}/*.json",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


@app.command("run")
def run_command(
    stream: Annotated[str, typer.Option(help="Name of a stream; see `cldnet streams`.")],
    method: Annotated[str, typer.Option(help="Name of a method; see `cldnet methods`.")],
    seed: Annotated[int, typer.Option(help="Seed of weights, shuffling and class order.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for the result file.")] = Path("results"),
    epochs: Annotated[int | None, typer.Option(help="Passes over each task; by default the preset's.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Examples a step; by default the preset's.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads; by default torch's.")] = None,
    options: Annotated[
        list[str] | None, typer.Option("--set", help="An option of the method, as lr=0.1; repeat it.")
    ] = None,
) -> None:
    """Run one method on one stream and write one JSON file."""
    from dataclasses import replace

    from cldnet.bench.pool import Cell
    from cldnet.bench.preset import preset
    from cldnet.data.streams import stream_by_name
    from cldnet.methods import read_method

    read_method(method)
    stream_by_name(stream, seed)
    spec = preset(stream, method, seed, threads)
    chosen: dict[str, Any] = {"epochs": epochs, "batch_size": batch_size}
    spec = replace(spec, **{name: value for name, value in chosen.items() if value is not None})
    spec = replace(spec, options={**spec.options, **_read_options(options or [])})
    results = _run_and_write([Cell(stream, spec)], 1, out)
    Console().print(_table(results))


def _read_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Read ``name=value`` pairs as TOML has them."""
    options: dict[str, Any] = {}
    for pair in pairs:
        try:
            options.update(tomllib.loads(pair))
        except tomllib.TOMLDecodeError as error:
            raise ValueError(
                f'--set {pair!r} is not a name and a value, as lr=0.1 or alpha={{kind="ConstantAlpha", value=0.5}}.'
            ) from error
    return options


@app.command()
def methods() -> None:
    """List the methods."""
    from cldnet.methods import known_methods

    table = Table("method", "what it is", "keeps data", "grows", "needs the task", box=SIMPLE_HEAD)
    for name, method in known_methods().items():
        traits = method.load().traits
        answers = (not traits.rehearsal_free, not traits.constant_size, traits.needs_task_id)
        table.add_row(name, method.summary, *("yes" if answer else "no" for answer in answers))
    Console().print(table)


@app.command()
def streams() -> None:
    """List the streams."""
    from cldnet.data.streams import STREAMS

    table = Table("stream", "what it is", box=SIMPLE_HEAD)
    for name, stream in STREAMS.items():
        table.add_row(name, stream.summary)
    Console().print(table)


def _run_and_write(cells: Sequence[Cell], jobs: int, out: Path) -> list[dict[str, Any]]:
    """Run cells, writing each result as it is finished, so that Ctrl-C loses only what is running."""
    from cldnet.bench.pool import run_cells
    from cldnet.bench.run import write_result
    from cldnet.bench.summary import display_name, percent

    results: list[dict[str, Any]] = []
    names = [f"{display_name(cell.spec.method)}, order {cell.spec.seed}" for cell in cells]
    try:
        with _progress(names) as (on_progress, say):
            for number, result in run_cells(cells, jobs, on_progress):
                path = write_result(result, out)
                result["file"] = path.name
                results.append(result)
                accuracy = percent(result["scores"]["average_accuracy"])
                say(number, f"{accuracy} in {result['seconds']['total']:.1f} s")
    except KeyboardInterrupt:  # said when the bars are gone
        left = f"{len(results)} finished results are in {out}." if results else "Nothing was finished."
        Console(stderr=True).print(f"\nStopped. {left}", highlight=False, markup=False, soft_wrap=True)
        raise typer.Exit(130) from None
    return results


@contextmanager
def _progress(names: Sequence[str]) -> Iterator[tuple[Callable[[int, float], None], Callable[[int, str], None]]]:
    """Show bars on a terminal, and a plain line for every finished run elsewhere."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console()
    if not console.is_terminal:
        yield (
            lambda number, share: None,
            lambda number, text: console.print(f"{names[number]}: {text}", highlight=False, markup=False),
        )
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        whole = bars.add_task("all runs", total=len(names))
        running: dict[int, Any] = {}
        shares = [0.0] * len(names)

        def on_progress(number: int, share: float) -> None:
            if number not in running and share < 1:
                running[number] = bars.add_task(names[number], total=1.0)
            if number in running:
                bars.update(running[number], completed=share)
            shares[number] = max(share, shares[number])
            bars.update(whole, completed=sum(shares))

        def say(number: int, text: str) -> None:
            on_progress(number, 1.0)
            if number in running:
                bars.remove_task(running.pop(number))
            bars.console.print(f"{names[number]}: {text}", highlight=False, markup=False)

        yield on_progress, say


def _table(results: Sequence[dict[str, Any]]) -> Table:
    from cldnet.bench.summary import human_bytes, percent, percent_pm, summarise, yes_no

    table = Table(title=results[0]["stream"]["name"], box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    table.add_column("average\naccuracy", justify="right", no_wrap=True)
    for heading in ("forgetting", "seconds", "bytes\nkept", "grows?", "keeps\ndata?"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in summarise(results):
        table.add_row(
            row.name,
            percent_pm(row.accuracy, row.accuracy_std),
            percent(row.forgetting),
            f"{row.seconds:.1f}",
            human_bytes(row.bytes_kept),
            yes_no(row.grows),
            yes_no(row.keeps_data),
        )
    return table
