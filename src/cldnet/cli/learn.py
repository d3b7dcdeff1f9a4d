"""Commands on your own data, photos, sentences or tables: learn, predict, eval and forget."""

from __future__ import annotations

import heapq
import os
import re
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cldnet.bench.formatting import counted, human_bytes
from cldnet.cli.models import (
    TextColumn,
    Wait,
    changing,
    describe_size,
    given_options,
    importing,
    loaded,
    loaded_to_predict,
)
from cldnet.cli.shards import Cluster, EngineName, ShardedData, shards_of
from cldnet.cli.show import counting, json_text, pace, say, shown
from cldnet.estimator.teaching import label_of, new_classifier, save_solved

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cldnet.bench.report.model_pages import Evaluation, Prediction
    from cldnet.datasets import Batch, LabelledData
    from cldnet.estimator.classifier import CLDNetClassifier
    from cldnet.estimator.gate import Gate
    from cldnet.estimator.predictor import Predictor

#: Samples that are read and learned at once, so that memory does not grow with the folder.
BATCH = 256
#: Share of samples of known classes that `--reject` turns away, unless another one is given.
_REJECTED = 0.05
#: Points of accuracy that `--check` lets a lesson cost, unless another number is given.
_MAX_DROP = 1.0
#: The most confident mistakes, which the page of an evaluation shows.
_MISTAKES = 24
#: Harmed classes that are named, and letters of a sentence in a line of the terminal.
_NAMED, _LETTERS = 5, 80
#: Options that a new model takes, by the kind of its data.
_NEW = {
    "photo": {"backbone", "memory", "size", "capacity", "receipts", "keep_lessons"},
    "text": {"backbone", "memory", "capacity", "receipts", "keep_lessons"},
    "row": {"capacity", "receipts", "keep_lessons"},
}

_Model = Annotated[Path, typer.Argument(help="The model's file.")]
_SOURCE = (
    "A folder of photos or of .txt files, one folder per class, whose names are the labels; or a CSV or Parquet table of "
    "sentences (columns text and label) or of numbers."
)
_Source = Annotated[Path, typer.Argument(help=_SOURCE)]
_Label = Annotated[
    str | None,
    typer.Option(help="Of a table: the column of labels. (default: the one named label, class, target or y)"),
]


