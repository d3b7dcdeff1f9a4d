"""Colours, marks and style sheets: one palette for the page, for SVG files and for PNG files."""

from __future__ import annotations

from importlib.resources import files

__all__ = [
    "COLOURS",
    "DARK",
    "DARK_SCALE",
    "LIGHT",
    "LIGHT_SCALE",
    "MARKERS",
    "SHADES",
    "file_style",
    "ink_on",
    "luminance",
]

RGB = tuple[int, int, int]

#: Colours that colour-blind readers can tell apart (after Okabe and Ito), with 4.5:1 or more upon the paper.
COLOURS = (
    *("#0072b2", "#c14f00", "#00805d", "#8e4b9e", "#8a6700", "#b93472", "#7d4f27", "#5b6470"),
    *("#1f7f8f", "#a33a3a"),
)
_BRIGHT = (
    *("#5db4ea", "#f0914a", "#3fc79f", "#c99ad6", "#dcb545", "#ee86b4", "#cf9f72", "#aab3be"),
    *("#66c6d4", "#ef8f8f"),
)
GREY = 7  # the colour of the bounds: they are there to compare with
#: The shapes of marks, as matplotlib calls them; `cldnet.bench.report.svg` draws the same ones.
MARKERS = "os^DvPhX"

LIGHT = {
    "paper": "#fdfdfc",
    "ink": "#20242a",
    "soft": "#5a626d",
    "rule": "#dfe3e8",
    "wash": "#f4f6f8",
    "link": "#11598c",
}
DARK = {
    "paper": "#16191d",
    "ink": "#e4e7eb",
    "soft": "#a3acb7",
    "rule": "#333a43",
    "wash": "#1e2329",
    "link": "#8cc8f2",
}
LIGHT |= {f"s{k}": colour for k, colour in enumerate(COLOURS)}
DARK |= {f"s{k}": colour for k, colour in enumerate(_BRIGHT)}

SHADES = 11  # steps of the heat maps: 0%, 10%, … 100%
#: Ends of the heat maps' scale, from 0% to 100%.
LIGHT_SCALE: tuple[RGB, RGB] = ((238, 242, 246), (17, 82, 128))
DARK_SCALE: tuple[RGB, RGB] = ((38, 45, 54), (132, 196, 240))
for _palette, _scale in ((LIGHT, LIGHT_SCALE), (DARK, DARK_SCALE)):
    _palette |= {
        f"h{step}": "#"
        + "".join(f"{round(a + (b - a) * step / (SHADES - 1)):02x}" for a, b in zip(*_scale, strict=True))
        for step in range(SHADES)
    }


def page_style() -> str:
    """Return the style sheet of the page, for light and dark screens."""
    dark = f"@media screen and (prefers-color-scheme: dark) {{\n{_variables(DARK)}}}\n"
    return f"{_variables(LIGHT)}{dark}{_plot_style()}{read('page.css')}"


def file_style() -> str:
    """Return the style sheet of a drawing that stands alone: light, since it may be printed."""
    return f"{_variables(LIGHT)}{_plot_style()}"


def ink_on(paint: str) -> str:
    """Say whether black or white can be read upon a colour.

    Examples
    --------
    >>> ink_on("#eef2f6"), ink_on("#115280")
    ('#000000', '#ffffff')
    """
    # Above this luminance black has the higher contrast (WCAG 2.2); the better ink has at least 4.5:1.
    return "#000000" if luminance(paint) > 0.179 else "#ffffff"


def luminance(colour: str) -> float:
    """Relative luminance of an sRGB colour, as WCAG 2.2 defines it.

    Examples
    --------
    >>> luminance("#000000"), round(luminance("#ffffff"), 6)
    (0.0, 1.0)
    """
    parts = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def read(name: str) -> str:
    """Return a file of this package as text."""
    return files(__package__).joinpath(name).read_text("utf-8")


def _plot_style() -> str:
    series = "".join(f".s{k}{{--c:var(--s{k})}}" for k in range(len(COLOURS)))
    shades = "".join(f".h{k}{{fill:var(--h{k})}}.plot .t{k}{{fill:var(--t{k})}}" for k in range(SHADES))
    return f"{read('plot.css')}{series}\n{shades}\n"


def _variables(palette: dict[str, str]) -> str:
    inks = {f"t{step}": ink_on(palette[f"h{step}"]) for step in range(SHADES)}
    return f":root{{{''.join(f'--{name}:{colour};' for name, colour in (palette | inks).items())}}}\n"
