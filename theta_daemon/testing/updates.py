"""The contract of an update type, as tests. A plug-in's author subclasses `UpdateContract` and says what `update` it is of.

    class TestMyUpdate(UpdateContract):
        def make(self) -> Update:
            return MyUpdate()

        def cases(self) -> Iterator[Case]:
            yield Case(spec, previous, value, hint)     # values that this type must take

The tests go through `encode`, `open` and `apply` only, as clean and smudge do.
"""

from __future__ import annotations

import tracemalloc
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from theta_daemon.errors import RecordError
from theta_daemon.tensor import CHUNK_WORDS, DTYPES, DType, TensorSpec, Words
from theta_daemon.updates.base import Decoder, Hint, Update

_GUARD = 64
"""Words before and behind a value that decoding must leave alone."""


@dataclass(frozen=True, slots=True)
class BytesRecord:
    """A record in memory."""

    data: bytes

    @property
    def length(self) -> int:
        return len(self.data)

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > len(self.data):
            raise RecordError(f"{length} bytes from {offset} of a record of {len(self.data)}")
        return self.data[offset : offset + length]


@dataclass(frozen=True, slots=True)
class Case:
    """A value, the previous one (ignored by self-contained types) and a hint."""

    spec: TensorSpec
    previous: Words
    value: Words
    hint: Hint | None = None


def special_words(dtype: DType, count: int, seed: int = 0) -> Words:
    """`count` words of random bits, the first of them zeros, ones, infinities, NaNs with payloads, subnormals, extremes."""
    bits = 8 * dtype.word_bytes
    top = 1 << (bits - 1)
    exponent = {1: 0x7C, 2: 0x7F80, 4: 0x7F800000, 8: 0x7FF << 52}[dtype.word_bytes]
    half = {1: 0x78, 2: 0x7C00, 4: 0x3F800000, 8: 0x3FF << 52}[dtype.word_bytes]
    chosen = [0, top, top - 1, (top << 1) - 1, 1, top + 1, exponent, exponent | top, exponent + 1, half, half | top, 3]
    rng = np.random.default_rng(seed)
    words = np.frombuffer(rng.bytes(count * dtype.word_bytes), dtype.word_dtype).copy()
    words[: len(chosen)] = chosen[:count]
    return words


def any_cases() -> Iterator[Case]:
    """Values of every dtype, unlike, like and equal to their previous ones; a type may decline them, but not spoil them."""
    for number, dtype in enumerate(DTYPES.values()):
        for shape in ((0,), (), (3, 5), (64, 48)):
            spec = TensorSpec(dtype, shape)
            previous = special_words(dtype, spec.words, number)
            near = previous + (np.arange(spec.words) % 3).astype(dtype.word_dtype)
            few = previous.copy()
            few[::97] = special_words(dtype, few[::97].size, number + 1)
            filled = np.tile(special_words(dtype, dtype.words, number), spec.elements)
            for value in (special_words(dtype, spec.words, number + 100), near, few, previous.copy(), filled):
                yield Case(spec, previous, value)


