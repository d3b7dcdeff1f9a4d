"""An evaluation of a model on photos as a page and as JSON: what is right, what is taken for what, the surest mistakes."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cldnet.bench.photo_evaluation import Answered, PhotoEvaluation
from cldnet.bench.report.confusion import FIGURES, confusion_map
from cldnet.bench.report.plain import bars, drawn, make_folder, plain_page, plain_table
from cldnet.bench.report.svg import text
from cldnet.bench.report.thumbnails import data_uri
from cldnet.bench.wording import counted, percent
from cldnet.store import write_atomically

__all__ = ["Mistakes", "check_place", "evaluation_json", "evaluation_page", "write_evaluation"]

#: Wrong answers, with the pixels of the photo where it is to be shown.
Mistakes = Sequence[tuple[Answered, NDArray[np.uint8] | None]]

_PAGE, _FIGURES = "index.html", "eval.json"
_MAPPED = 200  # classes that a picture of the matrix has room for
_BARS = 30  # classes that have a bar
_LISTED = 200  # lines of a table that one may want to read
_PAIRS = 30  # confusions that are listed
_STYLE = """.confusion { overflow-x: auto; margin: 1rem 0; } .confusion svg.plot { max-width: none; }
.confusion .plot text { font-size: 12px; } .facts { margin-top: 1.25rem; } details { margin-top: 1rem; }
.mistakes { display: grid; margin-top: 1rem; gap: 1.25rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 9.5rem), 1fr)); }
.mistakes img { display: block; width: 6rem; height: 6rem; margin-bottom: .35rem; border-radius: 4px; }
.mistakes figcaption > * { display: block; } .mistakes .note { margin: 0; }
.read { margin-top: .75rem; } .read table { width: auto; min-width: min(100%, 30rem); }
.read tr > :nth-child(2) { min-width: 7rem; text-align: left; white-space: normal !important;
  overflow-wrap: break-word; }
"""


def write_evaluation(found: PhotoEvaluation, folder: Path, mistakes: Mistakes = ()) -> tuple[Path, Path]:
    """Write ``index.html`` and ``eval.json`` to a folder, which is made if it is not there.

    Parameters
    ----------
    found : PhotoEvaluation
    folder : Path
    mistakes : sequence of pairs
        The wrong answers that the page shows, with the photo's pixels, shape ``(3, side, side)``, or None.

    Examples
    --------
    >>> import tempfile
    >>> answers = Answered("a/1.jpg", "a", "a", 0.9, 0), Answered("b/1.jpg", "b", "a", 0.6, 1)
    >>> found = PhotoEvaluation("model", "sha256:…", "photos", 2, answers, {}, "2026-01-01", {})
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page, figures = write_evaluation(found, Path(folder))
    ...     json.loads(figures.read_text())["accuracy"], "50.00%" in page.read_text()
    (0.5, True)
    """
    make_folder(folder, "an evaluation")
    check_place(folder)
    page, figures = folder / _PAGE, folder / _FIGURES
    written = evaluation_page(found, mistakes).encode()
    write_atomically(figures, evaluation_json(found).encode())
    write_atomically(page, written)
    return page, figures


def check_place(folder: Path) -> None:
    """Refuse a folder whose page is not one of an evaluation: it may be somebody's web site."""
    if (folder / _PAGE).exists() and not (folder / _FIGURES).exists():
        raise FileExistsError(f"{folder / _PAGE} is there, and no evaluation has written it: name another folder.")


