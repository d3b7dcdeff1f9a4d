"""Commands that look at models in files, and join them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cldnet.cli.show import counted, counting, say, shown

if TYPE_CHECKING:
    from rich.table import Table
    from torch import Tensor

    from cldnet.classifier import CLDNetClassifier
    from cldnet.data.dataset import Dataset
    from cldnet.data.spec import StreamSpec
    from cldnet.labels import LabelTable

__all__ = ["Wait", "audit_command", "changing", "describe_size", "inspect_command", "loaded", "merge_command"]

#: Option of the commands that change a model's file.
Wait = Annotated[
    bool,
    typer.Option("--wait/--no-wait", help="Whether to wait while another process changes the model's file."),
]

_TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")
#: What the reader of each source can be told.
_READING = {"folder": ("size", "resize"), "arrays": (), "table": ("label",)}


def audit_command(
    model: Annotated[Path, typer.Argument(help="The file of a model, as clf.save wrote it.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Training data to compare with, all rows of them: a folder of photos, one folder a class; an .npz file; a CSV "
            "or Parquet table (PATH,label=NAME). Or a stream, as split-mnist: the rows that it teaches."
        ),
    ] = None,
    where: Annotated[Path | None, typer.Option(help="Folder in which a stream's data set is looked for first.")] = None,
    rows: Annotated[int, typer.Option(min=0, help="Training rows to compare with, drawn at random; 0 for all.")] = 2000,
    out: Annotated[
        Path | None, typer.Option(help="Folder for page and JSON; by default one beside the model, with its name.")
    ] = None,
) -> None:
    """Check what a model promises: constant size, nothing kept that is like a training row. Exits with 1 if that is broken."""
    from cldnet.bench.report import write_audit
    from cldnet.bench.report.plain import folder_for

    clf, folder = loaded(model), out or model.with_name(f"{model.stem}-audit")
    x = None if data is None else _training_rows(data, where)
    with folder_for(folder, "an audit"), counting("comparing", "rows") as tell:
        audit = clf.audit(x, rows=rows or None, on_progress=tell)
    page, figures = write_audit(audit, folder, model.name)
    say(str(audit))
    say(f"page     {page}\nfigures  {figures}")
    if not audit.holds:
        raise typer.Exit(1)


def inspect_command(
    model: Annotated[Path, typer.Argument(help="The file of a model, as clf.save or `cldnet learn` wrote it.")],
) -> None:
    """Show what a model knows and how large it is: classes with their counts and days, backbone, bytes, room left."""
    from rich.console import Console

    from cldnet.bench.wording import human_bytes

    clf = loaded(model)
    held, footprint = clf._fitted(), clf.footprint()
    shape = " × ".join(map(str, held.inputs.shape))
    say(f"   model  {shown(model)}: {describe_size(clf)}")
    say(
        f"  solver  {clf.solver}\nbackbone  {_backbone(clf)}\n  inputs  {shape}{' bytes' if held.inputs.pixels else ''}"
    )
    say(f"  taught  {counted(held.learner.tasks, 'time', 'times')} (cldnet learn takes a folder 256 photos at a time)")
    kinds = ", ".join(
        f"{kind} {human_bytes(size)}" for kind, size in sorted(footprint.bytes.items(), key=lambda one: -one[1])
    )
    say(f"   bytes  {human_bytes(footprint.total)}: {kinds}")
    Console().print(_classes_table(held.labels))


def _classes_table(labels: LabelTable) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.markup import escape
    from rich.table import Table

    table, days = Table(box=SIMPLE_HEAD, pad_edge=False), labels.days
    for heading in ("class", "examples", "first learned", "last learned"):
        table.add_column(heading, justify="right" if heading == "examples" else "left")
    for label, count in labels.counts.items():
        first, last = days.get(label, ("–", "–"))
        table.add_row(escape(shown(label)), "not known" if count is None else f"{count:,}", first, last)
    return table


def merge_command(
    models: Annotated[
        list[Path], typer.Argument(help="Files of models that were taught apart over the same features.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the model of all their data goes.")],
    allow_duplicates: Annotated[
        bool, typer.Option("--allow-duplicates", help="Merge models that share lessons: their photos count twice then.")
    ] = False,
    wait: Wait = True,
) -> None:
    """Make the model of all data that several models have learned apart, exactly. They stay as they are."""
    from cldnet.classifier import merge
    from cldnet.store.disk import check_new

    if len(models) < 2:
        raise ValueError("Give two models or more: one alone is what it is.")
    check_new(out)
    with changing(out, wait):
        check_new(out)  # it may have been written while we waited
        clf = merge([loaded(path) for path in models], allow_duplicates=allow_duplicates)
        clf.save(out)
    say(f"merged  {len(models)} models\n model  {shown(out)}: {describe_size(clf)}")


def describe_size(clf: CLDNetClassifier) -> str:
    """How many classes a model knows, how many more it has room for, and how large it is."""
    from cldnet.bench.wording import human_bytes

    labels = clf._fitted().labels
    known, left = len(clf.classes_), labels.capacity - len(labels)
    return f"{counted(known, 'class', 'classes')}, room for {left:,} more, {human_bytes(clf.footprint().total)}"


def _backbone(clf: CLDNetClassifier) -> str:
    """A backbone's name, or what it was made with."""
    from cldnet.nets import Described, is_described

    if isinstance(clf.backbone, Described) and is_described(clf.backbone):
        said = clf.backbone.describe()
        options = dict(said["options"])
        if "bodies" in options:
            options["bodies"] = " + ".join(map(_net, options["bodies"]))
        return f"{said['kind']} ({', '.join(f'{name}={value}' for name, value in options.items())})"
    return clf.backbone if isinstance(clf.backbone, str) else type(clf.backbone).__name__


