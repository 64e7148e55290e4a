"""Events as lists of lines, and back: the words of git's filter protocol. Knows no order of events.

Lines are `key=value`, split at the first "=" since a value may hold more of them. Unknown keys are ignored, a key that
comes twice counts the last time (so does git), and a line without "=" is an error: it is content taken for words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from protocol import pktline
from protocol.errors import RemoteProtocolError
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
from protocol.pktline import Buffer
from protocol.states import State

_ID: Final = re.compile(rb"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_LIST_AVAILABLE: Final = b"list_available_blobs"
_GIT_ORDER: Final = (b"clean", b"smudge", b"delay")


def encode(event: Event) -> list[Buffer]:
    """The bytes that say `event`; `Closed` is said by closing, without bytes."""
    match event:
        case Data(data):
            return list(pktline.frames(data))
        case EndOfContent():
            return [pktline.FLUSH]
        case Greeting(role, versions):
            return [pktline.lines([role.value, *(b"version=%d" % number for number in sorted(versions))])]
        case Capabilities(names):
            return [pktline.lines(b"capability=" + name for name in sorted(names, key=_rank))]
        case Request():
            return [pktline.lines(_request_lines(event))]
        case ListAvailable():
            return [pktline.lines([b"command=" + _LIST_AVAILABLE])]
        case Available(pathnames):
            return [pktline.lines(b"pathname=" + name for name in pathnames)]
        case Answer(status):
            return [pktline.lines([b"status=" + status.value])]
        case Verdict(status):
            return [pktline.lines([b"status=" + status.value] if status else [])]
        case _:
            return []


def decode(state: State, lines: Sequence[bytes]) -> Event:
    """What a list of lines says in a state that waits for one. Raises RemoteProtocolError."""
    match state:
        case State.GREETING | State.GREETED:
            return _greeting(lines)
        case State.OFFERING | State.OFFERED:
            return Capabilities(frozenset(value for key, value in _pairs(lines) if key == b"capability"))
        case State.IDLE:
            return _request(dict(_pairs(lines)))
        case State.LISTING:
            return Available(tuple(value for key, value in _pairs(lines) if key == b"pathname"))
        case State.ANSWERING | State.LISTED:
            status = _status(lines)
            if status is None:
                raise RemoteProtocolError("an answer without a status")
            return Answer(status)
        case State.JUDGING:
            status = _status(lines)
            if status is Status.DELAYED:
                raise RemoteProtocolError("delayed is no verdict")
            return Verdict(status)
        case _:
            raise AssertionError(state)


def _rank(name: bytes) -> tuple[int, bytes]:
    """Capabilities in git's own order."""
    return _GIT_ORDER.index(name) if name in _GIT_ORDER else len(_GIT_ORDER), name


def _pairs(lines: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    for line in lines:
        key, equals, value = line.partition(b"=")
        if not equals:
            raise RemoteProtocolError(f"{line[:80]!r} is not key=value")
        yield key, value


def _greeting(lines: Sequence[bytes]) -> Greeting:
    names = {role.value: role for role in Role}
    if not lines or lines[0] not in names:
        raise RemoteProtocolError(f"{lines[:1]!r} is not the greeting of a process filter")
    numbers = (value for key, value in _pairs(lines[1:]) if key == b"version")
    return Greeting(names[lines[0]], frozenset(int(number) for number in numbers if number.isdigit()))


def _request_lines(request: Request) -> Iterator[bytes]:
    """In git's own order."""
    yield b"command=" + request.command.value
    yield b"pathname=" + request.pathname
    if request.ref is not None:
        yield b"ref=" + request.ref
    if request.treeish is not None:
        yield b"treeish=" + request.treeish.encode("ascii")
    if request.blob is not None:
        yield b"blob=" + request.blob.encode("ascii")
    if request.can_delay:
        yield b"can-delay=1"


def _request(said: dict[bytes, bytes]) -> Request | ListAvailable:
    word = said.get(b"command", b"")
    if word == _LIST_AVAILABLE:
        return ListAvailable()
    try:
        command = Command(word)
    except ValueError:
        raise RemoteProtocolError(f"unknown command {word[:80]!r}") from None
    if b"pathname" not in said:
        raise RemoteProtocolError(f"{command.name.lower()} without a pathname")
    return Request(
        command,
        said[b"pathname"],
        ref=said.get(b"ref"),
        treeish=_id(said, b"treeish"),
        blob=_id(said, b"blob"),
        can_delay=said.get(b"can-delay") == b"1",
    )


def _id(said: dict[bytes, bytes], key: bytes) -> str | None:
    value = said.get(key)
    if value is None:
        return None
    if _ID.fullmatch(value) is None:
        raise RemoteProtocolError(f"{key.decode()} {value[:80]!r} is not an object id")
    return value.decode("ascii")


def _status(lines: Sequence[bytes]) -> Status | None:
    said = dict(_pairs(lines)).get(b"status")
    if said is None:
        return None
    try:
        return Status(said)
    except ValueError:
        raise RemoteProtocolError(f"unknown status {said[:80]!r}") from None
