"""What an update type does: it turns a value into a record, and a record (plus the previous value) into the value.

Values are flat arrays of unsigned words (`tensor.Words`): the bits, never floats. Decoding works in place on *spans*, runs
of whole chunks (`tensor.CHUNK_WORDS`), so that a chain of updates is applied chunk by chunk while the chunk is in the
cache, by several threads at once, and a value larger than memory can be streamed.

Two ways to write an update type:

- `ChunkedUpdate`: each chunk's record part depends on that chunk of the value (and of the previous value) alone. Fast.
- `Update` directly: anything else; `Decoder.chunked` False makes the caller hand over whole values.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Any, ClassVar, Final

from theta_daemon.errors import RecordError
from theta_daemon.store.base import Record
from theta_daemon.tensor import CHUNK_WORDS, Buffer, TensorSpec, Words


@dataclass(frozen=True, slots=True)
class Hint:
    """What the user says of one parameter: a preferred type, arrays by key (`R`, `C`, `alpha`, `indices`, …), options."""

    update: str
    data: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


class Decoder(ABC):
    """One opened record. Thread-safe: `apply` may run for several spans at once."""

    chunked: bool = True
    """Whether `apply` works for any chunk alone; if not it is called once, for the whole value."""

    script: bytes | None = None
    """How `codec.replay` is told what `part` gives; None where it cannot read it."""

    def part(self, index: int) -> Buffer:
        """What `apply` does to chunk `index`, for `codec.replay`. Raises RecordError where the bytes are not there."""
        raise NotImplementedError

    @abstractmethod
    def apply(self, start: int, stop: int, words: Words) -> None:
        """Turn `words` (writable, `stop - start` long) from the previous value's [start:stop] into this value's.

        `start` and `stop` bound whole chunks. A self-contained update ignores what `words` held. Raises RecordError for
        a record that does not fit; never writes outside `words`, never allocates more than a small multiple of it.
        """


class Update(ABC):
    """An update type. A plug-in registers a subclass under the entry point group `theta_daemon.updates`.

    Promises: `encode` returns None when this type cannot hold the value exactly or does not apply; decoding what
    `encode` returned gives the value bit for bit on every machine, independent of threads and CPU; no input of either
    makes it run foreign code, hang or allocate beyond a small multiple of the value.
    """

    name: ClassVar[str]
    """The name in pointers: lower case, digits and dashes."""

    incremental: ClassVar[bool]
    """Whether the previous value is needed."""

    automatic: ClassVar[bool] = False
    """Whether clean tries it without a hint."""

    script: ClassVar[bytes | None] = None
    """How `codec.replay` is told what stands in a chunk's part of a `ChunkedUpdate`; None where it cannot read that."""

    @abstractmethod
    def encode(self, spec: TensorSpec, value: Words, previous: Words | None, hint: Hint | None) -> bytes | None:
        """The record for `value` (all `spec.words` words), or None. `previous` is None exactly if not incremental."""

    @abstractmethod
    def open(self, spec: TensorSpec, record: Record) -> Decoder:
        """Check the record's header against `spec`. Raises RecordError."""


CHUNK_TRAILER: Final = struct.Struct("<BBHI")
"""Version (1), word bytes, zero, number of chunks: the last bytes of a chunked record.

A chunked record is the chunks' parts, then one `<u4` length a chunk, then this: so that it can be written as it grows.
"""


_MAX_EXPANSION: Final = 8
"""No chunk's part is so many times larger than a chunk: it is read into memory before it is looked at."""


class ChunkedUpdate(Update):
    """An update type whose chunks are independent of each other."""

    @abstractmethod
    def encode_chunk(self, spec: TensorSpec, value: Words, previous: Words | None) -> bytes | None:
        """The record part of one chunk, or None when this type cannot or should not hold it (so the whole value)."""

    @abstractmethod
    def decode_chunk(self, spec: TensorSpec, data: Buffer, words: Words) -> None:
        """Turn `words`, a chunk of the previous value, into the value's, in place. Raises RecordError."""

    def encode(self, spec: TensorSpec, value: Words, previous: Words | None, hint: Hint | None) -> bytes | None:
        parts = []
        for start, stop in spec.spans():
            part = self.encode_chunk(spec, value[start:stop], None if previous is None else previous[start:stop])
            if part is None:
                return None
            parts.append(part)
        return b"".join([*parts, chunked_trailer(spec, [len(part) for part in parts])])

    def open(self, spec: TensorSpec, record: Record) -> Decoder:
        return _ChunkedDecoder(self, spec, record)


def chunked_trailer(spec: TensorSpec, lengths: Sequence[int]) -> bytes:
    """The end of a chunked record whose parts have these lengths, in bytes."""
    return struct.pack(f"<{len(lengths)}I", *lengths) + CHUNK_TRAILER.pack(1, spec.dtype.word_bytes, 0, len(lengths))


@lru_cache(64)
def _table(chunks: int) -> struct.Struct:
    return struct.Struct(f"<{chunks}I{CHUNK_TRAILER.format[1:]}")


class _ChunkedDecoder(Decoder):
    def __init__(self, update: ChunkedUpdate, spec: TensorSpec, record: Record) -> None:
        self.script = update.script
        self._update = update
        self._spec = spec
        self._record = record
        tail = 4 * spec.chunks + CHUNK_TRAILER.size
        if record.length < tail:
            raise self._misfit()
        fields = _table(spec.chunks).unpack(record.read(record.length - tail, tail))
        word_bytes, lengths = spec.dtype.word_bytes, fields[:-4]
        if fields[-4:] != (1, word_bytes, 0, spec.chunks):
            raise self._misfit()
        if lengths and max(lengths) > _MAX_EXPANSION * CHUNK_WORDS * word_bytes:
            raise RecordError(f"{update.name} record has a chunk that is longer than any can be")
        self._offsets = (0, *accumulate(lengths))
        if self._offsets[-1] + tail != record.length:
            raise RecordError(f"{update.name} record has {record.length} bytes, its table says otherwise")

    def _misfit(self) -> RecordError:
        spec = self._spec
        return RecordError(
            f"{self._update.name} record does not fit dtype {spec.dtype.name} and shape {list(spec.shape)}"
        )

    def part(self, index: int) -> Buffer:
        begin, end = self._offsets[index], self._offsets[index + 1]
        return self._record.read(begin, end - begin)

    def apply(self, start: int, stop: int, words: Words) -> None:
        first = start // CHUNK_WORDS
        for index in range(first, -(-stop // CHUNK_WORDS)):
            lower = (index - first) * CHUNK_WORDS
            chunk = words if stop - start <= CHUNK_WORDS else words[lower : lower + CHUNK_WORDS]
            self._update.decode_chunk(self._spec, self.part(index), chunk)
