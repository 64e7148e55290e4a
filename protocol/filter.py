"""git's long-running filter protocol, version 2, for either role: bytes to events and events to bytes. No I/O.

    connection.receive_data(bytes read)         b"" is the end of the stream
    connection.receive_scattered(…)             the same, while content is `due`
    connection.next_event() -> Event            or Pause
    connection.send(event) -> list of buffers   for `writev`, in order

Rules
1. The state tells how bytes are read: as a list of lines up to a flush, or as content. Content is never copied.
2. While it is our turn nothing is read: `next_event` answers Pause.OUR_TURN and keeps the bytes.
3. Unknown keys are ignored; a line that is no `key=value` is an error, for it is a sign of lost step.
4. Nothing can be sent out of turn, nor anything that git did not offer: LocalProtocolError, and nothing was sent.
5. After a RemoteProtocolError the connection is FAILED: where the next packet begins is not known any more.

The buffer given to `receive_data` may be used again after either Pause was returned: the views in Data events and `contents`
look at it.
Sources: gitattributes(5) "Long Running Filter Process", convert.c and sub-process.c of git.
"""

from __future__ import annotations

from enum import Enum

from protocol import wording
from protocol.errors import EndedError, LocalProtocolError, RemoteProtocolError
from protocol.events import (
    DELAY,
    Answer,
    Capabilities,
    Closed,
    Data,
    EndOfContent,
    Event,
    Greeting,
    ListAvailable,
    Request,
    Role,
    Status,
)
from protocol.pktline import Buffer, Mark, PacketReader, Scatter
from protocol.states import TURN, State, follow

_CONTENT = frozenset({State.PAYLOAD, State.CONTENT})


class Pause(Enum):
    """Why there is no event."""

    NEED_DATA = "give me more bytes"
    OUR_TURN = "say something first"


class Connection:
    """One end of the conversation. `role` is ours."""

    def __init__(self, role: Role) -> None:
        self.role = role
        self.state = State.GREETING
        self.capabilities: frozenset[bytes] = frozenset()
        self._reader = PacketReader()
        self._lines: list[bytes] = []  # of a list whose flush has not arrived
        self._ended = False
        self._can_delay = False  # of the request in progress

    @property
    def our_turn(self) -> bool:
        """Whether the next word is ours."""
        return TURN[self.state] is self.role

    def receive_data(self, data: Buffer) -> None:
        """Bytes as they were read; empty at the end of the stream."""
        if not data:
            self._ended = True
        elif self._ended:
            raise LocalProtocolError("bytes after the end of the stream")
        else:
            self._reader.feed(data)

    @property
    def due(self) -> int | None:
        """As `PacketReader.due`, while content arrives."""
        return self._reader.due if self.state in _CONTENT and not self.our_turn else None

    def receive_scattered(self, scatter: Scatter, count: int) -> None:
        """`receive_data` for bytes that were read into a `Scatter` made for what was `due`."""
        if self._ended:
            raise LocalProtocolError("bytes after the end of the stream")
        if count:
            self._reader.feed_scattered(scatter, count)
        else:
            self._ended = True

    def next_event(self) -> Event | Pause:
        """What the other end said next. Raises RemoteProtocolError when it makes no sense."""
        if self.state is State.CLOSED:
            return Closed()
        if self.state is State.FAILED:
            raise LocalProtocolError("the connection has failed before")
        if self.our_turn:
            self._reader.detach()
            return Pause.OUR_TURN
        try:
            event = self._read()
            if event is None:
                return self._nothing()
            self._move(event, RemoteProtocolError)
        except RemoteProtocolError:
            self.state = State.FAILED
            raise
        return event

    def contents(self) -> list[memoryview]:
        """The next pieces of content, as many as come at no cost: what `next_event` would have said as Data one by one."""
        return self._reader.pieces() if self.state in _CONTENT and not self.our_turn else []

    def send(self, event: Event) -> list[Buffer]:
        """The bytes that say `event`, without a copy of a Data event's buffer. Raises LocalProtocolError."""
        if not self.our_turn:
            raise LocalProtocolError(f"{type(event).__name__} out of turn: due is {self.state.value}")
        data = wording.encode(event)
        self._move(event, LocalProtocolError)
        return data

    def _read(self) -> Event | None:
        """The next event as the state reads it; None when its bytes are not all here."""
        if self.state in _CONTENT:
            piece = self._reader.content()
            if isinstance(piece, memoryview):
                return Data(piece)
            return EndOfContent() if piece is Mark.FLUSH else None
        while not isinstance(text := self._reader.line(), Mark):
            self._lines.append(text)
        if text is Mark.MORE:
            return None
        lines, self._lines = self._lines, []
        return wording.decode(self.state, lines)

    def _nothing(self) -> Event | Pause:
        """No event is in the bytes: more must come, or the stream ended, rightly or not."""
        if not self._ended:
            return Pause.NEED_DATA
        if self.state is not State.IDLE or self._lines or not self._reader.between_packets:
            raise EndedError(f"the stream ended where due was {self.state.value}")
        self.state = State.CLOSED
        return Closed()

    def _move(self, event: Event, wrong: type[LocalProtocolError | RemoteProtocolError]) -> None:
        """Follow the table, and check what depends on more than the state."""
        after = follow(self.state, event)
        if after is None:
            raise wrong(f"{event} where due was {self.state.value}")
        if isinstance(event, Greeting):
            speaker = TURN[self.state]
            if event.role is not speaker or 2 not in event.versions:
                raise wrong(f"{event} is not the greeting of version 2 that was due")
        elif isinstance(event, Capabilities):
            if self.state is State.OFFERED and not event.names <= self.capabilities:
                raise wrong(f"{sorted(event.names - self.capabilities)} was never offered")
            self.capabilities = event.names
        elif isinstance(event, Request):
            self._require(event.command.value, wrong)
            self._can_delay = event.can_delay
        elif isinstance(event, ListAvailable):
            self._require(DELAY, wrong)
        elif isinstance(event, Answer) and event.status is Status.DELAYED and not self._can_delay:
            raise wrong("delayed, though git did not offer to wait")
        self.state = after

    def _require(self, capability: bytes, wrong: type[LocalProtocolError | RemoteProtocolError]) -> None:
        if capability not in self.capabilities:
            raise wrong(f"{capability!r} was not agreed upon")


class FilterConnection(Connection):
    """The filter's end."""

    def __init__(self) -> None:
        super().__init__(Role.FILTER)


class GitConnection(Connection):
    """git's end: for tests and benchmarks."""

    def __init__(self) -> None:
        super().__init__(Role.GIT)
