"""Carries out a plan: streams each checkpoint in file order while a pool decodes ahead.

Rules:
- Small values are computed whole, large ones chunk by chunk; a file is never assembled in memory, and the bytes decoded
  ahead are bounded (`AHEAD_BYTES`).
- A value that several files or updates need is computed once and held until its last reader has had it, as long as such
  values stay within `HOLD_BYTES` beyond the tensor cache; beyond that it is computed again.
- Every value with a known digest is checked before it is held, cached or its file is called complete. What comes from the
  disk cache is checked before the first byte of it is handed out: a damaged entry costs time, never a checkout.
- What the disk cache has lost is had from a new plan (`again`), which does not count on it.
- Nothing here waits while it holds a lock, and workers wait only for work that is running already.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Final, ParamSpec, TypeVar

import numpy as np
from blake3 import blake3

from theta_daemon.counters import Counters
from theta_daemon.errors import DigestError, RecordError, ThetaError
from theta_daemon.filters.at_hand import AtHand, LostValueError
from theta_daemon.filters.chain import Chain, Records, Updates
from theta_daemon.filters.digests import OrderedDigest
from theta_daemon.filters.plan import FilePlan, Node, Plan
from theta_daemon.pointer import SkeletonRef
from theta_daemon.store.cache_writer import EntryWriter
from theta_daemon.store.cached_value import CachedValue
from theta_daemon.store.disk_cache import DiskCache
from theta_daemon.store.skeleton import (
    MAX_RECORD_BYTES,
    decode_skeleton,
    pack_literals,
    skeleton_digest,
    unpack_literals,
)
from theta_daemon.store.tensor_cache import TensorCache
from theta_daemon.tensor import Buffer, TensorSpec, Words, flat_bytes

P = ParamSpec("P")
T = TypeVar("T")

AHEAD_BYTES: Final = 48 << 20
"""Decoded bytes that may wait for git to read them."""

HOLD_BYTES: Final = 256 << 20
"""Shared values that may be held outside the tensor cache."""

_GROUP_BYTES: Final = 1 << 20
"""Small values are computed in groups of about this size."""

_OPENED_AHEAD: Final = 2
"""Large values of the disk cache that are checked while another one is handed out."""

_WHOLE_LIMIT_BYTES: Final = 8 << 30
"""Values that cannot be computed by chunks may not be larger."""

_DAMAGED: Final = "an object is damaged: run `git theta fsck --repair`, or remove the object and fetch it again with `git theta fetch`"


@dataclass(frozen=True, slots=True)
class Machinery:
    """What all rebuilding in a process shares. `cancelled` is a session's."""

    pool: ThreadPoolExecutor
    tensors: TensorCache
    records: Records
    updates: Updates
    counters: Counters
    cancelled: threading.Event
    disk: DiskCache | None = None
    """The caller's disk cache."""
    remembers: bool = False
    """Whether what is read from disk is worth keeping in memory: the process outlives its sessions."""
    warms: bool = False
    """Whether values are wanted on disk, not in memory: what is there only is rebuilt, and shared values wait on disk."""


class CancelledSessionError(ThetaError):
    """The session is over: git or the client has gone."""

    def __init__(self, message: str = "cancelled", hint: str | None = None) -> None:
        super().__init__(message, hint)


@dataclass(slots=True)
class _Work:
    """Buffers to come, in file order; `after` runs in the session's thread once they have been handed out."""

    nbytes: int
    buffers: Future[list[Buffer]] | list[Buffer]
    after: Callable[[], None] | None = None

    def result(self) -> list[Buffer]:
        return self.buffers.result() if isinstance(self.buffers, Future) else self.buffers


@dataclass(slots=True)
class _Group:
    """Small values of a file to be computed by one task, and the literals between them."""

    file: FilePlan
    pieces: list[Buffer | tuple[str, TensorSpec]] = field(default_factory=list)
    nbytes: int = 0


