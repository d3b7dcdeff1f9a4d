"""The file of a run: whatever was found, written as it is found, and taken up again where a run was stopped."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.speed.record import Curve, Finding, NotRun, Spread

SCHEMA = 1
ROOT = Path(__file__).parents[2]
#: What a figure depends on: only a change in here makes a stopped run begin anew.
_MEASURED = ("src/cldnet", "benchmarks/speed", "pyproject.toml", "constraints.txt", "requirements")

Found = Finding | Curve | NotRun
F = TypeVar("F", Finding, Curve, NotRun)


@dataclass
class Result:
    """All that a run has found so far.

    Attributes
    ----------
    about : mapping
        What it stood on; see `describe`.
    limits : dict
        Rates of the machine, by the number of threads.
    seconds : dict
        How long each part took: those that are here are done.
    found : list of (str, Finding or Curve or NotRun)
        Everything, each with the part that it belongs to.
    """

    about: Mapping[str, Any]
    limits: dict[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    found: list[tuple[str, Found]] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """All ratios."""
        return [one for _, one in self.found if isinstance(one, Finding)]

    @property
    def curves(self) -> list[Curve]:
        """All curves of growth."""
        return [one for _, one in self.found if isinstance(one, Curve)]

    @property
    def not_run(self) -> list[NotRun]:
        """All that was not measured."""
        return [one for _, one in self.found if isinstance(one, NotRun)]

    @property
    def complete(self) -> bool:
        """Whether every part that was asked for is done."""
        return set(self.about["settings"]["parts"]) <= set(self.seconds)

    def of(self, part: str) -> list[Found]:
        """What a part has found."""
        return [one for name, one in self.found if name == part]

    def add(self, part: str, found: Found) -> None:
        """Take in something that a part has found; two of one name could not be told apart in a later run."""
        if any(one.name == found.name for _, one in self.found):
            raise ValueError(f"{part}: there is already something with the name {found.name!r}.")
        self.found.append((part, found))

    def begin(self, part: str) -> None:
        """Let go of what a part had found when it was stopped, since it is measured anew."""
        self.found = [(name, one) for name, one in self.found if name != part]

    def to_json(self) -> dict[str, Any]:
        """Plain values for a file."""
        lists: dict[str, list[dict[str, Any]]] = {"findings": [], "curves": [], "not_run": []}
        for part, one in self.found:
            kind = "findings" if isinstance(one, Finding) else "curves" if isinstance(one, Curve) else "not_run"
            lists[kind].append({"part": part, **one.to_json()})
        head = {"schema": SCHEMA, "benchmark": "speed", "complete": self.complete}
        return {**head, **self.about, "seconds": self.seconds, "limits": self.limits, **lists}


def together(findings: Iterable[Finding]) -> list[Finding]:
    """Put ratios of the same words next to each other: they differ by their threads."""
    by_title: dict[str, list[Finding]] = {}
    for one in findings:
        by_title.setdefault(one.title, []).append(one)
    return [one for own in by_title.values() for one in sorted(own, key=lambda one: one.threads)]


def write(result: Result, path: Path) -> None:
    """Write a file whole or not at all; its folder is made if it is not there."""
    from cldnet.storage import write_atomically  # brings torch, which reading a file does not need

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(result.to_json(), indent=1, allow_nan=False) + "\n").encode())


def read(path: Path) -> Result:
    """Read a file that `write` has written, or raise a ValueError that names it."""
    try:
        raw = json.loads(path.read_text("utf-8"))
        if raw["schema"] != SCHEMA:
            raise ValueError(f"it has schema {raw['schema']!r}, not {SCHEMA}")
        found: list[tuple[str, Found]] = [(one["part"], _finding(one)) for one in raw["findings"]]
        found += [(one["part"], _curve(one)) for one in raw["curves"]]
        found += [(one["part"], _plain(NotRun, one)) for one in raw["not_run"]]
        about = {name: raw[name] for name in _ABOUT}
        return Result(about, raw["limits"], raw["seconds"], found)
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror}): `make benchmark` writes such a file.") from error
    except (LookupError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is not a file of this benchmark ({error}): run it again.") from error


def _finding(raw: Mapping[str, Any]) -> Finding:
    return _plain(Finding, {**raw, "ratio": Spread(**raw["ratio"]), "cpu": Spread(**raw["cpu"])})


def _curve(raw: Mapping[str, Any]) -> Curve:
    return _plain(Curve, {**raw, "points": [(x, y) for x, y in raw["points"]]})


def _plain(kind: type[F], raw: Mapping[str, Any]) -> F:
    return kind(**{one.name: raw[one.name] for one in fields(kind)})


_ABOUT = ("command", "version", "commit", "dirty", "source", "machine", "versions", "when", "settings")


def describe(command: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a run stands on: the command, the commit and the digest of what is measured, the machine and versions."""
    from cldnet.bench.machine import machine_text, versions  # brings torch, which reading a file does not need
    from cldnet.version import __version__

    return {
        "command": command,
        "version": __version__,
        "commit": _git("rev-parse", "HEAD"),
        "dirty": bool(_git("status", "--porcelain", "--", *_MEASURED)),
        "source": _source(),
        "machine": machine_text(),
        "versions": versions(),
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "settings": dict(settings),
    }


def resumed(path: Path, about: Mapping[str, Any]) -> Result:
    """A run that was stopped, if it stands on the same source, machine, versions and settings; else an empty one."""
    same = ("source", "machine", "versions", "settings")
    try:
        before = read(path)
    except ValueError:  # not there, or of another time: measured anew
        return Result(about)
    if any(before.about[name] != about[name] for name in same):
        return Result(about)
    return Result(about, before.limits, before.seconds, before.found)


def draft(out: Path) -> Path:
    """Where a run stands while it goes on, so that a whole file is replaced only by a whole one."""
    return out.with_name(f"{out.name}.part")


def _git(*arguments: str) -> str | None:
    try:
        run = subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):  # no git, or no checkout
        return None
    return run.stdout.strip()


def _source() -> str:
    """Digest of all that is measured or measures: says more than a commit where files were changed since."""
    places = [ROOT / name for name in _MEASURED]
    files = sorted(file for place in places for file in ([place] if place.is_file() else place.rglob("*.py")))
    digest = hashlib.sha256()
    for file in files:
        content = file.read_bytes()
        digest.update(f"{file.relative_to(ROOT).as_posix()} {len(content)}\n".encode() + content)
    return digest.hexdigest()
