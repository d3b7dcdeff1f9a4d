"""Image models of `transformers`: ViT, DeiT and DINOv2, from a name on the hub or a local folder.

Only data are read: weights as safetensors, the rest as JSON. No code of a model's author runs, and torchvision is not needed,
because preprocessing is our own (`cldnet.nets.pretrained`). Our files contain a model's configuration, so that loading them
needs neither the hub nor the folder.

A configuration is untrusted. It names one of three architectures, every field is checked against a schema, and
the model is built through that architecture's own classes: `AutoModel` would follow ``auto_map`` to code, nested
configurations, and kernels on the hub.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cldnet.nets.pretrained import Preprocessing
from cldnet.nets.sources import read_json

#: What is taken of a model's last map: its first token, the mean of all, or what the model itself pools.
POOLS = ("cls", "mean", "pooled")
_BICUBIC = 3  # Pillow's number
_DEFAULT_PIXELS = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}  # the library's default for ViT
_MAX_PATCHES = 64  # per side of an image: attention takes the fourth power of them
_ATTENTION = "sdpa"  # torch's own; other names would be looked up, kernels even on the hub

#: Activations that a configuration may name; all are functions of torch.
_ACTIVATIONS = [
    *("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "linear", "quick_gelu", "relu", "sigmoid", "silu", "tanh")
]
#: A field's allowed values: a list, or a type with the least and the largest number.
Rule = list[Any] | tuple[type, float, float]
_COMMON: Mapping[str, Rule] = {
    "hidden_size": (int, 1, 1 << 14),
    "num_hidden_layers": (int, 1, 48),
    "num_attention_heads": (int, 1, 256),
    "hidden_act": _ACTIVATIONS,
    "layer_norm_eps": (float, 0, 1),
    "image_size": (int, 1, 1024),
    "patch_size": (int, 1, 1024),
    "num_channels": (int, 3, 3),
    "qkv_bias": [False, True],
}
_VIT: Mapping[str, Rule] = {
    **_COMMON,
    "intermediate_size": (int, 1, 1 << 17),
    "pooler_output_size": (int, 1, 1 << 14),
    "pooler_act": _ACTIVATIONS,
}
_DINO: Mapping[str, Rule] = {
    **_COMMON,
    "mlp_ratio": (int, 1, 64),
    "use_swiglu_ffn": [False, True],
    "use_mask_token": [False, True],
}
_OPTIONAL = {"pooler_output_size"}  # may be None
#: Supported architectures: their classes in `transformers`, and the fields that they are built from.
_TYPES: Mapping[str, tuple[str, str, Mapping[str, Rule]]] = {
    "vit": ("ViTConfig", "ViTModel", _VIT),
    "deit": ("DeiTConfig", "DeiTModel", _VIT),
    "dinov2": ("Dinov2Config", "Dinov2Model", _DINO),
}
#: Fields of stored configurations that do not affect a fixed net: initial weights, dropout, names of classes, outputs. They are
#: not used, but stay in a description, because a map's id covers it.
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


def is_allowed(value: Any, rule: Rule) -> bool:
    """Whether a value, of the very type, is allowed by a rule."""
    if isinstance(rule, list):
        return any(type(value) is type(each) and value == each for each in rule)
    kind, least, most = rule
    return type(value) in {int, kind} and least <= value <= most


def _known_type(config: Mapping[str, Any]) -> str:
    """The architecture that a configuration names, if it is supported."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _TYPES:
        raise ValueError(f"Models of type {kind!r:.80} are not supported; supported are {', '.join(sorted(_TYPES))}.")
    return kind


