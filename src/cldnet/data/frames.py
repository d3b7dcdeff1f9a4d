"""Columns of pandas frames that hold no numbers, or not in every row: say which, and what to do."""

from __future__ import annotations

from numbers import Number
from typing import Any

import numpy as np

#: What to do with a column, by its kind.
_ENCODERS = "make_column_transformer((OneHotEncoder(handle_unknown='ignore'), [{0}]), remainder='passthrough')"
_ADVICE = {
    "categories": f"encode them, for example with sklearn's {_ENCODERS}",
    "text": f"encode them, for example with sklearn's {_ENCODERS}, or use pd.to_numeric if they are numbers in quotes",
    "dates": "convert them, for example X[{0}].dt.dayofweek or X[{0}].astype('int64')",
    "durations": "convert them, for example X[{0}].dt.total_seconds()",
    "objects": "convert them to numbers, or drop them",
}
#: Columns that a message names.
_NAMED = 5


def check_columns(X: Any) -> None:
    """Raise for a pandas frame with columns that hold no numbers; whatever else passes."""
    if not _is_frame(X):
        return
    kinds: dict[str, list[Any]] = {}
    for place, name in enumerate(X.columns):
        kind = _kind(X.iloc[:, place])
        if kind is not None:
            kinds.setdefault(kind, []).append(name)
    if kinds:
        parts = (
            f"{_listed(names)} {'holds' if len(names) == 1 else 'hold'} {kind}: {_ADVICE[kind].format(repr(names[0]))}"
            for kind, names in kinds.items()
        )
        raise ValueError(f"X should hold numbers, and {'; '.join(parts)}.")


def from_arrow(X: Any) -> Any:
    """A pyarrow table of numbers without gaps as an array; whatever else as it is.

    scikit-learn does the same for tables of any library, in a time in which a few hundred rows could be learned.
    """
    if not is_arrow(X) or not X.num_columns or any(column.null_count for column in X.columns):
        return X
    columns = [column.to_numpy() for column in X.columns]
    return np.column_stack(columns) if all(column.dtype.kind in "biuf" for column in columns) else X


def is_arrow(X: Any) -> bool:
    """Whether something is a table of pyarrow, which need not be installed."""
    return type(X).__module__ == "pyarrow.lib" and hasattr(X, "column_names")


def columns_that_lack(X: Any) -> str:
    """Name the columns of a frame of numbers that have NaN or infinity, for a message; nothing for what is no frame."""
    if not _is_frame(X):
        return ""
    columns = ((name, X.iloc[:, place]) for place, name in enumerate(X.columns))
    lacking = [name for name, one in columns if not np.isfinite(one.to_numpy(dtype=float, na_value=np.nan)).all()]
    return f" ({_listed(lacking)})" if lacking else ""


def _is_frame(X: Any) -> bool:
    return getattr(X, "ndim", 0) == 2 and hasattr(X, "iloc") and hasattr(X, "columns")


def _kind(column: Any) -> str | None:
    """What a column holds, if not numbers. Complex numbers pass: scikit-learn has a sentence for them."""
    dtype = column.dtype
    kind, name = getattr(dtype, "kind", "O"), str(dtype)
    if name == "category":
        return "categories"
    if kind in "Mm":
        return "dates" if kind == "M" else "durations"
    if kind in "biufc":
        return None
    values = [value for value in column if not (value is None or isinstance(value, Number | np.number | np.bool_))]
    if any(isinstance(value, str) for value in values):
        return "text"
    return "objects" if any(value == value for value in values) else None  # NaN is unequal to itself


def _listed(names: list[Any]) -> str:
    """Name some columns."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"column{'s' * (len(names) > 1)} {', '.join(map(repr, names[:_NAMED]))}{more}"
