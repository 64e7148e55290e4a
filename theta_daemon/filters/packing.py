"""Writes the records of one add into packs, each made durable in the background once it is full."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from theta_daemon.pointer import RecordRef
from theta_daemon.store.base import ObjectStore
from theta_daemon.store.pack import PackWriter
from theta_daemon.tensor import Buffer


@dataclass(frozen=True, slots=True)
class Slot:
    """Where a record will be once its pack has an id. `stored`: the record's bytes."""

    pack: int
    record: int
    stored: int


class Packing:
    """Records in the order in which they are added. A context: what was not finished is dropped on the way out."""

    def __init__(self, store: ObjectStore, pool: ThreadPoolExecutor) -> None:
        self._store = store
        self._pool = pool
        self._writers: list[PackWriter] = []
        self._finished: list[Future[tuple[str, int]]] = []
        self._current: PackWriter | None = None

    def add(self, parts: Iterable[Buffer]) -> Slot:
        """Append a record. Raises StoreError."""
        if self._current is not None and self._current.full:
            self._finish_current()
        if self._current is None:
            self._current = PackWriter(self._store.writer())
            self._writers.append(self._current)
        before = self._current.size
        record = self._current.add(parts)
        return Slot(len(self._writers) - 1, record, self._current.size - before)

    def finish(self) -> list[tuple[str, int]]:
        """Wait until all packs are durable: the id and size of each. Raises StoreError."""
        if self._current is not None:
            self._finish_current()
        return [future.result() for future in self._finished]

    def __enter__(self) -> Packing:
        return self

    def __exit__(self, *_: object) -> None:
        for future in self._finished:
            if not future.cancel():
                future.exception()
        for writer in self._writers:
            writer.abort()

    def _finish_current(self) -> None:
        if self._current is not None:
            self._finished.append(self._pool.submit(self._current.finish))
            self._current = None


def ref(slot: Slot, packs: list[tuple[str, int]]) -> RecordRef:
    """The record's address, once the packs are finished."""
    return RecordRef(packs[slot.pack][0], slot.record)
