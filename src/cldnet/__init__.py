"""CLDNet: learn new classes for ever; keep no data, never grow, never forget."""

from __future__ import annotations

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cldnet.version import __version__ as __version__

if TYPE_CHECKING:
    from cldnet.additive import MapTraceWarning as MapTraceWarning
    from cldnet.checks import check_learner as check_learner
    from cldnet.classifier import CLDNetClassifier as CLDNetClassifier
    from cldnet.classifier import merge as merge
    from cldnet.data.stream import Stream as Stream
    from cldnet.data.streams import stream_by_name as stream_by_name
    from cldnet.mapfile import load_map as load_map
    from cldnet.mapfile import save_map as save_map
    from cldnet.statistics import Statistics as Statistics
    from cldnet.store import FileChangedError as FileChangedError
    from cldnet.store import locked as locked

__all__ = [
    "CLDNetClassifier",
    "FileChangedError",
    "MapTraceWarning",
    "Statistics",
    "Stream",
    "check_learner",
    "load_map",
    "locked",
    "merge",
    "save_map",
    "stream_by_name",
]

# Read on first use: `import cldnet` stays light, scikit-learn is imported only by those who need it.
_HOMES = {
    "CLDNetClassifier": "cldnet.classifier",
    "FileChangedError": "cldnet.store",
    "MapTraceWarning": "cldnet.additive",
    "Statistics": "cldnet.statistics",
    "Stream": "cldnet.data.stream",
    "check_learner": "cldnet.checks",
    "load_map": "cldnet.mapfile",
    "locked": "cldnet.store",
    "merge": "cldnet.classifier",
    "save_map": "cldnet.mapfile",
    "stream_by_name": "cldnet.data.streams",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'cldnet' has no attribute {name!r}")
    # Importing scikit-learn next to torch makes Python search torch's many objects for garbage, again and again, and
    # there is none to be found.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return getattr(import_module(_HOMES[name]), name)
    finally:
        if collecting:
            gc.enable()


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
