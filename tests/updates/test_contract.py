"""The contract of update types, for those that come with the package."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from theta_daemon.tensor import CHUNK_WORDS, DTYPES, TensorSpec
from theta_daemon.testing.updates import Case, UpdateContract, any_cases, special_words
from theta_daemon.updates.base import Update
from theta_daemon.updates.constant import Constant
from theta_daemon.updates.delta import Delta
from theta_daemon.updates.dense import Dense
from theta_daemon.updates.sparse import Sparse


def small_cases() -> Iterator[Case]:
    """A compressible float, a complex and an integer value with few, near and many changes."""
    rng = np.random.default_rng(7)
    for name, elements in (("F32", 300), ("BF16", 700), ("C64", 90), ("I64", 120), ("U8", 500)):
        spec = TensorSpec(DTYPES[name], (elements,))
        previous = (rng.standard_normal(spec.words) * 0.02).astype("<f4").view("<u4").astype(spec.dtype.word_dtype)
        few = previous.copy()
        few[5::50] += few.dtype.type(9)
        near = previous + rng.integers(0, 4, spec.words).astype(spec.dtype.word_dtype)
        yield Case(spec, previous, few)
        yield Case(spec, previous, near)
        yield Case(spec, previous, special_words(spec.dtype, spec.words))


def long_case() -> Case:
    """Two chunks and a bit; the middle one unchanged, the first listed, the last all changed."""
    spec = TensorSpec(DTYPES["BF16"], (2 * CHUNK_WORDS + 1000,))
    words = (np.random.default_rng(3).standard_normal(spec.words) * 0.02).astype("<f4").view("<u4") >> 16
    previous = words.astype("<u2")
    value = previous.copy()
    value[:CHUNK_WORDS:1000] ^= np.uint16(0x8001)
    value[2 * CHUNK_WORDS :] += np.uint16(1)
    return Case(spec, previous, value)


class TestDense(UpdateContract):
    """dense"""

    def make(self) -> Update:
        return Dense()

    def cases(self) -> Iterator[Case]:
        yield from small_cases()
        yield long_case()

    def test_takes_everything(self) -> None:
        """No value is declined."""
        assert all(Dense().encode(case.spec, case.value, None, None) is not None for case in any_cases())


class TestConstant(UpdateContract):
    """constant"""

    def make(self) -> Update:
        return Constant()

    def cases(self) -> Iterator[Case]:
        for dtype in DTYPES.values():
            for element in special_words(dtype, 12 * dtype.words).reshape(-1, dtype.words):
                spec = TensorSpec(dtype, (7, 3))
                yield Case(spec, np.zeros(spec.words, dtype.word_dtype), np.tile(element, 21))
        spec = TensorSpec(DTYPES["C64"], (CHUNK_WORDS,))
        element = np.array([1, 2], "<u4")
        yield Case(spec, np.zeros(spec.words, "<u4"), np.tile(element, CHUNK_WORDS))

    def test_declines_one_other_element_anywhere(self) -> None:
        """A -0.0 among zeros, first, last or in the middle, is no constant; nor is the empty value."""
        spec = TensorSpec(DTYPES["F32"], (200_000,))
        for place in (0, 70_000, 199_999):
            value = np.zeros(spec.words, "<u4")
            value[place] = 0x80000000
            assert Constant().encode(spec, value, None, None) is None
        assert Constant().encode(TensorSpec(DTYPES["F32"], (0,)), np.zeros(0, "<u4"), None, None) is None

    def test_is_a_few_bytes(self) -> None:
        """A record is as long as an element and a header, however many elements."""
        spec = TensorSpec(DTYPES["F32"], (1_000_000,))
        record = Constant().encode(spec, np.full(spec.words, 0x3F800000, "<u4"), None, None)
        assert record is not None
        assert len(record) == 8


class _IncrementalContract(UpdateContract):
    def cases(self) -> Iterator[Case]:
        yield from small_cases()
        yield long_case()

    def test_takes_everything(self) -> None:
        """No value is declined, whatever the previous one."""
        update = self.make()
        assert all(update.encode(case.spec, case.value, case.previous, None) is not None for case in any_cases())

    def test_an_unchanged_value_is_a_table(self) -> None:
        """Unchanged chunks have no bytes but their place in the table."""
        case = long_case()
        record = self.make().encode(case.spec, case.previous, case.previous, None)
        assert record is not None
        assert len(record) == 8 + 4 * case.spec.chunks


class TestSparse(_IncrementalContract):
    """sparse"""

    def make(self) -> Update:
        return Sparse()


class TestDelta(_IncrementalContract):
    """delta"""

    def make(self) -> Update:
        return Delta()


del _IncrementalContract
