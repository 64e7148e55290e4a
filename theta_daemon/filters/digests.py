"""BLAKE3 of a value whose chunks are computed by several threads, in any order."""

from __future__ import annotations

import threading

from blake3 import blake3

from theta_daemon.tensor import Buffer


class OrderedDigest:
    """Takes the `chunks` parts of a value in any order; hashes each as soon as all before it are there.

    Whoever brings the part that was missing hashes it and what waited behind it; the others go on at once.
    """

    def __init__(self, chunks: int) -> None:
        self._hash = blake3()
        self._waiting: dict[int, Buffer] = {}
        self._next = 0
        self._chunks = chunks
        self._busy = False
        self._changed = threading.Condition()

    def put(self, index: int, part: Buffer) -> None:
        """Part `index`, which nobody changes before it is hashed."""
        with self._changed:
            self._waiting[index] = part
            if self._busy:
                return
            self._busy = True
        while True:
            with self._changed:
                ready = self._waiting.pop(self._next, None)
                if ready is None:
                    self._busy = False
                    self._changed.notify_all()
                    return
                self._next += 1
            self._hash.update(ready)

    def hexdigest(self) -> str:
        """The digest, once all parts have been put (by calls that have returned or are about to)."""
        with self._changed:
            self._changed.wait_for(lambda: self._next == self._chunks and not self._busy)
        return self._hash.hexdigest()