def learn_command(
    context: typer.Context,
    model: Annotated[Path, typer.Argument(help="The model's file. It is created if it does not exist.")],
    source: Annotated[
        str,
        typer.Argument(help=f"{_SOURCE} With --engine also a pattern, 'data/*.parquet', or a URL.", metavar="SOURCE"),
    ],
    label: _Label = None,
    text: TextColumn = None,
    name: Annotated[
        str | None, typer.Option(help="Name of the lesson in `cldnet lessons`. (default: that of the folder or file)")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            help="Held-out data in the layout of the data to learn (of its test part, if it has one). The lesson is refused if "
            "accuracy on the classes that the model knew falls by more than --max-drop, and the file stays as it was."
        ),
    ] = None,
    max_drop: Annotated[
        float, typer.Option(min=0, max=100, help="Points of accuracy that the lesson may cost on --check.")
    ] = _MAX_DROP,
    backbone: Annotated[
        str | None,
        typer.Option(
            help="For a new model of photos: efficientnet-lite0 (default), -lite1 or -lite2 (larger is more accurate and "
            "slower), or a ViT, DeiT or DINOv2 of transformers, as a folder or a name on the hub. Of sentences: minilm "
            "(default), or another BERT sentence encoder, as a folder or a name on the hub."
        ),
    ] = None,
    memory: Annotated[
        int,
        typer.Option(
            min=1,
            help="For a new model: megabytes for the matrix to solve. Its file has about a quarter as many, and those of its "
            "net if that is not minilm.",
        ),
    ] = 128,
    size: Annotated[
        int | None,
        typer.Option(
            help="For a new model of photos: their side in pixels. Smaller is faster. (default: the net's own)"
        ),
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
            help="For a new model: keep a 16-byte digest of each sample, so that forget refuses samples that were not learned.",
        ),
    ] = False,
    keep_lessons: Annotated[
        int,
        typer.Option(
            min=0,
            help="For a new model: keep the sums of so many last lessons, so that `cldnet undo` needs no data. Each makes the "
            "file larger by about a quarter of --memory, and the model in memory by half.",
        ),
    ] = 0,
    allow_duplicates: Annotated[
        bool, typer.Option("--allow-duplicates", help="Learn the same data again; every sample then counts twice.")
    ] = False,
    engine: Annotated[
        EngineName | None,
        typer.Option(help="Sum the data in shards: in processes of this machine (local), or on a Dask or Ray cluster."),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="With --engine: number of processes. (default: one per core)")
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="With --engine dask or ray: address of a cluster. (default: one is started here)")
    ] = None,
    sums: Annotated[
        Path | None,
        typer.Option(help="With --engine: a folder for the sums of finished shards, from which a killed run goes on."),
    ] = None,
    feature_map: Annotated[
        Path | None,
        typer.Option(
            "--map", help="With --engine, for a new model: the file of a fitted feature map (cldnet.save_map)."
        ),
    ] = None,
    sample: Annotated[
        int,
        typer.Option(min=1, help="With --engine, for a new model without --map: samples that its map is fitted on."),
    ] = 10_000,
    wait: Wait = True,
) -> None:
    """Learn labelled photos, sentences or rows: new classes, more of old ones, or both. No sample is kept.

    Files that cannot be read are named and skipped. The model's file is replaced at the end. If two processes teach one model,
    the second waits for the first.
    """
    given = given_options(context)
    if check is None and "max_drop" in given:
        raise ValueError("--max-drop belongs to --check HELD_OUT: name the held-out data, or leave --max-drop out.")
    _check_engine_options(engine, given)
    cluster = None if engine is None else Cluster(engine.value, workers, address, sums, feature_map, sample)
    data = _training(Path(source), label, text) if cluster is None else shards_of(source, label, text)
    held_out = None if check is None else _tested(check, label, text)
    options: dict[str, Any] = {"backbone": backbone, "memory": memory, "size": size, "capacity": capacity}
    options |= {"receipts": receipts, "keep_lessons": keep_lessons}
    with changing(model, wait):
        exists, asked = model.exists(), given & {*options}
        if not exists:
            _check_options(data.noun, asked)
        clf = loaded(model) if exists else new_classifier(data.noun, **options)
        if exists and asked:
            _check_settings(model, clf, data.noun, options, asked)
        before = {*clf.classes_.tolist()} if exists else set()
        gate = _gate(clf, model, exists, held_out)
        begun = time.perf_counter()
        if isinstance(data, ShardedData):
            assert cluster is not None
            samples = data.teach(clf, cluster, name or _lesson_name(Path(source)), allow_duplicates)
        else:
            _fit_to(clf, data)
            _say_size(clf, exists, data)
            samples = _teach(clf, data, name or _lesson_name(data.path))
            if not allow_duplicates:
                _ask_about_duplicates(clf, data)
        seconds = time.perf_counter() - begun
        _check_gate(clf, gate, held_out, max_drop)
        save_solved(clf, model)
    number, classes = _count(samples.total(), data.noun), counted(len(samples), "class", "classes")
    say(f"learned  {number} of {classes} in {seconds:.1f} s ({pace(samples.total(), seconds, f'{data.noun}s')})")
    new = sorted({*samples} - before)
    if new:
        say(f"    new  {', '.join(map(shown, new))}")
    say(f"  model  {shown(model)}: {describe_size(clf)}")


def predict_command(
    model: _Model,
    inputs: Annotated[
        list[str],
        typer.Argument(
            help="Photos or folders of photos; sentences, .txt files or folders of them, tables of sentences, or - for lines "
            "of the standard input; or tables of numbers: what the model has learned.",
            metavar="INPUT...",
        ),
    ],
    top: Annotated[int, typer.Option(min=1, help="How many of the most probable classes to show.")] = 1,
    reject: Annotated[
        bool, typer.Option("--reject", help="Predict “unknown” for samples that do not look like any known class.")
    ] = False,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="The share of samples of known classes that --reject may turn away, between 0 and 1: more of them, and more "
            f"unknown ones are noticed. Implies --reject. (default: {_REJECTED})"
        ),
    ] = None,
    text: TextColumn = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON: a list with one entry per sample.")] = False,
) -> None:
    """Predict the class of photos, sentences or rows, with probabilities. Exits with 1 if a photo or text cannot be read."""
    if threshold is not None and not 0 < threshold < 1:
        raise ValueError(f"--threshold {threshold:g} should be a share of known samples, between 0 and 1.")
    share = (threshold or _REJECTED) if reject or threshold is not None else None
    predictor = loaded_to_predict(model)
    noun, answers = predictor.model.inputs.noun, list[dict[str, Any]]()
    asked = _asked(model, predictor, noun, inputs, text)
    with counting("looking at" if noun == "photo" else "reading", f"{noun}s") as tell:
        tell(0, len(asked))
        for first in range(0, len(asked), BATCH):
            answers += _predictions(asked, first, top, share)
            tell(len(answers), len(asked))
    if as_json:
        typer.echo(json_text(answers))
    for answer in () if as_json else answers:
        said = f"cannot be read ({answer['error']})" if "error" in answer else _in_words(answer)
        say(f"{_short(answer[noun]) if noun == 'text' else shown(answer[noun])}: {said}")
    if any("error" in answer for answer in answers):
        raise typer.Exit(1)


