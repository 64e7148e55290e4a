"""Where the members of a zip file lie. Nothing is extracted, no checksum is checked: the bytes come back as they are.

A zip's directory at the end and the local header before each member say the same things twice. A file is laid out only
when both agree, when every member lies before the directory and when no two members share a byte; whatever else an
archive can be (split, with a prefix, with an encrypted directory) is a FormatError. zip64 and members whose sizes follow
their data (data descriptors) are read; names are compared as bytes and decoded once.

Source: PKWARE's APPNOTE.TXT 6.3.10, sections 4.3 and 4.5.3. Knows nothing of parameters.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from theta_daemon.errors import FormatError
from theta_daemon.formats.base import Source

MAGIC: Final = b"PK\x03\x04"
MAX_MEMBERS: Final = 1 << 18
"""More members are no checkpoint; keeps a hostile directory from filling memory."""

MAX_DIRECTORY_BYTES: Final = 64 << 20
MAX_COMMENT: Final = (1 << 16) - 1

_END: Final = struct.Struct("<4s4H2IH")
_END64: Final = struct.Struct("<4sQ2H2I4Q")
_LOCATOR: Final = struct.Struct("<4sIQI")
_ENTRY: Final = struct.Struct("<4s6H3I5H2I")
_LOCAL: Final = struct.Struct("<4s5H3I2H")
_STORED: Final = 0
_ENCRYPTED: Final = 1
_SIZES_FOLLOW: Final = 1 << 3
_UTF8: Final = 1 << 11
_FULL16: Final = 0xFFFF
_FULL32: Final = 0xFFFFFFFF
_FULL: Final = (_FULL16, _FULL16, _FULL32, _FULL32)


@dataclass(frozen=True, slots=True)
class Member:
    """One member: its name, and where its `size` bytes (compressed ones unless `plain`) start in the file."""

    name: str
    offset: int
    size: int
    plain: bool

    @property
    def end(self) -> int:
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class _Entry:
    """A line of the directory."""

    name: bytes
    flags: int
    method: int
    packed: int
    unpacked: int
    header: int


def members(source: Source) -> list[Member]:
    """All members in file order. Raises FormatError for what is not a plain, whole zip file."""
    start, size, count = _directory(source)
    entries = sorted(_entries(bytes(source.read(start, size)), count), key=lambda entry: entry.header)
    found = []
    names: set[str] = set()
    position = 0
    for entry in entries:
        if entry.header < position:
            raise FormatError("two zip members overlap")
        member = _member(source, entry, start)
        if member.name in names:
            raise FormatError(f"zip member {member.name!r} stands there twice")
        names.add(member.name)
        found.append(member)
        position = member.end
    return found


def _directory(source: Source) -> tuple[int, int, int]:
    """Start, bytes and number of entries of the directory."""
    reach = min(source.size, _END.size + MAX_COMMENT)
    tail = bytes(source.read(source.size - reach, reach))
    at = len(tail)
    while True:
        at = tail.rfind(b"PK\x05\x06", 0, at)
        if at < 0:
            raise FormatError("no zip directory")
        if at + _END.size <= len(tail):
            _, disk, first, here, total, size, start, comment = _END.unpack_from(tail, at)
            if at + _END.size + comment == len(tail):
                break
    end = source.size - len(tail) + at
    small = here, total, size, start
    wide = _directory64(source, end)
    if wide is not None:
        disk, first, here, total, size, start, end = wide
        # PyTorch writes the zip64 record always; where the plain one has room for a value too they must agree.
        wide_values = here, total, size, start
        if any(low not in (high, full) for low, high, full in zip(small, wide_values, _FULL, strict=True)):
            raise FormatError("the two zip end records contradict each other")
    if disk or first or here != total:
        raise FormatError("a zip file in several parts")
    if total > MAX_MEMBERS or size > MAX_DIRECTORY_BYTES:
        raise FormatError("a zip directory that is too large")
    if start + size != end:
        raise FormatError("the zip directory is not where its end record says")
    return start, size, total


def _directory64(source: Source, end: int) -> tuple[int, int, int, int, int, int, int] | None:
    """The fields of the zip64 end record and where that record starts; None where there is none before `end`."""
    at = end - _LOCATOR.size
    if at < 0:
        return None
    mark, disk, record, disks = _LOCATOR.unpack(source.read(at, _LOCATOR.size))
    if mark != b"PK\x06\x07":
        return None
    if disk or disks > 1 or record + _END64.size > at:
        raise FormatError("a zip64 locator that leads nowhere")
    mark, length, _, _, disk, first, here, total, size, start = _END64.unpack(source.read(record, _END64.size))
    if mark != b"PK\x06\x06" or record + 12 + length != at:
        raise FormatError("a zip64 end record that is not one")
    return disk, first, here, total, size, start, record


def _entries(directory: bytes, count: int) -> list[_Entry]:
    entries = []
    at = 0
    for _ in range(count):
        if at + _ENTRY.size > len(directory):
            raise FormatError("a zip directory that is cut off")
        fields = _ENTRY.unpack_from(directory, at)
        mark, _, _, flags, method, _, _, _, packed, unpacked, named, extra, comment, disk, _, _, header = fields
        if mark != b"PK\x01\x02":
            raise FormatError("a zip directory entry that is not one")
        at += _ENTRY.size
        name = directory[at : at + named]
        more = directory[at + named : at + named + extra]
        at += named + extra + comment
        if at > len(directory):
            raise FormatError("a zip directory that is cut off")
        unpacked, packed, header = _widened(more, (unpacked, packed, header))
        if disk not in (0, _FULL16):
            raise FormatError("a zip file in several parts")
        entries.append(_Entry(name, flags, method, packed, unpacked, header))
    if at != len(directory):
        raise FormatError("a zip directory with bytes left over")
    return entries


def _widened(extra: bytes, values: tuple[int, ...]) -> tuple[int, ...]:
    """`values` with those that say "see zip64" replaced by the 64-bit ones of the extra field."""
    if _FULL32 not in values:
        return values
    at = 0
    while at + 4 <= len(extra):
        tag, length = struct.unpack_from("<2H", extra, at)
        at += 4
        if tag == 1:
            wide = extra[at : at + length]
            words = list(struct.unpack_from(f"<{len(wide) // 8}Q", wide))
            if values.count(_FULL32) > len(words):
                break
            return tuple(words.pop(0) if value == _FULL32 else value for value in values)
        at += length
    # PyTorch's writer never means 2^32 - 1 itself: without the field the entry cannot be understood.
    raise FormatError("a zip entry without the 64-bit sizes that it promises")


def _member(source: Source, entry: _Entry, limit: int) -> Member:
    """The member of `entry`, its local header read and compared; it must end at or before `limit`."""
    if entry.header + _LOCAL.size > limit:
        raise FormatError("a zip member outside the file")
    fields = _LOCAL.unpack(source.read(entry.header, _LOCAL.size))
    mark, _, flags, method, _, _, _, packed, unpacked, named, extra = fields
    offset = entry.header + _LOCAL.size + named + extra
    if mark != MAGIC or offset + entry.packed > limit:
        raise FormatError("a zip member outside the file, or without its header")
    more = bytes(source.read(entry.header + _LOCAL.size, named + extra))
    name = more[:named]
    if name != entry.name or method != entry.method or (flags ^ entry.flags) & _ENCRYPTED:
        raise FormatError(f"zip member {entry.name!r}: its header contradicts the directory")
    if (packed, unpacked) != (0, 0) or not flags & _SIZES_FOLLOW:
        unpacked, packed = _widened(more[named:], (unpacked, packed))
        if (packed, unpacked) != (entry.packed, entry.unpacked) and not (
            flags & _SIZES_FOLLOW and (packed, unpacked) == (0, 0)
        ):
            raise FormatError(f"zip member {entry.name!r}: its header contradicts the directory")
    plain = method == _STORED and not flags & _ENCRYPTED
    if plain and entry.packed != entry.unpacked:
        raise FormatError(f"zip member {entry.name!r}: stored, but its two sizes differ")
    try:
        text = entry.name.decode("utf-8" if entry.flags & _UTF8 else "cp437")
    except UnicodeDecodeError as error:
        raise FormatError(f"zip member {entry.name!r}: its name is not the UTF-8 that it promises") from error
    return Member(text, offset, entry.packed, plain)