def evaluation_json(found: PhotoEvaluation) -> str:
    """Return all figures as JSON, an entry a line: a matrix with a number a line is no easier to read."""
    lines = (f" {json.dumps(name)}: {json.dumps(value)}" for name, value in found.to_json().items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def evaluation_page(found: PhotoEvaluation, mistakes: Mistakes = ()) -> str:
    """Return the page as HTML that needs nothing else."""
    parts = (_head(found), _confusion(found), _classes(found), _mistakes(found, mistakes), _strangers(found))
    body = "\n".join((*parts, _unread(found), _origin(found)))
    return plain_page(_heading(found), body, _STYLE)


def _heading(found: PhotoEvaluation) -> str:
    return f"Evaluation of {found.model}"


def _head(found: PhotoEvaluation) -> str:
    photos = counted(len(found.known), "photo", "photos")
    classes = counted(len(found.by_class), "class", "classes")
    notices = []
    if found.strangers:
        left_out = counted(len(found.answers) - len(found.known), "photo is", "photos are")
        notices.append(f"{left_out} of classes that the model does not know, and not counted here: see below.")
    if found.unread:
        notices.append(f"{counted(len(found.unread), 'photo', 'photos')} could not be read: see below.")
    facts = {"Accuracy": f"{percent(found.accuracy)} of the photos are right"}
    facts["Mean over classes"] = f"{percent(found.balanced_accuracy)}, every class counting the same"
    if found.top3_accuracy is not None:
        facts["Top 3"] = f"{percent(found.top3_accuracy)} have their class among the three likeliest"
    facts["How sure"] = found.calibration
    worst = found.by_class[0]
    facts["Worst class"] = f"{worst.label}: {worst.right:,} of {worst.photos:,} right, {percent(worst.accuracy)}"
    listed = (
        f"<ul class='notices'>{''.join(f'<li>{text(notice)}</li>' for notice in notices)}</ul>\n" if notices else ""
    )
    return (
        f"<h1>{text(_heading(found))}</h1>\n<p class='lead-in'>{photos} of {classes} out of {text(found.folder)}: "
        f"{percent(found.accuracy)} are right.</p>\n{listed}{_facts(facts)}"
    )


def _confusion(found: PhotoEvaluation) -> str:
    matrix, labels, left_out = found.matrix, found.labels, ""
    if len(labels) > _MAPPED:
        wrong = matrix.sum(axis=0) + matrix.sum(axis=1) - 2 * matrix.diagonal()
        worst = np.sort(np.argsort(-wrong, kind="stable")[:_MAPPED])
        left_out = f" Of {len(labels):,} classes, the {_MAPPED} that are confused most often are shown."
        matrix, labels = matrix[np.ix_(worst, worst)], [labels[at] for at in worst]
    pairs = found.confusions[:_PAIRS]
    said = "; ".join(map(str, pairs[:5])) or "no photo is taken for another class"
    alternative = f"Confusion matrix of {counted(len(labels), 'class', 'classes')}. Most frequent: {said}."
    figures = "; figures are photos" if len(labels) <= FIGURES else ""
    rows = (
        (pair.label, pair.answer, f"{pair.photos:,}", f"{pair.of:,}", percent(pair.photos / pair.of)) for pair in pairs
    )
    listed = _read(("Class", "Taken for", "Photos", "Of", "Share"), rows) if pairs else ""
    return (
        f"<section><h2>What is taken for what</h2>\n<p class='caption'>A row a class, a column for what its photos are taken "
        f"for{figures}. The stronger a colour, the larger the share of the row; right answers are on the diagonal."
        f"{left_out}</p>\n"
        f"<div class='confusion' tabindex='0' role='region' aria-label='Confusion matrix'>"
        f"{drawn(confusion_map(matrix, labels), alternative)}</div>\n<h3>Most frequent confusions</h3>\n"
        f"{listed or '<p>None: no photo is taken for another class.</p>'}{_more(len(found.confusions), _PAIRS)}</section>"
    )


def _classes(found: PhotoEvaluation) -> str:
    shown = found.by_class[:_BARS]
    said = [(one.label, one.accuracy, f"{percent(one.accuracy)} of {one.photos:,}") for one in shown]
    words = "; ".join(f"{name} {figure}" for name, _, figure in said)
    rows = ((one.label, f"{one.photos:,}", f"{one.right:,}", percent(one.accuracy)) for one in found.by_class[:_LISTED])
    numbers = plain_table(("Class", "Photos", "Right", "Accuracy"), rows)
    return (
        f"<section><h2>Accuracy by class</h2>\n<p class='caption'>The worst first.</p>"
        f"{drawn(bars(said), f'Accuracy by class, the worst first: {words}.')}{_more(len(found.by_class), _BARS)}\n"
        f"<details><summary>The same as numbers</summary>{numbers}{_more(len(found.by_class), _LISTED)}</details></section>"
    )


def _mistakes(found: PhotoEvaluation, mistakes: Mistakes) -> str:
    if not mistakes:
        return ""
    copies = sum(pixels is not None for _, pixels in mistakes)
    held = (
        f"This page holds small copies of {counted(copies, 'photo', 'photos')}: think of that before it is sent on."
        if copies
        else "No photo is part of this page."
    )
    wrong = sum(answer.wrong for answer in found.known)
    which = (
        f"The {len(mistakes):,} of {wrong:,} wrong answers that the model was surest of."
        if len(mistakes) < wrong
        else f"{counted(wrong, 'wrong answer', 'wrong answers, the surest first')}."
    )
    cards = "".join(map(_card, *zip(*mistakes, strict=True)))
    return (
        f"<section><h2>Surest mistakes</h2>\n<p>{which} A photo in the wrong folder is often among "
        f"them.</p>\n<p class='note'>{held}</p>\n"
        f"<div class='mistakes'>{cards}</div></section>"
    )


def _card(answer: Answered, pixels: NDArray[np.uint8] | None) -> str:
    words = f"{answer.label}, taken for {answer.answer}"
    image = "" if pixels is None else f"<img src='{data_uri(pixels)}' alt='{text(words)}' width='96' height='96'>"
    return (
        f"<figure>{image}<figcaption><span>{text(answer.label)}, taken for</span><strong>{text(answer.answer)} "
        f"{percent(answer.probability)}</strong><span class='note'>{text(answer.photo)}</span></figcaption></figure>"
    )


def _strangers(found: PhotoEvaluation) -> str:
    if not found.strangers:
        return ""
    rows = (
        (
            stranger.label,
            ", ".join(f"{answer} {count:,}" for answer, count in list(stranger.taken_for.items())[:3])
            + (f", {len(stranger.taken_for) - 3:,} others" if len(stranger.taken_for) > 3 else ""),
            f"{stranger.photos:,}",
        )
        for stranger in found.strangers[:_LISTED]
    )
    return (
        "<section><h2>Classes that the model does not know</h2>\n<p>Every answer to their photos is wrong, so they are left "
        "out of all figures above.</p>\n"
        f"{_read(('Class', 'Taken for', 'Photos'), rows)}{_more(len(found.strangers), _LISTED)}</section>"
    )


def _unread(found: PhotoEvaluation) -> str:
    if not found.unread:
        return ""
    rows = list(found.unread.items())[:_LISTED]
    return (
        "<section><h2>Photos that could not be read</h2>\n"
        f"{_read(('Photo', 'Why'), rows)}{_more(len(found.unread), _LISTED)}</section>"
    )


def _origin(found: PhotoEvaluation) -> str:
    facts = {
        "Model": f"{found.model}, which knows {counted(found.classes, 'class', 'classes')}",
        "Its checksum": found.digest,
        "Photos": found.folder,
        "Day": found.day,
        "Versions": ", ".join(f"{name} {version}" for name, version in found.versions.items()),
    }
    return (
        f"<section><h2>Where this comes from</h2>\n{_facts(facts)}<p class='note'>Every photo’s answer is in {_FIGURES} beside "
        "this page.</p></section>"
    )


def _read(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose second column is words."""
    return f"<div class='read'>{plain_table(head, rows)}</div>"


def _facts(facts: dict[str, str]) -> str:
    return (
        f"<dl class='facts'>{''.join(f'<dt>{name}</dt><dd>{text(words)}</dd>' for name, words in facts.items())}</dl>"
    )


def _more(count: int, shown: int) -> str:
    return f"<p class='note'>And {count - shown:,} more, in {_FIGURES}.</p>" if count > shown else ""
