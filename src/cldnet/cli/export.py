"""`cldnet export`: write a model to a file that runs without this library."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cldnet.bench.formatting import counted, human_bytes
from cldnet.cli.models import loaded
from cldnet.cli.show import counting, say

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cldnet.estimator.classifier import CLDNetClassifier

#: Most photos that a file is checked on.
_MAX_CHECKED = 1000


class ExportFormat(StrEnum):
    """What a model can be exported to."""

    onnx = "onnx"
    torch = "torch"


_SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}


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
