"""A payload that is worked on while it arrives, so that it need not be kept.

It is cut where its parameters begin and end. A group of them that is complete goes to the pool, and what comes back settles
it, in order; then its bytes are dropped. Whoever needs the bytes after all has them made again out of what they were
settled by, which every subclass can (`settled`).

Rules: nothing is dropped before it is settled; at most `ahead_bytes` and one value wait in memory, a larger value in a file.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar, Final, Generic, TypeVar

from theta_daemon.errors import StoreError, ThetaError
from theta_daemon.filters.groups import grouped
from theta_daemon.filters.rooms import Room
from theta_daemon.filters.spool import Spool
from theta_daemon.tensor import Buffer

R = TypeVar("R")

_ROOM_BYTES: Final = 64 << 20
"""A value of more bytes waits in a file until it is complete."""

ASK_BYTES: Final = 8 << 20
"""Smaller payloads are kept: there is little to gain."""


class Arriving(ABC, Generic[R]):
    """Takes a payload that consists of segments of the given lengths."""

    ahead_bytes: ClassVar[int] = 64 << 20

    def __init__(self, directory: Path, lengths: Sequence[int]) -> None:
        """`directory` takes the file of a value too large for memory."""
        self._directory = directory
        self._lengths = lengths
        self._groups = grouped(range(len(lengths)), lambda index: lengths[index])
        self._window: deque[tuple[Sequence[int], Room | Spool, Future[R]]] = deque()
        self._waiting = 0
        self._rest = b""
        self._group: Sequence[int] | None = None
        self._room: Room | Spool = Room()
        self._missing = 0
        self._next_group()

    def look(self, group: Sequence[int], data: memoryview) -> None:
        """More bytes of the segments `group`, in order. They do not change."""

    @abstractmethod
    def submit(self, group: Sequence[int], room: Room | Spool) -> Future[R]:
        """Have the segments `group`, whose bytes are all in `room`, worked on."""

    @abstractmethod
    def settle(self, group: Sequence[int], room: Room | Spool, result: R) -> bool:
        """Whether the bytes can go. Called in order, one call at a time, and not again after the first False."""

    @abstractmethod
    def settled(self) -> Iterator[Buffer]:
        """The bytes of all groups that were settled. Raises ThetaError when they cannot be had again."""

    @abstractmethod
    def hexdigest(self) -> str:
        """BLAKE3 of the payload, once `complete`."""

    def kept(self, offset: int, length: int) -> Buffer | None:
        """Bytes of the payload that are at hand though they were settled."""
        return None if length or offset < 0 else b""

    def take(self, data: Buffer) -> bool:
        """Take some more, which must not change afterwards; False when this leads nowhere, and then for good.

        All of `data` is in `everything` either way.
        """
        view = memoryview(data)
        while view.nbytes:
            if self._group is None:
                self._rest += view
                return False
            count = min(view.nbytes, self._missing)
            self._room.write(view[:count])
            self.look(self._group, view[:count])
            self._missing -= count
            view = view[count:]
            while self._group is not None and not self._missing:
                self._window.append((self._group, self._room, self.submit(self._group, self._room)))
                self._waiting += self._room.size
                self._next_group()
        return self._drain(self.ahead_bytes)

    def complete(self) -> bool:
        """Whether all that was to come has come, and nothing else, and it is settled."""
        return self._group is None and not self._rest and self._drain(-1)

    def everything(self) -> Iterator[Buffer]:
        """All bytes that were taken. Raises ThetaError as `settled` does."""
        yield from self.settled()
        for room in (*(room for _, room, _ in self._window), self._room):
            yield from room.pieces()
        yield self._rest

    def close(self) -> None:
        """Let go of everything."""
        for _, room, future in self._window:
            future.cancel()
            room.close()
        self._window.clear()
        self._room.close()

    def _next_group(self) -> None:
        self._group = next(self._groups, None)
        self._missing = sum(self._lengths[index] for index in self._group or ())
        small = self._group is None or len(self._group) > 1 or self._missing <= _ROOM_BYTES
        self._room = Room() if small else Spool(self._directory)

    def _drain(self, limit: int) -> bool:
        """Settle from the front while more than `limit` bytes wait, and whatever is done."""
        while self._window and (self._waiting > limit or self._window[0][2].done()):
            group, room, future = self._window[0]
            if not self.settle(group, room, future.result()):
                return False
            self._window.popleft()
            self._waiting -= room.size
            room.close()
        return True


class ArrivingSpool(Spool):
    """A `Spool` that asks `begin`, after `ask_bytes`, who would rather take the payload, given its beginning.

    What was taken is made again when somebody reads it, and when the taker is at its wit's end.
    """

    def __init__(
        self, directory: Path, begin: Callable[[memoryview], Arriving[Any] | None], ask_bytes: int = ASK_BYTES
    ) -> None:
        super().__init__(directory)
        self._begin = begin
        self._ask_bytes = ask_bytes
        self._asked = False
        self._head = b""
        self._taker: Arriving[Any] | None = None
        self._hashed_before = 0
        self._recovering = threading.Lock()

    @property
    def taker(self) -> Arriving[Any] | None:
        """Who has the payload, if all of it is there."""
        return self._taker if self._taker is not None and self._taker.complete() else None

    def write(self, data: Buffer) -> None:
        if self._taker is not None:
            self._size += memoryview(data).nbytes
            if not self._taker.take(data):
                self._recover()
        elif self._asked or self._size + memoryview(data).nbytes < self._ask_bytes:
            super().write(data)
        else:
            self._put(data)
            if not self._hand_over():
                super().write(b"")

    def startswith(self, prefix: bytes) -> bool:
        return self._head.startswith(prefix) if self._taker is not None else super().startswith(prefix)

    def hexdigest(self) -> str:
        taker = self.taker
        return super().hexdigest() if taker is None else taker.hexdigest()

    def read(self, offset: int, length: int) -> Buffer:
        taker = self._taker
        if taker is not None and offset + length <= self._size:
            kept = taker.kept(offset, length)
            if kept is not None:
                return kept
            self._settle()  # before the size is looked at, which is counted anew meanwhile
        return super().read(offset, length)

    def close(self) -> None:
        if self._taker is not None:
            self._taker.close()
        self._taker = None
        super().close()

    def _settle(self) -> memoryview:
        with self._recovering:
            self._asked = True  # it is over: nobody shall take what is about to be read
            self._recover()
        return super()._settle()

    def _hand_over(self) -> bool:
        """Whether somebody takes all of the payload so far, which is in memory."""
        self._asked = True
        pending = memoryview(bytes(self._pending))
        taker = self._begin(pending)
        if taker is None:
            return False
        taken = False
        try:
            taken = taker.take(pending)
        finally:
            if not taken:
                taker.close()
        if not taken:
            return False
        self._taker = taker
        self._head = bytes(self._pending[:64])
        self._hashed_before = self._hashed
        self._pending = bytearray()
        self._hashed = 0
        return True

    def _recover(self) -> None:
        """Have what was taken made again, and be an ordinary spool from here on."""
        taker = self._taker
        if taker is None:
            return
        try:
            self._take_back(taker)
        except BaseException as error:
            super().close()  # nobody shall take a part for the whole
            if not isinstance(error, ThetaError):
                raise
            raise StoreError(
                f"the content is new, but its unchanged part cannot be rebuilt from the store: {error.message}",
                "add the file again; if an object is damaged, move it away before, or run `git theta fsck --repair`",
            ) from error
        finally:
            self._taker = None
            taker.close()

    def _take_back(self, taker: Arriving[Any]) -> None:
        position = 0
        size, self._size = self._size, 0
        for part in taker.everything():
            view = memoryview(part).cast("B")
            skip = max(0, min(self._hashed_before - position, view.nbytes))
            self._append(view, skip)
            position += view.nbytes
        if self._size != size:
            raise StoreError("the content's unchanged part came back with another size", "report this as a bug")
