"""An audit as a page and as JSON: each promise with its figures, and pictures of what is kept and how like rows it is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

from cldnet.audit import FEW, LIMIT, Audit, Finding
from cldnet.bench.report.scene import Box, Label, Line, Look, Panel, Scene, Shape
from cldnet.bench.report.style import page_style
from cldnet.bench.report.svg import drawing, text
from cldnet.bench.wording import human_bytes
from cldnet.store import write_atomically

__all__ = ["audit_page", "make_folder", "write_audit"]

_ROW, _NAMES, _BARS, _VALUES = 30, 190, 420, 120
_SHOWN = 200  # lines of a table that one may want to read
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
_MARKS = {True: "holds", False: "broken", None: "untold"}
_VERDICTS = {
    "clear": "no",
    "chance": "too short to tell",
    "shared": f"yes, as {FEW} rows or more are alike",
    "near": f"fewer than {FEW} rows are alike; a mean may be as near",
    "revealing": f"yes, and fewer than {FEW} rows are alike",
}


def write_audit(audit: Audit, folder: Path, title: str = "") -> tuple[Path, Path]:
    """Write ``audit.html`` and ``audit.json`` to a folder, which is made if it is not there.

    Examples
    --------
    >>> import tempfile
    >>> from cldnet import CLDNetClassifier
    >>> clf = CLDNetClassifier(random_state=0).fit([[0.0, 0.1], [5.0, 5.1]], ["cat", "dog"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page, figures = write_audit(clf.audit(), Path(folder))
    ...     json.loads(figures.read_text())["revealing"], "cat" in page.read_text()
    (['cat', 'dog'], True)
    """
    make_folder(folder)
    page, figures = folder / "audit.html", folder / "audit.json"
    write_atomically(figures, json.dumps(audit.to_json(), indent=1).encode())
    write_atomically(page, audit_page(audit, title).encode())
    return page, figures


def make_folder(folder: Path) -> None:
    """Make a folder for an audit's files if it is not there, or say what is in its place.

    Examples
    --------
    >>> make_folder(Path(__file__))
    Traceback (most recent call last):
    ...
    FileExistsError: ...audit.py is a file; the page and the figures of an audit go into a folder: name another one.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        file = next(part for part in (folder, *folder.parents) if part.exists())
        raise FileExistsError(
            f"{file} is a file; the page and the figures of an audit go into a folder: name another one."
        ) from error


def audit_page(audit: Audit, title: str = "") -> str:
    """Return the page as HTML that needs nothing else."""
    heading = f"Audit of {title}" if title else "Audit of a model"
    body = "\n".join((_head(audit, heading), _kept(audit), _likeness(audit), _classes(audit), _note(audit)))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(heading)}</title>\n<style>\n{page_style()}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        "</body>\n</html>\n"
    )


def _head(audit: Audit, heading: str) -> str:
    promises = "".join(
        f"<tr><th scope='row'>{text(promise.name)}</th><td><strong>{_MARKS[promise.holds]}</strong></td>"
        f"<td class='words'>{text(promise.reason)}</td></tr>"
        for promise in audit.promises
    )
    claims = ", ".join(
        words
        for name, words in (
            ("rehearsal_free", "that it keeps no training row"),
            ("constant_size", "that it never grows"),
        )
        if audit.claims.get(name)
    )
    return (
        f"<h1>{text(heading)}</h1>\n<p class='lead-in'>Solver {text(audit.solver)}: {audit.tasks:,} tasks learned, "
        f"{audit.classes:,} classes. Its method promises {text(claims) or 'nothing'}.</p>\n"
        f"<section><h2>Promises</h2>\n<div class='scroll'><table class='sorted' style='table-layout:auto'><thead><tr>"
        f"<th scope='col'>Promise</th><th scope='col'>Verdict</th><th scope='col' class='words'>Why</th></tr></thead>"
        f"<tbody>{promises}</tbody></table></div>\n<p class='note'>{text(audit.examples)}</p></section>"
    )


def _kept(audit: Audit) -> str:
    kept = sorted(audit.footprint.bytes.items(), key=lambda kind: -kind[1])
    most = max((count for _, count in kept), default=1)
    bars = [(kind, count / most, human_bytes(count)) for kind, count in kept]
    words = "; ".join(f"{kind} {human_bytes(count)}" for kind, count in kept)
    sizes = _table(
        ("From task", "Bytes in all", *[kind for kind, _ in kept]),
        (
            (
                f"{size.tasks:,}{' (extended)' * size.asked}",
                f"{sum(size.bytes.values()):,}",
                *[f"{size.bytes.get(kind, 0):,}" for kind, _ in kept],
            )
            for size in audit.sizes.changes
        ),
    )
    return (
        f"<section><h2>What is kept</h2>\n<p>{audit.footprint.total:,} bytes of numbers, and {audit.footprint.labels:,} bytes "
        f"of labels, which grow by an entry a class. {audit.footprint.parameters:,} trainable parameters; an answer takes "
        f"{audit.macs:,} multiply-adds. {text(audit.memory)}</p>\n{_drawn(_bars(bars), f'Bytes by kind: {words}.')}\n"
        f"<h3>After each task</h3><p class='note'>A line where the size changed.</p>{sizes}</section>"
    )