def forget_command(
    model: _Model,
    source: Annotated[
        Path | None, typer.Argument(help="The samples to forget: a folder or a table, as it was learned.")
    ] = None,
    classes: Annotated[
        list[str] | None,
        typer.Option(
            "--class", help="Drop a class without its samples; may be repeated. Their trace in the other scores stays."
        ),
    ] = None,
    label: _Label = None,
    text: TextColumn = None,
    allow_duplicates: Annotated[
        bool, typer.Option("--allow-duplicates", help="Forget samples again if they were learned more than once.")
    ] = False,
    wait: Wait = True,
) -> None:
    """Remove samples from a model, as if it had never seen them. A class without samples left is forgotten."""
    if (source is None) == (not classes):
        raise ValueError(
            "Give the samples to forget, as a folder or a table, or --class LABEL for a class without its samples."
        )
    data = None if source is None else _training(source, label, text)
    with changing(model, wait):
        clf = loaded(model)
        if data is None:
            gone = [label_of(clf, each) for each in dict.fromkeys(classes or ())]
            for each in gone:
                clf.forget_class(each)
            said = f"{counted(len(gone), 'class', 'classes')}: {', '.join(map(shown, gone))}"
        else:
            said = _count(_forget(clf, data, allow_duplicates), data.noun)
        save_solved(clf, model)
    say(f"forgot  {said}\n model  {shown(model)}: {describe_size(clf)}")


def eval_command(
    model: _Model,
    source: _Source,
    label: _Label = None,
    text: TextColumn = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Folder for page and JSON; by default one beside the model, with its name."),
    ] = None,
    thumbnails: Annotated[
        bool,
        typer.Option(
            "--thumbnails/--no-thumbnails",
            help="Whether the page has the worst mistakes themselves: small copies of photos, or sentences.",
        ),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures and predictions as JSON.")] = False,
) -> None:
    """Measure how many samples a model gets right and which classes it confuses; writes a page and JSON.

    Only the test part is used, if there is one. Files that cannot be read are named and skipped. Samples of classes that the
    model does not know are counted separately.
    """
    from cldnet.bench.report.model_pages import check_output, evaluation_json, output_folder, write_evaluation

    clf, place = loaded(model), out or model.with_name(f"{model.stem}-eval")
    data = _tested(source, label, text)
    _fit_to(clf, data)
    _check_known_classes(clf, data)
    check_output(place)
    with output_folder(place):
        found, mistakes = _evaluation(clf, model, data, thumbnails)
        page, figures = write_evaluation(found, place, mistakes)
    if as_json:
        typer.echo(evaluation_json(found), nl=False)
        return
    say(str(found))
    if thumbnails and mistakes and data.noun != "row":
        what = "small copies of " if data.noun == "photo" else ""
        say(f"  copies  the page holds {what}{_count(len(mistakes), data.noun)}; --no-thumbnails leaves them out")
    say(f"    page  {page}\n figures  {figures}")


def _training(source: Path, label: str | None, text: str | None) -> LabelledData:
    """Open the training part of labelled data, and say what is left out."""
    data = _opened(source, label, text)
    if data.test is not None:
        say(f"The {len(data.test):,} {data.noun}s of the test part are left out.", error=True)
    return data


def _tested(source: Path, label: str | None, text: str | None) -> LabelledData:
    """Open the test part of labelled data, or all if there is none."""
    data = _opened(source, label, text)
    if data.test is not None:
        say(f"The {len(data):,} {data.noun}s of the training part are left out.", error=True)
    return data if data.test is None else data.test


