"""An audit as a page and as JSON: each promise with its figures, and pictures of what is kept and how like rows it is."""

from __future__ import annotations

import json
from pathlib import Path

from cldnet.audit import FEW, LIMIT, Audit, Finding
from cldnet.bench.report.plain import bars, drawn, make_folder, plain_page, plain_table
from cldnet.bench.report.svg import text
from cldnet.bench.wording import human_bytes
from cldnet.store import write_atomically

__all__ = ["audit_page", "write_audit"]

_SHOWN = 200  # lines of a table that one may want to read
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
    make_folder(folder, "an audit")
    page, figures = folder / "audit.html", folder / "audit.json"
    write_atomically(figures, json.dumps(audit.to_json(), indent=1).encode())
    write_atomically(page, audit_page(audit, title).encode())
    return page, figures


def audit_page(audit: Audit, title: str = "") -> str:
    """Return the page as HTML that needs nothing else."""
    heading = f"Audit of {title}" if title else "Audit of a model"
    body = "\n".join((_head(audit, heading), _kept(audit), _likeness(audit), _classes(audit), _note(audit)))
    return plain_page(heading, body)


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
    shown = [(kind, count / most, human_bytes(count)) for kind, count in kept]
    words = "; ".join(f"{kind} {human_bytes(count)}" for kind, count in kept)
    sizes = plain_table(
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
        f"{audit.macs:,} multiply-adds. {text(audit.memory)}</p>\n{drawn(bars(shown), f'Bytes by kind: {words}.')}\n"
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
    shown = [(finding.tensor, finding.largest, f"{finding.largest:.4f}") for finding in worst]
    said = "; ".join(f"{name} {words}" for name, _, words in shown)
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
        f"{drawn(bars(shown, LIMIT), f'Largest cosine by tensor: {said}.')}\n{plain_table(head, rows)}{more}</section>"
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
    return f"<section><h2>Examples a class</h2>\n{advice}{plain_table(('Class', 'Examples', ''), rows)}{more}</section>"


def _note(audit: Audit) -> str:
    return f"<section><h2>What it does reveal</h2>\n<p>{text(audit.reveals)}</p></section>"
