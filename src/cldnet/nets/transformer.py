"""Image models through `transformers`: ViT, DeiT and DINOv2, from a hub's name or a local folder.

Only numbers are read: weights as safetensors, the rest as JSON. No code of a model's author is run, and no torchvision is
needed, because preprocessing is our own (`cldnet.nets.pretrained`). A model's configuration is kept in our files, so that
whoever has one needs neither the hub nor the folder.

A configuration may come from a stranger. It names one of three architectures, every field is checked against a schema, and
the model is built through that architecture's own classes: `AutoModel` would follow ``auto_map`` to code, configurations
within configurations, and kernels on the hub.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.nets.pretrained import Preprocessing

__all__ = ["POOLS", "TransformerNet", "read_source"]

#: What is taken of a model's last map: its first token, the mean of all, or what the model itself pools.
POOLS = ("cls", "mean", "pooled")
_BICUBIC = 3  # as Pillow numbers it
_IMAGENET = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}  # what the library takes for ViT if a file does not say
#: Activations that a configuration may name; all are functions of torch.
_ACTIVATIONS = (
    "gelu",
    "gelu_fast",
    "gelu_new",
    "gelu_pytorch_tanh",
    "linear",
    "quick_gelu",
    "relu",
    "sigmoid",
    "silu",
    "tanh",
)
#: Patches along an image's side at most: attention takes the fourth power of them.
_MOST_PATCHES = 64
_ATTENTION = "sdpa"  # torch's own; other names would be looked up, kernels even on the hub


@dataclass(frozen=True)
class _Whole:
    """A whole number within limits, or nothing where that is an answer."""

    least: int
    most: int
    optional: bool = False

    def __contains__(self, value: Any) -> bool:
        return (value is None and self.optional) or (type(value) is int and self.least <= value <= self.most)

    def __str__(self) -> str:
        return f"a whole number from {self.least} to {self.most}"


@dataclass(frozen=True)
class _Number:
    """A number within limits."""

    least: float
    most: float

    def __contains__(self, value: Any) -> bool:
        return type(value) in (int, float) and self.least <= value <= self.most

    def __str__(self) -> str:
        return f"a number from {self.least:g} to {self.most:g}"


@dataclass(frozen=True)
class _OneOf:
    """One of a few values, of the same type."""

    values: tuple[str | bool, ...]

    def __contains__(self, value: Any) -> bool:
        return any(type(value) is type(each) and value == each for each in self.values)

    def __str__(self) -> str:
        return f"one of {', '.join(map(str, self.values))}"


_Rule = _Whole | _Number | _OneOf
_TRUTH = _OneOf((False, True))
_COMMON: Mapping[str, _Rule] = {
    "hidden_size": _Whole(1, 1 << 14),
    "num_hidden_layers": _Whole(1, 48),
    "num_attention_heads": _Whole(1, 256),
    "hidden_act": _OneOf(_ACTIVATIONS),
    "layer_norm_eps": _Number(0, 1),
    "image_size": _Whole(1, 1024),
    "patch_size": _Whole(1, 1024),
    "num_channels": _Whole(3, 3),
    "qkv_bias": _TRUTH,
}
_VIT: Mapping[str, _Rule] = {
    **_COMMON,
    "intermediate_size": _Whole(1, 1 << 17),
    "pooler_output_size": _Whole(1, 1 << 14, optional=True),
    "pooler_act": _OneOf(_ACTIVATIONS),
}
_DINO: Mapping[str, _Rule] = {
    **_COMMON,
    "mlp_ratio": _Whole(1, 64),
    "use_swiglu_ffn": _TRUTH,
    "use_mask_token": _TRUTH,
}
#: The architectures that are built, each with its classes in `transformers` and the fields that it is built from.
_TYPES: Mapping[str, tuple[str, str, Mapping[str, _Rule]]] = {
    "vit": ("ViTConfig", "ViTModel", _VIT),
    "deit": ("DeiTConfig", "DeiTModel", _VIT),
    "dinov2": ("Dinov2Config", "Dinov2Model", _DINO),
}
#: Fields that stored configurations have and that say nothing of what a fixed net computes: first weights, dropout, names of
#: classes, outputs. They are not used. They stay in a description, because a map's id covers it.
_IGNORED = frozenset(
    {
        *("architectures", "attention_probs_dropout_prob", "drop_path_rate", "encoder_stride", "hidden_dropout_prob"),
        *("id2label", "initializer_range", "label2id", "layerscale_value", "num_labels", "problem_type"),
        *("apply_layernorm", "out_features", "out_indices", "reshape_hidden_states", "stage_names"),
        *("chunk_size_feed_forward", "finetuning_task", "is_decoder", "is_encoder_decoder", "output_attentions"),
        *("output_hidden_states", "pruned_heads", "return_dict", "tie_word_embeddings", "torchscript", "use_cache"),
        *("use_bfloat16", "classifier_dropout_prob"),
    }
)


def _known_type(config: Mapping[str, Any]) -> str:
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise ValueError(f"Models of type {kind!r:.80} are not supported; supported are {', '.join(sorted(_TYPES))}.")
    return kind


def _checked(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a model is built from; a field of another type or size is refused, and so is one that nobody knows."""
    kind = _known_type(config)
    rules = _TYPES[kind][2]
    taken: dict[str, Any] = {}
    for name, value in config.items():
        if name in rules:
            if value not in rules[name]:
                raise ValueError(f"A {kind} model has {name}={value!r:.80}: expected {rules[name]}.")
            taken[name] = float(value) if isinstance(rules[name], _Number) else value  # transformers takes no 0 for 0.0
        elif name != "model_type" and name not in _IGNORED:
            raise ValueError(f"The configuration of a {kind} model should not have the field {name!r:.80}.")
    return taken


