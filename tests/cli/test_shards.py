"""``cldnet learn --engine``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from cldnet import CLDNetClassifier, save_map
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
    for option, value in (("--workers", 2), ("--address", "x"), ("--sums", tmp_path), ("--map", "x"), ("--sample", 9)):
        code, said = run("learn", tmp_path / "m", tables / "part-0.parquet", option, value)
        assert code == 1
        assert f"{option} belongs to --engine" in said


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


def test_a_map_is_a_file_or_fitted_on_a_sample(tables: Path, tmp_path: Path) -> None:
    source, engine = tables / "*.parquet", ["--engine", "local", "--workers", 1]
    run("learn", tmp_path / "one", source, *engine, "--sample", 60)
    one = CLDNetClassifier.load(tmp_path / "one")
    save_map(one.feature_map_, tmp_path / "map")
    run("learn", tmp_path / "two", source, *engine, "--map", tmp_path / "map")
    assert CLDNetClassifier.load(tmp_path / "two").feature_map_.map_id == one.feature_map_.map_id
    run("learn", tmp_path / "three", source, *engine)
    assert CLDNetClassifier.load(tmp_path / "three").feature_map_.map_id != one.feature_map_.map_id
    code, said = run("learn", tmp_path / "one", tables / "part-0.parquet", *engine, "--map", tmp_path / "map")
    assert (code, "has a feature map already" in said) == (1, True)


def test_a_run_that_is_stopped_says_what_is_left(tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(self: object, job: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("cldnet.distributed.fit.SumShard.__call__", stopped)
    model, engine = tmp_path / "model", ["--engine", "local", "--workers", 1]
    code, said = run("learn", model, tables, *engine, "--sums", tmp_path / "sums")
    assert code == 130
    assert "Stopped. The model is as it was. Finished shards are kept" in said
    assert not model.exists()
