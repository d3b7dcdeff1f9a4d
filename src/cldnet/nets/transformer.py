"""Image models through `transformers`: ViT and its kin, from a hub's name or a local folder.

Only numbers are read: weights as safetensors, the rest as JSON. No code of a model's author is run, and no torchvision is
needed, because preprocessing is our own (`cldnet.nets.pretrained`). A model's configuration is kept in our files, so that
whoever has one needs neither the hub nor the folder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
#: What a stored configuration says of the machine it was stored on, and not of the net.
_OF_THE_FILE = (
    "transformers_version",
    "_name_or_path",
    "dtype",
    "torch_dtype",
    "auto_map",
    "_attn_implementation_autoset",
)


def read_source(name: str) -> tuple[dict[str, Any], Preprocessing]:
    """Read configuration and preprocessing of a model by its hub name or folder; weights are read later."""
    config = _json_of(name, "config.json")
    if config is None:
        raise ValueError(
            f"There is no image model {name!r}: give the folder of one (with config.json and model.safetensors, as "
            "save_pretrained writes it), its name on the hub if you are on line, or a name as 'efficientnet-lite0'."
        )
    said = _json_of(name, "preprocessor_config.json") or {}
    config = {key: value for key, value in config.items() if key not in _OF_THE_FILE}
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
        The model's configuration, as its config.json has it.
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
            raise ValueError(f"pool={pool!r} should be one of {', '.join(POOLS)}.")
        if layer is not None and pool == "pooled":
            raise ValueError("pool='pooled' is of the last layer: leave layer out, or take pool='cls' or 'mean'.")
        self.config, self.pool, self.layer, self.adapt, self.source = dict(config), pool, layer, int(adapt), source
        made = _model_config(self.config)
        with _drawing_nothing():
            self.model = _without_pooler(_transformers().AutoModel.from_config(made), pool)
        self.out_features = _width(made)
        self.model.eval().requires_grad_(False)
        for block in self._last_blocks(self.adapt):
            for part in block.modules():
                if isinstance(part, nn.Linear):
                    part.requires_grad_(True)

    def _last_blocks(self, count: int) -> list[nn.Module]:
        if not count:
            return []
        depth = getattr(self.model.config, "num_hidden_layers", None)
        rows = [part for part in self.model.modules() if isinstance(part, nn.ModuleList) and len(part) == depth]
        if not rows or not 1 <= count <= len(rows[0]):
            raise ValueError(
                f"adapt={count} should be a number of last blocks, of which this model has {depth or 'none'}."
            )
        return list(rows[0][-count:])

    def load_published(self) -> tuple[Tensor, Tensor]:
        """Take over the weights of the hub's name or folder that the net was made for."""
        if self.source is None:
            raise ValueError(
                "This net came out of a file, with its weights: there is no other place to read them from."
            )
        found = _read_weights(self.source, self.model.config, self.pool)
        self.model.load_state_dict(found.state_dict())
        probe = torch.zeros(1, 3, *[int(getattr(self.model.config, "image_size", 0) or 224)] * 2)
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
        if found.ndim == 4:  # a map, of a convolutional net
            if self.pool == "cls":
                raise ValueError("This model has no first token: use pool='mean' or 'pooled'.")
            return found.mean((2, 3))
        return found[:, 0] if self.pool == "cls" else found.mean(1)


def _transformers() -> Any:
    try:
        import transformers  # noqa: PLC0415  (an extra, and slow to import)
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f'Image models of this kind need the package transformers: pip install "cldnet[pretrained]" ({error}).'
        ) from error
    return transformers


def _model_config(config: Mapping[str, Any]) -> Any:
    kind = config.get("model_type")
    try:
        return _transformers().AutoConfig.for_model(kind, **{k: v for k, v in config.items() if k != "model_type"})
    except ImportError:
        raise
    except Exception as error:  # whatever the many classes of that library make of a stranger's numbers
        raise ValueError(f"No model of type {kind!r} can be made from this configuration ({error}).") from error


def _width(config: Any) -> int:
    width = getattr(config, "hidden_size", None) or (getattr(config, "hidden_sizes", None) or [None])[-1]
    if not isinstance(width, int) or width < 1:
        raise ValueError(f"A model of type {config.model_type!r} does not say how long its vectors are.")
    return width


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


def _read_weights(source: str, config: Any, pool: str) -> Any:
    """Read a model as safetensors, and nothing but; refuse one that lacks weights."""
    library = _transformers()
    told = {"use_safetensors": True, "trust_remote_code": False, "output_loading_info": True, "config": config}
    try:
        with _drawing_nothing(), _quiet(library.logging):
            model, loading = library.AutoModel.from_pretrained(source, **told)
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
