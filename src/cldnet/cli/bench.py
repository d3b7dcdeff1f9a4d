"""``cldnet bench`` and ``cldnet demo``: run every cell of a specification once, and show progress."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from cldnet.bench.formatting import counted, duration
from cldnet.cli.datasets import DataOption
from cldnet.cli.show import counting, outcome_text, progress, result_tables, say

if TYPE_CHECKING:
    from cldnet.bench.cell import Cell
    from cldnet.bench.spec import Spec
    from cldnet.bench.workers import Event, Outcome

#: Results of finished cells, by the index of the cell.
Results = Mapping[int, Mapping[str, Any]]


def bench_command(
    spec_file: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="What to run; see docs/bench.md.")],
    out: Annotated[Path | None, typer.Option(help="Folder for results; by default results/<name of the spec>.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Number of processes; by default one per core, at most 4.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Run only cells of this stream, method or configuration, or those whose stream/method/seedN matches a "
            "pattern such as 'split-mnist/*/seed0'. Repeatable."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would run and how long it may take, but run nothing.")
    ] = False,
    retries: Annotated[int, typer.Option(min=0, help="Number of retries of a cell whose process died.")] = 1,
    data: DataOption = None,
) -> None:
    """Run methods × streams × seeds × configurations. Finished cells are skipped, so the same command resumes."""
    from cldnet.bench.spec import read_spec

    spec = read_spec(spec_file)
    folder = out or Path("results") / spec.name
    outcome = _run_bench(spec, folder, jobs=jobs, only=only or [], dry_run=dry_run, retries=retries, data=data)
    if outcome is None:
        return
    say(f"results  {folder}/*.json\ntable    cldnet table {folder}\npage     cldnet report {folder}")
    if outcome.failures:
        raise typer.Exit(1)


def demo(
    out: Annotated[Path, typer.Option(help="Folder for result files, page and plots.")] = Path("results/demo"),
    jobs: Annotated[int, typer.Option(min=1, help="Number of processes.")] = 2,
) -> None:
    """Watch six methods learn ten digits two at a time, in three class orders (about a minute)."""
    from cldnet.bench.report import write_report
    from cldnet.bench.spec import demo_spec

    started = time.perf_counter()
    outcome = _run_bench(demo_spec(), out, jobs=jobs)
    report = write_report(out)
    say(
        "Accuracy after the last task: average over the tasks' test images, all ten classes as\n"
        "candidates, no task given; mean ± standard deviation over three class orders. Settings\n"
        f"were chosen on a validation part of the training data. {time.perf_counter() - started:.0f} s.\n"
        f"page     {report.page}\nplots    {report.missing or report.page.parent / 'plots'}\nresults  {out}/*.json"
    )
    if outcome is not None and outcome.failures:
        raise typer.Exit(1)


def _run_bench(
    spec: Spec,
    folder: Path,
    *,
    jobs: int | None = None,
    only: Sequence[str] = (),
    dry_run: bool = False,
    retries: int = 1,
    data: Path | None = None,
) -> Outcome | None:
    """Run a specification and show progress; None after a dry run."""
    from cldnet.bench.cell import file_names
    from cldnet.bench.machine import cores
    from cldnet.bench.results import BenchPlan, Planned, read_folder, read_result, write_plan
    from cldnet.bench.summary import summarise
    from cldnet.bench.workers import execute

    cells = spec.cells()
    chosen = _chosen(cells, only)
    jobs = jobs or min(cores(), 4)
    with counting("reading streams", "cells") as tell:
        names = _with_finished(cells, file_names(cells, data, tell), folder)
    files = {number: folder / str(names[number]) for number in chosen}
    finished = {number: read_result(file) or {} for number, file in files.items() if file.is_file()}
    left = [number for number in chosen if number not in finished]
    if dry_run:
        _say_what_would_run(cells, names, finished, left, jobs)
        say(f"{len(finished)} of {len(chosen)} cells are in {folder}.")
        return None
    make_folder(folder)
    planned = []
    for cell, name in zip(cells, names, strict=True):
        file, why = (name, "") if isinstance(name, str) else (None, str(name))
        planned.append(Planned(cell.shown_stream, cell.spec.method, cell.label, cell.spec.seed, file, why))
    write_plan(BenchPlan(spec.name, spec.title, tuple(planned)), folder)
    count = counted(len(chosen), "cell", "cells")
    say(f"{spec.title}: {count}, {len(finished)} of them finished, {jobs} at a time. Results go to {folder}.")
    _warn_of_other_code(cells, finished)
    todo, done = [cells[number] for number in left], len(finished)
    try:
        with progress([cell.title for cell in todo]) as (on_progress, tell_result):

            def show(event: Event) -> None:
                nonlocal done
                done += event.kind == "finished"
                if event.kind == "progress":
                    on_progress(event.number, event.share)
                elif event.kind == "elsewhere" or event.retry:
                    say(f"{todo[event.number].title}: {_news(event)}")
                elif news := _news(event):
                    tell_result(event.number, f"{news} ({done} of {len(chosen)})" if event.path else news)

            how: Any = {"jobs": jobs, "data": data, "retries": retries, "names": [names[number] for number in left]}
            outcome = execute(todo, folder, **how, on_event=show)
    except KeyboardInterrupt:  # said when the bars are gone
        say(f"\nStopped. {done} of {len(chosen)} cells are in {folder}; run the same command to resume.", error=True)
        raise typer.Exit(130) from None
    found = read_folder(folder)
    for table in result_tables(summarise(found.results, found.planned)):
        Console().print(table)
    for number, why in outcome.failures.items():
        say(f"{todo[number].name} was not run: {why}", error=True)
    return outcome


def _news(event: Event) -> str:
    """What deserves a line of its own; usually nothing."""
    from cldnet.bench.results import read_result

    if event.kind == "elsewhere":
        return f"{event.text} is running it"
    if event.kind == "failed":
        return f"failed{', will be retried' if event.retry else ''}: {event.text}"
    result = read_result(event.path) if event.path is not None and event.ran else None
    return "" if result is None else outcome_text(result)


def make_folder(folder: Path) -> None:
    """Make a folder for results."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"The folder {folder} cannot be made ({error.strerror}): name another one with --out."
        ) from error


