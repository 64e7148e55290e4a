"""The table, and what the connection checks beyond it."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from protocol.errors import EndedError, LocalProtocolError, RemoteProtocolError
from protocol.events import (
    Answer,
    Available,
    Capabilities,
    Closed,
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
from protocol.filter import Connection, FilterConnection, GitConnection, Pause
from protocol.pktline import lines
from protocol.states import TABLE, TURN, State, follow, step
from protocol.wording import encode
from tests.protocol.conversation import Listener, byte_by_byte, whole

Portions = Callable[[bytes], Iterable[bytes]]

SMUDGE = Request(Command.SMUDGE, b"a", can_delay=True)
CLEAN = Request(Command.CLEAN, b"a")
EVENTS: list[Event] = [
    Greeting(Role.GIT),
    Greeting(Role.FILTER),
    Capabilities(),
    SMUDGE,
    ListAvailable(),
    Data(b"x"),
    EndOfContent(),
    *map(Answer, Status),
    Verdict(),
    Available((b"a",)),
    Closed(),
]
TO_IDLE: list[Event] = [Greeting(Role.GIT), Greeting(Role.FILTER), Capabilities(), Capabilities()]
TO_ANSWERING: list[Event] = [*TO_IDLE, SMUDGE, EndOfContent()]
ROADS: dict[State, list[Event]] = {
    State.GREETING: [],
    State.GREETED: TO_IDLE[:1],
    State.OFFERING: TO_IDLE[:2],
    State.OFFERED: TO_IDLE[:3],
    State.IDLE: TO_IDLE,
    State.PAYLOAD: [*TO_IDLE, SMUDGE],
    State.ANSWERING: TO_ANSWERING,
    State.CONTENT: [*TO_ANSWERING, Answer(Status.SUCCESS)],
    State.JUDGING: [*TO_ANSWERING, Answer(Status.SUCCESS), EndOfContent()],
    State.LISTING: [*TO_IDLE, ListAvailable()],
    State.LISTED: [*TO_IDLE, ListAvailable(), Available(())],
    State.CLOSED: [*TO_IDLE, Closed()],
}


def hear(connection: Connection, event: Event) -> Event | Pause:
    """What the connection makes of `event` said by the other end."""
    connection.receive_data(b"".join(encode(event)))
    return connection.next_event()


def at(state: State, role: Role) -> Connection:
    """A connection that came to `state` by saying and hearing."""
    connection = Connection(role)
    for event in ROADS[state]:
        if connection.our_turn:
            connection.send(event)
        else:
            assert hear(connection, event) == event
    assert connection.state is state
    return connection


def test_every_state_has_its_turn_and_can_be_reached() -> None:
    """The table and the turns speak of the same states; no state but FAILED is without a road."""
    assert set(TABLE) == set(TURN) == set(State)
    assert set(ROADS) == set(State) - {State.FAILED}
    assert {after for row in TABLE.values() for after in row.values()} == set(State) - {State.GREETING, State.FAILED}


def test_a_turn_ends_only_with_a_list_or_content() -> None:
    """Nobody speaks twice in a row but in the middle of content, or to judge what it just sent."""
    for state, row in TABLE.items():
        for move, after in row.items():
            if TURN[after] is TURN[state]:
                assert move in {Data, Available, EndOfContent, Status.SUCCESS} or after in {
                    State.PAYLOAD,
                    State.CONTENT,
                }


@pytest.mark.parametrize("state", [state for state in ROADS if TURN[state] is not None])
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: str(step(event)))
def test_only_the_table_can_be_sent(state: State, event: Event) -> None:
    """On its own turn an end can say what the table allows, and nothing else; a refusal changes nothing."""
    role = TURN[state]
    assert role is not None
    connection = at(state, role)
    wrong_role = isinstance(event, Greeting) and event.role is not role
    expected = follow(state, event)
    if expected is None or wrong_role:
        with pytest.raises(LocalProtocolError):
            connection.send(event)
        assert connection.state is state
    else:
        connection.send(event)
        assert connection.state is expected


@pytest.mark.parametrize("state", list(ROADS))
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: str(step(event)))
def test_nothing_is_sent_out_of_turn(state: State, event: Event) -> None:
    """While the other end is due, or all is over, every word is refused."""
    for role in Role:
        if TURN[state] is not role:
            with pytest.raises(LocalProtocolError):
                at(state, role).send(event)


def test_bytes_are_kept_while_it_is_our_turn() -> None:
    """What arrives early is read late, though the reader's buffer was used again meanwhile."""
    connection = at(State.OFFERING, Role.FILTER)
    early = bytearray(b"".join([*encode(Capabilities()), *encode(CLEAN), *encode(Data(b"content")), b"0000"]))
    connection.receive_data(early)
    assert connection.next_event() == Capabilities()
    assert connection.next_event() is Pause.OUR_TURN
    early[:] = b"\xff" * len(early)
    connection.send(Capabilities())
    assert connection.next_event() == CLEAN
    assert connection.next_event() == Data(b"content")
    assert connection.next_event() == EndOfContent()
    assert connection.next_event() is Pause.OUR_TURN


@pytest.mark.parametrize("portions", [whole, byte_by_byte])
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (lines([b"not=a=greeting"]), "not the greeting"),
        (lines([b"git-filter-client", b"version=1"]), "not the greeting of version 2"),
        (lines([b"git-filter-server", b"version=2"]), "not the greeting of version 2"),
        (b"0000", "not the greeting"),
        (b"0001", "no length"),
        (b"0003", "no length"),
        (b"fff1", "no length"),
        (b"00 5", "not the length"),
        (b"+005", "not the length"),
        (b"0_05", "not the length"),
        (b"GET / HTTP/1.1\r\n", "not the length"),
    ],
)
def test_a_wrong_beginning_fails(portions: Portions, words: bytes, complaint: str) -> None:
    """Who speaks another protocol, another version or our own part is refused, and stays refused."""
    connection = FilterConnection()
    listener = Listener(connection, [])
    with pytest.raises(RemoteProtocolError, match=complaint):
        listener.listen(portions(words))
    assert connection.state is State.FAILED
    with pytest.raises(LocalProtocolError):
        connection.next_event()


