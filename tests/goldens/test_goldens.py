"""Goldens: what must stay the same, to the bit, however the code is moved and renamed.

The JSON files beside this one and the pickles in ``tests/fixtures/goldens`` were recorded with version 0.1.0. Only imports
in this file may change with the code. After an intended change of behaviour, delete the file that differs and run
``python tests/goldens/test_goldens.py``, which records what is missing.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import pickle
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum, EnumType
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from safetensors import safe_open
from tests.nets.encoders import PROMPTED
from torch import Tensor, nn
from typer.testing import CliRunner

import cldnet
from cldnet import CLDNetClassifier, Statistics, load_map, stream_by_name
from cldnet.bench.cell import Cell, cell_of_result, hashes_of, run_cell
from cldnet.bench.preset import preset
from cldnet.bench.results import read_result
from cldnet.cli import app
from cldnet.methods import METHODS
from cldnet.nets import BACKBONES, FEATURE_MAPS, FROZEN, PRETRAINED, build_backbone, takes_text

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FIXTURES = ROOT / "tests" / "fixtures"
PICKLES = FIXTURES / "goldens"
LABELS = np.array(["cat", "dog", "owl"])[np.arange(18) % 3]
X = np.random.default_rng(0).normal(size=(18, 4)) + 3 * (np.arange(18) % 3)[:, None]
#: What sessions in the fixtures were being taught, and under which label.
MORE = {name: np.arange(4 * n).reshape(n, 4) * 7 % 23 / 4.0 - 9.0 for name, n in {"exact": 2500, "hbo": 40}.items()}
#: Committed results that today's code repeats to the bit.
AGAIN = ("docs/demo/split-digits_ewc_seed0_c80c7c3621be.json", "docs/demo/split-digits_owm_seed0_5d16a3626de7.json")
#: Parts of a model's file that are drawn anew, or that tell who wrote it.
RANDOM_TENSORS = {"lessons", "receipts", "history"}
RANDOM_KEYS = {"version", "digest", "lessons", "receipts"}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# -- what is recorded --------------------------------------------------------------------------------------------------


def machine() -> str:
    """Where float arithmetic gives the same bits: elsewhere, numbers are compared with a tolerance."""
    processor = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else platform.processor()
    model = re.search(r"model name\s*: (.*)", processor)
    versions = f"torch {torch.__version__.partition('+')[0]}, numpy {np.__version__}"
    return f"{model[1] if model else processor}, {torch.backends.cpu.get_cpu_capability()}, {versions}"


def digest(tensors: dict[str, Any]) -> str:
    """SHA-256 of names, types, shapes and bytes."""
    total = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        array = tensor.detach().cpu().numpy() if isinstance(tensor, Tensor) else np.asarray(tensor)
        total.update(f"{name}:{array.dtype}:{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
    return total.hexdigest()


def saved(clf: CLDNetClassifier | Statistics) -> dict[str, Any]:
    """What `save` writes, as any reader of safetensors sees it: a digest of the tensors, and the manifest."""
    with tempfile.TemporaryDirectory() as folder:
        clf.save(Path(folder) / "model")
        with safe_open(Path(folder) / "model", "numpy") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys() if name not in RANDOM_TENSORS}  # noqa: SIM118
            manifest = json.loads(file.metadata()["cldnet"])
    return {"sha256": digest(tensors), "manifest": {key: manifest[key] for key in manifest.keys() - RANDOM_KEYS}}


def answers(clf: CLDNetClassifier) -> dict[str, Any]:
    """Everything that a model says of the same inputs."""
    return {
        "classes": clf.classes_.tolist(),
        "predict": clf.predict(X).tolist(),
        "scores": clf.decision_function(X).tolist(),
        "probabilities": clf.predict_proba(X).tolist(),
        "known": clf.known_probability(X).tolist() if clf.solver == "exact" else None,
        "bytes": clf.footprint().total,
        "saved": saved(clf),
    }


def net() -> nn.Module:
    """The user's own module that the fixtures of ``"hbo"`` were made over."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 5))


def stored(layout: str, name: str) -> CLDNetClassifier:
    path = FIXTURES / "store" / layout / f"{name}.cldnet"
    return CLDNetClassifier.load(path, backbone=net() if name == "hbo" else None)


