"""A new checkpoint, encoded and packed while it arrives: by the time git has sent it, nearly all is written.

For a path that git knows nothing of, when the file's beginning tells where its parameters lie. What comes of it is what
`Build` would make of the whole file, which has the last word: it takes the records from here where its layout is the one
that was found at the beginning, and makes its own where something is missing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np
from blake3 import blake3

from theta_daemon.errors import StoreError, ThetaError
from theta_daemon.filters.arriving import Arriving
from theta_daemon.filters.chain import Chain
from theta_daemon.filters.encode import Encoder
from theta_daemon.filters.forms import Encoded, words_in
from theta_daemon.filters.groups import WHOLE_BYTES
from theta_daemon.filters.packing import Packing, Slot, ref
from theta_daemon.filters.plan import Node, value_key
from theta_daemon.filters.recipe import METADATA_KEY
from theta_daemon.filters.rooms import Room, digest_in
from theta_daemon.filters.spool import Spool
from theta_daemon.filters.workspace import Workspace
from theta_daemon.formats.base import Extent
from theta_daemon.formats.safetensors import Safetensors, metadata
from theta_daemon.pointer import Parameter, RecordRef
from theta_daemon.store.skeleton import encode_skeleton
from theta_daemon.tensor import Buffer

Results = list[tuple[str, Encoded | Parameter]]
"""For each value its digest, and its record or the parameter that has one."""


@dataclass(frozen=True, slots=True)
class Made:
    """A record that is in a pack: what Build needs to know of it."""

    update: str
    slot: Slot


def ahead(workspace: Workspace, pathname: bytes, beginning: memoryview) -> Ahead | None:
    """Who encodes the payload that starts with `beginning`; None if that needs the whole of it."""
    history = workspace.history
    try:
        if history.index_entry(pathname) is not None or history.head_entry(pathname) is not None:
            return None  # most of it may be there already
        if history.attribute(pathname, "theta-format") not in (None, Safetensors.name) or workspace.hints().fingerprint:
            return None
        head = Room()
        head.write(beginning)
        extents = Safetensors().expected_layout(head)
        if not extents or metadata(head, METADATA_KEY)[0] is not None:
            return None
    except ThetaError:
        return None  # whoever has the whole file says what is wrong
    return Ahead(workspace, extents, bytes(beginning[: extents[0].offset]))


class Ahead(Arriving[Results]):
    """The records of a checkpoint that is `head` and the values of `extents`, without gaps."""

    def __init__(self, workspace: Workspace, extents: Sequence[Extent], head: bytes) -> None:
        self.format_name: Final = Safetensors.name
        self.extents: Final = extents
        self.digests: Final[list[str]] = []
        self.made: Final[dict[int, Made]] = {}
        """Records by the number of the parameter. What the repository has already, or the file twice, is not among them."""
        self._head = head
        self._workspace = workspace
        self._pool = workspace.machinery.pool
        self._encoder = Encoder(workspace.registry, self._pool, workspace.settings.max_depth)
        # What works on a large value waits for the pool, and so cannot be in it.
        self._waiter = ThreadPoolExecutor(1, thread_name_prefix="theta-ahead")
        self._hasher = ThreadPoolExecutor(1, thread_name_prefix="theta-hash")
        self._hashing: deque[Future[None]] = deque()
        self._hash = blake3()
        self._known: dict[int, Parameter] = {}
        self._first: dict[str, int] = {}
        self._segments = 0
        self.skeleton: Slot | None = None
        self.packing: Final = Packing(workspace.store)
        super().__init__(workspace.repository.spool_dir, [len(head), *(extent.spec.nbytes for extent in extents)])

    def has_all_but(self, reusable: Container[str], digests: Sequence[str]) -> bool:
        """Whether there is a record here for every value but the `reusable` ones, by key."""
        first: dict[str, int] = {}
        for index, (extent, digest) in enumerate(zip(self.extents, digests, strict=True)):
            key = value_key(digest, extent.spec)
            if key not in reusable and first.setdefault(key, index) == index and index not in self.made:
                return False
        return True

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def kept(self, offset: int, length: int) -> Buffer | None:
        if offset >= 0 and offset + length <= len(self._head):
            return memoryview(self._head)[offset : offset + length]
        return super().kept(offset, length)

    def submit(self, group: Sequence[int], room: Room | Spool) -> Future[Results]:
        self._hashing.append(self._hasher.submit(self._hash_all, room))
        large = room.size > WHOLE_BYTES
        return (self._waiter if large else self._pool).submit(self._encode, group, room)

    def settle(self, group: Sequence[int], room: Room | Spool, result: Results) -> bool:
        self._hashing.popleft().result()
        for index, (digest, found) in zip(_values(group), result, strict=True):
            self.digests.append(digest)
            if isinstance(found, Parameter):
                self._known[index] = found
                continue
            spec = self.extents[index].spec
            if self._first.setdefault(value_key(digest, spec), index) != index:
                continue
            if self.skeleton is None:
                literals: list[Buffer] = [self._head, *[b""] * len(self.extents)]
                self.skeleton = self.packing.add([encode_skeleton(literals)])
            offset = self.extents[index].offset - self._start(group)
            read = words_in(room, spec, offset)
            encoded, slot = self.packing.add_value(found, partial(self._encoder.dense, spec, read))
            self.made[index] = Made(encoded.update, slot)
        self._segments = group[-1] + 1
        return True

    def settled(self) -> Iterator[Buffer]:
        if not self._segments:
            return
        yield self._head
        packs = self.packing.finish()
        for index in range(self._segments - 1):
            yield from self._again(index, packs)

    def close(self) -> None:
        super().close()
        for thread in (self._waiter, self._hasher):
            thread.shutdown(cancel_futures=True)
        self.packing.close()

    def _hash_all(self, room: Room | Spool) -> None:
        for piece in room.pieces():
            self._hash.update(piece)

    def _start(self, group: Sequence[int]) -> int:
        """Where in the file the group begins."""
        return self.extents[group[0] - 1].offset if group[0] else 0

    def _encode(self, group: Sequence[int], room: Room | Spool) -> Results:
        extents = [self.extents[index] for index in _values(group)]
        start = self._start(group)
        digests = [digest_in(room, extent.offset - start, extent.spec.nbytes) for extent in extents]
        remembered = self._workspace.memo.parameters(digests)
        results: Results = []
        for extent, digest in zip(extents, digests, strict=True):
            known = remembered.get(digest)
            if known is not None and self._usable(known, extent):
                results.append((digest, known))
                continue
            read = words_in(room, extent.spec, extent.offset - start)
            if room.size > WHOLE_BYTES:
                results.append((digest, self._encoder.large(extent.spec, read, None)))
            else:
                results.append((digest, self._encoder.whole(extent.spec, read(0, extent.spec.words), None)))
        return results

    def _usable(self, known: Parameter, extent: Extent) -> bool:
        return known.previous is None and known.spec == extent.spec and self._workspace.store.freshen(known.object)

    def _again(self, index: int, packs: list[tuple[str, int]]) -> Iterator[Buffer]:
        """The bytes of a value that was dropped. Raises StoreError when they are others."""
        extent, digest = self.extents[index], self.digests[index]
        spec, machinery = extent.spec, self._workspace.machinery
        key = value_key(digest, spec)
        known = self._known.get(index)
        if known is not None:
            node = Node(key, spec, known.update, RecordRef(known.object, known.record), None, digest, extent.name)
        else:
            made = self.made[self._first[key]]
            node = Node(key, spec, made.update, ref(made.slot, packs), None, digest, extent.name)
        chain = Chain([node], None, machinery.records, machinery.updates, machinery.counters)
        seen = blake3()
        for start, stop in spec.spans() if chain.chunked else [(0, spec.words)]:
            words = np.empty(stop - start, spec.dtype.word_dtype)
            chain.fill(spec, start, stop, words)
            seen.update(words.view(np.uint8).data)
            yield words.view(np.uint8).data
        if seen.hexdigest() != digest:
            raise StoreError(
                f"parameter {extent.name!r} was written to object {node.ref.object}, which gives other bytes"
            )


def _values(group: Sequence[int]) -> list[int]:
    """The numbers of the parameters in a group of segments, the first of which is the head."""
    return [index - 1 for index in group if index]
