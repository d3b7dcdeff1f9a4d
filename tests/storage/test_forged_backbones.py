"""Forged and signed files of models and maps: nothing is looked up, asked or run, nor built beyond the file's size."""

from __future__ import annotations

import builtins
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.nets.berts import save_bert
from tests.nets.vits import save_vit

from cldnet import CLDNetClassifier, load_map, save_map, storage
from cldnet.data.sentences import TEXT_BYTES
from cldnet.nets import Expanded, FrozenNet, WhitenedPatches

pytest.importorskip("transformers")

SHAPE = (3, 32, 32)
SMALL: dict[str, Any] = {"capacity": 4, "random_state": 0, "n_threads": 1}
SECONDS, ROOM = 5.0, 512 << 20
KINDS = ("expanded", "frozen", "adapted", "map")
TEXTS = ("text", "frozen text", "text map")


class TooLongError(BaseException):
    """A load takes more processor time than any file may."""


class Seen:
    """What was done while a file was read; hooks of Python's own cannot be removed, so there is one for all tests."""

    def __init__(self) -> None:
        self.on, self.events = False, list[tuple[str, str]]()
        sys.addaudithook(self._note)

    def _note(self, event: str, arguments: tuple[Any, ...]) -> None:
        if self.on and (event == "open" or event.split(".")[0] in ("socket", "subprocess", "exec", "import")):
            self.events.append((event, str(arguments[0]) if arguments else ""))


SEEN = Seen()


@contextmanager
def bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Read a file with the time and memory that it may take; only the file itself is opened, and nobody is asked."""

    def stop(*_: Any) -> None:
        raise TooLongError

    def ask(*_: Any) -> str:
        SEEN.events.append(("input", ""))
        return "y"

    monkeypatch.setattr(builtins, "input", ask)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = pages * resource.getpagesize() + ROOM + 4 * path.stat().st_size
    handler = signal.signal(signal.SIGPROF, stop)
    SEEN.events.clear()
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    SEEN.on = True
    try:
        yield
    finally:
        SEEN.on = False
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, handler)
        resource.setrlimit(resource.RLIMIT_AS, before)
    ours = {str(path), "/sys/fs/cgroup/memory.max", "/proc/meminfo"}  # and how much memory there is
    strange = [event for event in SEEN.events if event[0] != "open" or event[1] not in ours]
    assert strange == []


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A file of every kind that a net of transformers gets into, read once, so that all that is needed is imported."""
    folder = tmp_path_factory.mktemp("files")
    vit = save_vit(folder / "vit")
    x = np.random.default_rng(0).integers(0, 256, (6, *SHAPE), dtype=np.uint8)
    y = np.arange(6) % 2
    hbo: dict[str, Any] = {**SMALL, "embed_dim": 8, "epochs": 1, "batch_size": 4}
    CLDNetClassifier(backbone=Expanded(SHAPE, 20, seed=0, bodies=[vit]), **SMALL).fit(x, y).save(folder / "expanded")
    for name, body in {"frozen": vit, "adapted": {"net": vit, "adapt": 1}}.items():
        CLDNetClassifier("hbo", FrozenNet(SHAPE, seed=0, bodies=[body]), **hbo).fit(x, y).save(folder / name)
    save_map(Expanded(SHAPE, 20, seed=0, bodies=[vit]).load_published(), folder / "map")
    bert, sentences = save_bert(folder / "bert"), [f"hello {letter}" for letter in "abcdef"]
    shape = (TEXT_BYTES,)
    text = CLDNetClassifier(backbone=Expanded(shape, 20, seed=0, bodies=[bert]), **SMALL).fit(sentences, y)
    text.save(folder / "text")
    save_map(text.feature_map_, folder / "text map")
    CLDNetClassifier("hbo", FrozenNet(shape, seed=0, bodies=[bert]), **hbo).fit(sentences, y).save(
        folder / "frozen text"
    )
    for kind in (*KINDS, *TEXTS):
        load(folder / kind)
    return {kind: folder / kind for kind in (*KINDS, *TEXTS)}


def load(path: Path) -> Any:
    return load_map(path) if path.name.endswith("map") else CLDNetClassifier.load(path)


