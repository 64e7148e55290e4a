"""Sparse: the words that changed, each with its place. Replacing, never adding: exact for all bits, and idempotent.

A chunk's part is empty when nothing changed, else it starts with a byte that says how it goes on:

- LISTED: `<u4` how many words changed, `<u4` bytes of the gaps; the gaps between their indices (unchanged words before
  each of them) as planes of `<u4`; the words as planes;
- REPLACED: the whole chunk as in a dense record, for when most of it changed.

Gaps make the indices increase by construction; that the last one lies inside the chunk is checked.
"""

from __future__ import annotations

import struct
from typing import ClassVar, Final

import numpy as np

from theta_daemon.codec import CHANGES, THREAD, decode_planes, encode_planes, replay
from theta_daemon.errors import RecordError
from theta_daemon.tensor import Buffer, Kind, TensorSpec, Words
from theta_daemon.updates.additive import add_sparse
from theta_daemon.updates.base import ChunkedUpdate, Hint

LISTED: Final = 1
REPLACED: Final = 2

MAX_LISTED: Final = 4
"""Beyond one in four changed words a list is not smaller than the chunk."""

_HEADER: Final = struct.Struct("<II")


class Sparse(ChunkedUpdate):
    """Takes every value; worth it when few words changed, or all those that changed lie in few chunks."""

    name: ClassVar[str] = "sparse"
    incremental: ClassVar[bool] = True
    automatic: ClassVar[bool] = True
    script: ClassVar[bytes | None] = CHANGES

    def encode(self, spec: TensorSpec, value: Words, previous: Words | None, hint: Hint | None) -> bytes | None:
        if previous is None:
            return None
        return super().encode(spec, value, previous, hint)

    def define(self, spec: TensorSpec, previous: Words | None, hint: Hint) -> Words | None:
        """The value that the hint's additions (see `additive`) make of `previous`; None where they do not apply."""
        return None if previous is None else add_sparse(spec, previous, hint)

    def encode_chunk(self, spec: TensorSpec, value: Words, previous: Words | None) -> bytes | None:
        if previous is None:
            return None
        listed = encode_listed(spec, value, previous)
        return encode_replaced(encode_planes(value, rotate=spec.dtype.kind is Kind.FLOAT)) if listed is None else listed

    def decode_chunk(self, spec: TensorSpec, data: Buffer, words: Words) -> None:
        view = memoryview(data)
        if not view or replay(words, CHANGES, [view], floats=spec.dtype.kind is Kind.FLOAT):
            return
        how, body = view[0], view[1:]
        if how == LISTED:
            _apply_listed(spec, body, words)
        elif how == REPLACED:
            decode_planes(body, words, rotate=spec.dtype.kind is Kind.FLOAT)
        else:
            raise RecordError(f"a chunk's change is of kind {how}, which {self.name} records do not have")


def encode_replaced(planes: bytes) -> bytes:
    """The part of a chunk that is replaced by `planes`, its dense part."""
    return bytes((REPLACED,)) + planes


def encode_listed(spec: TensorSpec, value: Words, previous: Words) -> bytes | None:
    """The part of a chunk as a list of changes, empty if there are none; None when too many words changed."""
    changed = value != previous
    count = int(np.count_nonzero(changed))
    if not count:
        return b""
    if count * MAX_LISTED > value.size:
        return None
    places = np.flatnonzero(changed)
    gaps = np.diff(places, prepend=-1) - 1
    gap_planes = encode_planes(gaps.astype("<u4"), rotate=False)
    word_planes = encode_planes(value[places], rotate=spec.dtype.kind is Kind.FLOAT)
    return b"".join([bytes((LISTED,)), _HEADER.pack(count, len(gap_planes)), gap_planes, word_planes])


def _apply_listed(spec: TensorSpec, body: memoryview, words: Words) -> None:
    """The numpy way, which also says what is wrong with a list."""
    if len(body) < _HEADER.size:
        raise RecordError("a list of changes ends inside its header")
    count, gap_bytes = _HEADER.unpack_from(body)
    body = body[_HEADER.size :]
    if not 0 < count <= words.size or gap_bytes > len(body):
        raise RecordError(f"a list of {count} changes ({gap_bytes} bytes of gaps) does not fit a chunk of {words.size}")
    with THREAD.temporaries():
        gaps = THREAD.take(count, 4)
        decode_planes(body[:gap_bytes], gaps, rotate=False)
        replacements = THREAD.take(count, spec.dtype.word_bytes)
        decode_planes(body[gap_bytes:], replacements, rotate=spec.dtype.kind is Kind.FLOAT)
        # At most 2**19 gaps below 2**32 each: no overflow in 64 bits.
        places = np.cumsum(gaps, dtype=np.int64)
        places += np.arange(count, dtype=np.int64)
        if places[-1] >= words.size:
            raise RecordError(f"a change at word {places[-1]} of a chunk of {words.size}")
        words[places] = replacements
