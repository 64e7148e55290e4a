"""The tensor cache: bounded in bytes, computed once, and never a reason to hang."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from theta_daemon.store.tensor_cache import CacheStats, TensorCache


class BoomError(Exception):
    pass


def start(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def finish(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a thread hangs"


def held(cache: TensorCache, digest: str) -> bytes | None:
    value = cache.get(digest)
    return None if value is None else bytes(value)


def test_the_budget_holds_and_the_oldest_goes_first() -> None:
    """Never more bytes than the budget; what was used last stays; counts say what happened."""
    cache = TensorCache(100)
    for name in "abc":
        cache.put(name, bytes(30))
    assert held(cache, "a") == bytes(30)
    cache.put("d", bytes(40))  # needs the room of b
    assert ("a" in cache, "b" in cache, "c" in cache, "d" in cache) == (True, False, True, True)
    assert cache.get("b") is None
    assert cache.stats() == CacheStats(budget_bytes=100, size_bytes=100, entries=3, hits=1, misses=1, evictions=1)


def test_a_value_beyond_the_budget_is_handed_out_but_not_kept() -> None:
    """Too large a value evicts nothing."""
    cache = TensorCache(100)
    cache.put("small", bytes(60))
    assert cache.put("large", bytes(101)).nbytes == 101
    assert "large" not in cache
    assert "small" in cache


def test_a_budget_of_nothing_keeps_nothing() -> None:
    """Budget 0 is a cache that is off, for empty values too."""
    cache = TensorCache(0)
    assert bytes(cache.get_or_compute("a", lambda: b"")) == b""
    assert bytes(cache.get_or_compute("a", lambda: b"xy")) == b"xy"
    assert cache.stats().entries == 0


def test_what_is_handed_out_cannot_be_changed() -> None:
    """Views are read-only, also of a value that was put as a bytearray."""
    cache = TensorCache(100)
    cache.put("a", bytearray(b"abc"))
    value = cache.get("a")
    assert value is not None
    with pytest.raises(TypeError):
        value[0] = 1


def test_pinned_values_stay_and_count() -> None:
    """A pinned value is not evicted and takes its room from the budget; unpinned it is an ordinary entry again."""
    cache = TensorCache(100)
    cache.put("a", bytes(60))
    with cache.pinned("a") as value:
        assert value is not None
        assert cache.pin("a") is not None
        cache.put("b", bytes(50))
        assert "b" not in cache
        cache.put("c", bytes(40))
        assert cache.stats().size_bytes == 100
        cache.unpin("a")
        cache.clear()
        assert held(cache, "a") == bytes(60)
    cache.put("b", bytes(50))
    assert "a" not in cache
    with cache.pinned("nowhere") as nothing:
        assert nothing is None


def test_a_value_is_computed_once_for_all_who_ask() -> None:
    """Eight threads ask at once; one computes, all have the value, though the cache is too small to keep it."""
    for budget in (1000, 10):
        cache = TensorCache(budget)
        computing, release = threading.Event(), threading.Event()
        calls: list[int] = []
        values: list[bytes] = []

        def compute(computing: threading.Event = computing, release: threading.Event = release) -> bytes:
            calls.append(1)  # noqa: B023
            computing.set()
            assert release.wait(20)
            return bytes(500)

        def ask(cache: TensorCache = cache, compute: Callable[[], bytes] = compute) -> None:
            values.append(bytes(cache.get_or_compute("a", compute)))  # noqa: B023

        threads = [start(ask)]
        assert computing.wait(20)
        threads += [start(ask) for _ in range(7)]
        while cache.stats().misses < 8:  # all have looked and found it in the making
            time.sleep(0.001)
        release.set()
        finish(*threads)
        assert len(calls) == 1
        assert values == [bytes(500)] * 8


def test_a_failure_is_only_the_failing_ones() -> None:
    """When the one who computes fails, it alone sees the error; a waiter computes the value itself."""
    cache = TensorCache(100)
    computing, release = threading.Event(), threading.Event()
    seen: list[object] = []

    def fail() -> bytes:
        computing.set()
        assert release.wait(20)
        raise BoomError

    def first() -> None:
        with pytest.raises(BoomError):
            cache.get_or_compute("a", fail)
        seen.append("boom")

    def second() -> None:
        seen.append(bytes(cache.get_or_compute("a", lambda: b"good")))

    threads = [start(first)]
    assert computing.wait(20)
    threads.append(start(second))
    while cache.stats().misses < 2:
        time.sleep(0.001)
    release.set()
    finish(*threads)
    assert set(seen) == {"boom", b"good"}
    assert held(cache, "a") == b"good"


def test_two_sessions_whose_histories_cross_do_not_wait_for_each_other() -> None:
    """One computes A by way of B, the other B by way of A: both end, with the right values."""
    cache = TensorCache(100)
    meet = threading.Barrier(2, timeout=20)
    results: dict[str, bytes] = {}

    def session(own: str, other: str) -> None:
        def compute() -> bytes:
            meet.wait()  # both flights are under way
            return bytes(cache.get_or_compute(other, other.encode)) and own.encode()

        results[own] = bytes(cache.get_or_compute(own, compute))

    finish(start(lambda: session("A", "B")), start(lambda: session("B", "A")))
    assert results == {"A": b"A", "B": b"B"}


def test_many_threads_keep_the_books_straight() -> None:
    """After a stampede of gets, puts and pins the size is the sum of the entries and within the budget."""
    cache = TensorCache(1000)

    def work(seed: int) -> None:
        for step in range(500):
            name = str((seed * 31 + step * 17) % 40)
            size = 10 + int(name) * 3
            if step % 3 == 0:
                with cache.pinned(name) as value:
                    assert value is None or value.nbytes == size
            else:
                assert cache.get_or_compute(name, lambda size=size: bytes(size)).nbytes == size  # type: ignore[misc]

    finish(*[start(lambda seed=seed: work(seed)) for seed in range(6)])  # type: ignore[misc]
    stats = cache.stats()
    assert stats.size_bytes == sum(10 + number * 3 for number in range(40) if str(number) in cache) <= 1000
    assert stats.entries == sum(str(number) in cache for number in range(40))


def test_a_large_value_is_wanted_from_its_second_use_on() -> None:
    """A small one, or one with several readers, at once; what would fill a quarter of the cache, never."""
    cache = TensorCache(100 << 20)
    assert not cache.wants("large", 1 << 20, shared=False)
    assert cache.wants("large", 1 << 20, shared=False)
    assert cache.wants("shared", 1 << 20, shared=True)
    assert cache.wants("small", 1 << 10, shared=False)
    assert not any(cache.wants("huge", 26 << 20, shared=True) for _ in range(3))
    assert cache.stats().size_bytes == 0
