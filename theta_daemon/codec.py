"""Byte planes and zstd: the bytes of one chunk of words.

The words are cut into planes (all lowest bytes, all second lowest, …), because bytes of one significance resemble each
other and bytes of different significance do not. For floats the top sixteen bits are first rotated left by one, which puts
the eight bits after the sign, the exponent, into one plane. The lower bits stay where they are, so that values which once
were of a shorter type keep their planes of zeros.

An encoded chunk is one section a plane, the lowest plane first. A section is a byte that says how, then:

- RAW: the plane;
- CONSTANT: the one byte of which all of the plane is made;
- ZSTD: `<u4` length, then one zstd frame that declares exactly the plane's size.

Rules: what is written depends on the words and on zstd's version alone. Whatever is read, nothing is allocated before its
size is known to be the plane's; anything off is a RecordError. With which parameters a plane was compressed is not
recorded: a frame tells its decoder all. Knows no dtype, no update, no record.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np
import zstandard

from theta_daemon.errors import RecordError
from theta_daemon.tensor import CHUNK_WORDS, Buffer, Words

RAW: Final = 0
CONSTANT: Final = 1
ZSTD: Final = 2

PLANES: Final = b"p"
"""A chunk's part that is the chunk, as `encode_planes` gave it."""
CHANGES: Final = b"c"
"""A chunk's part as `updates.sparse` describes it."""
DIFFERENCES: Final = b"d"
"""A chunk's part as `updates.delta` describes it."""

_LENGTH: Final = struct.Struct("<I")
_SAMPLE_PIECES: Final = 4
_SAMPLE_PIECE: Final = 4096
_MIN_GAIN: Final = 0.02
"""A plane that zstd shrinks by less is kept raw: reading it then costs nothing."""
_MATCHES_PAY: Final = 0.97
"""Less than three per cent would not pay for reading at half the speed."""

_TINY: Final = 64
"""A frame's head alone costs more than a shorter plane could gain."""

_ARENA_LIMIT: Final = 8 * 8 * CHUNK_WORDS
"""Bytes of temporaries that a thread keeps."""


try:
    from theta_daemon import _planes
except ImportError:  # no compiler was at hand when the package was installed: slower, but the same
    _planes = None  # type: ignore[assignment]


