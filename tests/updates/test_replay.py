"""Chains' parts: the compiled way and numpy's give the same values, and refuse the same parts."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from theta_daemon import codec
from theta_daemon.counters import Counters
from theta_daemon.errors import RecordError, ThetaError
from theta_daemon.filters.chain import Chain
from theta_daemon.filters.plan import Node
from theta_daemon.pointer import Located, RecordRef
from theta_daemon.store.base import BytesRecord
from theta_daemon.tensor import CHUNK_WORDS, DTYPES, Kind, TensorSpec, Words
from theta_daemon.updates.base import ChunkedUpdate, chunked_trailer
from theta_daemon.updates.delta import DELTA, Delta
from theta_daemon.updates.dense import Dense
from theta_daemon.updates.sparse import LISTED, REPLACED, Sparse

NAMES = ("F32", "BF16", "I32", "F64", "U8", "F8_E5M2", "I16")
UPDATES: dict[str, ChunkedUpdate] = {update.name: update for update in (Dense(), Sparse(), Delta())}

pytestmark = pytest.mark.skipif(codec._planes is None, reason="no compiler, so the package was installed without it")


def versions(spec: TensorSpec, depth: int, seed: int) -> Iterator[tuple[ChunkedUpdate, Words]]:
    """A dense value, then one with small differences, one with few changes, one that is another, one that is the same…"""
    random = np.random.default_rng(seed)
    words = np.frombuffer(random.bytes(spec.nbytes), spec.dtype.word_dtype)
    yield UPDATES["dense"], words
    for number in range(depth):
        words = words.copy()
        if number % 4 == 0:
            words += random.integers(0, 3, words.size).astype(words.dtype)
        elif number % 4 == 1:
            words[random.integers(0, words.size, max(1, words.size // 100))] ^= words.dtype.type(0x55)
        elif number % 4 == 2:
            words = np.frombuffer(random.bytes(spec.nbytes), spec.dtype.word_dtype)
        yield UPDATES["sparse" if number % 4 == 1 else "delta"], words


class Shelf:
    """Records by number."""

    def __init__(self, records: list[bytes]) -> None:
        self._records = records

    def record(self, ref: Located) -> BytesRecord:
        return BytesRecord(self._records[ref.record])


def shelved(spec: TensorSpec, depth: int, seed: int = 1) -> tuple[list[Node], list[bytes], Words]:
    """A chain, its records, and its value."""
    nodes: list[Node] = []
    records: list[bytes] = []
    before: Words | None = None
    for number, (update, words) in enumerate(versions(spec, depth, seed)):
        record = update.encode(spec, words, before, None)
        assert record is not None
        ref = RecordRef(f"{number:064}", number)
        nodes.append(Node(str(number), spec, update.name, ref, str(number - 1) if number else None, None, "p"))
        records.append(record)
        before = words
    assert before is not None
    return nodes, records, before


def rebuilt(nodes: list[Node], records: list[bytes]) -> bytes | str:
    """The value, or the words of refusal."""
    spec = nodes[0].spec
    words = np.zeros(spec.words, spec.dtype.word_dtype)
    try:
        Chain(nodes, None, Shelf(records), UPDATES.__getitem__, Counters()).fill(spec, 0, spec.words, words)
    except ThetaError as error:
        return error.message
    return words.tobytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [1, 70, 3000, CHUNK_WORDS + 5])
def test_both_ways_rebuild_a_chain(name: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of less than a block, of several, of two chunks; parts of all kinds, and empty ones."""
    nodes, records, value = shelved(TensorSpec(DTYPES[name], (count,)), 8)
    assert rebuilt(nodes, records) == value.tobytes()
    monkeypatch.setattr(codec, "_planes", None)
    assert rebuilt(nodes, records) == value.tobytes()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_both_ways_refuse_the_same_chains(data: st.DataObject) -> None:
    """Bytes changed, left out and added in a record anywhere, its table included: the same value or words of refusal."""
    spec = TensorSpec(DTYPES[data.draw(st.sampled_from(NAMES))], (data.draw(st.sampled_from([3, 300, 3000])),))
    nodes, records, _ = shelved(spec, 5, data.draw(st.integers(0, 5)))
    number = data.draw(st.integers(0, len(records) - 1))
    record = bytearray(records[number])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, min(len(record), data.draw(st.sampled_from([12, 4000])))))
        place = len(record) - place if data.draw(st.booleans()) else place
        record[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    records[number] = bytes(record)
    ways = codec._planes
    compiled = rebuilt(nodes, records)
    try:
        codec._planes = None  # type: ignore[assignment]
        assert rebuilt(nodes, records) == compiled
    finally:
        codec._planes = ways


def test_a_damaged_update_is_named() -> None:
    """Also from the middle of what is replayed in one call."""
    nodes, records, _ = shelved(TensorSpec(DTYPES["F32"], (500,)), 6)
    for number in range(7):
        for damaged in (b"", records[number][:-1], b"\x09" + records[number][1:] if number else b"\x09"):
            said = rebuilt(nodes, [*records[:number], damaged, *records[number + 1 :]])
            assert isinstance(said, str), "a damaged record was taken"
            assert said.startswith(f"parameter 'p', {nodes[number].update} update, object {number:064}")


def parts(spec: TensorSpec) -> list[tuple[bytes, bytes]]:
    """Script and part of a dense value and the three kinds of change."""
    random = np.random.default_rng(4)
    first, second = (np.frombuffer(random.bytes(spec.nbytes), spec.dtype.word_dtype) for _ in range(2))
    few = first.copy()
    few[7] ^= few.dtype.type(1)
    floats = spec.dtype.kind is Kind.FLOAT
    listed = Sparse().encode_chunk(spec, few, first)
    assert listed is not None and listed[0] == LISTED  # noqa: PT018
    return [
        (codec.PLANES, codec.encode_planes(first, rotate=floats)),
        (codec.CHANGES, listed),
        (codec.CHANGES, bytes((REPLACED,)) + codec.encode_planes(second, rotate=floats)),
        (codec.DIFFERENCES, bytes((DELTA,)) + codec.encode_planes(first, rotate=False)),
        (codec.CHANGES, b""),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_the_first_part_that_is_malformed_writes_nothing(name: str) -> None:
    """What is before it has been applied, and what follows has not; cut anywhere, and of a kind that may not stand there."""
    spec = TensorSpec(DTYPES[name], (200,))
    floats = spec.dtype.kind is Kind.FLOAT
    for script, part in parts(spec):
        tail = chunked_trailer(spec, [len(part)])
        cut = [(script, part[:end]) for end in range(1, len(part))] if part else []
        cut += [(script.upper(), whole) for whole in (part, part + tail[1:], b"\0" + part + tail, part + tail + b"\0")]
        cut += [(codec.CHANGES, bytes((DELTA,)) + part), (codec.DIFFERENCES, b"\x04"), (b"x", part)]
        for how, wrong in cut:
            words = np.arange(200).astype(spec.dtype.word_dtype)
            expected = words.copy()
            done = codec.replay(words, script + how + script, [part, wrong, part], floats=floats)
            assert codec.replay(expected, script.upper(), [part + tail], floats=floats) == 1
            assert done == 1
            assert words.tobytes() == expected.tobytes()


def test_what_is_no_call_is_an_error() -> None:
    planes = codec._planes
    words = np.zeros(8, "<u4")
    with pytest.raises(ValueError, match="script"):
        planes.replay(words, 4, b"pp", [b""], True, codec.decompress)
    with pytest.raises(ValueError, match="words"):
        planes.replay(words, 3, b"p", [b""], True, codec.decompress)
    with pytest.raises(TypeError):
        planes.replay(words, 4, b"p", [7], True, codec.decompress)  # type: ignore[list-item]

    def interrupted(_packed: memoryview, _size: int) -> bytes:
        raise KeyboardInterrupt

    def damaged(_packed: memoryview, _size: int) -> bytes:
        raise RecordError("damaged")

    section = bytes((codec.ZSTD, 0, 0, 0, 0))
    with pytest.raises(KeyboardInterrupt):
        planes.replay(words, 4, b"p", [section], True, interrupted)
    assert planes.replay(words, 4, b"p", [section], True, damaged) == 0
