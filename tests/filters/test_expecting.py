"""The spool that expects what the index has: it drops only what is proven, and gives back all else byte for byte."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from theta_daemon.errors import RecordError, StoreError
from theta_daemon.filters.arriving import ArrivingSpool
from theta_daemon.filters.expecting import Expected, Match, Segment

LIMIT = 1 << 20
POOL = ThreadPoolExecutor(2)
PIECES = [300, 1_500_000, 0, 77, 2_000_000, 500_000, 16]
CONTENT = np.random.default_rng(1).bytes(sum(PIECES))


class Store:
    """The expected content, and how often it had to be read again."""

    def __init__(self, *, damaged: bool = False, content: bytes = CONTENT) -> None:
        self.reads = 0
        self._damaged = damaged
        self._content = content

    def stream(self) -> Iterator[bytes]:
        self.reads += 1
        if self._damaged:
            raise RecordError("object abc is damaged")
        for start in range(0, len(self._content), 123_457):
            yield self._content[start : start + 123_457]

    def expectation(self) -> Expected:
        segments = []
        position = 0
        for number, length in enumerate(PIECES):
            part = CONTENT[position : position + length]
            segments.append(Segment(length, blake3(part).hexdigest() if number % 2 else memoryview(part)))
            position += length
        return Expected(blake3(CONTENT).hexdigest(), segments, self.stream)


def spooled(content: bytes, store: Store, directory: Path, step: int = 65_516) -> ArrivingSpool:
    spool = ArrivingSpool(directory, lambda _: Match(directory, POOL, store.expectation()), LIMIT)
    for start in range(0, len(content), step):
        spool.write(memoryview(content)[start : start + step])
    return spool


def test_expected_content_needs_no_file_and_no_rebuilding(short_dir: Path) -> None:
    store = Store()
    spool = spooled(CONTENT, store, short_dir)
    assert (spool.size, spool.hexdigest()) == (len(CONTENT), blake3(CONTENT).hexdigest())
    assert spool.startswith(CONTENT[:17])
    assert not spool.startswith(b"{" * 17)
    assert spool.in_memory
    assert store.reads == 0
    spool.close()


@given(
    place=st.integers(0, len(CONTENT) - 1),
    cut=st.sampled_from([None, 0, 1, 299, 300, 301, 1_060_000, 1_500_300, 2_000_000, len(CONTENT) - 1]),
    tail=st.binary(max_size=9),
    step=st.sampled_from([65_516, 1, 777_777, 1 << 23]).filter(lambda step: step > 1),
)
def test_other_content_comes_back_byte_for_byte(
    tmp_path_factory: pytest.TempPathFactory, place: int, cut: int | None, tail: bytes, step: int
) -> None:
    """Changed anywhere, cut anywhere, longer, in any steps: what was dropped is there again."""
    content = bytearray(CONTENT[:cut])
    if place < len(content):
        content[place] ^= 1
    content += tail
    spool = spooled(bytes(content), Store(), tmp_path_factory.getbasetemp(), step)
    assert spool.size == len(content)
    assert spool.hexdigest() == blake3(content).hexdigest()
    assert bytes(spool.read(0, len(content))) == bytes(content)
    spool.close()


def test_expected_content_can_still_be_read(short_dir: Path) -> None:
    store = Store()
    spool = spooled(CONTENT, store, short_dir)
    assert spool.taker is not None
    assert bytes(spool.read(1_400_000, 1_000_000)) == CONTENT[1_400_000:2_400_000]
    assert spool.hexdigest() == blake3(CONTENT).hexdigest()
    assert store.reads == 1
    spool.close()


def test_a_store_that_cannot_give_the_unchanged_part_is_an_error_and_no_wrong_content(short_dir: Path) -> None:
    changed = bytearray(CONTENT)
    changed[-1] ^= 1
    with pytest.raises(StoreError, match="object abc is damaged") as caught:
        spooled(bytes(changed), Store(damaged=True), short_dir).hexdigest()
    assert caught.value.hint is not None


@pytest.mark.parametrize("place", [0, 299, 300, 1_500_299, 1_500_377, len(CONTENT) - 600_000])
@pytest.mark.parametrize("short", [False, True])
def test_what_comes_back_is_what_was_dropped_or_an_error(short_dir: Path, place: int, *, short: bool) -> None:
    """The store gives other bytes, or too few, and says nothing."""
    changed = bytearray(CONTENT)
    changed[-1] ^= 1
    rotten = bytearray(CONTENT)
    rotten[place] ^= 1
    store = Store(content=CONTENT[:place] if short else bytes(rotten))
    with pytest.raises(StoreError, match="rebuilt"):
        spooled(bytes(changed), store, short_dir).hexdigest()
    assert store.reads == 1


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("changed", [None, 0, 9_000_000, 17_999_999, 18_000_005])
def test_large_values_are_hashed_by_few_workers(short_dir: Path, workers: int, changed: int | None) -> None:
    """While they arrive; what hashes them never waits for what no worker is left to do."""
    expected = np.random.default_rng(2).bytes(36_000_010)
    lengths = [9_000_000, 9_000_000, 10, 18_000_000]
    segments = []
    position = 0
    for length in lengths:
        segments.append(Segment(length, blake3(expected[position : position + length]).hexdigest()))
        position += length
    content = bytearray(expected)
    if changed is not None:
        content[changed] ^= 1
    with ThreadPoolExecutor(workers) as pool:
        held = threading.Event()
        for _ in range(workers):
            pool.submit(held.wait, 30)  # so that all that is submitted meanwhile begins at once
        threading.Timer(0.2, held.set).start()
        expectation = Expected(blake3(expected).hexdigest(), segments, lambda: iter([expected]))
        spool = ArrivingSpool(short_dir, lambda _: Match(short_dir, pool, expectation), LIMIT)
        for start in range(0, len(content), 65_516):
            spool.write(memoryview(content)[start : start + 65_516])
        assert spool.hexdigest() == blake3(content).hexdigest()
        assert (spool.taker is None) == (changed is not None)
        assert b"".join(bytes(piece) for piece in spool.pieces()) == content
        spool.close()
