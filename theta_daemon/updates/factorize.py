"""Factors of a difference, found by singular values. Only for finding them: what is found is stored, never found again."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from theta_daemon.tensor import TensorSpec, Words
from theta_daemon.updates.floats import Float64s, widen

Float32s = npt.NDArray[np.float32]

_EPSILON: Final = {"F64": 2.0**-52, "F32": 2.0**-23, "F16": 2.0**-10, "BF16": 2.0**-7}
_WHOLE: Final = 1024
"""Up to so many rows or columns all singular values are worked out; beyond, those of a random projection."""

_EXTRA: Final = 8
_SEARCHED: Final = 64
"""The largest rank that is looked for in a large matrix when none is asked for."""


def factorize(
    spec: TensorSpec, value: Words, previous: Words, rows: int, columns: int, rank: int, *, cut: bool
) -> tuple[Float32s, Float32s] | None:
    """R (rows, rank) and C (rank, columns) whose product is near `value - previous`; None if there is nothing to find.

    With `cut` the rank is lowered to the singular values that stand out of the rounding of the value.
    """
    after = widen(value, spec.dtype)
    difference = (after - widen(previous, spec.dtype)).reshape(rows, columns)
    if rank < 1 or not np.isfinite(difference).all() or not difference.any():
        return None
    left, sizes, right = _singular(difference, min(rank, _SEARCHED) if cut and min(rows, columns) > _WHOLE else rank)
    if cut:
        # Rounding errors of the value are like noise; the largest singular value of noise is about deviation * (√m + √n).
        deviation = _EPSILON[spec.dtype.name] * float(np.sqrt(np.mean(after * after))) / 3
        rank = int(np.sum(sizes > 2 * deviation * (np.sqrt(rows) + np.sqrt(columns))))
    kept = min(rank, len(sizes))
    if not kept:
        return None
    roots = np.sqrt(sizes[:kept])
    return (left[:, :kept] * roots).astype("<f4"), (roots[:, None] * right[:kept]).astype("<f4")


def _singular(matrix: Float64s, rank: int) -> tuple[Any, Any, Any]:
    if min(matrix.shape) <= _WHOLE:
        left, sizes, right = np.linalg.svd(matrix, full_matrices=False)
        return left[:, :rank], sizes[:rank], right[:rank]
    # Halko, Martinsson, Tropp 2011: a basis of the range from a random projection, sharpened by two power iterations.
    basis = matrix @ np.random.default_rng(0).standard_normal((matrix.shape[1], min(rank + _EXTRA, *matrix.shape)))
    for _ in range(2):
        basis, _ = np.linalg.qr(matrix @ (matrix.T @ basis))
    basis, _ = np.linalg.qr(basis)
    left, sizes, right = np.linalg.svd(basis.T @ matrix, full_matrices=False)
    return (basis @ left)[:, :rank], sizes[:rank], right[:rank]
