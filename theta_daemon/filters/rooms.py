"""Where the bytes of a few values wait until all of them are there (`filters.arriving`): in memory, or as they came."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from blake3 import blake3

from theta_daemon.filters.spool import Spool
from theta_daemon.formats.base import Source
from theta_daemon.tensor import Buffer


class Room(Source):
    """Memory for `nbytes` bytes that are on their way."""

    def __init__(self, nbytes: int) -> None:
        self._bytes = np.empty(nbytes, np.uint8)
        self._filled = 0

    def write(self, data: Buffer) -> None:
        """Append."""
        new = np.frombuffer(data, np.uint8)
        np.copyto(self._bytes[self._filled : self._filled + new.size], new)  # without the GIL, unlike a memoryview
        self._filled += new.size

    @property
    def size(self) -> int:
        return self._filled

    def read(self, offset: int, length: int) -> memoryview:
        if offset < 0 or length < 0 or offset + length > self._filled:
            raise ValueError(f"bytes {offset} to {offset + length} are outside of {self._filled}")
        return self._bytes.data[offset : offset + length].toreadonly()

    def digest(self, offset: int, length: int) -> str:
        """BLAKE3 of a part."""
        return blake3(self.read(offset, length)).hexdigest()

    def close(self) -> None:
        """As a `Spool` is closed; views stay valid."""


class Pieces(Room):
    """The same without the memory: the pieces as they came, which must not change any more."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(0)
        self._pieces: list[memoryview] = []

    def write(self, data: Buffer) -> None:
        self._pieces.append(memoryview(data))
        self._filled += self._pieces[-1].nbytes

    def read(self, offset: int, length: int) -> memoryview:
        return memoryview(b"".join(self._parts(offset, length)))

    def digest(self, offset: int, length: int) -> str:
        found = blake3()
        for part in self._parts(offset, length):
            found.update(part)
        return found.hexdigest()

    def close(self) -> None:
        self._pieces = []
        self._filled = 0

    def _parts(self, offset: int, length: int) -> Iterator[memoryview]:
        if offset < 0 or length < 0 or offset + length > self._filled:
            raise ValueError(f"bytes {offset} to {offset + length} are outside of {self._filled}")
        for piece in self._pieces:
            part = piece[offset : offset + length]
            offset = max(0, offset - piece.nbytes)
            length -= part.nbytes
            yield part


def digest_in(room: Room | Spool, offset: int, length: int) -> str:
    """BLAKE3 of a part of what is in `room`, which a `Spool` knows of all of it alone."""
    return room.hexdigest() if isinstance(room, Spool) else room.digest(offset, length)
