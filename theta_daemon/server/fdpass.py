"""Descriptors that arrive over a unix socket, owned from the first moment.

Rules: close-on-exec on arrival; closed exactly once, by a context manager, then forgotten; a truncated or unexpected set is
closed whole and refused (systemd#15457: what was cut off cannot be recovered). `socket.recv_fds` is not used: it ignores
its flags on Python 3.11, 3.12.1 and 3.13.0.
"""

from __future__ import annotations

import array
import os
import socket
from types import TracebackType
from typing import Final, Self

_ROOM: Final = socket.CMSG_SPACE(16 * array.array("i").itemsize)
"""Room for more than the expected three, so that a wrong number is seen as one."""


class DescriptorError(Exception):
    """Not the three descriptors that belong here. None of them is open any more."""


class OwnedFds:
    """Some descriptors of ours, closed together."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.truncated = False

    def close(self) -> None:
        """Close and forget them; safe to call twice."""
        numbers, self.numbers = self.numbers, []
        for number in numbers:
            os.close(number)

    def expect(self, count: int) -> None:
        """Close them and raise DescriptorError unless there are so many, and none was cut off."""
        arrived = len(self.numbers)
        if self.truncated or arrived != count:
            self.close()
            raise DescriptorError("some were cut off" if self.truncated else f"{arrived} were passed, not {count}")

    def sever(self) -> None:
        """Make the first read as ended and the others write into a broken pipe, under the same numbers.

        This closes our copies at once and leaves nothing for a thread that still uses the numbers to hit by mistake.
        """
        if not self.numbers:
            return
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.dup2(null, self.numbers[0], inheritable=False)
        finally:
            os.close(null)
        reader, writer = os.pipe()
        os.close(reader)
        try:
            for number in self.numbers[1:]:
                os.dup2(writer, number, inheritable=False)
        finally:
            os.close(writer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


def receive(connection: socket.socket, size: int, fds: OwnedFds) -> bytes:
    """Up to `size` bytes; descriptors that came with them are added to `fds`. Raises OSError."""
    flags = getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    data, ancillary, message_flags, _ = connection.recvmsg(size, _ROOM, flags)
    for level, kind, payload in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            numbers = array.array("i")
            numbers.frombytes(payload[: len(payload) - len(payload) % numbers.itemsize])
            fds.numbers += numbers
            for number in numbers:
                os.set_inheritable(number, False)  # where the flag above does not exist
    fds.truncated |= bool(message_flags & socket.MSG_CTRUNC)
    return data
