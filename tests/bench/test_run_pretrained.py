"""Runs over frozen nets, on generated photos in the layout of ImageNet-R, with tiny ViTs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.nets.vits import save_vit

from cldnet.bench.run import RunSpec, run
from cldnet.bench.spec import read_spec
from cldnet.data.stream import Stream
from cldnet.data.streams import stream_by_name

CLASSES = 6


def photos_like_imagenet_r(folder: Path) -> Path:
    """Folders with WordNet's numbers for names, each with photos of one colour in noise."""
    rng = np.random.default_rng(0)
    for number in range(CLASSES):
        (folder / f"n{number:08d}").mkdir(parents=True)
        colour = np.array([number & 1, number >> 1 & 1, number >> 2 & 1]) * 160
        for photo in range(12):
            pixels = (colour + rng.integers(0, 96, (40, 50, 3))).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"n{number:08d}" / f"{photo}.png")
    (folder / "README.txt").write_text("ImageNet-R")
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vits")
    photos_like_imagenet_r(folder / "imagenet-r")
    for seed, name in enumerate(("one", "two")):
        save_vit(folder / name, seed)
    return folder


@pytest.fixture(scope="module")
def stream(place: Path) -> Stream:
    return stream_by_name("split-imagenet-r,size=32,resize=32,tasks=3", 0, data=place)


def specs(place: Path) -> dict[str, RunSpec]:
    one, two = str(place / "one"), str(place / "two")
    cldnet: dict[str, Any] = {
        "method": "cldnet",
        "epochs": 3,
        "batch_size": 8,
        "options": {"embed_dim": 16},
        "backbone": "frozen",
    }
    expanded = {"features": 200, "bodies": [one]}
    return {
        "exact": RunSpec("exact", backbone="expanded", backbone_options=expanded),
        "Ours(1)": RunSpec(**cldnet, backbone_options={"bodies": [one]}),
        "Ours(1), last block": RunSpec(**cldnet, backbone_options={"bodies": [{"net": one, "adapt": 1}]}),
        "Ours(2)": RunSpec(**cldnet, backbone_options={"bodies": [one, two]}),
        "lower bound": RunSpec(
            "finetune", epochs=3, batch_size=8, backbone="frozen", backbone_options={"bodies": [one]}
        ),
    }


@pytest.mark.parametrize("way", ["exact", "Ours(1)", "Ours(1), last block", "Ours(2)"])
def test_a_stream_like_imagenet_r_is_learned(place: Path, stream: Stream, way: str) -> None:
    result = run(specs(place)[way], stream)
    assert len(result["matrix"]) == 3
    assert result["scores"]["average_accuracy"] > 0.8  # a sixth by chance
    assert result["config"]["normalise"] == "its own"
    assert result["bytes"]
    specs(place)[way].check()


def test_a_second_seed_and_a_second_method_look_at_no_image_again(place: Path, stream: Stream) -> None:
    made = specs(place)
    run(made["exact"], stream)
    rows = len(stream.train_part) + len(stream.test)
    for spec in (RunSpec.from_json({**made["exact"].to_json(), "seed": 1}), made["Ours(1)"]):
        found = run(spec, stream)["vectors"]
        assert found["computed"] == 0
        assert found["recalled"] >= rows
        assert found["seconds"] == 0


def test_images_that_are_varied_are_not_remembered(place: Path, stream: Stream) -> None:
    varied = RunSpec.from_json({**specs(place)["Ours(1)"].to_json(), "epochs": 1, "augment": "flip"})
    assert "vectors" not in run(varied, stream)


TABLE3 = read_spec(Path(__file__).parents[2] / "specs" / "table3.toml")
FIRST = [cell for cell in TABLE3.cells() if cell.spec.seed == TABLE3.seeds[0]]


@pytest.mark.parametrize("cell", FIRST, ids=lambda cell: cell.label)
def test_the_specification_of_table_3_runs_from_photos_to_results(cell: Any, stream: Stream, tmp_path: Path) -> None:
    """The machinery only: a tiny ViT with random weights, photos of one colour, and one epoch."""
    tiny = save_vit(tmp_path / "vit", num_hidden_layers=5)
    options = dict(cell.spec.backbone_options)
    options["bodies"] = [{**body, "net": tiny} if isinstance(body, dict) else tiny for body in options["bodies"]]
    if "features" in options:
        options["features"] = 100
    result = run(replace(cell.spec, epochs=1, backbone_options=options), stream)
    assert len(result["matrix"]) == 3
    assert (result["exemplars"] > 0) == (cell.spec.method == "er")
    assert result["growth"]["declared"][1:] == result["growth"]["measured"][1:]
    assert result["constant_size"] == (cell.spec.method != "dualprompt")
