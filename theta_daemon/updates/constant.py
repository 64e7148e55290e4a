"""Constant: one element, repeated. Zeros, ones, and whatever else a tensor is filled with.

The record is four bytes (version 1, word bytes, words an element, zero) and the element.
"""

from __future__ import annotations

import math
import struct
from typing import Any, ClassVar, Final

import numpy as np

from theta_daemon.errors import HintError, RecordError
from theta_daemon.store.base import Record
from theta_daemon.tensor import DType, Kind, TensorSpec, Words
from theta_daemon.updates.base import Decoder, Hint, Update
from theta_daemon.updates.floats import FLOATS, narrow

_HEADER: Final = struct.Struct("<BBBB")
_FEW: Final = 64
_BLOCK: Final = 1 << 16


class Constant(Update):
    """Takes a value whose elements are all the same bits (so a -0.0 among zeros is not one)."""

    name: ClassVar[str] = "constant"
    incremental: ClassVar[bool] = False
    automatic: ClassVar[bool] = True

    def encode(self, spec: TensorSpec, value: Words, previous: Words | None, hint: Hint | None) -> bytes | None:
        element = self.element(spec, value)
        return None if element is None else self.record(spec, element)

    def element(self, spec: TensorSpec, words: Words) -> bytes | None:
        """The bytes of the one element that `words`, a value or a chunk of it, repeats; None if they differ or are none."""
        count = spec.dtype.words
        if not words.size:
            return None
        first = words[:count]
        rows = words.reshape(-1, count)
        # First a few, then by blocks, so that the usual value, which is no constant, costs next to nothing.
        if np.any(rows[:_FEW] != first):
            return None
        for start in range(0, len(rows), _BLOCK):
            if np.any(rows[start : start + _BLOCK] != first):
                return None
        return first.tobytes()

    def record(self, spec: TensorSpec, element: bytes) -> bytes:
        """The record that repeats `element`."""
        return self._header(spec) + element

    def define(self, spec: TensorSpec, previous: Words | None, hint: Hint) -> Words | None:
        """The value filled with the number that the hint's option `value` is. Raises HintError for one it cannot be."""
        element = _element(spec.dtype, hint.options.get("value"))
        return np.tile(element, spec.elements)

    def open(self, spec: TensorSpec, record: Record) -> Decoder:
        size = _HEADER.size + spec.dtype.itemsize
        if record.length != size:
            raise RecordError(f"constant record has {record.length} bytes, not {size} for dtype {spec.dtype.name}")
        data = bytes(record.read(0, size))
        if data[: _HEADER.size] != self._header(spec):
            raise RecordError(f"constant record does not fit dtype {spec.dtype.name}")
        return _Repeat(np.frombuffer(data, spec.dtype.word_dtype, offset=_HEADER.size))

    @staticmethod
    def _header(spec: TensorSpec) -> bytes:
        return _HEADER.pack(1, spec.dtype.word_bytes, spec.dtype.words, 0)


def _element(dtype: DType, number: Any) -> Words:
    """The words of one element. Numbers that the dtype does not have are rounded if it is a float, else an error."""
    wrong = HintError(f"constant: {number!r} is no value for dtype {dtype.name}", "give a number as option `value`")
    if not isinstance(number, int | float):
        raise wrong
    words = np.zeros(dtype.words, dtype.word_dtype)
    if dtype.name in FLOATS:
        narrow(np.array([number], np.float64), dtype, words)
    elif dtype.kind is Kind.FLOAT:
        if number != 0 or dtype.name == "F8_E8M0":  # all others have the bits 0 for zero
            raise wrong
    else:
        bits = 1 if dtype.name == "BOOL" else 8 * dtype.word_bytes
        low, high = (-(1 << (bits - 1)), 1 << (bits - 1)) if dtype.kind is Kind.SIGNED else (0, 1 << bits)
        if not math.isfinite(number) or number != int(number) or not low <= number < high:
            raise wrong
        words[:] = int(number) & ((1 << (8 * dtype.word_bytes)) - 1)
    return words


class _Repeat(Decoder):
    def __init__(self, element: Words) -> None:
        self._element = element

    def apply(self, start: int, stop: int, words: Words) -> None:
        words.reshape(-1, self._element.size)[:] = self._element
