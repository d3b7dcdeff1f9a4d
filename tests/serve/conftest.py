"""The service as it runs, with a model on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from tests.serving import Served, birds, photos, sheep, table

from cldnet import CLDNetClassifier
from cldnet.serve.service import ModelService


def _started(folder: Path, clf: CLDNetClassifier | None, new: Any = None, **options: Any) -> Served:
    path = folder / "model.cldnet"
    if clf is not None:
        clf.save(path)
    return Served(ModelService(path, new), **options)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Served]]:
    """Serve a classifier, or none yet."""
    with ExitStack() as ending:
        yield lambda clf, **options: ending.enter_context(closing(_started(tmp_path, clf, **options)))


def _left_alone(folder: Path, clf: CLDNetClassifier) -> Iterator[Served]:
    served = _started(folder, clf)
    content = served.service.path.read_bytes()
    with closing(served):
        yield served
        assert served.service.path.read_bytes() == content, "a request that was refused has changed the model"
        assert {path.name for path in folder.iterdir()} == {"model.cldnet", ".model.cldnet.lock"}


@pytest.fixture(scope="module")
def aviary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model of photos for requests that must not change it."""
    yield from _left_alone(tmp_path_factory.mktemp("aviary"), birds().fit(*photos("owl", "wren")).refresh())


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model of rows for requests that must not change it."""
    yield from _left_alone(tmp_path_factory.mktemp("farm"), sheep().fit(*table("cat", "dog")).refresh())


@pytest.fixture(scope="session")
def other_solver() -> CLDNetClassifier:
    """A model of rows that cannot tell what it knows."""
    return CLDNetClassifier("hbo", capacity=4, embed_dim=4, epochs=1, random_state=0).fit(*table("cat", "dog"))
