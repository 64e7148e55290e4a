"""A checkpoint in a file, read in pieces: what the diff driver looks at and the merge driver cuts up."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from blake3 import blake3

from theta_daemon.errors import ThetaError
from theta_daemon.formats.base import Extent, Source

if TYPE_CHECKING:
    from theta_daemon.pointer import Pointer


class File(Source):
    """A regular file. A file that shrinks while it is read raises, whatever is read of it is not mapped."""

    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise ThetaError(f"{path} cannot be read: {error.strerror}") from error
        self._path = path
        self._size = os.fstat(self._descriptor).st_size

    @property
    def size(self) -> int:
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > self._size:
            raise ValueError(f"bytes {offset} to {offset + length} are outside a file of {self._size}")
        parts: list[bytes] = []
        while length:
            part = os.pread(self._descriptor, min(length, 1 << 30), offset)
            if not part:
                raise ThetaError(f"{self._path} became shorter while it was read", "do it again")
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def resembles_pointer(self) -> bool:
        """Whether the file starts as a pointer does."""
        head = self.read(0, min(self._size, 64))
        if not head.startswith(b"{"):
            return False  # without the cost of importing what knows more
        from theta_daemon.pointer import looks_like_pointer

        return looks_like_pointer(head)

    def pointer(self) -> Pointer | None:
        """The pointer that the file is, if it is one. Raises PointerError."""
        if not self.resembles_pointer():
            return None
        from theta_daemon.pointer import MAX_POINTER_BYTES, parse

        return parse(self.read(0, self._size)) if self._size <= MAX_POINTER_BYTES else None

    def digest(self, start: int = 0, stop: int | None = None) -> str:
        """BLAKE3 of the bytes from `start` to `stop`."""
        total = blake3(max_threads=blake3.AUTO)
        for piece in self.pieces(start, stop):
            total.update(piece)
        return total.hexdigest()

    def close(self) -> None:
        """Give the descriptor back; safe to call twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Described:
    """A parameter as the diff driver shows it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str


def described(file: File, layout: list[Extent]) -> list[Described]:
    """The parameters of a checkpoint, with the digests that its pointer has."""
    return [
        Described(extent.name, extent.spec.dtype.name, extent.spec.shape, file.digest(extent.offset, extent.end))
        for extent in layout
    ]
