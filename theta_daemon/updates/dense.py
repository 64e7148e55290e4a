"""Dense: the value itself, as byte planes."""

from __future__ import annotations

from typing import ClassVar

from theta_daemon.codec import PLANES, decode_planes, encode_planes
from theta_daemon.tensor import Buffer, Kind, TensorSpec, Words
from theta_daemon.updates.base import ChunkedUpdate


class Dense(ChunkedUpdate):
    """Holds every value; the form that all others fall back to."""

    name: ClassVar[str] = "dense"
    incremental: ClassVar[bool] = False
    automatic: ClassVar[bool] = True
    script: ClassVar[bytes | None] = PLANES

    def encode_chunk(self, spec: TensorSpec, value: Words, previous: Words | None) -> bytes:
        return encode_planes(value, rotate=spec.dtype.kind is Kind.FLOAT)

    def decode_chunk(self, spec: TensorSpec, data: Buffer, words: Words) -> None:
        decode_planes(data, words, rotate=spec.dtype.kind is Kind.FLOAT)
