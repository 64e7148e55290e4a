"""Negated: the previous value with every sign changed. Nothing has to be stored for it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from theta_daemon.errors import RecordError
from theta_daemon.tensor import Buffer, Kind, TensorSpec, Words
from theta_daemon.updates.base import ChunkedUpdate


class Negated(ChunkedUpdate):
    """Takes floats whose bits are the previous value's but for the sign. Each chunk's part is empty."""

    name: ClassVar[str] = "negated"
    incremental: ClassVar[bool] = True
    automatic: ClassVar[bool] = True

    def encode_chunk(self, spec: TensorSpec, value: Words, previous: Words | None) -> bytes | None:
        if previous is None or spec.dtype.kind is not Kind.FLOAT or not np.array_equal(value, previous ^ _sign(spec)):
            return None
        return b""

    def decode_chunk(self, spec: TensorSpec, data: Buffer, words: Words) -> None:
        if len(data) or spec.dtype.kind is not Kind.FLOAT:
            raise RecordError(f"negated chunk of {len(data)} bytes for dtype {spec.dtype.name}")
        words ^= _sign(spec)


def _sign(spec: TensorSpec) -> Any:
    """The highest bit of a word, in its type."""
    return spec.dtype.word_dtype.type(1 << (8 * spec.dtype.word_bytes - 1))
