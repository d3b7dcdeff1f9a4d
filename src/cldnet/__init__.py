"""CLDNet: learn new classes forever; keep no data, never grow, never forget."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import TYPE_CHECKING, Any

from cldnet.version import __version__ as __version__

if TYPE_CHECKING:
    from cldnet import datasets as datasets
    from cldnet.data.stream import Stream as Stream
    from cldnet.data.streams import stream_by_name as stream_by_name
    from cldnet.estimator.checks import check_learner as check_learner
    from cldnet.estimator.classifier import CLDNetClassifier as CLDNetClassifier
    from cldnet.estimator.classifier import MapTraceWarning as MapTraceWarning
    from cldnet.estimator.classifier import merge as merge
    from cldnet.estimator.statistics import Statistics as Statistics
    from cldnet.serve.client import Client as Client
    from cldnet.storage import FileChangedError as FileChangedError
    from cldnet.storage import locked as locked
    from cldnet.storage.maps import load_map as load_map
    from cldnet.storage.maps import save_map as save_map

__all__ = [
    "CLDNetClassifier",
    "Client",
    "FileChangedError",
    "MapTraceWarning",
    "Statistics",
    "Stream",
    "check_learner",
    "datasets",
    "load_map",
    "locked",
    "merge",
    "save_map",
    "stream_by_name",
]

# Read on first use: `import cldnet` stays light, scikit-learn is imported only by those who need it.
_HOMES = {
    "CLDNetClassifier": "cldnet.estimator.classifier",
    "Client": "cldnet.serve.client",
    "FileChangedError": "cldnet.storage",
    "MapTraceWarning": "cldnet.estimator.classifier",
    "Statistics": "cldnet.estimator.statistics",
    "Stream": "cldnet.data.stream",
    "check_learner": "cldnet.estimator.checks",
    "load_map": "cldnet.storage.maps",
    "locked": "cldnet.storage",
    "merge": "cldnet.estimator.classifier",
    "save_map": "cldnet.storage.maps",
    "stream_by_name": "cldnet.data.streams",
}

#: Modules of version 0.1 whose classes are in pickled estimators, and where those classes are now.
_MOVED = {
    "cldnet.classifier": "cldnet.estimator.classifier",
    "cldnet.data.rows": "cldnet.data.labels",
    "cldnet.days": "cldnet.data.labels",
    "cldnet.footprint": "cldnet.estimator.footprint",
    "cldnet.labels": "cldnet.data.labels",
    "cldnet.lessons": "cldnet.estimator.lessons",
    "cldnet.math.bottleneck": "cldnet.math.hsic",
    "cldnet.math.left_out": "cldnet.math.leave_one_out",
    "cldnet.math.crowded": "cldnet.math.discriminant",
    "cldnet.methods.parts.dependence": "cldnet.methods.parts.variants",
    "cldnet.methods.parts.layer_projector": "cldnet.methods.parts.projection",
    "cldnet.methods.parts.moments": "cldnet.methods.mapped",
    "cldnet.methods.parts.pointing": "cldnet.methods.parts.variants",
    "cldnet.methods.parts.readings": "cldnet.methods.parts.variants",
    "cldnet.model": "cldnet.estimator.model",
    "cldnet.nets.bodies": "cldnet.nets.frozen",
    "cldnet.nets.cnn": "cldnet.nets.layers",
    "cldnet.nets.described": "cldnet.nets.features",
    "cldnet.nets.expanded": "cldnet.nets.frozen",
    "cldnet.nets.fourier": "cldnet.nets.features",
    "cldnet.nets.kmeans": "cldnet.nets.patches",
    "cldnet.nets.mlp": "cldnet.nets.layers",
    "cldnet.nets.patch_parts": "cldnet.nets.patches",
    "cldnet.nets.scale": "cldnet.nets.features",
    "cldnet.nets.taps": "cldnet.nets.hooks",
    "cldnet.statistics": "cldnet.estimator.statistics",
    "cldnet.store": "cldnet.storage",
    "cldnet.store.seen": "cldnet.storage",
    "cldnet.structure": "cldnet.estimator.model",
}
#: Classes of those modules that have another name now, or are elsewhere.
_RENAMED = {
    "cldnet.footprint": {"Size": "cldnet.estimator.model.Size", "Sizes": "cldnet.estimator.model.Sizes"},
    "cldnet.structure": {"Structure": "cldnet.estimator.model.ModelParameters"},
}


class _OldModules:
    """Finds modules of version 0.1 under their new names, so that pickled estimators load."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        return spec_from_loader(name, self) if name in _MOVED else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        new = import_module(_MOVED[module.__name__])
        for name, path in _RENAMED.get(module.__name__, {}).items():
            home, _, renamed = path.rpartition(".")
            setattr(module, name, getattr(import_module(home), renamed))
        module.__getattr__ = lambda name: getattr(new, name)  # type: ignore[method-assign]


sys.meta_path.insert(0, _OldModules())  # first, or a file of the new package is imported twice


@contextmanager
def without_collecting() -> Iterator[None]:
    """Import torch or scikit-learn in a block, and look for no garbage: Python would search their many objects, in vain."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def __getattr__(name: str) -> Any:
    if name == "datasets":
        return import_module("cldnet.datasets")
    if name not in _HOMES:
        raise AttributeError(f"module 'cldnet' has no attribute {name!r}")
    with without_collecting():
        return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES, "datasets"])
