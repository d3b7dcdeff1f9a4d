"""The command that makes a file of a model which needs none of this library."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cldnet.cli.models import loaded
from cldnet.cli.show import counted, counting, say

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cldnet.classifier import CLDNetClassifier

__all__ = ["export_command"]

#: Real photos that a file is held against, at most.
_MOST_CHECKED = 1000


class Format(Enum):
    """What a model can be exported to."""

    onnx = "onnx"
    torch = "torch"


_SUFFIXES = {Format.onnx: ".onnx", Format.torch: ".pt2"}


def export_command(
    model: Annotated[Path, typer.Argument(help="The model's file.")],
    to: Annotated[
        Format, typer.Option(help="onnx: for onnxruntime and others, without PyTorch. torch: for torch.export.load.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where it goes. Without it: the model's name with .onnx or .pt2.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(
            help=f"Folder of photos to compare it with the model on, {_MOST_CHECKED:,} at most. Without it: on drawn inputs."
        ),
    ] = None,
) -> None:
    """Write a model to a file that runs without this library: preprocessing, net, solution and labels are all in it.

    The file is held against the model first: exits with 1, and writes nothing, if one label is another or a probability differs
    by more than 0.0001.
    """
    from cldnet.bench.wording import human_bytes
    from cldnet.export import Disagreement, to_onnx, to_torch
    from cldnet.store.disk import check_new

    target = out or model.with_name(model.name.removesuffix(".cldnet") + _SUFFIXES[to])
    check_new(target)
    clf = loaded(model)
    x = None if check is None else _photos(clf, check)
    say(f"translating {model}, which takes some seconds", error=True)
    try:
        with counting("comparing", "inputs") as tell:
            agreement = (to_onnx if to is Format.onnx else to_torch)(clf, target, x, on_progress=tell)
    except Disagreement as error:
        say(f"Error: {error}", error=True)
        raise typer.Exit(1) from error
    known = counted(len(clf.classes_), "class", "classes")
    say(f"exported  {target}: {known}, {human_bytes(target.stat().st_size)}")
    on = "drawn inputs" if check is None else f"photos of {check}"
    say(f" checked  on {agreement.rows:,} {on}: {agreement}")


def _photos(clf: CLDNetClassifier, folder: Path) -> NDArray[np.uint8]:
    """Photos of a folder as the model takes them, from all over it if there are very many."""
    from cldnet.data.images.photos import find_photos, read_photos
    from cldnet.export.about import about

    told = about(clf._fitted())
    if "side" not in told:
        raise ValueError(f"This model takes inputs of shape {told['input_shape']}, not photos: leave --check out.")
    found = find_photos([folder])
    paths = found[:: -(-len(found) // _MOST_CHECKED)]
    read = read_photos(paths, int(told["side"]), int(told["resize"]))
    if not len(read.places):
        raise ValueError(f"None of the {len(paths):,} photos under {str(folder)!r} can be read: {read.bad[0].reason}.")
    if read.bad:
        say(f"{len(read.bad):,} of {len(paths):,} photos cannot be read and were left out.", error=True)
    return read.x
