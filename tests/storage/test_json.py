"""JSON of a stranger: plain numbers, texts and lists, and no more of them than a manifest has."""

from __future__ import annotations

import pytest

from cldnet.storage import header
from cldnet.storage.header import parse_json


@pytest.mark.parametrize("text", ["-9223372036854775808", "9223372036854775807", "1e308", '"]]]"', "null", "true"])
def test_what_fits_into_64_bits_is_read(text: str) -> None:
    assert parse_json(text) == eval(text, {"null": None, "true": True})


@pytest.mark.parametrize(
    "text", ["-9223372036854775809", "9223372036854775808", "[{}, {'a': [1e999]}]".replace("'", '"'), "NaN"]
)
def test_what_does_not_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"exceeds 64 bits|is not a finite number"):
        parse_json(text)


def test_lists_may_be_nested_so_deep_and_no_deeper() -> None:
    deep = "[" * 33 + "]" * 33  # the innermost is empty
    assert parse_json(deep)
    with pytest.raises(ValueError, match="too many nested lists"):
        parse_json(f"[{deep}]")
    with pytest.raises(ValueError, match="too many nested lists"):
        parse_json("[" * 100_000 + "]" * 100_000)


def test_a_text_may_have_some_lists_and_more_where_it_is_long() -> None:
    few = "[" + "[], " * (header._MAX_LISTS - 1) + "1]"
    assert len(parse_json(few)) == header._MAX_LISTS
    many = "[" + "[], " * (2 * header._MAX_LISTS) + "1]"
    with pytest.raises(ValueError, match="too many nested lists"):
        parse_json(many)
    assert parse_json(many[:-1] + ", 1" * (2 * header._MAX_LISTS * header._CHARACTERS_PER_LIST // 3) + "]")
    assert parse_json(f'["{"[" * 10 * header._MAX_LISTS}"]'), "brackets in a text are no lists"