def _opened(source: Path, label: str | None, text: str | None) -> LabelledData:
    with importing():
        from cldnet import datasets

    return datasets.load(source, label=label, text=text)


def _fit_to(clf: CLDNetClassifier, data: LabelledData) -> None:
    """Have photos cut to the size that a model takes; refuse data of another kind than the model's."""
    fitted = getattr(clf, "model_", None)
    shape: tuple[int, ...] = getattr(clf.backbone, "input_shape", ()) if fitted is None else fitted.inputs.shape
    if fitted is not None and (noun := fitted.inputs.noun) != data.noun:
        raise ValueError(
            f"{str(data.path)!r} has {data.noun}s, and the model has learned {noun}s, not {data.noun}s. Give {noun}s, or "
            "name a new model."
        )
    if hasattr(data, "size"):
        data.size = shape[1]


def _batches(data: LabelledData, doing: str, size: int | None = BATCH) -> Iterator[Batch]:
    """Read data batch by batch, with progress; then report what was skipped."""
    with counting(doing, f"{data.noun}s") as tell:
        yield from data.batches(on_progress=tell) if data.noun == "row" else data.batches(size or BATCH, tell)
    if data.skipped:
        number = f"{len(data.skipped):,} of {len(data):,} {data.noun}s cannot be read and were left out"
        say(f"{number}: {data.describe_skipped()}.", error=True)
    for note in data.notes:
        say(note, error=True)


def _check_engine_options(engine: EngineName | None, given: set[str]) -> None:
    """Refuse options of an engine without one."""
    for name in sorted(given & {"workers", "address", "sums", "feature_map", "sample"} if engine is None else ()):
        option = "--map" if name == "feature_map" else f"--{name}"
        raise ValueError(f"{option} belongs to --engine: add --engine local, dask or ray, or leave {option} out.")


def _check_options(noun: str, asked: set[str]) -> None:
    """Refuse options that a new model of that kind of data does not take."""
    for name in sorted(asked - _NEW[noun]):
        raise ValueError(f"--{name.replace('_', '-')} has no meaning for a model of {noun}s: leave it out.")


def _say_size(clf: CLDNetClassifier, exists: bool, data: LabelledData) -> None:
    """Say how large a new model will be, if that follows from its options."""
    if exists or data.noun == "row":
        return
    known = len({*data.labels})
    expected = human_bytes(_expected_size(clf, known))
    say(f"   size  the model of {counted(known, 'class', 'classes')} will take up to {expected} in memory", error=True)


def _expected_size(clf: CLDNetClassifier, classes: int) -> int:
    """Bytes of a new model when it has learned some classes, with its file's solution and all lessons that it may keep."""
    from cldnet.estimator.history import HISTORY_BYTES
    from cldnet.estimator.model import ModelParameters
    from cldnet.storage.validation import empty_learner

    parameters = ModelParameters(**{field.name: getattr(clf, field.name) for field in fields(ModelParameters)})
    made: Any = clf.backbone
    setting = parameters.setting(made.input_shape, 0, classes)
    learner = empty_learner(clf.solver, parameters.backbone, setting, {})
    solution = classes * (learner.class_width + classes) * setting.dtype.itemsize
    kinds = learner.bytes_by_kind()
    return sum(kinds.values()) + solution + clf.keep_lessons * kinds["sums"] + HISTORY_BYTES


def _check_settings(path: Path, clf: CLDNetClassifier, noun: str, options: dict[str, Any], given: set[str]) -> None:
    """Refuse options for a new model that differ from those of the one that exists."""

    def settings(clf: CLDNetClassifier, made: Any) -> dict[str, Any]:
        nets = [{**net, "size": None} for net in made.body.described()] if hasattr(made, "body") else made
        nets = (nets, made.body.digest) if noun == "text" and "backbone" in given else nets
        shape = getattr(made, "input_shape", (0,))
        room = {"capacity": clf.capacity, "receipts": clf.receipts, "keep_lessons": clf.keep_lessons}
        return {**room, "memory": getattr(made, "out_features", None), "size": shape[-1], "backbone": nets}

    _check_options(noun, given)
    new: Any = new_classifier(noun, **options)
    if noun == "text" and "backbone" in given:
        new.backbone.load_published()  # encoders of one architecture differ by their weights
    now, asked = settings(clf, clf.model_.learner.backbone), settings(new, new.backbone)
    for name in sorted(given):
        if now[name] != asked[name]:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(
                f"{str(path)!r} exists and was made with another {option}, which cannot change: leave {option} out, or name "
                "a new file."
            )