def read_source(name: str) -> tuple[dict[str, Any], Preprocessing]:
    """Read configuration and preprocessing of a model by its hub name or folder; weights are read later."""
    config = _json_of(name, "config.json")
    if config is None:
        raise ValueError(
            f"There is no image model {name!r}: give the folder of one (with config.json and model.safetensors, as "
            "save_pretrained writes it), its name on the hub if you are on line, or a name as 'efficientnet-lite0'."
        )
    said = _json_of(name, "preprocessor_config.json") or {}
    known = {"model_type", *_TYPES[_known_type(config)][2], *_IGNORED}
    config = {key: value for key, value in config.items() if key in known}
    _checked(config)
    return config, _preprocessing(said, config)


def _preprocessing(said: Mapping[str, Any], config: Mapping[str, Any]) -> Preprocessing:
    side = config.get("image_size") or 224
    asked = said.get("size") or side
    asked = {"height": asked, "width": asked} if isinstance(asked, int) else dict(asked)
    crop = said.get("crop_size") if said.get("do_center_crop") else None
    crop = crop.get("height") if isinstance(crop, Mapping) else crop
    shorter = asked.get("shortest_edge")
    scale = 1 / float(said.get("rescale_factor") or 1 / 255)
    mean, spread = (
        [scale * float(value) for value in said.get(name) or _IMAGENET[name]] for name in ("image_mean", "image_std")
    )
    if said.get("do_normalize") is False:
        mean, spread = [0.0] * 3, [scale] * 3
    kind = "bicubic" if said.get("resample") == _BICUBIC else "bilinear"
    size = int(crop or shorter or asked.get("height") or side)
    if len(mean) != 3 or len(spread) != 3 or not all(each > 0 for each in spread) or not 16 <= size <= 1024:
        raise ValueError(f"No image can be prepared with size={size}, mean={mean} and spread={spread}.")
    return Preprocessing(size, mean, spread, int(shorter) if shorter else None, kind)