def _checked(config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a model is built from; unknown fields and values outside of the schema are refused."""
    kind = _known_type(config)
    rules = _TYPES[kind][2]
    fields: dict[str, Any] = {}
    for name, value in config.items():
        if name in rules:
            rule = rules[name]
            if not is_allowed(value, rule) and not (value is None and name in _OPTIONAL):
                words = f"one of {', '.join(map(str, rule))}"
                if isinstance(rule, tuple):
                    words = f"a {'whole number' if rule[0] is int else 'number'} from {rule[1]:g} to {rule[2]:g}"
                raise ValueError(f"A {kind} model has {name}={value!r:.80}; expected {words}.")
            fields[name] = float(value) if rule[0] is float else value  # transformers takes no 0 for 0.0
        elif name != "model_type" and name not in _IGNORED:
            raise ValueError(f"The configuration of a {kind} model should not have the field {name!r:.80}.")
    return fields


def read_source(name: str) -> tuple[dict[str, Any], Preprocessing]:
    """Read configuration and preprocessing of a model from its hub name or folder; weights are read later."""
    config = read_json(name, "config.json")
    if config is None:
        raise ValueError(
            f"There is no image model {name!r}. Give the folder of one (with config.json and model.safetensors, as "
            "save_pretrained writes it), its name on the hub if you are online, or a name such as 'efficientnet-lite0'."
        )
    processor = read_json(name, "preprocessor_config.json") or {}
    known = {"model_type", *_TYPES[_known_type(config)][2], *_IGNORED}
    config = {key: value for key, value in config.items() if key in known}
    _checked(config)
    return config, _preprocessing(processor, config)


def _preprocessing(processor: Mapping[str, Any], config: Mapping[str, Any]) -> Preprocessing:
    """Preprocessing from a model's processor configuration."""
    side = config.get("image_size") or 224
    resize = processor.get("size") or side
    resize = {"height": resize, "width": resize} if isinstance(resize, int) else dict(resize)
    crop = processor.get("crop_size") if processor.get("do_center_crop") else None
    crop = crop.get("height") if isinstance(crop, Mapping) else crop
    shorter = resize.get("shortest_edge")
    scale = 1 / float(processor.get("rescale_factor") or 1 / 255)
    mean, spread = (
        [scale * float(value) for value in processor.get(name) or _DEFAULT_PIXELS[name]]
        for name in ("image_mean", "image_std")
    )
    if processor.get("do_normalize") is False:
        mean, spread = [0.0] * 3, [scale] * 3
    kind = "bicubic" if processor.get("resample") == _BICUBIC else "bilinear"
    size = int(crop or shorter or resize.get("height") or side)
    if len(mean) != 3 or len(spread) != 3 or not all(each > 0 for each in spread) or not 16 <= size <= 1024:
        raise ValueError(f"Invalid preprocessing: size={size}, mean={mean}, std={spread}.")
    return Preprocessing(size, mean, spread, int(shorter) if shorter else None, kind)


class TransformerNet(nn.Module):
    """An image model of `transformers`, as a net from normalised images to vectors.

    Each vector is normalised to mean 0 and std 1, so its usual size is known without data. ``layer`` takes the output of
    another layer than the last (0: before the first). The linear layers of the last ``adapt`` blocks learn. `load_published`
    reads weights from ``source``, a hub name or a folder.
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
            raise ValueError("pool='pooled' is for the last layer. Leave layer out, or use pool='cls' or 'mean'.")
        self.config, self.pool, self.layer, self.adapt, self.source = dict(config), pool, layer, adapt, source
        self.model = _empty_model(self.config, pool)
        made = self.model.config
        depth = made.num_hidden_layers
        if layer is not None and not is_allowed(layer, (int, -depth - 1, depth)):
            raise ValueError(f"layer={layer!r:.80} should be a whole number from {-depth - 1} to {depth}.")
        if not is_allowed(adapt, (int, 0, depth)):
            raise ValueError(f"adapt={adapt!r:.80} should be a number of last blocks; this model has {depth}.")
        pooled = made.pooler_output_size if pool == "pooled" and hasattr(made, "pooler_output_size") else None
        self.out_features = int(pooled or made.hidden_size)
        self.model.eval().requires_grad_(False)
        for part in self.blocks[depth - adapt :].modules():
            if isinstance(part, nn.Linear):
                part.requires_grad_(True)

    @property
    def blocks(self) -> nn.ModuleList:
        """The model's layers, wherever the installed version of `transformers` has them."""
        lists = (part for part in self.model.modules() if isinstance(part, nn.ModuleList))
        return next(part for part in lists if len(part) == self.model.config.num_hidden_layers)

    def check_size(self, size: int) -> None:
        """Refuse images of a size that the model does not take."""
        made = self.model.config
        fits = size == made.image_size or made.model_type == "dinov2"  # which interpolates its positions
        if not fits or not 1 <= size // made.patch_size <= _MAX_PATCHES:
            raise ValueError(
                f"The preprocessing gives images of side {size}, and this {made.model_type} model takes side "
                f"{made.image_size} in patches of side {made.patch_size}."
            )

    def load_published(self) -> tuple[Tensor, Tensor]:
        """Load the weights from the hub name or folder that the net was built for."""
        if self.source is None:
            raise ValueError("This net came from a file, with its weights. They cannot be read from elsewhere.")
        self.model.load_state_dict(_read_weights(self.source, self.config, self.model.config, self.pool).state_dict())
        return torch.zeros(self.out_features), torch.ones(self.out_features)

    def forward(self, pixels: Tensor) -> Tensor:
        """Vectors of normalised images ``(n, 3, size, size)``."""
        options = {} if self.layer is None else {"output_hidden_states": True}
        output = self.model(pixel_values=pixels, return_dict=True, **options)
        if self.pool == "pooled":
            return F.layer_norm(output.pooler_output.flatten(1), (self.out_features,))
        return self.pooled(output.last_hidden_state if self.layer is None else output.hidden_states[self.layer])

    def pooled(self, tokens: Tensor) -> Tensor:
        """Vectors of images from their tokens ``(n, tokens, width)``: of the first token, or the mean of all."""
        return F.layer_norm(tokens[:, 0] if self.pool == "cls" else tokens.mean(1), (self.out_features,))


def _transformers() -> Any:
    """Import `transformers`, or say how to install it."""
    try:
        import transformers  # noqa: PLC0415  (an extra, and slow to import)
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            'Image models of this kind need the package transformers: pip install ".[pretrained]" in a clone of CLDNet '
            f"({error})."
        ) from error
    return transformers


