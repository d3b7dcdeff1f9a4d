"""A run that was interrupted, anywhere, ends in the result that it would have had."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.streams import split_digits

import cldnet.storage as store
from cldnet import CLDNetClassifier
from cldnet.bench.cell import Cell, run_cell
from cldnet.bench.checkpoint import RunCheckpoint
from cldnet.bench.run import Execution, Record, RunSpec

SMALL = {"backbone": "mlp", "backbone_options": {"widths": [8]}, "epochs": 2, "batch_size": 100}
SPECS = {
    "cldnet": RunSpec("cldnet", options={"embed_dim": 16, "lr": 0.5}, **SMALL),  # type: ignore[arg-type]
    "dropout": RunSpec(
        "owm",
        backbone="cnn",
        backbone_options={"channels": [4], "kernel_sizes": [2], "hidden": [8], "dropout": 0.5},
        epochs=2,
        batch_size=100,
        augment="crop=1",
    ),
    "er": RunSpec("er", **SMALL),  # type: ignore[arg-type]
    "exact": RunSpec("exact", backbone_options={"features": 40}),
}
#: What differs between two runs of one cell.
CLOCKS = {"seconds", "peak_rss"}


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def run_small(
    name: str, file: Path | None, stop: Callable[[float], None] | None = None, **other: Any
) -> dict[str, Any]:
    cell = Cell("split-digits", replace(SPECS[name], **other), record=Record(features=2))
    execution = Execution(checkpoint=None if file is None else RunCheckpoint(file, every=0))
    result = run_cell(cell, split_digits(0)[:2], stop, execution=execution)
    assert result["seconds"]["total"] > sum(result["seconds"]["train"]) > 0
    return {name: value for name, value in result.items() if name not in CLOCKS}


def interrupt_after(calls: int) -> Callable[[float], None]:
    left = calls

    def stop(share: float) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise KeyboardInterrupt

    return stop


@pytest.mark.parametrize("name", SPECS)
def test_a_run_that_is_interrupted_again_and_again_ends_in_the_same_result(name: str, tmp_path: Path) -> None:
    expected, file, interruptions = run_small(name, None), tmp_path / "run.ckpt", 0
    while True:
        try:
            found = run_small(name, file, interrupt_after(3))
            break
        except KeyboardInterrupt:
            interruptions += 1
            assert file.exists()
    assert interruptions >= (1 if name == "exact" else 3)
    assert found == expected
    assert run_small(name, file, interrupt_after(0)) == expected, "all was learned: nothing is trained again"
    (tmp_path / "result.json").touch()
    RunCheckpoint(file).remove(tmp_path / "result.json")
    assert not file.exists()


def test_only_one_process_writes_the_file(tmp_path: Path) -> None:
    file = tmp_path / "run.ckpt"
    cell = Cell("split-digits", SPECS["exact"])
    run_cell(cell, split_digits(0)[:1], execution=Execution(checkpoint=RunCheckpoint(file, writes=False)))
    assert not file.exists()


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "run.ckpt"
    run_small("cldnet", file)
    for other in ({"seed": 1}, {"epochs": 3}, {"options": {"embed_dim": 16, "lr": 0.4}}):
        with pytest.raises(
            ValueError, match=r"run.ckpt' belongs to another run .*: delete it .* or name another file\.$"
        ):
            run_small("cldnet", file, **other)
    torch.set_num_threads(2)
    with pytest.raises(ValueError, match="belongs to another run"):
        run_small("cldnet", file)


def test_what_is_no_checkpoint_of_a_run_is_refused(tmp_path: Path) -> None:
    model = tmp_path / "model.cldnet"
    CLDNetClassifier("exact").fit([[0.0, 1.0], [1.0, 0.0]], ["a", "b"]).save(model)
    with pytest.raises(ValueError, match=r"is not the checkpoint of a run: name another file\.$"):
        run_small("exact", model)
    (tmp_path / "text").write_text("no tensors")
    with pytest.raises(ValueError, match="is not a valid safetensors file"):
        run_small("exact", tmp_path / "text")
    with pytest.raises(FileNotFoundError, match=r"There is no folder .*: create it first\.$"):
        RunCheckpoint(tmp_path / "none" / "file")


def test_a_forged_checkpoint_is_refused_in_one_sentence(tmp_path: Path) -> None:
    file = tmp_path / "run.ckpt"
    with pytest.raises(KeyboardInterrupt):
        run_small("cldnet", file, interrupt_after(5))
    tensors, manifest = store.read(file)
    nan = torch.full_like(tensors["before/net.layers.1.weight"], float("nan"))
    counters = tensors["before/counters"] + 1
    forgeries: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "tasks": ({}, {"tasks": 7}),
        "no count": ({}, {"tasks": "1"}),
        "record": ({}, {"recorded": {**manifest["recorded"], "matrix": [[0.5]] * 3}}),
        "type": ({}, {"recorded": {**manifest["recorded"], "sizes": "many"}}),
        "unknown": ({}, {"recorded": {**manifest["recorded"], "run_this": "rm"}}),
        "shape": ({"before/net.layers.1.weight": torch.zeros(3)}, {}),
        "values": ({"before/net.layers.1.weight": nan}, {}),
        "counters": ({"before/counters": counters}, {}),
        "during": ({"state/counters": counters}, {}),
        "order": ({"order": tensors["order"][:-1]}, {}),
        "epoch": ({}, {"epoch": -1}),
    }
    for name, (other, said) in forgeries.items():
        store.write(file, {**tensors, **other}, {**manifest, **said})
        with pytest.raises(ValueError, match=r"begin again") as refused:
            run_small("cldnet", file)
        assert not re.search(r"Error|\n", str(refused.value)), name
    store.write(file, tensors, manifest)
    run_small("cldnet", file)
