"""Bytes of two pipes that are shared with another process: read, writev, and nothing that changes them for the other.

Rules
1. No flag of a descriptor is ever set: O_NONBLOCK would belong to every process that has the same pipe. Where somebody
   else set it, we wait for readiness and go on.
2. What is written is never copied, except what is small: one system call for many small pieces is cheaper.
3. A vanished reader is GitGoneError, so that nobody takes a handler's own broken pipe for git's.
"""

from __future__ import annotations

import fcntl
import os
import select
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from protocol.pktline import Buffer

PIPE_BYTES: Final = 1 << 20
"""Linux lets an ordinary user have pipes of up to 1 MiB (pipe(7), /proc/sys/fs/pipe-max-size)."""

MAX_BUFFERS: Final = 1024
"""Buffers that one writev takes (IOV_MAX on Linux and macOS)."""

SMALL_BYTES: Final = 1 << 16
"""Up to here copying a buffer costs less than the system call of its own."""


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
    """Reads into one buffer, again and again."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = memoryview(bytearray(PIPE_BYTES))

    def read(self) -> memoryview:
        """The bytes that have arrived, at least one; empty at the end. Valid until the next read."""
        while True:
            try:
                return self._buffer[: os.readv(self._fd, [self._buffer])]
            except BlockingIOError:
                _wait(self._fd, select.POLLIN)
            except ConnectionResetError:
                return self._buffer[:0]


class PipeWriter:
    """Gathers small pieces and writes large ones as they are. `check` is called before each system call."""

    def __init__(self, fd: int, check: Callable[[], None] = lambda: None) -> None:
        self._fd = fd
        self._check = check
        self._pending = bytearray()

    def add(self, data: Buffer) -> None:
        """Copy `data`; it is written before anything that comes later."""
        self._pending += data
        if len(self._pending) >= 4 * SMALL_BYTES:
            self.flush()

    def write(self, buffers: Sequence[Buffer]) -> None:
        """Write all of `buffers`; on return none of them is needed any more."""
        pending, self._pending = self._pending, bytearray()
        left: list[Buffer] = [pending, *buffers]
        while left:
            batch = left[:MAX_BUFFERS]
            written = self._writev(batch)
            taken = 0
            while taken < len(batch) and written >= len(batch[taken]):
                written -= len(batch[taken])
                taken += 1
            left = left[taken:]
            if written:
                left[0] = memoryview(left[0])[written:]

    def flush(self) -> None:
        """Write what was added."""
        if self._pending:
            self.write(())

    def _writev(self, batch: Sequence[Buffer]) -> int:
        while True:
            self._check()
            try:
                return os.writev(self._fd, batch)
            except BlockingIOError:
                _wait(self._fd, select.POLLOUT)
            except (BrokenPipeError, ConnectionResetError):
                raise GitGoneError from None


def _wait(fd: int, event: int) -> None:
    poll = select.poll()
    poll.register(fd, event)
    poll.poll()
