"""Validate files that people write or send: each error is one sentence that says what is wrong and what was expected."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator

from cldnet.bench.formatting import clip
from cldnet.text import nearest_names

T = TypeVar("T")


class StrictTable(BaseModel):
    """A table of a TOML file: types are not converted, and an unknown key is refused with the nearest known one."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown(cls, table: Any) -> Any:
        for name in table if isinstance(table, Mapping) else ():
            if name not in cls.model_fields:
                raise ValueError(f"has an unknown key {name!r}. {nearest_names(name, cls.model_fields)}")
        return table


def validate(kind: type[T], content: Any) -> T:
    """Convert parsed TOML, or the bytes of a JSON file, to a pydantic model or a dataclass."""
    adapter: TypeAdapter[T] = _adapter(kind)  # type: ignore[arg-type]
    try:
        if isinstance(content, bytes):
            return adapter.validate_json(content, strict=True)
        return adapter.validate_python(content)
    except ValidationError as error:
        raise ValueError(_sentence(error)) from error


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _sentence(error: ValidationError) -> str:
    first = error.errors()[0]
    where = clip(".".join(map(str, first["loc"])), 80)
    if first["type"] == "value_error":
        return f"{where or 'The file'} {first['ctx']['error']}"
    if first["type"] == "missing":
        return f"{where} is missing."
    expected = re.sub(r"^(Input|String|List) | or instance of \w+$", "", first["msg"])
    for long, short in (("a valid integer", "an integer"), ("a valid ", "a "), ("a dictionary", "a table")):
        expected = expected.replace(long, short)
    return f"{where}={clip(repr(first['input']), 80)} {expected}." if where else f"The file {expected}."
