"""Low-rank: previous + scale · R C, in one fixed order of operations, and a residual that makes it exact.

A value of shape (rows, …) is a matrix of `rows` rows. R is (rows, rank), C is (rank, columns); LoRA's B and A. The rule, so
that every machine computes the same bits: all in float64, where products of two shorter floats are exact; the products
are added in ascending k, from k = 0's on; then times scale, then plus the previous value, each an operation of its own;
then one rounding. Never a matrix product of a library: its bits depend on CPU and threads.

Factors come with a hint (`R`, `C`, optionally `scale` or `alpha`, which multiplies; PEFT's alpha / r is the caller's to
compute), or are found by SVD when a hint asks for it (option `rank`, or none for what stands out of the rounding).
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Final

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass as record_text

from theta_daemon.codec import THREAD
from theta_daemon.errors import HintError, RecordError
from theta_daemon.store.base import Record
from theta_daemon.tensor import DTYPES, TensorSpec, Words
from theta_daemon.updates.base import Decoder, Hint, Update
from theta_daemon.updates.factorize import factorize
from theta_daemon.updates.floats import FLOATS, Array, Float64s, FloatName, as_array, narrow, widen
from theta_daemon.updates.residual import Predictor, encode_residual
from theta_daemon.updates.sections import encode_array, join_sections, open_sections, read_array

_BLOCK: Final = 1 << 15
"""Elements in a block of float64 temporaries: a block and its product stay in the second-level cache."""


@record_text(frozen=True, slots=True, config=ConfigDict(strict=True, extra="forbid", defer_build=True))
class _Text:
    rank: Annotated[int, Field(ge=1, lt=1 << 32)]
    scale: Annotated[float, Field(allow_inf_nan=False)]
    r: FloatName
    c: FloatName


_TEXT: Final = TypeAdapter(_Text)


class LowRank(Update):
    """Takes float values of at least two dimensions, when a hint names factors that help or asks to look for some."""

    name: ClassVar[str] = "low-rank"
    incremental: ClassVar[bool] = True

    def encode(self, spec: TensorSpec, value: Words, previous: Words | None, hint: Hint | None) -> bytes | None:
        if hint is None or previous is None or _matrix(spec) is None:
            return None
        found = _given(spec, hint) if hint.data else _found(spec, value, previous, hint)
        if found is None:
            return None
        r, c, scale = found
        prediction = previous.copy()
        _Product(spec, r, c, scale).add(0, spec.words, prediction)
        residual = encode_residual(spec, value, prediction, previous)
        if residual is None:
            return None
        text = _TEXT.dump_json(_Text(c.spec.shape[0], scale, r.float_name, c.float_name))
        return join_sections(spec, text, [encode_array(r), encode_array(c), residual])

    def define(self, spec: TensorSpec, previous: Words | None, hint: Hint) -> Words | None:
        """The value that the hint's factors make of `previous`; None where they do not apply."""
        found = _given(spec, hint) if _matrix(spec) is not None else None
        if found is None or previous is None:
            return None
        value = previous.copy()
        _Product(spec, *found).add(0, spec.words, value)
        return value

    def open(self, spec: TensorSpec, record: Record) -> Decoder:
        matrix = _matrix(spec)
        if matrix is None:
            raise RecordError(f"low-rank record for dtype {spec.dtype.name} and shape {list(spec.shape)}")
        text, (r_part, c_part, residual) = open_sections(spec, record, _TEXT, 3)
        rows, columns = matrix
        if (rows + columns) * text.rank > spec.elements:
            raise RecordError(f"low-rank record of rank {text.rank} for a matrix of {rows} by {columns}")
        r = read_array(TensorSpec(DTYPES[text.r], (rows, text.rank)), r_part)
        c = read_array(TensorSpec(DTYPES[text.c], (text.rank, columns)), c_part)
        return _Decoder(spec, residual, _Product(spec, r, c, text.scale))


def _matrix(spec: TensorSpec) -> tuple[int, int] | None:
    """Rows and columns of a value that low-rank is for; of other dtypes, dimensions or no elements None."""
    if spec.dtype.name not in FLOATS or len(spec.shape) < 2 or not spec.elements:
        return None
    return spec.shape[0], spec.elements // spec.shape[0]


