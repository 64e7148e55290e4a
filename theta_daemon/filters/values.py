"""The values of a plan as wholes: at hand, held for their readers, computed once, on their way into the caches.

Rules:
- A value that several files or updates need is computed once and held until its last reader has had it, as long as such
  values stay within `HOLD_BYTES` beyond the tensor cache; beyond that it is computed again. While warming they wait on disk.
- Every value with a known digest is checked before it is held or cached.
- Thread-safe. Nothing here waits while it holds a lock, and workers wait only for work that is running already.
"""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import Future
from typing import Final

import numpy as np
from blake3 import blake3

from theta_daemon.errors import DigestError, RecordError
from theta_daemon.filters.at_hand import AtHand
from theta_daemon.filters.chain import Chain
from theta_daemon.filters.machinery import Machinery
from theta_daemon.filters.plan import Node, Plan
from theta_daemon.store.cache_writer import EntryWriter
from theta_daemon.store.cached_value import CachedValue
from theta_daemon.tensor import Buffer, TensorSpec, Words

HOLD_BYTES: Final = 256 << 20
"""Shared values that may be held outside the tensor cache."""

_WHOLE_LIMIT_BYTES: Final = 8 << 30
"""Values that cannot be computed by chunks may not be larger."""


class Values:
    """Of one plan, which was made with `at_hand`."""

    def __init__(self, plan: Plan, machinery: Machinery, at_hand: AtHand) -> None:
        self._plan = plan
        self._machinery = machinery
        self._on_hand = at_hand
        self._values = at_hand.values
        self._kept = {key for file in plan.files.values() for key in file.keys}
        self._left = Counter(plan.uses)
        self._shared = {key for key, uses in plan.uses.items() if uses > 1}
        self._held: set[str] = set()
        self._held_bytes = 0
        self._lock = threading.Lock()
        self._flights: dict[str, Future[memoryview]] = {}

    def value(self, key: str, spec: TensorSpec) -> memoryview:
        """A whole value, computed in this thread unless another one is at it."""
        if not self._on_hand.stored(key):
            self.hold_shared(key, parallel=False)
        return self.single(key, spec, parallel=False)

    def hold_shared(self, key: str, *, parallel: bool) -> None:
        """Compute the values below `key` that others need as well, from the lowest up."""
        if self._shared.isdisjoint(self._plan.below(key)):
            return
        for node in self._plan.chain(key, self.is_at_hand):
            if node.key != key and node.key in self._shared and self.may_hold(node):
                self.single(node.key, node.spec, parallel=parallel)

    def single(self, key: str, spec: TensorSpec, *, parallel: bool) -> memoryview:
        """A whole value; concurrent calls share one computation."""
        if not self.shared(key):
            value = self.at_hand(key)
            return value if value is not None else self._make(key, spec, parallel=parallel)
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
            value = self._make(key, spec, parallel=parallel)
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(value)
            return value
        finally:
            with self._lock:
                del self._flights[key]

    def _make(self, key: str, spec: TensorSpec, *, parallel: bool) -> memoryview:
        return self._read(key, spec) if self._on_hand.stored(key) else self._compute(key, parallel=parallel)

    def _read(self, key: str, spec: TensorSpec) -> memoryview:
        """A whole value from disk. Raises LostValueError."""
        value = self._on_hand.read(key, spec)
        self._machinery.counters.add("disk_cache.hits")
        digest = key.partition(" ")[0]
        if self._machinery.remembers and self._machinery.tensors.wants(digest, spec.nbytes, shared=False):
            self._machinery.tensors.put(digest, value)
        return value

    def _compute(self, key: str, *, parallel: bool) -> memoryview:
        node = self.node(key)
        if node.digest is not None and (cached := self._machinery.tensors.get(node.digest)) is not None:
            value = fitting(cached, node.spec)
            if self._machinery.warms and key in self._kept:
                self.keep(node.digest, value, node.spec.dtype.word_bytes)
            return value
        chain, starts = self.chain(key)
        if not chain.chunked and node.spec.nbytes > _WHOLE_LIMIT_BYTES:
            raise RecordError(f"parameter {node.name!r}: {node.spec.nbytes} bytes are too many for {node.update!r}")
        words = _empty(node)
        if parallel and chain.chunked and node.spec.chunks > 1:
            spans = list(node.spec.spans())
            futures = [self._machinery.submit(chain.fill, node.spec, *span, words[slice(*span)]) for span in spans]
            for future in futures:
                future.result()
        else:
            chain.fill(node.spec, 0, node.spec.words, words)
        view = words.view(np.uint8).data.toreadonly()
        if node.digest is not None:
            check(node, blake3(view).hexdigest())
            if self._wanted(node):
                self._machinery.tensors.put(node.digest, view)
            if key in self._kept:
                self.keep(node.digest, view, node.spec.dtype.word_bytes)
        self._hold(node, view)
        self.consume(starts)
        return view

    def chain(self, key: str) -> tuple[Chain, list[str]]:
        """The chain to `key`, and the key of the value it starts from, if it does not start from nothing.

        Raises LostValueError.
        """
        with self._lock:  # one look: a value may be let go at any time
            nodes = self._plan.chain(key, lambda key: key in self._values or self._on_hand.stored(key))
            base = nodes[0].base if nodes else key
            value = None if base is None else self._values.get(base)
        start: memoryview | CachedValue | None = value
        if nodes and value is not None:
            start = fitting(value, nodes[0].spec)
        elif nodes and base is not None:
            start = self._on_hand.open(base, nodes[0].spec)
        machinery = self._machinery
        chain = Chain(nodes, start, machinery.records, machinery.updates, machinery.counters)
        return chain, [] if base is None else [base]

    def node(self, key: str) -> Node:
        """What the plan says of a value that is to be rebuilt."""
        return self._plan.nodes[key]

    def shared(self, key: str) -> bool:
        """Whether it has more readers than one."""
        return key in self._shared

    def is_at_hand(self, key: str) -> bool:
        """Whether it need not be rebuilt."""
        return self._on_hand.stored(key) or self.at_hand(key) is not None

    def at_hand(self, key: str) -> memoryview | None:
        """The value if it is in memory."""
        with self._lock:
            return self._values.get(key)

    def may_hold(self, node: Node) -> bool:
        """Whether there is room for it until its last reader has had it."""
        tensors = self._machinery.tensors
        return self._held_bytes + node.spec.nbytes <= HOLD_BYTES or node.spec.nbytes * 4 <= tensors.budget_bytes

    def _hold(self, node: Node, value: memoryview) -> None:
        if not self.shared(node.key) or not self.may_hold(node):
            return
        if self._machinery.warms and node.digest is not None and self._on_hand.moved(node.key, node.digest):
            return
        with self._lock:
            self._values[node.key] = value
            if node.digest is None or node.digest not in self._machinery.tensors:
                self._held_bytes += value.nbytes
                self._held.add(node.key)

    def consume(self, keys: list[str]) -> None:
        """One reader of each of these values has had it; the last one lets it go."""
        with self._lock:
            for key in keys:
                self._left[key] -= 1
                if self._left[key] <= 0 and key in self._plan.nodes and key in self._values:
                    value = self._values.pop(key)
                    if key in self._held:
                        self._held.remove(key)
                        self._held_bytes -= value.nbytes

    def keep(self, digest: str, value: Buffer, word_bytes: int) -> None:
        """Into the disk cache, if there is one. What goes wrong there is no concern of ours."""
        if self._machinery.disk is not None:
            self._machinery.disk.put(digest, value, word_bytes)

    def writer(self, node: Node) -> EntryWriter | None:
        """For a value on its way into the disk cache."""
        disk = self._machinery.disk
        if disk is None or node.digest is None or disk.has(node.digest):
            return None
        return disk.writer(node.digest, node.spec.nbytes, node.spec.dtype.word_bytes)

    def room_for(self, node: Node) -> Words | None:
        """An array for the whole value if the tensor cache would keep it."""
        return _empty(node) if self._wanted(node) else None

    def _wanted(self, node: Node) -> bool:
        tensors, shared = self._machinery.tensors, self.shared(node.key)
        return node.digest is not None and tensors.wants(node.digest, node.spec.nbytes, shared=shared)


def fitting(value: memoryview, spec: TensorSpec) -> memoryview:
    """The value, if it has the size of `spec`. Raises RecordError."""
    if value.nbytes != spec.nbytes:
        raise RecordError(f"a value of {value.nbytes} bytes is recorded where {spec.nbytes} are needed")
    return value


def check(node: Node, digest: str) -> None:
    """Raises DigestError unless that is the digest of the value that was added."""
    if digest != node.digest and node.digest is not None:
        raise DigestError(
            f"parameter {node.name!r}, object {node.ref.object}: the rebuilt value is not the one that was added"
        )


def _empty(node: Node) -> Words:
    try:
        return np.empty(node.spec.words, node.spec.dtype.word_dtype)
    except MemoryError as error:
        raise RecordError(f"parameter {node.name!r}: no memory for {node.spec.nbytes} bytes") from error
