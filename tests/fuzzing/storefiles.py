"""Files of the store, small ones of every kind, and what a stranger or a bad disk may make of them."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor, nn

import cldnet.storage as store
from cldnet import CLDNetClassifier, load_map, merge, save_map
from cldnet.data.sentences import TEXT_BYTES
from cldnet.estimator.statistics import Statistics
from cldnet.methods.fit import TaskCheckpoint
from cldnet.nets import (
    FEATURE_MAPS,
    Expanded,
    FeatureMap,
    FrozenNet,
    RandomFourier,
    RandomReLU,
    WhitenedPatches,
)
from cldnet.storage.checkpoint import SessionCheckpoint
from fuzzing.guard import ViolationError, Watch, refusal, watched
from fuzzing.mutations import VALUES, foreign, misplace, nested, spoil
from nets.berts import save_bert

#: How a file of a session is asked where it stands.
Call = Callable[[SessionCheckpoint], TaskCheckpoint | None]
DRAW = np.random.default_rng(0)
Y = np.arange(24) % 3
X = DRAW.normal(size=(24, 6)) + 3 * Y[:, None]
IMAGES = DRAW.integers(0, 256, (40, 10, 10), dtype=np.uint8)
LABELS = np.array(["cat", "dog", "owl", "ähre"])
SMALL: dict[str, Any] = {"capacity": 4, "random_state": 0, "n_threads": 1, "device": "cpu"}
HBO: dict[str, Any] = {**SMALL, "embed_dim": 8, "epochs": 1, "batch_size": 8}


#: Numbers of the inputs that a model is asked about at most: whoever asks about larger ones has the memory for them.
ASKED = 1 << 20


@dataclass(frozen=True)
class Kind:
    """How files of one kind are made, loaded, written again, and used by whoever believes them."""

    make: Callable[[Path], None]
    load: Callable[[Path], Any]
    save: Callable[[Any, Path], None]
    use: Callable[[Any, Path], None]
    layout: int = store.SCHEMA


@cache
def module() -> nn.Module:
    """A module that takes images of any size, so that the file alone says how large they are."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Unflatten(1, (1, -1)), nn.Conv2d(1, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten())


@cache
def narrow_mlp() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 5))


def small_map() -> RandomReLU:
    features = RandomReLU((6,), 24, seed=0)
    features.fit(torch.from_numpy(X))
    return features


def _finite(numbers: Any) -> None:
    if not np.isfinite(np.asarray(numbers)).all():
        raise ViolationError("it answers with numbers that are not finite")


def _ask(clf: CLDNetClassifier, inputs: Any) -> None:
    """Ask all that can be asked, and teach some more."""
    known = clf._model.inputs  # type: ignore[union-attr]
    shape = (2, *known.shape)
    x: Any = SENTENCES[:2]
    if not known.text:
        same = np.shape(inputs[:2]) == shape
        x = inputs[:2] if same else np.broadcast_to(np.uint8(0) if known.pixels else np.float64(0), shape)
    if prod(shape) > ASKED:
        return
    _finite(clf.decision_function(x))
    _finite(clf.predict_proba(x))
    if set(clf.predict(x).tolist()) - set(clf.classes_.tolist()):
        raise ViolationError("it predicts a class that it does not know")
    clf.footprint()
    torch.randperm(9, generator=clf._model.learner.generator)  # type: ignore[union-attr]


def _model(make: Callable[[], CLDNetClassifier], inputs: Any, backbone: Callable[[], nn.Module] | None = None) -> Kind:
    return Kind(
        make=lambda path: make().save(path),
        load=lambda path: CLDNetClassifier.load(path, backbone=None if backbone is None else copy.deepcopy(backbone())),
        save=lambda clf, path: clf.save(path),
        use=lambda clf, path: _ask(clf, inputs),
    )


def _exact() -> CLDNetClassifier:
    clf = CLDNetClassifier(backbone=RandomReLU((6,), 24, seed=0), **SMALL).partial_fit(X, LABELS[Y])
    return clf.partial_fit(X[:4] - 5, LABELS[[3, 3, 3, 3]]).forget_class("dog")