def _net(body: Mapping[str, Any]) -> str:
    """A pretrained net in a few words: the configuration of some of them has a hundred lines."""
    if "config" not in body:
        return f"{body['net']} at {body['size']} px"
    return f"{body['config'].get('model_type')} at {body['preprocessing']['size']} px"


@contextmanager
def changing(model: Path, wait: bool) -> Iterator[None]:
    """Hold the lock of a model's file, and say for whom the command waits."""
    from cldnet.store import locked

    with locked(model, wait=wait, tell=lambda text: say(text, error=True)):
        yield


def loaded(model: Path) -> CLDNetClassifier:
    """Read a model, or say why a command cannot."""
    from cldnet.classifier import CLDNetClassifier
    from cldnet.nets.fingerprint import WrongModule

    try:
        return CLDNetClassifier.load(model)
    except WrongModule as error:
        raise ValueError(
            f"{model} was made over a module of your own, which a command does not have. In Python, load it with "
            "clf = CLDNetClassifier.load(path, backbone=module), and call its methods: clf.audit(X), clf.predict(X), … "
            "(cldnet.bench.report.write_audit makes the page of an audit)."
        ) from error


def _training_rows(data: str, where: Path | None) -> Tensor:
    """Read all training inputs of a folder or a file; of a stream, those that it teaches. What is left out is said."""
    from cldnet.data.spec import StreamSpec
    from cldnet.data.streams import SOURCES

    spec = StreamSpec.parse(_with_kind(data), SOURCES)
    with counting("reading photos", "files") as tell:
        if spec.path is None or spec.split or spec.variants:  # who says how data are split means what a run was taught
            x, tested = _taught_rows(_with_kind(data), where, tell)
        else:
            found = _read(spec, tell)
            x, tested = found.train.x, 0 if found.test is None else len(found.test)
    left_out = f"; the {tested:,} rows of its test part are left out" if tested else ""
    say(f"   rows  {len(x):,} to learn from in {spec.shown}{left_out}")
    return x


def _with_kind(data: str) -> str:
    """Put the kind of source in front of a plain path."""
    from cldnet.data.spec import StreamSpec
    from cldnet.data.streams import SOURCES, STREAMS

    name = StreamSpec.parse(data, SOURCES).name
    if name in STREAMS or ":" in data.split(",")[0]:
        return data
    path = Path(name).expanduser()
    if not path.exists():
        raise ValueError(
            f"There is no folder or file {name!r}. Give training data by their path, or the name of a stream."
        )
    if path.is_dir():
        return f"{'arrays' if any(path.glob('*.npy')) else 'folder'}:{data}"
    return f"{'table' if name.lower().endswith(_TABLES) else 'arrays'}:{data}"


def _taught_rows(text: str, where: Path | None, tell: Any) -> tuple[Tensor, int]:
    """Inputs that a stream teaches, task by task, and how many it sets aside to test on."""
    import torch

    from cldnet.data.streams import stream_by_name

    stream = stream_by_name(text, None, data=where, on_progress=tell)
    return torch.cat([task.train.x for task in stream]), len(stream.test)


def _read(spec: StreamSpec, tell: Any) -> Dataset:
    """Read a folder or a file as it is: a stream would set a part of it aside, and refuse a single row."""
    useless = set(spec.reading) - set(_READING[spec.name])
    if useless:
        raise ValueError(f"{spec.name} has no use for the option {min(useless)!r}: leave it out.")
    path = Path(spec.path or "").expanduser()
    if spec.name == "folder":
        from cldnet.data.images.reader import read_images

        return read_images(path, **spec.reading, on_progress=tell)
    if spec.name == "arrays":
        from cldnet.data.files.arrayfiles import read_arrays

        return read_arrays(path)
    from cldnet.data.files.tables import read_table

    return read_table(path, **spec.reading)
