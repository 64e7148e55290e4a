"""Records made of a short text and a few records within: factors, scales, a residual.

Layout: version (1), word bytes, number of sections, length of the text; a `<u8` length a section; the text (JSON); the
sections. All lengths are checked before anything is read by them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, TypeVar

import numpy as np
from pydantic import TypeAdapter, ValidationError

from theta_daemon.errors import RecordError
from theta_daemon.store.base import Record
from theta_daemon.tensor import Buffer, TensorSpec
from theta_daemon.updates.base import chunked_trailer
from theta_daemon.updates.dense import Dense
from theta_daemon.updates.floats import Array

_HEADER: Final = struct.Struct("<BBHI")
_MAX_SECTIONS: Final = 8
MAX_TEXT: Final = 4096

_Text = TypeVar("_Text")


class Section:
    """A record inside a record."""

    def __init__(self, record: Record, offset: int, length: int) -> None:
        self._record = record
        self._offset = offset
        self._length = length

    @property
    def length(self) -> int:
        return self._length

    def read(self, offset: int, length: int) -> Buffer:
        if offset < 0 or length < 0 or offset + length > self._length:
            raise RecordError(f"{length} bytes from {offset} of a section of {self._length}")
        return self._record.read(self._offset + offset, length)


def join_sections(spec: TensorSpec, text: bytes, sections: Sequence[bytes]) -> bytes:
    """The record."""
    head = _HEADER.pack(1, spec.dtype.word_bytes, len(sections), len(text))
    return b"".join([head, struct.pack(f"<{len(sections)}Q", *map(len, sections)), text, *sections])


def open_sections(
    spec: TensorSpec, record: Record, text: TypeAdapter[_Text], sections: int
) -> tuple[_Text, list[Section]]:
    """The text, parsed, and the `sections` sections. Raises RecordError."""
    if record.length < _HEADER.size:
        raise RecordError("a record ends inside its header")
    version, word_bytes, count, length = _HEADER.unpack(record.read(0, _HEADER.size))
    if (version, word_bytes, count) != (1, spec.dtype.word_bytes, sections) or count > _MAX_SECTIONS:
        raise RecordError(f"a record does not fit dtype {spec.dtype.name}, or is of a later version")
    position = _HEADER.size + 8 * count
    if length > MAX_TEXT or position + length > record.length:
        raise RecordError("a record ends inside its text, or its text is too long")
    lengths = struct.unpack(f"<{count}Q", record.read(_HEADER.size, 8 * count))
    try:
        parsed = text.validate_json(bytes(record.read(position, length)))
    except ValidationError as error:
        raise RecordError(f"a record's text is not as it should be: {error.errors()[0]['msg']}") from error
    position += length
    found = []
    for size in lengths:
        found.append(Section(record, position, size))
        position += size
    if position != record.length:
        raise RecordError(f"a record has {record.length} bytes, its sections end at {position}")
    return parsed, found


def encode_array(array: Array) -> bytes:
    """A section that holds `array`'s words, as a dense record."""
    parts = [Dense().encode_chunk(array.spec, array.words[start:stop], None) for start, stop in array.spec.spans()]
    return b"".join([*parts, chunked_trailer(array.spec, [len(part) for part in parts])])


def read_array(spec: TensorSpec, section: Record) -> Array:
    """The array in a section. Raises RecordError."""
    decoder = Dense().open(spec, section)
    words = np.empty(spec.words, spec.dtype.word_dtype)
    decoder.apply(0, spec.words, words)
    return Array(spec, words)
