"""Delta: small differences of the bits read as integers. Exact for all bits, NaN payloads and -0.0 included.

Words are mapped to unsigned integers in the order of the numbers that they stand for, so that neighbouring floats are
neighbouring integers; the wrapped difference is folded (0, -1, 1, -2, … become 0, 1, 2, 3, …) and cut into planes. On real
fine-tunes this is smaller than an XOR of the bits; float subtraction would not be exact at all.

A chunk's part is one of sparse's, or DELTA and the planes of the differences: each chunk takes what is smallest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Final

import numpy as np

from theta_daemon.codec import DIFFERENCES, THREAD, decode_planes, encode_planes, replay
from theta_daemon.tensor import Buffer, Kind, TensorSpec, Words
from theta_daemon.updates.base import ChunkedUpdate, Hint
from theta_daemon.updates.sparse import Sparse, encode_listed, encode_replaced

DELTA: Final = 3

_SAMPLE_PIECES: Final = 4
_SAMPLE_PIECE: Final = 4096
_SPARSE_WINS: Final = 256
"""A list of changes that is so many times smaller than the chunk has won."""


@dataclass(frozen=True, slots=True)
class Change:
    """The smallest part for a chunk, and that chunk's dense part unless it was seen, cheaply, to be much larger."""

    part: bytes
    dense: bytes | None


class Delta(ChunkedUpdate):
    """Takes every value; worth it after a light training of all elements."""

    name: ClassVar[str] = "delta"
    incremental: ClassVar[bool] = True
    automatic: ClassVar[bool] = True
    script: ClassVar[bytes | None] = DIFFERENCES

    def __init__(self) -> None:
        self._sparse = Sparse()

    def encode(self, spec: TensorSpec, value: Words, previous: Words | None, hint: Hint | None) -> bytes | None:
        if previous is None:
            return None
        return super().encode(spec, value, previous, hint)

    def encode_chunk(self, spec: TensorSpec, value: Words, previous: Words | None) -> bytes | None:
        return None if previous is None else smallest_change(spec, value, previous).part

    def decode_chunk(self, spec: TensorSpec, data: Buffer, words: Words) -> None:
        view = memoryview(data)
        if not view or replay(words, DIFFERENCES, [view], floats=spec.dtype.kind is Kind.FLOAT):
            return
        if view[0] != DELTA:
            self._sparse.decode_chunk(spec, data, words)
            return
        with THREAD.temporaries():
            folded = THREAD.take(words.size, spec.dtype.word_bytes)
            decode_planes(view[1:], folded, rotate=False)
            add_folded(words, folded, spec.dtype.kind)


def smallest_change(spec: TensorSpec, value: Words, previous: Words) -> Change:
    """The smallest exact part for `value`, a chunk, given `previous`. What is tried depends on the words alone."""
    listed = encode_listed(spec, value, previous)
    if listed is not None and len(listed) * _SPARSE_WINS < value.nbytes:
        return Change(listed, None)
    dense_estimate, delta_estimate = _estimate(spec, value, previous)
    best = listed
    if delta_estimate < 1.02 * dense_estimate and (best is None or delta_estimate < 1.1 * len(best)):
        delta = _encode_delta(spec, value, previous)
        best = delta if best is None or len(delta) < len(best) else best
    if best is not None and len(best) < 0.9 * dense_estimate:
        return Change(best, None)
    dense = encode_planes(value, rotate=spec.dtype.kind is Kind.FLOAT)
    if best is None or len(dense) + 1 < len(best):
        best = encode_replaced(dense)
    return Change(best, dense)


def _estimate(spec: TensorSpec, value: Words, previous: Words) -> tuple[float, float]:
    """About how large the dense part and the differences are, from samples if the chunk is long."""
    share = 1.0
    if value.size > 2 * _SAMPLE_PIECES * _SAMPLE_PIECE:
        step = (value.size - _SAMPLE_PIECE) // (_SAMPLE_PIECES - 1)
        places = [slice(i * step, i * step + _SAMPLE_PIECE) for i in range(_SAMPLE_PIECES)]
        share = _SAMPLE_PIECES * _SAMPLE_PIECE / value.size
        value = np.concatenate([value[place] for place in places])
        previous = np.concatenate([previous[place] for place in places])
    dense = encode_planes(value, rotate=spec.dtype.kind is Kind.FLOAT)
    return len(dense) / share, len(_encode_delta(spec, value, previous)) / share


def _encode_delta(spec: TensorSpec, value: Words, previous: Words) -> bytes:
    with THREAD.temporaries():
        folded = THREAD.take(value.size, spec.dtype.word_bytes)
        fold_difference(value, previous, spec.dtype.kind, folded)
        return bytes((DELTA,)) + encode_planes(folded, rotate=False)


def fold_difference(value: Words, previous: Words, kind: Kind, folded: Words) -> None:
    """Fill `folded` with the folded differences that lead from `previous` to `value`."""
    with THREAD.temporaries():
        scratch = THREAD.take(value.size, value.itemsize)
        signed, top = _signed(scratch), 8 * value.itemsize - 1
        if kind is Kind.FLOAT:
            mapped = THREAD.take(value.size, value.itemsize)
            _to_ordered(value, folded, scratch)
            _to_ordered(previous, mapped, scratch)
            np.subtract(folded, mapped, out=folded)
        else:
            np.subtract(value, previous, out=folded)  # a flipped sign bit on both sides would cancel
        np.right_shift(_signed(folded), top, out=signed)
        np.add(folded, folded, out=folded)
        np.bitwise_xor(folded, scratch, out=folded)


def add_folded(words: Words, folded: Words, kind: Kind) -> None:
    """Turn `words` from the previous value into the value, given `fold_difference`'s result, which is overwritten."""
    one = words.dtype.type(1)
    with THREAD.temporaries():
        scratch = THREAD.take(words.size, words.itemsize)
        np.bitwise_and(folded, one, out=scratch)
        np.negative(_signed(scratch), out=_signed(scratch))
        np.right_shift(folded, one, out=folded)
        np.bitwise_xor(folded, scratch, out=folded)
        if kind is Kind.FLOAT:
            _to_ordered(words, words, scratch)
        np.add(words, folded, out=words)
        if kind is Kind.FLOAT:
            _from_ordered(words, scratch)


def _to_ordered(words: Words, out: Words, scratch: Words) -> None:
    """Floats' bits to integers in the order of the floats: negative ones flipped, the others above them."""
    np.right_shift(_signed(words), 8 * words.itemsize - 1, out=_signed(scratch))
    np.bitwise_or(scratch, _sign_bit(words), out=scratch)
    np.bitwise_xor(words, scratch, out=out)


def _from_ordered(words: Words, scratch: Words) -> None:
    """The inverse, in place."""
    np.right_shift(_signed(words), 8 * words.itemsize - 1, out=_signed(scratch))
    np.invert(scratch, out=scratch)
    np.bitwise_or(scratch, _sign_bit(words), out=scratch)
    np.bitwise_xor(words, scratch, out=words)


def _sign_bit(words: Words) -> Any:
    return words.dtype.type(1 << (8 * words.itemsize - 1))


def _signed(words: Words) -> Words:
    return words.view(f"<i{words.itemsize}")
