"""A run as one HTML page that needs nothing else, with its plots as SVG files beside it for the docs."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.speed import say
from benchmarks.speed.plots import growth, ratios
from benchmarks.speed.record import Curve, Finding
from benchmarks.speed.result import Result
from benchmarks.speed.run import PARTS
from benchmarks.speed.tabulate import curves_table, findings_table, limits_table, not_run_table, targets_table

from cldnet.bench.report.plain import plain_page
from cldnet.bench.report.scene import Plot
from cldnet.bench.report.svg import drawing, key_mark, svg_file, text
from cldnet.bench.report.tables import link
from cldnet.bench.wording import duration
from cldnet.store import write_atomically

_WIDTH = 1080  # of panels beside each other, less what is between them
_STYLE = """.missed { color: var(--s1); font-weight: 700; } .met { color: var(--s2); } .facts { margin-top: 1.25rem; }
section > :is(.scroll, details) { margin-top: 1.25rem; } .notices { list-style: disc; } .sorted tbody th { line-height: 1.35; }
"""
_HOW = (
    "Every figure is a ratio of two pieces of work that were done in turns, in the same run, so that whatever a shared "
    "machine does to one it does to the other. Each turn gives a ratio; shown is the median with the lower and the upper "
    "quartile, by the clock and by the CPU time of all cores. What the machine itself can do was measured first."
)


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
        _section("targets", "Targets", targets_table(result.findings)),
        _section("limits", "What the machine can do", limits_table(result.limits)),
        *(_part(result, part, plots) for part, plots in drawn.items() if result.of(part)),
        _section("not-run", "What was not run", not_run_table(result.not_run)),
    ]
    title = "How fast CLDNet is"
    body = "\n".join((_head(result, title, way), *filter(None, sections)))
    return plain_page(title, body, _STYLE)


def _plots(result: Result, part: str) -> Iterator[Plot]:
    found = result.of(part)
    bars = ratios(part, "Ratios", [one for one in found if isinstance(one, Finding)])
    if bars is not None:
        yield bars
    curves = [one for one in found if isinstance(one, Curve)]
    if curves:
        yield growth(part, "Growth", curves)


def _head(result: Result, title: str, way: str) -> str:
    aimed = [one for one in result.findings if one.target is not None]
    met = sum(bool(one.met) for one in aimed)
    about = result.about
    changed = " with uncommitted changes" if about["dirty"] else ""
    facts = {
        "Machine": text(about["machine"]),
        "When": text(about["when"]),
        "Commit": f"<code>{text(about['commit'] or 'unknown')}</code>{changed}",
        "Versions": text(", ".join(f"{name} {version}" for name, version in about["versions"].items())),
        "Took": text(duration(sum(result.seconds.values()))),
        "Command": f"<code>{text(about['command'])}</code>",
        "Figures": link(way, Path(way).name) + ", with the seconds of every turn",
    }
    listed = "".join(f"<dt>{name}</dt><dd>{words}</dd>" for name, words in facts.items())
    notices = "".join(f"<li>{notice}</li>" for notice in _notices(result))
    return (
        f'<header>\n<h1>{title}</h1>\n<p class="lead-in">{met} of {len(aimed)} targets are met.</p>\n'
        + (f'<ul class="notices">{notices}</ul>\n' if notices else "")
        + f'<dl class="facts">{listed}</dl>\n<p class="note">{_HOW}</p>\n'
        + f'<nav aria-label="Parts of this page">{_links(result)}</nav>\n</header>'
    )


def _links(result: Result) -> str:
    places = {"targets": "Targets", "limits": "Limits", **{part: PARTS[part] for part in PARTS if result.of(part)}}
    if result.not_run:
        places["not-run"] = "Not run"
    return " ".join(f'<a href="#{place}">{text(words)}</a>' for place, words in places.items())


def _notices(result: Result) -> Iterator[str]:
    for one in result.findings:
        if one.met is False:
            yield (
                f'<span class="missed">Not met</span>: {text(one.title)}, {say.thread_count(one.threads)}: '
                f"{say.figure(one.ratio.median)}, where the target is {say.target(one)}."
            )
    if result.about["settings"]["quick"]:
        yield "This was a quick run, on less work than the figures need: only a hint."
    left_out = [part for part in PARTS if part not in result.seconds]
    if left_out:
        yield f"Parts that were not asked for: {text(', '.join(left_out))}."
    if result.not_run:
        count = len(result.not_run)
        yield f"{count} {'comparison was' if count == 1 else 'comparisons were'} not run; the reasons are below."


def _part(result: Result, part: str, plots: Sequence[Plot]) -> str:
    found = result.of(part)
    findings, curves = (
        [one for one in found if isinstance(one, Finding)],
        [one for one in found if isinstance(one, Curve)],
    )
    figures = "\n".join(map(_figure, plots))
    tables = findings_table(part, findings) + curves_table(part, curves)
    return _section(part, PARTS[part], (f'<div class="plots">\n{figures}\n</div>\n' if figures else "") + tables)


def _section(place: str, title: str, content: str) -> str:
    if not content:
        return ""
    return f'<section aria-labelledby="{place}">\n<h2 id="{place}">{text(title)}</h2>\n{content}\n</section>'


def _figure(plot: Plot) -> str:
    key = "".join(f"<li>{key_mark(look)}{text(words)}</li>" for look, words in plot.key)
    drawings = "".join(f'<figure class="chart">{drawing(panel)}</figure>' for panel in plot.panels)
    room = f' style="--panel:{_WIDTH / plot.columns:.0f}px"' if plot.wide else ""
    return (
        f'<div class="figure{" wide" * plot.wide}">\n<h3>{plot.title}</h3>\n<p class="caption">{plot.caption}</p>\n'
        f'<div class="panels"{room}>{drawings}</div>\n'
        + (f'<ul class="key always">{key}</ul>\n' if key else "")
        + "</div>"
    )
