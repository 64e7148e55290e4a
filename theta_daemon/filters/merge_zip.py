"""Merging the skeletons of zip files (torch, npz) when both sides changed them: each wrote new checksums.

A CRC-32 belongs to one member, so the checksums of parameters that one side changed differ on that side only, and a merge
byte by byte gives every member its own. What torch writes beside them, `.data/serialization_id` (a hash of the whole that
nothing ever checks), differs on both sides whenever anything does: ours is kept. Every stored member of the result is
checked against its checksum afterwards.

Only for files that a format has laid out already, so that their directories are known to be sound.
"""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from theta_daemon.errors import FormatError
from theta_daemon.filters.merge import merge_literals
from theta_daemon.formats.base import Extent, Source
from theta_daemon.formats.zipfile_layout import members
from theta_daemon.tensor import Buffer

_SERIALIZATION_ID: Final = ".data/serialization_id"
_LOCAL_CRC: Final = 14
_ENTRY: Final = struct.Struct("<4s6H3I5H2I")
_ENTRY_CRC: Final = 16
_FOLLOWS: Final = b"PK\x07\x08"

Laid = tuple[Source, Mapping[str, Extent]]
"""A checkpoint and its parameters in file order."""


def merge_skeletons(base: Laid, ours: Laid, theirs: Laid) -> list[bytes] | None:
    """The literals of the merged file; None where the changes cannot be told apart."""
    places = [[(extent.offset, extent.end) for extent in layout.values()] for _, layout in (base, ours, theirs)]
    if not places[0] == places[1] == places[2] or not base[0].size == ours[0].size == theirs[0].size:
        return None
    try:
        kept = list(_identity(ours[0]))
    except (FormatError, zipfile.BadZipFile, struct.error):
        return None
    versions = [_literals(source, places[0], kept, ours[0]) for source, _ in (base, ours, theirs)]
    return merge_literals(*versions)


def intact(source: Source) -> bool:
    """Whether every stored member has the checksum that the directory gives it."""
    try:
        with zipfile.ZipFile(_Reader(source)) as archive:
            wanted = {info.filename: info.CRC for info in archive.infolist()}
        found = [(member, wanted[member.name]) for member in members(source) if member.plain]
    except (FormatError, zipfile.BadZipFile, KeyError):
        return False
    return all(_checksum(source, member.offset, member.end) == checksum for member, checksum in found)


def _checksum(source: Source, start: int, stop: int) -> int:
    total = 0
    for piece in source.pieces(start, stop):
        total = zlib.crc32(piece, total)
    return total


def _identity(source: Source) -> Iterator[tuple[int, int]]:
    """Where the file holds torch's serialization id and the checksums of it."""
    with zipfile.ZipFile(_Reader(source)) as archive:
        start = archive.start_dir
        headers = {info.filename: info.header_offset for info in archive.infolist()}
    for member in members(source):
        if not member.name.endswith(_SERIALIZATION_ID):
            continue
        yield member.offset, member.end
        header = headers[member.name]
        yield header + _LOCAL_CRC, header + _LOCAL_CRC + 4
        if member.end + 8 <= source.size and bytes(source.read(member.end, 4)) == _FOLLOWS:
            yield member.end + 4, member.end + 8
        entry = _entry(source, start, header)
        yield entry + _ENTRY_CRC, entry + _ENTRY_CRC + 4


def _entry(source: Source, at: int, header: int) -> int:
    """Where the directory's entry for the member at `header` starts."""
    while True:
        fields = _ENTRY.unpack(source.read(at, _ENTRY.size))
        if fields[-1] == header:
            return at
        if fields[0] != b"PK\x01\x02":
            raise FormatError("the directory has no such entry")
        at += _ENTRY.size + sum(fields[10:13])


def _literals(
    source: Source, places: Sequence[tuple[int, int]], kept: Sequence[tuple[int, int]], ours: Source
) -> list[Buffer]:
    """The literals of `source`, with our bytes at the places that are kept."""
    literals: list[Buffer] = []
    position = 0
    for start, after in [*places, (source.size, source.size)]:
        literal = bytearray(source.read(position, start - position))
        for first, last in kept:
            if position <= first and last <= start:
                literal[first - position : last - position] = ours.read(first, last - first)
        literals.append(literal)
        position = after
    return literals


class _Reader(io.RawIOBase):
    """A source as a file, for the standard library's zip reader."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._source.size}[whence]
        if start + offset < 0:
            raise OSError("before the start")
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Buffer) -> int:  # type: ignore[override]
        view = memoryview(buffer).cast("B")
        count = max(0, min(view.nbytes, self._source.size - self._at))
        view[:count] = self._source.read(self._at, count)
        self._at += count
        return count
