"""``cldnet learn --engine``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cldnet import CLDNetClassifier
from cldnet.cli import app

pytest.importorskip("pyarrow")
RNG = np.random.default_rng(0)


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    import pyarrow as pa
    from pyarrow import parquet

    folder = tmp_path / "march"
    folder.mkdir()
    for part in range(3):
        y = RNG.integers(0, 3, size=60)
        x = RNG.normal(size=(60, 4)) + 3 * y[:, None]
        columns = {f"c{at}": x[:, at] for at in range(4)}
        parquet.write_table(pa.table({**columns, "label": y}), folder / f"part-{part}.parquet")
    return folder


def run(*arguments: object) -> tuple[int, str]:
    done = CliRunner().invoke(app, [str(each) for each in arguments])
    return done.exit_code, done.output + (str(done.exception) if done.exit_code else "")


def test_a_pattern_of_tables_is_one_lesson(tables: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.cldnet"
    code, said = run("learn", model, tables / "*.parquet", "--engine", "local", "--workers", 1)
    assert code == 0, said
    assert "learned  180 rows of 3 classes" in said
    assert "new  0, 1, 2" in said
    clf = CLDNetClassifier.load(model)
    (record,) = clf.lessons_
    assert record.name == "march"
    assert record.manifest is not None
    assert [shard.path for shard in record.manifest.shards] == [f"part-{part}.parquet" for part in range(3)]
    assert set(clf.model_.labels.dates) == {0, 1, 2}
    code, said = run("lessons", model, "--json")
    assert json.loads(said)[0]["manifest"]["count"] == 3


def test_a_shard_given_twice_is_refused_with_or_without_an_engine(tables: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.cldnet"
    run("learn", model, tables, "--engine", "local", "--workers", 1)
    before = model.read_bytes()
    for more in (["--engine", "local", "--workers", 1], []):
        code, said = run("learn", model, tables / "part-1.parquet", *more)
        assert code == 1
        assert "before, in lesson" in said
        assert "--allow-duplicates" in said
        assert model.read_bytes() == before
    code, said = run(
        "learn", model, tables / "part-1.parquet", "--engine", "local", "--workers", 1, "--allow-duplicates"
    )
    assert code == 0, said
    assert CLDNetClassifier.load(model).statistics().rows == 240


def test_options_of_an_engine_need_one(tables: Path, tmp_path: Path) -> None:
    for option, value in (("--workers", 2), ("--address", "x"), ("--sums", tmp_path)):
        code, said = run("learn", tmp_path / "m", tables / "part-0.parquet", option, value)
        assert code == 1
        assert "belongs to --engine" in said


def test_sentences_are_not_summed_in_shards(tmp_path: Path) -> None:
    (tmp_path / "intents.csv").write_text("text,label\nhello there,greet\nI lost my card,pay\n")
    for more in ([], ["--text", "text"]):
        code, said = run("learn", tmp_path / "m", tmp_path / "intents.csv", "--engine", "local", *more)
        assert code == 1
        assert "without --engine" in said or "leave --text or --engine out" in said


def test_a_lesson_of_shards_can_be_checked_and_refused(tables: Path, tmp_path: Path) -> None:
    model, held_out = tmp_path / "model.cldnet", tables / "part-0.parquet"
    run("learn", model, tables / "part-0.parquet", "--engine", "local", "--workers", 1)
    code, said = run(
        "learn", model, tables / "part-1.parquet", "--engine", "local", "--workers", 1, "--check", held_out
    )
    assert code == 0, said
    assert "check  " in said
