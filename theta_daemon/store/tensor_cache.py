"""Rebuilt values by digest, shared by all sessions of a process and bounded in bytes.

Rules:
- Values are immutable bytes; what is handed out is a read-only view and stays valid after eviction.
- A value that is pinned is not evicted, and counts against the budget; so does everything else in here, nothing outside.
- Single flight: who asks for a value that another thread is computing waits for it. A failure wakes the waiters, who then
  compute it themselves: each session reports its own error. A thread that is computing something itself never waits, it
  computes: A's history may lead through B and B's through A, in two sessions at once.
- Wait in session threads only: a pool whose workers all wait for work that is queued behind them stands still.
- Who rebuilds a value asks first whether it is worth keeping (`wants`): a large one is from its second use on, so that a
  checkout that nobody repeats does not cost the memory, and the time to get it, of a whole model.

Deleting everything in here at any time costs only time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from cachetools import LRUCache

from theta_daemon.tensor import Buffer

PATIENCE_SECONDS: Final = 60.0
"""Longer than this nobody waits for another session; it computes the value itself."""


_SMALL_BYTES: Final = 256 << 10
"""Values up to this size are always worth keeping."""

_MET: Final = 1 << 16
"""Digests of values that were not kept, of the last uses."""


@dataclass(frozen=True, slots=True)
class CacheStats:
    """What a cache holds and how it fared since it was made."""

    budget_bytes: int
    size_bytes: int
    entries: int
    hits: int
    misses: int
    evictions: int


@dataclass(slots=True)
class _Pinned:
    value: memoryview
    users: int


class _Flight:
    """A value being computed. The waiters take it from here: the cache may have no room for it."""

    __slots__ = ("landed", "value")

    def __init__(self) -> None:
        self.landed = threading.Event()
        self.value: memoryview | None = None


class TensorCache:
    """Values by digest within `budget_bytes`; 0 keeps none, but single flight works all the same."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self._lock = threading.Lock()
        self._values: LRUCache[str, memoryview] = LRUCache(max(budget_bytes, 1), getsizeof=_cost)
        self._pinned: dict[str, _Pinned] = {}
        self._pinned_bytes = 0
        self._flights: dict[str, _Flight] = {}
        self._own = threading.local()
        self._met: LRUCache[str, bool] = LRUCache(_MET)
        self._hits = self._misses = self._evictions = 0

    def get(self, digest: str) -> memoryview | None:
        """The value if it is here; counts a hit or a miss."""
        with self._lock:
            return self._lookup(digest)

    def __contains__(self, digest: str) -> bool:
        """Whether it is here; counts nothing, and leaves its age alone."""
        with self._lock:
            return digest in self._pinned or digest in self._values

    def digests(self) -> frozenset[str]:
        """Of all values that are here at this moment, for who has many to ask for."""
        with self._lock:
            return frozenset((*self._pinned, *self._values))

    def wants(self, digest: str, nbytes: int, *, shared: bool) -> bool:
        """Whether a value that is about to be rebuilt should be put in here. `shared`: several readers wait for it.

        Counts as a use of the value.
        """
        if nbytes * 4 > self.budget_bytes:
            return False
        if shared or nbytes <= _SMALL_BYTES:
            return True
        with self._lock:
            met = digest in self._met
            self._met[digest] = True
            return met

    def put(self, digest: str, value: Buffer) -> memoryview:
        """Keep `value`, which nobody changes any more, as far as the budget allows; a read-only view of it."""
        view = memoryview(value).cast("B").toreadonly()
        with self._lock:
            if digest not in self._pinned:
                self._store(digest, view)
        return view

    @contextmanager
    def pinned(self, digest: str) -> Iterator[memoryview | None]:
        """The value (None when it is not here), not evicted inside the `with`."""
        value = self.pin(digest)
        try:
            yield value
        finally:
            if value is not None:
                self.unpin(digest)

    def pin(self, digest: str) -> memoryview | None:
        """Like `get`, and not evicted before as many `unpin`."""
        with self._lock:
            value = self._lookup(digest)
            if value is None:
                return None
            if digest in self._pinned:
                self._pinned[digest].users += 1
            else:
                del self._values[digest]
                self._pinned[digest] = _Pinned(value, 1)
                self._pinned_bytes += _cost(value)
            return value

    def unpin(self, digest: str) -> None:
        """Undo one `pin` that returned a value."""
        with self._lock:
            pinned = self._pinned[digest]
            pinned.users -= 1
            if pinned.users == 0:
                del self._pinned[digest]
                self._pinned_bytes -= _cost(pinned.value)
                self._store(digest, pinned.value)

    def get_or_compute(self, digest: str, compute: Callable[[], Buffer]) -> memoryview:
        """The value from here, from another thread that is at it, or from `compute`, whose errors pass through."""
        while True:
            with self._lock:
                value = self._lookup(digest)
                if value is not None:
                    return value
                flight = self._flights.get(digest)
                if flight is None:
                    self._flights[digest] = flight = _Flight()
                    break
            if self._depth > 0 or not flight.landed.wait(PATIENCE_SECONDS):
                return self.put(digest, compute())
            if flight.value is not None:
                return flight.value
            # It failed there: try to become the one who computes.
        self._depth += 1
        try:
            flight.value = self.put(digest, compute())
            return flight.value
        finally:
            self._depth -= 1
            with self._lock:
                del self._flights[digest]
            flight.landed.set()

    def clear(self) -> None:
        """Drop all that is not pinned."""
        with self._lock:
            self._values.clear()

    def stats(self) -> CacheStats:
        with self._lock:
            size = int(self._values.currsize) + self._pinned_bytes
            entries = len(self._values) + len(self._pinned)
            return CacheStats(self.budget_bytes, size, entries, self._hits, self._misses, self._evictions)

    @property
    def _depth(self) -> int:
        """How many values this thread is computing."""
        return getattr(self._own, "depth", 0)

    @_depth.setter
    def _depth(self, depth: int) -> None:
        self._own.depth = depth

    def _lookup(self, digest: str) -> memoryview | None:
        pinned = self._pinned.get(digest)
        value = self._values.get(digest) if pinned is None else pinned.value
        if value is None:
            self._misses += 1
        else:
            self._hits += 1
        return value

    def _store(self, digest: str, value: memoryview) -> None:
        cost = _cost(value)
        if cost + self._pinned_bytes > self.budget_bytes:
            return
        self._values.pop(digest, None)
        while self._values.currsize + self._pinned_bytes + cost > self.budget_bytes:
            self._values.popitem()
            self._evictions += 1
        self._values[digest] = value


def _cost(value: memoryview) -> int:
    return max(value.nbytes, 1)
