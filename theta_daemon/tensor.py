"""What a parameter is: a dtype, a shape and raw little-endian bytes.

Codecs and updates look at a value as a flat array of unsigned *words*: the element's bits, or each half of a complex
element. `CHUNK_WORDS` is the grain of all work on values: records are encoded and decoded in such chunks, so that any
chunk of a value can be had without the rest of it.

Ground layer: numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[Any]
"""A one-dimensional array of `<u1`, `<u2`, `<u4` or `<u8`: the bits of a value or of a part of it."""

Buffer = bytes | bytearray | memoryview

CHUNK_WORDS: Final = 1 << 19
"""Words in a chunk (the last one of a value may be shorter). Part of the stored format."""

MAX_BYTES: Final = 1 << 62
"""No value is larger; keeps every size computation inside 63 bits."""


class Kind(Enum):
    """How the bits of a word are ordered."""

    FLOAT = "float"
    SIGNED = "signed"
    UNSIGNED = "unsigned"


@dataclass(frozen=True, slots=True)
class DType:
    """An element type. `word_bytes` is the size of one word; an element has `words` of them (2 for complex)."""

    name: str
    word_bytes: int
    kind: Kind
    words: int = 1

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.word_bytes * self.words

    @property
    def word_dtype(self) -> np.dtype[Any]:
        """The numpy dtype of a word: little-endian, unsigned."""
        return np.dtype(f"<u{self.word_bytes}")


def _table() -> dict[str, DType]:
    floats = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}
    floats |= dict.fromkeys(("F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ"), 1)
    types = [DType(name, size, Kind.FLOAT) for name, size in floats.items()]
    types += [DType(f"I{8 * size}", size, Kind.SIGNED) for size in (1, 2, 4, 8)]
    types += [DType(f"U{8 * size}", size, Kind.UNSIGNED) for size in (1, 2, 4, 8)]
    types += [DType("BOOL", 1, Kind.UNSIGNED), DType("C64", 4, Kind.FLOAT, 2), DType("C128", 8, Kind.FLOAT, 2)]
    return {dtype.name: dtype for dtype in types}


DTYPES: Final[dict[str, DType]] = _table()
"""Every element type this package knows, under safetensors' names (C64, C128 for complex)."""


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """dtype and shape of a value; `shape` holds non-negative integers, () is a scalar."""

    dtype: DType
    shape: tuple[int, ...]

    elements: int = field(init=False, repr=False, compare=False)
    words: int = field(init=False, repr=False, compare=False)
    """Words of the whole value."""
    nbytes: int = field(init=False, repr=False, compare=False)
    chunks: int = field(init=False, repr=False, compare=False)
    """Chunks of the value; none when it has no element."""

    label: str = field(init=False, repr=False, compare=False)
    """dtype and shape as a text, for keys: hashing that is cheaper."""

    def __post_init__(self) -> None:
        elements = math.prod(self.shape)
        words = elements * self.dtype.words
        object.__setattr__(self, "elements", elements)
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "nbytes", words * self.dtype.word_bytes)
        object.__setattr__(self, "chunks", -(-words // CHUNK_WORDS))
        object.__setattr__(self, "label", f"{self.dtype.name} {self.shape}")

    def chunk_index(self, start: int) -> int:
        """The chunk that word `start` is in."""
        return start // CHUNK_WORDS

    def chunk(self, index: int) -> tuple[int, int]:
        """Start and stop, in words, of chunk `index`."""
        start = index * CHUNK_WORDS
        return start, min(start + CHUNK_WORDS, self.words)

    def spans(self) -> Iterator[tuple[int, int]]:
        """Start and stop, in words, of every chunk in order."""
        return (self.chunk(index) for index in range(self.chunks))


def flat_bytes(nbytes: int) -> TensorSpec:
    """The spec of raw bytes without a better type: U8 of shape (nbytes,)."""
    return TensorSpec(DTYPES["U8"], (nbytes,))


def as_words(data: Buffer, dtype: DType) -> Words:
    """`data` (a whole number of words) as words, without a copy; read-only when `data` is."""
    return np.frombuffer(data, dtype=dtype.word_dtype)
