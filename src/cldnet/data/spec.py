"""The text that names a stream: a name, or a kind and a path, and options behind commas."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cldnet.names import nearest_names

__all__ = ["OPTIONS", "StreamSpec"]

#: The options as a user writes them, and what they mean.
OPTIONS: Mapping[str, str] = {
    "tasks=10": "number of tasks, as equal as can be",
    "classes_per_task=5": "classes a task",
    "first=50": "classes of the first task",
    "split=4+3+3": "classes of every task",
    "order=cat+dog+ant": "the class order: labels, sorted, a JSON file of labels, or numpy:1993 (the papers' seed 1993)",
    "test_size=0.2": "share of every class to test on, for data that have no test part",
    "size=64": "side of the square that photos are cut to, in pixels",
    "resize=72": "the photos' shorter side before that",
    "label=species": "label column of a table",
    "labels=coarse": "the 20 coarse classes of CIFAR-100",
    "online=10": "one pass, in batches of 10",
    "blurry=0.1": "a tenth of every class turns up in other tasks",
    "returning=0.3": "three tenths of every class come back in a later task",
    "long_tail=0.01": "the rarest class has a hundredth of the most frequent one's rows",
    "validation=0.2": "test on a fifth of the training data; the test part is left out",
    "train=0.33": "learn from a third of every class's training data (validation=0.2 is cut off before)",
    "until=2": "only the first 2 tasks",
}

_READING: Mapping[str, Callable[[str], Any]] = {"size": int, "resize": int, "label": str, "labels": str}
_SPLIT: Mapping[str, Callable[[str], Any]] = {
    "tasks": int,
    "classes_per_task": int,
    "first": int,
    "split": lambda text: [int(size) for size in text.split("+")],
    "order": str,
    "test_size": float,
}
_VARIANTS: Mapping[str, Callable[[str], Any]] = {
    "long_tail": float,
    "validation": float,
    "train": float,
    "blurry": float,
    "returning": float,
    "online": int,
    "until": int,
}
_CONVERT = {**_READING, **_SPLIT, **_VARIANTS}


@dataclass(frozen=True)
class StreamSpec:
    """A stream's name taken apart: its own name or kind, a path, and options for reading, splitting and varying.

    Examples
    --------
    >>> spec = StreamSpec.parse("folder:/home/me/my photos,size=64,blurry=0.1", ["folder"])
    >>> spec.name, spec.path, spec.reading, spec.variants, spec.base
    ('folder', '/home/me/my photos', {'size': 64}, {'blurry': 0.1}, 'folder:my photos,size=64')
    """

    name: str
    path: str | None
    options: Mapping[str, tuple[str, Any]]

    @classmethod
    def parse(cls, text: str, kinds: Collection[str]) -> StreamSpec:
        """Take a text apart; ``kinds`` are the names that a path follows behind a colon."""
        options: dict[str, tuple[str, Any]] = {}
        rest = text
        while match := re.fullmatch(r"(.*?)\s*,\s*(\w+)=([^,]*?)\s*", rest, re.DOTALL):
            name, value = match[2], match[3]
            if name not in _CONVERT:
                raise ValueError(
                    f"{text!r} has an option {name!r}, which no stream has. {nearest_names(name, _CONVERT)}"
                )
            if name in options:
                raise ValueError(f"{text!r} has the option {name!r} twice: give it once.")
            try:
                options[name] = value, _CONVERT[name](value)
            except ValueError:
                raise ValueError(f"{name}={value!r} in {text!r} is not a number, or not as many as expected.") from None
            rest = match[1]
        kind, colon, path = rest.partition(":")
        if colon and kind in kinds:
            if not path:
                raise ValueError(f"{text!r} needs a path behind the colon, such as {kind}:/home/me/data.")
            return cls(kind, path, dict(reversed(options.items())))
        return cls(rest, None, dict(reversed(options.items())))

    @property
    def reading(self) -> dict[str, Any]:
        """Options of the reader."""
        return self._of(_READING)

    @property
    def split(self) -> dict[str, Any]:
        """Options of the split into tasks."""
        return self._of(_SPLIT)

    @property
    def variants(self) -> dict[str, Any]:
        """Options that make another stream of it: first those that choose rows, then those that move them."""
        given = self._of(_VARIANTS)
        return {name: given[name] for name in _VARIANTS if name in given}

    @property
    def base(self) -> str:
        """The stream's name before it is varied; of a path only the last part, which is nobody else's business."""
        return self._named(without=_VARIANTS)

    @property
    def shown(self) -> str:
        """The whole text, as it may be shown to anybody: of a path only the last part.

        Examples
        --------
        >>> StreamSpec.parse("folder:/home/me/photos,size=64,blurry=0.1", ["folder"]).shown
        'folder:photos,size=64,blurry=0.1'
        """
        return self._named(without=())

    def _named(self, without: Collection[str]) -> str:
        name = self.name if self.path is None else f"{self.name}:{Path(self.path).expanduser().resolve().name}"
        kept = {key: text for key, (text, _) in self.options.items() if key not in without}
        if kept.get("order", "").endswith(".json"):
            kept["order"] = Path(kept["order"]).name
        return name + "".join(f",{key}={text}" for key, text in kept.items())

    def _of(self, table: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, (_, value) in self.options.items() if name in table}
