"""The page's style sheet, for light and dark screens."""

from __future__ import annotations

from cldnet.bench.svg import SHADES

RGB = tuple[int, int, int]

# Ends of the heat maps' scale, from 0% to 100%.
LIGHT_SCALE: tuple[RGB, RGB] = ((238, 242, 246), (17, 82, 128))
DARK_SCALE: tuple[RGB, RGB] = ((38, 45, 54), (132, 196, 240))

_BASE = """
:root { color-scheme: light dark;
  --paper: #fdfdfc; --ink: #20242a; --soft: #5a626d; --rule: #dfe3e8; --wash: #f4f6f8; --link: #11598c;
  --s0: #0072b2; --s1: #c14f00; --s2: #00805d; --s3: #8e4b9e; --s4: #8a6700; --s5: #b93472; --s6: #7d4f27;
  --s7: #5b6470; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #16191d; --ink: #e4e7eb; --soft: #a3acb7; --rule: #333a43; --wash: #1e2329; --link: #8cc8f2;
  --s0: #5db4ea; --s1: #f0914a; --s2: #3fc79f; --s3: #c99ad6; --s4: #dcb545; --s5: #ee86b4; --s6: #cf9f72;
  --s7: #aab3be; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 3rem 1.25rem 4rem; max-width: 62rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.6 system-ui, -apple-system, "Segoe UI", "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums; -webkit-text-size-adjust: 100%; }
h1 { margin: 0 0 .75rem; font-size: 1.9rem; line-height: 1.2; font-weight: 650; letter-spacing: -.01em; }
h2 { margin: 3rem 0 .5rem; font-size: 1.3rem; line-height: 1.3; }
h3 { margin: 1.75rem 0 .4rem; font-size: 1rem; }
h1, h2, h3, td, th, dd, figcaption, summary { overflow-wrap: anywhere; }
p { margin: 0 0 1rem; max-width: 50rem; text-wrap: pretty; }
.lead-in { font-size: 1.1rem; max-width: none; }
.note, caption { color: var(--soft); font-size: .9rem; }
a { color: var(--link); text-underline-offset: .15em; }
code { font: .875em/1.5 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: 0 0 1rem; }
table { border-collapse: collapse; width: 100%; font-size: .95rem; }
caption { text-align: left; padding: 0 0 .6rem; }
th, td { padding: .5rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule);
  font-weight: 400; }
thead th { color: var(--soft); font-size: .85rem; line-height: 1.3; vertical-align: bottom;
  white-space: normal; overflow-wrap: normal; border-bottom-color: var(--soft); }
tr > :first-child { text-align: left; padding-left: 0; position: sticky; left: 0; background: var(--paper); }
tbody th { min-width: 14.5rem; white-space: normal; }
td.none { color: var(--soft); font-style: italic; }
strong { font-weight: 650; }
figure { margin: 0; }
figcaption { font-size: .95rem; margin-bottom: .35rem; }
.maps { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 16.5rem), 1fr));
  gap: 1.75rem 1.5rem; margin-top: 1rem; }
.maps.wide { grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr)); }
svg { display: block; max-width: 100%; }
svg text { fill: var(--ink); font-size: 13px; }
svg .axis { fill: var(--soft); font-size: 12px; }
svg.heat { height: auto; }
.chart { padding-right: 24%; margin: 1rem 0 1.5rem; }
svg.plot { width: 100%; height: auto; overflow: visible; }
.plot text, .plot .axis { font-size: 14px; }
.grid { stroke: var(--rule); fill: none; } .base { stroke: var(--soft); fill: none; }
.mean { fill: none; stroke: var(--c); stroke-width: 2.25; stroke-linejoin: round; }
.run { fill: none; stroke: var(--c); stroke-width: 1; opacity: .35; }
.lead { fill: none; stroke: var(--c); stroke-width: 1; opacity: .7; }
[class^="s"] circle, [class^="s"] path:not([class]) { fill: var(--c); stroke: var(--paper); }
.legend { display: none; flex-wrap: wrap; gap: .3rem 1.25rem; list-style: none; margin: 0 0 1rem; padding: 0;
  font-size: .9rem; }
.legend li { display: flex; align-items: center; gap: .5rem; }
details { border-bottom: 1px solid var(--rule); } details + .note { margin-top: 1rem; }
summary { cursor: pointer; padding: .4rem 0; }
summary .soft { color: var(--soft); margin-left: .75rem; }
details > dl { display: grid; grid-template-columns: 9rem 1fr; gap: .3rem 1rem; margin: .25rem 0 1.25rem;
  padding: .9rem 1rem; background: var(--wash); border-radius: 6px; font-size: .92rem; }
dt { color: var(--soft); }
dd { margin: 0; min-width: 0; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
@media (max-width: 50rem) {
  tbody th { min-width: 9rem; } .chart { padding-right: 0; } .plot .name { display: none; }
  .legend { display: flex; }  .plot text, .plot .axis { font-size: 17px; } }
@media (max-width: 34rem) {
  caption::after { content: " Scroll sideways for more."; display: block; }
  body { padding-top: 1.75rem; } h1 { font-size: 1.6rem; }
  .plot text, .plot .axis { font-size: 22px; } .mean { stroke-width: 3; }
  th, td { padding: .5rem .5rem; } tbody th { min-width: 7.5rem; }
  details > dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; } }
@media print { .scroll { overflow: visible; } body { max-width: none; padding: 0; } }
"""


def style_sheet() -> str:
    """Return the whole style sheet, with the heat maps' shades for both schemes."""
    series = "\n".join(f".s{k} {{ --c: var(--s{k}); }}" for k in range(8))
    dark = f"@media (prefers-color-scheme: dark) {{\n{shades(*DARK_SCALE)}\n}}"
    return f"{_BASE}{series}\n{shades(*LIGHT_SCALE)}\n{dark}\n"


def shades(nothing: RGB, everything: RGB) -> str:
    """Return the rules for the heat maps' cells, from 0% to 100%.

    Parameters
    ----------
    nothing, everything : tuple of int
        Colours of 0% and 100%.

    Returns
    -------
    str
        One rule for each shade and one for the number upon it, black or white, whichever reads better.
    """
    rules = []
    for step in range(SHADES):
        part = step / (SHADES - 1)
        red, green, blue = (round(a + (b - a) * part) for a, b in zip(nothing, everything, strict=True))
        paint = f"#{red:02x}{green:02x}{blue:02x}"
        # Above this luminance black has the higher contrast (WCAG 2.2); the better ink has at least 4.5:1.
        ink = "#000000" if luminance((red, green, blue)) > 0.179 else "#ffffff"
        rules.append(f".h{step} rect {{ fill: {paint}; }} .h{step} text {{ fill: {ink}; }}")
    return "\n".join(rules)


def luminance(colour: RGB) -> float:
    """Relative luminance of an sRGB colour, as WCAG 2.2 defines it.

    Examples
    --------
    >>> luminance((0, 0, 0)), round(luminance((255, 255, 255)), 6)
    (0.0, 1.0)
    """
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
