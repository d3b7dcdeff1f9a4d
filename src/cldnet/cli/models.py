"""Commands on model files: inspect, merge, export and audit; and how commands load and lock a model."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape

from cldnet import without_collecting
from cldnet.bench.formatting import counted, human_bytes
from cldnet.cli.show import counting, new_table, say, shown
from cldnet.estimator.teaching import save_solved

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

    from cldnet.estimator.classifier import CLDNetClassifier
    from cldnet.estimator.predictor import Predictor
    from cldnet.estimator.summary import ModelSummary

_Loaded = TypeVar("_Loaded")

#: Option of the commands that change a model's file.
Wait = Annotated[
    bool,
    typer.Option("--wait/--no-wait", help="Whether to wait while another process changes the model's file."),
]

#: Option of the commands that read tables of sentences.
TextColumn = Annotated[
    str | None,
    typer.Option(
        "--text",
        help="Of a table: the column of sentences. (default: the one named text, sentence, utterance, message or query)",
    ),
]

#: Most photos that an exported file is checked on.
_MAX_CHECKED = 1000
_SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}


class ExportFormat(StrEnum):
    """What a model can be exported to."""

    onnx = "onnx"
    torch = "torch"


def given_options(context: typer.Context) -> set[str]:
    """Names of the parameters that a user gave, as opposed to those that have their defaults."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def audit_command(
    model: Annotated[Path, typer.Argument(help="A model file, as written by clf.save or `cldnet learn`.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Training data to compare with: a folder of photos or .txt files, one folder per class; an .npz file; a CSV "
            "or Parquet table (PATH,label=NAME); or a stream such as split-mnist, of which the training samples are used."
        ),
    ] = None,
    text: TextColumn = None,
    where: Annotated[Path | None, typer.Option(help="Folder to look for a stream's data set in before others.")] = None,
    rows: Annotated[int, typer.Option(min=0, help="Training samples to compare with, drawn at random; 0: all.")] = 2000,
    out: Annotated[
        Path | None, typer.Option(help="Folder for page and JSON; by default one beside the model, with its name.")
    ] = None,
) -> None:
    """Check a model's promises: constant size, nothing stored that is similar to a training sample.

    Exits with 1 if a promise is broken.
    """
    from cldnet.bench.report import write_audit
    from cldnet.bench.report.model_pages import output_folder

    clf, folder = loaded(model), out or model.with_name(f"{model.stem}-audit")
    x = None if data is None else _training_samples(clf, data, text, where)
    with output_folder(folder), counting("comparing", "samples") as tell:
        audit = clf.audit(x, rows=rows or None, on_progress=tell)
    page, figures = write_audit(audit, folder, model.name)
    say(str(audit))
    say(f"page     {page}\nfigures  {figures}")
    if not audit.holds:
        raise typer.Exit(1)


def inspect_command(
    model: Annotated[Path, typer.Argument(help="A model file, as written by clf.save or `cldnet learn`.")],
) -> None:
    """Show a model's classes with counts and dates, its backbone, its size and the room left."""
    from cldnet.estimator.summary import read_summary
    from cldnet.storage.header import describe_content_error

    found = read_summary(model) or _summary(loaded(model))
    with describe_content_error(model, "model"):
        backbone = _backbone(found.backbone)
    by_size = sorted(found.bytes.items(), key=lambda kind: -kind[1])
    say(f"   model  {shown(model)}: {_size(len(found.classes), found.room, found.total)}")
    say(f"  solver  {found.solver}\nbackbone  {backbone}")
    numbers = f"{' × '.join(map(str, found.input_shape))}{' bytes' if found.pixels else ''}"
    say(f"  inputs  {f'sentences of up to {numbers}' if found.text else numbers}")
    photos = len(found.input_shape) == 3 and found.input_shape[0] == 3
    batches = (
        f" (cldnet learn takes 256 {'texts' if found.text else 'photos'} at a time)" if found.text or photos else ""
    )
    say(f"  taught  {counted(found.tasks, 'time', 'times')}{batches}")
    kinds = ", ".join(f"{kind} {human_bytes(size)}" for kind, size in by_size)
    say(f"   bytes  {human_bytes(found.total)}: {kinds}")
    table = new_table()
    for heading in ("class", "samples", "first learned", "last learned"):
        table.add_column(heading, justify="right" if heading == "samples" else "left")
    for each in found.classes:
        samples = "unknown" if each.samples is None else f"{each.samples:,}"
        table.add_row(escape(shown(each.label)), samples, *map(shown, each.dates or ("–", "–")))
    Console().print(table)


