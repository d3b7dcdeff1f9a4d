from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.speed import result as files
from benchmarks.speed.record import Curve, Finding, NotRun
from benchmarks.speed.result import Result

Make = Callable[..., Finding]


def test_a_file_gives_back_all_that_was_written(
    tmp_path: Path, a_result: Callable[..., Result], a_finding: Make, a_curve: Callable[..., Curve]
) -> None:
    missing = NotRun("peer", "beside a peer", "it is not installed")
    written = a_result(a_finding("a", 2.0, target=1.5, details={"rows": 3}), a_curve("g", 1.0, expected=1), missing)
    files.write(written, tmp_path / "new folder" / "speed.json")
    found = files.read(tmp_path / "new folder" / "speed.json")
    assert found.to_json() == written.to_json()
    assert found.findings[0].met is False
    assert found.not_run == [missing]
    assert found.complete


def test_two_findings_of_one_name_are_refused(a_result: Callable[..., Result], a_finding: Make) -> None:
    with pytest.raises(ValueError, match="already something with the name 'a'"):
        a_result(a_finding("a", 1.0), a_finding("a", 2.0))


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"schema": 99}', '{"schema": 1, "findings": [{}]}'])
def test_a_file_of_something_else_is_refused_by_name(tmp_path: Path, content: str) -> None:
    (tmp_path / "other.json").write_text(content)
    with pytest.raises(ValueError, match=r"other\.json is not a file of this benchmark"):
        files.read(tmp_path / "other.json")


def test_a_stopped_run_is_taken_up_only_on_the_same_ground(
    tmp_path: Path, a_result: Callable[..., Result], a_finding: Make
) -> None:
    path = tmp_path / "speed.json.part"
    before = a_result(a_finding("a", 1.0))
    files.write(before, path)
    assert files.resumed(path, {**before.about, "when": "later", "commit": "other"}).seconds == before.seconds
    for name in ("source", "machine", "versions", "settings"):
        assert files.resumed(path, {**before.about, name: "other"}).found == []
    assert files.resumed(tmp_path / "none", before.about).found == []


def test_what_a_run_stands_on_is_described(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    about = files.describe("command", {"parts": []})
    assert set(files._ABOUT) == set(about)
    assert {"torch", "cldnet"} <= set(about["versions"])
    monkeypatch.setattr(files, "ROOT", tmp_path)  # not a checkout
    elsewhere = files.describe("command", {"parts": []})
    assert elsewhere["commit"] is None
    assert elsewhere["source"] != about["source"]