def layouts(kind: str) -> list[str]:
    return sorted(folder.name for folder in (FIXTURES / kind).iterdir())


def record_store() -> dict[str, Any]:
    """Models, maps and statistics of every layout: what they say, and what they say after learning one more class."""
    found: dict[str, Any] = {}
    for layout in layouts("store"):
        folder = FIXTURES / "store" / layout
        for name in ("exact", "hbo"):
            clf = stored(layout, name)
            found[f"{layout}/{name}"] = answers(clf)
            found[f"{layout}/{name} and on"] = answers(clf.partial_fit(X - 9, np.full(18, "emu")))
        features, sums = load_map(folder / "map.cldnet"), Statistics.load(folder / "statistics.cldnet")
        found[f"{layout}/map"] = {"map_id": features.map_id, "features": features(torch.from_numpy(X)).tolist()}
        found[f"{layout}/statistics"] = {"map_id": sums.map_id, "rows": sums.rows, "saved": saved(sums)}
    return found


def record_sessions() -> dict[str, Any]:
    """Sessions of every layout, resumed from the checkpoint that a process left behind when it died."""
    found = {}
    for layout in layouts("sessions"):
        with tempfile.TemporaryDirectory() as folder:
            checkpoint = Path(folder) / "session"
            shutil.copyfile(FIXTURES / "sessions" / layout / "exact.cldnet", checkpoint)
            clf = stored(layout, "exact")
            with clf.session(checkpoint, every=0):
                clf.partial_fit(MORE["exact"], ["emu"] * len(MORE["exact"]))
        found[f"{layout}/exact"] = answers(clf)
    return found


def write_pickles() -> None:
    PICKLES.mkdir(exist_ok=True)
    common: dict[str, Any] = {"capacity": 8, "random_state": 0, "n_threads": 1}
    features = build_backbone("random-relu", (4,), seed=0, options={"features": 16})
    exact = CLDNetClassifier("exact", features, **common).partial_fit(X, LABELS)
    receipts = CLDNetClassifier("exact", features, receipts=True, **common).partial_fit(X, LABELS)
    hbo = CLDNetClassifier("hbo", net(), embed_dim=8, epochs=2, batch_size=4, **common).partial_fit(X, LABELS)
    maps = {kind: small_map(kind) for kind in ("random-relu", "random-fourier", "patches")}
    things = {"exact": exact, "hbo": hbo, "receipts": receipts, "statistics": exact.statistics(), "maps": maps}
    for name, thing in things.items():
        if not (PICKLES / f"{name}.pickle").exists():
            (PICKLES / f"{name}.pickle").write_bytes(pickle.dumps(thing, protocol=4))


def unpickled(name: str) -> Any:
    return pickle.loads((PICKLES / f"{name}.pickle").read_bytes())


def record_pickles() -> dict[str, Any]:
    """Estimators, statistics and maps that version 0.1.0 pickled."""
    found = {}
    for name in ("exact", "hbo", "receipts"):
        clf = unpickled(name)
        found[name] = {**answers(clf), "parameters": sorted(clf.get_params())}
        found[f"{name} and on"] = answers(clf.partial_fit(X - 9, np.full(18, "emu")))
        if name != "hbo":
            found[f"{name} forgets"] = answers(clf.forget(X - 9, np.full(18, "emu")))
    sums = unpickled("statistics")
    found["statistics"] = {"map_id": sums.map_id, "rows": sums.rows, "saved": saved(sums)}
    found["statistics merged"] = answers(unpickled("exact").merge([sums], allow_duplicates=True))
    for kind, features in unpickled("maps").items():
        found[f"map {kind}"] = {"map_id": features.map_id, "sha256": digest({"": features(images(features))})}
    return found


def images(features: Any) -> Tensor:
    return torch.rand(40, *features.input_shape, generator=torch.Generator().manual_seed(1))


def small_map(kind: str) -> Any:
    """A fitted feature map of a kind, of fixed seed and data."""
    small: dict[str, dict[str, Any]] = {"random-relu": {"features": 16}, "random-fourier": {"features": 16}}
    small["patches"] = {"filters": 4, "size": 3, "windows": 2}
    features: Any = build_backbone(kind, (8, 8), seed=3, options=small[kind])
    features.fit(images(features))
    return features


