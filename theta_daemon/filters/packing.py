"""Writes the records of one add into packs, each written and made durable in the background."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

from theta_daemon.filters.forms import Encoded
from theta_daemon.pointer import RecordRef
from theta_daemon.store import pack
from theta_daemon.store.base import ObjectStore
from theta_daemon.store.pack import PackWriter
from theta_daemon.tensor import Buffer

_PENDING_BYTES: Final = 32 << 20
"""What may wait for being written."""

_BATCH_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a record will be once its pack has an id. `stored`: the record's bytes."""

    pack: int
    record: int
    stored: int


class Packing:
    """Records in the order in which they are added. A context: what was not finished is dropped on the way out.

    They are hashed and written by one thread, and full packs are made durable by another, which waits for the disk: who
    adds and who encodes need not. Calls must not overlap.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._write = ThreadPoolExecutor(1, thread_name_prefix="theta-pack")
        self._sync = ThreadPoolExecutor(1, thread_name_prefix="theta-sync")
        self._writers: list[PackWriter] = []
        self._pending: deque[tuple[int, Future[None]]] = deque()
        self._pending_bytes = 0
        self._finished: list[Future[Future[tuple[str, int]]]] = []
        self._records = 0
        self._bytes = 0
        self._open = False

    def add(self, parts: Iterable[Buffer]) -> Slot:
        """Append a record; its parts must not change any more. Raises StoreError, for this record or an earlier one."""
        if self._open and (self._bytes >= pack.TARGET_BYTES or self._records >= pack.MAX_RECORDS):
            self._finish_current()
        if not self._open:
            self._writers.append(PackWriter(self._store.writer()))
            self._records, self._bytes, self._open = 0, pack.HEAD.size, True
        writer = self._writers[-1]
        before = self._bytes
        batch: list[Buffer] = []
        nbytes = 0
        for part in parts:
            batch.append(part)
            nbytes += memoryview(part).nbytes
            if nbytes >= _BATCH_BYTES:
                self._submit(nbytes, partial(writer.add, batch, ends=False))
                batch, nbytes = [], 0
        self._submit(nbytes, partial(writer.add, batch))
        self._records += 1
        return Slot(len(self._writers) - 1, self._records - 1, self._bytes - before)

    def add_value(self, encoded: Encoded, densely: Callable[[], Encoded]) -> tuple[Encoded, Slot]:
        """Append a value's record; the one that `densely` makes where the first turns out not to hold. Raises StoreError."""
        slot = self.add(encoded.parts)
        if encoded.failed:
            encoded = densely()
            slot = self.add(encoded.parts)
        return encoded, slot

    def finish(self) -> list[tuple[str, int]]:
        """Wait until all packs are durable: the id and size of each. Raises StoreError."""
        if self._open:
            self._finish_current()
        self._wait(0)
        return [future.result().result() for future in self._finished]

    def __enter__(self) -> Packing:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Drop what was not finished."""
        self._write.shutdown(cancel_futures=True)
        self._sync.shutdown(cancel_futures=True)
        for writer in self._writers:
            writer.abort()

    def _submit(self, nbytes: int, call: Callable[[], None]) -> None:
        self._bytes += nbytes
        self._pending_bytes += nbytes
        self._pending.append((nbytes, self._write.submit(call)))
        self._wait(_PENDING_BYTES)

    def _wait(self, limit: int) -> None:
        """Let the writing catch up, up to `limit` bytes."""
        while self._pending and (self._pending_bytes > limit or not limit or self._pending[0][1].done()):
            nbytes, future = self._pending.popleft()
            self._pending_bytes -= nbytes
            future.result()

    def _finish_current(self) -> None:
        self._finished.append(self._write.submit(self._sync.submit, self._writers[-1].finish))
        self._open = False


def ref(slot: Slot, packs: list[tuple[str, int]]) -> RecordRef:
    """The record's address, once the packs are finished."""
    return RecordRef(packs[slot.pack][0], slot.record)