def _with_receipts() -> CLDNetClassifier:
    return CLDNetClassifier(backbone=small_map(), receipts=True, **SMALL).partial_fit(X, LABELS[Y])


def _by_name() -> CLDNetClassifier:
    return CLDNetClassifier(backbone="auto", gram="diagonal", **SMALL).partial_fit(X, Y)


def _patches() -> CLDNetClassifier:
    features = WhitenedPatches((10, 10), filters=3, seed=0, size=4, windows=2)
    return CLDNetClassifier(backbone=features, gram=5, **SMALL).partial_fit(IMAGES, np.arange(40) % 3 * 2.0)


def _mlp() -> CLDNetClassifier:
    return CLDNetClassifier("hbo", narrow_mlp(), **HBO).partial_fit(X, Y == 1).partial_fit(X, Y == 2)


def _named_mlp() -> CLDNetClassifier:
    return CLDNetClassifier("hbo", "mlp", **HBO).partial_fit(X, Y)


def _convolution() -> CLDNetClassifier:
    return CLDNetClassifier("hbo", module(), input_shape=(10, 10), **HBO).partial_fit(IMAGES, np.arange(40) % 3 - 7)


def _merged() -> CLDNetClassifier:
    shared = small_map()
    parts = [CLDNetClassifier(backbone=shared, **SMALL).partial_fit(X[c::3], LABELS[Y[c::3]]) for c in range(3)]
    return merge(parts)


def _sums(path: Path) -> None:
    CLDNetClassifier(backbone=small_map(), **SMALL).partial_fit(
        X, LABELS[Y], sample_weight=1 + Y / 3
    ).statistics().save(path)


def _add(stats: Statistics, path: Path) -> None:
    _finite([stats.loss, stats.rows, copy.copy(stats).add(stats, allow_duplicates=True).rows])
    CLDNetClassifier(backbone=small_map(), **SMALL).merge([stats])


#: What a session is asked by whether it is that of a call, once one was made.
SESSION_CALL: list[Call] = []


class PowerCutError(BaseException):
    """The process is gone."""


class _Cut(SessionCheckpoint):
    def __call__(self, midway: Callable[[], TaskCheckpoint]) -> None:
        super().__call__(midway)
        if midway().batches == 2:
            raise PowerCutError


def _session_of(clf: CLDNetClassifier, path: Path, file: type[SessionCheckpoint]) -> Call:
    """Teach in a session that is kept in a file, and tell what the file was asked by whether it is that of the call."""
    import cldnet.estimator.classifier

    known: list[Call] = []

    class Known(file):  # type: ignore[misc, valid-type]
        def resume(self, *arguments: Any, **named: Any) -> TaskCheckpoint | None:
            known.append(lambda file: SessionCheckpoint.resume(file, *arguments, **named))
            return super().resume(*arguments, **named)

    before, cldnet.estimator.classifier.SessionCheckpoint = cldnet.estimator.classifier.SessionCheckpoint, Known  # type: ignore[misc]
    try:
        with clf.session(path, every=0):
            clf.partial_fit(X, Y)
    except PowerCutError:
        pass
    finally:
        cldnet.estimator.classifier.SessionCheckpoint = before  # type: ignore[misc]
    return known[0]


def _learner() -> CLDNetClassifier:
    return CLDNetClassifier("hbo", narrow_mlp(), **HBO)


def _interrupted(path: Path) -> None:
    SESSION_CALL[:] = [_session_of(_learner(), path, _Cut)]


def _go_on(session: Any, path: Path) -> None:
    clf = _learner()
    _session_of(clf, path, SessionCheckpoint)
    _finite(clf.decision_function(X))


def _as_written(midway: TaskCheckpoint, path: Path) -> None:
    path.unlink(missing_ok=True)
    file = SessionCheckpoint(path, 0)
    SESSION_CALL[0](file)  # nothing is there, and the file knows whose it will be
    file(lambda: midway)


