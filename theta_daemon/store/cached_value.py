"""One value in the disk cache: raw bytes, or compressed as planes, read in pieces and measured against its digest.

```
magic 8 | word bytes <u1 | zero 7 | bytes of the value <u8 | a <u4 length a chunk | the chunks (`codec.encode_planes`)
```
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

import numpy as np
from blake3 import blake3

from theta_daemon.codec import decode_planes, encode_planes
from theta_daemon.errors import RecordError
from theta_daemon.store.disk import FileReader
from theta_daemon.tensor import CHUNK_WORDS, Buffer

MAGIC: Final = b"\x89THETAv\n"
_HEAD: Final = struct.Struct("<8sB7xQ")
_PIECE_BYTES: Final = 4 << 20


def compressed_parts(value: Buffer, word_bytes: int) -> list[Buffer]:
    """The compressed form of `value`, in parts to be written one after the other."""
    view = memoryview(value).cast("B")
    width = word_bytes if word_bytes in (1, 2, 4, 8) and view.nbytes % word_bytes == 0 else 1
    step = CHUNK_WORDS * width
    chunks = [
        encode_planes(np.frombuffer(view[start : start + step], f"<u{width}"), rotate=width > 1)
        for start in range(0, view.nbytes, step)
    ]
    lengths = struct.pack(f"<{len(chunks)}I", *map(len, chunks))
    return [_HEAD.pack(MAGIC, width, view.nbytes), lengths, *chunks]


class CachedValue:
    """A value of `nbytes` bytes in an open file. Thread-safe. Raises RecordError where the file does not hold such a value."""

    def __init__(self, reader: FileReader, nbytes: int, *, compressed: bool) -> None:
        self.nbytes = nbytes
        self._reader = reader
        self._step = _PIECE_BYTES
        self._width = 0
        self._offsets: list[int] = []
        if compressed:
            self._read_head()
        elif reader.size != nbytes:
            raise RecordError(f"{reader.size} bytes are not a value of {nbytes}")

    def read(self, offset: int, length: int) -> Buffer:
        """Exactly `length` bytes from `offset`. Raises RecordError, StoreError."""
        if offset < 0 or length < 0 or offset + length > self.nbytes:
            raise RecordError(f"bytes {offset} to {offset + length} are outside a value of {self.nbytes}")
        if not self._width:
            return self._reader.read(offset, length)
        if not length:
            return b""
        first, last = offset // self._step, (offset + length - 1) // self._step
        data = np.empty(min((last + 1) * self._step, self.nbytes) - first * self._step, np.uint8)
        for index in range(first, last + 1):
            self._decode(index, data[(index - first) * self._step :][: self._step])
        return data.data[offset - first * self._step :][:length]

    def whole(self, digest: str) -> memoryview:
        """All of it, if it has that digest; else RecordError."""
        if not self._width:
            data: Buffer = self._reader.read(0, self.nbytes)
        else:
            data = self.read(0, self.nbytes)
        if blake3(data).hexdigest() != digest:
            raise RecordError("the bytes are not those of the digest")
        return memoryview(data).toreadonly()

    def verify(self, digest: str) -> None:
        """Read it through, a piece at a time. Raises RecordError unless it has that digest."""
        found = blake3()
        for piece in self._pieces():
            found.update(piece)
        if found.hexdigest() != digest:
            raise RecordError("the bytes are not those of the digest")

    def close(self) -> None:
        self._reader.close()

    def _pieces(self) -> Iterator[Buffer]:
        for start in range(0, self.nbytes, self._step):
            yield self.read(start, min(self._step, self.nbytes - start))

    def _read_head(self) -> None:
        magic, width, nbytes = _HEAD.unpack(self._reader.read(0, _HEAD.size))
        if magic != MAGIC or width not in (1, 2, 4, 8) or nbytes != self.nbytes or nbytes % width:
            raise RecordError("not a compressed value of that size")
        self._width = width
        self._step = CHUNK_WORDS * width
        count = -(-nbytes // self._step)
        position = _HEAD.size + 4 * count
        self._offsets = [position]
        for length in struct.unpack(f"<{count}I", self._reader.read(_HEAD.size, 4 * count)):
            position += length
            self._offsets.append(position)
        if position != self._reader.size:
            raise RecordError("the chunks do not fill the file")

    def _decode(self, index: int, target: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> None:
        data = self._reader.read(self._offsets[index], self._offsets[index + 1] - self._offsets[index])
        decode_planes(data, target.view(f"<u{self._width}"), rotate=self._width > 1)
