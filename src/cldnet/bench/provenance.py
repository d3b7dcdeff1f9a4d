"""The preset that a search leaves, with all that it takes to repeat the search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cldnet.bench.machine import versions
from cldnet.bench.preset import SETTINGS, common_settings, preset_name
from cldnet.bench.presetfile import HEAD, as_toml, with_methods
from cldnet.bench.proposals import SAMPLER, load_optuna
from cldnet.bench.run import RunSpec
from cldnet.bench.trials import Found, Search, Trial
from cldnet.store import write_atomically

__all__ = ["write_presets"]


def write_presets(search: Search, found: Sequence[Found], folder: Path, jobs: int) -> Path:
    """Write the best settings of each method into the stream's preset file, and leave what it says of others.

    A method whose trials have all failed keeps the settings that it had.
    """
    name = preset_name(search.stream)
    path = folder / f"{name}.toml"
    best = [(one, trial) for one in found if (trial := one.best) is not None]
    if not best:
        return path
    text = path.read_text("utf-8") if path.is_file() else HEAD + _common(found[0].plan.base)
    common = common_settings(name, folder)
    if not path.is_file():
        common |= _budget(found[0].plan.base)
    tables = {
        one.plan.method: {
            "validation": round(trial.accuracy or 0.0, 6),
            **_settings(one.plan.base, trial, common),
            "provenance": _provenance(search, one, trial, jobs),
        }
        for one, trial in best
    }
    write_atomically(path, with_methods(text, tables).encode())
    return path


def _budget(base: RunSpec) -> dict[str, int]:
    return {"epochs": base.epochs, "batch_size": base.batch_size}


def _common(base: RunSpec) -> str:
    return "[common]\n" + "".join(f"{key} = {as_toml(value)}\n" for key, value in _budget(base).items())


def _settings(base: RunSpec, trial: Trial, common: Mapping[str, Any]) -> dict[str, Any]:
    """What differs from what holds for all methods of the file, or from a run's defaults; options in any case."""
    default = RunSpec(base.method)
    values = {key: getattr(base, key) for key in SETTINGS}
    differing = {key: value for key, value in values.items() if value != common.get(key, getattr(default, key))}
    return {**differing, "options": dict(trial.options)}


def _provenance(search: Search, found: Found, best: Trial, jobs: int) -> dict[str, Any]:
    plan = found.plan
    return {
        "command": search.command(jobs),
        "date": datetime.now(UTC).date().isoformat(),
        "stream": search.text,
        "stream_hash": {str(seed): text for seed, text in zip(best.seeds, best.hashes, strict=True)},
        "protocol": search.protocol,
        "share": search.share,
        "of": search.of,
        "seeds": list(search.seeds),
        "score": f"mean over seeds of the {plan.measure}",
        "budget": _budget(plan.base),
        "trials": len(found.trials),
        "failed": found.failed,
        "best_trial": best.number,
        "threads": found.threads,
        "sampler": SAMPLER,
        "ranges": {name: str(span) for name, span in plan.ranges.items()},
        "versions": {**versions(), "optuna": load_optuna().__version__},
    }