def _lesson_name(path: Path) -> str | None:
    """The name of a lesson if none is given: that of its folder, or of its table without the ending."""
    from cldnet.data.files import TABLE_ENDS
    from cldnet.estimator.history import MOST_NAME

    if any(letter in path.name for letter in "*?["):  # a pattern has the name of its folder
        path = path.parent
    place = path.expanduser().resolve()
    ends = () if place.is_dir() else TABLE_ENDS
    cut = next((len(end) for end in ends if place.name.lower().endswith(end)), 0)
    return place.name[: len(place.name) - cut][:MOST_NAME] or None


def _own_labels(clf: CLDNetClassifier, data: LabelledData) -> dict[Any, Any]:
    """The labels of data in the type of the model's labels: a folder's name is text, and in a table 1 is a number."""
    known = getattr(clf, "model_", None) is not None
    return {label: label_of(clf, str(label)) if known else label for label in {*data.labels}}


def _teach(clf: CLDNetClassifier, data: LabelledData, name: str | None) -> Counter[Any]:
    """Teach a model some data as one lesson, and return the number of samples by label."""
    from cldnet.estimator.classifier import note_date

    samples, own = Counter[Any](), _own_labels(clf, data)
    # The exact solver need not hold all batches until the end, as a session does.
    with clf.lesson(name), clf.session(stream=clf.solver == "exact"):
        for batch in _batches(data, "learning"):
            y = [own[label] for label in batch.y]
            clf.partial_fit(batch.X, y)
            samples.update(y)
    note_date(clf, [*samples], date.today().isoformat())
    return samples


def _ask_about_duplicates(clf: CLDNetClassifier, data: LabelledData) -> None:
    """If the model has learned the same samples before, ask whether they should count twice, or refuse them."""
    last = clf.lessons_[-1]
    if not last.repeated:
        return
    earlier = [each for each in clf.lessons_[:-1] if each.has(last.digest)]
    before = earlier[-1] if earlier else None
    when = "" if before is None else f", in lesson {before.number} ({shown(before.name)}, {before.date})"
    said = f"The model has learned the {data.noun}s of {shown(data.path)} before{when}."
    if not _asks():
        raise ValueError(
            f"{said} The model is as it was. Pass --allow-duplicates if every {data.noun} should count twice."
        )
    if not typer.confirm(f"{said} Learn them again, so that each counts twice?", err=True):
        say("Nothing was learned.", error=True)
        raise typer.Exit(1)


def _asks() -> bool:
    """Whether there is somebody to ask."""
    return sys.stdin.isatty()


def _gate(clf: CLDNetClassifier, model: Path, exists: bool, held_out: LabelledData | None) -> Gate | None:
    """Measure a model on held-out data before a lesson."""
    from cldnet.estimator.gate import Gate

    if held_out is None:
        return None
    if not exists:
        raise ValueError(f"There is no model {str(model)!r} yet that a lesson could harm: leave --check out.")
    _fit_to(clf, held_out)
    return Gate.of(clf, ((batch.X, batch.y) for batch in _batches(held_out, "checking")))


def _check_gate(clf: CLDNetClassifier, gate: Gate | None, held_out: LabelledData | None, max_drop: float) -> None:
    """Measure it again after the lesson, and exit with 1 if it lost too much; its file is not written yet."""
    if gate is None or held_out is None:
        return
    found = gate.compare(clf, ((batch.X, batch.y) for batch in _batches(held_out, "checking again")))
    before, after = found.accuracies
    held = _count(sum(found.samples.values()), held_out.noun)
    held = f"{held} of {counted(len(found.samples), 'class', 'classes')}"
    said = f"{before:.1%} before the lesson, {after:.1%} after it, on {held}"
    lost = "; ".join(
        f"{shown(each.label)} {each.before} of {each.samples} right before, {each.after} after"
        for each in found.harmed[:_NAMED]
    )
    lost += f"; and {len(found.harmed) - _NAMED} more" if len(found.harmed) > _NAMED else ""
    if found.drop <= max_drop + 1e-9:
        say(f"  check  {said}" + (f"\n   lost  {lost}" if lost else ""))
        return
    say(f"Refused: accuracy fell by {found.drop:.1f} points, more than {max_drop:g}: {said}.", error=True)
    say(f"Classes that lost: {lost}. The model's file is as it was.", error=True)
    raise typer.Exit(1)


