"""From a folder of results to a page, and to a file of each plot."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from cldnet.bench.report.bars import forgetting, time
from cldnet.bench.report.figures import accuracy, looks_of, matrices, memory
from cldnet.bench.report.insides import features, ranks
from cldnet.bench.report.page import render_page
from cldnet.bench.report.pictures import new_figure, png_file
from cldnet.bench.report.reading import check
from cldnet.bench.report.scene import Plot
from cldnet.bench.report.svg import svg_file
from cldnet.bench.results import read_folder
from cldnet.bench.summary import Summary, summarise
from cldnet.store import write_atomically

__all__ = ["Report", "write_report"]

_PLOT_FILE = r"[\w.,=+-]+-[a-z]+\.(?:svg|png)"


@dataclass(frozen=True)
class Report:
    """What was written.

    Attributes
    ----------
    page : Path
    plots : list of Path
        SVG and PNG files.
    missing : str or None
        Why there are no PNG files, if there are none.
    """

    page: Path
    plots: list[Path]
    missing: str | None


def write_report(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Write the page of a folder of results, ``index.html``, and every plot as SVG and PNG into ``plots`` beside it.

    Parameters
    ----------
    folder : path-like
        See `cldnet.bench.results`.
    out : path-like, optional
        Where to write; the folder of results itself if it is not given.
    on_progress : callable, optional
        Told after each plot how many are written, and of how many.

    Raises
    ------
    ValueError
        If there is nothing to show, or if a result cannot be read.

    Notes
    -----
    Equal results give equal files. Plots of an earlier report in the same place that this one does not have are removed;
    no other file is. Whatever the results say is shown as text: they may come from strangers.

    Examples
    --------
    >>> write_report("no such folder")
    Traceback (most recent call last):
    ValueError: There is no folder 'no such folder' with results. `cldnet bench SPEC.toml` makes one.
    """
    found = read_folder(folder)
    for result in found.results:
        check(result)
    summaries = summarise(found.results, found.planned)
    if not summaries:
        raise ValueError(f"There are no results to show in {str(found.path)!r}. `cldnet bench SPEC.toml` makes some.")
    target = found.path if out is None else Path(out)
    plots = _plots(summaries)
    missing = _why_no_pictures()
    kinds = {"svg": svg_file} | ({} if missing else {"png": png_file})
    names = _file_names(plots)
    drawn = {
        stream: [(plot, [f"plots/{names[stream]}-{plot.name}.{kind}" for kind in kinds]) for plot in own]
        for stream, own in plots.items()
    }
    way = Path(os.path.relpath(found.path, target)).as_posix()
    page = render_page(found, summaries, drawn, lambda file: file if way == "." else f"{way}/{file}")
    before = _linked_plots(target / "index.html")
    (target / "plots").mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    total = sum(len(files) for own in drawn.values() for _, files in own)
    for stream, own in drawn.items():
        for plot, files in own:
            for file, paint in zip(files, kinds.values(), strict=True):
                write_atomically(target / file, paint(plot, f"{plot.title}: {stream}"))
                written.append(target / file)
                if on_progress is not None:
                    on_progress(len(written), total)
    write_atomically(target / "index.html", page.encode())
    for file in before - {path.name for path in written}:
        (target / "plots" / file).unlink(missing_ok=True)
    return Report(target / "index.html", written, missing)


def _plots(summaries: Sequence[Summary]) -> dict[str, list[Plot]]:
    looks = looks_of(summaries)
    plots: dict[str, list[Plot]] = {}
    for stream in dict.fromkeys(s.stream for s in summaries):
        own = [s for s in summaries if s.stream == stream]
        found = [plot(own, looks) for plot in (memory, accuracy, forgetting, time)]
        plots[stream] = [
            plot for plot in (*found, *(plot(own) for plot in (matrices, ranks, features))) if plot is not None
        ]
    return plots


def _file_names(streams: Sequence[str] | dict[str, list[Plot]]) -> dict[str, str]:
    names: dict[str, str] = {}
    for stream in streams:
        plain = re.sub(r"[^\w.,=+-]+", "-", stream, flags=re.ASCII).strip("-.")[:80] or "stream"
        while plain in names.values():
            plain += "-"
        names[stream] = plain
    return names


def _linked_plots(page: Path) -> set[str]:
    """Names of the plots of the report that is there already: those that it links to, and no other file beside them."""
    try:
        words = page.read_text("utf-8", "replace")
    except OSError:
        return set()
    links = re.findall(r'<a href="\./plots/([\w.%-]+)">(?:SVG|PNG)</a>', words, flags=re.ASCII)
    return {name for name in map(unquote, links) if re.fullmatch(_PLOT_FILE, name, flags=re.ASCII)}


def _why_no_pictures() -> str | None:
    try:
        new_figure(1, 1)
    except ImportError as error:
        return str(error)
    return None
