"""A spool that expects the content that git's index has already, and then keeps none of it.

Git cleans unchanged files all the time. A large payload is compared with the index's pointer while it arrives, parameter by
parameter; what matches is dropped, since the store has it. When everything matched, the digest is known without another
pass. At the first difference the part that was dropped is rebuilt from the store, and the spool goes on like any other.

Rules: nothing is dropped whose digest was not seen to be right, nor unless the store holds all objects it is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blake3 import blake3

from theta_daemon.errors import StoreError, ThetaError
from theta_daemon.filters.batch import Prepared, Wanted
from theta_daemon.filters.spool import MEMORY_BYTES, Spool
from theta_daemon.filters.workspace import Workspace
from theta_daemon.tensor import Buffer

_PENDING_BYTES: Final = 96 << 20
"""A parameter is held in memory until its digest is known to be right; larger ones are not waited for."""

_BATCH_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of the expected content: its length, and its bytes or their digest."""

    length: int
    expected: memoryview | str


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected content; `stream` gives its bytes, for when the rest turns out to be different."""

    size: int
    digest: str
    segments: Sequence[Segment]
    stream: Callable[[], Iterator[Buffer]]


def expected(workspace: Workspace, pathname: bytes) -> Expected | None:
    """What the index has for a path, if the store holds all of it."""
    try:
        entry = workspace.history.index_entry(pathname)
        pointer = None if entry is None else workspace.pointer(entry.blob, fetch=False)
        if entry is None or pointer is None:
            return None
        if not all(workspace.store.holds(oid, size) for oid, size in pointer.objects.items()):
            return None
        prepared = Prepared(workspace, {pathname: Wanted(entry.blob, pointer)})
        literals = prepared.literals(pathname)
    except ThetaError:
        return None
    segments = []
    for literal, parameter in zip(literals, pointer.parameters, strict=False):
        segments += [Segment(literal.nbytes, literal), Segment(parameter.spec.nbytes, parameter.digest)]
    segments.append(Segment(literals[-1].nbytes, literals[-1]))
    return Expected(pointer.size, pointer.digest, segments, lambda: prepared.stream(pathname))


class ExpectingSpool(Spool):
    """A `Spool` that asks `expect` what is to come once the payload outgrows the memory."""

    def __init__(self, directory: Path, expect: Callable[[], Expected | None], limit: int = MEMORY_BYTES) -> None:
        super().__init__(directory, limit)
        self._expect = expect
        self._asked = False
        self._head = b""
        self._match: _Match | None = None
        self._seen_by_hash = 0

    def write(self, data: Buffer) -> None:
        if self._match is None:
            super().write(data)
            return
        self._size += memoryview(data).nbytes
        if not self._match.take(data):
            self._recover()

    def startswith(self, prefix: bytes) -> bool:
        return self._head.startswith(prefix) if self._match is not None else super().startswith(prefix)

    def hexdigest(self) -> str:
        if self._match is not None and self._match.complete():
            return self._match.expected.digest
        return super().hexdigest()

    def close(self) -> None:
        self._match = None
        super().close()

    def _settle(self) -> memoryview:
        if self._match is not None:
            self._recover()
        return super()._settle()

    def _spills(self) -> bool:
        """Whether the payload must go to a file now; not if all of it so far is what was expected."""
        if self._asked:
            return True
        self._asked = True
        expectation = self._expect()
        if expectation is None:
            return True
        match = _Match(expectation)
        if not match.take(self._pending):
            return True
        self._head = bytes(self._pending[:64])
        self._seen_by_hash = self._size
        self._match = match
        return False

    def _recover(self) -> None:
        """Rebuild what was dropped, and be an ordinary spool from here on."""
        match, self._match = self._match, None
        if match is None:
            return
        position = 0
        size, self._size = self._size, 0
        try:
            for part in match.everything():
                view = memoryview(part).cast("B")
                skip = max(0, min(self._seen_by_hash - position, view.nbytes))
                self._append(view, skip)
                position += view.nbytes
        except ThetaError as error:
            raise StoreError(
                f"the content is new, but its unchanged part cannot be rebuilt from the store: {error.message}",
                "move the damaged object away, then add the file again; or run `git theta fsck --repair`",
            ) from error
        if self._size != size:
            raise StoreError("the content's unchanged part came back with another size", "report this as a bug")


class _Match:
    """How far the payload is what was expected."""

    def __init__(self, expectation: Expected) -> None:
        self.expected = expectation
        self._proven = 0
        self._segment = 0
        self._pending = bytearray()
        self._hashed = 0
        self._hash = blake3()

    def take(self, data: Buffer) -> bool:
        """Compare some more; False at the first difference, and then for good."""
        self._pending += data
        while self._segment < len(self.expected.segments):
            segment = self.expected.segments[self._segment]
            there = min(len(self._pending), segment.length)
            if there < segment.length:
                if there - self._hashed >= _BATCH_BYTES:
                    self._update(segment, there)
                return segment.length <= _PENDING_BYTES
            if not self._equal(segment):
                return False
            del self._pending[: segment.length]
            self._proven += segment.length
            self._segment += 1
            self._hash = blake3()
            self._hashed = 0
        return not self._pending

    def complete(self) -> bool:
        """Whether all that was expected has come, and nothing else."""
        return self._segment == len(self.expected.segments) and not self._pending

    def everything(self) -> Iterator[Buffer]:
        """All bytes taken so far: those that were dropped from the store, the others as they came."""
        left = self._proven
        stream = self.expected.stream() if left else iter(())
        for part in stream:
            view = memoryview(part).cast("B")[:left]
            yield view
            left -= view.nbytes
            if not left:
                break
        yield bytes(self._pending)

    def _update(self, segment: Segment, there: int) -> None:
        if isinstance(segment.expected, str):
            with memoryview(self._pending) as view, view[self._hashed : there] as fresh:
                self._hash.update(fresh)
        self._hashed = there

    def _equal(self, segment: Segment) -> bool:
        if isinstance(segment.expected, str):
            self._update(segment, segment.length)
            return self._hash.hexdigest() == segment.expected
        with memoryview(self._pending) as view, view[: segment.length] as got:
            return bytes(got) == bytes(segment.expected)