def _load_session(path: Path) -> TaskCheckpoint:
    midway = SESSION_CALL[0](SessionCheckpoint(path, 0))
    if midway is None:
        raise FileNotFoundError("There is no session, so it would begin anew.")
    return midway


#: A tiny image model, and how its images are prepared.
VIT = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 16, "patch_size": 8}
PHOTOS = DRAW.integers(0, 256, (8, 3, 12, 12), dtype=np.uint8)
LITE = {"net": "efficientnet-lite0", "size": 32}
SENTENCES = [f"hello my card number {letter}" for letter in "abcdefgh"]


def _vit(folder: Path, kind: str = "vit") -> str:
    """Save an image model with random weights in a folder, and name it."""
    import transformers

    if not (folder / kind).exists():
        torch.manual_seed(0)
        if kind == "vit":
            model = transformers.ViTModel(transformers.ViTConfig(**VIT, intermediate_size=8), add_pooling_layer=False)
        else:
            model = transformers.Dinov2Model(transformers.Dinov2Config(**VIT, mlp_ratio=2))
        model.save_pretrained(folder / kind)
    return str(folder / kind)


def _expanded(make: Callable[[Path], list[Any]]) -> Kind:
    """A model of the exact solver over frozen nets that a function names, in a folder where it may make them."""

    def write(path: Path) -> None:
        features = Expanded(PHOTOS.shape[1:], 12, seed=0, bodies=make(path.parent))
        CLDNetClassifier(backbone=features, **SMALL).partial_fit(PHOTOS, np.arange(8) % 3).save(path)

    return replace(_model(_exact, PHOTOS), make=write)


def _frozen(make: Callable[[Path], list[Any]], widths: tuple[int, ...] = ()) -> Kind:
    """A model of the other solver over frozen nets."""

    def write(path: Path) -> None:
        net = FrozenNet(PHOTOS.shape[1:], widths, seed=0, bodies=make(path.parent))
        CLDNetClassifier("hbo", net, **HBO).partial_fit(PHOTOS, np.arange(8) % 3).save(path)

    return replace(_model(_exact, PHOTOS), make=write)


def _sentences(make: Callable[[str], Any]) -> Kind:
    """A model over an encoder of sentences, which a function makes with the folder of one."""

    def write(path: Path) -> None:
        make(_bert(path.parent)).partial_fit(SENTENCES, np.arange(8) % 3).save(path)

    return replace(_model(_exact, SENTENCES), make=write)


def _bert(folder: Path) -> str:
    """Save a text encoder with random weights in a folder, and name it."""
    return str(folder / "bert") if (folder / "bert").exists() else save_bert(folder / "bert")


def _expanded_map(path: Path) -> None:
    bodies = [{"net": _vit(path.parent, "dinov2"), "layer": -2}]
    save_map(Expanded(PHOTOS.shape[1:], 12, seed=0, bodies=bodies, mirror=True).load_published(), path)


def _map(make: Callable[[], FeatureMap]) -> Kind:
    def fitted(path: Path) -> None:
        features = make()
        features.fit(torch.from_numpy(X if len(features.input_shape) == 1 else IMAGES))
        save_map(features, path)

    return Kind(
        make=fitted,
        load=load_map,
        save=save_map,
        use=_apply,
    )


def _apply(features: FeatureMap, path: Path) -> None:
    if prod(features.input_shape) <= ASKED:
        _finite(features(torch.zeros(2, *features.input_shape)))


#: Files of older layouts, as they were written then.
OLD = Path(__file__).parents[1] / "fixtures" / "store"


@cache
def module_of_old() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5))


def _old(layout: int) -> dict[str, Kind]:
    """Files of a layout that is not written any more, but read."""
    nothing = np.zeros((0, 0))
    likes = {
        "exact": _model(_exact, nothing),
        "hbo": _model(_mlp, nothing, module_of_old),
        "map": KINDS["map"],
        "statistics": replace(
            KINDS["statistics"],
            use=lambda stats, _: _finite([stats.rows, copy.copy(stats).add(stats, allow_duplicates=True).rows]),
        ),
    }
    return {
        f"{name} of layout {layout}": replace(
            like, make=partial(shutil.copyfile, OLD / str(layout) / f"{name}.cldnet"), layout=layout
        )
        for name, like in likes.items()
    }


