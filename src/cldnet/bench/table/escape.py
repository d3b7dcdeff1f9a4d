"""Names and sentences from strangers as text of a format, and as nothing else: no markup, no formula, no command."""

from __future__ import annotations

import re
import unicodedata

__all__ = ["csv_text", "markdown", "markdown_paragraph", "plain", "tex"]

_TEX = {
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    **{sign: f"{{{sign}}}" for sign in '[]*"'},  # behind the end of a row, [ and * would be read as its arguments
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"\ensuremath{\pm}",
    "−": r"\ensuremath{-}",
    "×": r"\ensuremath{\times}",
    "–": "--",
    "…": r"\ldots{}",
}
_GREEK = "αβγδεζηθικλμνξπρστυφχψω"


def plain(text: str) -> str:
    r"""One line, without control characters, which could end a comment or a row.

    Examples
    --------
    >>> plain("two\nlines")
    'two lines'
    """
    words = " ".join(text.split())
    return "".join(sign for sign in words if not unicodedata.category(sign).startswith("C"))


def markdown(text: str) -> str:
    r"""Text within a line of Markdown, or a cell of its tables.

    Examples
    --------
    >>> print(markdown("a|b <i> *c*"))
    a\|b &lt;i> \*c\*
    """
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", plain(text)).replace("&", "&amp;").replace("<", "&lt;")


def markdown_paragraph(text: str) -> str:
    r"""Text at the start of a line, where some signs would make it a heading, a list or a quotation.

    Examples
    --------
    >>> print(markdown_paragraph("# one"), markdown_paragraph("1. one"))
    \# one 1\. one
    """
    return re.sub(r"^(\d*)([#+>=.)-])", r"\1\\\2", markdown(text))


def csv_text(text: str) -> str:
    """Text that a spreadsheet will not take for a formula.

    Examples
    --------
    >>> csv_text("=1+1"), csv_text("OWM")
    ("'=1+1", 'OWM')
    """
    line = plain(text)
    return f"'{line}" if line.startswith(("=", "+", "-", "@")) else line


def tex(text: str) -> str:
    r"""Text that TeX sets as it is.

    Examples
    --------
    >>> print(tex(r"50 % of \input{x}¹²"))
    50 \% of \textbackslash{}input\{x\}\textsuperscript{12}
    """
    return "".join(map(_tex_part, re.findall(r"[⁰¹²³⁴⁵⁶⁷⁸⁹]+|.", plain(text))))


def _tex_part(part: str) -> str:
    if part[0] in "⁰¹²³⁴⁵⁶⁷⁸⁹":
        return f"\\textsuperscript{{{''.join(str(unicodedata.digit(sign)) for sign in part)}}}"
    if part in _GREEK:
        name = unicodedata.name(part).rpartition(" ")[2].lower().replace("lamda", "lambda")  # as TeX spells it
        return f"\\ensuremath{{\\{name}}}"
    return _TEX.get(part, part)
