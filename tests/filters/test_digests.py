"""Digests of what several threads bring: the same as of the whole, whatever the order."""

from __future__ import annotations

import itertools
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from theta_daemon.filters.digests import OrderedDigest, StreamDigest


def test_parts_in_every_order() -> None:
    """All orders of five parts give the digest of the whole."""
    parts = [bytes([number]) * (number * 1000) for number in range(5)]
    for order in itertools.permutations(range(5)):
        digest = OrderedDigest(5)
        for index in order:
            digest.put(index, parts[index])
        assert digest.hexdigest() == blake3(b"".join(parts)).hexdigest()


@given(sizes=st.lists(st.integers(0, 700_000), max_size=12))
def test_a_stream(sizes: list[int]) -> None:
    """Buffers of any sizes that pass by, hashed by three threads: the digest of all of them one after the other."""
    buffers = [bytes([number]) * size for number, size in enumerate(sizes)]
    with ThreadPoolExecutor(3) as pool:
        digest = StreamDigest(pool.submit)
        for buffer in buffers:
            digest.update(buffer)
        assert digest.hexdigest() == blake3(b"".join(buffers)).hexdigest()


def test_a_pool_that_is_given_up() -> None:
    """Work that the pool throws away is an error, not a digest of less."""
    pool = ThreadPoolExecutor(1)
    digest = StreamDigest(pool.submit)
    digest.update(b"something")
    pool.submit(lambda: pool.shutdown(wait=False, cancel_futures=True)).result()
    with pytest.raises((CancelledError, RuntimeError)):
        digest.hexdigest()
