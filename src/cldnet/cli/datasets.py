"""The commands `cldnet data list` and `cldnet data get`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from cldnet.cli.show import counting, new_table, say

if TYPE_CHECKING:
    from cldnet.data.catalog import SetStatus

DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        exists=True,
        file_okay=False,
        help="Folder of data sets; else CLDNET_DATA, /usr/share/datasets and the cache folder are searched.",
    ),
]

app = typer.Typer(help="Find data sets, check them, and download them.", no_args_is_help=True)


@app.command("list")
def list_command(
    data: DataOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON, with counts per class.")] = False,
) -> None:
    """List the data sets that are known, where they are, whether they are whole, and their hashes."""
    from cldnet.data.catalog import KNOWN_SETS, SetStatus, examine, find_set, search_path

    found: list[SetStatus] = []
    with counting("reading data sets", "sets") as tell:
        for name, known in KNOWN_SETS.items():
            folder = find_set(name, data)
            found.append(SetStatus(name, None, "not found") if folder is None else examine(known, folder))
            tell(len(found), len(KNOWN_SETS))
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in found], indent=1, default=str))
        return
    table = new_table()
    for heading in ("data set", "state", "train + test", "classes", "hash"):
        table.add_column(heading, no_wrap=True)
    for one in found:
        state = one.state.partition(":")[0]
        style = {"whole": "green", "not found": "dim"}.get(state, "red")
        counts = [f"{one.train:,} + {one.test:,}", str(one.classes), one.digest or "when first read"]
        table.add_row(one.name, f"[{style}]{state}[/]", *(counts if one.train else []))
    Console().print(table)
    for one in found:
        if one.folder is not None:
            say(f"{one.name} in {one.folder}")
            say(f"  {_details(one)}")
    say(f"Looked in {', '.join(map(str, search_path(data)))}. `cldnet data get NAME` gets what is missing.")


@app.command("get")
def get_command(
    name: Annotated[str, typer.Argument(help="Name of a data set; see `cldnet data list`.")],
    data: Annotated[
        Path | None, typer.Option("--data", help="Folder to put it into; by default the cache folder.")
    ] = None,
) -> None:
    """Download a data set, resuming an earlier download, then verify and unpack it."""
    from cldnet.data.catalog import cache_folder, examine, find_in, find_set, known_set
    from cldnet.data.download import get_set

    known = known_set(name)
    here = find_set(name) if data is None else find_in(known, data)
    if here is not None and examine(known, here).state == "whole":
        say(f"{name} is already complete in {here}.")
        return
    dest = data or cache_folder()
    say(f"{known.title}, {known.home}. {known.terms}")
    try:
        with counting(f"getting {name}", "bytes") as tell:
            folder = get_set(name, dest, on_progress=tell)
    except KeyboardInterrupt:
        say("\nStopped. The part already downloaded is kept; run the same command to resume.", error=True)
        raise typer.Exit(130) from None
    say(f"{name} is whole in {folder}.")


def _details(one: SetStatus) -> str:
    """Details of a set: what is wrong, or the samples per class and the mean per channel."""
    if not one.train:
        return one.state
    a_class = " + ".join(_range(counts) for counts in zip(*one.per_class.values(), strict=True) if any(counts))
    means = ", channel means " + " ".join(f"{mean:.4f}" for mean in one.means) if one.means else ""
    damage = f"; {one.state}" if one.state.startswith("damaged") else ""
    return f"{a_class} per class{means}{damage}"


def _range(counts: tuple[int, ...]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"
