"""safetensors: an 8-byte length, a JSON header, and the tensors' bytes.

Laid out as found: keys in any order, blanks, gaps, zero-size tensors, trailing bytes. A dtype this package has no words
for (sub-byte ones, later inventions) becomes raw bytes. A header that the library itself would refuse (duplicate keys,
sizes that contradict offsets) is a FormatError. Source: https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
import math
from typing import Any, ClassVar, Final, NoReturn

from theta_daemon.errors import FormatError
from theta_daemon.formats.base import MAX_DIMENSIONS, MAX_PARAMETERS, Extent, Format, Source, checked
from theta_daemon.tensor import DTYPES, MAX_BYTES, TensorSpec, flat_bytes

MAX_HEADER_BYTES: Final = 100_000_000
"""The library's own limit."""

MAX_HEADER_ITEMS: Final = 4_000_000
"""Brackets and commas in a header: each may cost an object in memory. 65,536 tensors need 1.2 million."""


class Safetensors(Format):
    """Files of the safetensors library."""

    name: ClassVar[str] = "safetensors"

    def matches(self, source: Source) -> bool:
        if source.size < 10:
            return False
        head = bytes(source.read(0, 9))
        return head[8:] == b"{" and int.from_bytes(head[:8], "little") <= min(MAX_HEADER_BYTES, source.size - 8)

    def layout(self, source: Source) -> list[Extent]:
        if not self.matches(source):
            raise FormatError("no safetensors header")
        length = int.from_bytes(bytes(source.read(0, 8)), "little")
        return checked(self._extents(bytes(source.read(8, length))), source.size)

    def expected_layout(self, beginning: Source) -> list[Extent] | None:
        """The layout of a file of which only the beginning is there, if it will have no gaps and nothing behind."""
        head = bytes(beginning.read(0, min(9, beginning.size)))
        length = int.from_bytes(head[:8], "little")
        if head[8:] != b"{" or length > MAX_HEADER_BYTES or 8 + length > beginning.size:
            return None
        extents = self._extents(bytes(beginning.read(8, length)))
        size = max((extent.end for extent in extents), default=0)
        extents = checked(extents, size)
        return extents if sum(extent.spec.nbytes for extent in extents) == size - 8 - length else None

    def _extents(self, text: bytes) -> list[Extent]:
        header = _parse(text)
        if len(header) > MAX_PARAMETERS + 1:
            raise FormatError("the safetensors header has too many tensors")
        return [_extent(name, entry, 8 + len(text)) for name, entry in header.items() if name != "__metadata__"]


def metadata(source: Source, key: str) -> tuple[str | None, list[str]]:
    """The text under `key` in the metadata of a file that was laid out, and the tensors' names in the header's order."""
    length = int.from_bytes(bytes(source.read(0, 8)), "little")
    header = _parse(bytes(source.read(8, length)))
    texts = header.pop("__metadata__", None)
    text = texts.get(key) if isinstance(texts, dict) else None
    return (text if isinstance(text, str) else None), list(header)


def _parse(text: bytes) -> dict[str, Any]:
    if text.count(b"{") + text.count(b"[") + text.count(b",") > MAX_HEADER_ITEMS:
        raise FormatError("the safetensors header has too many items")
    try:
        header = json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the safetensors header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise FormatError("the safetensors header is no JSON object")
    return header


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise FormatError("the safetensors header has a key twice")
    return found


def _no_constant(text: str) -> NoReturn:
    raise FormatError(f"the safetensors header has {text}")


def _extent(name: str, entry: Any, start: int) -> Extent:
    wrong = FormatError(f"tensor {name!r}: its header entry is malformed")
    if not isinstance(entry, dict):
        raise wrong
    dtype: Any = entry.get("dtype")
    shape: Any = entry.get("shape")
    offsets: Any = entry.get("data_offsets")
    if not isinstance(dtype, str) or not _counts(shape) or not _counts(offsets) or len(offsets) != 2:
        raise wrong
    begin, end = offsets
    if end < begin or len(shape) > MAX_DIMENSIONS:
        raise wrong
    known = DTYPES.get(dtype)
    if known is None:
        return Extent(name, flat_bytes(end - begin), start + begin)
    if math.prod(shape) * known.itemsize != end - begin:
        raise wrong
    return Extent(name, TensorSpec(known, tuple(shape)), start + begin)


def _counts(value: Any) -> bool:
    """Whether `value` is a list of possible sizes; JSON's true is none."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item < MAX_BYTES for item in value)
