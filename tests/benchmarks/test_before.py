"""The code before is unpacked from git and imported in processes of its own; limits are those of the products."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.speed import before, steps
from benchmarks.speed.apart import apart
from benchmarks.speed.limits import counted_operations
from benchmarks.speed.record import NotRun


def test_a_process_imports_the_sources_that_it_is_told_to(tmp_path: Path) -> None:
    (tmp_path / "cldnet").mkdir()
    (tmp_path / "cldnet" / "__init__.py").write_text("raise ImportError('these are other sources')")
    with pytest.raises(RuntimeError, match="these are other sources"):
        apart(before.turn_of_steps, tmp_path, count=1, quick=True)


def test_sources_that_git_does_not_have_are_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(before, "BEFORE", "0" * 40)
    (only,) = before.measure(None, True)
    assert isinstance(only, NotRun)
    assert "could not be unpacked" in only.reason


@pytest.mark.parametrize(("reading", "most"), [("alone", 1.05), ("default-mean", 1.05), ("default", 1.35)])
def test_the_limit_is_what_a_step_computes_but_for_halves_of_symmetric_products(reading: str, most: float) -> None:
    size, config = 64, steps.READINGS[reading].config
    x, y = steps.images(size)
    learner = steps.learner(config, x, y)
    batch = steps.Batch(x, y, None, 1, 10**6, 0)
    learner.observe(batch)
    limit = size * steps.operations(config, size)
    assert 0.8 < counted_operations(lambda: learner.observe(batch)) / limit < most
