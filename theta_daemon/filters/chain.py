"""A value as a base and the updates on top of it, to be had chunk by chunk, by several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from theta_daemon.codec import replay, replays
from theta_daemon.counters import Counters
from theta_daemon.errors import RecordError, ThetaError
from theta_daemon.filters.plan import Node
from theta_daemon.pointer import Located
from theta_daemon.store.base import BytesRecord, Record
from theta_daemon.store.cached_value import CachedValue
from theta_daemon.tensor import CHUNK_WORDS, Buffer, Kind, TensorSpec, Words, as_words
from theta_daemon.updates.base import Decoder, Update

_WHOLE_RECORD_BYTES = 256 << 10
"""Records up to this size are read at once instead of piece by piece."""

_REPLAYED_BYTES = 4 << 20
"""Parts of records that are gathered for one call, about."""


class Records(Protocol):
    """Where records are read: `store.pack.Packs`."""

    def record(self, ref: Located) -> Record: ...


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
        self._opened: list[_Run] | None = None

    @property
    def chunked(self) -> bool:
        """Whether `fill` works for any run of chunks; else only for the whole value."""
        return all(run.chunked for run in self._runs())

    def fill(self, spec: TensorSpec, start: int, stop: int, words: Words) -> None:
        """Write words [start:stop] of the value, which has `spec`, to `words`.

        Raises RecordError, MissingObjectError or PointerError, naming parameter and object.
        """
        step = CHUNK_WORDS if self.chunked else max(spec.words, 1)
        for first in range(start, stop, step):
            last = min(first + step, stop)
            self._fill(spec, first, last, words[first - start : last - start])

    def _fill(self, spec: TensorSpec, start: int, stop: int, words: Words) -> None:
        """One chunk, all updates while it is in the processor's cache."""
        if isinstance(self._start, CachedValue):
            self._start.read_into(start * spec.dtype.word_bytes, words.view(np.uint8).data)
        elif self._start is not None:
            np.copyto(words, as_words(self._start, spec.dtype)[start:stop])
        for run in self._runs():
            run.apply(start, stop, words, floats=spec.dtype.kind is Kind.FLOAT)

    def _runs(self) -> list[_Run]:
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
                self._counters.add("updates_decoded", len(self._nodes))
            return self._opened

    def _open(self) -> list[_Run]:
        runs: list[_Run] = []
        updates: dict[str, Update] = {}
        first = self._nodes[0] if self._nodes and self._start is None else None
        for node in self._nodes:
            try:
                update = updates.get(node.update)
                if update is None:
                    updates[node.update] = update = self._updates(node.update)
                _check_place(update, begins=node is first)
                decoder = _opened(update, node.spec, self._records.record(node.ref))
            except Exception as error:
                raise _named(error, node) from error
            if decoder.script is None or not runs or not runs[-1].scripts:
                runs.append(_Run())
            runs[-1].add(node, decoder)
        return runs


class _Whole(Decoder):
    """The record of a value of one chunk, unopened: `codec.replay` looks at its table itself."""

    __slots__ = ("_data", "_spec", "_update", "script")

    def __init__(self, update: Update, script: bytes, spec: TensorSpec, data: Buffer) -> None:
        self._update = update
        self._spec = spec
        self._data = data
        self.script = script.upper()

    def part(self, index: int) -> Buffer:
        return self._data

    def apply(self, start: int, stop: int, words: Words) -> None:
        self._update.open(self._spec, BytesRecord(self._data)).apply(start, stop, words)


def _check_place(update: Update, *, begins: bool) -> None:
    if update.incremental == begins:
        raise RecordError(f"update {update.name!r} stands where its kind cannot stand in a chain")


def _opened(update: Update, spec: TensorSpec, record: Record) -> Decoder:
    if record.length > _WHOLE_RECORD_BYTES:
        return update.open(spec, record)
    data = record.read(0, record.length)
    if spec.chunks == 1 and update.script is not None:
        return _Whole(update, update.script, spec, data)
    return update.open(spec, BytesRecord(data))


class _Run:
    """Neighbouring updates that are replayed in one call; or a single one that cannot be, and has no script."""

    def __init__(self) -> None:
        self.scripts = b""
        self._nodes: list[Node] = []
        self._decoders: list[Decoder] = []

    def add(self, node: Node, decoder: Decoder) -> None:
        """One more update on top; only those with a script share a run."""
        self._nodes.append(node)
        self._decoders.append(decoder)
        self.scripts += decoder.script or b""

    @property
    def chunked(self) -> bool:
        return all(decoder.chunked for decoder in self._decoders)

    def apply(self, start: int, stop: int, words: Words, *, floats: bool) -> None:
        """See `Decoder.apply`. Raises ThetaError."""
        done = 0
        while done < len(self._nodes):
            if self.scripts and replays():
                parts = self._parts(done, start // CHUNK_WORDS)
                done += (replayed := replay(words, self.scripts[done : done + len(parts)], parts, floats=floats))
                if replayed == len(parts) > 0:
                    continue
            try:
                self._decoders[done].apply(start, stop, words)
            except Exception as error:
                raise _named(error, self._nodes[done]) from error
            done += 1

    def _parts(self, first: int, chunk: int) -> list[Buffer]:
        """The parts of a chunk from update `first` on, until there is enough for one call, or one cannot be read."""
        parts: list[Buffer] = []
        nbytes = 0
        for decoder in self._decoders[first:]:
            try:
                part = decoder.part(chunk)
            except ThetaError:
                break
            parts.append(part)
            nbytes += len(part)
            if nbytes > _REPLAYED_BYTES:
                break
        return parts


def _named(error: Exception, node: Node) -> ThetaError:
    where = f"parameter {node.name!r}, {node.update} update, object {node.ref.object}"
    if isinstance(error, ThetaError):
        return error.within(where)
    return RecordError(f"{where}: {type(error).__name__}: {error}", "the object or the plug-in is faulty")
