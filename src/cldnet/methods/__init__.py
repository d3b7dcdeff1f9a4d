"""Methods: one file each, reading like its paper's algorithm box."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any

from cldnet.names import nearest_names

if TYPE_CHECKING:
    from torch import nn

    from cldnet.methods.learner import Learner, Setting

__all__ = ["METHODS", "Method", "backbone_name", "build_config", "build_learner", "known_methods", "read_method"]


@dataclass(frozen=True)
class Method:
    """Where a method's class is, and what it is in one line."""

    path: str
    summary: str

    def load(self) -> type[Learner]:
        """Import the class."""
        module, _, name = self.path.partition(":")
        try:
            learner: type[Learner] = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(
                f"There is no method at {self.path!r} ({error}): check the name, and that Python finds the module."
            ) from error
        if not isinstance(learner, type) or not hasattr(learner, "traits"):
            raise ValueError(
                f"{self.path!r} is no method: expected a class that fulfils cldnet.methods.learner.Learner."
            )
        return learner


#: The methods of this library. Others come from packages with an entry point in the group ``cldnet.methods``.
METHODS: Mapping[str, Method] = {
    "cldnet": Method(
        "cldnet.methods.cldnet:CLDNet",
        "fixed class vectors, every layer by gradient through projectors: our best preset",
    ),
    "cldnet-paper": Method(
        "cldnet.methods.cldnet_paper:CLDNetPaper", "HSIC bottleneck and fixed class vectors, as in the paper (AAAI-24)"
    ),
    "cldnet-hybrid": Method(
        "cldnet.methods.cldnet_hybrid:CLDNetHybrid",
        "hidden layers through projectors, the last one solved from its sums",
    ),
    "exact": Method(
        "cldnet.methods.exact:Exact", "ridge solution of all data seen, over a fixed feature map, one pass"
    ),
    "finetune": Method("cldnet.methods.finetune:Finetune", "plain gradient descent: the lower bound"),
    "joint": Method("cldnet.methods.joint:Joint", "all data kept and learned anew: the upper bound"),
    "ewc": Method("cldnet.methods.ewc:EWC", "elastic weight consolidation, per-sample Fisher (PNAS 2017)"),
    "ewc-batched": Method("cldnet.methods.ewc_batched:EWCBatched", "EWC with squares of batches' mean gradients"),
    "oewc": Method("cldnet.methods.oewc:OnlineEWC", "Online EWC: one Fisher that fades, the latest anchor (ICML 2018)"),
    "si": Method("cldnet.methods.si:SI", "synaptic intelligence: importance by path integral (ICML 2017)"),
    "mas": Method("cldnet.methods.mas:MAS", "memory aware synapses: importance by sensitivity (ECCV 2018)"),
    "lwf": Method("cldnet.methods.lwf:LwF", "learning without forgetting: distillation from the last net (ECCV 2016)"),
    "dmc": Method("cldnet.methods.dmc:DMC", "deep model consolidation on unlabelled inputs from outside (WACV 2020)"),
    "owm": Method("cldnet.methods.owm:OWM", "orthogonal weight modification (Nature Machine Intelligence 2019)"),
    "aop": Method("cldnet.methods.aop:AOP", "adaptive orthogonal projection: OWM with an α by the input (AAAI 2022)"),
    "er": Method("cldnet.methods.er:ER", "experience replay from a reservoir (2019)"),
    "pnn": Method("cldnet.methods.pnn:PNN", "progressive nets: a column a task, needs the task at test (2016)"),
    "icnet": Method("cldnet.methods.icnet:ICNet", "interval weights, each task's box inside the last (ICML 2022)"),
    "crnet": Method(
        "cldnet.methods.crnet:CRNet", "random features, output weights solved with a Fisher penalty (2023)"
    ),
    "slda": Method("cldnet.methods.slda:SLDA", "class means and one covariance over a fixed feature map (2020)"),
}


def read_method(name: str) -> type[Learner]:
    """Find a method's class by its name, or by ``"module:Class"``.

    Examples
    --------
    >>> read_method("exact").__name__
    'Exact'
    >>> read_method("ewcc")
    Traceback (most recent call last):
    ...
    ValueError: There is no method 'ewcc'. Did you mean 'ewc' or 'oewc'?
    """
    if name in METHODS:  # without a look through all installed packages
        return METHODS[name].load()
    known = known_methods()
    if name in known:
        return known[name].load()
    if ":" in name:
        return Method(name, "").load()
    raise ValueError(f"There is no method {name!r}. {nearest_names(name, known)}")


def known_methods() -> dict[str, Method]:
    """List the methods of this library and of installed packages that offer some.

    Examples
    --------
    >>> "cldnet" in known_methods()
    True
    """
    offered = {entry.name: Method(entry.value, f"from {entry.value}") for entry in entry_points(group="cldnet.methods")}
    return {**offered, **METHODS}


def backbone_name(method: str, backbone: str, input_shape: tuple[int, ...]) -> str:
    """Name the backbone that a method gets: the one asked for, the method's own, or the one that fits the inputs.

    Examples
    --------
    >>> backbone_name("exact", "auto", (8, 8)), backbone_name("owm", "auto", (8, 8)), backbone_name("owm", "cnn", (8, 8))
    ('random-relu', 'mlp', 'cnn')
    >>> backbone_name("owm", "efficientnet-lite0", (3, 8, 8))
    'frozen-efficientnet-lite0'
    """
    from cldnet.nets import FROZEN, auto_backbone  # noqa: PLC0415  (listing the methods should not import torch)

    made = read_method(method)
    chosen = made.default_backbone if backbone == "auto" else backbone
    if not made.takes_maps and f"frozen-{chosen}" in FROZEN:
        return f"frozen-{chosen}"
    return auto_backbone(input_shape) if chosen == "auto" else chosen


def build_config(name: str, options: Mapping[str, Any] | None = None) -> Any:
    """Make the configuration of a method from some of its fields, or say which of them it does not have.

    Examples
    --------
    >>> build_config("finetune", {"lr": 0.1}).lr
    0.1
    """
    config_class = read_method(name).config_class
    fields = config_class.__dataclass_fields__
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
    """Make a learner by the name of its method and of its backbone.

    Parameters
    ----------
    name : str
        One of `METHODS`.
    setting : Setting
        Input shape, capacity, seed and precision.
    options : mapping, optional
        Fields of the method's configuration.
    backbone : str or nn.Module
        A name out of `cldnet.nets.BACKBONES`, a module of your own, or ``"auto"`` for the method's default.
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
    from cldnet.nets.scale import AsFloats  # noqa: PLC0415

    method: Any = read_method(name)
    config = build_config(name, options)
    if isinstance(backbone, str):
        chosen = backbone_name(name, backbone, setting.input_shape)
        net = None if chosen == "none" else build_backbone(chosen, setting.input_shape, setting.seed, backbone_options)
    else:
        net = backbone
    if isinstance(net, FeatureMap) and not method.takes_maps:
        raise ValueError(
            f"Method {name!r} trains its backbone, and a {net.kind} map is fixed: use method 'exact' over it, or another "
            "backbone, as 'mlp' or 'cnn'."
        )
    if isinstance(net, FrozenNet) and method.takes_maps:
        raise ValueError(
            f"Method {name!r} works over a fixed feature map, and a frozen net has none: use the backbone 'expanded' (class "
            "Expanded) instead of 'frozen' (FrozenNet)."
        )
    learner: Learner = method(net, setting, config)
    if getattr(net, "takes_pixels", False):
        learner.scale = AsFloats(setting.dtype)
    return learner