class Rebuilder:
    """Rebuilds the files of one plan, which was made with `at_hand`.

    `again` plans a file anew after the disk cache has lost something of it.
    """

    def __init__(
        self,
        plan: Plan,
        machinery: Machinery,
        at_hand: AtHand,
        again: Callable[[bytes], Rebuilder] | None = None,
    ) -> None:
        self._plan = plan
        self._machinery = machinery
        self._on_hand = at_hand
        self._again = again
        self._values = at_hand.values
        self._kept = {key for file in plan.files.values() for key in file.keys}
        self._left = Counter(plan.uses)
        self._held: set[str] = set()
        self._held_bytes = 0
        self._lock = threading.Lock()
        self._flights: dict[str, Future[memoryview]] = {}

    def stream(self, file: FilePlan) -> Iterator[Buffer]:
        """The checkpoint's bytes in order. Raises ThetaError at the first value that cannot be rebuilt.

        Closing the iterator early gives up the work that has not begun.
        """
        window: deque[_Work] = deque()
        waiting = 0
        works = self._works(file)
        try:
            for work in works:
                window.append(work)
                waiting += work.nbytes
                while waiting > AHEAD_BYTES and len(window) > 1:
                    done = window.popleft()
                    yield from self._hand_out(done)
                    waiting -= done.nbytes
            while window:
                yield from self._hand_out(window.popleft())
        finally:
            works.close()
            for work in window:
                if isinstance(work.buffers, Future):
                    work.buffers.cancel()

    def chain(self, key: str) -> Chain:
        """The value `key` as something to read chunk by chunk; for clean, which compares."""
        return self._chain(key)[0]

    def _hand_out(self, work: _Work) -> Iterator[Buffer]:
        yield from work.result()
        if work.after is not None:
            work.after()

    def _works(self, file: FilePlan) -> Generator[_Work, None, None]:
        literals = self.literals(file)
        group = _Group(file)
        stored = self._large_stored(file)
        stored_keys = {key for key, _ in stored}
        ahead = self._opened_ahead(stored)
        for literal, parameter, key in zip(literals, file.pointer.parameters, file.keys, strict=False):
            if literal.nbytes:
                group.pieces.append(literal)
                group.nbytes += literal.nbytes
            spec = parameter.spec
            if spec.chunks > 1 and self._at_hand(key) is None:
                yield self._submit_group(group)
                group = _Group(file)
                yield from self._large_of(file, key, spec, next(ahead) if key in stored_keys else None)
                continue
            group.pieces.append((key, spec))
            group.nbytes += spec.nbytes
            if group.nbytes >= _GROUP_BYTES:
                yield self._submit_group(group)
                group = _Group(file)
        if literals[-1].nbytes:
            group.pieces.append(literals[-1])
        yield self._submit_group(group)

    def literals(self, file: FilePlan) -> list[memoryview]:
        """The skeleton's literal bytes: one before each parameter and one after the last. Raises RecordError and others."""
        pointer = file.pointer
        room = pointer.size - sum(parameter.spec.nbytes for parameter in pointer.parameters)
        count = len(pointer.parameters) + 1
        skeleton = pointer.skeleton
        if skeleton is None:
            return [memoryview(b"")] * count
        try:
            if file.skeleton is not None:
                packed = self._on_hand.read(file.skeleton, flat_bytes(8 * count + room))
                return unpack_literals(packed, count)
            literals = self._read_skeleton(skeleton, room, count)
        except LostValueError:
            return self._anew(file).literals(replace(file, skeleton=None))
        except ThetaError as error:
            raise error.within(f"skeleton, object {skeleton.object}") from error
        if sum(literal.nbytes for literal in literals) != room:
            raise RecordError(f"skeleton, object {skeleton.object}: its size does not fit the pointer's")
        self._keep(skeleton.digest, b"".join(pack_literals(literals)), 1)
        return literals

    def _read_skeleton(self, skeleton: SkeletonRef, room: int, count: int) -> list[memoryview]:
        record = self._machinery.records.record(skeleton.ref)
        if record.length != skeleton.stored:
            raise RecordError("the record's size is not the one in the pointer")
        if record.length > MAX_RECORD_BYTES:
            raise RecordError(f"{record.length} bytes are too many for a skeleton")
        literals = decode_skeleton(record.read(0, record.length), room, count)
        if skeleton_digest(literals) != skeleton.digest:
            raise DigestError("the rebuilt skeleton is not the one that was added", _DAMAGED)
        return literals

    def _submit_group(self, group: _Group) -> _Work:
        ready: list[Buffer] = []
        for piece in group.pieces:
            if not isinstance(piece, tuple):
                ready.append(piece)
                continue
            value = self._at_hand(piece[0])
            if value is None:
                return _Work(group.nbytes, self.submit(self._compute_group, group))
            ready.append(self._fitting(value, piece[1]))
        keys = [piece[0] for piece in group.pieces if isinstance(piece, tuple)]
        return _Work(group.nbytes, ready, lambda: self._consume(keys))

    def _compute_group(self, group: _Group) -> list[Buffer]:
        buffers: list[Buffer] = []
        for piece in group.pieces:
            if not isinstance(piece, tuple):
                buffers.append(piece)
                continue
            key, spec = piece
            buffers.append(self._fitting(self._value_of(group.file, key, spec), spec))
            self._consume([key])
        return buffers

    def _large_of(
        self, file: FilePlan, key: str, spec: TensorSpec, opened: Future[CachedValue] | None = None
    ) -> Iterator[_Work]:
        """The work for one of the file's values, of several chunks and not in memory."""
        try:
            if opened is not None:
                yield from self._stored(opened.result(), key, spec)
            elif self._on_hand.stored(key):
                yield from self._stored(self._on_hand.open(key, spec), key, spec)
            else:
                yield from self._large(key, spec)
        except LostValueError:  # always before the first piece
            yield from self._anew(file)._large_of(file, key, spec)

    def _value_of(self, file: FilePlan, key: str, spec: TensorSpec) -> memoryview:
        """One of the file's values as a whole."""
        try:
            return self._value(key, spec)
        except LostValueError:
            return self._anew(file)._value_of(file, key, spec)

    def _anew(self, file: FilePlan) -> Rebuilder:
        """A rebuilder for this file that does not count on what was lost. Raises LostValueError where there is none."""
        if self._again is None:
            raise LostValueError
        return self._again(file.pathname)

    def _large_stored(self, file: FilePlan) -> list[tuple[str, TensorSpec]]:
        """The file's large values on disk, as they are now, in order."""
        return [
            (key, parameter.spec)
            for parameter, key in zip(file.pointer.parameters, file.keys, strict=True)
            if parameter.spec.chunks > 1 and self._at_hand(key) is None and self._on_hand.stored(key)
        ]

    def _opened_ahead(self, stored: list[tuple[str, TensorSpec]]) -> Iterator[Future[CachedValue]]:
        """These values in order, each checked by the pool while those before it are handed out."""
        opening: deque[Future[CachedValue]] = deque()
        for key, spec in stored:
            opening.append(self.submit(self._on_hand.open, key, spec))
            if len(opening) > _OPENED_AHEAD:
                yield opening.popleft()
        while opening:
            yield opening.popleft()

    def _stored(self, opened: CachedValue, key: str, spec: TensorSpec) -> Iterator[_Work]:
        """The work for a value of several chunks that the disk cache has."""
        digest = key.partition(" ")[0]
        room = self._machinery.remembers and spec.nbytes * 4 <= self._machinery.tensors.budget_bytes
        whole = np.empty(spec.nbytes, np.uint8).data if room else None
        step = spec.dtype.word_bytes

        def read(start: int, stop: int) -> list[Buffer]:
            begin, end = start * step, stop * step
            view = np.empty(end - begin, np.uint8).data if whole is None else whole[begin:end]
            opened.read_into(begin, view)
            return [view]

        def finish() -> None:
            opened.still(digest)
            opened.close()
            self._machinery.counters.add("disk_cache.hits")
            if whole is not None:
                self._machinery.tensors.put(digest, whole)

        for index, (start, stop) in enumerate(spec.spans()):
            after = finish if index == spec.chunks - 1 else None
            yield _Work((stop - start) * step, self.submit(read, start, stop), after)

    def _large(self, key: str, spec: TensorSpec) -> Iterator[_Work]:
        """The work for a value of several chunks that is to be rebuilt."""
        self._hold_shared(key, parallel=True)
        node = self._node(key)
        if node.spec.nbytes != spec.nbytes:
            raise RecordError(f"parameter {node.name!r}: two sizes are recorded for digest {key}")
        chain, starts = self._chain(key)
        if not chain.chunked or (self._shared(key) and self._may_hold(node)):
            value = self._single(key, spec, parallel=True)
            yield _Work(0, [value], lambda: self._consume([key]))
            return
        whole = self._room_for(node)
        writer = self._writer(node)
        digest = OrderedDigest(node.spec.chunks)

        def compute(index: int, start: int, stop: int) -> list[Buffer]:
            words = np.empty(stop - start, node.spec.dtype.word_dtype) if whole is None else whole[start:stop]
            chain.fill(node.spec, start, stop, words)
            view = words.view(np.uint8).data
            digest.put(index, view)
            if writer is not None:
                writer.write(start * words.itemsize, view)
            return [view]

        def finish() -> None:
            self._check(node, digest.hexdigest())
            if node.digest is not None:
                if whole is not None:
                    self._machinery.tensors.put(node.digest, whole.view(np.uint8).data)
                if writer is not None and self._machinery.disk is not None:
                    self._machinery.disk.commit(node.digest, writer)
            self._consume([key, *starts])

        for index, (start, stop) in enumerate(node.spec.spans()):
            nbytes = (stop - start) * node.spec.dtype.word_bytes
            after = finish if index == node.spec.chunks - 1 else None
            yield _Work(nbytes, self.submit(compute, index, start, stop), after)

    def _value(self, key: str, spec: TensorSpec) -> memoryview:
        """A whole value, computed in this thread unless another one is at it."""
        if not self._on_hand.stored(key):
            self._hold_shared(key, parallel=False)
        return self._single(key, spec, parallel=False)

    def _hold_shared(self, key: str, *, parallel: bool) -> None:
        """Compute the values below `key` that others need as well, from the lowest up."""
        for node in self._plan.chain(key, self._is_at_hand):
            if node.key != key and self._shared(node.key) and self._may_hold(node):
                self._single(node.key, node.spec, parallel=parallel)

    def _single(self, key: str, spec: TensorSpec, *, parallel: bool) -> memoryview:
        """A whole value; concurrent calls share one computation."""
        with self._lock:
            value = self._values.get(key)
            flight = None if value is not None else self._flights.get(key)
            mine: Future[memoryview] = Future()
            if value is None and flight is None:
                self._flights[key] = mine
        if value is not None:
            return value
        if flight is not None:
            return flight.result()
        try:
            value = self._read(key, spec) if self._on_hand.stored(key) else self._compute(key, parallel=parallel)
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(value)
            return value
        finally:
            with self._lock:
                del self._flights[key]

    def _read(self, key: str, spec: TensorSpec) -> memoryview:
        """A whole value from disk. Raises LostValueError."""
        value = self._on_hand.read(key, spec)
        self._machinery.counters.add("disk_cache.hits")
        if self._machinery.remembers:
            self._machinery.tensors.put(key.partition(" ")[0], value)
        return value

    def _compute(self, key: str, *, parallel: bool) -> memoryview:
        node = self._node(key)
        if node.digest is not None and (cached := self._machinery.tensors.get(node.digest)) is not None:
            value = self._fitting(cached, node.spec)
            if self._machinery.warms and key in self._kept:
                self._keep(node.digest, value, node.spec.dtype.word_bytes)
            return value
        chain, starts = self._chain(key)
        if not chain.chunked and node.spec.nbytes > _WHOLE_LIMIT_BYTES:
            raise RecordError(f"parameter {node.name!r}: {node.spec.nbytes} bytes are too many for {node.update!r}")
        words = _empty(node)
        if parallel and chain.chunked and node.spec.chunks > 1:
            spans = list(node.spec.spans())
            futures = [self.submit(chain.fill, node.spec, *span, words[slice(*span)]) for span in spans]
            for future in futures:
                future.result()
        else:
            chain.fill(node.spec, 0, node.spec.words, words)
        view = words.view(np.uint8).data.toreadonly()
        if node.digest is not None:
            self._check(node, blake3(view).hexdigest())
            self._machinery.tensors.put(node.digest, view)
            if key in self._kept:
                self._keep(node.digest, view, node.spec.dtype.word_bytes)
        self._hold(node, view)
        self._consume(starts)
        return view

    def _chain(self, key: str) -> tuple[Chain, list[str]]:
        """The chain to `key`, and the key of the value it starts from, if it does not start from nothing.

        Raises LostValueError.
        """
        with self._lock:  # one look: a value may be let go at any time
            nodes = self._plan.chain(key, lambda key: key in self._values or self._on_hand.stored(key))
            base = nodes[0].base if nodes else key
            value = None if base is None else self._values.get(base)
        start: memoryview | CachedValue | None = value
        if nodes and value is not None:
            start = self._fitting(value, nodes[0].spec)
        elif nodes and base is not None:
            start = self._on_hand.open(base, nodes[0].spec)
        machinery = self._machinery
        chain = Chain(nodes, start, machinery.records, machinery.updates, machinery.counters)
        return chain, [] if base is None else [base]

    def _node(self, key: str) -> Node:
        return self._plan.nodes[key]

    def _shared(self, key: str) -> bool:
        return self._plan.uses[key] > 1

    def _is_at_hand(self, key: str) -> bool:
        return self._on_hand.stored(key) or self._at_hand(key) is not None

    def _at_hand(self, key: str) -> memoryview | None:
        with self._lock:
            return self._values.get(key)

    def _may_hold(self, node: Node) -> bool:
        tensors = self._machinery.tensors
        return self._held_bytes + node.spec.nbytes <= HOLD_BYTES or node.spec.nbytes * 4 <= tensors.budget_bytes

    def _hold(self, node: Node, value: memoryview) -> None:
        if not self._shared(node.key) or not self._may_hold(node):
            return
        if self._machinery.warms and node.digest is not None and self._on_hand.moved(node.key, node.digest):
            return
        with self._lock:
            self._values[node.key] = value
            if node.key not in self._machinery.tensors:
                self._held_bytes += value.nbytes
                self._held.add(node.key)

    def _consume(self, keys: list[str]) -> None:
        """One reader of each of these values has had it; the last one lets it go."""
        with self._lock:
            for key in keys:
                self._left[key] -= 1
                if self._left[key] <= 0 and key in self._plan.nodes and key in self._values:
                    value = self._values.pop(key)
                    if key in self._held:
                        self._held.remove(key)
                        self._held_bytes -= value.nbytes

    def _keep(self, digest: str, value: Buffer, word_bytes: int) -> None:
        """Into the disk cache, if there is one. What goes wrong there is no concern of ours."""
        if self._machinery.disk is not None:
            self._machinery.disk.put(digest, value, word_bytes)

    def _writer(self, node: Node) -> EntryWriter | None:
        """For a value on its way into the disk cache."""
        disk = self._machinery.disk
        if disk is None or node.digest is None or disk.has(node.digest):
            return None
        return disk.writer(node.digest, node.spec.nbytes, node.spec.dtype.word_bytes)

    def _room_for(self, node: Node) -> Words | None:
        """An array for the whole value if the tensor cache would keep it."""
        keep = node.digest is not None and node.spec.nbytes * 4 <= self._machinery.tensors.budget_bytes
        return _empty(node) if keep else None

    def _fitting(self, value: memoryview, spec: TensorSpec) -> memoryview:
        if value.nbytes != spec.nbytes:
            raise RecordError(f"a value of {value.nbytes} bytes is recorded where {spec.nbytes} are needed")
        return value

    def _check(self, node: Node, digest: str) -> None:
        if digest != node.digest and node.digest is not None:
            raise DigestError(
                f"parameter {node.name!r}, object {node.ref.object}: the rebuilt value is not the one that was added"
            )

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """The call in the pool, unless the session is cancelled meanwhile."""

        def run() -> T:
            if self._machinery.cancelled.is_set():
                raise CancelledSessionError
            return call(*args, **kwargs)

        return self._machinery.pool.submit(run)


def _empty(node: Node) -> Words:
    try:
        return np.empty(node.spec.words, node.spec.dtype.word_dtype)
    except MemoryError as error:
        raise RecordError(f"parameter {node.name!r}: no memory for {node.spec.nbytes} bytes") from error
