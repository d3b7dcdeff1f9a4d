"""The specifications in ``specs/``: that each can be run as it stands, without the data that it needs."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import Mock

import pytest
from tests.nets.berts import save_bert
from tests.nets.vits import save_vit

from cldnet.bench.cell import Cell
from cldnet.bench.published import published_figures
from cldnet.bench.spec import read_spec
from cldnet.data.sentences import TEXT_BYTES
from cldnet.data.transforms import Augment
from cldnet.methods import build_learner
from cldnet.methods.config import config_from_json
from cldnet.methods.learner import Setting
from cldnet.nets import frozen, transformer

SPECS = sorted((Path(__file__).parents[2] / "specs").glob("*.toml"))
CHECKS = sorted((Path(__file__).parents[2] / "specs" / "checks").glob("*.toml"))
#: Shape of one input, and number of classes.
INPUTS = {
    "split-digits": ((8, 8), 10),
    "split-mnist": ((28, 28), 10),
    "split-fmnist": ((28, 28), 10),
    "split-cifar10": ((3, 32, 32), 10),
    "split-cifar100": ((3, 32, 32), 100),
    "split-imagenet-r": ((3, 224, 224), 200),
    "split-clinc150": ((TEXT_BYTES,), 150),
}


def cells_of(path: Path) -> list[Cell]:
    """One cell for every stream, method and configuration; further seeds differ in nothing else."""
    spec = read_spec(path)
    return [cell for cell in spec.cells() if cell.spec.seed == spec.seeds[0]]


CELLS = [pytest.param(cell, id=f"{path.stem}/{cell.name}") for path in SPECS + CHECKS for cell in cells_of(path)]


def test_there_is_one_for_every_table_and_figure_of_the_paper_and_a_quick_one() -> None:
    names = {path.stem for path in SPECS}
    assert {"quick", *(f"table{number}" for number in range(1, 6)), "figure-rank", "figure-tsne"} <= names


@pytest.mark.parametrize("path", SPECS + CHECKS, ids=lambda path: path.stem)
def test_each_says_how_it_is_run_and_how_long_it_takes(path: Path) -> None:
    head = path.read_text().split("title =")[0]
    assert f"cldnet bench specs/{path.relative_to(SPECS[0].parent)}" in head
    assert re.search(r"\(about .*(minute|hour).* on 2 cores", head)
    assert read_spec(path).title != path.stem


@pytest.mark.filterwarnings("ignore:No projector can protect")  # of BatchNorm, which is frozen after the first task
@pytest.mark.parametrize("cell", CELLS)
def test_each_cell_names_options_that_its_method_and_backbone_have(
    cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if "gte-small" in str(cell.spec.backbone_options):  # a folder that benchmarks.gte writes
        save_bert(tmp_path / "gte-small")
        monkeypatch.chdir(tmp_path)
    # The hub's client would try again for most of a minute if there is no network.
    monkeypatch.setattr("huggingface_hub.hf_hub_download", Mock(side_effect=OSError))
    if "google/" in str(cell.spec.backbone_options):
        tiny = save_vit(tmp_path / "vit", num_hidden_layers=5)
        monkeypatch.setattr(frozen, "read_source", lambda name: transformer.read_source(tiny))
    shape, classes = INPUTS[cell.stream.partition(",")[0]]
    spec = cell.spec
    if spec.augment:
        Augment.from_text(spec.augment)
    setting = Setting(shape, capacity=classes, seed=0)
    learner = build_learner(
        spec.method, setting, config_from_json(dict(spec.options)), spec.backbone, spec.backbone_options
    )
    assert learner.traits.one_pass or spec.batch_size <= 128


def test_the_figures_have_as_many_seeds_as_the_paper_where_that_is_cheap() -> None:
    seeds = {path.stem: len(read_spec(path).seeds) for path in SPECS}
    assert seeds["table1"] == 5
    few = ("quick", "figure-tsne", "literature", "table1-cifar10", "ablation", "epochs", "normalise", "hsic-cifar10")
    assert all(count >= 3 for name, count in seeds.items() if "validation" not in name and name not in few)


def test_configurations_bear_the_names_of_the_published_figures_that_they_stand_beside() -> None:
    named = {(figure.stream, figure.method, figure.what) for figure in published_figures()}
    [table2, table4, table5] = [read_spec(SPECS[0].parent / f"table{number}.toml") for number in (2, 4, 5)]
    of_er = [one for one in table2.configurations if one.methods == ["er"]]
    assert len(of_er) == 3
    assert {("split-cifar100", "er", one.name) for one in of_er} <= named
    assert ("split-cifar100", "cldnet", table4.configurations[0].name) in named
    assert {("split-mnist", "cldnet-paper", one.name) for one in table5.configurations[:3]} <= named


def test_the_rank_figure_has_three_hidden_layers_and_two_kinds_of_alpha() -> None:
    cells = cells_of(SPECS[0].parent / "figure-rank.toml")
    assert {len(cell.spec.backbone_options["widths"]) for cell in cells} == {3}
    assert [cell.label for cell in cells] == [
        "OWM, constant α",
        "AOP, adaptive α",
        "CLDNet (paper), constant α",
        "CLDNet (paper), adaptive α",
        "",
    ]
    assert [cell.spec.method for cell in cells] == ["owm", "aop", "cldnet-paper", "cldnet-paper", "cldnet"]


def test_the_feature_figure_and_the_quick_one_record_features() -> None:
    for name in ("figure-tsne", "quick"):
        assert read_spec(SPECS[0].parent / f"{name}.toml").record.features >= 20
