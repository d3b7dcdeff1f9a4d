"""Commands that look at a model in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cldnet.cli.show import counting, say

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["audit_command"]


def audit_command(
    model: Annotated[Path, typer.Argument(help="The file of a model, as clf.save wrote it.")],
    data: Annotated[
        str | None,
        typer.Option(
            help="Training data to compare with: a folder of photos, one folder a class; an .npz file; a CSV or Parquet table "
            "(table:PATH,label=NAME); or a stream, as split-mnist."
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
    from cldnet.classifier import CLDNetClassifier

    clf = CLDNetClassifier.load(model)
    x = None if data is None else _training_rows(data, where)
    with counting("comparing", "rows") as tell:
        audit = clf.audit(x, rows=rows or None, on_progress=tell)
    page, figures = write_audit(audit, out or model.with_name(f"{model.stem}-audit"), model.name)
    say(str(audit))
    say(f"page     {page}\nfigures  {figures}")
    if not audit.holds:
        raise typer.Exit(1)


def _training_rows(data: str, where: Path | None) -> Tensor:
    """Read the training inputs of a stream, a folder, or a file."""
    import torch

    from cldnet.data.streams import STREAMS, stream_by_name

    name = data
    if data.split(",")[0] not in STREAMS and ":" not in data.split(",")[0]:
        path = Path(data)
        if not path.exists():
            raise ValueError(
                f"There is no folder or file {data!r}. Give training data by their path, or the name of a stream."
            )
        name = f"{'folder' if path.is_dir() and not any(path.glob('*.npy')) else 'arrays'}:{data}"
    with counting("reading photos", "files") as tell:
        stream: Any = stream_by_name(name, None, data=where, on_progress=tell)
    return torch.cat([task.train.x for task in stream])
