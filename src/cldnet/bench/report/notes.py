"""What the columns of the results mean, in a few sentences below them."""

from __future__ import annotations

from collections.abc import Sequence

from cldnet.bench.report.reading import class_orders
from cldnet.bench.report.svg import text
from cldnet.bench.report.tables import best_accuracies
from cldnet.bench.summary import Summary
from cldnet.bench.table.notes import outside_notes

__all__ = ["notes"]


def notes(summaries: Sequence[Summary]) -> str:
    """Return the note below the table of results, as HTML."""
    parts = [
        "Accuracy: the mean over all tasks after the last one, with all classes as candidates: the task is not told."
    ]
    if any(s.accuracy_std is not None for s in summaries):
        parts.append(f"±: the sample standard deviation over runs, {_orders(summaries)}.")
    if best_accuracies(summaries):
        parts.append(
            "In bold: the highest of its stream, the bounds left out: fine-tuning (nothing is done against forgetting) and "
            "joint training (all data is kept)."
        )
    parts.append(
        "Incremental accuracy: the mean of the accuracies after every task, each over the tasks so far with the classes so "
        "far as candidates. Forgetting: the mean loss from a task’s best accuracy to its last. Task-IL accuracy: the same "
        "model, but told the task of each image."
    )
    parts += map(text, outside_notes(summaries))
    return f'<p class="note">{" ".join(parts)}</p>'


def _orders(summaries: Sequence[Summary]) -> str:
    """Say whether another seed means another class order: a deviation over one order tells less."""
    own = same = True
    for stream in {s.stream for s in summaries}:
        runs = [result for s in summaries if s.stream == stream for result in s.results]
        orders, seeds = len(class_orders(runs)), len({result["seed"] for result in runs})
        own, same = own and orders == seeds, same and orders <= 1
    if own:
        return "each with a class order of its own"
    return "all in the same class order" if same else "some of them in the same class order"
