"""The memoized pointers: parsed once for all files, versions and sessions that need them.

Keyed by blob id, which names the content, so an entry is never stale; bounded by the parameters it holds, not by the
number of pointers, since one pointer has one parameter and another thirty thousand. Thread-safe.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final

from cachetools import LRUCache

from theta_daemon.pointer import Pointer

DEFAULT_WEIGHT: Final = 300_000
"""Parameters (570 bytes each, measured) that are kept by default: some 170 MB."""

POINTER_WEIGHT: Final = 64
"""What a pointer weighs beside its parameters."""


@dataclass(frozen=True, slots=True)
class PointerCacheStats:
    """`size` and `limit` in parameters' weights; the others are counts."""

    size: int
    limit: int
    entries: int
    hits: int
    misses: int


class PointerCache:
    """An LRU of parsed pointers by blob id."""

    def __init__(self, limit: int = DEFAULT_WEIGHT) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._pointers: LRUCache[str, Pointer] = LRUCache(limit, getsizeof=weight)
        self._hits = 0
        self._misses = 0

    def get(self, blob_id: str) -> Pointer | None:
        """The pointer, if it is here; counted as a hit or a miss."""
        with self._lock:
            pointer = self._pointers.get(blob_id)
            if pointer is None:
                self._misses += 1
            else:
                self._hits += 1
            return pointer

    def put(self, blob_id: str, pointer: Pointer) -> None:
        """Keep `pointer`; one that outweighs the whole cache is not kept."""
        if weight(pointer) <= self._limit:
            with self._lock:
                self._pointers[blob_id] = pointer

    def clear(self) -> None:
        """Forget all of them; the counts stay."""
        with self._lock:
            self._pointers.clear()

    def stats(self) -> PointerCacheStats:
        """Size, entries, hits and misses at this moment."""
        with self._lock:
            size = int(self._pointers.currsize)
            return PointerCacheStats(size, self._limit, len(self._pointers), self._hits, self._misses)


def weight(pointer: Pointer) -> int:
    """What `pointer` costs: all it holds that can be many, and a fixed part."""
    return POINTER_WEIGHT + len(pointer.parameters) + len(pointer.objects) + len(pointer.history)
