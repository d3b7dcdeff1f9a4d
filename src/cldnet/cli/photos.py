"""Commands on folders of photos: learn, predict, eval and forget."""

from __future__ import annotations

import heapq
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cldnet.bench.formatting import counted, human_bytes
from cldnet.cli.models import (
    Wait,
    changing,
    describe_size,
    given_options,
    importing,
    loaded,
    loaded_to_predict,
    save_solved,
)
from cldnet.cli.show import counting, json_text, pace, say, shown

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cldnet.bench.report.model_pages import PhotoEvaluation, PhotoPrediction
    from cldnet.data.images.decode import BadImage, Photos
    from cldnet.data.images.folders import Photo, Tree
    from cldnet.estimator.classifier import CLDNetClassifier
    from cldnet.estimator.predictor import Predictor

#: Photos that are decoded and learned at once, so that memory does not grow with the folder.
BATCH = 256
#: Share of photos of known classes that `--reject` turns away.
_REJECTED = 0.01
#: Unreadable photos that are named; the others are counted.
_NAMED = 10
#: The most confident mistakes, which the page of an evaluation shows.
_MISTAKES = 24

_Model = Annotated[Path, typer.Argument(help="The model's file.")]
_Folder = Annotated[Path, typer.Argument(help="Photos, one folder per class; the folders' names are the labels.")]


def learn_command(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="The model's file. It is created if it does not exist.")],
    folder: _Folder,
    backbone: Annotated[
        str,
        typer.Option(
            help="For a new model: efficientnet-lite0, -lite1 or -lite2 (larger is more accurate and slower), or a ViT, DeiT "
            "or DINOv2 of transformers: its folder, or its name on the hub."
        ),
    ] = "efficientnet-lite0",
    memory: Annotated[
        int,
        typer.Option(
            min=1, help="For a new model: megabytes for the matrix to solve; its file has about half as many."
        ),
    ] = 128,
    size: Annotated[
        int | None,
        typer.Option(help="For a new model: side of the photos in pixels. Smaller is faster. (default: the net's own)"),
    ] = None,
    capacity: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="For a new model: the largest number of classes, for which memory is reserved at once. (default: no limit, "
            "and memory for 16 classes at a time)",
        ),
    ] = None,
    receipts: Annotated[
        bool,
        typer.Option(
            "--receipts",
            help="For a new model: keep a 16-byte digest of each photo, so that forget refuses photos that were not learned.",
        ),
    ] = False,
    wait: Wait = True,
) -> None:
    """Learn the photos of a folder: new classes, more of old ones, or both. No photo is kept.

    Photos that cannot be read are named and skipped. The model's file is replaced at the end. Photos that are learned twice
    count twice. If two processes teach one model, the second waits for the first.
    """
    photos = _labelled(folder, test=False)
    with changing(model, wait):
        exists, given = model.exists(), given_options(context) - {"model", "folder", "wait"}
        clf = loaded(model) if exists else _new(backbone, memory, size, capacity, receipts)
        if exists and given:
            _check_settings(model, clf, _new(backbone, memory, size, capacity, receipts), given)
        before = set(clf.classes_.tolist()) if exists else set()
        if not exists:
            known = len({photo.label for photo in photos.photos})
            expected = human_bytes(_expected_size(clf, known))
            say(f"   size  the model of {counted(known, 'class', 'classes')} will take up to {expected}", error=True)
        begun = time.perf_counter()
        labels = _teach(clf, photos)
        seconds = time.perf_counter() - begun
        save_solved(clf, model)
    number, classes = counted(len(labels), "photo", "photos"), counted(len({*labels}), "class", "classes")
    say(f"learned  {number} of {classes} in {seconds:.1f} s ({pace(len(labels), seconds, 'photos')})")
    new = sorted({*labels} - before)
    if new:
        say(f"    new  {', '.join(map(shown, new))}")
    say(f"  model  {shown(model)}: {describe_size(clf)}")


