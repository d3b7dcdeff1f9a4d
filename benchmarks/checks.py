"""Our methods beside figures that others published, at their settings: the entries of checks.toml.

python -m benchmarks.checks table results/checks    prints a table in Markdown
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from statistics import fmean, stdev

from cldnet.bench.formatting import NOT_RUN, counted
from cldnet.bench.published import Percentage, Text
from cldnet.bench.results import read_folder
from cldnet.bench.table import SCORES
from cldnet.bench.table_formats import markdown
from cldnet.bench.validation import StrictTable, validate

CHECKS = Path(__file__).with_suffix(".toml")
#: Points by which two figures may differ and still agree.
TOLERANCE = 2.0
FROM_MEMORY = "no verdict: the published figure is from memory"


class Check(StrictTable):
    """A published figure, its setting, and which results are ours; checks.toml describes the keys."""

    title: Text
    setting: Text
    mean: Percentage
    std: Percentage | None = None
    source: Text
    verified: bool = True
    method: Text
    folder: Text
    stream: Text
    label: Text
    differs: str = ""
    best_epoch: bool = False

    def accuracies(self, results: Path, score: str = "accuracy") -> list[float]:
        """One of the `SCORES` of our runs, by seed."""
        if not (results / self.folder).is_dir():
            return []
        found = {}
        for result in read_folder(results / self.folder).results:
            accuracy = SCORES[score].value(result)
            ours = result["method"] == self.method and str(result.get("label", "")).endswith(f", {self.label}")
            if ours and result["stream"]["name"].startswith(self.stream) and accuracy is not None:
                found[result["seed"]] = accuracy
        return [found[seed] for seed in sorted(found)]

    def verdict(self, ours: Sequence[float]) -> str:
        """Whether ours agree: within `TOLERANCE` points, or two published standard deviations."""
        if not ours:
            return NOT_RUN
        if not self.verified:
            return FROM_MEMORY
        difference = fmean(ours) - float(self.mean)
        if abs(difference) <= max(TOLERANCE, 2 * float(self.std or 0)):
            return "agrees"
        points = f"{difference:+.2f}".replace("-", "−")
        return f"differs by {points} points{f'. {self.differs}' if self.differs else ''}"


class _File(StrictTable):
    checks: list[Check]


def read_checks(text: str) -> list[Check]:
    """Read checks from TOML of the layout that checks.toml describes."""
    return validate(_File, tomllib.loads(text, parse_float=Decimal)).checks


def table(checks: Sequence[Check], results: Path) -> str:
    """A table in Markdown, with the sources below."""
    sources = {source: number for number, source in enumerate(dict.fromkeys(check.source for check in checks), start=1)}
    rows = [("method", "setting", "published", "ours", "verdict")]
    for check in checks:
        ours = check.accuracies(results)
        published = f"{check.mean}" if check.std is None else f"{check.mean} ± {check.std}"
        names = (check.title, check.setting.removesuffix("."), f"{published} [{sources[check.source]}]")
        chosen = check.accuracies(results, "leak-epoch") if check.best_epoch else []
        said = f"{_mean(ours)}; best epoch on test data: {fmean(chosen):.2f}" if chosen else _mean(ours)
        rows.append((*names, said, check.verdict(ours)))
    lines = [f"| {' | '.join(map(markdown, row))} |" for row in rows]
    lines.insert(1, "| --- | --- | --: | --: | --- |")
    legend = (
        "Accuracy after the last task (%), ours with sample standard deviation over seeds. A figure agrees if it is within "
        f"{TOLERANCE:g} points, or two published standard deviations, of the published one."
    )
    listed = [f"{number}. {markdown(source, start=True)}" for source, number in sources.items()]
    return "\n".join(["**External checks**", "", *lines, "", legend, "", "Sources:", "", *listed, ""])


def _mean(values: Sequence[float]) -> str:
    if not values:
        return NOT_RUN
    spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
    return f"{fmean(values):.2f}{spread} ({counted(len(values), 'seed', 'seeds')})"


def main(arguments: Sequence[str]) -> int:
    """Print the table."""
    if len(arguments) != 2 or arguments[0] != "table":
        sys.stderr.write("Usage: python -m benchmarks.checks table FOLDER\n")
        return 2
    sys.stdout.write(table(read_checks(CHECKS.read_text("utf-8")), Path(arguments[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
