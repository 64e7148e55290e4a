"""Conversations of real git with a foreign filter, replayed through both ends."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import RemoteProtocolError
from protocol.events import Answer, Available, Closed, Command, Data, Greeting, ListAvailable, Request, Role, Status
from protocol.filter import FilterConnection, GitConnection
from protocol.states import State
from tests.protocol.conversation import JUNK, Listener, both_ends, byte_by_byte, cut, whole
from tests.protocol.transcripts import NAMES, sessions

SMALL = [name for name in NAMES if name != "large"]
every = pytest.mark.parametrize("name", NAMES)
small = pytest.mark.parametrize("name", SMALL)


def test_nothing_recorded_is_missing() -> None:
    """Every situation that record.py describes has its transcript."""
    situations = "add archive checkout_delay checkout_path cherry_pick large odd_add odd_checkout refused"
    assert situations.split() == NAMES


@every
def test_events_sent_are_the_bytes_git_wrote(name: str) -> None:
    """Saying again what git said gives git's own bytes: order of keys, newlines and packets included."""
    for said, answered in sessions(name):
        git_events, filter_events = both_ends(said, answered)
        assert Listener(GitConnection(), git_events).listen(whole(answered)).sent == said
        assert git_events[-1] == Closed()
        assert filter_events[0] == Greeting(Role.FILTER)


@small
def test_events_sent_are_the_bytes_the_filter_wrote(name: str) -> None:
    """The other end likewise; where content is larger than a packet, packets may be cut otherwise."""
    for said, answered in sessions(name):
        _, filter_events = both_ends(said, answered)
        assert Listener(FilterConnection(), filter_events).listen(whole(said)).sent == answered


@small
def test_byte_by_byte_is_as_good_as_whole(name: str) -> None:
    """A pipe that gives single bytes changes no event, at either end."""
    for said, answered in sessions(name):
        git_events, filter_events = both_ends(said, answered)
        assert Listener(FilterConnection(), filter_events).listen(byte_by_byte(said)).end().heard == git_events
        assert Listener(GitConnection(), git_events).listen(byte_by_byte(answered)).heard == filter_events


@every
@given(places=st.lists(st.integers(0, 1400), max_size=20))
def test_any_cut_is_as_good_as_whole(name: str, places: list[int]) -> None:
    """However the bytes are cut, and however soon the buffer is used again, the events are the same."""
    said, answered = sessions(name)[0]
    git_events, filter_events = both_ends(said, answered)
    assert Listener(FilterConnection(), filter_events).listen(cut(said, places)).end().heard == git_events
    assert Listener(GitConnection(), git_events).listen(cut(answered, places)).heard == filter_events


@every
def test_junk_behind_the_conversation_spoils_nothing_before_it(name: str) -> None:
    """All is understood up to the junk, which then fails for good."""
    said, answered = sessions(name)[-1]
    git_events, filter_events = both_ends(said, answered)
    listener = Listener(FilterConnection(), filter_events)
    with pytest.raises(RemoteProtocolError):
        listener.listen(whole(said + JUNK))
    assert [*listener.heard, Closed()] == git_events
    assert listener.connection.state is State.FAILED


@small
def test_a_conversation_cut_short_is_an_error_unless_git_was_idle(name: str) -> None:
    """Wherever git dies, the end says so; a clean end is only between two requests."""
    said, answered = sessions(name)[0]
    git_events, filter_events = both_ends(said, answered)
    clean_ends = 0
    for length in range(min(len(said), 1200)):
        listener = Listener(FilterConnection(), filter_events).listen(whole(said[:length]))
        if listener.connection.state is State.IDLE:
            try:
                listener.end()
            except RemoteProtocolError:
                continue
            assert listener.heard[-1] == Closed()
            clean_ends += 1
        elif not listener.connection.our_turn:
            with pytest.raises(RemoteProtocolError):
                listener.end()
    assert clean_ends > 1
    if len(said) <= 1200:
        assert clean_ends == sum(isinstance(event, Request | ListAvailable) for event in git_events)


def test_odd_pathnames_arrive_as_they_are() -> None:
    """Newlines inside and at the end, "=", blanks, quotes, a leading dash, bytes that are not UTF-8."""
    said, answered = sessions("odd_add")[0]
    names = [event.pathname for event in both_ends(said, answered)[0] if isinstance(event, Request)]
    assert sorted(names) == sorted(
        [
            b"new\nline.t",
            b"end in newline.t\n",
            b"a=b=c.t",
            b"caf\xe9.t",
            "ünï.t".encode(),
            b"-leading.t",
            b" blank .t",
            b'quo"te.t',
        ]
    )


def test_two_rounds_of_delays_in_one_process() -> None:
    """A cherry-pick of two asks, lists to the end, and begins again with requests, in one conversation."""
    git_events, filter_events = max(
        (both_ends(*pair) for pair in sessions("cherry_pick")), key=lambda ends: len(ends[0])
    )
    lists = [event.pathnames for event in filter_events if isinstance(event, Available)]
    assert lists == [(b"one.t", b"two.t"), (), (b"four.t", b"one.t"), ()]
    assert sum(isinstance(event, ListAvailable) for event in git_events) == 4
    assert sum(event == Answer(Status.DELAYED) for event in filter_events) == 4


def test_what_git_tells_of_a_request_differs_by_command() -> None:
    """Nothing for clean, the blob for a path checkout, all three for a branch and an archive; delay where offered."""
    seen: dict[str, Request] = {}
    for name in ("add", "checkout_path", "checkout_delay", "archive"):
        events = [event for pair in sessions(name) for event in both_ends(*pair)[0] if isinstance(event, Request)]
        seen[name] = next((event for event in events if event.command is Command.SMUDGE), events[0])
    assert (seen["add"].blob, seen["add"].treeish, seen["add"].ref, seen["add"].can_delay) == (None, None, None, False)
    path = seen["checkout_path"]
    assert path.blob is not None
    assert (path.treeish, path.ref, path.can_delay) == (None, None, True)
    branch = seen["checkout_delay"]
    assert (len(branch.blob or ""), len(branch.treeish or ""), branch.can_delay) == (40, 40, True)
    archive = seen["archive"]
    assert (archive.ref, len(archive.blob or ""), archive.can_delay) == (b"refs/heads/main", 40, False)


def test_a_file_larger_than_a_packet_comes_whole() -> None:
    """66560 bytes: two packets, one content."""
    said, answered = sessions("large")[0]
    git_events, filter_events = both_ends(said, answered)
    content = bytes(range(256)) * 260
    assert Data(content) in git_events
    assert Data(content[::-1]) in filter_events
