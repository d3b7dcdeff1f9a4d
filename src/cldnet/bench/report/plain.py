"""What pages without a script share: the frame around their content, tables, bars, and the folder that they go into."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from cldnet.bench.report.scene import Box, Label, Line, Look, Panel, Scene, Shape
from cldnet.bench.report.style import page_style
from cldnet.bench.report.svg import drawing, text

__all__ = ["bars", "drawn", "folder_for", "make_folder", "plain_page", "plain_table"]

_ROW, _NAMES, _BARS, _VALUES = 30, 190, 420, 120
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"


def plain_page(title: str, body: str, style: str = "") -> str:
    """Return a page as HTML that needs nothing else: no script, and nothing out of the network.

    Examples
    --------
    >>> "<title>a &lt; b</title>" in plain_page("a < b", "<p>so it is</p>")
    True
    """
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{text(title)}</title>\n<style>\n{page_style()}{style}</style>\n</head>\n<body>\n<main>\n{body}\n</main>\n"
        "</body>\n</html>\n"
    )


def make_folder(folder: Path, of: str) -> None:
    """Make a folder for the files of something if it is not there, or say what is in its place.

    Examples
    --------
    >>> make_folder(Path(__file__), "an audit")
    Traceback (most recent call last):
    ...
    FileExistsError: ...plain.py is a file; the page and the figures of an audit go into a folder: name another one.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        file = next(part for part in (folder, *folder.parents) if part.exists())
        raise FileExistsError(
            f"{file} is a file; the page and the figures of {of} go into a folder: name another one."
        ) from error


@contextmanager
def folder_for(folder: Path, of: str) -> Iterator[None]:
    """Make a folder before the long work whose files go into it; if the work fails, a new one is taken away again."""
    there = folder.exists()
    make_folder(folder, of)
    try:
        yield
    except BaseException:
        if not there:
            with suppress(OSError):  # somebody else has put something into it
                folder.rmdir()
        raise


def plain_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as HTML; the first column names the row."""
    titles = "".join(f"<th scope='col'>{text(title)}</th>" for title in head)
    lines = "".join(
        f"<tr><th scope='row'>{text(first)}</th>{''.join(f'<td>{text(cell)}</td>' for cell in rest)}</tr>"
        for first, *rest in rows
    )
    return f"<div class='scroll'><table><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table></div>"


def bars(rows: Sequence[tuple[str, float, str]], limit: float | None = None) -> Scene:
    """A bar a row, of shares from 0 to 1, with its name before and its figure behind it."""
    height = len(rows) * _ROW + 6
    shapes: list[Shape] = [Line(((_NAMES, 0), (_NAMES, height)), "base")]
    if limit is not None:
        place = _NAMES + limit * _BARS
        shapes.append(Line(((place, 0), (place, height)), "mean", Look(1, 0, dashed=True)))
        shapes.append(Label((place, height + 14), f"{limit}", "axis", "middle"))
    for number, (name, share, words) in enumerate(rows):
        at = number * _ROW + 8
        colour = "s1" if limit is not None and share > limit else "s0"
        shown = name if len(name) <= 26 else f"…{name[-25:]}"
        shapes.append(Label((_NAMES - 8, at + 14), shown, "axis", "end"))
        shapes.append(Box((_NAMES, at), max(1.0, share * _BARS), _ROW - 12, colour, f"{name}: {words}"))
        behind = share if limit is None else 1.0  # clear of the limit's line
        shapes.append(Label((_NAMES + behind * _BARS + 6, at + 14), words, "value"))
    return Scene(_NAMES + _BARS + _VALUES, height + (0 if limit is None else 20), tuple(shapes))


def drawn(scene: Scene, alternative: str) -> str:
    """Return a drawing as HTML, with what it says to those who do not see it."""
    return f"<figure style='margin: 1rem 0'>{drawing(Panel(scene, alternative))}</figure>"
