"""The report of a folder of results: one HTML page that needs nothing else, and every plot as SVG and PNG."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cldnet.bench.formatting import NEEDS_THE_TASK, NOT_RUN, counted, human_bytes, percent
from cldnet.bench.report.drawing import Plot, clean, key_mark, new_figure, png_file, read_file, svg, svg_file
from cldnet.bench.report.figures import BOUNDS, plots_of, series_styles
from cldnet.bench.results import Folder, read_folder
from cldnet.bench.summary import Result, Summary, summarise
from cldnet.bench.table import NO_FIGURE, class_orders, outside_notes
from cldnet.storage import write_atomically


def href(path: str) -> str:
    """Quote the path of a file near the page as a link that cannot lead elsewhere."""
    # "./" and quoted colons keep the link on this site: no "javascript:", no "//elsewhere".
    return f"./{quote(path, safe='/', errors='replace')}"


#: Values are cleaned (see `clean`) and escaped as they are written, unless they are markup of our own.
page_environment = Environment(
    loader=PackageLoader("cldnet.bench.report"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    finalize=lambda value: value if hasattr(value, "__html__") else clean(value),
)
page_environment.globals |= {"counted": counted, "href": href, "key_mark": key_mark, "read_file": read_file, "svg": svg}
page_environment.filters |= {"bytes": human_bytes, "commas": "{:,}".format, "percent": percent}


def render(template: str, **context: object) -> str:
    """Render a template of this package."""
    return page_environment.get_template(template).render(context)


@dataclass(frozen=True)
class Report:
    """Files of a report: the page and its plots. `missing` says why there are no PNG files."""

    page: Path
    plots: list[Path]
    missing: str | None


def write_report(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Write the page of a folder of results, ``index.html``, and every plot as SVG and PNG into ``plots`` beside it.

    Equal results give equal files. Plots of an earlier report in the same place that this one does not have are removed;
    no other file is. Results are untrusted, so everything in them is escaped.
    """
    found = read_folder(folder)
    summaries = summarise(found.results, found.planned)
    if not summaries:
        raise ValueError(f"There are no results to show in {str(found.path)!r}. `cldnet bench SPEC.toml` makes some.")
    target = found.path if out is None else Path(out)
    writers: dict[str, Callable[[Plot, str], bytes]] = {"svg": svg_file}
    missing = None
    try:
        new_figure(1, 1)
        writers["png"] = png_file
    except ImportError as error:
        missing = str(error)
    styles = series_styles(summaries)
    plots: dict[str, list[tuple[Plot, list[str]]]] = {}
    for stream, name in _file_names([s.stream for s in summaries]).items():
        drawn = plots_of([s for s in summaries if s.stream == stream], styles)
        plots[stream] = [(plot, [f"plots/{name}-{plot.name}.{kind}" for kind in writers]) for plot in drawn]
    page = _render(found, summaries, plots, Path(os.path.relpath(found.path, target)))
    before = _linked_plots(target / "index.html")
    (target / "plots").mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    total = sum(len(files) for own in plots.values() for _, files in own)
    for stream, own in plots.items():
        for plot, files in own:
            for file, write in zip(files, writers.values(), strict=True):
                write_atomically(target / file, write(plot, f"{plot.title}: {stream}"))
                written.append(target / file)
                if on_progress is not None:
                    on_progress(len(written), total)
    write_atomically(target / "index.html", page.encode())
    for name in before - {path.name for path in written}:
        (target / "plots" / name).unlink(missing_ok=True)
    return Report(target / "index.html", written, missing)


def _file_names(streams: Iterable[str]) -> dict[str, str]:
    """Give every stream a name of its own that is safe in a path."""
    names: dict[str, str] = {}
    for stream in dict.fromkeys(streams):
        name = re.sub(r"[^\w.,=+-]+", "-", stream, flags=re.ASCII).strip("-.")[:80] or "stream"
        while name in names.values():
            name += "-"
        names[stream] = name
    return names


def _linked_plots(page: Path) -> set[str]:
    """Names of the plots that an earlier report in the same place links to."""
    try:
        html = page.read_text("utf-8", "replace")
    except OSError:
        return set()
    names = map(unquote, re.findall(r'<a href="\./plots/([\w.%-]+)">(?:SVG|PNG)</a>', html, flags=re.ASCII))
    return {name for name in names if re.fullmatch(r"[\w.,=+-]+-[a-z]+\.(?:svg|png)", name, flags=re.ASCII)}


# The page


class Run(NamedTuple):
    """A run of a method; without a result if it was not run, and then perhaps with the reason why it failed."""

    summary_index: int
    summary: Summary
    seed: int
    result: Result | None
    failure: str = ""