#: Every kind of file that the library reads back.
KINDS: dict[str, Kind] = {
    "exact": _model(_exact, X),
    "exact by name": _model(_by_name, X),
    "exact with receipts": _model(_with_receipts, X),
    "exact over patches": _model(_patches, IMAGES),
    "hbo by name": _model(_named_mlp, X),
    "hbo over a user's mlp": _model(_mlp, X, narrow_mlp),
    "hbo over a user's module": _model(_convolution, IMAGES, module),
    "merged": _model(_merged, X),
    "map": _map(lambda: RandomFourier((6,), 24, seed=0)),
    "map of patches": _map(lambda: WhitenedPatches((10, 10), filters=3, seed=0, size=4, windows=2)),
    "statistics": Kind(_sums, Statistics.load, lambda stats, path: stats.save(path), _add),
    "session": Kind(_interrupted, _load_session, _as_written, _go_on),
}
for _layout in range(1, store.SCHEMA):
    KINDS |= _old(_layout)
#: Files over pretrained nets.
PRETRAINED: dict[str, Kind] = {
    "exact over a vit": _expanded(lambda folder: [_vit(folder)]),
    "exact over nets beside each other": _expanded(
        lambda folder: [{"net": _vit(folder), "pool": "mean"}, _vit(folder, "dinov2")]
    ),
    "hbo over a frozen vit": _frozen(lambda folder: [_vit(folder)], (6,)),
    "hbo over an adapted vit": _frozen(lambda folder: [{"net": _vit(folder), "adapt": 1}]),
    "hbo over an adapted vit and another net": _frozen(
        lambda folder: [{"net": _vit(folder), "adapt": 2, "pool": "mean"}, _vit(folder, "dinov2")]
    ),
    "map over a vit": replace(KINDS["map"], make=_expanded_map),
    "exact over a bert": _sentences(
        lambda bert: CLDNetClassifier(backbone=Expanded((TEXT_BYTES,), 12, seed=0, bodies=[bert]), **SMALL)
    ),
    "hbo over a frozen bert": _sentences(
        lambda bert: CLDNetClassifier("hbo", FrozenNet((TEXT_BYTES,), (6,), seed=0, bodies=[bert]), **HBO)
    ),
    "exact over efficientnet": _expanded(lambda folder: [LITE]),
}
KINDS |= PRETRAINED
#: A file of 13 MB, which takes as long as twenty others: of its turns, others get all but one in so many.
_LARGE, _SELDOM = "exact over efficientnet", 10


def kind_of(number: int) -> str:
    """Name the kind of a file by its number."""
    turn, place = divmod(number, len(KINDS))
    name = list(KINDS)[place]
    return name if name != _LARGE or turn % _SELDOM == 0 else list(PRETRAINED)[turn % (len(PRETRAINED) - 1)]


# -- what becomes of them ----------------------------------------------------------------------------------------------


def _written(header: bytes, data: bytes) -> bytes:
    return len(header).to_bytes(8, "little") + header + data


def _parsed(content: bytes) -> tuple[dict[str, Any], bytes]:
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def _length_field(content: bytes, draw: random.Random) -> tuple[bytes, str]:
    length = int.from_bytes(content[:8], "little")
    new = draw.choice((0, 1, length - 1, length + 1, length + 8, len(content), 2**31, 2**63, 2**64 - 1, 100_000_001, 5))
    return new.to_bytes(8, "little") + content[8:], f"a header of {new} bytes"


_NAMES = ("../../x", "/etc/x", "a\0b", "x" * 70_000, "", "__metadata__", "counters", "𝔘", "state/../x", "random")
_DTYPES = (
    "F64",
    "F32",
    "F16",
    "BF16",
    "I64",
    "U8",
    "I8",
    "BOOL",
    "F8_E4M3",
    "F8_E5M2",
    "C64",
    "U64",
    "F4",
    "F99",
    "",
    5,
    None,
)