def _forget(clf: CLDNetClassifier, data: LabelledData, allow_duplicates: bool) -> int:
    """Forget the samples of some data, and return their number."""
    forgotten, own = 0, _own_labels(clf, data)
    _fit_to(clf, data)
    with warnings.catch_warnings(record=True) as caught, clf.lesson(_lesson_name(data.path)):
        warnings.simplefilter("always")
        for batch in _batches(data, "forgetting"):
            clf.forget(batch.X, [own[label] for label in batch.y], allow_duplicates=allow_duplicates)
            forgotten += len(batch.y)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        say(message, error=True)
    return forgotten


@dataclass(frozen=True)
class _Asked:
    """Samples to predict: what one is called, their names, and why some cannot be read, by their place, if that is known."""

    noun: str
    predictor: Predictor
    names: Sequence[Any]
    rows: Any = None
    faults: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    def read(self, first: int) -> tuple[Any, dict[int, str]]:
        """Inputs of a batch, and why some of its samples cannot be read, by their place in it."""
        part = self.names[first : first + BATCH]
        if self.noun == "text":
            faults = {place: self.faults[first + place] for place in range(len(part)) if first + place in self.faults}
            return [each for place, each in enumerate(part) if place not in faults], faults
        if self.noun == "row":
            return self.rows[first : first + BATCH], {}
        from cldnet.data.images.decode import cut_from, read_photos

        side = self.predictor.model.inputs.shape[1]
        read, unread = read_photos(part, side, cut_from(side)), {}
        missing = sorted({*range(len(part))} - {*read.places.tolist()})
        for place, bad in zip(missing, read.bad, strict=True):
            unread[place] = bad.reason
        return read.x, unread


def _asked(model: Path, predictor: Predictor, noun: str, inputs: Sequence[str], text: str | None) -> _Asked:
    """What a user asks a model about, from the command line's arguments."""
    if noun == "photo":
        from cldnet.data.images.folders import find_photos

        return _Asked(noun, predictor, [str(path) for path in find_photos([Path(each) for each in inputs])])
    if noun == "text":
        found = [sentence for each in inputs for sentence in _sentences(each, text)]
        faults = {place: reason for place, (_, reason) in enumerate(found) if reason is not None}
        return _Asked(noun, predictor, [sentence for sentence, _ in found], faults=faults)
    import torch

    from cldnet.data.files import is_table, read_features

    known = predictor.model.inputs
    for each in inputs:
        if not is_table(each):
            raise ValueError(f"{str(model)!r} has learned rows, not photos or texts: give tables, and not {each!r}.")
    tables = [read_features(Path(each).expanduser(), known.names)[0] for each in inputs]
    wide = next((each for each in tables if each.shape[1] != known.count), None)
    if wide is not None:
        raise ValueError(f"A table has {wide.shape[1]} columns of features, and the model takes {known.count}.")
    rows = torch.cat([each.double() for each in tables])
    return _Asked(noun, predictor, [f"row {number:,}" for number in range(1, len(rows) + 1)], rows.numpy())


def _sentences(given: str, text: str | None) -> list[tuple[str, str | None]]:
    """The sentences that an argument means: those of a folder, a file or the standard input, or itself.

    With each is None, or for a file that cannot be read, which then has its name here, the reason.
    """
    from cldnet.data.files import is_table, read_sentences
    from cldnet.data.images.folders import TEXT_SUFFIXES, find_texts

    if given == "-":
        return [(line.strip(), None) for line in sys.stdin if line.strip()]
    place = os.path.expanduser(given)  # unlike pathlib, these take any sentence, if it begins with ~ or is too long
    if os.path.isdir(place):
        return [_text_of(path) for path in find_texts(Path(place))]
    # "please open report.csv" is a sentence, unless there is such a file; "report.csv" is a file, even if there is none.
    if os.path.exists(place) or not re.search(r"\s", given):
        if is_table(given):
            return [(each, None) for each in read_sentences(Path(place), text=text, labelled=False).texts]
        if Path(place).suffix.lower() in TEXT_SUFFIXES:
            return [_text_of(Path(place))]
    return [(given, None)]


def _text_of(path: Path) -> tuple[str, str | None]:
    """A text file's sentence, or its name and why it cannot be read; a file that is not there is an error."""
    from cldnet.datasets import read_text

    try:
        return read_text(path), None
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        return str(path), getattr(error, "strerror", None) or str(error)


