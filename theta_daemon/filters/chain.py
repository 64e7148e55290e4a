"""A value as a base and the updates on top of it, to be had chunk by chunk, by several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from theta_daemon.counters import Counters
from theta_daemon.errors import RecordError, ThetaError
from theta_daemon.filters.plan import Node
from theta_daemon.pointer import RecordRef
from theta_daemon.store.base import BytesRecord, Record
from theta_daemon.store.cached_value import CachedValue
from theta_daemon.tensor import Buffer, TensorSpec, Words, as_words
from theta_daemon.updates.base import Decoder, Update

_WHOLE_RECORD_BYTES = 256 << 10
"""Records up to this size are read at once instead of piece by piece."""


class Records(Protocol):
    """Where records are read: `store.pack.Packs`."""

    def record(self, ref: RecordRef) -> Record: ...


class Updates(Protocol):
    """Where update types are found by name: the registry."""

    def __call__(self, name: str) -> Update: ...


class Chain:
    """`nodes` in order of application on top of `start` (None: the first node is self-contained). Thread-safe."""

    def __init__(
        self,
        nodes: Sequence[Node],
        start: Buffer | CachedValue | None,
        records: Records,
        updates: Updates,
        counters: Counters,
    ) -> None:
        self._nodes = nodes
        self._start = start
        self._records = records
        self._updates = updates
        self._counters = counters
        self._lock = threading.Lock()
        self._opened: list[tuple[Node, Decoder]] | None = None

    @property
    def chunked(self) -> bool:
        """Whether `fill` works for any run of chunks; else only for the whole value."""
        return all(decoder.chunked for _, decoder in self._decoders())

    def fill(self, spec: TensorSpec, start: int, stop: int, words: Words) -> None:
        """Write words [start:stop] of the value, which has `spec`, to `words`.

        Raises RecordError, MissingObjectError or PointerError, naming parameter and object.
        """
        decoders = self._decoders()
        if isinstance(self._start, CachedValue):
            self._start.read_into(start * spec.dtype.word_bytes, words.view(np.uint8).data)
        elif self._start is not None:
            np.copyto(words, as_words(self._start, spec.dtype)[start:stop])
        for node, decoder in decoders:
            try:
                decoder.apply(start, stop, words)
            except Exception as error:
                raise _named(error, node) from error

    def _decoders(self) -> list[tuple[Node, Decoder]]:
        with self._lock:
            if self._opened is None:
                self._opened = [(node, self._open(node)) for node in self._nodes]
                self._counters.add("updates_decoded", len(self._opened))
            return self._opened

    def _open(self, node: Node) -> Decoder:
        try:
            return self._decoder(node)
        except Exception as error:
            raise _named(error, node) from error

    def _decoder(self, node: Node) -> Decoder:
        update = self._updates(node.update)
        if update.incremental != (node is not self._nodes[0] or self._start is not None):
            raise RecordError(f"update {node.update!r} stands where its kind cannot stand in a chain")
        record = self._records.record(node.ref)
        return update.open(
            node.spec, BytesRecord(record.read(0, record.length)) if record.length <= _WHOLE_RECORD_BYTES else record
        )


def _named(error: Exception, node: Node) -> ThetaError:
    where = f"parameter {node.name!r}, {node.update} update, object {node.ref.object}"
    if isinstance(error, ThetaError):
        return error.within(where)
    return RecordError(f"{where}: {type(error).__name__}: {error}", "the object or the plug-in is faulty")