def _header(content: bytes, draw: random.Random) -> tuple[bytes, str]:
    """Change what the header says of a tensor, or of itself, without signing it."""
    header, data = _parsed(content)
    name = draw.choice([each for each in header if each != "__metadata__"])
    entry = header[name]
    kind = draw.randrange(8)
    if kind == 0:
        entry["dtype"] = draw.choice(_DTYPES)
    elif kind == 1:
        entry["shape"] = draw.choice(
            ([], [0], [2**62], [2**63], [-1], entry["shape"] + [1], [2**40, 0], "no", None, [1.5])
        )
    elif kind == 2:
        other = draw.choice([each for each in header.values() if "data_offsets" in each])
        entry["data_offsets"] = other["data_offsets"]
    elif kind == 3:
        shift = draw.choice((-8, -1, 1, 8, 10**9, 2**63))
        entry["data_offsets"] = [each + shift for each in entry["data_offsets"]]
    elif kind == 4:
        header[draw.choice(_NAMES)] = header.pop(name)
    elif kind == 5:
        header["__metadata__"] = draw.choice(
            ({}, None, [], {"cldnet": 5}, {"cldnet": ""}, {"cldnet": "{}"}, {"cldnet": None})
        )
    elif kind == 6:
        text = json.dumps(header)
        return _written((text[:-1] + f', "{name}": {json.dumps(entry)}}}').encode(), data), f"{name!r} twice"
    else:
        return _written(json.dumps(header).encode() + b" " * draw.choice((0, 1, 7, 5000)), data), "another spacing"
    return _written(json.dumps(header).encode(), data), f"header changed in way {kind} at {name!r:.40}: {entry!r:.120}"


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if len(path) > 8:  # what was nested without end
        return [path]
    return [path, *(place for key, each in inner for place in _places(each, (*path, key)))]


def _change_manifest(manifest: dict[str, Any], draw: random.Random) -> str:
    """Change one place of a manifest, one of its numbers rather than of its depths."""
    path = draw.choice([place for place in _places(manifest) if place and place != ("digest",)])
    holder = manifest
    for key in path[:-1]:
        holder = holder[key]
    kind = draw.randrange(10)
    if kind == 0:
        del holder[path[-1]]
        return f"manifest without {path}"
    if kind == 1 and isinstance(holder, dict):
        key = draw.choice(("extra", "", "__class__", "digest", "schema", "self", "\0"))
        holder[key] = value = copy.deepcopy(draw.choice(VALUES))
        return f"manifest with {key!r} beside {path}: {value!r:.80}"
    if kind == 2:
        holder[path[-1]] = value = nested(draw.choice((5, 100, 400, 900)))
        return f"manifest nested at {path}"
    old = holder[path[-1]]
    value = copy.deepcopy(draw.choice(VALUES))
    if isinstance(old, int | float) and draw.random() < 0.5:
        value = draw.choice((old + 1, old - 1, -old, old * 1000, float(old), str(old), [old], 2 * old))
    if isinstance(old, list) and draw.random() < 0.5:
        value = draw.choice((old + old, old[::-1], old[:-1], [*old, value], [value, *old[1:]]))
    holder[path[-1]] = value
    return f"manifest{list(path)} = {value!r:.80}"


