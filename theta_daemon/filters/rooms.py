"""Where the bytes of a few values wait in memory until all of them are there (`filters.arriving`): as they came."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import numpy as np
from blake3 import blake3

from theta_daemon.filters.spool import Spool
from theta_daemon.formats.base import Source
from theta_daemon.tensor import Buffer


class Room(Source):
    """Bytes that are on their way. What was written is kept, not copied: it must not change any more."""

    def __init__(self) -> None:
        self._pieces: list[memoryview] = []
        self._starts: list[int] = []
        self._size = 0

    def write(self, data: Buffer) -> None:
        """Append."""
        piece = memoryview(data)
        if piece.nbytes:
            self._pieces.append(piece)
            self._starts.append(self._size)
            self._size += piece.nbytes

    @property
    def size(self) -> int:
        return self._size

    def read(self, offset: int, length: int) -> memoryview:
        parts = list(self.pieces(offset, offset + length))
        if len(parts) == 1:
            return parts[0].toreadonly()
        joined = np.empty(length, np.uint8)
        at = 0
        for part in parts:
            np.copyto(joined[at : at + part.nbytes], np.frombuffer(part, np.uint8))  # without the GIL, unlike a join
            at += part.nbytes
        return joined.data.toreadonly()

    def digest(self, offset: int, length: int) -> str:
        """BLAKE3 of a part."""
        found = blake3()
        for part in self.pieces(offset, offset + length):
            found.update(part)
        return found.hexdigest()

    def pieces(self, start: int = 0, stop: int | None = None) -> Iterator[memoryview]:
        end = self._size if stop is None else stop
        if not 0 <= start <= end <= self._size:
            raise ValueError(f"bytes {start} to {end} are outside of {self._size}")
        index = max(0, bisect_right(self._starts, start) - 1)
        while start < end:
            begin = self._starts[index]
            part = self._pieces[index][start - begin : end - begin]
            yield part
            start += part.nbytes
            index += 1

    def close(self) -> None:
        """Let go; views stay valid."""
        self._pieces = []
        self._starts = []
        self._size = 0


def digest_in(room: Room | Spool, offset: int, length: int) -> str:
    """BLAKE3 of a part of what is in `room`, which a `Spool` knows of all of it alone."""
    return room.hexdigest() if isinstance(room, Spool) else room.digest(offset, length)
