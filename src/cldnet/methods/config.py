"""A method's configuration as JSON or TOML has it: numbers, strings, and parts by the name of their class."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from cldnet.names import nearest_names

__all__ = ["PARTS", "check_parts", "config_from_json", "config_to_json"]

#: Parts that a configuration may name, and where their classes are.
PARTS: Mapping[str, str] = {
    "ConstantAlpha": "cldnet.methods.parts.alpha",
    "DecayingAlpha": "cldnet.methods.parts.alpha",
    "AdaptiveAlpha": "cldnet.methods.parts.alpha",
    "PerTask": "cldnet.methods.parts.alpha",
    "LayerAlphas": "cldnet.methods.parts.alpha",
    "KindAlphas": "cldnet.methods.parts.alpha",
    "NormalisedHSIC": "cldnet.methods.parts.dependence",
    "TraceHSIC": "cldnet.methods.parts.dependence",
    "BatchMean": "cldnet.methods.parts.projection",
    "EverySample": "cldnet.methods.parts.projection",
    "EverySecondPatch": "cldnet.methods.parts.projection",
    "EveryVector": "cldnet.methods.parts.projection",
    "EveryStep": "cldnet.methods.parts.readings",
    "TaskEnd": "cldnet.methods.parts.readings",
    "Cosine": "cldnet.methods.parts.pointing",
    "InnerProduct": "cldnet.methods.parts.pointing",
    "FixedRate": "cldnet.methods.parts.pointing",
    "PerAlpha": "cldnet.methods.parts.pointing",
    "EmbeddingAlone": "cldnet.methods.parts.readings",
    "InTurn": "cldnet.methods.parts.readings",
    "Together": "cldnet.methods.parts.readings",
    "Last": "cldnet.methods.parts.readings",
    "FreeLast": "cldnet.methods.parts.readings",
    "FixedLast": "cldnet.methods.parts.readings",
    "SeenClasses": "cldnet.methods.parts.readings",
    "TaskClasses": "cldnet.methods.parts.readings",
    "AllClasses": "cldnet.methods.parts.readings",
}


def check_parts(config: Any) -> None:
    """Refuse a number, a string or a table where a configuration takes a part.

    Examples
    --------
    >>> from cldnet.methods.owm import OWMConfig
    >>> OWMConfig(alpha=0.1)
    Traceback (most recent call last):
    ...
    ValueError: alpha=0.1 should be a part such as PerTask(alpha=DecayingAlpha(start=10.0, decay=0.01), updates=200).
    """
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if type(field.default).__name__ in PARTS and isinstance(value, int | float | str | Mapping | type | None):
            raise ValueError(f"{field.name}={value!r} should be a part such as {field.default}.")


def config_to_json(value: Any) -> Any:
    """Describe a configuration, or a part of one, in types that JSON has.

    Examples
    --------
    >>> from cldnet.methods.parts.alpha import ConstantAlpha, PerTask
    >>> config_to_json(PerTask(ConstantAlpha(0.1), updates=50))
    {'kind': 'PerTask', 'alpha': {'kind': 'ConstantAlpha', 'value': 0.1}, 'updates': 50}
    """
    if dataclasses.is_dataclass(value):
        fields = {field.name: config_to_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
        name = type(value).__name__
        return {"kind": name, **fields} if name in PARTS else fields
    return [config_to_json(item) for item in value] if isinstance(value, tuple | list) else value


def config_from_json(value: Any) -> Any:
    """Rebuild the options of a configuration: every table with a ``kind`` becomes the part of that name.

    Examples
    --------
    >>> config_from_json({"lr": 0.1, "alpha": {"kind": "ConstantAlpha", "value": 0.5}})
    {'lr': 0.1, 'alpha': ConstantAlpha(value=0.5)}
    """
    if isinstance(value, list | tuple):
        return [config_from_json(item) for item in value]
    if not isinstance(value, Mapping):
        return value
    options = {name: config_from_json(item) for name, item in value.items() if name != "kind"}
    if "kind" not in value:
        return options
    kind = value["kind"]
    if kind not in PARTS:
        raise ValueError(f"There is no part {kind!r}. {nearest_names(str(kind), PARTS)}")
    part = getattr(import_module(PARTS[kind]), kind)
    try:
        return part(**options)
    except TypeError as error:
        raise ValueError(
            f"{kind} takes {', '.join(part.__dataclass_fields__) or 'nothing'}, not {sorted(options)}."
        ) from error
