"""Commands about data: what is here and whole, and how to get what is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from cldnet.cli.show import counting, say

if TYPE_CHECKING:
    from cldnet.data.find import Found

__all__ = ["DataOption", "app"]

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
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all of it as JSON, with counts class by class.")
    ] = False,
) -> None:
    """List the data sets that are known, where they are, whether they are whole, and their hashes."""
    from cldnet.data.catalog import KNOWN_SETS
    from cldnet.data.find import search_path, survey

    found: list[Found] = []
    with counting("reading data sets", "sets") as tell:
        for number, one in enumerate(survey(data)):
            found.append(one)
            tell(number + 1, len(KNOWN_SETS))
    if as_json:
        typer.echo(json.dumps([_as_json(one) for one in found], indent=1))
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
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
    """Download a data set, go on where an earlier download stopped, check it and unpack it."""
    from cldnet.data.catalog import known_set
    from cldnet.data.fetch import get_set
    from cldnet.data.find import cache_folder, examine, find_in, find_set

    known = known_set(name)
    here = find_set(name) if data is None else find_in(known, data)
    if here is not None and examine(known, here).state == "whole":
        say(f"{name} is whole in {here}; there is nothing to get.")
        return
    dest = data or cache_folder()
    say(f"{known.title}, {known.home}. {known.terms}")
    try:
        with counting(f"getting {name}", "bytes") as tell:
            folder = get_set(name, dest, on_progress=lambda label, done, total: tell(done, total))
    except KeyboardInterrupt:
        say("\nStopped. What has come is kept; the same command goes on from there.", error=True)
        raise typer.Exit(130) from None
    say(f"{name} is whole in {folder}.")


def _details(one: Found) -> str:
    """What else there is to say of a set that is there: what is wrong, or counts a class and means a channel."""
    if not one.train:
        return one.state
    a_class = " + ".join(_range(counts) for counts in zip(*one.per_class.values(), strict=True) if any(counts))
    means = ", channel means " + " ".join(f"{mean:.4f}" for mean in one.means) if one.means else ""
    damage = f"; {one.state}" if one.state.startswith("damaged") else ""
    return f"{a_class} a class{means}{damage}"


def _range(counts: tuple[int, ...]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"


def _as_json(one: Found) -> dict[str, Any]:
    kept = {key: getattr(one, key) for key in ("name", "state", "train", "test", "classes", "digest")}
    folder = None if one.folder is None else str(one.folder)
    return {**kept, "folder": folder, "means": list(one.means), "per_class": dict(one.per_class)}
