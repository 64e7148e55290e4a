"""writev without its copy: vmsplice(2) lends the pages of a buffer to a pipe, and the reader copies them from there.

Half of what a pipe costs is the writer's copy; the reader's half shrinks too, as the pages are still in the processor's
cache. The price: what is lent must not change, nor its memory be used for anything else, until the reader has had it. Pages
that a pipe refers to survive the process and an unmapping, but not a `free` that gives them to the next allocation.
`PipeWriter` keeps that rule.

Linux only, and where a compiler was at hand when the package was installed.
"""

from __future__ import annotations

import fcntl
from typing import Final, Self

from protocol.pktline import Buffer

try:
    from theta_daemon import _vmsplice
except ImportError:
    _vmsplice = None  # type: ignore[assignment]

PIPE_BYTES: Final = 1 << 20
"""Linux lets an ordinary user have pipes of up to 1 MiB (pipe(7), /proc/sys/fs/pipe-max-size)."""


class Lender:
    """Lends to one pipe.

    After `pipe_bytes` further bytes its reader has had what was lent before: each of the pipe's slots holds at most a page,
    and it has a slot for each page of its size. Whoever else has the pipe may make it as large as `PIPE_BYTES` meanwhile.
    """

    def __init__(self, fd: int, pipe_bytes: int) -> None:
        self._fd = fd
        self.pipe_bytes = max(pipe_bytes, PIPE_BYTES)

    @classmethod
    def of(cls, fd: int) -> Self | None:
        """A lender for the descriptor; None for what is no pipe, and where the system does not lend."""
        get_size = getattr(fcntl, "F_GETPIPE_SZ", None)
        if _vmsplice is None or get_size is None:
            return None
        try:
            size = fcntl.fcntl(fd, get_size)
            _vmsplice.lend(fd, [], 0, 0)
        except OSError:
            return None
        return cls(fd, size)

    def lend(self, loan: Loan) -> int:
        """Like `os.writev`: how many bytes more of `loan` the pipe has taken, 0 when it has all. Raises OSError as that does.

        A pipeful at most, and not less than there is room for.
        """
        while not loan.over:
            try:
                loan.first, loan.offset, taken = _vmsplice.lend(self._fd, loan.buffers, loan.first, loan.offset)
            except InterruptedError:
                continue
            if not taken:  # never seen; taken for the end, it would be a file that lacks its middle
                raise OSError("the pipe takes nothing")
            return taken
        return 0


class Loan:
    """Buffers on their way into a pipe, none of them empty; `first` and `offset` tell which byte is the next."""

    def __init__(self, buffers: list[Buffer]) -> None:
        self.buffers = buffers
        self.first = 0
        self.offset = 0

    @property
    def over(self) -> bool:
        """Whether the pipe has taken all."""
        return self.first == len(self.buffers)