def _empty_model(config: Mapping[str, Any], pool: str) -> Any:
    """Build a model of zeros, or one without memory under ``torch.device("meta")``; weights are read afterwards."""
    fields, (config_class, model_class, _) = _checked(config), _TYPES[_known_type(config)]
    library = _transformers()
    try:
        made = getattr(library, config_class)(**fields, attn_implementation=_ATTENTION)
        if made.hidden_size % made.num_attention_heads:
            raise ValueError(f"hidden_size={made.hidden_size} is not a multiple of num_attention_heads")
        if not 1 <= made.image_size // made.patch_size <= _MAX_PATCHES:
            raise ValueError(
                f"image_size={made.image_size} and patch_size={made.patch_size} should give 1 to {_MAX_PATCHES} "
                "patches per side"
            )
        with torch.device("meta"):  # draws nothing, and takes no time
            model = _without_pooler(getattr(library, model_class)(made), pool)
    except Exception as error:  # transformers has errors of its own
        raise ValueError(f"Cannot build a model of type {config['model_type']!r} ({error}).") from error
    if torch.get_default_device().type == "meta":
        return model
    model.to_empty(device="cpu")
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.zero_()
    return model


def _without_pooler(model: Any, pool: str) -> Any:
    """Remove an unused pooler: checkpoints often have none, and it would be initialised at random."""
    if pool != "pooled" and isinstance(getattr(model, "pooler", None), nn.Module):
        model.pooler = None
    return model


def _read_weights(source: str, config: Mapping[str, Any], made: Any, pool: str) -> Any:
    """Read a model from safetensors only; refuse one that lacks weights."""
    library = _transformers()
    options = {"use_safetensors": True, "trust_remote_code": False, "output_loading_info": True, "config": made}
    try:
        # The library draws initial weights from torch's global generator.
        with torch.random.fork_rng(devices=[]), _quiet(library.logging):
            model, loading = getattr(library, _TYPES[_known_type(config)][1]).from_pretrained(source, **options)
    except (OSError, ValueError, RuntimeError) as error:
        raise ValueError(f"The weights of {source!r} cannot be read ({str(error).splitlines()[0]}).") from error
    missing = sorted(name for name in loading["missing_keys"] if pool == "pooled" or not name.startswith("pooler."))
    if missing:
        raise ValueError(f"{source!r} has no weights for {len(missing)} tensors of the model, such as {missing[0]!r}.")
    return _without_pooler(model.float(), pool)


@contextmanager
def _quiet(log: Any) -> Iterator[None]:
    """Silence the library's tables and progress bars."""
    verbosity, bars = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity_error()
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(verbosity)
        if bars:
            log.enable_progress_bar()
