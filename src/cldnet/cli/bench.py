"""``cldnet bench``: every cell of a specification, once, whoever else is at it and whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from cldnet.cli.datasets import DataOption
from cldnet.cli.live import live
from cldnet.cli.show import counting, result_tables, say

if TYPE_CHECKING:
    from cldnet.bench.cell import Cell
    from cldnet.bench.events import Outcome
    from cldnet.bench.spec import Spec

__all__ = ["bench_command", "run_bench"]


def bench_command(
    spec_file: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="What to run; see docs/bench.md.")],
    out: Annotated[Path | None, typer.Option(help="Folder for results; by default results/<name of the spec>.")] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes side by side; by default one a core, at most 4.")
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            help="Run only cells of this stream, method or configuration, or those whose stream/method/seedN matches a "
            "pattern, as 'split-mnist/*/seed0'; repeat it."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would run, and how long it may take; run nothing.")
    ] = False,
    retries: Annotated[int, typer.Option(min=0, help="Further attempts at a cell whose process died.")] = 1,
    data: DataOption = None,
) -> None:
    """Run methods × streams × seeds × configurations; what is finished is skipped, so the same command goes on."""
    from cldnet.bench.spec import read_spec

    spec = read_spec(spec_file)
    folder = out or Path("results") / spec.name
    outcome = run_bench(spec, folder, jobs=jobs, only=only or [], dry_run=dry_run, retries=retries, data=data)
    if outcome is None:
        return
    say(f"results  {folder}/*.json\ntable    cldnet table {folder}\npage     cldnet report {folder}")
    if outcome.failures:
        raise typer.Exit(1)


def run_bench(
    spec: Spec,
    folder: Path,
    *,
    jobs: int | None = None,
    only: Sequence[str] = (),
    dry_run: bool = False,
    retries: int = 1,
    data: Path | None = None,
) -> Outcome | None:
    """Run a specification and show it as it runs; None after a dry run, or where nothing was to be run."""
    from cldnet.bench.machine import cores
    from cldnet.bench.workers import execute, file_names

    cells = spec.cells()
    numbers = _chosen(cells, only)
    jobs = jobs or min(cores(), 4)
    with counting("reading streams", "cells") as tell:
        names = _with_finished(cells, file_names(cells, data, tell), folder)
    chosen, chosen_names = [cells[number] for number in numbers], [names[number] for number in numbers]
    watch = _watch(chosen, chosen_names, folder, jobs)
    if dry_run:
        _tell(watch, folder, jobs)
        return None
    _prepare(spec, cells, names, folder)
    count = f"{len(chosen)} cell{'' if len(chosen) == 1 else 's'}"
    say(f"{spec.title}: {count}, {watch.done} of them finished, {jobs} at a time. Results go to {folder}.")
    _tell_of_other_code(watch)
    try:
        with live(watch) as show:
            how: Any = {"jobs": jobs, "data": data, "retries": retries, "names": chosen_names}
            outcome = execute(chosen, folder, **how, on_event=show)
    except KeyboardInterrupt:  # said when the bars are gone
        say(f"\nStopped. {watch.done} of {len(chosen)} cells are in {folder}; the same command goes on.", error=True)
        raise typer.Exit(130) from None
    _show(folder, outcome, chosen)
    return outcome


def _chosen(cells: Sequence[Cell], only: Sequence[str]) -> list[int]:
    """Numbers of the cells that are wanted."""

    def wanted(cell: Cell, pattern: str) -> bool:
        parts = cell.stream, cell.shown_stream, cell.spec.method, cell.label, f"seed{cell.spec.seed}"
        return pattern in parts or fnmatchcase(cell.name, pattern)

    for pattern in only:
        if not any(wanted(cell, pattern) for cell in cells):
            raise ValueError(f"--only {pattern!r} is none of the cells, whose names are as {cells[0].name!r}.")
    return [n for n, cell in enumerate(cells) if not only or any(wanted(cell, pattern) for pattern in only)]


def _watch(cells: Sequence[Cell], names: Sequence[str | Exception], folder: Path, jobs: int) -> Any:
    """A watch that knows which cells are there, and how long they took."""
    from cldnet.bench.estimate import seconds_of_cells
    from cldnet.bench.events import Failed, Finished
    from cldnet.bench.watch import Watch

    files = {n: folder / name for n, name in enumerate(names) if isinstance(name, str) and (folder / name).exists()}
    watch = Watch(cells, jobs, seconds_of_cells(files, cells))
    for number, path in files.items():
        watch(Finished(number, path, ran=False))
    for number, name in enumerate(names):
        if isinstance(name, Exception):
            watch(Failed(number, str(name), again=False))
    return watch


def _tell(watch: Any, folder: Path, jobs: int) -> None:
    """Say what would run, and how long it may take."""
    from cldnet.bench.wording import duration

    for number in watch.waiting:
        usual = watch.estimate.of(watch.cells[number])
        say(f"{watch.cells[number].name}: {'no finished cell to judge by' if usual is None else duration(usual)}")
    for number, why in watch.failed.items():
        say(f"{watch.cells[number].name}: cannot run: {why}")
    left = watch.time_left()
    time = "how long they take shows when the first ones are finished" if left is None else f"{duration(left)} in all"
    rest = f"{len(watch.waiting)} would run, {jobs} at a time: {time}." if watch.waiting else "nothing is left to run."
    say(f"{watch.done} of {len(watch.cells)} cells are in {folder}; {rest}")


def _prepare(spec: Spec, cells: Sequence[Cell], names: Sequence[str | Exception], folder: Path) -> None:
    """Make the folder and write down what it is to hold."""
    from cldnet.bench.results import Plan, Planned, write_plan

    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            f"{folder} cannot be made a folder ({error.strerror}): name another one with --out."
        ) from error
    planned = []
    for cell, name in zip(cells, names, strict=True):
        file, why = (name, "") if isinstance(name, str) else (None, str(name))
        planned.append(Planned(cell.shown_stream, cell.spec.method, cell.label, cell.spec.seed, file, why))
    write_plan(Plan(spec.name, spec.title, tuple(planned)), folder)


def _with_finished(cells: Sequence[Cell], names: list[str | Exception], folder: Path) -> list[str | Exception]:
    """Name the files of finished cells whose data are not at hand: another machine, or another day, may have had them."""
    from cldnet.bench.cell import cell_of_result
    from cldnet.bench.results import read_result

    if not any(isinstance(name, Exception) for name in names):
        return names
    files: dict[str, str] = {}
    for path in folder.glob("*_seed*.json"):
        result = read_result(path)
        if result is not None and "cell" in result:
            files[cell_of_result(result).same()] = path.name
    return [
        name if isinstance(name, str) else files.get(cell.same(), name) for cell, name in zip(cells, names, strict=True)
    ]


def _tell_of_other_code(watch: Any) -> None:
    """Say of finished cells that they were made by code that is not today's: only the method's author knows if it matters."""
    from cldnet.bench.cell import code_digest
    from cldnet.bench.results import read_result

    other: dict[str, int] = {}
    for number, path in watch.files.items():
        method = watch.cells[number].spec.method
        result = read_result(path)
        if result is not None and result.get("code") != code_digest(method):
            other[method] = other.get(method, 0) + 1
    for method, count in other.items():
        say(
            f"{count} finished cells of {method} were made by other code of the same version: raise `version` in its class, "
            "or delete their files, to run them again.",
            error=True,
        )


def _show(folder: Path, outcome: Outcome, cells: Sequence[Cell]) -> None:
    from cldnet.bench.results import read_folder
    from cldnet.bench.summary import summarise

    found = read_folder(folder)
    for table in result_tables(summarise(found.results, found.planned)):
        Console().print(table)
    for number, why in outcome.failures.items():
        say(f"{cells[number].name} is not run: {why}", error=True)