class _Thread(threading.local):
    """One thread's zstd contexts (making one costs more than a use of it) and its memory for temporaries."""

    def __init__(self) -> None:
        # Nearly Huffman alone: on exponent planes smaller and several times faster than zstd's levels. target_length must
        # stay unset: together with this strategy it turns Huffman off.
        entropy = zstandard.ZstdCompressionParameters(
            strategy=zstandard.STRATEGY_FAST, min_match=7, hash_log=6, window_log=17, write_content_size=True
        )
        self.entropy = zstandard.ZstdCompressor(compression_params=entropy)
        # The least that still finds both: what it cannot shrink is noise.
        quick = zstandard.ZstdCompressionParameters(
            strategy=zstandard.STRATEGY_FAST, min_match=6, hash_log=16, window_log=20, write_content_size=True
        )
        self.quick = zstandard.ZstdCompressor(compression_params=quick)
        self.matches = zstandard.ZstdCompressor(level=3, write_content_size=True)
        self.decompressor = zstandard.ZstdDecompressor(max_window_size=1 << 27)
        self._arena = np.empty(0, np.uint8)
        self._used = 0
        self._wanted = 0

    @contextmanager
    def temporaries(self) -> Iterator[None]:
        """What `take` gives inside is valid until the end of the block; blocks nest."""
        start = self._used
        if start == 0 and self._wanted > self._arena.size:
            self._arena = np.empty(self._wanted, np.uint8)
        try:
            yield
        finally:
            self._wanted = min(max(self._wanted, self._used), _ARENA_LIMIT)
            self._used = start

    def take(self, words: int, width: int) -> Words:
        """Uninitialised memory for `words` words of `width` bytes, from the arena where it suffices."""
        dtype = np.dtype(f"<u{width}")
        start = self._used
        self._used = start + -(-words * width // 64) * 64
        if self._used > self._arena.size:
            return np.empty(words, dtype)
        return self._arena[start : start + words * width].view(dtype)


THREAD: Final = _Thread()


def encode_planes(words: Words, *, rotate: bool) -> bytes:
    """`words` as planes; `rotate` for floats (it makes no difference for words of one byte)."""
    with THREAD.temporaries():
        sections: list[Buffer] = []
        for plane in _split(np.ascontiguousarray(words), rotate=rotate):
            sections += _encode_plane(plane)
        return b"".join(sections)


def decode_planes(data: Buffer, words: Words, *, rotate: bool) -> None:
    """Fill `words` with what `encode_planes` was given. Raises RecordError; `words` then holds anything."""
    if _planes is not None and words.size and _planes.join(words, words.itemsize, data, rotate, decompress):
        return
    # The numpy way, which also says what is wrong.
    rest = memoryview(data)
    planes: list[Words] = []
    for _ in range(words.itemsize):
        plane, rest = _decode_plane(rest, words.size)
        planes.append(plane)
    if len(rest):
        raise RecordError(f"{len(rest)} bytes follow the last plane of a chunk")
    if words.size:
        with THREAD.temporaries():
            _merge(planes, words, rotate=rotate)


def equal(words: Words, others: Words) -> bool:
    """Whether these are the same words."""
    if _planes is None:
        return np.array_equal(words, others)
    return _planes.equal(np.ascontiguousarray(words), np.ascontiguousarray(others))


def replays() -> bool:
    """Whether there is a compiled way to `replay`."""
    return _planes is not None


def replay(words: Words, scripts: bytes, parts: Sequence[Buffer], *, floats: bool) -> int:
    """Apply chunks' parts of records to `words`, in order, by the compiled way; how many were.

    The letter at the same place in `scripts` (`PLANES`, …) says what may stand in a part; a capital, that it is the whole
    record of a value of one chunk (`updates.base.CHUNK_TRAILER` follows the part). Fewer than all where there is no
    compiled way, or where the next part is malformed or damaged: that one has written nothing, and numpy's way says why.
    """
    if _planes is None or not words.size:
        return 0
    return _planes.replay(words, words.itemsize, scripts, parts, floats, decompress)


def compress(data: Buffer) -> bytes:
    """One zstd frame with `data`, by the way that suits it: entropy alone, or matches where a sample of it has them."""
    long = len(data) > 2 * _SAMPLE_PIECES * _SAMPLE_PIECE
    sample = _sample(memoryview(data)) if long else b""
    sampled = len(THREAD.entropy.compress(sample))
    noise = sampled > (1 - _MIN_GAIN) * len(sample)
    if long and noise:
        # Most planes are noise through and through. Matches in what looks like it (a table and its mirror image) are far
        # apart, no sample shows them: all of it is looked at, in the way that gives up fastest.
        quick: bytes = THREAD.quick.compress(data)
        if len(quick) > (1 - _MIN_GAIN) * len(data):
            return quick
    entropy: bytes = THREAD.entropy.compress(data)
    if long and not noise and len(THREAD.matches.compress(sample)) > _MATCHES_PAY * sampled:
        return entropy
    matches: bytes = THREAD.matches.compress(data)
    return matches if len(matches) < _MATCHES_PAY * len(entropy) else entropy


def decompress(data: Buffer, size: int) -> bytes:
    """The `size` bytes in one zstd frame. Raises RecordError, before anything is allocated if the frame says another size."""
    try:
        if zstandard.frame_content_size(data) != size:
            raise RecordError(f"a zstd frame does not hold the {size} bytes that it should")
        plain: bytes = THREAD.decompressor.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise RecordError(f"a zstd frame is damaged: {error}") from error
    if len(plain) != size:
        raise RecordError(f"a zstd frame gave {len(plain)} bytes, not {size}")
    return plain


def _sample(data: memoryview) -> bytes:
    """Pieces from all over `data`, always the same ones."""
    step = (len(data) - _SAMPLE_PIECE) // (_SAMPLE_PIECES - 1)
    return b"".join(data[i * step : i * step + _SAMPLE_PIECE] for i in range(_SAMPLE_PIECES))


def _encode_plane(plane: Words) -> list[Buffer]:
    """The section of one plane."""
    if plane.size and plane[0] == plane[-1] and not np.any(plane != plane[0]):
        return [bytes((CONSTANT, plane[0]))]
    if plane.size >= _TINY:
        frame = compress(plane.data)
        if len(frame) + _LENGTH.size <= (1 - _MIN_GAIN) * plane.size:
            return [bytes((ZSTD,)) + _LENGTH.pack(len(frame)), frame]
    return [bytes((RAW,)), plane.data]


def _decode_plane(data: memoryview, size: int) -> tuple[Words, memoryview]:
    """The first plane in `data` (of shape (1,) when it is constant), and what follows it."""
    if not len(data):
        raise RecordError("a chunk ends before its last plane")
    how, data = data[0], data[1:]
    if how == ZSTD:
        if len(data) < _LENGTH.size:
            raise RecordError("a chunk ends inside a plane's length")
        length = _LENGTH.unpack_from(data)[0]
        data = data[_LENGTH.size :]
        if length > len(data):
            raise RecordError(f"a plane has {length} bytes, {len(data)} are left")
        plain: Buffer = decompress(data[:length], size)
    elif how in (RAW, CONSTANT):
        length = size if how == RAW else 1
        if length > len(data):
            raise RecordError(f"a plane has {length} bytes, {len(data)} are left")
        plain = data[:length]
    else:
        raise RecordError(f"a plane says that it is encoded in way {how}, which is not known")
    return np.frombuffer(plain, np.uint8), data[length:]


def _split(words: Words, *, rotate: bool) -> list[Words]:
    """The planes of `words`, lowest first; temporaries of the thread.

    By halves (four bytes to two, two to one), because narrowing and shifting are vectorised by numpy and picking each
    n-th byte is not.
    """
    width = words.itemsize
    if width == 1:
        return [words]
    if _planes is not None:
        planes = [THREAD.take(words.size, 1) for _ in range(width)]
        _planes.split(words, planes, rotate)
        return planes
    kind = words.dtype.type
    scratch = THREAD.take(words.size, width)
    if rotate and width == 2:
        rotated = THREAD.take(words.size, width)
        np.right_shift(words, kind(15), out=scratch)
        np.multiply(words, kind(2), out=rotated)
        np.bitwise_or(rotated, scratch, out=rotated)
        words = rotated
    low = THREAD.take(words.size, width // 2)
    high = THREAD.take(words.size, width // 2)
    np.copyto(low, words, casting="unsafe")
    np.right_shift(words, kind(4 * width), out=scratch)
    np.copyto(high, scratch, casting="unsafe")
    return [*_split(low, rotate=False), *_split(high, rotate=rotate)]


def _merge(planes: list[Words], words: Words, *, rotate: bool) -> None:
    """Fill `words` with the planes that `_split` gave."""
    width = words.itemsize
    if width == 1:
        np.copyto(words, planes[0])
        return
    kind = words.dtype.type
    low, high = planes[0], planes[-1]
    if width > 2:
        half = width // 2
        low, high = (THREAD.take(words.size, half) for _ in range(2))
        _merge(planes[:half], low, rotate=False)
        _merge(planes[half:], high, rotate=rotate)
    np.copyto(words, high)
    np.multiply(words, kind(1 << (4 * width)), out=words)
    np.bitwise_or(words, low, out=words)
    if rotate and width == 2:
        scratch = THREAD.take(words.size, width)
        np.right_shift(words, kind(1), out=scratch)
        np.multiply(words, kind(0x8000), out=words)
        np.bitwise_or(words, scratch, out=words)