class UpdateContract(ABC):
    """What holds for every update type."""

    @abstractmethod
    def make(self) -> Update:
        """The update type under test."""

    @abstractmethod
    def cases(self) -> Iterator[Case]:
        """Values that the type must take; at least one of more than one chunk if it can take such."""

    def test_has_a_usable_name(self) -> None:
        """The name can stand in a pointer."""
        name = self.make().name
        assert name
        assert name.lower() == name
        assert name.replace("-", "").isalnum()
        assert len(name) <= 64

    def test_takes_its_cases_bit_for_bit(self) -> None:
        """Whole, chunk by chunk backwards, and on threads: the same bits."""
        update = self.make()
        for case in self.cases():
            record = encode(update, case)
            assert record is not None, case
            decoder = update.open(case.spec, BytesRecord(record))
            spans = list(case.spec.spans()) if decoder.chunked else [(0, case.spec.words)]
            for chosen in ([(0, case.spec.words)], spans[::-1]):
                assert_same(decode(decoder, case, chosen), case.value)
            with ThreadPoolExecutor(4) as pool:
                for result in pool.map(decode, [decoder] * 4, [case] * 4, [spans] * 4):
                    assert_same(result, case.value)

    def test_is_exact_or_declines(self) -> None:
        """No dtype and no special value comes back changed; what the type cannot hold it declines."""
        update = self.make()
        for case in any_cases():
            record = encode(update, case)
            if record is not None:
                decoder = update.open(case.spec, BytesRecord(record))
                assert_same(decode(decoder, case, [(0, case.spec.words)]), case.value)

    def test_gives_the_same_record_again(self) -> None:
        """Encoding depends on the value alone, and a decoded value encodes to the same bytes."""
        for case in self.cases():
            assert encode(self.make(), case) == encode(self.make(), case)

    def test_damaged_records_are_errors_or_wrong_values(self) -> None:
        """Cut anywhere, bits flipped, bytes set: RecordError, or a value that the digest will refuse; never worse."""
        update = self.make()
        for case in self.cases():
            record = encode(update, case)
            assert record is not None
            for damaged in _some(damages(record), case):
                _attempt(update, case, damaged)

    def test_damaged_records_cost_no_memory(self) -> None:
        """No count or size in a record makes decoding allocate beyond a small multiple of the value."""
        update = self.make()
        for case in self.cases():
            record = encode(update, case)
            assert record is not None
            for damaged in _some(list(damages(record))[-64:], case):
                _attempt(update, case, damaged)  # what a thread allocates once is there now
                tracemalloc.start()
                try:
                    _attempt(update, case, damaged)
                    peak = tracemalloc.get_traced_memory()[1]
                finally:
                    tracemalloc.stop()
                assert peak < 24 * min(case.spec.nbytes, CHUNK_WORDS * 16) + 2 * case.spec.nbytes + (1 << 20)

    def test_refuses_records_of_another_shape(self) -> None:
        """A record under a spec of another size gives an error or a wrong value, and writes nowhere else."""
        update = self.make()
        for case in self.cases():
            record = encode(update, case)
            assert record is not None
            for dtype in DTYPES.values():
                for elements in (0, 1, case.spec.elements, case.spec.elements + 1):
                    spec = TensorSpec(dtype, (elements,))
                    if spec.words <= 2 * CHUNK_WORDS:
                        words = np.zeros(spec.words, dtype.word_dtype)
                        _attempt(update, Case(spec, words, words), record)


def encode(update: Update, case: Case) -> bytes | None:
    """The record, from arrays that cannot be written."""
    value, previous = case.value.copy(), case.previous.copy()
    value.setflags(write=False)
    previous.setflags(write=False)
    return update.encode(case.spec, value, previous if update.incremental else None, case.hint)


def decode(decoder: Decoder, case: Case, spans: list[tuple[int, int]]) -> Words:
    """The value, decoded in place between guard words that must survive."""
    guarded = np.full(case.spec.words + 2 * _GUARD, 0xA5, case.spec.dtype.word_dtype)
    words = guarded[_GUARD : _GUARD + case.spec.words]
    words[:] = case.previous
    try:
        for start, stop in spans:
            if stop > start:
                decoder.apply(start, stop, words[start:stop])
    finally:
        assert np.all(guarded[:_GUARD] == 0xA5)
        assert np.all(guarded[_GUARD + case.spec.words :] == 0xA5)
    return words


def damages(record: bytes) -> Iterator[bytes]:
    """Damaged copies: cut short and, in long records only near both ends and at some places between, changed bytes."""
    places: Sequence[int] = range(len(record))
    if len(record) > 400:
        ends = [*range(48), *range(len(record) - 48, len(record))]
        places = sorted({*ends, *range(48, len(record) - 48, len(record) // 16)})
    for place in places:
        yield record[:place]
        changed = bytearray(record)
        changed[place] ^= 1 << (place % 8)
        yield bytes(changed)
        changed[place] = 0xFF
        yield bytes(changed)
    yield record + b"\0"
    for place in range(0, min(len(record), 64), 4):
        for word in (b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\0"):
            yield record[:place] + word + record[place + 4 :]
            end = len(record) - place
            yield record[: max(end - 4, 0)] + word + record[end:]


def _some(damaged: Iterable[bytes], case: Case) -> list[bytes]:
    """All of them for a small value, one in twenty for one that takes its time."""
    return list(damaged)[:: 20 if case.spec.words > 1 << 16 else 1]


def assert_same(result: Words, value: Words) -> None:
    """The same bits."""
    assert result.tobytes() == value.tobytes()


def _attempt(update: Update, case: Case, record: bytes) -> None:
    """Decode a damaged record; only RecordError may come of it."""
    try:
        decoder = update.open(case.spec, BytesRecord(record))
        decode(decoder, case, [(0, case.spec.words)])
    except RecordError:
        pass
