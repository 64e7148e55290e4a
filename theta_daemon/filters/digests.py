"""BLAKE3 of a value whose chunks are computed by several threads, in any order, and of a stream beside its way out."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from blake3 import blake3

from theta_daemon.tensor import Buffer

_PART_BYTES: Final = 1 << 20


class OrderedDigest:
    """Takes the `chunks` parts of a value in any order; hashes each as soon as all before it are there.

    Whoever brings the part that was missing hashes it and what waited behind it; the others go on at once.
    """

    def __init__(self, chunks: int = 0) -> None:
        self._hash = blake3()
        self._waiting: dict[int, tuple[Buffer, ...]] = {}
        self._next = 0
        self._chunks = chunks
        self._busy = False
        self._changed = threading.Condition()

    def put(self, index: int, *part: Buffer) -> None:
        """Part `index`, in any number of pieces, which nobody changes before they are hashed."""
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
            for piece in ready:
                self._hash.update(piece)

    def hexdigest(self) -> str:
        """The digest, once all parts have been put (by calls that have returned or are about to)."""
        with self._changed:
            self._changed.wait_for(lambda: self._next == self._chunks and not self._busy)
        return self._hash.hexdigest()

    def so_far(self) -> str:
        """The digest of the parts that were put without a gap, by calls that have returned."""
        with self._changed:
            return self._hash.hexdigest()


class StreamDigest:
    """Of buffers that pass by, hashed by the pool while they are written. `submit` runs a call there."""

    def __init__(self, submit: Callable[[Callable[[], None]], Future[None]]) -> None:
        self._submit = submit
        self._digest = OrderedDigest()
        self._part: list[Buffer] = []
        self._part_bytes = 0
        self._parts: list[Future[None]] = []

    def update(self, buffer: Buffer) -> None:
        """The next bytes, which nobody changes any more."""
        self._part.append(buffer)
        self._part_bytes += memoryview(buffer).nbytes
        if self._part_bytes >= _PART_BYTES:
            self._hand_over()

    def end(self) -> None:
        """Nothing more comes. After this a worker, too, may ask for the digest: all parts were submitted before it."""
        if self._part:
            self._hand_over()

    def hexdigest(self) -> str:
        """The digest of all; waits for the pool. Raises what the pool raises when it is given up."""
        self.end()
        for part in self._parts:
            part.result()
        return self._digest.so_far()

    def _hand_over(self) -> None:
        index, part = len(self._parts), tuple(self._part)
        self._part, self._part_bytes = [], 0
        self._parts.append(self._submit(lambda: self._digest.put(index, *part)))
