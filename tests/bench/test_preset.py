"""Presets: which file counts, what is refused in one, and how one is changed."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cldnet.bench.preset import load_presets, preset, preset_name, with_methods
from cldnet.bench.run import RunSpec

OWN = """\
# Mine.
[common]
epochs = 3

[methods.ewc]  # tuned at home
validation = 0.5
options = { lr = 0.7 }

[methods.ewc.provenance]
command = "by hand"
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "split-digits.toml").write_text(OWN)
    return tmp_path


def test_a_folder_of_ones_own_goes_first(own: Path) -> None:
    expected = RunSpec("ewc", seed=4, epochs=3, options={"lr": 0.7}, threads=2)
    assert preset("split-digits", "ewc", 4, 2, own) == expected
    assert preset("split-digits,online=5", "ewc", 4, 2, folder=own) == expected


def test_a_method_that_ones_own_file_lacks_comes_from_the_library_with_ones_own_budget(
    own: Path, tmp_path: Path
) -> None:
    assert preset("split-digits", "owm", 0, folder=own) == replace(preset("split-digits", "owm", 0), epochs=3)
    assert preset("split-digits", "ewc", 0, folder=tmp_path / "nowhere") == preset("split-digits", "ewc", 0)


def test_where_nobody_has_the_method_ones_own_common_settings_hold(own: Path) -> None:
    assert preset("split-digits", "mine", 0, folder=own) == RunSpec("mine", epochs=3)


def test_all_methods_have_one_budget_whoever_has_their_settings(tmp_path: Path) -> None:
    file = tmp_path / "split-digits.toml"
    for common, budget in (
        ("[common]\nepochs = 3\nbatch_size = 64\n", (3, 64)),
        ("[common]\nbatch_size = 64\n", (10, 64)),
        ("", (10, 16)),
    ):
        file.write_text(f"{common}[methods.ewc]\noptions = {{ lr = 0.7 }}\n")
        specs = [preset("split-digits", method, 0, folder=tmp_path) for method in ("ewc", "owm", "exact", "mine")]
        assert {(spec.epochs, spec.batch_size) for spec in specs} == {budget}
    file.write_text("[common]\nepochs = 3\n[methods.ewc]\nepochs = 5\n")
    assert preset("split-digits", "ewc", 0, folder=tmp_path).epochs == 5  # said of this method, for all to see


def test_the_story_of_a_choice_changes_no_run(own: Path) -> None:
    assert "validation" in load_presets("split-digits", own)["methods"]["ewc"]
    with_story = preset("split-digits", "ewc", 0, folder=own)
    (own / "split-digits.toml").write_text("[common]\nepochs = 3\n[methods.ewc]\noptions = { lr = 0.7 }\n")
    assert preset("split-digits", "ewc", 0, folder=own) == with_story


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "[methods.ewc]\nepoch = 3",
            r"split-digits\.toml .* methods\.ewc has an unknown key 'epoch'\. Did you mean 'epochs'",
        ),
        ("[methods.ewc]\nlr = 3", r"methods\.ewc has an unknown key 'lr'"),
        ("[common]\nvalidation = 0.3", r"common has an unknown key 'validation'"),
        ("[commons]\nepochs = 3", r"The file has an unknown key 'commons'\. Did you mean 'common'"),
        ("[methods]\newc = 3", r"methods\.ewc=3 should be a table"),
        ("[methods.ewc]\nepochs = 0", r"methods\.ewc\.epochs=0 should be greater than 0"),
        ("[methods.ewc]\nepochs = 2.5", r"epochs=2\.5 should be an integer"),
        ("[methods.ewc]\nepochs = true", r"epochs=True should be an integer"),
        ("[methods.ewc]\noptions = 'lr'", r"options='lr' should be a table"),
        ("[methods.ewc]\nbackbone = 5", r"backbone=5 should be a string"),
        ("[methods.ewc\nepochs = 3", r"split-digits\.toml is not a file of presets: Expected ']'"),
    ],
)
def test_what_a_preset_cannot_mean_is_refused_with_file_and_key(tmp_path: Path, text: str, complaint: str) -> None:
    (tmp_path / "split-digits.toml").write_text(text)
    with pytest.raises(ValueError, match=complaint):
        preset("split-digits", "owm", 0, folder=tmp_path)


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "split-digits.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="is not a file of presets"):
        load_presets("split-digits", tmp_path)


def test_every_preset_of_the_library_can_be_read() -> None:
    for stream in ("split-digits", "split-mnist", "split-fmnist", "split-cifar10", "split-cifar100"):
        assert load_presets(stream)["methods"]


def test_the_name_of_a_preset_file_stays_in_its_folder() -> None:
    assert preset_name("folder:../../my pets,size=64") == "folder-my-pets"
    assert preset_name("folder:/a/b,c") == "folder-b-c"
    assert "/" not in preset_name("split-digits/../../x")


def test_new_tables_take_the_place_of_the_old_and_all_else_stays() -> None:
    text = OWN + "\n# the lower bound\n[methods.finetune]\nepochs = 9  # long\n"
    changed = with_methods(text, {"ewc": {"options": {"lr": 0.1}, "provenance": {"trials": 3}}, "owm": {"epochs": 2}})
    assert tomllib.loads(changed)["methods"] == {
        "ewc": {"options": {"lr": 0.1}, "provenance": {"trials": 3}},
        "finetune": {"epochs": 9},
        "owm": {"epochs": 2},
    }
    assert changed.startswith("# Mine.\n[common]\nepochs = 3\n")
    assert "[methods.finetune]\nepochs = 9  # long\n" in changed
    assert "by hand" not in changed
    assert with_methods(changed, {"owm": {"epochs": 2}}) == changed


@pytest.mark.parametrize(
    "text",
    [
        "# Mine.\n\n[common]\nepochs = 1\n[methods]\newc = { epochs = 2 }\nowm.epochs = 4\n",
        '# Mine.\n[methods.ewc]\naugment = """\n[methods.owm]\n"""\n[methods.owm]\nepochs = 4\n',
        "# Mine.\n[methods.owm]\nepochs = 4\n[common]\nepochs = 1\n[methods.ewc]\nepochs = 2\n[methods.ewc.provenance]\n",
    ],
)
def test_tables_written_in_another_way_are_written_anew(text: str) -> None:
    before = tomllib.loads(text)
    changed = with_methods(text, {"ewc": {"epochs": 5}})
    assert changed.startswith("# Mine.\n")
    assert tomllib.loads(changed) == {**before, "methods": {**before["methods"], "ewc": {"epochs": 5}}}


plain = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.dates(min_value=date(1000, 1, 1)),
)
values = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=5), inner), max_leaves=8)


@given(values)
def test_whatever_toml_has_is_read_back_as_it_was_written(value: Any) -> None:
    written = with_methods("", {"ewc": {"options": {"x": value}, "provenance": {"x": value}}})
    assert tomllib.loads(written)["methods"]["ewc"] == {"options": {"x": value}, "provenance": {"x": value}}


def test_what_toml_lacks_is_refused() -> None:
    with pytest.raises(ValueError, match="None"):
        with_methods("", {"ewc": {"options": {"lr": None}}})
