"""git's side of a filter process, blocking, over two descriptors: for tests and benchmarks that need no git."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from protocol.events import (
    Answer,
    Available,
    Capabilities,
    Command,
    Data,
    EndOfContent,
    Event,
    Greeting,
    ListAvailable,
    Request,
    Role,
    Status,
    Verdict,
)
from protocol.filter import GitConnection, Pause
from protocol.pktline import Buffer
from theta_daemon.pipes import PipeReader, PipeWriter


@dataclass(frozen=True)
class Reply:
    """The status that counts in the end, and the content as far as it came."""

    status: Status
    content: bytes


class GitSide:
    """Speaks as git does, strictly in turns. `to_filter` and `from_filter` are closed by `close`."""

    def __init__(self, to_filter: int, from_filter: int) -> None:
        self.connection = GitConnection()
        self.fds = (to_filter, from_filter)
        self._writer = PipeWriter(to_filter)
        self._reader = PipeReader(from_filter)

    def handshake(self, names: frozenset[bytes] | None = None) -> frozenset[bytes]:
        """The capabilities the filter chose."""
        self._say(Greeting(Role.GIT))
        self._hear()
        self._say(Capabilities() if names is None else Capabilities(names))
        self._hear()
        return self.connection.capabilities

    def clean(self, pathname: bytes, content: Iterable[Buffer] = ()) -> Reply:
        return self.ask(Request(Command.CLEAN, pathname), content)

    def smudge(self, pathname: bytes, content: Iterable[Buffer] = (), *, can_delay: bool = False) -> Reply:
        return self.ask(Request(Command.SMUDGE, pathname, can_delay=can_delay), content)

    def ask(
        self, request: Request, content: Iterable[Buffer], receive: Callable[[memoryview], object] | None = None
    ) -> Reply:
        """Any request; `receive` takes the content piece by piece instead of the reply."""
        self.start(request, content)
        self._say(EndOfContent())
        answer = self._hear()
        assert isinstance(answer, Answer)
        if answer.status is not Status.SUCCESS:
            return Reply(answer.status, b"")
        collected = bytearray()
        while isinstance(event := self._hear(), Data):
            (receive or collected.extend)(memoryview(event.data))
        verdict = self._hear()
        assert isinstance(verdict, Verdict)
        return Reply(verdict.status or answer.status, bytes(collected))

    def start(self, request: Request, content: Iterable[Buffer]) -> None:
        """A request and content that does not end here."""
        self._say(request)
        for buffer in content:
            self._say(Data(buffer))

    def list_available_blobs(self) -> tuple[tuple[bytes, ...], Status]:
        """Pathnames that may be asked for now, and what the filter says of the list."""
        self._say(ListAvailable())
        available = self._hear()
        answer = self._hear()
        assert isinstance(available, Available)
        assert isinstance(answer, Answer)
        return available.pathnames, answer.status

    def close(self) -> None:
        """Say that there is nothing more to ask."""
        for fd in self.fds:
            os.close(fd)

    def _say(self, event: Event) -> None:
        self._writer.write(self.connection.send(event))
        self._writer.flush()

    def _hear(self) -> Event:
        while isinstance(event := self.connection.next_event(), Pause):
            self.connection.receive_data(self._reader.read())
        return event
