"""Methods: one file each, reading like its paper's algorithm box."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from cldnet.text import nearest_names

if TYPE_CHECKING:
    from torch import nn

    from cldnet.methods.learner import Learner, Setting

__all__ = [
    "METHODS",
    "backbone_name",
    "build_config",
    "build_learner",
    "display_name",
    "known_methods",
    "read_method",
]

#: The methods of this library and their classes. Other packages add theirs by entry points in the group ``cldnet.methods``.
METHODS: Mapping[str, str] = {
    "cldnet": "cldnet.methods.cldnet:CLDNet",
    "cldnet-paper": "cldnet.methods.cldnet:CLDNetPaper",
    "exact": "cldnet.methods.exact:Exact",
    "finetune": "cldnet.methods.finetune:Finetune",
    "joint": "cldnet.methods.joint:Joint",
    "ewc": "cldnet.methods.ewc:EWC",
    "ewc-batched": "cldnet.methods.ewc:EWCBatched",
    "oewc": "cldnet.methods.ewc:OnlineEWC",
    "si": "cldnet.methods.si:SI",
    "mas": "cldnet.methods.mas:MAS",
    "lwf": "cldnet.methods.lwf:LwF",
    "dmc": "cldnet.methods.dmc:DMC",
    "owm": "cldnet.methods.owm:OWM",
    "aop": "cldnet.methods.owm:AOP",
    "er": "cldnet.methods.er:ER",
    "er-ace": "cldnet.methods.er_ace:ERACE",
    "derpp": "cldnet.methods.derpp:DERpp",
    "xder-rpc": "cldnet.methods.xder:XDERRPC",
    "er-ace-lider": "cldnet.methods.lider:ERACELiDER",
    "derpp-lider": "cldnet.methods.lider:DERppLiDER",
    "xder-rpc-lider": "cldnet.methods.lider:XDERRPCLiDER",
    "dualhsic": "cldnet.methods.dualhsic:DualHSIC",
    "ocm": "cldnet.methods.ocm:OCM",
    "bic": "cldnet.methods.bic:BiC",
    "gdumb": "cldnet.methods.gdumb:GDumb",
    "co2l": "cldnet.methods.co2l:Co2L",
    "pnn": "cldnet.methods.pnn:PNN",
    "single": "cldnet.methods.single:SingleTask",
    "apd": "cldnet.methods.apd:APD",
    "l2p": "cldnet.methods.l2p:L2P",
    "dualprompt": "cldnet.methods.dualprompt:DualPrompt",
    "den": "cldnet.methods.den:DEN",
    "rcl": "cldnet.methods.rcl:RCL",
    "pcl": "cldnet.methods.pcl:PCL",
    "icnet": "cldnet.methods.icnet:ICNet",
    "crnet": "cldnet.methods.crnet:CRNet",
    "slda": "cldnet.methods.slda:SLDA",
}


def read_method(name: str) -> type[Learner]:
    """Return the class of a method by its name, or by ``"module:Class"``."""
    known = METHODS if name in METHODS else known_methods()  # searching all installed packages takes time
    path = known.get(name, name)
    module, found, class_name = path.partition(":")
    if not found:
        raise ValueError(f"There is no method {name!r}. {nearest_names(name, known)}")
    try:
        learner: type[Learner] = getattr(import_module(module), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"There is no method at {path!r} ({error}): check the name, and that Python finds the module."
        ) from error
    if not isinstance(learner, type) or not hasattr(learner, "traits"):
        raise ValueError(f"{path!r} is not a method: expected a subclass of cldnet.methods.learner.Learner.")
    return learner


def known_methods() -> dict[str, str]:
    """Return the methods of this library and of installed packages, with the paths of their classes."""
    return {**{entry.name: entry.value for entry in entry_points(group="cldnet.methods")}, **METHODS}


@cache
def display_name(name: str) -> str:
    """Return a method's name for tables and figures; an unknown method keeps its own name."""
    if name not in METHODS and name not in known_methods():
        return name
    try:
        return read_method(name).title or name
    except ValueError:  # a broken package should not spoil a table
        return name


def backbone_name(method: str, backbone: str, input_shape: tuple[int, ...]) -> str:
    """Return the name of the backbone that a method gets: the given one, the method's own, or one that fits the inputs."""
    from cldnet.nets import FROZEN, auto_backbone  # noqa: PLC0415  (listing the methods should not import torch)

    learner = read_method(method)
    chosen = learner.default_backbone if backbone == "auto" else backbone
    if not learner.takes_maps and f"frozen-{chosen}" in FROZEN:
        return f"frozen-{chosen}"
    return auto_backbone(input_shape) if chosen == "auto" else chosen


def build_config(name: str, options: Mapping[str, Any] | None = None) -> Any:
    """Make the configuration of a method from some of its fields."""
    config_class = read_method(name).config_class
    fields = [field.name for field in dataclasses.fields(config_class)]
    unknown = sorted({*(options or {})} - {*fields})
    if unknown:
        raise ValueError(f"Method {name!r} does not take {', '.join(unknown)}; it takes {', '.join(fields)}.")
    try:
        return config_class(**(options or {}))
    except TypeError as error:
        raise ValueError(f"An option of method {name!r} has the wrong type: {error}.") from error


def build_learner(
    name: str,
    setting: Setting,
    options: Mapping[str, Any] | None = None,
    backbone: str | nn.Module = "auto",
    backbone_options: Mapping[str, Any] | None = None,
) -> Learner:
    """Make a learner by the names of its method and of its backbone.

    Parameters
    ----------
    name : str
        One of `METHODS`.
    setting : Setting
        Input shape, capacity, seed and precision.
    options : mapping, optional
        Fields of the method's configuration.
    backbone : str or nn.Module
        A name from `cldnet.nets.BACKBONES`, your own module, or ``"auto"`` for the method's default.
    backbone_options : mapping, optional
        Arguments of a backbone that is made by name.

    Examples
    --------
    >>> from cldnet.methods.learner import Setting
    >>> learner = build_learner("finetune", Setting((4,), capacity=3, seed=0), {"lr": 0.1})
    >>> type(learner).__name__, learner.config.lr
    ('Finetune', 0.1)
    """
    from cldnet.nets import FeatureMap, FrozenNet, build_backbone  # noqa: PLC0415
    from cldnet.nets.features import NoScaling  # noqa: PLC0415

    method: Any = read_method(name)
    config = build_config(name, options)
    if isinstance(backbone, str):
        chosen = backbone_name(name, backbone, setting.input_shape)
        net = None if chosen == "none" else build_backbone(chosen, setting.input_shape, setting.seed, backbone_options)
    else:
        net = backbone
    if isinstance(net, FeatureMap) and not method.takes_maps:
        raise ValueError(
            f"Method {name!r} trains its backbone, but a {net.kind} map is fixed: use method 'exact', or another backbone "
            "such as 'mlp' or 'cnn'."
        )
    if isinstance(net, FrozenNet) and method.takes_maps:
        raise ValueError(
            f"Method {name!r} works on a fixed feature map, which a frozen net is not: use the backbone 'expanded' (class "
            "Expanded) instead of 'frozen' (FrozenNet)."
        )
    learner: Learner = method(net, setting, config)
    if getattr(net, "takes_pixels", False):
        learner.scale = NoScaling(setting.dtype)
    return learner
