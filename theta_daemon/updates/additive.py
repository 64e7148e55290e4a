"""Sparse changes given as data: what to add, and where. Only a definition of a new value; stored, it is a sparse update.

The data is git-theta's: a compressed sparse row matrix of one row over the flattened value: `data` (what to add),
`indices` (where), optionally `indptr` ([0, count]) and `shape` (the value's). A matrix of as many rows as the value has is
understood too. Each listed element takes one addition in the value's own dtype; the others keep their bits (adding zero to
all of them, as scipy would, turns -0.0 into 0.0).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from theta_daemon.errors import HintError
from theta_daemon.tensor import Kind, TensorSpec, Words
from theta_daemon.updates.base import Hint
from theta_daemon.updates.floats import FLOATS, as_array, as_integers, narrow, widen

Places = npt.NDArray[np.int64]


def add_sparse(spec: TensorSpec, previous: Words, hint: Hint) -> Words | None:
    """The value that the hint's additions make of `previous`; None where the hint has none or they are of another shape.

    Raises HintError for additions that contradict themselves or that the dtype cannot take.
    """
    if "data" not in hint.data or "indices" not in hint.data:
        return None
    if "shape" in hint.data and tuple(_integers(hint, "shape").tolist()) not in (spec.shape, (1, spec.elements)):
        return None
    places = _places(spec, hint)
    if places is None:
        return None
    value = previous.copy()
    if spec.dtype.name in FLOATS:
        additions = as_array(hint.data["data"]).float64().reshape(-1)
        _check(places, additions.size)
        changed = value[places]
        with np.errstate(all="ignore"):
            # float64's one rounding and the dtype's own give what an addition in the dtype gives: float64 has more than
            # twice the digits (Figueroa 1995).
            total = widen(changed, spec.dtype) + additions
        narrow(total, spec.dtype, changed)
        value[places] = changed
    elif spec.dtype.kind is Kind.FLOAT or spec.dtype.name == "BOOL":
        raise HintError(f"sparse additions to a value of dtype {spec.dtype.name}")
    else:
        steps = as_integers(hint.data["data"]).reshape(-1)
        _check(places, steps.size)
        value[places] += steps.astype(spec.dtype.word_dtype)
    return value


def _places(spec: TensorSpec, hint: Hint) -> Places | None:
    """The flat index of each addition; None when there are rows, and not as many as the value has."""
    indices = _integers(hint, "indices")
    if "indptr" not in hint.data:
        columns, places = spec.elements, indices
    else:
        starts = _integers(hint, "indptr")
        rows = starts.size - 1
        if rows < 1 or (rows > 1 and rows != spec.shape[0]):
            return None
        counts = np.diff(starts)
        if starts[0] != 0 or starts[-1] != indices.size or (counts < 0).any():
            raise HintError("sparse additions: indptr does not fit indices")
        columns = spec.elements // rows
        places = np.repeat(np.arange(rows), counts) * columns + indices
    if indices.size and (indices.min() < 0 or indices.max() >= columns):
        raise HintError("sparse additions: an index lies outside the value")
    return places


def _integers(hint: Hint, key: str) -> Places:
    return as_integers(hint.data[key]).reshape(-1).astype(np.int64)


def _check(places: Places, additions: int) -> None:
    if places.size != additions:
        raise HintError(f"sparse additions: {additions} values for {places.size} indices")
    if np.unique(places).size != places.size:
        raise HintError("sparse additions: an index stands there twice, so the order of additions would matter")
