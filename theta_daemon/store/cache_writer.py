"""Writing one value into the disk cache: in chunks, from several threads, in any order; there whole or not at all.

Raw values go to their place in a temporary file at once; compressed ones are gathered (they are smaller) and written at the
end. Nothing here raises for what the disk does: a value that could not be kept is `commit() == False`, and the temporary
file is gone. Whoever writes has checked the value's digest before it commits.
"""

from __future__ import annotations

import os
import struct
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from theta_daemon.store.cached_value import HEAD, MAGIC, encoded_chunk, width_of
from theta_daemon.tensor import CHUNK_WORDS, Buffer

TEMPORARY: Final = ".tmp"


class EntryWriter:
    """One value of `nbytes` bytes on its way to `path`. `write` is thread-safe; `commit` or `abort` ends it, once."""

    def __init__(self, path: Path, nbytes: int, mode: int, *, compress_words: int | None = None) -> None:
        """`compress_words`: bytes of a word, for the compressed form; None writes the raw one. Raises OSError."""
        self.size = 0
        """Bytes of the entry, after `commit`."""
        self._path = path
        self._nbytes = nbytes
        self._width = 0 if compress_words is None else width_of(compress_words, nbytes)
        self._chunks: dict[int, bytes] = {}
        self._lock = threading.Lock()
        self._failed = False
        self._ended = False
        self._users = 0
        self._fd = -1
        self._temporary = path.with_name(f"{os.urandom(12).hex()}{TEMPORARY}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(self._temporary, flags, 0o600)
        try:
            os.fchmod(self._fd, mode)
        except OSError:
            self.abort()
            raise

    @property
    def step(self) -> int:
        """Pieces for `write` start at multiples of this many bytes, and are as long but for the last one."""
        return CHUNK_WORDS * (self._width or 1)

    def write(self, offset: int, data: Buffer) -> None:
        """The piece at `offset`. The memory may be used again afterwards."""
        with self._lock:
            if self._failed or self._ended:
                return
            self._users += 1  # the descriptor must not be closed, and be another file's, while we write
        try:
            if self._width:
                self._encode(offset, memoryview(data).cast("B"))
            else:
                self._put(offset, data)
        except (OSError, MemoryError):
            self._failed = True
        finally:
            with self._lock:
                self._users -= 1
            self._close()

    def commit(self) -> bool:
        """Give the value its name; whether that was possible. All pieces have been written."""
        try:
            if not self._failed:
                self._finish()
                self._take_place()
                return True
        except OSError:
            pass
        finally:
            self.abort()
        return False

    def _take_place(self) -> None:
        try:
            self._temporary.replace(self._path)
        except IsADirectoryError:  # nothing of ours, nor of anybody's while it is empty
            self._path.rmdir()
            self._temporary.replace(self._path)

    def abort(self) -> None:
        """Throw away what was written, unless it was committed."""
        self._ended = True
        self._close()

    def __del__(self) -> None:
        self.abort()

    def _close(self) -> None:
        with self._lock:
            if not self._ended or self._users or self._fd < 0:
                return
            fd, self._fd = self._fd, -1
        with suppress(OSError):
            os.close(fd)
        with suppress(OSError):
            self._temporary.unlink()
        self._chunks.clear()

    def _encode(self, offset: int, view: memoryview) -> None:
        for start in range(0, view.nbytes, self.step):
            encoded = encoded_chunk(view[start : start + self.step], self._width)
            with self._lock:
                self._chunks[(offset + start) // self.step] = encoded

    def _finish(self) -> None:
        self.size = self._nbytes
        if self._width:
            chunks = [self._chunks[index] for index in range(-(-self._nbytes // self.step))]
            lengths = struct.pack(f"<{len(chunks)}I", *map(len, chunks))
            self.size = 0
            for part in (HEAD.pack(MAGIC, self._width, self._nbytes), lengths, *chunks):
                self._put(self.size, part)
                self.size += len(part)

    def _put(self, offset: int, data: Buffer) -> None:
        view = memoryview(data).cast("B")
        while view.nbytes:
            written = os.pwrite(self._fd, view, offset)
            view = view[written:]
            offset += written