def _change_tensors(tensors: dict[str, Tensor], draw: random.Random) -> str:
    """Change one tensor, or two."""
    name, other = draw.choice(sorted(tensors)), draw.choice(sorted(tensors))
    tensor = tensors[name]
    kind = draw.randrange(10)
    if kind == 0:
        del tensors[name]
        return f"without {name}"
    if kind == 1:
        new = draw.choice((*_NAMES[:4], *_NAMES[6:], "gram", f"{name}.{name}"))
        tensors[new] = tensor.clone()
        return f"{name} also as {new!r:.40}"
    if kind == 2:
        tensors[name], tensors[other] = tensors[other], tensor
        return f"{name} and {other} swapped"
    if kind == 3:
        types = (
            torch.float64,
            torch.float32,
            torch.float16,
            torch.bfloat16,
            torch.int64,
            torch.uint8,
            torch.bool,
            torch.int8,
        )
        tensors[name] = tensor.to(to := draw.choice((*types, torch.complex64, torch.float8_e4m3fn)))
        return f"{name} as {to}"
    if kind == 4:
        flat = tensor.flatten()
        tensors[name] = draw.choice(
            (
                flat,
                tensor[None],
                tensor.mT.contiguous() if tensor.ndim > 1 else flat[:-1],
                flat[:0],
                torch.cat([flat, flat]),
            )
        )
        return f"{name} of shape {tuple(tensors[name].shape)}"
    if kind == 5:
        shape = draw.choice(((2**40, 0), (0, 2**40), (0,), (0, 0, 0), (10**9, 0)))
        tensors[name] = torch.empty(shape, dtype=tensor.dtype)
        return f"{name} of shape {shape}"
    if kind == 6:
        raw = tensor.clone().contiguous().flatten().view(torch.uint8)
        for _ in range(min(len(raw), draw.choice((1, 1, 50)))):
            raw[draw.randrange(len(raw))] = draw.randrange(256)
        tensors[name] = raw.view(tensor.dtype).reshape(tensor.shape)
        return f"{name} with other bytes"
    values = (0, -1, 1, 3, 5, 100, 2**31, 2**62) if not tensor.is_floating_point() else _FLOATS
    value = draw.choice(values)
    changed = tensor.clone().flatten()
    whole = kind == 7 or not len(changed)
    place = slice(None) if whole else draw.randrange(len(changed))
    changed[place] = torch.tensor(value, dtype=torch.float64 if tensor.is_floating_point() else torch.int64).to(
        tensor.dtype
    )
    tensors[name] = changed.reshape(tensor.shape)
    return f"{name}[{place}] = {value}"


_FLOATS = (float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 1e300, 1e-300, -1e300, 1e9, -0.5, 1e38)


def _sign(tensors: dict[str, Tensor], manifest: Any, draw: random.Random) -> tuple[bytes, str]:
    """Write what was forged as the library would, with its digest; now and then as a file of the first version, without."""
    said = (
        {key: value for key, value in manifest.items() if key != "digest"} if isinstance(manifest, dict) else manifest
    )
    note = ""
    if isinstance(said, dict):
        if draw.random() < 0.05:
            said, note = {**said, "schema": 1}, ", as of version 1"
        if said.get("schema") != 1 or draw.random() < 0.2:
            said = {**said, "digest": store.digest(said, tensors)}
    text = json.dumps(said)
    if draw.random() < 0.03:
        text, note = text[:-1] + ', "kind": "model", "kind": "map"}', note + ", with a key twice"
    return save(tensors, metadata={"cldnet": text}), note


def _forge(content: bytes, path: Path, draw: random.Random) -> tuple[bytes, str]:
    header, _ = _parsed(content)
    manifest, tensors = json.loads(header["__metadata__"]["cldnet"]), _tensors_of(path)
    notes = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        change = draw.choice((_change_manifest, _change_tensors, _change_tensors, _grow, _describe, _describe))
        notes.append(change(manifest if change is not _change_tensors else tensors, draw))  # type: ignore[arg-type]
    _name_map_anew(manifest, json.loads(header["__metadata__"]["cldnet"]), tensors, draw)
    forged, note = _sign(tensors, manifest, draw)
    return forged, "; ".join(notes) + note


