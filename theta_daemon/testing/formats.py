"""The contract that every checkpoint format keeps, as a test class to subclass.

    class TestMyFormat(FormatContract):
        format = MyFormat()

        @pytest.fixture(params=[...])
        def sample(self, request): ...      # bytes of a good file of this format

Each test's docstring is the promise that it checks. Damage is drawn from a seed, so that a failure repeats itself.
"""

from __future__ import annotations

import random
import tracemalloc
from typing import ClassVar

import pytest

from theta_daemon.errors import FormatError
from theta_daemon.formats.base import Extent, Format, Source, checked
from theta_daemon.tensor import Buffer


class BytesSource(Source):
    """A checkpoint in memory that notes how much of it was read."""

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data).toreadonly()
        self.bytes_read = 0

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, offset: int, length: int) -> Buffer:
        if offset < 0 or length < 0 or offset + length > len(self._data):
            raise ValueError(f"read of {length} bytes at {offset} of {len(self._data)}")
        self.bytes_read += length
        return self._data[offset : offset + length]


def rebuilt(data: bytes, extents: list[Extent]) -> bytes:
    """`data` taken apart into literals and parameters and put together again, each used once."""
    parts = []
    position = 0
    for extent in extents:
        parts.append(data[position : extent.offset])
        parts.append(data[extent.offset : extent.offset + extent.spec.nbytes])
        position = extent.end
    parts.append(data[position:])
    return b"".join(parts)


def layout_or_none(candidate: Format, data: bytes) -> list[Extent] | None:
    """`candidate`'s layout of `data`, proven to be one; None when it raises FormatError. Nothing else may be raised."""
    source = BytesSource(data)
    try:
        extents = candidate.layout(source)
    except FormatError:
        return None
    assert checked(extents, len(data)) == extents
    assert rebuilt(data, extents) == data
    return extents


class FormatContract:
    """What `formats.base.Format` promises. A subclass sets `format` and gives the fixture `sample`."""

    format: ClassVar[Format]
    damaged: ClassVar[int] = 200
    """How many damaged versions of each sample are tried (an eighth of it for samples over 1 MiB)."""

    @pytest.fixture
    def sample(self) -> bytes:
        raise NotImplementedError

    def test_sample_is_laid_out(self, sample: bytes) -> None:
        """A good file has parameters, and literals plus parameters are the file."""
        assert self.format.matches(BytesSource(sample))
        assert layout_or_none(self.format, sample)

    def test_layout_repeats(self, sample: bytes) -> None:
        """The same bytes have the same layout, whoever asked before."""
        assert self.format.layout(BytesSource(sample)) == self.format.layout(BytesSource(bytearray(sample)))

    def test_cut_files(self, sample: bytes) -> None:
        """A file cut anywhere is laid out or refused with FormatError; `matches` never raises."""
        cuts = {*range(min(len(sample), 64)), *random.Random(1).sample(range(len(sample)), min(len(sample), 40))}
        for cut in sorted(cuts):
            self.format.matches(BytesSource(sample[:cut]))
            layout_or_none(self.format, sample[:cut])

    def test_trailing_bytes(self, sample: bytes) -> None:
        """A file with something behind it is laid out or refused with FormatError."""
        layout_or_none(self.format, sample + b"trailing")

    def test_damaged_files(self, sample: bytes) -> None:
        """A file with changed, lost and inserted bytes is laid out or refused with FormatError."""
        dice = random.Random(2)
        for _ in range(self.damaged if len(sample) < 1 << 20 else self.damaged // 8):
            data = bytearray(sample)
            for _ in range(dice.randint(1, 4)):
                # Metadata stands at the ends of most formats: damage there is worth more.
                reach = min(len(data), dice.choice([16, 256, 4096, len(data)]))
                at = dice.randrange(reach) if dice.random() < 0.5 else len(data) - 1 - dice.randrange(reach)
                match dice.randrange(4):
                    case 0:
                        data[at] = dice.randrange(256)
                    case 1:
                        data[at] = dice.choice([0, 1, 0x7F, 0x80, 0xFF])
                    case 2:
                        del data[at : at + dice.randint(1, 8)]
                    case _:
                        data[at:at] = bytes(dice.randint(1, 8))
                if not data:
                    break
            self.format.matches(BytesSource(data))
            layout_or_none(self.format, bytes(data))

    def test_foreign_bytes(self) -> None:
        """Bytes that are no checkpoint at all are refused with FormatError or laid out."""
        dice = random.Random(3)
        for size in (0, 1, 7, 8, 9, 10, 21, 22, 64, 5000):
            for data in (bytes(size), b"\xff" * size, dice.randbytes(size)):
                self.format.matches(BytesSource(data))
                layout_or_none(self.format, data)

    def test_memory(self, sample: bytes) -> None:
        """Laying out takes memory for the metadata, not for the parameters."""
        tracemalloc.start()
        try:
            extents = self.format.layout(BytesSource(sample))
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        metadata = len(sample) - sum(extent.spec.nbytes for extent in extents)
        assert peak < 200 * metadata + 2000 * len(extents) + (1 << 20)
