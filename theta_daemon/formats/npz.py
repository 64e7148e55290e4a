"""numpy's files: `.npy` (one array) and `.npz` (a zip of them).

A stored array of a simple dtype in the machine's usual byte order is a parameter under its member's name; an array in
Fortran order has its shape reversed, so that the shape is that of the bytes as they lie. Arrays of anything else
(objects, records, text, big-endian) and other members are raw bytes. A deflated member's parameter holds the *compressed*
bytes: deflating anew gives other bytes with another zlib.

Headers are matched against the one form numpy writes, never evaluated. Source: numpy.lib.format.
"""

from __future__ import annotations

import math
import re
from typing import ClassVar, Final

from theta_daemon.errors import FormatError
from theta_daemon.formats import zipfile_layout
from theta_daemon.formats.base import Extent, Format, Source, checked
from theta_daemon.formats.zipfile_layout import Member
from theta_daemon.tensor import DTYPES, MAX_BYTES, TensorSpec, flat_bytes

MAGIC: Final = b"\x93NUMPY"
MAX_HEADER_BYTES: Final = 10_000
"""numpy's own limit (`max_header_size`)."""

_HEADER: Final = re.compile(
    r"\{'descr': '([<|][a-z]\d{1,2})', 'fortran_order': (True|False), 'shape': \(((?:\d{1,19}L?(?:, \d{1,19}L?)*,?)?)\),? ?\}[ ]*\n?"
)
_DTYPES: Final = {
    **{f"<f{size}": f"F{8 * size}" for size in (2, 4, 8)},
    **{f"<i{size}": f"I{8 * size}" for size in (2, 4, 8)},
    **{f"<u{size}": f"U{8 * size}" for size in (2, 4, 8)},
    "|i1": "I8",
    "|u1": "U8",
    "|b1": "BOOL",
    "<c8": "C64",
    "<c16": "C128",
}


class Npy(Format):
    """One array, called `data`."""

    name: ClassVar[str] = "npy"

    def matches(self, source: Source) -> bool:
        return source.size >= 10 and bytes(source.read(0, 6)) == MAGIC

    def layout(self, source: Source) -> list[Extent]:
        spec, offset = _array(source, 0, source.size)
        # numpy.save may append several arrays to a file: what follows the first stays in the skeleton.
        return checked([Extent("data", spec or flat_bytes(source.size - offset), offset)], source.size)


class Npz(Format):
    """A zip of arrays."""

    name: ClassVar[str] = "npz"

    def matches(self, source: Source) -> bool:
        return source.size >= 22 and bytes(source.read(0, 4)) == zipfile_layout.MAGIC

    def layout(self, source: Source) -> list[Extent]:
        members = zipfile_layout.members(source)
        if not any(member.name.endswith(".npy") for member in members):
            raise FormatError("a zip file without arrays")
        return checked([_extent(source, member) for member in members], source.size)


def _extent(source: Source, member: Member) -> Extent:
    whole = Extent(member.name, flat_bytes(member.size), member.offset)
    if not member.plain or not member.name.endswith(".npy"):
        return whole
    try:
        spec, offset = _array(source, member.offset, member.end)
    except FormatError:
        return whole
    rest = member.end - offset
    return Extent(member.name[:-4], spec if spec is not None and spec.nbytes == rest else flat_bytes(rest), offset)


def _array(source: Source, start: int, end: int) -> tuple[TensorSpec | None, int]:
    """The spec of the array at `start` (None unless simple and complete before `end`), and where its data starts.

    Raises FormatError where no array header is.
    """
    if start + 12 > end:
        raise FormatError("no array header")
    head = bytes(source.read(start, 12))
    if head[:6] != MAGIC or head[6] not in (1, 2, 3):
        raise FormatError("no array header")
    at = start + (10 if head[6] == 1 else 12)
    length = int.from_bytes(head[8:10] if head[6] == 1 else head[8:12], "little")
    if length > MAX_HEADER_BYTES or at + length > end:
        raise FormatError("an array header that is too long")
    match = _HEADER.fullmatch(bytes(source.read(at, length)).decode("latin-1"))
    data = at + length
    if match is None or match.group(1) not in _DTYPES:
        return None, data
    shape = tuple(int(size) for size in re.findall(r"\d+", match.group(3)))
    if max(shape, default=0) >= MAX_BYTES or len(shape) > 64:
        return None, data
    dtype = DTYPES[_DTYPES[match.group(1)]]
    if math.prod(shape) * dtype.itemsize > end - data:
        return None, data
    return TensorSpec(dtype, shape[::-1] if match.group(2) == "True" else shape), data