def record_maps() -> dict[str, Any]:
    """Ids of feature maps, and descriptions and first weights of everything that a backbone's name makes."""
    found: dict[str, Any] = {}
    names = sorted({*BACKBONES, *FEATURE_MAPS, *PRETRAINED, *FROZEN})
    for name in names:
        if takes_text(name):  # added since
            continue
        pretrained = name.removeprefix("frozen-") in PRETRAINED or name in ("expanded", "expanded-net", "frozen")
        shape = (3, 32, 32) if pretrained or name == "cnn" else (8, 8)
        options = {"features": 20} if pretrained and "frozen" not in name else {}
        if name not in ("mlp", "cnn", "lenet", "resnet", "patches", "linear", "hashed") and not pretrained:
            options = {"features": 20}
        made: Any = build_backbone(name, shape, seed=5, options=options)
        row = found[name] = {"sha256": digest(made.state_dict())}
        if hasattr(made, "describe"):
            row |= {"describe": made.describe(), "out_features": made.out_features}
        if hasattr(made, "map_id"):
            row["map_id"] = made.map_id
    for kind in ("random-relu", "random-fourier", "patches"):
        features = small_map(kind)
        row = {"map_id": features.map_id, "sha256": digest({"": features(images(features))})}
        found[f"{kind}, fitted"] = {**row, "describe": features.describe()}
    return found


def record_methods() -> dict[str, Any]:
    """One epoch of every method on two tasks of digits: losses and accuracies to the bit, bytes, key, settings."""
    found = {}
    stream = "split-digits,until=2"
    kept = ["key", "matrix", "task_il_matrix", "losses", "bytes", "bytes_after_task", "growth", "exemplars"]
    kept += ["parameters", "rehearsal_free", "constant_size", "config", "backbone"]
    for method in METHODS:
        if method in PROMPTED:  # they need a transformer, and digits have none
            continue
        cell = Cell(stream, replace(preset("split-digits", method, seed=0, threads=1), epochs=1))
        result = run_cell(cell, stream_by_name(stream, 0))
        found[method] = {name: result[name] for name in kept} | {"version": result["cell"]["method_version"]}
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def record_cells() -> dict[str, Any]:
    """The key of every committed result by folder and file, or None if an older version made it that did not tell."""
    found: dict[str, Any] = {}
    committed = subprocess.run(
        ["git", "ls-files", "-z", "results", "docs/demo"], cwd=ROOT, check=True, capture_output=True, text=True
    )
    for file in sorted(ROOT / name for name in committed.stdout.split("\0") if name.endswith(".json")):
        result = read_result(file)
        if result is not None:
            name = file.relative_to(ROOT)
            found.setdefault(name.parent.as_posix(), {})[name.name] = key_of(result)
    return found


def key_of(result: dict[str, Any]) -> str | None:
    return cell_of_result(result).key(*hashes_of(result)) if "cell" in result else None


def record_cli() -> dict[str, Any]:
    """Verbs, and the names, defaults and arity of their options; not the prose of the help."""
    found: dict[str, Any] = {}

    def walk(command: Any, path: str) -> None:
        options = {param.opts[0]: described(param) for param in command.params if param.param_type_name == "option"}
        arguments = [described(param) for param in command.params if param.param_type_name == "argument"]
        found[path] = {"arguments": arguments, "options": options}
        for name, sub in getattr(command, "commands", {}).items():
            walk(sub, f"{path} {name}")

    walk(typer.main.get_command(app), "cldnet")
    return found


def described(param: Any) -> dict[str, Any]:
    """An option or an argument; an argument's name is only shown, so it may change."""
    return {
        "opts": [*param.opts, *param.secondary_opts] if param.param_type_name == "option" else [],
        "default": plain(param.default),
        "required": param.required,
        "nargs": param.nargs,
        "multiple": getattr(param, "multiple", False),
        "flag": getattr(param, "is_flag", False),
        "choices": choices(param),
    }


