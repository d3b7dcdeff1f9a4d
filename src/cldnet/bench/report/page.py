"""The report as one HTML file that needs nothing else: no font, no network, and no script but its own."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

from cldnet.bench.report.details import page_data
from cldnet.bench.report.notes import notes
from cldnet.bench.report.reading import class_orders, legible, share
from cldnet.bench.report.scene import Panel, Plot, Table
from cldnet.bench.report.style import page_style, read
from cldnet.bench.report.svg import drawing, key_mark, text
from cldnet.bench.report.tables import (
    Row,
    html_table,
    link,
    needs_the_task,
    results_columns,
    runs_columns,
)
from cldnet.bench.results import Folder
from cldnet.bench.summary import Summary
from cldnet.bench.wording import NEEDS_THE_TASK, percent

__all__ = ["Drawn", "render_page"]

#: Plots of each stream, with the names of their files relative to the page.
Drawn = Mapping[str, Sequence[tuple[Plot, Sequence[str]]]]


def render_page(folder: Folder, summaries: Sequence[Summary], drawn: Drawn, link_to: Callable[[str], str]) -> str:
    """Return the page as HTML.

    Parameters
    ----------
    folder : Folder
    summaries : sequence of Summary
    drawn : mapping
        The plots; see `Drawn`.
    link_to : callable
        From the name of a result's file to its path as seen from the page.
    """
    rows = _rows(folder, summaries)
    columns, run_columns = results_columns(summaries), runs_columns(rows, link_to)
    script = read("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    body = "\n".join(
        (
            _head(folder, summaries),
            f'<section aria-labelledby="results-title">\n<h2 id="results-title">Results</h2>\n{_filters(summaries)}',
            html_table("results", "Results by method: means over the runs", columns, summaries),
            f"{notes(summaries)}\n</section>",
            *(_stream(at, stream, drawn[stream], summaries) for at, stream in enumerate(drawn)),
            '<section aria-labelledby="runs-title">\n<h2 id="runs-title">Every run</h2>\n'
            "<p>Each figure above is a mean over some of these. Open a run to see what it takes to repeat and to check it.</p>",
            html_table("runs", "All runs, one a row", run_columns, rows) + "\n</section>",
            _leaks(summaries),
        )
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(folder.title)}</title>\n<style>\n{page_style()}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        f'<script type="application/json" id="data">{page_data(summaries, rows, columns, run_columns)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _rows(folder: Folder, summaries: Sequence[Summary]) -> list[Row]:
    reasons = {(cell.stream, cell.method, cell.label, cell.seed): folder.why_not(cell) for cell in folder.planned}
    rows = []
    for summary in summaries:
        rows += [Row(summary, int(result["seed"]), result) for result in summary.results]
        cell = summary.results[0].get("cell", {}) if summary.results else {}
        stream = cell.get("stream", summary.stream)
        for seed in summary.missing:
            why = reasons.get((stream, summary.method, summary.label, seed), "")
            rows.append(Row(summary, seed, None, why))
    return rows


def _head(folder: Folder, summaries: Sequence[Summary]) -> str:
    names = len({s.name for s in summaries})
    streams = list(dict.fromkeys(s.stream for s in summaries))
    orders = class_orders(result for s in summaries for result in s.results)
    said = text(streams[0]) if len(streams) == 1 else _count(len(streams), "stream")
    notices = []
    missing, runs = sum(len(s.missing) for s in summaries), sum(s.runs for s in summaries)
    if missing:
        are = "is" if missing == 1 else "are"
        notices.append(f"<li>{missing} of {_count(missing + runs, 'run')} {are} not there yet.</li>")
    files = {result["file"] for s in summaries for result in s.results}
    for file, reason in folder.failures.items():
        if file not in files:
            notices.append(f"<li>Failed when last tried: <code>{text(file)}</code>. {text(reason)}</li>")
    unread = dict.fromkeys((cell.stream, cell.why) for cell in folder.planned if cell.why)
    notices += [f"<li>{text(stream)} could not be read: {text(why)}</li>" for stream, why in unread]
    if folder.left_out:
        listed = ", ".join(f"<code>{text(name)}</code>" for name in folder.left_out)
        notices.append(f"<li>Left out, since they are not of this plan: {listed}.</li>")
    sections = [("results-title", "Results"), *((f"stream-{at}", stream) for at, stream in enumerate(streams))]
    sections += [("runs-title", "Every run"), *([("leaks", "Leaks")] if any(map(_leaky, summaries)) else [])]
    return (
        f'<header>\n<h1>{text(folder.title)}</h1>\n<p class="lead-in">{_count(names, "method")} learned {said}, one task after '
        f"the other, in {_count(len(orders), 'class order')}: {_count(runs, 'run')}.</p>\n"
        + (f'<ul class="notices">{"".join(notices)}</ul>\n' if notices else "")
        + '<nav aria-label="Parts of this page">'
        + " ".join(f'<a href="#{anchor}">{text(name)}</a>' for anchor, name in sections)
        + "</nav>\n</header>"
    )


def _filters(summaries: Sequence[Summary]) -> str:
    def select(name: str, label: str, values: Sequence[str]) -> str:
        options = "".join(f'<option value="{text(value)}">{text(value)}</option>' for value in values)
        hidden = " hidden" if len(values) < 2 else ""
        return f'<label{hidden}>{label} <select name="{name}"><option value="">all</option>{options}</select></label>'

    no_outside = ", has none from outside" if any(s.outside for s in summaries) else ""
    return (
        '<form id="filters" role="search" aria-label="Filter all tables" hidden>'
        '<label>Search <input type="search" name="words" autocomplete="off" spellcheck="false"></label>'
        f"{select('stream', 'Stream', list(dict.fromkeys(s.stream for s in summaries)))}"
        f"{select('method', 'Method', list(dict.fromkeys(s.name for s in summaries)))}"
        f'<label class="tick"><input type="checkbox" name="no-data"> keeps no data{no_outside}</label>'
        '<label class="tick"><input type="checkbox" name="no-growth"> does not grow</label>'
        '<button type="reset">Clear</button><output aria-live="polite"></output></form>'
    )


def _stream(at: int, stream: str, plots: Sequence[tuple[Plot, Sequence[str]]], summaries: Sequence[Summary]) -> str:
    own = [s for s in summaries if s.stream == stream]
    silent = [s.name for s in own if needs_the_task(s.results)]
    remarks = [f"{text(name)} {NEEDS_THE_TASK}: it has no class-incremental accuracy to draw." for name in silent]
    if not any(s.runs for s in own):
        remarks.append("Nothing was run on this stream yet.")
    figures = "\n".join(_figure(stream, plot, files) for plot, files in plots)
    return (
        f'<section class="stream" data-stream="{text(stream)}" aria-labelledby="stream-{at}">\n'
        f'<h2 id="stream-{at}">{text(stream)}</h2>\n'
        + "".join(f'<p class="note">{remark}</p>\n' for remark in remarks)
        + (f'<div class="plots">\n{figures}\n</div>\n' if figures else "")
        + "</section>"
    )


def _figure(stream: str, plot: Plot, files: Sequence[str]) -> str:
    groups: dict[str, list[Panel]] = {}
    for panel in plot.panels:
        groups.setdefault(panel.group, []).append(panel)
    room = f' style="--panel:{plot.panels[0].scene.width:.0f}px"' if plot.wide else ""
    drawings = "\n".join(
        (f"<h4>{text(group)}</h4>\n" if group else "")
        + f'<div class="panels"{room}>{"".join(map(_panel, panels))}</div>'
        for group, panels in groups.items()
    )
    key = "".join(f"<li>{key_mark(look)}{text(name)}</li>" for look, name in plot.key)
    links = " ".join(link(file, file.rpartition(".")[2].upper()) for file in files)
    return (
        f'<div class="figure {plot.name}{" wide" * plot.wide}">\n'
        f'<h3>{plot.title}</h3>\n<p class="caption">{plot.caption}</p>\n{drawings}\n'
        + (f'<ul class="key{" always" * (not plot.named)}">{key}</ul>\n' if key else "")
        + f'<div class="foot"><details><summary>The same as numbers</summary>\n'
        f'{_numbers(plot.table, f"{plot.title}, {stream}")}</details><span class="files">{links}</span></div>\n</div>'
    )


def _panel(panel: Panel) -> str:
    title = f"<figcaption>{text(panel.title)}</figcaption>" if panel.title else ""
    side = panel.scene.side
    room = f' style="padding-right:{100 * side / (panel.scene.width + side):.1f}%"' if side else ""
    return f'<figure>{title}<div class="chart"{room}>{drawing(panel)}</div></figure>'


def _numbers(table: Table, caption: str) -> str:
    head = "".join(f'<th scope="col">{text(name)}</th>' for name in table.head)
    rows = "\n".join(
        f'<tr><th scope="row">{text(row[0])}</th>{"".join(f"<td>{text(cell)}</td>" for cell in row[1:])}</tr>'
        for row in table.rows
    )
    return (
        f'<div class="scroll" role="region" aria-label="{text(caption)}, as numbers" tabindex="0"><table>'
        f"<caption>{text(caption)}</caption>\n<thead><tr>{head}</tr></thead>\n<tbody>{rows}</tbody></table></div>"
    )


def _leaky(summary: Summary) -> list[dict[str, float | None]]:
    found = []
    for result in summary.results:
        with legible(result, "diagnostics"):
            leaky = (result.get("diagnostics") or {}).get("leaky") or {}
            names = ("task_known", "own_test_statistics", "best_epoch")
            figures = {name: None if leaky.get(name) is None else share(leaky[name]) for name in names}
        if any(value is not None for value in figures.values()):
            found.append(figures)
    return found


def _leaks(summaries: Sequence[Summary]) -> str:
    rows = []
    for summary in summaries:
        if runs := _leaky(summary):
            columns = ([value for run in runs if (value := run[name]) is not None] for name in runs[0])
            figures = (percent(fmean(values)) if values else "–" for values in columns)
            rows.append((summary.name, summary.stream, summary.accuracy_text, *figures))
    if not rows:
        return ""
    head = ("Method", "Stream", "Result", "Task known", "Own test statistics", "Best epoch on test")
    return (
        '<section>\n<details class="leaks"><summary><h2 id="leaks">What leaks would have shown</h2></summary>\n'
        "<p>None of these is a result. They are what the same models would seem to reach if the evaluation let in something of "
        "the test data: the task of each image, the statistics of each task’s own test images, or the choice of the best epoch "
        "by its test accuracy. Published figures that lie near them deserve a second look.</p>\n"
        f"{_numbers(Table(head, tuple(rows)), 'What leaks would have shown')}</details>\n</section>"
    )


def _count(number: int, thing: str) -> str:
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