def merge_command(
    models: Annotated[
        list[Path], typer.Argument(help="Model files that were taught separately over the same features.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="File of the merged model.")],
    allow_duplicates: Annotated[
        bool, typer.Option("--allow-duplicates", help="Merge models that share lessons: their photos then count twice.")
    ] = False,
    wait: Wait = True,
) -> None:
    """Merge models into the exact model of all their data. The models stay as they are."""
    from cldnet.estimator.classifier import merge
    from cldnet.storage.disk import check_new

    if len(models) < 2:
        raise ValueError("Give two models or more to merge.")
    check_new(out)
    with changing(out, wait):
        check_new(out)  # it may have been written while we waited
        clf = merge([loaded(path) for path in models], allow_duplicates=allow_duplicates)
        save_solved(clf, out)
    say(f"merged  {len(models)} models\n model  {shown(out)}: {describe_size(clf)}")


def export_command(
    model: Annotated[Path, typer.Argument(help="The model's file.")],
    to: Annotated[
        ExportFormat,
        typer.Option(help="onnx: for onnxruntime and others, without PyTorch. torch: for torch.export.load."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="File to write; by default the model's name with .onnx or .pt2.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            help=f"Folder of photos to compare on, at most {_MAX_CHECKED:,}; by default random inputs are used."
        ),
    ] = None,
) -> None:
    """Write a model to a file that runs without this library: preprocessing, net, solution and labels are all in it.

    The exported model is compared with the original first. If a label differs, or a probability by more than 0.0001,
    nothing is written and the command exits with 1.
    """
    from cldnet.export import Disagreement, to_onnx, to_torch
    from cldnet.storage.disk import check_new

    target = out or model.with_name(model.name.removesuffix(".cldnet") + _SUFFIXES[to])
    check_new(target)
    clf = loaded(model)
    x = None if check is None else _photos(clf, check)
    say(f"exporting {model}, which takes a few seconds", error=True)
    try:
        with counting("comparing", "inputs") as tell:
            agreement = (to_onnx if to == "onnx" else to_torch)(clf, target, x, on_progress=tell)
    except Disagreement as error:
        say(f"Error: {error}", error=True)
        raise typer.Exit(1) from error
    known = counted(len(clf.classes_), "class", "classes")
    say(f"exported  {target}: {known}, {human_bytes(target.stat().st_size)}")
    on = "random inputs" if check is None else f"photos of {check}"
    say(f" checked  on {agreement.rows:,} {on}: {agreement}")


def _photos(clf: CLDNetClassifier, folder: Path) -> NDArray[np.uint8]:
    """Photos of a folder as the model takes them, evenly spread if there are very many."""
    from cldnet.data.images.decode import read_photos
    from cldnet.data.images.folders import find_photos
    from cldnet.export.write import metadata

    fields = metadata(clf.model_)
    if "side" not in fields:
        raise ValueError(f"This model takes inputs of shape {fields['input_shape']}, not photos. Leave --check out.")
    found = find_photos([folder])
    paths = found[:: -(-len(found) // _MAX_CHECKED)]
    read = read_photos(paths, int(fields["side"]), int(fields["resize"]))
    if not len(read.places):
        raise ValueError(f"None of the {len(paths):,} photos under {str(folder)!r} can be read: {read.bad[0].reason}.")
    if read.bad:
        say(f"{len(read.bad):,} of {len(paths):,} photos cannot be read and were left out.", error=True)
    return read.x


def describe_size(clf: CLDNetClassifier) -> str:
    """How many classes a model knows, how many more it has room for, and how large it is."""
    found = _summary(clf)
    return _size(len(found.classes), found.room, found.total)


def _size(known: int, room: int | None, total: int) -> str:
    left = "" if room is None else f"room for {room:,} more, "
    return f"{counted(known, 'class', 'classes')}, {left}{human_bytes(total)} in memory"


def _summary(clf: CLDNetClassifier) -> ModelSummary:
    """What the header of a model's file would say."""
    from cldnet.device import tensor_bytes
    from cldnet.estimator.summary import ClassSummary, ModelSummary
    from cldnet.nets import Described, is_described

    model, backbone = clf.model_, clf.backbone
    shown_as = backbone if isinstance(backbone, str) else None
    solution = model.exact.solution_state().values() if model.learner.keeps_sums else ()
    beside = {"solution": sum(map(tensor_bytes, solution))} if solution else {}
    labels = model.labels
    known = tuple(ClassSummary(label, count, labels.dates.get(label)) for label, count in labels.counts.items())
    room = None if labels.capacity is None else labels.capacity - len(labels)
    return ModelSummary(
        clf.solver,
        backbone.describe() if isinstance(backbone, Described) and is_described(backbone) else shown_as,
        model.inputs.shape,
        model.inputs.pixels,
        model.learner.tasks,
        room,
        known,
        clf.footprint().bytes | beside,
        model.inputs.text,
    )


def _backbone(described: Mapping[str, Any] | str | None) -> str:
    """A backbone's name, or its kind and options."""
    if not isinstance(described, Mapping):
        return described or "a module of your own"
    options = dict(described["options"])
    if "bodies" in options:
        options["bodies"] = " + ".join(map(_net, options["bodies"]))
    return f"{described['kind']} ({', '.join(f'{name}={value}' for name, value in options.items())})"


def _net(body: Mapping[str, Any]) -> str:
    """A pretrained net in a few words: the configuration of some has a hundred lines."""
    if "config" not in body:
        return f"{body['net']} at {body['size']} px"
    if body["net"] == "bert":
        made = body["config"]
        return f"bert of {made['num_hidden_layers']} layers of {made['hidden_size']}, {body['length']} tokens"
    return f"{body['config'].get('model_type')} at {body['preprocessing']['size']} px"


@contextmanager
def importing() -> Iterator[None]:
    """Import torch in a block; Python does not search its many objects for garbage, neither then nor later."""
    first = "torch" not in sys.modules
    with without_collecting():
        yield
        if first:
            gc.freeze()


def changing(model: Path, wait: bool) -> AbstractContextManager[None]:
    """Hold the lock of a model's file; if the command has to wait, say for whom."""
    from cldnet.storage import locked

    return locked(model, wait=wait, tell=lambda text: say(text, error=True))


def loaded(model: Path) -> CLDNetClassifier:
    """Load a model, or say why a command cannot."""
    with importing():
        from cldnet.estimator.classifier import CLDNetClassifier

    return _loaded(model, CLDNetClassifier.load)


def loaded_to_predict(model: Path) -> Predictor:
    """Load a model for predictions only, which takes a third of the time."""
    with importing():
        from cldnet.estimator.predictor import Predictor

    return _loaded(model, Predictor.load)


def _loaded(model: Path, load: Callable[[Path], _Loaded]) -> _Loaded:
    from cldnet.nets.fingerprint import WrongModule

    try:
        return load(model)
    except WrongModule as error:
        raise ValueError(
            f"{model} was made over a module of your own, which a command does not have. In Python, load it with "
            "clf = CLDNetClassifier.load(path, backbone=module), and call its methods: clf.audit(X), clf.predict(X), … "
            "(cldnet.bench.report.write_audit makes the page of an audit)."
        ) from error


def _training_samples(clf: CLDNetClassifier, data: str, column: str | None, where: Path | None) -> Tensor | list[str]:
    """Read all training samples of a folder or a file, or those that a stream teaches; say what is left out."""
    import torch

    from cldnet import datasets
    from cldnet.data.sentences import TEXT_BYTES, decode_sentences
    from cldnet.data.streams import SOURCES, StreamSpec, read_source, stream_by_name

    text = _with_kind(data)
    spec = StreamSpec.parse(text, SOURCES)
    of_sentences = clf.model_.inputs.text and spec.path is not None
    if column is not None and not of_sentences:
        raise ValueError("--text names a column of a table of sentences, for a model of sentences: leave it out.")
    x: Tensor | list[str]
    with counting("reading photos", "files") as tell:
        if of_sentences:
            sentences = datasets.load(spec.path or "", label=spec.reading.get("label"), text=column)
            x, tested = sentences.X, 0 if sentences.test is None else len(sentences.test)
        elif spec.path is None or spec.split or spec.variants:  # split options mean what a run was taught
            stream = stream_by_name(text, None, data=where, on_progress=tell)
            x, tested = torch.cat([task.train.x for task in stream]), len(stream.test)
        else:
            found = read_source(spec, on_progress=tell)  # a stream would set a part of it aside
            x, tested = found.train.x, 0 if found.test is None else len(found.test)
    if clf.model_.inputs.text and isinstance(x, torch.Tensor) and tuple(x.shape[1:]) == (TEXT_BYTES,):
        x = decode_sentences(x)
    left_out = f"; the {tested:,} samples of its test part are left out" if tested else ""
    say(f"   data  {len(x):,} training samples in {spec.shown}{left_out}")
    return x


def _with_kind(data: str) -> str:
    """Put the kind of source in front of a plain path."""
    from cldnet.data.files import is_table
    from cldnet.data.streams import SOURCES, STREAMS, StreamSpec

    name = StreamSpec.parse(data, SOURCES).name
    if name in STREAMS or ":" in data.split(",")[0]:
        return data
    path = Path(name).expanduser()
    if not path.exists():
        raise ValueError(f"There is no folder or file {name!r}. Give the path of training data, or a stream's name.")
    if path.is_dir():
        return f"{'arrays' if any(path.glob('*.npy')) else 'folder'}:{data}"
    return f"{'table' if is_table(name) else 'arrays'}:{data}"