def _name_map_anew(
    manifest: dict[str, Any], before: dict[str, Any], tensors: dict[str, Tensor], draw: random.Random
) -> None:
    """Give a map of other numbers or another make the id that goes with them; now and then its old one stays."""
    said = manifest.get("map")
    if manifest.get("kind") != "feature map" or not isinstance(said, dict) or draw.random() < 0.3:
        return
    made = {name: part for name, part in said.items() if name != "seed"}
    with suppress(KeyError, TypeError, ValueError):  # a kind that there is not; a number that JSON has not
        digest = hashlib.sha256(f"{FEATURE_MAPS[said['kind']].__name__}:{json.dumps(made, sort_keys=True)}".encode())
        for name, tensor in sorted(tensors.items()):
            digest.update(f"{name}:{tensor.dtype}:{tuple(tensor.shape)}".encode())
            digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
        manifest["map_id"] = digest.hexdigest()[:16]


_CODE = {"AutoConfig": "owner/name--evil.Config", "AutoModel": "owner/name--evil.Model"}
#: What leads elsewhere, or to something else, where a description is believed.
_ELSEWHERE: tuple[Any, ...] = (
    *("owner/name", "/etc", "/", "..", "~", "file:///etc/hostname", "transformers", "efficientnet-lite0", "vit"),
    *("dinov2", "rag", "upernet", "vision-encoder-decoder", "kernels-community/flash-attn", "os.system", "pooled"),
    *(_CODE, {"model_type": "rag", "auto_map": _CODE}, {"net": "owner/name"}, {"net": "/etc"}, [{"net": "owner/name"}]),
    *(
        {"net": "efficientnet-lite2"},
        {},
        [],
        None,
        True,
        -1,
        0,
        1,
        4,
        16,
        48,
        64,
        224,
        1024,
        4096,
        2**20,
        2**40,
        2**62,
        0.5,
    ),
)
_KEYS = (
    *("auto_map", "attn_implementation", "_attn_implementation", "backbone", "backbone_config", "quantization_config"),
    *("head_dim", "trust_remote_code", "_name_or_path", "source", "net", "config", "model_type", "text_config", "pool"),
    *(
        "use_pretrained_backbone",
        "encoder",
        "decoder",
        "question_encoder",
        "adapt",
        "layer",
        "widths",
        "stages",
        "size",
    ),
    *("version", "mirror", "bodies", "per_layer_config", "architectures", "id2label", "dtype", "pruned_heads"),
)


def _describe(manifest: dict[str, Any], draw: random.Random) -> str:
    """Describe another backbone: another value, one more field, or more of the same."""
    holder = manifest if isinstance(manifest.get("map"), dict) else manifest.get("parameters")
    key = "map" if holder is manifest else "backbone"
    if not isinstance(holder, dict) or not isinstance(holder.get(key), dict):
        return _change_manifest(manifest, draw)
    described = holder[key]
    path = draw.choice(_places(described)[1:] or [("kind",)])
    for step in path[:-1]:
        described = described[step]
    value = copy.deepcopy(draw.choice(_ELSEWHERE))
    if isinstance(described, dict) and draw.random() < 0.3:
        path = (*path[:-1], draw.choice(_KEYS))
    elif isinstance(described, list) and draw.random() < 0.3:
        described *= draw.choice((2, 3, 100))
        return f"{key}{list(path[:-1])} longer"
    described[path[-1]] = value
    return f"{key}{list(path)} = {value!r:.80}"


def _grow(manifest: dict[str, Any], draw: random.Random) -> str:
    """Say that the model is enormous, in a place where it counts."""
    sizes = {
        "capacity",
        "embed_dim",
        "shape",
        "input_shape",
        "features",
        "filters",
        "size",
        "windows",
        "gram",
        "n_threads",
    }
    sizes |= {
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "image_size",
        "patch_size",
    }
    sizes |= {"mlp_ratio", "layer", "adapt", "widths", "stages", "bodies", "shorter", "version"}
    sizes |= {"random_state", "seed", "epochs", "batch_size", "labels", "counts", "epoch", "batches"}
    places = [place for place in _places(manifest) if place and place[-1] in sizes]
    if not places:
        return _change_manifest(manifest, draw)
    path = draw.choice(places)
    holder: Any = manifest
    for key in path[:-1]:
        holder = holder[key]
    old = holder[path[-1]]
    number = draw.choice((0, -1, 2**20, 2**24, 2**26, 2**31, 10**9, 2**40, 2**62, 10**100))
    value: Any = (
        number if not isinstance(old, list) else draw.choice(([number] * len(old), [*old[:-1], number], old * 1000))
    )
    holder[path[-1]] = value
    return f"manifest{list(path)} = {value!r:.80}"