def choices(param: Any) -> list[str]:
    """Values that an option takes, if there are few; versions of typer keep them in different places."""
    annotation = getattr(getattr(param, "type_descriptor", None), "annotation", None)
    found = annotation if isinstance(annotation, EnumType) else getattr(getattr(param, "type", None), "choices", ())
    return [str(plain(choice)) for choice in found]


def plain(value: Any) -> Any:
    """A default in JSON's types."""
    if isinstance(value, Enum):
        return plain(value.value)
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return "a function" if callable(value) else value.as_posix() if isinstance(value, Path) else "unset"


def record_api() -> dict[str, Any]:
    """Public names with the signatures of their public methods, and what README and docs import."""
    found: dict[str, Any] = {"all": sorted(cldnet.__all__), "imports": sorted(map(list, documented()))}
    for name in cldnet.__all__:
        thing = getattr(cldnet, name)
        found[name] = parameters(thing) if callable(thing) else []
        if inspect.isclass(thing):
            members = {each: getattr(thing, each, None) for each in dir(thing) if not each.startswith("_")}
            methods = {each: parameters(member) for each, member in members.items() if is_ours(member)}
            properties = sorted(each for each, member in members.items() if isinstance(member, property))
            found[name] = {"": found[name], "properties": properties, **methods}
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def is_ours(member: Any) -> bool:
    """Whether a method is not one of scikit-learn's or Python's, which differ between versions."""
    return callable(member) and (getattr(member, "__module__", None) or "").startswith("cldnet")


def parameters(thing: Callable[..., Any]) -> list[list[str]]:
    """Names, kinds and defaults of parameters; annotations may change."""
    try:
        found = inspect.signature(thing).parameters.values()
    except ValueError:
        return []
    return [[each.name, each.kind.name, default_of(each)] for each in found if each.name != "self"]