def predict_command(
    model: _Model,
    images: Annotated[list[Path], typer.Argument(help="Photos, or folders of photos.")],
    top: Annotated[int, typer.Option(min=1, help="How many of the most probable classes to show.")] = 1,
    reject: Annotated[
        bool, typer.Option("--reject", help="Predict “unknown” for photos that do not look like any known class.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list with one entry per photo.")] = False,
) -> None:
    """Predict what photos show, with probabilities. Exits with 1 if a photo cannot be read."""
    with importing():
        from cldnet.data.images.folders import find_photos

    predictor, paths = loaded_to_predict(model), find_photos(images)
    answers: list[dict[str, Any]] = []
    with counting("looking at", "photos") as tell:
        tell(0, len(paths))
        for first in range(0, len(paths), BATCH):
            answers += _predictions(predictor, paths[first : first + BATCH], top, reject)
            tell(len(answers), len(paths))
    if as_json:
        typer.echo(json_text(answers))
    for answer in () if as_json else answers:
        said = f"cannot be read ({answer['error']})" if "error" in answer else _in_words(answer)
        say(f"{shown(answer['photo'])}: {said}")
    if any("error" in answer for answer in answers):
        raise typer.Exit(1)


def forget_command(
    model: _Model,
    folder: _Folder,
    allow_duplicates: Annotated[
        bool, typer.Option("--allow-duplicates", help="Forget photos again if they were learned more than once.")
    ] = False,
    wait: Wait = True,
) -> None:
    """Remove photos from a model, as if it had never seen them. A class without photos left is forgotten."""
    photos, forgotten = _labelled(folder, test=False), 0
    with changing(model, wait):
        clf = loaded(model)
        with warnings.catch_warnings(record=True) as caught, clf.lesson():
            warnings.simplefilter("always")
            for x, part in _batches(clf, photos, "forgetting"):
                clf.forget(x, [photo.label for photo in part], allow_duplicates=allow_duplicates)
                forgotten += len(part)
        save_solved(clf, model)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        say(message, error=True)
    say(f"forgot  {counted(forgotten, 'photo', 'photos')}\n model  {shown(model)}: {describe_size(clf)}")


