"""A filter that stores lower case and gives upper case: the session's handler for tests, and a real git filter.

As a program: `python -P upper.py [delay]`. Files are told apart by their content: one that holds "refuse" fails at smudge.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from protocol.events import Command, Request
from theta_daemon.errors import ThetaError
from theta_daemon.session import Content, Delayed, run


class Collected:
    """A sink that keeps everything in memory."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.closed = False

    def write(self, data: memoryview) -> None:
        self.data += data

    def close(self) -> None:
        self.closed = True


class Upper:
    """clean: lower case; smudge: upper case, delayed when `delay` and git allows it."""

    def __init__(self, *, delay: bool = False) -> None:
        self.delay = delay
        self.delayed: dict[bytes, bytes] = {}
        self.handed_out: set[bytes] = set()
        self.requests: list[Request] = []
        self.sinks: list[Collected] = []
        self.closed = 0

    def open_sink(self, request: Request) -> Collected:
        self.requests.append(request)
        self.sinks.append(Collected())
        return self.sinks[-1]

    def answer(self, request: Request, sink: Collected) -> Content | Delayed:
        data = bytes(sink.data)
        if self.delay and request.can_delay:
            self.delayed[request.pathname] = data
            return Delayed.DELAYED
        if request.pathname in self.handed_out:
            self.handed_out.remove(request.pathname)
            data = self.delayed.pop(request.pathname)
        if request.command is Command.SMUDGE and b"refuse" in data:
            raise ThetaError("this file asks to be refused", "take the word out of it")
        return self.pieces(data.lower() if request.command is Command.CLEAN else data.upper())

    def pieces(self, data: bytes) -> Iterator[memoryview]:
        """The content in pieces of growing size, so that packets and pieces never agree."""
        start, size = 0, 1
        while start < len(data):
            yield memoryview(data)[start : start + size]
            start, size = start + size, size * 3

    def available(self) -> Sequence[bytes]:
        ready = sorted(set(self.delayed) - self.handed_out)[:2]
        self.handed_out.update(ready)
        return ready

    def close(self) -> None:
        self.closed += 1


def command(*options: str) -> str:
    """The value of `filter.<name>.process` that runs this file."""
    return " ".join([sys.executable, "-P", str(Path(__file__).resolve()), *options])


if __name__ == "__main__":
    sys.exit(run(0, 1, Upper(delay="delay" in sys.argv), lambda message: print(message, file=sys.stderr)))
