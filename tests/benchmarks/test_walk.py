"""The walk through the files: what is traced, and that targets are compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import walk


def test_each_call_begins_in_the_estimator_and_is_compared_with_its_target(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(walk, "_learn", lambda folder, rng: {"cli/photos.py": 1})
    found = walk.walks(tmp_path)
    for call in walk.TARGETS:
        assert next(iter(found[call].items())) == ("estimator/classifier.py", 1)
        assert "data/labels.py" in found[call]
    monkeypatch.setattr(walk, "walks", lambda folder: {"load": dict.fromkeys(map(str, range(14)), 1)})
    assert walk.main() == 0
    monkeypatch.setattr(walk, "walks", lambda folder: {"load": dict.fromkeys(map(str, range(15)), 1)})
    assert walk.main() == 1
    assert "load: 15 files (target 14: MISSED)" in capsys.readouterr().out
