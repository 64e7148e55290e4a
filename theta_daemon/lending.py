"""writev without its copy: vmsplice(2) lends the pages of a buffer to a pipe, and the reader copies them from there.

Half of what a pipe costs is the writer's copy; the reader's half shrinks too, as the pages are still in the processor's
cache. The price: what is lent must not change, nor its memory be used for anything else, until the reader has had it. Pages
that a pipe refers to survive the process and an unmapping, but not a `free` that gives them to the next allocation.
`PipeWriter` keeps that rule.

Linux only; `Lender.of` gives None for what is no pipe and where the system refuses.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import sys
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, Self

import numpy as np

Buffer = bytes | bytearray | memoryview

_VECTORS: Final = 64
"""More buffers than a pipe of 1 MiB can take in packets; the kernel copies the whole list each time."""

PIPE_BYTES: Final = 1 << 20
"""Linux lets an ordinary user have pipes of up to 1 MiB (pipe(7), /proc/sys/fs/pipe-max-size)."""


class Lender:
    """Lends to one pipe, which holds `pipe_bytes`."""

    def __init__(self, fd: int, pipe_bytes: int, vmsplice: Callable[..., int]) -> None:
        self._fd = fd
        self._vmsplice = vmsplice
        self.pipe_bytes = pipe_bytes
        """After as many further bytes the reader has had what was lent before: each of the pipe's slots holds at most a
        page, and it has a slot for each page of its size."""

    @classmethod
    def of(cls, fd: int) -> Self | None:
        """A lender for the descriptor, if it is a pipe's and the system can lend. Whoever else has the pipe may make it
        as large as `PIPE_BYTES` meanwhile.
        """
        if _VMSPLICE is None:
            return None
        try:
            pipe_bytes = fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)
        except OSError:
            return None
        return cls(fd, max(pipe_bytes, PIPE_BYTES), _VMSPLICE) if _VMSPLICE(fd, None, 0, 0) == 0 else None

    def loan(self, buffers: Sequence[Buffer]) -> Loan:
        """These bytes, to be lent one pipeful after the other."""
        return Loan(self._fd, buffers, self._vmsplice)


class Loan:
    """Some buffers on their way into a pipe."""

    def __init__(self, fd: int, buffers: Sequence[Buffer], vmsplice: Callable[..., int]) -> None:
        self._fd = fd
        self._vmsplice = vmsplice
        self._sizes = list(map(len, buffers))
        self._vectors = np.array([_addresses(buffers), self._sizes], np.uintp).T.copy()
        self._address = self._vectors.ctypes.data
        self._first = 0

    def send(self) -> int:
        """Like `os.writev`: how many bytes more the pipe has taken, 0 when it has all. Raises OSError as that does.

        One pipeful at most, and what there is room for at least.
        """
        first, count = self._first, min(len(self._sizes) - self._first, _VECTORS)
        if not count:
            return 0
        while (done := self._vmsplice(self._fd, self._address + first * self._vectors.strides[0], count, 0)) < 0:
            code = ctypes.get_errno()
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code))
        rest = done
        while first < len(self._sizes) and rest >= self._sizes[first]:
            rest -= self._sizes[first]
            first += 1
        if rest:
            self._vectors[first, 0] += rest
            self._sizes[first] -= rest
            self._vectors[first, 1] = self._sizes[first]
        self._first = first
        return done


class _PyBuffer(ctypes.Structure):
    """Py_buffer, of which only the first field matters here (docs.python.org, C API, Buffer Protocol)."""

    _fields_: ClassVar = [("start", ctypes.c_void_p), ("rest", ctypes.c_byte * 256)]


def _addresses(buffers: Sequence[Buffer]) -> list[int]:
    """Where their bytes are. (numpy tells too, and needs three times as long.)"""
    view = _PyBuffer()
    place = ctypes.addressof(view)
    found = []
    for buffer in buffers:
        _GET_BUFFER(buffer, place, 0)
        found.append(view.start)
        _RELEASE_BUFFER(place)
    return found


_GET_BUFFER = ctypes.pythonapi.PyObject_GetBuffer
_GET_BUFFER.argtypes = [ctypes.py_object, ctypes.c_void_p, ctypes.c_int]
_RELEASE_BUFFER = ctypes.pythonapi.PyBuffer_Release
_RELEASE_BUFFER.argtypes = [ctypes.c_void_p]
_RELEASE_BUFFER.restype = None


def _find() -> ctypes._NamedFuncPointer | None:
    if not sys.platform.startswith("linux") or not hasattr(fcntl, "F_GETPIPE_SZ"):
        return None
    try:
        found = ctypes.CDLL(None, use_errno=True).vmsplice
    except (OSError, AttributeError):
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_ulong, ctypes.c_uint]
    found.restype = ctypes.c_ssize_t
    return found


_VMSPLICE = _find()
