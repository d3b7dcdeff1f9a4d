"""Commands that teach a model from folders of photos, ask it, and take photos out again."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cldnet.cli.folders import PORTION, Labelled, photos_to_learn, portions, sides
from cldnet.cli.models import Wait, changing, describe_size, loaded
from cldnet.cli.show import counted, counting, json_text, pace, say, shown

if TYPE_CHECKING:
    from cldnet.classifier import CLDNetClassifier

__all__ = ["forget_command", "learn_command", "predict_command"]

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
            help="For a new model: efficientnet-lite0, -lite1 or -lite2 (larger ones know more, and are slower), or a ViT, "
            "DeiT or DINOv2 of transformers: its folder, or its name on the hub."
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
    receipts: Annotated[
        bool,
        typer.Option(
            "--receipts",
            help="For a new model: keep a 16-byte digest of each photo, so that forget refuses all that were not learned.",
        ),
    ] = False,
    wait: Wait = True,
) -> None:
    """Learn the photos of a folder: new classes, more of old ones, or both. Nothing of the photos is kept.

    A photo that cannot be read is named and left out. The model's file is replaced when all is learned, not before. What is
    learned twice counts twice. When two processes teach one model, the second waits for the first.
    """
    chosen = photos_to_learn(folder)
    with changing(model, wait):
        known = model.exists()
        clf = loaded(model) if known else _new(backbone, memory, size, capacity, receipts)
        before = set(clf.classes_.tolist()) if known else set()
        begun = time.perf_counter()
        labels = _taught(clf, chosen)
        seconds = time.perf_counter() - begun
        clf.save(model)
    new = sorted({*labels} - before)
    photos, classes = counted(len(labels), "photo", "photos"), counted(len({*labels}), "class", "classes")
    say(f"learned  {photos} of {classes} in {seconds:.1f} s ({pace(len(labels), seconds, 'photos')})")
    if new:
        say(f"    new  {', '.join(map(shown, new))}")
    say(f"  model  {shown(model)}: {describe_size(clf)}")


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
        tell(0, len(paths))
        for part in range(0, len(paths), PORTION):
            answers += _answers(clf, paths[part : part + PORTION], top, reject)
            tell(len(answers), len(paths))
    if as_json:
        typer.echo(json_text(answers))
    for answer in () if as_json else answers:
        said = f"cannot be read ({answer['error']})" if "error" in answer else _worded(answer)
        say(f"{shown(answer['photo'])}: {said}")
    if any("error" in answer for answer in answers):
        raise typer.Exit(1)


def forget_command(
    model: _Model,
    folder: _Folder,
    allow_duplicates: Annotated[
        bool, typer.Option("--allow-duplicates", help="Forget photos once again that were learned more than once.")
    ] = False,
    wait: Wait = True,
) -> None:
    """Take photos out of a model again, as if it had never seen them. A class of which none is left is known no more."""
    chosen, taken = photos_to_learn(folder), 0
    with changing(model, wait):
        clf = loaded(model)
        with warnings.catch_warnings(record=True) as caught, clf._as_one_lesson():
            warnings.simplefilter("always")
            for x, _, y in portions(clf, chosen, "forgetting"):
                clf.forget(x, y, allow_duplicates=allow_duplicates)
                taken += len(y)
        clf.save(model)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        say(message, error=True)
    say(f"forgot  {counted(taken, 'photo', 'photos')}\n model  {shown(model)}: {describe_size(clf)}")


def _taught(clf: CLDNetClassifier, chosen: Labelled) -> list[str]:
    """Teach a model the photos of a folder, and tell their labels."""
    labels: list[str] = []
    # Portions are one lesson; the exact solver need not hold them all until its end.
    with clf._as_one_lesson() if clf.solver == "exact" else clf.session():
        for x, _, y in portions(clf, chosen, "learning"):
            clf.partial_fit(x, y)
            labels += y.tolist()
    clf._fitted().labels.note_day(labels, date.today().isoformat())
    return labels


def _new(backbone: str, memory: int, size: int | None, capacity: int, receipts: bool) -> CLDNetClassifier:
    from cldnet.classifier import CLDNetClassifier
    from cldnet.names import nearest_names
    from cldnet.nets import PRETRAINED, Expanded, ExpandedNet, FeatureMap
    from cldnet.nets.efficientnet import VERSIONS
    from cldnet.nets.expanded import features_within
    from cldnet.nets.transformer import read_source

    features = features_within(memory * 10**6)
    made: FeatureMap
    if backbone in PRETRAINED:
        version = PRETRAINED[backbone]["version"]
        side = VERSIONS[version][2] if size is None else size
        made = ExpandedNet((3, side, side), features, seed=0, version=version, size=side)
    elif "/" not in backbone and not Path(backbone).is_dir():  # neither a folder nor a name on the hub
        raise ValueError(f"There is no backbone {backbone!r} for photos. {nearest_names(backbone, PRETRAINED)}")
    elif size is not None:
        raise ValueError(f"{backbone} has a size of its own: leave --size out.")
    else:
        side = read_source(backbone)[1].size
        made = Expanded((3, side, side), features, seed=0, bodies=[backbone])
    return CLDNetClassifier(backbone=made, capacity=capacity, random_state=0, receipts=receipts)


def _answers(clf: CLDNetClassifier, paths: Sequence[Path], top: int, reject: bool) -> list[dict[str, Any]]:
    from cldnet.data.images.photos import read_photos

    read = read_photos(paths, *sides(clf))
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
    likely = ", ".join(f"{shown(each['label'])} {each['probability']:.1%}" for each in answer["top"])
    return f"unknown (nearest: {likely})" if answer["label"] is None else likely
