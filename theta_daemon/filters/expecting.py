"""The content that git's index has already, compared while it arrives; none of it is kept.

Git cleans unchanged files all the time. A large payload is compared with the index's pointer, parameter by parameter; what
matches is dropped, since the store has it. When everything matched, the digest is known without another pass. At the first
difference the part that was dropped is rebuilt from the store.

Rules: nothing is dropped whose digest was not seen to be right, nor unless the store holds all objects it is made of.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from theta_daemon.errors import StoreError, ThetaError
from theta_daemon.filters.arriving import Arriving
from theta_daemon.filters.batch import Prepared, Wanted
from theta_daemon.filters.digests import StreamDigest
from theta_daemon.filters.groups import WHOLE_BYTES
from theta_daemon.filters.literals import read_literals
from theta_daemon.filters.rooms import Room, digest_in
from theta_daemon.filters.spool import Spool
from theta_daemon.filters.workspace import Workspace
from theta_daemon.pointer import Pointer
from theta_daemon.tensor import Buffer


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of the expected content: its length, and its bytes or their digest."""

    length: int
    expected: memoryview | str


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected content; `stream` gives its bytes, for when the rest turns out to be different."""

    digest: str
    segments: Sequence[Segment]
    stream: Callable[[], Iterator[Buffer]]


def expected(workspace: Workspace, pathname: bytes) -> Expected | None:
    """What the index has for a path, if the store holds all of it. It is planned only if it must be rebuilt."""
    try:
        entry = workspace.history.index_entry(pathname)
        pointer = None if entry is None else workspace.pointer(entry.blob, fetch=False)
        if entry is None or pointer is None or not _rebuildable(workspace, pointer):
            return None
        literals = read_literals(pointer, workspace.machinery.records)
    except ThetaError:
        return None
    segments = []
    for literal, parameter in zip(literals, pointer.parameters, strict=False):
        segments += [Segment(literal.nbytes, literal), Segment(parameter.spec.nbytes, parameter.digest)]
    segments.append(Segment(literals[-1].nbytes, literals[-1]))
    wanted = Wanted(entry.blob, pointer)
    return Expected(pointer.digest, segments, lambda: Prepared(workspace, {pathname: wanted}).stream(pathname))


def _rebuildable(workspace: Workspace, pointer: Pointer) -> bool:
    """Whether all objects are here, the lineage included, and the update types known. Raises ThetaError."""
    if not all(workspace.store.holds(oid, size) for oid, size in pointer.objects.items()):
        return False
    updates = {parameter.update for parameter in pointer.parameters}
    if pointer.lineage is not None:
        lineage = workspace.lineage(pointer.lineage)
        incremental = {parameter.name for parameter in pointer.parameters if parameter.previous is not None}
        if lineage is None or not incremental <= lineage.steps.keys() or not lineage.objects <= pointer.objects.keys():
            return False
        updates |= lineage.updates
    for update in updates:
        workspace.registry.update(update)
    return True


class Match(Arriving[int]):
    """How far the payload is what was expected. Large values are hashed while they arrive."""

    def __init__(self, directory: Path, pool: ThreadPoolExecutor, expectation: Expected) -> None:
        super().__init__(directory, [segment.length for segment in expectation.segments])
        self._pool = pool
        self._expected = expectation
        self._proven = 0
        self._stream: StreamDigest | None = None

    def hexdigest(self) -> str:
        return self._expected.digest

    def look(self, group: Sequence[int], data: memoryview) -> None:
        segment = self._expected.segments[group[0]]
        large = len(group) == 1 and segment.length > WHOLE_BYTES and isinstance(segment.expected, str)
        if large and not isinstance(self._room, Spool):  # which hashes by itself
            self._stream = self._stream or StreamDigest(self._pool.submit)
            self._stream.update(data)

    def submit(self, group: Sequence[int], room: Room | Spool) -> Future[int]:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.end()
            return self._pool.submit(self._same, group, room, stream)
        return self._pool.submit(self._equal, group, room)

    def settle(self, group: Sequence[int], room: Room | Spool, result: int) -> bool:
        self._proven += result
        return result == room.size

    def settled(self) -> Iterator[Buffer]:
        left = self._proven
        stream = self._expected.stream() if left else iter(())
        rest = memoryview(b"")
        for segment in self._expected.segments:
            if not left:
                return
            seen = blake3()
            missing = segment.length
            while missing:
                rest = rest if rest.nbytes else memoryview(next(stream, b"")).cast("B")
                part = rest[:missing]
                if not part.nbytes:
                    raise StoreError("the rebuilt file is shorter than the one that was added")
                rest = rest[part.nbytes :]
                missing -= part.nbytes
                seen.update(part)
                yield part
            wanted = segment.expected if isinstance(segment.expected, str) else blake3(segment.expected).hexdigest()
            if seen.hexdigest() != wanted:
                raise StoreError("a rebuilt value is not the one that was added")
            left -= segment.length

    def _same(self, group: Sequence[int], room: Room | Spool, stream: StreamDigest) -> int:
        """The same for a single value that has been hashed; that was submitted before this."""
        return room.size if stream.hexdigest() == self._expected.segments[group[0]].expected else 0

    def _equal(self, group: Sequence[int], room: Room | Spool) -> int:
        """How many bytes are as expected: all, or none."""
        position = 0
        for segment in (self._expected.segments[index] for index in group):
            if not isinstance(segment.expected, str):
                if bytes(room.read(position, segment.length)) != bytes(segment.expected):
                    return 0
            elif digest_in(room, position, segment.length) != segment.expected:
                return 0
            position += segment.length
        return position
