"""What a run has found, as Markdown for the docs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from benchmarks.speed import say
from benchmarks.speed.record import Curve, Finding
from benchmarks.speed.result import Result, together

#: Until there is a file, the docs say so instead of showing figures that nobody has measured.
NOTHING = "Nothing has been measured yet: `make benchmark` does it."


def markdown(result: Result | None) -> str:
    """Tables of all targets, of the other ratios, and of the curves; what was not run is named."""
    return NOTHING if result is None else "\n\n".join(_pieces(result))


def _pieces(result: Result) -> Iterator[str]:
    about = result.about
    aimed = [finding for finding in result.findings if finding.target is not None]
    quick = " A quick run, on less work: only a hint." if about["settings"]["quick"] else ""
    yield (
        f"{sum(bool(finding.met) for finding in aimed)} of {len(aimed)} targets are met. "
        f"Measured on {_cell(about['machine'])}, {about['when'][:10]}, "
        f"CLDNet {about['version']}, torch {about['versions']['torch']}.{quick}"
    )
    if aimed:
        yield _ratios(aimed, targets=True)
    others = [finding for finding in result.findings if finding.target is None]
    if others:
        yield "Without a target:"
        yield _ratios(others, targets=False)
    if result.curves:
        yield _curves(result.curves)
        # Drawn by `page`, into the folder of the page beside the docs.
        parts = dict.fromkeys(part for part, one in result.found if isinstance(one, Curve))
        yield "\n".join(f"![Growth, with the fitted exponents](speed/{part}-growth.svg)" for part in parts)
    if result.not_run:
        yield "Not run:\n" + "\n".join(f"- {_cell(one.title)}: {_cell(one.reason)}" for one in result.not_run)


def _ratios(findings: Sequence[Finding], *, targets: bool) -> str:
    rows = []
    for one in together(findings):
        figures = [_cell(one.title), str(one.threads), say.spread(one.ratio), say.cpu(one)]
        verdict = [say.target(one), say.VERDICTS[True] if one.met else f"**{say.VERDICTS[False]}**"]
        rows.append([*figures, *(verdict if targets else [])])
    head = ["ratio", "threads", "by the clock", "by CPU time", *(["target", ""] if targets else [])]
    return _table(head, "lrrr" + "rl" * targets, rows)


def _curves(curves: Iterable[Curve]) -> str:
    rows = [
        [_cell(one.title), _cell(f"{one.up} over {one.across}"), f"{round(one.exponent, 2) + 0.0:.2f}", _expected(one)]
        for one in curves
    ]
    return _table(["growth", "", "exponent", "expected"], "llrr", rows)


def _expected(curve: Curve) -> str:
    return "–" if curve.expected is None else f"{curve.expected:g}"


def _table(head: Sequence[str], sides: str, rows: Iterable[Sequence[str]]) -> str:
    rule = [{"l": "---", "r": "--:"}[side] for side in sides]
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, rule, *rows))


def _cell(words: str) -> str:
    """Text that stays within its cell."""
    return " ".join(words.split()).replace("|", "\\|").replace("<", "&lt;")
