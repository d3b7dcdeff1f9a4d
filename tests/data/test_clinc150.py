"""The files of CLINC150."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cldnet.data.published import read_clinc150, read_clinc150_oos, read_clinc150_part
from cldnet.data.sentences import decode_sentences


@pytest.fixture
def folder(small_data: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(small_data / "clinc150", tmp_path / "clinc150"))


def test_training_and_test_sentences_are_those_of_the_file(folder: Path) -> None:
    found = read_clinc150(folder)
    assert found.test is not None
    assert (len(found.train), len(found.test), found.groups and len(found.groups)) == (80, 40, 10)
    parts = json.loads((folder / "data_full.json").read_text())
    assert [*zip(decode_sentences(found.train.x), found.train.y.tolist(), strict=True)] == [*map(tuple, parts["train"])]
    assert [*zip(decode_sentences(found.test.x), found.test.y.tolist(), strict=True)] == [*map(tuple, parts["test"])]


def test_sentences_out_of_scope_and_the_validation_part_are_read_apart(folder: Path) -> None:
    assert read_clinc150_oos(folder) == ([f"nothing of the kind, {n}" for n in range(3)],) * 2
    sentences, intents = read_clinc150_part(folder, "val")
    assert (sentences[0], intents[0], len(intents)) == ("val words number 0 about intent00", "intent00", 20)
    with pytest.raises(ValueError, match="has no part 'train2'"):
        read_clinc150_part(folder, "train2")


def changed(file: str, change: Callable[[dict[str, Any]], object], folder: Path) -> None:
    found = json.loads((folder / file).read_text())
    change(found)
    (folder / file).write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("file", "change", "complaint"),
    [
        ("data_full.json", lambda found: found.pop("train"), "no part 'train' of pairs"),
        ("data_full.json", lambda found: found["test"].append(["a", 3]), "no part 'test' of pairs"),
        ("domains.json", lambda found: found.popitem(), "other intents"),
        ("domains.json", lambda found: found.update(domain0=3), "a list of intents"),
    ],
)
def test_files_that_do_not_hold_together_are_refused(
    file: str, change: Callable[[dict[str, Any]], object], complaint: str, folder: Path
) -> None:
    changed(file, change, folder)
    with pytest.raises(ValueError, match=complaint):
        read_clinc150(folder)


@pytest.mark.parametrize("content", ["", "[]", "[" * 100_000, "\0"])
def test_what_is_not_json_is_refused_in_a_sentence(content: str, folder: Path) -> None:
    (folder / "data_full.json").write_text(content)
    with pytest.raises(ValueError, match="JSON"):
        read_clinc150(folder)
