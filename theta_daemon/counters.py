"""Counts of what was done, for `status`, `--json` and tests: which source answered, what was read, decoded, fetched.

Ground layer. Adding is thread-safe; a name exists as soon as it is counted.
"""

from __future__ import annotations

import threading
from collections import Counter


class Counters:
    """Named, monotonic counts; a child adds to its parent as well (a session's to the engine's)."""

    def __init__(self, parent: Counters | None = None) -> None:
        self._parent = parent
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        """Count `amount` more of `name`."""
        with self._lock:
            self._counts[name] += amount
        if self._parent is not None:
            self._parent.add(name, amount)

    def get(self, name: str) -> int:
        with self._lock:
            return self._counts[name]

    def snapshot(self) -> dict[str, int]:
        """All counts at this moment, by name."""
        with self._lock:
            return dict(sorted(self._counts.items()))
