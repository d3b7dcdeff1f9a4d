"""The mutations that ``make mutation-test`` draws from."""

from __future__ import annotations

import ast
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLE = '''
"""Text with 1 number."""
__all__ = ["f"]
LIMIT = 2.0

def f(x: int = 3, *, y: str | None = None) -> float:
    if x is None or not x > 1:
        raise ValueError(f"{x + 1} is wrong")
    self.total += x.abs()
    log(x.mT, LIMIT)
    return max(x, 0)
'''
MUTANTS = {
    ("LIMIT = 2.0", "LIMIT = 4.0"),
    ("LIMIT = 2.0", "LIMIT = 0.0"),
    ("def f(x: int = 3, *, y: str | None = None) -> float:", "def f(x: int = 4, *, y: str | None = None) -> float:"),
    ("def f(x: int = 3, *, y: str | None = None) -> float:", "def f(x: int = (2), *, y: str | None = None) -> float:"),
    ("if x is None or not x > 1:", "if (not (x is None or not x > 1)):"),
    ("if x is None or not x > 1:", "if x is not None or not x > 1:"),
    ("if x is None or not x > 1:", "if x is None and not x > 1:"),
    ("if x is None or not x > 1:", "if x is None or (x > 1):"),
    ("if x is None or not x > 1:", "if x is None or not x >= 1:"),
    ("if x is None or not x > 1:", "if x is None or not x < 1:"),
    ("if x is None or not x > 1:", "if x is None or not x > 2:"),
    ("if x is None or not x > 1:", "if x is None or not x > (0):"),
    ('raise ValueError(f"{x + 1} is wrong")', "pass"),
    ("self.total += x.abs()", "pass"),
    ("self.total += x.abs()", "self.total -= x.abs()"),
    ("self.total += x.abs()", "self.total += x"),
    ("log(x.mT, LIMIT)", "pass"),
    ("log(x.mT, LIMIT)", "log(x, LIMIT)"),
    ("log(x.mT, LIMIT)", "log(LIMIT, x.mT)"),
    ("return max(x, 0)", "return None"),
    ("return max(x, 0)", "return min(x, 0)"),
    ("return max(x, 0)", "return max(x, 1)"),
    ("return max(x, 0)", "return max(x, (-1))"),
}


@pytest.fixture
def mutation() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("mutation", Path(__file__).with_name("mutation.py"))
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["mutation"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["mutation"]


def test_an_example_has_these_mutants(mutation: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutation, "source", lambda module: EXAMPLE.encode())
    found = mutation.Finder("example.py").found
    assert len(found) == len(MUTANTS)
    assert {each.lines for each in found} == MUTANTS
    assert {each.function for each in found} == {"", "f"}


def test_mutants_are_programs_that_differ_from_the_module(mutation: ModuleType) -> None:
    found = mutation.Finder("math/projector.py").found
    assert len({each.mutated for each in found}) == len(found) > 100
    assert all(ast.parse(each.mutated) and each.mutated != each.source for each in found)


def test_a_seed_draws_the_same_sample_of_different_places(mutation: ModuleType) -> None:
    drawn, _ = mutation.sample(["math/hsic.py", "data/labels.py"], 50, seed=1)
    assert drawn == mutation.sample(["data/labels.py", "math/hsic.py"], 50, seed=1)[0]
    assert drawn[:20] == mutation.sample(["math/hsic.py", "data/labels.py"], 20, seed=1)[0]
    assert drawn != mutation.sample(["math/hsic.py", "data/labels.py"], 50, seed=2)[0]
    assert len({(each.module, each.start) for each in drawn}) == 50


def test_listed_equivalents_have_a_reason_and_are_not_drawn(
    mutation: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = mutation.sample(["data/labels.py"], 1, seed=1)[0][0]
    names = ("module", "function", "line", "mutated")
    listed = "\n".join(f"{name} = {value!r}" for name, value in zip(names, first.key, strict=True))
    path = tmp_path / "equivalent.toml"
    path.write_text(f'[[equivalent]]\n{listed}\nreason = "none"\n')
    monkeypatch.setattr(mutation, "EQUIVALENT", path)
    drawn, equivalent = mutation.sample(["data/labels.py"], 30, seed=1)
    assert equivalent[0] == first
    assert first not in drawn
