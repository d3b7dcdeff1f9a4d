"""The results as one HTML file that needs nothing else: no script, no font, no network."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

from cldnet.bench.style import style_sheet
from cldnet.bench.summary import (
    NEEDS_THE_TASK,
    MethodSummary,
    human_bytes,
    percent,
    percent_pm,
    summarise,
    yes_no,
)
from cldnet.bench.svg import curves, heat_map, legend_mark, text
from cldnet.store import write_atomically

BOUNDS = ("finetune", "joint")


def write_page(
    results: Sequence[Mapping[str, Any]],
    path: str | os.PathLike[str],
    title: str = "Continual learning results",
) -> None:
    """Write the report page.

    Parameters
    ----------
    results : sequence of mapping
        Result dicts as a run writes them; a key ``"file"`` holds the JSON file's name relative to the page.
    path : path-like
        The HTML file to write; an old file is replaced whole.
    title : str
        Heading of the page.

    Raises
    ------
    ValueError
        If there are no results.

    Notes
    -----
    Equal results give an equal file. Whatever the results say is shown as text: they may come from strangers.
    """
    write_atomically(path, render_page(results, title).encode())


def render_page(results: Sequence[Mapping[str, Any]], title: str) -> str:
    """Return the report page as HTML; see `write_page`."""
    summaries = summarise(results)
    if not summaries:
        raise ValueError("There are no results to show.")
    body = "\n".join((_lead(results, summaries), _table(summaries), _drawings(summaries), _runs(results, summaries)))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>{style_sheet()}</style>\n</head>\n"
        f"<body>\n<main>\n<h1>{text(title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _lead(results: Sequence[Mapping[str, Any]], summaries: Sequence[MethodSummary]) -> str:
    streams = ", ".join(dict.fromkeys(text(r["stream"]["name"]) for r in results))
    backbones = ", ".join(dict.fromkeys(text(r["backbone"]) for r in results))
    orders = len({json.dumps(r["stream"]["class_order"], default=str) for r in results})
    return (
        f'<p class="lead-in">{_count(len(summaries), "method")} learned {streams} one task after the other, '
        f"in {_count(orders, 'class order')}, with the backbone {backbones}.</p>"
    )


def _table(summaries: Sequence[MethodSummary]) -> str:
    heads = (
        "Method",
        "Average accuracy",
        "Forgetting",
        "Task-IL accuracy",
        "Seconds",
        "Bytes kept",
        "Grows?",
        "Keeps data?",
    )
    head = "".join(f'<th scope="col">{name}</th>' for name in heads)
    rivals = [s.accuracy for s in summaries if s.accuracy is not None and s.method not in BOUNDS]
    best = max(rivals) if len(rivals) > 1 else None
    bold = (
        ""
        if best is None
        else (
            " In bold: the highest between the bounds, fine-tuning (nothing is done against forgetting) and joint training"
            " (all data is kept)."
        )
    )
    rows = "\n".join(_row(s, best is not None and s.accuracy == best and s.method not in BOUNDS) for s in summaries)
    return (
        '<div class="scroll" role="region" aria-label="Results by method" tabindex="0">\n<table>\n'
        "<caption>Results by method: means over the runs.</caption>\n"
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n</table>\n</div>\n"
        '<p class="note">Average accuracy: over all classes after the last task, without knowing the task; '
        f"± is the sample standard deviation over class orders.{bold} "
        "Forgetting: the mean loss from a task’s best accuracy to its last. "
        "Task-IL accuracy: the same as average accuracy, but the task is known.</p>"
    )


def _row(summary: MethodSummary, best: bool) -> str:
    accuracy = percent_pm(summary.accuracy, summary.accuracy_std)
    cells = (
        f"<strong>{accuracy}</strong>" if best else accuracy,
        percent(summary.forgetting),
        percent(summary.task_il_accuracy),
        f"{summary.seconds:.1f}",
        human_bytes(summary.bytes_kept),
        yes_no(summary.grows),
        yes_no(summary.keeps_data),
    )
    return f'<tr><th scope="row">{text(summary.name)}</th>{"".join(map(_td, cells))}</tr>'


def _td(cell: str) -> str:
    return f'<td class="none">{cell}</td>' if cell == NEEDS_THE_TASK else f"<td>{cell}</td>"


def _drawings(summaries: Sequence[MethodSummary]) -> str:
    missing = [s.name for s in summaries if s.matrix is None]
    note = "".join(
        f'<p class="note">{text(name)} {NEEDS_THE_TASK}: it has no class-incremental accuracy to draw.</p>\n'
        for name in missing
    )
    if len(missing) == len(summaries):
        return f"<h2>Accuracy after each task</h2>\n{note}"
    return f"{_curves(summaries)}\n{note}{_maps(summaries)}"


def _curves(summaries: Sequence[MethodSummary]) -> str:
    shown = [(index, s, s.curve) for index, s in enumerate(summaries) if s.curve is not None]
    legend = "".join(f"<li>{legend_mark(index)}<span>{text(s.name)}</span></li>" for index, s, _ in shown)
    tasks = max(len(curve) for _, _, curve in shown)
    head = "".join(f'<th scope="col">after {task}</th>' for task in range(1, tasks + 1))
    rows = "\n".join(
        f'<tr><th scope="row">{text(s.name)}</th>{"".join(f"<td>{percent(v)}</td>" for v in curve)}'
        f"{'<td></td>' * (tasks - len(curve))}</tr>"
        for _, s, curve in shown
    )
    return (
        "<h2>Accuracy after each task</h2>\n<p>The mean accuracy over the classes seen so far. "
        "Strong lines are means, thin lines are single runs.</p>\n"
        f'<div class="chart">{curves(summaries)}</div>\n<ul class="legend">{legend}</ul>\n'
        "<details><summary>The same as numbers</summary>\n"
        '<div class="scroll" role="region" aria-label="Accuracy after each task" tabindex="0">\n<table>\n'
        "<caption>Mean accuracy over the classes seen so far, after each task.</caption>\n"
        f'<thead><tr><th scope="col">Method</th>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody>\n'
        "</table>\n</div>\n</details>"
    )


def _maps(summaries: Sequence[MethodSummary]) -> str:
    drawn = [(s, s.matrix) for s in summaries if s.matrix is not None]
    room = "maps wide" if max(len(matrix) for _, matrix in drawn) > 6 else "maps"
    figures = "\n".join(
        f"<figure><figcaption>{text(s.name)}</figcaption>{heat_map(s, matrix)}</figure>" for s, matrix in drawn
    )
    return (
        "<h2>What is left of each task</h2>\n<p>Each row is the state after one task, each column the "
        "accuracy on one task, in per cent. A column that fades downwards is a task that is forgotten.</p>\n"
        f'<div class="{room}">\n{figures}\n</div>'
    )


def _runs(results: Sequence[Mapping[str, Any]], summaries: Sequence[MethodSummary]) -> str:
    parts = ["<h2>Every run</h2>", "<p>What it takes to repeat each run and to check it.</p>"]
    for summary in summaries:
        parts.append(f"<h3>{text(summary.name)}</h3>")
        parts += [_run(r) for r in results if str(r["method"]) == summary.method]
    return "\n".join(parts)


def _run(result: Mapping[str, Any]) -> str:
    stream, seconds = result["stream"], result["seconds"]["total"]
    facts = {
        "Stream": f"{text(stream['name'])}, hash <code>{text(stream['hash'])}</code>",
        "Class order": f"<code>{_json(stream['class_order'])}</code>",
        "Tasks": f"<code>{_json(stream['tasks'])}</code>",
        "Seed": text(result["seed"]),
        "Backbone": text(result["backbone"]),
        "Configuration": f"<code>{_json(result['config'])}</code>",
        "Versions": _versions(result["versions"]),
    }
    facts |= {
        name: text(result[key]) for key, name in (("machine", "Machine"), ("threads", "Threads")) if key in result
    }
    if "file" in result:
        facts["Result file"] = f'<a href="{_relative(str(result["file"]))}">{text(result["file"])}</a>'
    rows = "".join(f"<dt>{name}</dt><dd>{value}</dd>\n" for name, value in facts.items())
    accuracy = percent(result["scores"]["average_accuracy"])
    return (
        f'<details><summary>Seed {text(result["seed"])}<span class="soft">{accuracy}, '
        f"{float(seconds):.1f} s</span></summary>\n<dl>\n{rows}</dl>\n</details>"
    )


def _versions(versions: Mapping[str, Any]) -> str:
    return ", ".join(f"{text(name)} {text(version)}" for name, version in versions.items())


def _json(value: Any) -> str:
    return text(json.dumps(value, ensure_ascii=False, default=str))


def _relative(name: str) -> str:
    # "./" and quoted colons keep the link on this site: no "javascript:", no "//elsewhere".
    return "./" + text(quote(name, safe="/", errors="replace"))


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