class TransformerNet(nn.Module):
    """An image model of `transformers`, as a net from normalised images to vectors.

    A vector is brought to mean 0 and spread 1 by itself: so its usual size is known without a single image.

    Parameters
    ----------
    config : mapping
        The model's configuration, as its config.json has it; its ``model_type`` is "vit", "deit" or "dinov2".
    pool : str
        "cls" for the first token, "mean" for the mean of all, "pooled" for what the model itself pools.
    layer : int, optional
        Take the map behind this layer (0 in front of the first; -2 behind the last but one) instead of the last one.
    adapt : int
        Last blocks whose linear layers are to learn.
    source : str, optional
        Hub name or folder that `load_published` takes weights from.

    Examples
    --------
    >>> tiny = {"model_type": "vit", "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2,
    ...         "intermediate_size": 16, "image_size": 32, "patch_size": 16}
    >>> TransformerNet(tiny).eval()(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 8])
    """

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        pool: str = "cls",
        layer: int | None = None,
        adapt: int = 0,
        source: str | None = None,
    ) -> None:
        super().__init__()
        if pool not in POOLS:
            raise ValueError(f"pool={pool!r:.80} should be one of {', '.join(POOLS)}.")
        if layer is not None and pool == "pooled":
            raise ValueError("pool='pooled' is of the last layer: leave layer out, or take pool='cls' or 'mean'.")
        self.config, self.pool, self.layer, self.adapt, self.source = dict(config), pool, layer, adapt, source
        self.model = _empty_model(self.config, pool)
        made = self.model.config
        depth = made.num_hidden_layers
        if layer is not None and layer not in _Whole(-depth - 1, depth):
            raise ValueError(f"layer={layer!r:.80} should be a whole number from {-depth - 1} to {depth}.")
        if adapt not in _Whole(0, depth):
            raise ValueError(f"adapt={adapt!r:.80} should be a number of last blocks, of which this model has {depth}.")
        pooled = made.pooler_output_size if pool == "pooled" and hasattr(made, "pooler_output_size") else None
        self.out_features = int(pooled or made.hidden_size)
        self.model.eval().requires_grad_(False)
        for block in self._blocks()[depth - adapt :]:
            for part in block.modules():
                if isinstance(part, nn.Linear):
                    part.requires_grad_(True)

    def _blocks(self) -> nn.ModuleList:
        depth = self.model.config.num_hidden_layers
        return next(part for part in self.model.modules() if isinstance(part, nn.ModuleList) and len(part) == depth)

    def check_size(self, size: int) -> None:
        """Refuse images of a side that the model does not take."""
        made = self.model.config
        fits = size == made.image_size or made.model_type == "dinov2"  # which interpolates its positions
        if not fits or not 1 <= size // made.patch_size <= _MOST_PATCHES:
            raise ValueError(
                f"Images would be prepared with side {size}, and this {made.model_type} model takes images of side "
                f"{made.image_size} in patches of side {made.patch_size}."
            )

    def load_published(self) -> tuple[Tensor, Tensor]:
        """Take over the weights of the hub's name or folder that the net was made for."""
        if self.source is None:
            raise ValueError(
                "This net came out of a file, with its weights: there is no other place to read them from."
            )
        self.model.load_state_dict(_read_weights(self.source, self.config, self.model.config, self.pool).state_dict())
        probe = torch.zeros(1, 3, *[self.model.config.image_size] * 2)
        with torch.no_grad():
            if not torch.equal(self(probe), self(probe)):
                raise ValueError(
                    f"{self.source!r} gives another vector for the same image each time, as if it drew lots."
                )
        return torch.zeros(self.out_features), torch.ones(self.out_features)

    def forward(self, pixels: Tensor) -> Tensor:
        """Vectors of normalised images ``(n, 3, size, size)``."""
        told = {} if self.layer is None else {"output_hidden_states": True}
        answer = self.model(pixel_values=pixels, return_dict=True, **told)
        return F.layer_norm(self._pooled(answer), (self.out_features,))

    def _pooled(self, answer: Any) -> Tensor:
        if self.pool == "pooled":
            pooled: Tensor = answer.pooler_output.flatten(1)
            return pooled
        found: Tensor = answer.last_hidden_state if self.layer is None else answer.hidden_states[self.layer]
        return found[:, 0] if self.pool == "cls" else found.mean(1)