def _predictions(asked: _Asked, first: int, top: int, share: float | None) -> list[dict[str, Any]]:
    """One entry per sample of a batch: its label and probabilities, or why it cannot be read."""
    x, unread = asked.read(first)
    predictor, count = asked.predictor, min(BATCH, len(asked) - first)
    answers: dict[int, dict[str, Any]] = {place: {"error": reason} for place, reason in unread.items()}
    known: NDArray[Any] | None = None
    if len(answers) < count:
        shares = predictor.predict_proba(x) if share is None else None
        if share is not None:
            shares, known = predictor.predict_known(x)
        assert shares is not None
        labels = predictor.classes.tolist()
        for row, place in enumerate(place for place in range(count) if place not in unread):
            best = shares[row].argsort()[::-1][:top]
            likely = [{"label": labels[c], "probability": float(shares[row][c])} for c in best]
            said: dict[str, Any] = {"label": likely[0]["label"], "top": likely}
            if known is not None and share is not None:
                said |= {"known": float(known[row])} | ({"label": None} if known[row] < share else {})
            answers[place] = said
    return [{asked.noun: asked.names[first + place], **answers[place]} for place in range(count)]


def _in_words(answer: dict[str, Any]) -> str:
    likely = ", ".join(f"{shown(each['label'])} {each['probability']:.1%}" for each in answer["top"])
    return f"unknown (nearest: {likely})" if answer["label"] is None else likely


def _short(text: str) -> str:
    """A sentence in one line, cut if it is long."""
    line = shown(text)
    return line if len(line) <= _LETTERS else f"{line[: _LETTERS - 1]}…"


def _count(number: int, noun: str) -> str:
    return counted(number, noun, f"{noun}s")


def _check_known_classes(clf: CLDNetClassifier, data: LabelledData) -> None:
    """Refuse data of which the model knows no class: they are most likely the wrong ones."""
    known, found = sorted(map(str, clf.classes_)), sorted({*map(str, data.labels)})
    if not set(known) & set(found):
        raise ValueError(
            f"The model knows none of the classes under {str(data.path)!r}: they are {_some(found)}, and it knows "
            f"{_some(known)}. Give the folder that contains the class folders, named as the model knows them."
        )


def _some(labels: list[str]) -> str:
    named = ", ".join(map(repr, labels[:5]))
    return named + (f" and {len(labels) - 5:,} more" if len(labels) > 5 else "")


def _evaluation(
    clf: CLDNetClassifier, model: Path, data: LabelledData, copies: bool
) -> tuple[Evaluation, list[tuple[Prediction, Any]]]:
    """Predict all samples, and collect the worst mistakes. Labels are compared as text, as names of folders are text."""
    from cldnet.bench.machine import versions
    from cldnet.bench.report.model_pages import Evaluation, Prediction
    from cldnet.data.download import file_checksum
    from cldnet.math.metrics import ranks_of

    names = [str(label) for label in clf.classes_]
    columns = {name: column for column, name in enumerate(names)}
    answers: list[Prediction] = []
    mistakes: list[tuple[Prediction, Any]] = []
    for batch in _batches(data, "evaluating"):
        probabilities = clf.predict_proba(batch.X)
        own = [columns.get(str(label)) for label in batch.y]
        ranks = ranks_of(probabilities, [column or 0 for column in own])
        for at, (row, column, rank) in enumerate(zip(probabilities, own, ranks, strict=True)):
            best, true_rank = int(row.argmax()), None if column is None else int(rank)
            answers.append(Prediction(batch.names[at], str(batch.y[at]), names[best], float(row[best]), true_rank))
            if answers[-1].wrong:
                # Of an array a view would keep the whole batch in memory.
                copy = None if not copies or data.noun == "row" else batch.X[at]
                mistakes.append((answers[-1], copy.copy() if data.noun == "photo" and copy is not None else copy))
        mistakes = heapq.nlargest(_MISTAKES, mistakes, key=lambda mistake: mistake[0].probability)
    found = Evaluation(
        model.name,
        file_checksum(model, "sha256"),
        data.path.expanduser().resolve().name,
        len(clf.classes_),
        tuple(answers),
        {Path(bad.name).relative_to(data.path.expanduser()).as_posix(): bad.reason for bad in data.skipped},
        date.today().isoformat(),
        versions(),
        data.noun,
    )
    return found, mistakes
