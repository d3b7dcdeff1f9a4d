"""Commands that teach a model from folders of photos, ask it, and take photos out again."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cldnet.cli.models import describe_size, loaded
from cldnet.cli.show import counted, counting, say

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cldnet.classifier import CLDNetClassifier
    from cldnet.data.images.decode import BadImage

__all__ = ["forget_command", "learn_command", "predict_command"]

#: Photos that are decoded and learned at once: what is in memory does not grow with a folder.
_PORTION = 256
#: Bad photos that are named; the others are counted.
_NAMED = 10
#: Share of photos of known classes that `--reject` turns away.
_REJECTED = 0.01

_Model = Annotated[Path, typer.Argument(help="The model's file.")]
_Folder = Annotated[Path, typer.Argument(help="Photos, in one folder a class; the folders' names are the labels.")]


def learn_command(
    model: Annotated[Path, typer.Argument(help="The model's file. It is made if it is not there.")],
    folder: _Folder,
    backbone: Annotated[
        str,
        typer.Option(
            help="For a new model: efficientnet-lite0, -lite1 or -lite2. Larger ones know more, and are slower."
        ),
    ] = "efficientnet-lite0",
    memory: Annotated[
        int,
        typer.Option(
            min=1, help="For a new model: megabytes for its sums. More features fit into more, and know more."
        ),
    ] = 128,
    size: Annotated[
        int | None,
        typer.Option(help="For a new model: side of the photos in pixels. Smaller is quicker. [the net's own]"),
    ] = None,
    capacity: Annotated[
        int, typer.Option(min=1, help="For a new model: room for classes; its size follows from it.")
    ] = 1000,
) -> None:
    """Learn the photos of a folder: new classes, more of old ones, or both. Nothing of the photos is kept.

    A photo that cannot be read is named and left out. The model's file is replaced when all is learned, not before. What is
    learned twice counts twice.
    """
    known = model.exists()
    clf = loaded(model) if known else _new(backbone, memory, size, capacity)
    before = set(clf.classes_.tolist()) if known else set()
    begun = time.perf_counter()
    labels: list[str] = []
    # Portions are one session; to the exact solver they are the same without, and need not all be held until its end.
    with nullcontext() if clf.solver == "exact" else clf.session():
        for x, y in _portions(clf, folder, "learning"):
            clf.partial_fit(x, y)
            labels += y.tolist()
    seconds = time.perf_counter() - begun
    clf._fitted().labels.note_day(labels, date.today().isoformat())
    clf.save(model)
    new = sorted({*labels} - before)
    rate = f"{len(labels) / max(seconds, 1e-9):.1f} a second"
    photos, classes = counted(len(labels), "photo", "photos"), counted(len({*labels}), "class", "classes")
    say(f"learned  {photos} of {classes} in {seconds:.1f} s ({rate})")
    if new:
        say(f"    new  {', '.join(new)}")
    say(f"  model  {model}: {describe_size(clf)}")


def predict_command(
    model: _Model,
    images: Annotated[list[Path], typer.Argument(help="Photos, or folders of photos.")],
    top: Annotated[int, typer.Option(min=1, help="How many of the likeliest classes to show.")] = 1,
    reject: Annotated[
        bool, typer.Option("--reject", help="Say “unknown” of photos that look like no class that was taught.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Answer in JSON, a list with an entry a photo.")] = False,
) -> None:
    """Say what photos show, with how sure that is. Exits with 1 if one of them cannot be read."""
    from cldnet.data.images.photos import find_photos

    clf, paths = loaded(model), find_photos(images)
    answers: list[dict[str, Any]] = []
    with counting("looking at", "photos") as tell:
        for part in range(0, len(paths), _PORTION):
            answers += _answers(clf, paths[part : part + _PORTION], top, reject)
            tell(len(answers), len(paths))
    if as_json:
        typer.echo(json.dumps(answers, indent=1, ensure_ascii=False))
    for answer in () if as_json else answers:
        said = f"cannot be read ({answer['error']})" if "error" in answer else _worded(answer)
        say(f"{answer['photo']}: {said}")
    if any("error" in answer for answer in answers):
        raise typer.Exit(1)


def forget_command(model: _Model, folder: _Folder) -> None:
    """Take photos out of a model again, as if it had never seen them. A class of which none is left is known no more."""
    clf = loaded(model)
    taken = 0
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for x, y in _portions(clf, folder, "forgetting"):
            clf.forget(x, y)
            taken += len(y)
    clf.save(model)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        say(message, error=True)
    say(f"forgot  {counted(taken, 'photo', 'photos')}\n model  {model}: {describe_size(clf)}")


def _new(backbone: str, memory: int, size: int | None, capacity: int) -> CLDNetClassifier:
    from cldnet.classifier import CLDNetClassifier
    from cldnet.names import nearest_names
    from cldnet.nets import PRETRAINED, ExpandedNet
    from cldnet.nets.efficientnet import VERSIONS
    from cldnet.nets.expanded import features_within

    if backbone not in PRETRAINED:
        raise ValueError(f"There is no backbone {backbone!r} for photos. {nearest_names(backbone, PRETRAINED)}")
    version = PRETRAINED[backbone]["version"]
    side = VERSIONS[version][2] if size is None else size
    features = features_within(memory * 10**6)
    made = ExpandedNet((3, side, side), features, seed=0, version=version, size=side)
    return CLDNetClassifier(backbone=made, capacity=capacity, random_state=0)


def _sides(clf: CLDNetClassifier) -> tuple[int, int]:
    """The side of the photos that a model takes, and that of what they are cut out of."""
    from cldnet.data.images.decode import cut_from

    shape: tuple[int, ...] = getattr(clf.backbone, "input_shape", ()) if clf._model is None else clf._model.inputs.shape
    if len(shape) != 3 or shape[0] != 3 or shape[1] != shape[2]:
        raise ValueError(f"This model takes inputs of shape {tuple(shape)}, not photos: expected (3, side, side).")
    return int(shape[1]), cut_from(int(shape[1]))


def _portions(clf: CLDNetClassifier, folder: Path, doing: str) -> Iterator[tuple[NDArray[np.uint8], NDArray[np.str_]]]:
    """Photos of a folder with their labels, some hundred at a time; says afterwards which could not be read."""
    import numpy as np

    from cldnet.data.images.photos import read_photos
    from cldnet.data.images.tree import list_photos

    tree, sides = list_photos(folder.expanduser()), _sides(clf)
    photos = [photo for photo in tree.photos if not photo.test]
    if len(photos) < len(tree.photos):
        say(f"The {len(tree.photos) - len(photos):,} photos of the test part are left out.", error=True)
    bad: list[BadImage] = []
    with counting(doing, "photos") as tell:
        for first in range(0, len(photos), _PORTION):
            part = photos[first : first + _PORTION]
            read = read_photos([tree.folder / photo.name for photo in part], *sides)
            bad += read.bad
            if len(read.places):
                yield read.x, np.array([part[place].label for place in read.places])
            tell(first + len(part), len(photos))
    if len(bad) == len(photos):
        raise ValueError(f"None of the {len(photos):,} photos under {str(folder)!r} can be read: {_named(bad)}.")
    if bad:
        say(f"{len(bad):,} of {len(photos):,} photos cannot be read and were left out: {_named(bad)}.", error=True)
    for gap in tree.gaps:
        say(f"In {str(folder)!r}, {gap}.", error=True)


def _named(bad: Sequence[BadImage]) -> str:
    named = ", ".join(f"{each.path} ({each.reason})" for each in bad[:_NAMED])
    return named + (f", and {len(bad) - _NAMED:,} more" if len(bad) > _NAMED else "")


def _answers(clf: CLDNetClassifier, paths: Sequence[Path], top: int, reject: bool) -> list[dict[str, Any]]:
    from cldnet.data.images.photos import read_photos

    read = read_photos(paths, *_sides(clf))
    answers: dict[int, dict[str, Any]] = {}
    if len(read.places):
        known = clf.known_probability(read.x) if reject else None
        for row, probabilities in enumerate(clf.predict_proba(read.x)):
            best = probabilities.argsort()[::-1][:top]
            likely = [{"label": clf.classes_[c].item(), "probability": float(probabilities[c])} for c in best]
            said: dict[str, Any] = {"label": likely[0]["label"], "top": likely}
            if known is not None:
                said |= {"known": float(known[row])} | ({"label": None} if known[row] < _REJECTED else {})
            answers[int(read.places[row])] = said
    unread = iter(read.bad)
    return [
        {"photo": str(path), **(answers[place] if place in answers else {"error": next(unread).reason})}
        for place, path in enumerate(paths)
    ]


def _worded(answer: dict[str, Any]) -> str:
    likely = ", ".join(f"{each['label']} {each['probability']:.1%}" for each in answer["top"])
    return f"unknown (nearest: {likely})" if answer["label"] is None else likely