def default_of(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return ""
    simple = parameter.default is None or isinstance(parameter.default, bool | int | float | str | tuple)
    return repr(parameter.default) if simple else "an object"


def documented() -> set[tuple[str, str]]:
    """Modules and names that README and docs import from the library."""
    found = set()
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        code = re.sub(r"^(>>> |\.\.\. )", "", textwrap.dedent(page.read_text("utf-8")), flags=re.MULTILINE)
        for module, several, names in re.findall(r"^\s*from (cldnet[\w.]*) import (?:\(([^)]*)\)|(.*))$", code, re.M):
            for name in re.split(r"[,\s]+", re.sub(r" as \w+|#.*", "", several or names).strip(", \n")):
                found.add((module, name))
    return found


RECORDS: dict[str, Callable[[], dict[str, Any]]] = {
    "store": record_store,
    "sessions": record_sessions,
    "pickles": record_pickles,
    "maps": record_maps,
    "methods": record_methods,
    "cells": record_cells,
    "cli": record_cli,
    "api": record_api,
}


# -- the comparison ----------------------------------------------------------------------------------------------------


def recorded(name: str) -> dict[str, Any]:
    return json.loads((HERE / f"{name}.json").read_text("utf-8"))  # type: ignore[no-any-return]


def differences(then: Any, now: Any, exact: bool, where: str = "") -> list[str]:
    """Where two records differ; with another machine, digests may, and numbers by a little."""
    if isinstance(then, dict) and isinstance(now, dict):
        own = [f"{where}/{key}: there on one side only" for key in sorted(then.keys() ^ now.keys())]
        same = [key for key in then if key in now and (exact or key != "sha256")]
        return own + [line for key in same for line in differences(then[key], now[key], exact, f"{where}/{key}")]
    if isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        pairs = enumerate(zip(then, now, strict=True))
        return [line for i, (a, b) in pairs for line in differences(a, b, exact, f"{where}/{i}")]
    if not exact and isinstance(then, float) and isinstance(now, float):
        return [] if then == pytest.approx(now, rel=1e-3, abs=1e-4) else [f"{where}: {then} is now {now}"]
    return [] if type(then) is type(now) and then == now else [f"{where}: {then!r:.200} is now {now!r:.200}"]


@pytest.mark.parametrize("name", ["store", "sessions", "pickles", "maps", "methods"])
def test_numbers_are_the_same(name: str) -> None:
    then = recorded(name)
    now = json.loads(json.dumps(RECORDS[name]()))
    assert differences(then["record"], now, exact=then["machine"] == machine()) == []


def test_every_layout_of_a_file_is_recorded() -> None:
    assert {key.partition("/")[0] for key in recorded("store")["record"]} == set(layouts("store"))
    assert {key.partition("/")[0] for key in recorded("sessions")["record"]} == set(layouts("sessions"))


def test_a_session_is_not_resumed_with_other_data(tmp_path: Path) -> None:
    shutil.copyfile(FIXTURES / "sessions" / "4" / "hbo.cldnet", tmp_path / "session")
    clf = stored("4", "hbo")
    with pytest.raises(ValueError, match="session"), clf.session(tmp_path / "session"):
        clf.partial_fit(MORE["hbo"] + 1, ["emu"] * len(MORE["hbo"]))


def test_cells_have_the_keys_that_they_had() -> None:
    then = recorded("cells")["record"]
    files = [(ROOT / folder / file, key) for folder, keys in then.items() for file, key in keys.items()]
    assert len(files) > 1000
    different = {}
    for file, key in files:
        result = read_result(file)
        assert result is not None
        if key_of(result) != key:
            different[file.name] = key
    assert different == {}


@pytest.mark.parametrize("file", AGAIN)
def test_a_committed_result_is_repeated_to_the_bit(file: str) -> None:
    answer = CliRunner().invoke(app, ["run", "--again", str(ROOT / file)])
    assert answer.exit_code == 0, answer.output


def test_verbs_and_options_of_the_command_line_are_the_same() -> None:
    assert differences(recorded("cli")["record"], json.loads(json.dumps(record_cli())), exact=True) == []


@pytest.mark.parametrize("command", [path.split()[1:] for path in record_cli()], ids=" ".join)
def test_every_command_has_a_help(command: list[str]) -> None:
    answer = CliRunner().invoke(app, [*command, "--help"])
    assert answer.exit_code == 0
    assert "--help" in answer.output


def test_public_names_and_their_signatures_are_the_same() -> None:
    then, now = recorded("api")["record"], record_api()
    for name in ("Client", "datasets"):  # added since, as is what follows
        now["all"].remove(name)
        del now[name]
    estimator = now["CLDNetClassifier"]
    for name in ("check_inputs", "lesson", "private_statistics", "refresh", "rename_class", "undo"):
        del estimator[name]
    for name in ("lessons_", "model_"):
        estimator["properties"].remove(name)
    estimator["session"].remove(["stream", "KEYWORD_ONLY", "False"])
    del now["Statistics"]["accumulator"]
    estimator[""].remove(["keep_lessons", "KEYWORD_ONLY", "0"])
    now["Statistics"][""].remove(["history", "POSITIONAL_OR_KEYWORD", "an object"])
    now["Statistics"][""].remove(["bounded", "POSITIONAL_OR_KEYWORD", "True"])
    assert differences({**then, "imports": []}, {**now, "imports": []}, exact=True) == []


def test_whatever_the_docs_import_is_there() -> None:
    missing = [pair for pair in sorted(documented()) if not importable(*pair)]
    assert missing == []


@pytest.mark.parametrize(
    ("module", "name"), recorded("api")["record"]["imports"] if (HERE / "api.json").exists() else []
)
def test_what_the_docs_named_is_importable_from_there_or_from_where_they_name_now(module: str, name: str) -> None:
    places = {module, *(place for place, other in documented() if other == name)}
    assert any(importable(place, name) for place in places), f"none of {sorted(places)} has {name}"


def importable(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name)
    except ImportError:
        return False


def record_missing() -> None:
    """Write the goldens that are not there."""
    torch.set_num_threads(1)
    write_pickles()
    for name, make in RECORDS.items():
        if not (HERE / f"{name}.json").exists():
            content = {"machine": machine(), "version": cldnet.__version__, "record": make()}
            text = json.dumps(content, indent=1, ensure_ascii=False)
            text = re.sub(r"\[[^\[\]{}]*\]", lambda found: re.sub(r"\n\s*", " ", found[0]), text)
            (HERE / f"{name}.json").write_text(text + "\n", "utf-8")
            print(f"wrote {name}.json", file=sys.stderr)


if __name__ == "__main__":
    record_missing()
