"""Feeds one end of a recorded conversation in any portions and answers as the other end was recorded to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from protocol.events import Closed, Data, Event, Role
from protocol.filter import Connection, FilterConnection, GitConnection, Pause

JUNK = b"zzzz is no packet"


def merged(events: Iterable[Event]) -> list[Event]:
    """Events with the pieces of one content joined: how it was cut says nothing."""
    out: list[Event] = []
    for event in events:
        if not isinstance(event, Data):
            out.append(event)
        elif out and isinstance(last := out[-1], Data):
            out[-1] = Data(bytes(last.data) + event.data)
        else:
            out.append(Data(bytes(event.data)))
    return out


def whole(data: bytes) -> Iterator[bytes]:
    """All at once."""
    yield from [data] if data else []


def byte_by_byte(data: bytes) -> Iterator[bytes]:
    """As a slow pipe gives it."""
    return (data[at : at + 1] for at in range(len(data)))


def cut(data: bytes, places: Iterable[int]) -> Iterator[bytes]:
    """Cut at the given places."""
    start = 0
    for place in sorted(places):
        if start < place < len(data):
            yield data[start:place]
            start = place
    yield from whole(data[start:])


class Listener:
    """One end: `heard` are its events so far, contents joined; `answers` are sent whenever it is its turn.

    `sent` are the bytes of those answers.
    """

    def __init__(self, connection: Connection, answers: Iterable[Event]) -> None:
        self.connection = connection
        self._answers = iter(answers)
        self._events: list[Event] = []
        self.sent = bytearray()
        self._hear()

    @property
    def heard(self) -> list[Event]:
        return merged(self._events)

    def listen(self, portions: Iterable[bytes]) -> Listener:
        """Each portion lies in one and the same buffer, overwritten as soon as the connection asks for more."""
        buffer = bytearray()
        for portion in portions:
            if len(portion) > len(buffer):
                buffer = bytearray(len(portion))
            buffer[: len(portion)] = portion
            self.connection.receive_data(memoryview(buffer)[: len(portion)])
            self._hear()
            buffer[: len(portion)] = b"\xff" * len(portion)
        return self

    def end(self) -> Listener:
        """The end of the stream."""
        self.connection.receive_data(b"")
        self._hear()
        return self

    def _hear(self) -> None:
        while True:
            event = self.connection.next_event()
            if event is Pause.OUR_TURN and (mine := next(self._answers, None)) is not None:
                self.sent += b"".join(self.connection.send(mine))
                continue
            if isinstance(event, Pause) or (self.connection.role is Role.GIT and isinstance(event, Closed)):
                return
            self._events.append(Data(bytes(event.data)) if isinstance(event, Data) else event)
            if isinstance(event, Closed):
                return


def both_ends(said: bytes, answered: bytes) -> tuple[list[Event], list[Event]]:
    """git's events and the filter's, in order, of one recorded session: each end read with the other's answers."""
    filter_end, git_end = FilterConnection(), GitConnection()
    filter_end.receive_data(said)
    filter_end.receive_data(b"")
    git_end.receive_data(answered)
    git_end.receive_data(b"")
    git_events: list[Event] = []
    filter_events: list[Event] = []
    while not isinstance(event := filter_end.next_event(), Closed):
        if not isinstance(event, Pause):
            git_events.append(event)
            git_end.send(event)
            continue
        reply = git_end.next_event()
        assert not isinstance(reply, Pause), "both ends wait for each other"
        filter_events.append(reply)
        filter_end.send(reply)
    git_end.send(event)
    return merged([*git_events, event]), merged(filter_events)