_KEPT: dict[Path, dict[str, Tensor]] = {}


def _tensors_of(path: Path) -> dict[str, Tensor]:
    if path not in _KEPT:
        _KEPT[path] = {name: tensor.clone() for name, tensor in store.read(path)[0].items()}
    return dict(_KEPT[path])


def _unsigned(content: bytes, draw: random.Random) -> tuple[bytes, str]:
    """Change the manifest and leave the digest; a downgrade to the version that had none among it."""
    header, data = _parsed(content)
    manifest = json.loads(header["__metadata__"]["cldnet"])
    if draw.random() < 0.3:
        manifest["schema"], note = draw.choice(
            ((1, "a downgrade to 1"), (2, "a downgrade to 2"), (True, "schema true"))
        )
    else:
        note = _change_manifest(manifest, draw)
    text = json.dumps(manifest)
    if draw.random() < 0.1:
        text, note = draw.choice((text[:-5], text + "}", "[" * 100_000, '"' + text, text.replace('"', "'"))), "no JSON"
    header["__metadata__"]["cldnet"] = text
    return _written(json.dumps(header).encode(), data), note


def mutate(original: Path, target: Path, draw: random.Random, mark: Path) -> tuple[str, bool, str]:
    """Write a changed copy of a file; tell the kind of the change, whether it was signed anew, and what it was."""
    content = original.read_bytes()
    kind = draw.choices(
        ("bytes", "length", "header", "manifest", "foreign", "misplaced", "forged"), (20, 4, 14, 10, 3, 3, 46)
    )[0]
    if kind == "misplaced":
        target.write_bytes(content)
        return kind, False, misplace(target, draw)
    if kind == "forged":
        changed, note = _forge(content, original, draw)
    elif kind == "foreign":
        changed, note = foreign(draw, mark)
    else:
        ways = {"bytes": spoil, "length": _length_field, "header": _header, "manifest": _unsigned}
        changed, note = ways[kind](content, draw)
    target.write_bytes(changed)
    return kind, kind == "forged", note


def verdict(kind: Kind, path: Path, original: bytes, forged: bool, watch: Watch) -> str:
    """Load a file that anybody may have written: refused in a sentence, the same as ever, or (forged) sound by itself.

    Layout 1 had no digest, so that a file of it that was spoiled passes for a forged one.
    """
    refused, loaded = watched(lambda: kind.load(path), watch)
    if refused:
        return "refused"
    again = path.with_name("again")
    kind.save(loaded, again)
    if again.read_bytes() == original:
        return "equal"
    if not forged and kind.layout > 1:
        raise ViolationError("a changed file was taken for another")
    kind.save(kind.load(again), again)  # and its like
    try:
        kind.use(loaded, again)
    except BaseException as error:
        refusal(error)
        return "taken, refused later"
    return "taken"


def prepare(folder: Path) -> None:
    """Make a file of every kind, and have all that a load imports imported: what is imported later is the file's doing."""
    (folder / "again").mkdir(parents=True)
    for name, kind in KINDS.items():
        kind.make(folder / name)
        loaded = kind.load(folder / name)
        again = folder / "again" / name
        kind.save(loaded, again)
        if kind.layout == store.SCHEMA:
            assert again.read_bytes() == (folder / name).read_bytes(), name
        shutil.copyfile(again, folder / "used")
        kind.use(loaded, folder / "used")
        _tensors_of(folder / name)  # which are kept
    (folder / "used").unlink(missing_ok=True)
    module()(torch.zeros(1, 10, 10, device="cpu"))
    copy.deepcopy(module()).to("meta")(
        torch.zeros(1, 10, 10, device="meta")
    )  # torch imports a thousand modules for that
