"""Bytes of two pipes that are shared with another process: read, writev, and nothing that changes them for the other.

Rules
1. No flag of a descriptor is ever set: O_NONBLOCK would belong to every process that has the same pipe. Where somebody
   else set it, we wait for readiness and go on.
2. What is written is never copied, except what is small: one system call for many small pieces is cheaper. On Linux even
   the kernel does not copy it (`lending`): pages are lent to the pipe, all but the last ones before a flush. Those are
   written, and by the time they fit into the pipe its reader has had whatever was lent.
3. A vanished reader is GitGoneError, so that nobody takes a handler's own broken pipe for git's.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from protocol.pktline import Buffer, Scatter
from theta_daemon.lending import PIPE_BYTES, Lender, Loan

_PAUSE_SECONDS: Final = 1e-4
"""What a reader needs for a good part of a pipeful: without it we would wake for every page that has become free."""

SMALL_BYTES: Final = 1 << 16
"""Up to here copying a buffer costs less than the system call of its own."""

_BUFFERS: Final = 160
"""Buffers that are remembered, to be used again: more than who works ahead holds at once (`filters.arriving`)."""

MAX_BUFFERS: Final = 1024
"""Buffers that one writev takes (IOV_MAX on Linux and macOS)."""


class GitGoneError(Exception):
    """The other end of the pipe is closed."""


def widen(fd: int) -> None:
    """Make a pipe hold 1 MiB where the system can and may do that; it only saves switches between processes."""
    get_size = getattr(fcntl, "F_GETPIPE_SZ", None)
    set_size = getattr(fcntl, "F_SETPIPE_SZ", None)
    if get_size is None or set_size is None:
        return
    with suppress(OSError):  # no pipe, or more than this user's share of pipe memory
        if fcntl.fcntl(fd, get_size) < PIPE_BYTES:
            fcntl.fcntl(fd, set_size, PIPE_BYTES)


class PipeReader:
    """Reads into large buffers, one after the other; one that nobody looks at any more is used again."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray(PIPE_BYTES)
        self._used = 0
        # Full ones, the oldest first, that somebody may still look at. One that falls out is freed when nobody does.
        self._full: deque[bytearray] = deque([bytearray()], maxlen=_BUFFERS)
        # What the interpreter counts where nobody else looks, for each of the two ways of asking.
        self._alone = sys.getrefcount(self._buffer)
        self._alone_in_full = sys.getrefcount(self._full[0])
        self._full.clear()

    def read(self) -> memoryview:
        """The bytes that have arrived, at least one; empty at the end. They never change."""
        room = self._room()
        count = self._read([room])
        self._used += count
        return room[:count]

    def read_scattered(self, due: int) -> tuple[Scatter, int]:
        """The same, in a `Scatter` for what is due."""
        scatter = Scatter(self._room(), due)
        count = self._read(scatter.buffers)
        self._used += count  # more than the payload's bytes
        return scatter, count

    def _room(self) -> memoryview:
        if sys.getrefcount(self._buffer) == self._alone:
            self._used = 0
        elif PIPE_BYTES - self._used < SMALL_BYTES:
            old, self._buffer = self._buffer, self._free() or bytearray(PIPE_BYTES)
            self._full.append(old)
            self._used = 0
        return memoryview(self._buffer)[self._used :]

    def _read(self, buffers: Sequence[memoryview]) -> int:
        """How many bytes have come, 0 at the end."""
        while True:
            try:
                return os.readv(self._fd, buffers)
            except BlockingIOError:
                _wait(self._fd, select.POLLIN)
            except ConnectionResetError:
                return 0

    def _free(self) -> bytearray | None:
        """The buffer that was filled last of those that nobody looks at: the processor may still have it at hand."""
        for index in range(len(self._full) - 1, -1, -1):
            if sys.getrefcount(self._full[index]) == self._alone_in_full:
                buffer = self._full[index]
                del self._full[index]
                return buffer
        return None


class PipeWriter:
    """Gathers small pieces and sends large ones as they are. `check` is called before each system call and each write.

    What is given to `write` may not change until `flush` returns; it is kept alive here as long as the pipe needs it.
    """

    def __init__(self, fd: int, check: Callable[[], None] = lambda: None) -> None:
        self._fd = fd
        self._check = check
        self._lender = Lender.of(fd)
        self._pending = bytearray()
        self._kept: deque[Buffer] = deque()
        self._kept_bytes = 0
        self._lent: deque[tuple[int, Sequence[Buffer]]] = deque()
        self._sent_bytes = 0

    def add(self, data: Buffer) -> None:
        """Copy `data`; it is written before anything that comes later."""
        self._pending += data
        if len(self._pending) >= 4 * SMALL_BYTES:
            self.write(())

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Send all of `buffers`, all but the last ones at once."""
        self._check()
        self._keep(buffers)
        if self._lender is None:
            self._write(self._take(0))
            return
        if self._kept_bytes < 2 * self._lender.pipe_bytes:
            return
        batch = self._take(self._lender.pipe_bytes)
        self._lent.append((0, batch))
        lend = partial(self._lender.lend, Loan(batch))
        while sent := self._once(lend):
            self._sent_bytes += sent
            if sent < self._lender.pipe_bytes // 4:
                time.sleep(_PAUSE_SECONDS)
        self._lent[-1] = self._sent_bytes, batch
        while self._lent[0][0] + self._lender.pipe_bytes <= self._sent_bytes:
            self._lent.popleft()

    def flush(self) -> None:
        """Write what was added and what was kept back; nothing that was given is needed any more."""
        self._keep(())
        self._write(self._take(0))
        # Something was lent only if a whole pipe's worth was kept back, which has now gone into the pipe after it.
        self._lent.clear()

    def _keep(self, buffers: Sequence[Buffer]) -> None:
        if self._pending:
            self._kept.append(self._pending)
            self._kept_bytes += len(self._pending)
            self._pending = bytearray()
        for buffer in buffers:
            if size := len(buffer):
                self._kept.append(buffer)
                self._kept_bytes += size

    def _take(self, keep_bytes: int) -> list[Buffer]:
        """What was kept, from the front, as long as `keep_bytes` stay."""
        taken = []
        while self._kept and self._kept_bytes - len(self._kept[0]) >= keep_bytes:
            buffer = self._kept.popleft()
            self._kept_bytes -= len(buffer)
            taken.append(buffer)
        return taken

    def _write(self, left: list[Buffer]) -> None:
        while left:
            batch = left[:MAX_BUFFERS]
            sent = self._once(lambda: os.writev(self._fd, batch))  # noqa: B023 - called at once
            self._sent_bytes += sent
            taken = 0
            while taken < len(batch) and sent >= len(batch[taken]):
                sent -= len(batch[taken])
                taken += 1
            left = left[taken:]
            if sent:
                left[0] = memoryview(left[0])[sent:]

    def _once(self, call: Callable[[], int]) -> int:
        while True:
            self._check()
            try:
                return call()
            except BlockingIOError:
                _wait(self._fd, select.POLLOUT)
            except (BrokenPipeError, ConnectionResetError):
                raise GitGoneError from None


def _wait(fd: int, event: int) -> None:
    poll = select.poll()
    poll.register(fd, event)
    poll.poll()
