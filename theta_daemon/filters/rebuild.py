"""Carries out a plan: streams each checkpoint in file order while a pool decodes ahead.

Rules:
- Small values are computed whole, large ones chunk by chunk; a file is never assembled in memory, and the bytes decoded
  ahead are bounded (`AHEAD_BYTES`).
- Every value with a known digest is checked before its last bytes are handed out. What comes from the disk cache is checked
  before the first byte of it is handed out: a damaged entry costs time, never a checkout.
- What the disk cache has lost is had from a new plan (`again`), which does not count on it.
- Workers wait only for work that is running already (`values` says which values are held, and for whom).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from theta_daemon.errors import RecordError, ThetaError
from theta_daemon.filters.at_hand import AtHand, LostValueError
from theta_daemon.filters.chain import Chain
from theta_daemon.filters.digests import OrderedDigest
from theta_daemon.filters.literals import read_literals, room
from theta_daemon.filters.machinery import Machinery
from theta_daemon.filters.plan import FilePlan, Plan
from theta_daemon.filters.values import Values, check, fitting
from theta_daemon.store.cached_value import CachedValue
from theta_daemon.store.skeleton import pack_literals, unpack_literals
from theta_daemon.tensor import Buffer, TensorSpec, flat_bytes

AHEAD_BYTES: Final = 16 << 20
"""Decoded bytes that may wait for git to read them: few enough to be in the processor's cache still when it does."""

_GROUP_BYTES: Final = 1 << 20
"""Small values are computed in groups of about this size."""

_WHOLE_STORED_BYTES: Final = 16 << 20
"""Values of the disk cache up to this size are read once, as wholes; larger ones to be checked, then again in pieces."""

_OPENED_AHEAD: Final = 2
"""Those larger ones that are checked while another one is handed out."""


@dataclass(slots=True)
class _Work:
    """Buffers to come, in file order; `after` runs in the session's thread when they are there, before they are handed out."""

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

    `again` gives who plans a file anew after the disk cache has lost something of it (a weak reference: it has this).
    """

    def __init__(
        self,
        plan: Plan,
        machinery: Machinery,
        at_hand: AtHand,
        again: Callable[[], Callable[[bytes], Rebuilder] | None] | None = None,
    ) -> None:
        self._machinery = machinery
        self._on_hand = at_hand
        self._again = again
        self._values = Values(plan, machinery, at_hand)
        self.submit = machinery.submit

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
        return self._values.chain(key)[0]

    def _hand_out(self, work: _Work) -> Iterator[Buffer]:
        buffers = work.result()
        if work.after is not None:
            work.after()  # first: who takes the last bytes of a value may come for no more, and they have been checked
        yield from buffers

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
            if self._in_pieces(key, spec):
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
        count = len(pointer.parameters) + 1
        try:
            if file.skeleton is not None:
                return unpack_literals(self._on_hand.read(file.skeleton, flat_bytes(8 * count + room(pointer))), count)
        except LostValueError:
            return self._anew(file).literals(replace(file, skeleton=None))
        literals = read_literals(pointer, self._machinery.records)
        if pointer.skeleton is not None:
            self._values.keep(pointer.skeleton.digest, b"".join(pack_literals(literals)), 1)
        return literals

    def _submit_group(self, group: _Group) -> _Work:
        ready: list[Buffer] = []
        for piece in group.pieces:
            if not isinstance(piece, tuple):
                ready.append(piece)
                continue
            value = self._values.at_hand(piece[0])
            if value is None:
                return _Work(group.nbytes, self.submit(self._compute_group, group))
            ready.append(fitting(value, piece[1]))
        keys = [piece[0] for piece in group.pieces if isinstance(piece, tuple)]
        return _Work(group.nbytes, ready, lambda: self._values.consume(keys))

    def _compute_group(self, group: _Group) -> list[Buffer]:
        buffers: list[Buffer] = []
        for piece in group.pieces:
            if not isinstance(piece, tuple):
                buffers.append(piece)
                continue
            key, spec = piece
            buffers.append(fitting(self._value_of(group.file, key, spec), spec))
            self._values.consume([key])
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
            return self._values.value(key, spec)
        except LostValueError:
            return self._anew(file)._value_of(file, key, spec)

    def _anew(self, file: FilePlan) -> Rebuilder:
        """A rebuilder for this file that does not count on what was lost. Raises LostValueError where there is none."""
        again = None if self._again is None else self._again()
        if again is None:
            raise LostValueError
        return again(file.pathname)

    def _large_stored(self, file: FilePlan) -> list[tuple[str, TensorSpec]]:
        """The file's large values on disk, as they are now, in order."""
        return [
            (key, parameter.spec)
            for parameter, key in zip(file.pointer.parameters, file.keys, strict=True)
            if self._in_pieces(key, parameter.spec) and self._on_hand.stored(key)
        ]

    def _in_pieces(self, key: str, spec: TensorSpec) -> bool:
        """Whether the value is not in memory, and too large to be made as a whole."""
        if spec.chunks <= 1 or self._values.at_hand(key) is not None:
            return False
        return spec.nbytes > _WHOLE_STORED_BYTES or not self._on_hand.stored(key)

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
        room = self._machinery.remembers and self._machinery.tensors.wants(digest, spec.nbytes, shared=False)
        whole = np.empty(spec.nbytes, np.uint8).data if room else None
        step = spec.dtype.word_bytes

        def read(start: int, stop: int) -> list[Buffer]:
            begin, end = start * step, stop * step
            view = np.empty(end - begin, np.uint8).data if whole is None else whole[begin:end]
            opened.read_into(begin, view)
            return [view]

        def finish() -> None:
            try:
                opened.still(digest)
            except ThetaError as error:
                raise LostValueError(
                    "an entry of the disk cache was changed while it was read", "run the command again"
                ) from error
            opened.close()
            self._machinery.counters.add("disk_cache.hits")
            if whole is not None:
                self._machinery.tensors.put(digest, whole)

        for index, (start, stop) in enumerate(spec.spans()):
            after = finish if index == spec.chunks - 1 else None
            yield _Work((stop - start) * step, self.submit(read, start, stop), after)

    def _large(self, key: str, spec: TensorSpec) -> Iterator[_Work]:
        """The work for a value of several chunks that is to be rebuilt."""
        self._values.hold_shared(key, parallel=True)
        node = self._values.node(key)
        if node.spec.nbytes != spec.nbytes:
            raise RecordError(f"parameter {node.name!r}: two sizes are recorded for digest {key}")
        chain, starts = self._values.chain(key)
        if not chain.chunked or (self._values.shared(key) and self._values.may_hold(node)):
            value = self._values.single(key, spec, parallel=True)
            yield _Work(0, [value], lambda: self._values.consume([key]))
            return
        whole = self._values.room_for(node)
        writer = self._values.writer(node)
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
            check(node, digest.hexdigest())
            if node.digest is not None:
                if whole is not None:
                    self._machinery.tensors.put(node.digest, whole.view(np.uint8).data)
                if writer is not None and self._machinery.disk is not None:
                    self._machinery.disk.commit(node.digest, writer)
            self._values.consume([key, *starts])

        for index, (start, stop) in enumerate(node.spec.spans()):
            nbytes = (stop - start) * node.spec.dtype.word_bytes
            after = finish if index == node.spec.chunks - 1 else None
            yield _Work(nbytes, self.submit(compute, index, start, stop), after)
