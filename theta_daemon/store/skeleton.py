"""Skeleton records: all bytes of a checkpoint that are not parameter data, cut where the parameters go.

```
version 1 | zero 1 | zero <u2 | literals <u4 | bytes of all literals <u8     16 bytes
one zstd frame: the literals' lengths, <u8 each, then their bytes
```

A checkpoint of n parameters has n + 1 literals, any of which may be empty. The frame must declare exactly the size that
the head implies, and the head no more than the caller allows, before anything is allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final

import zstandard
from blake3 import blake3

from theta_daemon.errors import RecordError
from theta_daemon.tensor import Buffer

_HEAD: Final = struct.Struct("<BBHIQ")
_VERSION: Final = 1
_LEVEL: Final = 12
_FAST_LEVEL: Final = 3
_LARGE_BYTES: Final = 64 << 20
"""Beyond this a skeleton is compressed fast: it is odd, and mostly incompressible data."""

MAX_LITERALS: Final = 1 << 24

MAX_BYTES: Final = 256 << 20
"""All literals of a skeleton together: it is held in memory. A checkpoint with more of them is stored as opaque."""

MAX_RECORD_BYTES: Final = MAX_BYTES + 8 * MAX_LITERALS + (4 << 20)
"""A record may be this much larger than what it holds (zstd does not shrink everything)."""


def encode_skeleton(literals: Sequence[Buffer]) -> bytes:
    """The record. Deterministic for a given zstd."""
    if not 1 <= len(literals) <= MAX_LITERALS:
        raise ValueError(f"a skeleton has 1 to {MAX_LITERALS} literals")
    total = sum(memoryview(literal).nbytes for literal in literals)
    if total > MAX_BYTES:
        raise ValueError(f"a skeleton has at most {MAX_BYTES} bytes")
    parts = list(pack_literals(literals))
    size = total + 8 * len(literals)
    compressor = zstandard.ZstdCompressor(level=_LEVEL if size <= _LARGE_BYTES else _FAST_LEVEL, write_checksum=False)
    stream = compressor.compressobj(size=size)
    pieces = [_HEAD.pack(_VERSION, 0, 0, len(literals), total)]
    pieces += [stream.compress(part) for part in parts]
    pieces.append(stream.flush())
    return b"".join(pieces)


def skeleton_digest(literals: Sequence[Buffer]) -> str:
    """BLAKE3 of what the record holds: the lengths and the bytes of all literals."""
    digest = blake3()
    for part in pack_literals(literals):
        digest.update(part)
    return digest.hexdigest()


def decode_skeleton(data: Buffer, max_bytes: int, literals: int | None = None) -> list[memoryview]:
    """The literals (exactly `literals` of them when given), which have at most `max_bytes` bytes together.

    Raises RecordError.
    """
    view = memoryview(data)
    if view.nbytes < _HEAD.size:
        raise RecordError(f"skeleton record of {view.nbytes} bytes is too short")
    version, zero, also_zero, count, total = _HEAD.unpack_from(view)
    if version != _VERSION:
        raise RecordError(f"skeleton version {version} is unknown", "update theta-daemon")
    if zero or also_zero or not 1 <= count <= MAX_LITERALS:
        raise RecordError("skeleton record has a malformed head")
    if literals is not None and count != literals:
        raise RecordError(f"skeleton has {count} literals where {literals} are needed")
    if total > max_bytes:
        raise RecordError(f"skeleton declares {total} bytes where the file has room for {max_bytes}")
    if total > MAX_BYTES:
        raise RecordError(f"skeleton declares {total} bytes, at most {MAX_BYTES} are possible")
    return unpack_literals(_inflate(view[_HEAD.size :], total + 8 * count), count)


def pack_literals(literals: Sequence[Buffer]) -> Iterator[Buffer]:
    """What a record holds before it is compressed, in parts: the bytes that `skeleton_digest` is the digest of.

    As long as 8 bytes a literal and the literals together.
    """
    yield struct.pack(f"<{len(literals)}Q", *(memoryview(literal).nbytes for literal in literals))
    yield from literals


def unpack_literals(payload: Buffer, literals: int) -> list[memoryview]:
    """The `literals` literals that `pack_literals` was given, as views. Raises RecordError."""
    view = memoryview(payload)
    position = 8 * literals
    if view.nbytes < position:
        raise RecordError("skeleton is too short for its lengths")
    lengths = struct.unpack_from(f"<{literals}Q", view)
    if position + sum(lengths) != view.nbytes:
        raise RecordError("skeleton's lengths do not add up")
    found = []
    for length in lengths:
        found.append(view[position : position + length])
        position += length
    return found


def _inflate(frame: memoryview, size: int) -> bytes:
    try:
        # The frame's own size decides what zstandard allocates, so it is looked at first.
        if zstandard.frame_content_size(frame) != size:
            raise RecordError("skeleton's frame does not have the declared size")
        return zstandard.ZstdDecompressor().decompress(frame, max_output_size=size, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise RecordError(f"skeleton cannot be decompressed: {error}") from error