def _transformers() -> Any:
    try:
        import transformers  # noqa: PLC0415  (an extra, and slow to import)
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f'Image models of this kind need the package transformers: pip install "cldnet[pretrained]" ({error}).'
        ) from error
    return transformers


def _empty_model(config: Mapping[str, Any], pool: str) -> Any:
    """Make a model of zeros, or one without memory under ``torch.device("meta")``; its weights are read afterwards."""
    fields, (config_class, model_class, _) = _checked(config), _TYPES[_known_type(config)]
    library = _transformers()
    try:
        made = getattr(library, config_class)(**fields, attn_implementation=_ATTENTION)
        if made.hidden_size % made.num_attention_heads:
            raise ValueError(f"hidden_size={made.hidden_size} is no multiple of num_attention_heads")
        if not 1 <= made.image_size // made.patch_size <= _MOST_PATCHES:
            raise ValueError(
                f"image_size={made.image_size} and patch_size={made.patch_size} do not give 1 to {_MOST_PATCHES} patches a side"
            )
        with torch.device("meta"):  # draws nothing, and takes no time
            model = _without_pooler(getattr(library, model_class)(made), pool)
    except Exception as error:  # transformers has errors of its own
        raise ValueError(f"No model of type {config['model_type']!r} can be made so ({error}).") from error
    if torch.get_default_device().type == "meta":
        return model
    model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.zero_()
    return model


@contextmanager
def _drawing_nothing() -> Iterator[None]:
    """Leave torch's own generator as it was: the library draws first weights from it, which are not wanted."""
    with torch.random.fork_rng(devices=[]):
        yield


def _without_pooler(model: Any, pool: str) -> Any:
    """Take a pooler out that is not used: checkpoints often have none, and it would be drawn anew each time."""
    if pool != "pooled" and isinstance(getattr(model, "pooler", None), nn.Module):
        model.pooler = None
    return model


def _read_weights(source: str, config: Mapping[str, Any], made: Any, pool: str) -> Any:
    """Read a model as safetensors, and nothing but; refuse one that lacks weights."""
    library = _transformers()
    told = {"use_safetensors": True, "trust_remote_code": False, "output_loading_info": True, "config": made}
    try:
        with _drawing_nothing(), _quiet(library.logging):
            model, loading = getattr(library, _TYPES[_known_type(config)][1]).from_pretrained(source, **told)
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"The weights of {source!r} cannot be read ({str(error).splitlines()[0]}).") from error
    missing = sorted(name for name in loading["missing_keys"] if pool == "pooled" or not name.startswith("pooler."))
    if missing:
        raise ValueError(f"{source!r} has no weights for {len(missing)} tensors of the model, as {missing[0]!r}.")
    return _without_pooler(model.float(), pool)


@contextmanager
def _quiet(log: Any) -> Iterator[None]:
    """Keep tables of what was not used, and bars of its own, from the user; a library prints nothing."""
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()


def _json_of(name: str, file: str) -> dict[str, Any] | None:
    """One of a model's JSON files: out of its folder, or through the hub's own cache."""
    path: Path | None = Path(name).expanduser() / file
    if path is not None and not path.parent.is_dir():
        path = _fetched(name, file)
    if path is None or not path.is_file():
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{str(path)!r} is not JSON ({error}).") from error
    if not isinstance(found, dict):
        raise ValueError(f"{str(path)!r} should hold a table.")
    return found


def _fetched(name: str, file: str) -> Path | None:
    _transformers()
    from huggingface_hub import hf_hub_download  # noqa: PLC0415  (comes with transformers)

    try:
        return Path(hf_hub_download(name, file))
    except Exception:  # no such name, no network, no rights: all the same to whoever asks
        return None