def _given(spec: TensorSpec, hint: Hint) -> tuple[Array, Array, float] | None:
    """The hint's factors and scale; None where they do not fit or are no saving. Raises HintError for what is no factor."""
    if "R" not in hint.data or "C" not in hint.data:
        return None
    r, c = as_array(hint.data["R"]), as_array(hint.data["C"])
    scales = [source[key] for source in (hint.options, hint.data) for key in ("scale", "alpha") if key in source]
    scale = float(as_array(scales[0]).float64().reshape(-1)[0]) if scales else 1.0
    if not math.isfinite(scale):
        raise HintError(f"the scale of a low-rank update is {scale}")
    rows, columns = _matrix(spec) or (0, 0)
    rank = c.spec.shape[0] if c.spec.shape else 0
    # A convolution's factors have more dimensions; as matrices they are the same numbers in the same order.
    fits = r.spec.elements == rows * rank and c.spec.elements == rank * columns and r.spec.shape[:1] == (rows,)
    if not fits or not rank or (rows + columns) * rank > spec.elements:
        return None
    r = Array(TensorSpec(r.spec.dtype, (rows, rank)), r.words)
    return r, Array(TensorSpec(c.spec.dtype, (rank, columns)), c.words), scale


def _found(spec: TensorSpec, value: Words, previous: Words, hint: Hint) -> tuple[Array, Array, float] | None:
    rows, columns = _matrix(spec) or (0, 0)
    limit = spec.elements // (2 * (rows + columns))
    rank = hint.options.get("rank")
    if rank is not None and (not isinstance(rank, int) or isinstance(rank, bool) or rank < 1):
        raise HintError(f"the rank of a low-rank update is {rank!r}, not a positive integer")
    wanted = limit if rank is None else min(rank, limit)
    factors = factorize(spec, value, previous, rows, columns, wanted, cut=rank is None)
    return None if factors is None else (as_array(factors[0]), as_array(factors[1]), 1.0)


class _Product:
    """scale · R C, to be added to any run of the value's words."""

    def __init__(self, spec: TensorSpec, r: Array, c: Array, scale: float) -> None:
        self._dtype = spec.dtype
        self._columns = c.spec.shape[1]
        self._r = r.float64()
        self._c = c.float64()
        self._scale = scale

    def add(self, start: int, stop: int, words: Words) -> None:
        """Turn `words`, the previous value's [start:stop], into the sum's."""
        position = start
        while position < stop:
            row, column = divmod(position, self._columns)
            if column or stop - position < self._columns or self._columns > _BLOCK:
                # A part of one row: a run starts or ends inside it, or it is long.
                end = min(position - column + self._columns, stop, position + _BLOCK)
                rows, columns = slice(row, row + 1), slice(column, column + end - position)
            else:
                count = min(max(_BLOCK // self._columns, 1), (stop - position) // self._columns)
                end = position + count * self._columns
                rows, columns = slice(row, row + count), slice(0, self._columns)
            self._add_block(self._r[rows], self._c[:, columns], words[position - start : end - start])
            position = end

    def _add_block(self, r: Float64s, c: Float64s, words: Words) -> None:
        with np.errstate(all="ignore"), THREAD.temporaries():
            total, product, before = (THREAD.take(words.size, 8).view("<f8") for _ in range(3))
            total_rows, product_rows = (flat.reshape(len(r), -1) for flat in (total, product))
            np.multiply(r[:, 0, None], c[0], out=total_rows)
            for k in range(1, len(c)):
                np.multiply(r[:, k, None], c[k], out=product_rows)
                np.add(total_rows, product_rows, out=total_rows)
            np.multiply(total, self._scale, out=total)
            np.add(total, widen(words, self._dtype, before), out=total)
            narrow(total, self._dtype, words)


class _Decoder(Predictor):
    def __init__(self, spec: TensorSpec, residual: Record, product: _Product) -> None:
        super().__init__(spec, residual)
        self._product = product

    def predict(self, start: int, stop: int, words: Words) -> None:
        self._product.add(start, stop, words)
