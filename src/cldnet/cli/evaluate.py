"""The command that tells how well a model knows a folder of labelled photos."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cldnet.cli.folders import Labelled, photos_to_test, portions, sides
from cldnet.cli.models import loaded
from cldnet.cli.show import counted, say

if TYPE_CHECKING:
    from cldnet.bench.photo_evaluation import Answered, PhotoEvaluation
    from cldnet.bench.report.thumbnails import SurestMistakes
    from cldnet.classifier import CLDNetClassifier
    from cldnet.cli.folders import Portion

__all__ = ["eval_command"]


def eval_command(
    model: Annotated[Path, typer.Argument(help="The model's file.")],
    folder: Annotated[
        Path,
        typer.Argument(help="Photos, in one folder a class; of a folder with a test part, that part is taken."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for page and JSON; by default one beside the model, with its name."),
    ] = None,
    thumbnails: Annotated[
        bool,
        typer.Option("--thumbnails/--no-thumbnails", help="Whether the page has small copies of the surest mistakes."),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures and answers in JSON.")] = False,
) -> None:
    """Say how many photos a model takes for what they are, and what it takes for what; with a page to look at.

    Photos that cannot be read are named and left out; those of classes that the model does not know are counted apart.
    """
    from cldnet.bench.report.evaluation import check_place, evaluation_json, write_evaluation
    from cldnet.bench.report.plain import folder_for
    from cldnet.bench.report.thumbnails import SurestMistakes

    clf, place = loaded(model), out or model.with_name(f"{model.stem}-eval")
    chosen, mistakes = photos_to_test(folder), SurestMistakes()
    sides(clf)
    _refuse_strangers_alone(clf, chosen)
    check_place(place)
    with folder_for(place, "an evaluation"):
        found = _evaluated(clf, model, chosen, mistakes)
        shown = [(answer, pixels if thumbnails else None) for answer, pixels in mistakes.found]
        page, figures = write_evaluation(found, place, shown)
    if as_json:
        typer.echo(evaluation_json(found), nl=False)
        return
    say(str(found))
    if thumbnails and shown:
        copies = counted(len(shown), "photo", "photos")
        say(f"  copies  the page holds small copies of {copies}; --no-thumbnails leaves them out")
    say(f"    page  {page}\n figures  {figures}")


def _refuse_strangers_alone(clf: CLDNetClassifier, chosen: Labelled) -> None:
    """A folder of which the model knows no class at all is most often the wrong folder."""
    known, found = sorted(map(str, clf.classes_)), sorted({photo.label for photo in chosen.photos})
    if not set(known) & set(found):
        raise ValueError(
            f"The model knows none of the classes under {str(chosen.folder)!r}: they are {_some(found)}, and it knows "
            f"{_some(known)}. Give the folder in which the classes' own folders lie, with the names that the model knows."
        )


def _some(labels: list[str]) -> str:
    named = ", ".join(map(repr, labels[:5]))
    return named + (f" and {len(labels) - 5:,} more" if len(labels) > 5 else "")


def _evaluated(clf: CLDNetClassifier, model: Path, chosen: Labelled, mistakes: SurestMistakes) -> PhotoEvaluation:
    from cldnet.bench.machine import versions
    from cldnet.bench.photo_evaluation import PhotoEvaluation
    from cldnet.data.partfile import file_checksum

    answers: list[Answered] = []
    for portion in portions(clf, chosen, "evaluating"):
        found = _answers(clf, chosen, portion)
        for answer, pixels in zip(found, portion.x, strict=True):
            mistakes.offer(answer, pixels)
        answers += found
    return PhotoEvaluation(
        model.name,
        file_checksum(model, "sha256"),
        chosen.folder.expanduser().resolve().name,
        len(clf.classes_),
        tuple(answers),
        {chosen.seen_from_folder(Path(bad.path)): bad.reason for bad in chosen.bad},
        date.today().isoformat(),
        versions(),
    )


def _answers(clf: CLDNetClassifier, chosen: Labelled, portion: Portion) -> list[Answered]:
    """What the model takes each photo of a portion for. Labels are compared as text, which is what names of folders are."""
    import numpy as np

    from cldnet.bench.photo_evaluation import Answered
    from cldnet.math.confusion import ranks_of

    names = [str(label) for label in clf.classes_]
    column = {name: at for at, name in enumerate(names)}
    probabilities = clf.predict_proba(portion.x)
    own = [column.get(photo.label) for photo in portion.photos]
    ranks = ranks_of(probabilities, [0 if at is None else at for at in own])
    return [
        Answered(
            chosen.seen_from_folder(chosen.root / photo.name),
            photo.label,
            names[best],
            float(row[best]),
            None if at is None else int(rank),
        )
        for photo, row, best, at, rank in zip(
            portion.photos, probabilities, np.argmax(probabilities, axis=1), own, ranks, strict=True
        )
    ]