def _chosen(cells: Sequence[Cell], only: Sequence[str]) -> list[int]:
    """Numbers of the cells that are wanted."""

    def wanted(cell: Cell, pattern: str) -> bool:
        parts = cell.stream, cell.shown_stream, cell.spec.method, cell.label, f"seed{cell.spec.seed}"
        return pattern in parts or fnmatchcase(cell.name, pattern)

    for pattern in only:
        if not any(wanted(cell, pattern) for cell in cells):
            raise ValueError(f"--only {pattern!r} matches no cell; cells are named like {cells[0].name!r}.")
    return [n for n, cell in enumerate(cells) if not only or any(wanted(cell, pattern) for pattern in only)]


def _with_finished(cells: Sequence[Cell], names: list[str | Exception], folder: Path) -> list[str | Exception]:
    """Find the files of finished cells even if their data are not here now, or only on another machine."""
    from cldnet.bench.cell import cell_of_result
    from cldnet.bench.results import read_result

    if not any(isinstance(name, Exception) for name in names):
        return names
    files: dict[str, str] = {}
    for path in folder.glob("*_seed*.json"):
        result = read_result(path)
        if result is not None and "cell" in result:
            files[cell_of_result(result).same()] = path.name
    pairs = zip(cells, names, strict=True)
    return [name if isinstance(name, str) else files.get(cell.same(), name) for cell, name in pairs]


def _say_what_would_run(
    cells: Sequence[Cell], names: Sequence[str | Exception], finished: Results, left: Sequence[int], jobs: int
) -> None:
    """List the cells that are left, with the time that the most similar finished cells took."""
    seconds = {number: result["seconds"]["total"] for number, result in finished.items() if result}

    def likeness(number: int, other: int) -> tuple[bool, bool]:
        one, two = cells[number], cells[other]
        return one.stream == two.stream, (one.label, one.spec.method) == (two.label, two.spec.method)

    estimates = []
    for number in left:
        if isinstance(names[number], Exception):
            say(f"{cells[number].name}: cannot run: {names[number]}")
            continue
        nearest = max((likeness(number, other) for other in seconds), default=None)
        alike = [seconds[other] for other in seconds if likeness(number, other) == nearest]
        estimates.append(median(alike) if alike else None)
        say(f"{cells[number].name}: {duration(median(alike)) if alike else 'duration unknown'}")
    known = [estimate for estimate in estimates if estimate is not None]
    total = f", about {duration(sum(known) / jobs)} in all" if known else ""
    say(f"{len(estimates)} would run, {jobs} at a time{total}." if estimates else "Nothing is left to run.")


def _warn_of_other_code(cells: Sequence[Cell], finished: Results) -> None:
    """Name finished cells that other code made: only the method's author knows whether the change matters."""
    from cldnet.bench.cell import code_digest

    methods = {number: cells[number].spec.method for number in finished}
    other = Counter(methods[n] for n, result in finished.items() if result.get("code") != code_digest(methods[n]))
    for method, count in other.items():
        say(
            f"{count} finished cells of {method} were made by other code of the same version: raise `version` in its class, "
            "or delete their files, to run them again.",
            error=True,
        )
