"""WTS files: `WTS1`, then for each tensor a `<u2` length, the name, a `<u4` count and that many float32s."""

from __future__ import annotations

import struct
from typing import ClassVar

from theta_daemon.errors import FormatError
from theta_daemon.formats.base import MAX_PARAMETERS, Extent, Format, Source, checked
from theta_daemon.tensor import DTYPES, TensorSpec

MAGIC = b"WTS1"


class Wts(Format):
    """Files of a format that nothing else knows."""

    name: ClassVar[str] = "wts"

    def matches(self, source: Source) -> bool:
        return source.size >= len(MAGIC) and bytes(source.read(0, len(MAGIC))) == MAGIC

    def layout(self, source: Source) -> list[Extent]:
        if not self.matches(source):
            raise FormatError("no WTS1")
        extents: list[Extent] = []
        position = len(MAGIC)
        while position < source.size:
            if len(extents) == MAX_PARAMETERS:
                raise FormatError("too many tensors")
            length, position = self._number(source, position, "<H")
            name, position = self._bytes(source, position, length)
            count, position = self._number(source, position, "<I")
            try:
                extent = Extent(name.decode(), TensorSpec(DTYPES["F32"], (count,)), position)
            except UnicodeDecodeError as error:
                raise FormatError("a name is no UTF-8") from error
            extents.append(extent)
            position = extent.end
        return checked(extents, source.size)

    def _number(self, source: Source, position: int, form: str) -> tuple[int, int]:
        data, position = self._bytes(source, position, struct.calcsize(form))
        return int(struct.unpack(form, data)[0]), position

    def _bytes(self, source: Source, position: int, length: int) -> tuple[bytes, int]:
        if position + length > source.size:
            raise FormatError("the file ends inside a tensor's head")
        return bytes(source.read(position, length)), position + length


def encode(tensors: dict[str, bytes]) -> bytes:
    """A file of these tensors, given as raw float32s."""
    parts = [MAGIC]
    for name, data in tensors.items():
        parts += [struct.pack("<H", len(name.encode())), name.encode(), struct.pack("<I", len(data) // 4), data]
    return b"".join(parts)
