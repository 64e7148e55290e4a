"""Pointers whose whole file was once rebuilt to its digest, or that were made here from the content they name (`smudge` asks the
memo), remembered in memory and beside the values in the disk cache.

That the parts of a pointer make the whole it names is a fact about its text, the same on every machine. A mark is an entry
of the disk cache like any other: named by the digest of what it says, so that no accident can make one. Values and
skeletons are checked all the same.
"""

from __future__ import annotations

import threading
from typing import Protocol

from blake3 import blake3
from cachetools import LRUCache

from theta_daemon.store.disk_cache import DiskCache


class Proven(Protocol):
    """By the pointer's blob id: afterwards the values' digests suffice."""

    def __contains__(self, blob_id: object) -> bool: ...

    def add(self, blob_id: str) -> None: ...


class ProvenPointers:
    """A bounded set of blob ids. Thread-safe."""

    def __init__(self, limit: int) -> None:
        self._lock = threading.Lock()
        self._ids: LRUCache[str, bool] = LRUCache(limit)

    def __contains__(self, blob_id: object) -> bool:
        with self._lock:
            return blob_id in self._ids

    def add(self, blob_id: str) -> None:
        """Remember it."""
        with self._lock:
            self._ids[blob_id] = True


class LastingProven:
    """What this process has proven, and whoever used the disk cache."""

    def __init__(self, memory: Proven, disk: DiskCache) -> None:
        self._memory = memory
        self._disk = disk

    def __contains__(self, blob_id: object) -> bool:
        if blob_id in self._memory:
            return True
        text = _mark(str(blob_id))
        if self._disk.get(blake3(text).hexdigest(), len(text)) is None:
            return False
        self._memory.add(str(blob_id))
        return True

    def add(self, blob_id: str) -> None:
        """Remember it."""
        self._memory.add(blob_id)
        text = _mark(blob_id)
        self._disk.put(blake3(text).hexdigest(), text)


def _mark(blob_id: str) -> bytes:
    return f"theta-daemon: pointer {blob_id} is proven\n".encode()