def forged(files: dict[str, Path], kind: str, folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Write a file whose description of a net was changed, with a digest that fits."""
    tensors, manifest = storage.read(files[kind])
    change(manifest["map"] if kind.endswith("map") else manifest["parameters"]["backbone"])
    storage.write(folder / kind, tensors, manifest)
    return folder / kind


def bodies(change: Callable[[list[Any]], object]) -> Callable[[dict[str, Any]], object]:
    return lambda described: change(described["options"]["bodies"])


def config(**fields: Any) -> Callable[[list[Any]], None]:
    return lambda bodies: bodies[0]["config"].update(fields)


def replaced(**table: Any) -> Callable[[list[Any]], None]:
    return lambda bodies: bodies.__setitem__(0, table)


CODE = {"AutoConfig": "owner/name--evil.Config", "AutoModel": "owner/name--evil.Model"}
PART = {"model_type": "evil", "auto_map": CODE}
FORGERIES: dict[str, tuple[Callable[[list[Any]], object], str]] = {
    "code": (config(auto_map=CODE), "auto_map"),
    "rag": (
        config(model_type="rag", auto_map=CODE, question_encoder=PART, generator=PART),
        "'rag'.*deit, dinov2, vit",
    ),
    "encoder and decoder": (config(model_type="vision-encoder-decoder", encoder=PART, decoder=PART), "'vision-enc"),
    "a backbone of the hub": (
        config(model_type="upernet", backbone="owner/name", use_pretrained_backbone=True),
        "'upernet'",
    ),
    "a type that is none": (config(model_type=["vit"]), "deit, dinov2, vit"),
    "a kernel": (config(attn_implementation="owner/kernel"), "attn_implementation"),
    "a kernel within": (config(_attn_implementation="owner/kernel"), "_attn_implementation"),
    "a configuration within": (config(backbone_config=PART), "backbone_config"),
    "a configuration for a number": (config(hidden_size=PART), "hidden_size"),
    "code for an activation": (config(hidden_act="os.system"), "hidden_act"),
    "endless layers": (config(num_hidden_layers=2**40), "num_hidden_layers"),
    "endless width": (config(hidden_size=2**40), "hidden_size"),
    "an endless image": (config(image_size=2**30), "image_size"),
    "no heads": (config(num_attention_heads=0), "num_attention_heads"),
    "truth for a number": (config(num_hidden_layers=True), "num_hidden_layers"),
    "one layer more": (config(num_hidden_layers=4), "is missing"),
    "another width": (config(hidden_size=64), "of shape"),
    "a name": (replaced(net="owner/name"), "owner/name"),
    "a name alone": (lambda bodies: bodies.__setitem__(0, "owner/name"), "owner/name"),
    "a name beside a configuration": (lambda bodies: bodies[0].update(net="owner/name"), "owner/name"),
    "another option": (lambda bodies: bodies[0].update(source="owner/name"), "source"),
    "a layer that is not there": (lambda bodies: bodies[0].update(layer=10**6), "layer"),
    "all blocks and more": (lambda bodies: bodies[0].update(adapt=2**40), "adapt"),
    "many nets": (lambda bodies: bodies.extend(bodies * 1000), "nets"),
    "enormous photos": (lambda bodies: bodies[0]["preprocessing"].update(size=10**6), "preprocessing"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORGERIES)
def test_a_forged_backbone_is_refused_and_nothing_is_looked_up(
    files: dict[str, Path], kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, complaint = FORGERIES[name]
    path = forged(files, kind, tmp_path, bodies(change))
    with (
        bounded(path, monkeypatch),
        pytest.raises(ValueError, match=rf"is not a valid (model|feature map) \(.*({complaint})"),
    ):
        load(path)


TEXT_FORGERIES: dict[str, tuple[Callable[[list[Any]], object], str]] = {
    "code": (config(auto_map=CODE), "auto_map"),
    "another type": (config(model_type="roberta"), "model_type"),
    "endless layers": (config(num_hidden_layers=2**40), "num_hidden_layers"),
    "endless words": (config(vocab_size=2**40), "vocab_size"),
    "a number for heads": (config(num_attention_heads="4"), "num_attention_heads"),
    "heads that do not fit": (config(num_attention_heads=5), "num_attention_heads"),
    "one layer more": (config(num_hidden_layers=3), "is missing"),
    "another width": (config(hidden_size=64), "of shape"),
    "no configuration": (lambda bodies: bodies[0].update(config=3), "description"),
    "a longer vocabulary": (lambda bodies: bodies[0].update(vocabulary=10**6), "of shape"),
    "an endless vocabulary": (lambda bodies: bodies[0].update(vocabulary=2**40), "vocabulary"),
    "more tokens than places": (lambda bodies: bodies[0].update(length=10**6), "length"),
    "another pool": (lambda bodies: bodies[0].update(pool="owner/name"), "pool"),
    "the encoder of a package": (replaced(net="minilm"), "minilm"),
    "a name": (replaced(net="owner/name"), "owner/name"),
    "a source": (lambda bodies: bodies[0].update(source="owner/name"), "source"),
    "images": (replaced(net="efficientnet-lite0", size=32), "are for images"),
}


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("name", TEXT_FORGERIES)
def test_a_forged_text_encoder_is_refused_and_nothing_is_looked_up(
    files: dict[str, Path], kind: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, complaint = TEXT_FORGERIES[name]
    path = forged(files, kind, tmp_path, bodies(change))
    with (
        bounded(path, monkeypatch),
        pytest.raises(ValueError, match=rf"is not a valid (model|feature map) \(.*({complaint})"),
    ):
        load(path)


@pytest.mark.parametrize("content", [b"", b"[" * 2000, b'{"model": {"type": "Unigram"}}', b"\0" * 2000])
def test_a_forged_vocabulary_is_refused_when_it_is_used(files: dict[str, Path], content: bytes, tmp_path: Path) -> None:
    tensors, manifest = storage.read(files["text"])
    there = tensors["features.body.vocabulary"]
    there.copy_(torch.frombuffer(bytearray(content.ljust(len(there))[: len(there)]), dtype=torch.uint8))
    storage.write(tmp_path / "text", tensors, manifest)
    with pytest.raises(ValueError, match=r"vocabulary|damaged"):
        load(tmp_path / "text").predict(["hello"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_a_file_names_is_not_opened(
    files: dict[str, Path], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = save_vit(tmp_path / "there")
    path = forged(files, kind, tmp_path, bodies(replaced(net=there)))
    with bounded(path, monkeypatch), pytest.raises(ValueError, match="there"):
        load(path)


@pytest.mark.parametrize("kind", [*KINDS, *TEXTS])
def test_a_whole_file_opens_nothing_but_itself(
    files: dict[str, Path], kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with bounded(files[kind], monkeypatch):
        load(files[kind])


@pytest.mark.parametrize(
    ("kind", "options", "complaint"),
    [
        ("frozen", {"widths": [1] * 100_000}, "widths"),
        ("frozen", {"widths": [2**40]}, "hidden"),
        ("frozen", {"widths": ["a"]}, "widths"),
        ("expanded", {"features": 2**24}, "features"),
        ("expanded", {"bodies": [{"net": "efficientnet-lite0", "stages": [1] * 10**5}]}, "stages"),
        ("expanded", {"bodies": [{"net": "efficientnet-lite0", "stages": [1.0]}]}, "stages"),
        ("expanded", {"bodies": [{"net": "efficientnet-lite0", "size": 10**6}]}, "size"),
        ("map", {"bodies": []}, "one net or more"),
        ("map", {"bodies": "owner/name"}, "list of tables"),
    ],
)
def test_options_that_the_numbers_of_a_file_do_not_cover_are_refused(
    files: dict[str, Path],
    kind: str,
    options: dict[str, Any],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = forged(files, kind, tmp_path, lambda described: described["options"].update(options))
    with bounded(path, monkeypatch), pytest.raises(ValueError, match=complaint):
        load(path)


@pytest.mark.parametrize("kind", ["frozen", "adapted", "map"])
def test_a_net_is_not_run_while_its_file_is_read(
    files: dict[str, Path], kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What running a net takes does not follow from the size of its file: photos may be of any size."""
    tensors, manifest = storage.read(files[kind])
    side = 4700
    described = manifest["map"] if kind == "map" else manifest["parameters"]["backbone"]
    described["input_shape"] = [3, side, side]
    if kind == "map":
        manifest["map_id"] = map_id_of(files[kind], (3, side, side))
    else:
        manifest["inputs"]["shape"] = [3, side, side]
    storage.write(tmp_path / kind, tensors, manifest)
    with bounded(tmp_path / kind, monkeypatch):
        load(tmp_path / kind)


def map_id_of(path: Path, shape: tuple[int, ...]) -> str:
    features = load_map(path)
    features.input_shape = shape
    return features.map_id


def test_a_small_map_over_large_images_is_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    features = WhitenedPatches((1024, 1024), filters=1, seed=0, size=32, windows=1)
    features.fitted.fill_(True)
    save_map(features, tmp_path / "map")  # 8 kB, and 4 GB of patches in an image
    with bounded(tmp_path / "map", monkeypatch):
        load(tmp_path / "map")


def test_a_described_net_is_not_tried_because_a_file_has_an_output_of_it_too(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensors, manifest = storage.read(files["frozen"])
    net = CLDNetClassifier.load(files["frozen"])._fitted().learner.backbone
    assert net is not None
    names = {name: list(tensor.shape) for name, tensor in net.state_dict().items()}
    manifest["fingerprint"] = {"names": names, "input_shape": manifest["inputs"]["shape"], "output": [0.0] * 32}
    storage.write(tmp_path / "frozen", tensors, manifest)
    with bounded(tmp_path / "frozen", monkeypatch), pytest.raises(ValueError, match="module of your own"):
        load(tmp_path / "frozen")