@pytest.mark.parametrize("portions", [whole, byte_by_byte])
@pytest.mark.parametrize(
    ("request_lines", "complaint"),
    [
        ([b"command=frobnicate", b"pathname=a"], "unknown command"),
        ([b"pathname=a"], "unknown command"),
        ([b"command=clean"], "clean without a pathname"),
        ([b"command=clean", b"pathname=a", b"blob=zz"], "blob .* is not an object id"),
        ([b"command=clean", b"pathname=a", b"treeish=" + b"A" * 40], "treeish .* is not an object id"),
        ([b"command=clean", b"pathname"], "not key=value"),
        ([b"command=clean", b""], "not key=value"),
    ],
)
def test_a_wrong_request_fails(portions: Portions, request_lines: list[bytes], complaint: str) -> None:
    """A request that makes no sense means that the stream has lost step: no guess is made."""
    connection = at(State.IDLE, Role.FILTER)
    with pytest.raises(RemoteProtocolError, match=complaint):
        Listener(connection, []).listen(portions(lines(request_lines)))


@pytest.mark.parametrize("portions", [whole, byte_by_byte])
def test_unknown_keys_are_ignored_and_the_last_word_counts(portions: Portions) -> None:
    """A newer git may say more than we know; a sha256 id is an id."""
    said = [
        b"command=clean",
        b"future=yes",
        b"command=smudge",
        b"pathname=a=b\n",
        b"blob=" + b"a" * 64,
        b"can-delay=0",
    ]
    listener = Listener(at(State.IDLE, Role.FILTER), []).listen(portions(lines(said)))
    assert listener.heard == [Request(Command.SMUDGE, b"a=b\n", blob="a" * 64)]


def test_only_what_was_offered_can_be_chosen() -> None:
    """git dies of a capability it never offered; so we never send one."""
    connection = FilterConnection()
    Listener(connection, [Greeting(Role.FILTER)]).listen(whole(b"".join(encode(Greeting(Role.GIT)))))
    connection.receive_data(lines([b"capability=clean", b"capability=future"]))
    assert connection.next_event() == Capabilities(frozenset({b"clean", b"future"}))
    with pytest.raises(LocalProtocolError, match="smudge"):
        connection.send(Capabilities(frozenset({b"clean", b"smudge"})))
    connection.send(Capabilities(frozenset({b"clean"})))
    with pytest.raises(RemoteProtocolError, match="agreed"):
        hear(connection, SMUDGE)


def test_delayed_only_where_git_offered_to_wait() -> None:
    """git kills a filter that delays what it cannot wait for; so that answer cannot be sent."""
    connection = at(State.IDLE, Role.FILTER)
    hear(connection, CLEAN)
    hear(connection, EndOfContent())
    with pytest.raises(LocalProtocolError, match="wait"):
        connection.send(Answer(Status.DELAYED))
    connection.send(Answer(Status.ERROR))
    assert connection.state is State.IDLE


@pytest.mark.parametrize("portions", [whole, byte_by_byte])
@pytest.mark.parametrize(
    ("state", "words", "complaint"),
    [
        (State.ANSWERING, lines([]), "without a status"),
        (State.ANSWERING, lines([b"status=maybe"]), "unknown status"),
        (State.JUDGING, lines([b"status=delayed"]), "no verdict"),
        (State.LISTED, lines([]), "without a status"),
        (State.LISTED, lines([b"status=delayed"]), "due was"),
    ],
)
def test_a_wrong_answer_fails(portions: Portions, state: State, words: bytes, complaint: str) -> None:
    """git's end refuses what git refuses; a list without an explicit success among it."""
    with pytest.raises(RemoteProtocolError, match=complaint):
        Listener(at(state, Role.GIT), []).listen(portions(words))


def test_the_last_status_wins() -> None:
    """Of several the last; so git reads it."""
    connection = at(State.ANSWERING, Role.GIT)
    connection.receive_data(lines([b"status=success", b"status=error"]))
    assert connection.next_event() == Answer(Status.ERROR)


@pytest.mark.parametrize("state", [state for state in ROADS if TURN[state] is Role.GIT])
def test_the_end_of_the_stream_is_clean_only_between_requests(state: State) -> None:
    """Everywhere else it is an error that tells it apart from lost step."""
    connection = at(state, Role.FILTER)
    connection.receive_data(b"")
    if state is State.IDLE:
        assert connection.next_event() == Closed() == connection.next_event()
        with pytest.raises(LocalProtocolError):
            connection.receive_data(b"more")
    else:
        with pytest.raises(EndedError):
            connection.next_event()


@pytest.mark.parametrize("state", [state for state in ROADS if TURN[state] is Role.FILTER])
def test_a_filter_that_ends_is_an_error_for_git(state: State) -> None:
    """Wherever the filter owes a word, its end is not clean."""
    connection = at(state, Role.GIT)
    connection.receive_data(b"")
    with pytest.raises(EndedError):
        connection.next_event()


def test_roles_are_what_their_names_say() -> None:
    """The two classes differ by nothing but their part."""
    assert (FilterConnection().role, GitConnection().role) == (Role.FILTER, Role.GIT)