def eval_command(
    model: _Model,
    folder: Annotated[
        Path, typer.Argument(help="Photos, one folder per class. If the folder has a test part, only that is used.")
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for page and JSON; by default one beside the model, with its name."),
    ] = None,
    thumbnails: Annotated[
        bool,
        typer.Option("--thumbnails/--no-thumbnails", help="Whether the page has small copies of the worst mistakes."),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures and predictions as JSON.")] = False,
) -> None:
    """Measure how many photos a model gets right and which classes it confuses; writes a page and JSON.

    Photos that cannot be read are named and skipped. Photos of classes that the model does not know are counted separately.
    """
    from cldnet.bench.report.model_pages import check_output, evaluation_json, output_folder, write_evaluation

    clf, place = loaded(model), out or model.with_name(f"{model.stem}-eval")
    photos = _labelled(folder, test=True)
    _side(_shape(clf))
    _check_known_classes(clf, photos)
    check_output(place)
    with output_folder(place):
        found, mistakes = _evaluation(clf, model, photos)
        worst = [(answer, pixels if thumbnails else None) for answer, pixels in mistakes]
        page, figures = write_evaluation(found, place, worst)
    if as_json:
        typer.echo(evaluation_json(found), nl=False)
        return
    say(str(found))
    if thumbnails and worst:
        copies = counted(len(worst), "photo", "photos")
        say(f"  copies  the page holds small copies of {copies}; --no-thumbnails leaves them out")
    say(f"    page  {page}\n figures  {figures}")


@dataclass
class _Labelled:
    """Labelled photos: the folder as the user named it, what is in it, and those that a command uses.

    ``bad`` collects photos that cannot be read.
    """

    folder: Path
    tree: Tree
    photos: Sequence[Photo]
    test: bool
    bad: list[BadImage] = field(default_factory=list)

    def relative(self, path: Path) -> str:
        """A photo's path relative to the folder."""
        return path.relative_to(self.folder.expanduser()).as_posix()


def _labelled(folder: Path, *, test: bool) -> _Labelled:
    """List the training photos of a folder, or its test photos (all if it has no test part)."""
    with importing():
        from cldnet.data.images.folders import list_photos

    tree = list_photos(folder.expanduser())
    photos = [photo for photo in tree.photos if photo.test == test] or (tree.photos if test else [])
    if len(photos) < len(tree.photos):
        part = "training" if test else "test"
        say(f"The {len(tree.photos) - len(photos):,} photos of the {part} part are left out.", error=True)
    return _Labelled(folder, tree, photos, test)


def _batches(clf: CLDNetClassifier, labelled: _Labelled, doing: str) -> Iterator[tuple[NDArray[np.uint8], list[Photo]]]:
    """Yield the pixels of readable photos batch by batch, with the photos; then report what was skipped."""
    photos, bad = labelled.photos, labelled.bad
    with counting(doing, "photos") as tell:
        tell(0, len(photos))
        for first in range(0, len(photos), BATCH):
            part = photos[first : first + BATCH]
            read = _read(_shape(clf), [labelled.tree.folder / photo.name for photo in part])
            bad += read.bad
            if len(read.places):
                yield read.x, [part[place] for place in read.places]
            tell(first + len(part), len(photos))
    named = ", ".join(f"{shown(each.path)} ({each.reason})" for each in bad[:_NAMED])
    named += f", and {len(bad) - _NAMED:,} more" if len(bad) > _NAMED else ""
    if len(bad) == len(photos):
        raise ValueError(f"None of the {len(photos):,} photos under {str(labelled.folder)!r} can be read: {named}.")
    if bad:
        say(f"{len(bad):,} of {len(photos):,} photos cannot be read and were left out: {named}.", error=True)
    for gap in [*labelled.tree.empty, *(labelled.tree.untested if labelled.test else ())]:
        say(f"In {str(labelled.folder)!r}, {gap}.", error=True)
    if labelled.tree.ignored:
        skipped = counted(labelled.tree.ignored, "other file was", "other files were")
        say(f"{skipped} skipped: hidden, outside the class folders, or without an image's file name.", error=True)


def _shape(clf: CLDNetClassifier) -> tuple[int, ...]:
    """Shape of the inputs that a model takes, or will take."""
    model = getattr(clf, "model_", None)
    shape: tuple[int, ...] = getattr(clf.backbone, "input_shape", ()) if model is None else model.inputs.shape
    return shape


def _side(shape: tuple[int, ...]) -> int:
    """Side of the square photos that a model takes, in pixels."""
    if len(shape) != 3 or shape[0] != 3 or shape[1] != shape[2]:
        raise ValueError(f"This model takes inputs of shape {tuple(shape)}, not photos: expected (3, side, side).")
    return int(shape[1])


def _read(shape: tuple[int, ...], paths: Sequence[Path]) -> Photos:
    """Decode photos to the size that a model takes."""
    from cldnet.data.images.decode import cut_from, read_photos

    side = _side(shape)
    return read_photos(paths, side, cut_from(side))


def _new(backbone: str, memory: int, size: int | None, capacity: int | None, receipts: bool) -> CLDNetClassifier:
    """Create a model over a pretrained net."""
    from cldnet.estimator.classifier import CLDNetClassifier
    from cldnet.nets import PRETRAINED, Expanded, ExpandedNet, FeatureMap
    from cldnet.nets.efficientnet import VERSIONS
    from cldnet.nets.frozen import features_within
    from cldnet.nets.transformer import read_source
    from cldnet.text import nearest_names

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
    return CLDNetClassifier(backbone=made, capacity=capacity or "auto", random_state=0, receipts=receipts)


def _expected_size(clf: CLDNetClassifier, classes: int) -> int:
    """Bytes of a new model when it has learned some classes, with the solution that its file has."""
    from cldnet.estimator.model import ModelParameters
    from cldnet.storage.validation import empty_learner

    parameters = ModelParameters(**{field.name: getattr(clf, field.name) for field in fields(ModelParameters)})
    setting = parameters.setting(_shape(clf), 0, classes)
    learner = empty_learner(clf.solver, parameters.backbone, setting, {})
    solution = classes * (learner.class_width + classes) * setting.dtype.itemsize
    return sum(learner.bytes_by_kind().values()) + solution


def _check_settings(path: Path, clf: CLDNetClassifier, new: CLDNetClassifier, given: set[str]) -> None:
    """Refuse options for a new model that differ from those of the one that exists."""

    def settings(clf: CLDNetClassifier) -> dict[str, Any]:
        made: Any = clf.backbone
        nets = [{**net, "size": None} for net in made.body.described()] if hasattr(made, "body") else made
        room = {"capacity": clf.capacity, "receipts": clf.receipts, "memory": getattr(made, "out_features", None)}
        return {**room, "size": _side(_shape(clf)), "backbone": nets}

    now, asked = settings(clf), settings(new)
    for name in sorted(given):
        if now[name] != asked[name]:
            raise ValueError(
                f"{str(path)!r} exists and was made with another --{name}, which cannot change: leave --{name} out, or name "
                "a new file."
            )


def _teach(clf: CLDNetClassifier, photos: _Labelled) -> list[str]:
    """Teach a model the photos of a folder as one lesson, and return their labels."""
    from cldnet.estimator.classifier import note_date

    labels: list[str] = []
    # The exact solver need not hold all batches until the end, as a session does.
    with clf.lesson() if clf.solver == "exact" else clf.session():
        for x, part in _batches(clf, photos, "learning"):
            y = [photo.label for photo in part]
            clf.partial_fit(x, y)
            labels += y
    note_date(clf, labels, date.today().isoformat())
    return labels


def _predictions(predictor: Predictor, paths: Sequence[Path], top: int, reject: bool) -> list[dict[str, Any]]:
    """One entry per photo: its label and probabilities, or why it cannot be read."""
    read = _read(predictor.model.inputs.shape, paths)
    answers: dict[int, dict[str, Any]] = {}
    if len(read.places):
        known: NDArray[np.float64] | None = None
        if reject:
            shares, known = predictor.predict_known(read.x)
        else:
            shares = predictor.predict_proba(read.x)
        labels = predictor.classes.tolist()
        for row, share in enumerate(shares):
            best = share.argsort()[::-1][:top]
            likely = [{"label": labels[c], "probability": float(share[c])} for c in best]
            said: dict[str, Any] = {"label": likely[0]["label"], "top": likely}
            if known is not None:
                said |= {"known": float(known[row])} | ({"label": None} if known[row] < _REJECTED else {})
            answers[int(read.places[row])] = said
    unread = iter(read.bad)
    return [
        {"photo": str(path), **(answers[place] if place in answers else {"error": next(unread).reason})}
        for place, path in enumerate(paths)
    ]


def _in_words(answer: dict[str, Any]) -> str:
    likely = ", ".join(f"{shown(each['label'])} {each['probability']:.1%}" for each in answer["top"])
    return f"unknown (nearest: {likely})" if answer["label"] is None else likely


def _check_known_classes(clf: CLDNetClassifier, photos: _Labelled) -> None:
    """Refuse a folder of which the model knows no class: it is most likely the wrong one."""
    known, found = sorted(map(str, clf.classes_)), sorted({photo.label for photo in photos.photos})
    if not set(known) & set(found):
        raise ValueError(
            f"The model knows none of the classes under {str(photos.folder)!r}: they are {_some(found)}, and it knows "
            f"{_some(known)}. Give the folder that contains the class folders, named as the model knows them."
        )


def _some(labels: list[str]) -> str:
    named = ", ".join(map(repr, labels[:5]))
    return named + (f" and {len(labels) - 5:,} more" if len(labels) > 5 else "")


def _evaluation(
    clf: CLDNetClassifier, model: Path, photos: _Labelled
) -> tuple[PhotoEvaluation, list[tuple[PhotoPrediction, NDArray[np.uint8]]]]:
    """Predict all photos, and collect the worst mistakes. Labels are compared as text, as names of folders are text."""
    from cldnet.bench.machine import versions
    from cldnet.bench.report.model_pages import PhotoEvaluation, PhotoPrediction
    from cldnet.data.download import file_checksum
    from cldnet.math.metrics import ranks_of

    names = [str(label) for label in clf.classes_]
    columns = {name: column for column, name in enumerate(names)}
    answers: list[PhotoPrediction] = []
    mistakes: list[tuple[PhotoPrediction, NDArray[np.uint8]]] = []
    for x, part in _batches(clf, photos, "evaluating"):
        probabilities = clf.predict_proba(x)
        own = [columns.get(photo.label) for photo in part]
        ranks = ranks_of(probabilities, [column or 0 for column in own])
        for photo, pixels, row, column, rank in zip(part, x, probabilities, own, ranks, strict=True):
            best, path = int(row.argmax()), photos.relative(photos.tree.folder / photo.name)
            true_rank = None if column is None else int(rank)
            answers.append(PhotoPrediction(path, photo.label, names[best], float(row[best]), true_rank))
            if answers[-1].wrong:
                mistakes.append((answers[-1], pixels.copy()))  # a view would keep the whole batch in memory
        mistakes = heapq.nlargest(_MISTAKES, mistakes, key=lambda mistake: mistake[0].probability)
    found = PhotoEvaluation(
        model.name,
        file_checksum(model, "sha256"),
        photos.folder.expanduser().resolve().name,
        len(clf.classes_),
        tuple(answers),
        {photos.relative(Path(bad.path)): bad.reason for bad in photos.bad},
        date.today().isoformat(),
        versions(),
    )
    return found, mistakes
