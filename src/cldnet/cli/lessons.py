"""Commands on what a model was taught: its lessons, and how to take one back; its classes, and room for more of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape

from cldnet.bench.formatting import counted
from cldnet.cli.models import Wait, changing, describe_size, loaded
from cldnet.cli.show import json_text, new_table, say, shown
from cldnet.estimator.teaching import label_of, save_solved

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from cldnet.estimator.classifier import CLDNetClassifier
    from cldnet.estimator.history import LessonRecord, Manifest

#: Classes of a lesson that a table names.
_NAMED = 4

_Model = Annotated[Path, typer.Argument(help="A model file, as written by clf.save or `cldnet learn`.")]


def lessons_command(
    model: _Model,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list with one entry per lesson.")] = False,
) -> None:
    """Show the lessons of a model: when it learned or forgot how many samples of which classes. The data are not kept.

    The model remembers as many lessons as fit into 32 kB, the newest of them.
    """
    from cldnet.estimator.summary import read_lessons

    records = read_lessons(model)
    if as_json:
        typer.echo(json_text([_plain(record) for record in records]))
        return
    table = new_table()
    for heading in ("lesson", "day", "name", "samples", "classes", "undo"):
        table.add_column(heading, justify="right" if heading in ("lesson", "samples") else "left")
    for record in records:
        samples = f"{record.total:,}" if record.action == "learned" else f"{record.action} {record.total:,}"
        name, undo = shown(record.name or "–"), "possible" if record.kept else "–"
        table.add_row(str(record.number), record.date, escape(name), samples, escape(_classes(record.samples)), undo)
    if records:
        Console().print(table)
    else:
        say(f"{shown(model)} has no lessons: none was recorded, or all were undone.")


def undo_command(
    model: _Model,
    lesson: Annotated[
        str | None, typer.Argument(help="Number or name of a lesson, see `cldnet lessons`; by default the last one.")
    ] = None,
    wait: Wait = True,
) -> None:
    """Take a lesson back without its data, as if it had never been given.

    For models that keep the sums of their last lessons (`cldnet learn --keep-lessons N` for a new model). With the data, any
    lesson can be forgotten: `cldnet forget`.
    """

    def undo(clf: CLDNetClassifier) -> str:
        records = clf.lessons_
        number = None if lesson is None else _number_of(lesson, records)
        before = set(clf.classes_.tolist())
        clf.undo(number)
        left = {record.number for record in clf.lessons_}
        (gone,) = (record for record in records if record.number not in left)
        said = f"took back  {_lesson(gone)}: {counted(gone.total, 'sample', 'samples')}"
        lost = sorted(before.difference(clf.classes_.tolist()))
        return said + (f"\n     gone  {', '.join(map(shown, lost))}" if lost else "")

    _changed(model, wait, undo)


def rename_command(
    model: _Model,
    old: Annotated[str, typer.Argument(help="A class that the model knows.")],
    new: Annotated[str, typer.Argument(help="Its new label, which no class has.")],
    wait: Wait = True,
) -> None:
    """Give a class another label. Nothing else changes."""

    def rename(clf: CLDNetClassifier) -> str:
        clf.rename_class(label_of(clf, old), label_of(clf, new))
        return f"  renamed  {shown(old)} to {shown(new)}"

    _changed(model, wait, rename)


def join_command(
    model: _Model,
    labels: Annotated[list[str], typer.Argument(help="Classes that become one.")],
    into: Annotated[str, typer.Option(help="The class that they become: one that there is, or a new one.")],
    wait: Wait = True,
) -> None:
    """Make several classes one: the model is, exactly, the one that was taught with one label for all their samples."""

    def join(clf: CLDNetClassifier) -> str:
        clf.join_classes([label_of(clf, label) for label in labels], label_of(clf, into))
        return f"   joined  {', '.join(map(shown, labels))} into {shown(into)}"

    _changed(model, wait, join)


def extend_command(
    model: _Model,
    capacity: Annotated[int, typer.Argument(help="The new number of classes that there is room for.", min=1)],
    wait: Wait = True,
) -> None:
    """Make room for more classes. What was learned stays as it is."""

    def extend(clf: CLDNetClassifier) -> str:
        if clf.model_.labels.capacity is None:
            raise ValueError(f"{str(model)!r} has no limit to its number of classes: there is nothing to extend.")
        clf.extend(capacity)
        return f" extended  to {counted(capacity, 'class', 'classes')}"

    _changed(model, wait, extend)


def _changed(model: Path, wait: bool, change: Callable[[CLDNetClassifier], str]) -> None:
    """Change a model's file, and say what was done."""
    with changing(model, wait):
        clf = loaded(model)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            said = change(clf)
            save_solved(clf, model)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        say(message, error=True)
    say(f"{said}\n    model  {shown(model)}: {describe_size(clf)}")


def _number_of(lesson: str, records: Sequence[LessonRecord]) -> int | str:
    """The lesson that a user names: by its name if one has it, else by its number."""
    named = any(record.name == lesson for record in records)
    return int(lesson) if lesson.isdecimal() and len(lesson) < 20 and not named else lesson


def _lesson(record: LessonRecord) -> str:
    return f"lesson {record.number}" + (f" ({shown(record.name)})" if record.name else "")


def _classes(samples: Mapping[Any, int] | None) -> str:
    """A few labels of a lesson."""
    if samples is None:
        return "too many to name"
    named = [shown(label) for label in sorted(samples)]
    more = [f"and {len(named) - _NAMED:,} more"] if len(named) > _NAMED else []
    return ", ".join([*named[:_NAMED], *more]) or "–"


def _plain(record: LessonRecord) -> dict[str, Any]:
    """A lesson in JSON's types; labels may be of any type, so samples are pairs."""
    samples = None if record.samples is None else [[label, count] for label, count in record.samples.items()]
    return {
        "number": record.number,
        "name": record.name,
        "date": record.date,
        "action": record.action,
        "total": record.total,
        "samples": samples,
        "digest": record.digest,
        "repeated": record.repeated,
        "kept": record.kept,
        **({} if record.manifest is None else {"manifest": _plain_manifest(record.manifest)}),
    }


def _plain_manifest(manifest: Manifest) -> dict[str, Any]:
    """The shards of a lesson in JSON's types."""
    listed = [shard._asdict() for shard in manifest.shards]
    return {"count": manifest.count, "ids": [*manifest.ids], "shards": listed}
