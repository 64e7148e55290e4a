"""Where a payload from git waits: in memory up to a limit, then in a file that has no name.

Written once from front to back, by one thread; afterwards read at random by any (`formats.base.Source`). The BLAKE3 of
everything is computed on the way. Both go in batches: hashing and writing a large batch releases the GIL, and git's
packets of 64 KiB are too small to be worth a system call each.

The file is unlinked from the start, so that nothing is left behind whatever happens, and only this process can touch it.
It is read by positional reads.
"""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from pathlib import Path
from typing import IO, Final

from blake3 import blake3

from theta_daemon.errors import StoreError
from theta_daemon.formats.base import Source
from theta_daemon.tensor import Buffer

MEMORY_BYTES: Final = 32 << 20
"""Payloads up to this size stay in memory."""

_BATCH_BYTES: Final = 1 << 20


class Spool(Source):
    """A payload; `directory` (which exists) takes the file of one that is longer than `limit`."""

    def __init__(self, directory: Path, limit: int = MEMORY_BYTES) -> None:
        self._directory = directory
        self._limit = limit
        self._hash = blake3()
        self._size = 0
        self._pending = bytearray()  # everything while in memory, else what the file lacks
        self._hashed = 0  # bytes at the front of _pending that the hash has seen
        self._file: IO[bytes] | None = None
        self._lock = threading.Lock()
        self._settled: memoryview | None = None
        self._closed = False

    def write(self, data: Buffer) -> None:
        """Append. Raises StoreError when the file cannot be written, ValueError after the first read."""
        if self._settled is not None or self._closed:
            raise ValueError("the payload has been read already")
        self._put(data)
        if len(self._pending) - self._hashed >= _BATCH_BYTES:
            self._flush()

    @property
    def size(self) -> int:
        return self._size

    @property
    def in_memory(self) -> bool:
        """Whether no file was needed."""
        return self._file is None

    def hexdigest(self) -> str:
        """BLAKE3 of the payload. No write may follow."""
        self._settle()
        return self._hash.hexdigest()

    def settle(self) -> None:
        """Have all bytes at hand, whatever that takes; by a thread that may wait for the pool. Raises StoreError."""
        self._settle()

    def read(self, offset: int, length: int) -> Buffer:
        if offset < 0 or length < 0 or offset + length > self._size:
            raise ValueError(f"bytes {offset} to {offset + length} are outside a payload of {self._size}")
        settled = self._settle()
        if self._file is None:
            return settled[offset : offset + length]
        return self._read_file(self._file.fileno(), offset, length)

    def startswith(self, prefix: bytes) -> bool:
        """Whether the payload starts with `prefix`."""
        return self._size >= len(prefix) and bytes(self.read(0, len(prefix))) == prefix

    def close(self) -> None:
        """Give memory and file back; views that were handed out stay valid."""
        self._closed = True
        self._settled = None
        self._pending = bytearray()
        if self._file is not None:
            self._file.close()

    def _settle(self) -> memoryview:
        settled = self._settled
        if settled is not None:
            return settled
        with self._lock:
            if self._closed:
                raise ValueError("the payload is closed")
            if self._settled is None:
                self._flush()
                self._settled = memoryview(self._pending).toreadonly()
            return self._settled

    def _put(self, data: Buffer) -> None:
        self._pending += data
        self._size += memoryview(data).nbytes

    def _append(self, data: memoryview, seen: int) -> None:
        """`write` for bytes of which the hash has seen the first `seen` (only where it has seen all bytes before them)."""
        self._pending += data[:seen]
        self._hashed = len(self._pending) if seen else self._hashed
        self._size += seen
        if len(self._pending) >= _BATCH_BYTES:
            self._flush()
        if seen < data.nbytes:
            Spool.write(self, data[seen:])

    def _flush(self) -> None:
        with memoryview(self._pending) as view, view[self._hashed :] as fresh:
            self._hash.update(fresh)
        self._hashed = len(self._pending)
        if self._file is None and self._size <= self._limit:
            return
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._directory, buffering=0)  # noqa: SIM115
            with memoryview(self._pending) as view:
                written = 0
                while written < len(view):
                    written += os.write(self._file.fileno(), view[written:])
        except OSError as error:
            hint = "free some space there, then run the command again" if error.errno == errno.ENOSPC else None
            raise StoreError(f"cannot write a temporary file in {self._directory}: {error.strerror}", hint) from error
        # A new one instead of clear(): it keeps no more than a batch.
        self._pending = bytearray()
        self._hashed = 0

    def _read_file(self, fd: int, offset: int, length: int) -> bytes:
        try:
            data = os.pread(fd, length, offset)
            while len(data) < length:
                more = os.pread(fd, length - len(data), offset + len(data))
                if not more:
                    raise StoreError(f"the temporary file in {self._directory} is shorter than what was written")
                data += more
        except OSError as error:
            raise StoreError(f"cannot read a temporary file in {self._directory}: {error.strerror}") from error
        return data
