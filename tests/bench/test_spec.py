"""A bench as a person writes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cldnet.bench.run import Record
from cldnet.bench.spec import Spec, read_spec

SMALL = """
title = "Small"
streams = ["split-digits", "split-digits,online=10"]
methods = ["owm", "ewc"]
seeds = [3, 1]

[run]
epochs = 2
options = { lr = 0.5 }

[record]
features = 7

[[configurations]]
name = "constant α"
methods = ["owm"]
options = { alpha = { kind = "ConstantAlpha", value = 1.0 } }

[[configurations]]
name = "a small net"
methods = ["owm"]
streams = ["split-digits"]
backbone_options = { widths = [8] }
"""


def written(tmp_path: Path, text: str) -> Spec:
    path = tmp_path / "small.toml"
    path.write_text(text)
    return read_spec(path)


def test_cells_are_methods_by_streams_by_seeds_by_the_configurations_that_are_for_them(tmp_path: Path) -> None:
    spec = written(tmp_path, SMALL)
    assert (spec.name, spec.title) == ("small", "Small")
    assert [cell.name for cell in spec.cells()] == [
        "split-digits/OWM, constant α/seed3",
        "split-digits/OWM, constant α/seed1",
        "split-digits/OWM, a small net/seed3",
        "split-digits/OWM, a small net/seed1",
        "split-digits/ewc/seed3",
        "split-digits/ewc/seed1",
        "split-digits,online=10/OWM, constant α/seed3",
        "split-digits,online=10/OWM, constant α/seed1",
        "split-digits,online=10/ewc/seed3",
        "split-digits,online=10/ewc/seed1",
    ]
    assert {cell.record for cell in spec.cells()} == {Record(features=7)}


def test_settings_lie_over_the_preset_and_configurations_over_both(tmp_path: Path) -> None:
    first, _, third, *_ = written(tmp_path, SMALL).cells()
    assert first.spec.epochs == 2
    assert first.spec.batch_size == 16  # the preset's
    assert first.spec.options == {"lr": 0.5, "alpha": {"kind": "ConstantAlpha", "value": 1.0}}
    assert third.spec.options["lr"] == 0.5
    assert third.spec.options["alpha"]["kind"] == "DecayingAlpha"  # the preset's
    assert third.spec.backbone_options == {"widths": [8]}


def test_another_backbone_does_not_get_the_options_of_the_presets(tmp_path: Path) -> None:
    text = 'streams = ["split-mnist"]\nmethods = ["exact"]\n[run]\nbackbone = "random-relu"'
    (cell,) = written(tmp_path, text).cells()
    assert (cell.spec.backbone, cell.spec.backbone_options, cell.spec.options) == ("random-relu", {}, {})
    assert cell.spec.seed == 0


def test_presets_of_a_folder_beside_the_file_go_first(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "split-digits.toml").write_text("[methods.owm]\nepochs = 77")
    text = 'streams = ["split-digits"]\nmethods = ["owm"]\npresets = "mine"'
    (cell,) = written(tmp_path, text).cells()
    assert cell.spec.epochs == 77


@pytest.mark.parametrize(
    ("old", "new", "answer"),
    [
        ("seeds = [3, 1]", "seed = [3]", "The file has an unknown key 'seed'. Did you mean 'seeds'?"),
        ("seeds = [3, 1]", "seeds = [3, 3]", "seeds has something twice: [3, 3]"),
        ("seeds = [3, 1]", "seeds = 3", "seeds=3 should be a list"),
        ("seeds = [3, 1]", "seeds = [-1]", "seeds.0=-1 should be greater than or equal to 0"),
        ('"ewc"]', '"ewcc"]', "There is no method 'ewcc'. Did you mean 'ewc' or 'oewc'?"),
        ('"ewc"]', '"exact"]', "Method 'exact' does not take lr"),
        ('"split-digits",', '"split-digit",', "There is no stream 'split-digit'"),
        ("epochs = 2", "epoch = 2", "run has an unknown key 'epoch'. Did you mean 'epochs'"),
        ("epochs = 2", "epochs = 0", "run.epochs=0 should be greater than 0"),
        ("epochs = 2", "epochs = true", "run.epochs=True should be an integer"),
        ("features = 7", "features = -7", "record.features=-7 should be greater than or equal to 0"),
        ("features = 7", "feature = 7", "record has an unknown key 'feature'. Did you mean 'features'"),
        ("features = 7", 'leaky = "no"', "record.leaky='no' should be a boolean"),
        ('name = "constant α"', "", "configurations.0.name is missing"),
        (
            'name = "constant α"',
            'name = "a small net"',
            "There are two cells split-digits/OWM, a small net/seed3",
        ),
        (
            'methods = ["owm"]\noptions',
            'methods = ["pnn"]\noptions',
            "is for 'pnn', which is not among the bench's methods",
        ),
        ('title = "Small"', "title = 3", "title=3 should be a string"),
        ('title = "Small"', 'presets = "nowhere"', "should be a folder relative to the file"),
        ('title = "Small"', "title = ", "is not TOML"),
        ('title = "Small"', 'name = "x"', "A bench is named after its file"),
        ("[record]", "[records]", "The file has an unknown key 'records'"),
        ('streams = ["split-digits", "split-digits,online=10"]', "", "streams is missing"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(tmp_path: Path, old: str, new: str, answer: str) -> None:
    assert old in SMALL
    with pytest.raises(ValueError, match=r"small\.toml") as error:
        written(tmp_path, SMALL.replace(old, new, 1))
    assert answer in str(error.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="There is no file"):
        read_spec(tmp_path / "none.toml")
