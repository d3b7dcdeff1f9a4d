"""``cldnet learn --engine``: data that are summed in shards, on this machine or on a cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cldnet.cli.models import importing
from cldnet.cli.show import counting, say, shown

if TYPE_CHECKING:
    from cldnet.distributed.shards import Shard
    from cldnet.estimator.classifier import CLDNetClassifier

_NAMED = 10


class EngineName(StrEnum):
    """Where shards are summed."""

    local = "local"
    dask = "dask"
    ray = "ray"


@dataclass(frozen=True)
class Cluster:
    """An engine: its name, and what a user said of it."""

    engine: str
    workers: int | None
    address: str | None
    sums: Path | None
    feature_map: Path | None
    sample: int

    @property
    def left(self) -> str:
        """What a run that ended early has left."""
        kept = "" if self.sums is None else " Finished shards are kept: run the command again to go on."
        return f"The model is as it was.{kept}"


@dataclass(frozen=True)
class ShardedData:
    """The shards of a source; the samples are not read here."""

    noun: str
    shards: list[Shard]

    def teach(self, clf: CLDNetClassifier, cluster: Cluster, name: str | None, allow_duplicates: bool) -> Counter[Any]:
        """Teach a model the samples of all shards as one lesson, and return their number by label."""
        from cldnet.distributed.engines import EngineError
        from cldnet.distributed.fit import fit_shards
        from cldnet.estimator.classifier import note_date

        skipped: list[tuple[str, str]] = []
        before = clf.model_.labels.counts if getattr(clf, "model_", None) is not None else {}
        with counting("summing", "shards") as tell:
            try:
                fit_shards(
                    self.shards,
                    clf=clf,
                    engine=cluster.engine,
                    workers=cluster.workers,
                    address=cluster.address,
                    sums=cluster.sums,
                    map=cluster.feature_map,
                    sample=cluster.sample,
                    name=name,
                    allow_duplicates=allow_duplicates,
                    on_progress=tell,
                    on_skip=lambda file, reason: skipped.append((file, reason)),
                )
            except EngineError as error:
                raise ValueError(f"{error} {cluster.left}") from error
            except KeyboardInterrupt:
                say(f"\nStopped. {cluster.left}", error=True)
                raise typer.Exit(130) from None
        if skipped:
            named = ", ".join(f"{shown(file)} ({reason})" for file, reason in skipped[:_NAMED])
            more = f", and {len(skipped) - _NAMED:,} more" if len(skipped) > _NAMED else ""
            say(f"{len(skipped):,} {self.noun}s cannot be read and were left out: {named}{more}.", error=True)
        after = clf.model_.labels.counts
        samples = Counter({label: (count or 0) - (before.get(label) or 0) for label, count in after.items()})
        note_date(clf, [*+samples], date.today().isoformat())
        return +samples


def shards_of(source: str, label: str | None, text: str | None) -> ShardedData:
    """Find the shards of a source."""
    with importing():
        from cldnet.distributed.shards import find_shards

    if text is not None:
        raise ValueError("--text is for sentences, which are not learned in shards: leave --text or --engine out.")
    shards = find_shards(source, label=label)
    return ShardedData(shards[0].noun if shards[0].noun == "photo" else "row", shards)