def _render(
    folder: Folder,
    summaries: Sequence[Summary],
    plots: Mapping[str, Sequence[tuple[Plot, Sequence[str]]]],
    results: Path,
) -> str:
    """Render the page of plots and their files by stream; `results` is the folder of results as seen from it."""
    runs, script = _runs(folder, summaries), read_file("page.js")
    there = {result["file"] for s in summaries for result in s.results}
    return render(
        "report.html.j2",
        folder=folder,
        failures={file: reason for file, reason in folder.failures.items() if file not in there},
        unread=dict.fromkeys((cell.stream, cell.why) for cell in folder.planned if cell.why),
        summaries=summaries,
        bounds=BOUNDS,
        best=_best(summaries),
        needs_the_task=_needs_the_task,
        NEEDS_THE_TASK=NEEDS_THE_TASK,
        NOT_RUN=NOT_RUN,
        NO_FIGURE=NO_FIGURE,
        orders=len({_json(result["stream"]["class_order"]) for s in summaries for result in s.results}),
        order_note=_order_note(summaries),
        outside_notes=list(outside_notes(summaries)),
        plots=plots,
        runs=runs,
        results=results,
        leaks=_leaks(summaries),
        details=details_json(runs),
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _runs(folder: Folder, summaries: Sequence[Summary]) -> list[Run]:
    reasons = {(cell.stream, cell.method, cell.label, cell.seed): folder.why_missing(cell) for cell in folder.planned}
    runs = []
    for index, s in enumerate(summaries):
        runs += [Run(index, s, int(result["seed"]), result) for result in s.results]
        stream = s.results[0].get("cell", {}).get("stream", s.stream) if s.results else s.stream
        runs += [Run(index, s, seed, None, reasons.get((stream, s.method, s.label, seed), "")) for seed in s.missing]
    return runs


def _best(summaries: Sequence[Summary]) -> dict[str, float]:
    """The highest accuracy of each stream, not counting the bounds, where there are several to compare."""
    rivals: dict[str, list[float]] = {}
    for s in summaries:
        if s.accuracy is not None and s.method not in BOUNDS:
            rivals.setdefault(s.stream, []).append(s.accuracy)
    return {stream: max(values) for stream, values in rivals.items() if len(values) > 1}


def _needs_the_task(summary: Summary) -> bool:
    """Whether a method has no class-incremental accuracy, because it needs the task."""
    # Without forgetting alone, a method needs no task: there is nothing to forget after a single one.
    return bool(summary.results) and all(run["scores"]["average_accuracy"] is None for run in summary.results)


def _order_note(summaries: Sequence[Summary]) -> str:
    """Say whether each seed has its own class order: a deviation over one order is less informative."""
    found = {class_orders(summaries, s.stream) for s in summaries} - {""}
    if found <= {"own"}:
        return "each with its own class order"
    return f"{'all' if found == {'same'} else 'some'} with the same class order"


def _leaks(summaries: Sequence[Summary]) -> list[tuple[str, ...]]:
    """What the models would seem to reach if the evaluation let in test data: rows of a table."""
    rows = []
    for s in summaries:
        runs = [(result.get("diagnostics") or {}).get("leaky") or {} for result in s.results]
        columns = [
            [run[name] for run in runs if run.get(name) is not None]
            for name in ("task_known", "own_test_statistics", "best_epoch")
        ]
        if any(columns):
            rows.append((s.name, s.stream, s.accuracy_text, *(percent(fmean(c)) if c else "–" for c in columns)))
    return rows


def details_json(runs: Sequence[Run]) -> Markup:
    """Return what the script shows of each run, as JSON that may stand inside a ``<script>``."""
    texts: dict[str, int] = {}  # most runs have most of their texts in common
    details = []
    for run in runs:
        if run.result is not None:
            facts = _facts(run.result)
        else:
            facts = (
                {"Failed": run.failure} if run.failure else {"Not run": "This run is planned and has no result yet."}
            )
        numbers = [texts.setdefault(clean(text), len(texts)) for fact in facts.items() for text in fact]
        losses = (run.result or {}).get("losses") or []
        finite = [[float(f"{loss:.3g}") for loss in task if loss is not None] for task in losses]
        details.append({"facts": numbers, "losses": finite})
    data = {"details": details, "texts": list(texts)}
    return Markup(json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"))


def _facts(result: Result) -> dict[str, str]:
    """What it takes to repeat a run and to check it."""
    stream, outside, growth = result["stream"], result.get("outside"), result.get("growth") or {}
    parameters, losses = result.get("parameters"), result.get("losses") or ()
    facts: dict[str, Any] = {
        "Result file": result["file"],
        "Run again": f"cldnet run --again {shlex.quote(result['file'])}" if "cell" in result else None,
        "Stream": f"{stream['name']}, hash {stream['hash']}",
        "Class order": stream["class_order"],
        "Tasks": stream.get("tasks"),
        "Images per task (training, test)": stream.get("rows"),
        "Data from outside": outside
        and f"{outside['name']}, hash {outside['hash']}, {_json(outside.get('rows'))} inputs",
        "Backbone": result["backbone"],
        "Configuration": result["config"],
        "Bytes by kind": ", ".join(f"{kind} {human_bytes(size)}" for kind, size in result["bytes"].items()),
        "Bytes after each task": result.get("bytes_after_task"),
        "Growth in bytes, declared": growth.get("declared"),
        "Growth in bytes, measured": growth.get("measured"),
        "Epochs with a NaN or infinite loss": sum(loss is None for task in losses for loss in task) or None,
        "Parameters": None if parameters is None else f"{parameters:,.0f}",
        "Capacity (as the paper counts it)": result.get("capacity_paper"),
        "Threads": result.get("threads"),
        "Versions": ", ".join(f"{name} {version}" for name, version in result["versions"].items()),
        "Machine": result.get("machine"),
        "Code of the method": result.get("code"),
    }
    return {name: fact if isinstance(fact, str) else _json(fact) for name, fact in facts.items() if fact is not None}


def _json(value: Any) -> str:
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        return "(nested too deeply to show)"
