"""A run as one HTML page that needs nothing else, with its plots as SVG files beside it for the docs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.speed import say
from benchmarks.speed.plots import growth, ratios
from benchmarks.speed.record import Curve, Finding
from benchmarks.speed.result import Result
from benchmarks.speed.run import PARTS
from benchmarks.speed.tabulate import Table, curves_table, findings_table, limits_table, not_run_table, targets_table

from cldnet.bench.formatting import duration
from cldnet.bench.report.drawing import Plot, svg_file
from cldnet.bench.report.page import page_environment
from cldnet.storage import write_atomically


@dataclass(frozen=True)
class _Section:
    place: str
    title: str
    link: str
    tables: Sequence[Table]
    plots: Sequence[Plot] = ()


def write_page(result: Result, page: Path, file: Path) -> None:
    """Write the page of a run, with a link to its JSON file, and every plot as an SVG file into the same folder."""
    page.parent.mkdir(parents=True, exist_ok=True)
    drawn = {part: list(_plots(result, part)) for part in PARTS}
    for part, plots in drawn.items():
        for plot in plots:
            write_atomically(page.parent / f"{plot.name}.svg", svg_file(plot, PARTS[part]))
    way = Path(os.path.relpath(file, page.parent)).as_posix()
    write_atomically(page, render(result, drawn, way).encode())


def render(result: Result, drawn: dict[str, list[Plot]], way: str) -> str:
    """Return the page as HTML; `way` leads from it to the JSON file."""
    sections = [
        _Section("targets", "Targets", "Targets", targets_table(result.findings)),
        _Section("limits", "What the machine can do", "Limits", limits_table(result.limits)),
        *(_part(result, part, plots) for part, plots in drawn.items() if result.of(part)),
        _Section("not-run", "What was not run", "Not run", not_run_table(result.not_run)),
    ]
    template = page_environment.from_string(Path(__file__).with_name("page.html.j2").read_text("utf-8"))
    return template.render(
        aimed=[one for one in result.findings if one.target is not None],
        notices=list(_notices(result)),
        about=result.about,
        took=duration(sum(result.seconds.values())),
        way=way,
        sections=[section for section in sections if section.tables or section.plots],
    )


def _plots(result: Result, part: str) -> Iterator[Plot]:
    found = result.of(part)
    bars = ratios(part, "Ratios", [one for one in found if isinstance(one, Finding)])
    if bars is not None:
        yield bars
    curves = [one for one in found if isinstance(one, Curve)]
    if curves:
        yield growth(part, "Growth", curves)


def _notices(result: Result) -> Iterator[tuple[bool, str]]:
    """What a reader should see at once, and whether it is a target that was missed."""
    for one in result.findings:
        if one.met is False:
            threads = say.thread_count(one.threads)
            yield (
                True,
                f"{one.title}, {threads}: {say.figure(one.ratio.median)}, where the target is {say.target(one)}.",
            )
    if result.about["settings"]["quick"]:
        yield False, "This was a quick run, on less work than the figures need: only a hint."
    left_out = [part for part in PARTS if part not in result.seconds]
    if left_out:
        yield False, f"Parts that were not asked for: {', '.join(left_out)}."
    if result.not_run:
        count = len(result.not_run)
        yield False, f"{count} {'comparison was' if count == 1 else 'comparisons were'} not run; the reasons are below."


def _part(result: Result, part: str, plots: Sequence[Plot]) -> _Section:
    found = result.of(part)
    findings = findings_table(part, [one for one in found if isinstance(one, Finding)])
    curves = curves_table(part, [one for one in found if isinstance(one, Curve)])
    return _Section(part, PARTS[part], PARTS[part], [*findings, *curves], plots)
