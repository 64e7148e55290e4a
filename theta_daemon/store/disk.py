"""Files of a store on disk: reading them by position, making names durable, and saying what went wrong with which path."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import Final

from theta_daemon.errors import RecordError, StoreError

_DAMAGED: Final = "the object is damaged: remove the file and fetch it again with `git theta fetch`"

_HINTS: Final = {
    errno.ENOSPC: "free some space on that file system, then run the command again",
    errno.EDQUOT: "the disk quota is used up; free some space, then run the command again",
    errno.EROFS: "the file system is read-only; mount it writable, then run the command again",
    errno.EACCES: "check who owns the folder and its permissions, then run the command again",
    errno.EPERM: "check who owns the folder and its permissions, then run the command again",
}


def store_error(doing: str, path: Path | str, error: OSError) -> StoreError:
    """The StoreError for an OSError at `path`: names the path, the reason and the remedy."""
    reason = error.strerror or str(error)
    return StoreError(f"cannot {doing} {path}: {reason}", _HINTS.get(error.errno or 0))


class FileReader:
    """An ObjectReader on a descriptor that it owns. Dropping the last reference closes it, so that a cache can forget a
    reader while another thread still reads from it.
    """

    def __init__(self, fd: int, path: Path | str) -> None:
        self._fd = fd
        self._path = path
        status = os.fstat(fd)
        self.regular = stat.S_ISREG(status.st_mode)
        self._size = status.st_size
        self.modified_seconds = status.st_mtime

    @property
    def size(self) -> int:
        return self._size

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > self._size:
            raise RecordError(f"{self._path} ends before byte {offset + length}", _DAMAGED)
        try:
            data = os.pread(self._fd, length, offset)
            while len(data) < length:  # the kernel gives at most 2 GiB at once
                more = os.pread(self._fd, length - len(data), offset + len(data))
                if not more:
                    raise RecordError(f"{self._path} was cut short to {offset + len(data)} bytes", _DAMAGED)
                data += more
        except OSError as error:
            raise store_error("read object", self._path, error) from error
        return data

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill `target` (writable bytes) from `offset`. Raises RecordError, StoreError."""
        try:
            while target.nbytes:
                done = os.preadv(self._fd, [target], offset)
                if not done:
                    raise RecordError(f"{self._path} was cut short to {offset} bytes", _DAMAGED)
                target = target[done:]
                offset += done
        except OSError as error:
            raise store_error("read object", self._path, error) from error

    def stamp(self) -> tuple[int, int]:
        """Size and time of the last change, as they are now: whoever writes into the file changes them. Raises StoreError."""
        try:
            status = os.fstat(self._fd)
        except OSError as error:
            raise store_error("read object", self._path, error) from error
        return status.st_size, status.st_mtime_ns

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def fsync_directory(directory: Path) -> None:
    """Make the names in `directory` durable. Raises StoreError."""
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot, and need not
            raise store_error("make durable", directory, error) from error