def _likeness(audit: Audit) -> str:
    if audit.findings is None:
        return (
            "<section><h2>Likeness to training rows</h2><p>Not checked: no training rows were given. Run "
            "<code>cldnet audit MODEL --data PATH</code>, or <code>clf.audit(X)</code>.</p></section>"
        )
    findings = sorted(audit.findings, key=lambda finding: -finding.largest)
    tensors = {finding.tensor: finding for finding in reversed(findings)}  # the most alike of each
    worst = sorted(tensors.values(), key=lambda finding: -finding.largest)[:20]
    bars = [(finding.tensor, finding.largest, f"{finding.largest:.4f}") for finding in worst]
    said = "; ".join(f"{name} {words}" for name, _, words in bars)
    rows = (_cells(finding) for finding in findings[:_SHOWN])
    head = (
        "Tensor",
        "Form",
        "Rows",
        "Vectors",
        "Length",
        "Largest |cos|",
        f"Beyond {LIMIT}",
        "Copies",
        "Rows alike",
        "Like a row",
    )
    more = f"<p class='note'>The {_SHOWN} most alike of {len(findings)}.</p>" if len(findings) > _SHOWN else ""
    return (
        f"<section><h2>Likeness to training rows</h2>\n<p>The |cosine| of every vector that is kept with {audit.compared:,} "
        f"of {audit.given:,} training rows, in every form in which the model meets them; images also flipped and turned. How "
        f"many rows are alike was counted in all {audit.given:,} where those compared did not have {FEW}.</p>\n"
        f"{_drawn(_bars(bars, LIMIT), f'Largest cosine by tensor: {said}.')}\n{_table(head, rows)}{more}</section>"
    )


def _cells(finding: Finding) -> tuple[str, ...]:
    return (
        finding.tensor,
        finding.form,
        finding.space,
        f"{finding.vectors:,}",
        f"{finding.length:,}",
        f"{finding.largest:.4f}",
        f"{finding.beyond:,}",
        f"{finding.copies:,}",
        f"{finding.fewest:,}{'' if finding.fewest < FEW else ' or more'}",
        _VERDICTS[finding.verdict],
    )


def _classes(audit: Audit) -> str:
    least = sorted(audit.counts.items(), key=lambda item: -1 if item[1] is None else item[1])
    rows = (
        (
            str(label),
            "not counted" if count is None else f"{count:,}",
            "revealing" if label in audit.revealing else "",
        )
        for label, count in least[:_SHOWN]
    )
    more = f"<p class='note'>The {_SHOWN} smallest of {len(least)}.</p>" if len(least) > _SHOWN else ""
    advice = f"<p>{text(audit.advice)}</p>" if audit.revealing else ""
    return f"<section><h2>Examples a class</h2>\n{advice}{_table(('Class', 'Examples', ''), rows)}{more}</section>"


def _note(audit: Audit) -> str:
    return f"<section><h2>What it does reveal</h2>\n<p>{text(audit.reveals)}</p></section>"


def _bars(rows: Sequence[tuple[str, float, str]], limit: float | None = None) -> Scene:
    """A bar a row, of shares from 0 to 1, with its name before and its figure behind it."""
    height = len(rows) * _ROW + 6
    shapes: list[Shape] = [Line(((_NAMES, 0), (_NAMES, height)), "base")]
    if limit is not None:
        place = _NAMES + limit * _BARS
        shapes.append(Line(((place, 0), (place, height)), "mean", Look(1, 0, dashed=True)))
        shapes.append(Label((place, height + 14), f"{limit}", "axis", "middle"))
    for number, (name, share, words) in enumerate(rows):
        at = number * _ROW + 8
        colour = "s1" if limit is not None and share > limit else "s0"
        shown = name if len(name) <= 26 else f"…{name[-25:]}"
        shapes.append(Label((_NAMES - 8, at + 14), shown, "axis", "end"))
        shapes.append(Box((_NAMES, at), max(1.0, share * _BARS), _ROW - 12, colour, f"{name}: {words}"))
        behind = share if limit is None else 1.0  # clear of the limit's line
        shapes.append(Label((_NAMES + behind * _BARS + 6, at + 14), words, "value"))
    return Scene(_NAMES + _BARS + _VALUES, height + (0 if limit is None else 20), tuple(shapes))


def _drawn(scene: Scene, alternative: str) -> str:
    return f"<figure style='margin: 1rem 0'>{drawing(Panel(scene, alternative))}</figure>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    titles = "".join(f"<th scope='col'>{text(title)}</th>" for title in head)
    lines = "".join(
        f"<tr><th scope='row'>{text(first)}</th>{''.join(f'<td>{text(cell)}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    return f"<div class='scroll'><table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table></div>"
