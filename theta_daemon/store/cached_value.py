"""One value in the disk cache: raw bytes, or compressed as planes, read in pieces and measured against its digest.

```
magic 8 | word bytes <u1 | zero 7 | bytes of the value <u8 | a <u4 length a chunk | the chunks (`codec.encode_planes`)
```
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from blake3 import blake3

from theta_daemon.codec import decode_planes, encode_planes
from theta_daemon.errors import RecordError
from theta_daemon.store.disk import FileReader
from theta_daemon.tensor import CHUNK_WORDS, Buffer

MAGIC: Final = b"\x89THETAv\n"
HEAD: Final = struct.Struct("<8sB7xQ")
_VERIFY_BYTES: Final = 1 << 20
"""Read, then hashed while it is in the processor's cache."""


def width_of(word_bytes: int, nbytes: int) -> int:
    """The word size that a value of `nbytes` bytes is compressed by."""
    return word_bytes if word_bytes in (1, 2, 4, 8) and nbytes % word_bytes == 0 else 1


def encoded_chunk(chunk: memoryview, width: int) -> bytes:
    """Up to CHUNK_WORDS words of `width` bytes, compressed."""
    return encode_planes(np.frombuffer(chunk, f"<u{width}"), rotate=width > 1)


class CachedValue:
    """A value of `nbytes` bytes in an open file. Thread-safe. Raises RecordError where the file does not hold such a value."""

    def __init__(self, reader: FileReader, nbytes: int, *, compressed: bool) -> None:
        self.nbytes = nbytes
        self._reader = reader
        self._step = 1
        self._width = 0
        self._offsets: list[int] = []
        self._stamp: tuple[int, int] | None = None
        self._digest = ""
        if compressed:
            self._read_head()
        elif reader.size != nbytes:
            raise RecordError(f"{reader.size} bytes are not a value of {nbytes}")

    @property
    def modified_seconds(self) -> float:
        """The file's modification time when it was opened."""
        return self._reader.modified_seconds

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

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` (writable bytes) from `offset`. Raises RecordError, StoreError."""
        if not self._width:
            self._reader.read_into(offset, target)
        else:
            target[:] = memoryview(self.read(offset, target.nbytes)).cast("B")

    def verify(self, digest: str) -> None:
        """Read it through, a piece at a time. Raises RecordError unless it has that digest."""
        self._stamp, self._digest = self._reader.stamp(), digest
        found = blake3(max_threads=blake3.AUTO)
        if self._width:
            for start in range(0, self.nbytes, self._step):
                found.update(self.read(start, min(self._step, self.nbytes - start)))
        else:
            piece = memoryview(bytearray(min(_VERIFY_BYTES, self.nbytes)))
            for start in range(0, self.nbytes, _VERIFY_BYTES):
                part = piece[: self.nbytes - start]
                self._reader.read_into(start, part)
                found.update(part)
        if found.hexdigest() != digest:
            raise RecordError("the bytes are not those of the digest")

    def still(self, digest: str) -> None:
        """Raises RecordError unless what was read since `verify` was the value: nobody has written into the file, and it was
        verified as this very value.
        """
        if digest != self._digest or self._reader.stamp() != self._stamp:  # or only its time was renewed
            self.verify(digest)

    def close(self) -> None:
        self._reader.close()

    def _read_head(self) -> None:
        magic, width, nbytes = HEAD.unpack(self._reader.read(0, HEAD.size))
        if magic != MAGIC or width not in (1, 2, 4, 8) or nbytes != self.nbytes or nbytes % width:
            raise RecordError("not a compressed value of that size")
        self._width = width
        self._step = CHUNK_WORDS * width
        count = -(-nbytes // self._step)
        position = HEAD.size + 4 * count
        self._offsets = [position]
        for length in struct.unpack(f"<{count}I", self._reader.read(HEAD.size, 4 * count)):
            position += length
            self._offsets.append(position)
        if position != self._reader.size:
            raise RecordError("the chunks do not fill the file")

    def _decode(self, index: int, target: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> None:
        data = self._reader.read(self._offsets[index], self._offsets[index + 1] - self._offsets[index])
        decode_planes(data, target.view(f"<u{self._width}"), rotate=self._width > 1)
