"""The control messages: every conversation fed whole, byte by byte and with more behind it; everything odd is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import control
from protocol.control import CLIENT, DAEMON, Conversation, Message
from protocol.errors import LocalProtocolError, RemoteProtocolError

FIELDS = [("build", b"0123456789abcdef"), ("cwd", b"/tmp/\xff a=b\n"), ("env", b"A=1"), ("env", b"B="), ("env", b"A==")]


def hear(talk: Conversation, data: bytes, step: int) -> Message:
    """The one message that `data`, in pieces of `step` bytes, makes; only the last piece completes it."""
    for start in range(0, len(data), step):
        assert talk.next_message() is None
        talk.receive_data(data[start : start + step])
    message = talk.next_message()
    assert message is not None
    return message


@pytest.mark.parametrize("step", [1, 2, 7, 1 << 20])
def test_a_session_in_any_pieces(step: int) -> None:
    """hello, welcome, descriptors, adopted, finished: each side hears what the other said, however it is cut."""
    client, daemon = Conversation(CLIENT), Conversation(DAEMON)
    hello = hear(daemon, client.send(control.HELLO, FIELDS), step)
    assert (hello.kind, hello.fields) == (control.HELLO, FIELDS)
    assert hello.all("env") == [b"A=1", b"B=", b"A=="]
    assert hear(client, daemon.send(control.WELCOME), step).kind == control.WELCOME
    assert hear(daemon, client.send(control.DESCRIPTORS), step).kind == control.DESCRIPTORS
    assert hear(client, daemon.send(control.ADOPTED, [("session", b"7")]), step).number("session") == 7
    assert hear(client, daemon.send(control.FINISHED, [("status", b"3")]), step).number("status") == 3
    assert client.state == daemon.state == "over"


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b"]), st.binary(max_size=40).map(lambda data: data.replace(b"\0", b"")))),
    st.lists(st.integers(1, 30)),
)
def test_any_fields_survive_any_split(fields: list[tuple[str, bytes]], cuts: list[int]) -> None:
    """Whatever the values and wherever the stream is cut, the same fields come out, and what follows stays."""
    data = Conversation(CLIENT).send(control.HELLO, fields) + b"0000"
    daemon = Conversation(DAEMON)
    heard = []
    for cut in [*cuts, len(data)]:
        daemon.receive_data(data[:cut])
        data = data[cut:]
        message = daemon.next_message()
        heard += [] if message is None else [message]
    assert [message.fields for message in heard] == [fields]
    assert daemon.next_message() is None


def test_a_message_with_another_behind_it() -> None:
    """Two messages in one read come out one after the other."""
    client, daemon = Conversation(CLIENT), Conversation(DAEMON)
    hear(daemon, client.send(control.HELLO), 100)
    hear(client, daemon.send(control.WELCOME), 100)
    hear(daemon, client.send(control.DESCRIPTORS), 100)
    client.receive_data(daemon.send(control.ADOPTED) + daemon.send(control.FINISHED, [("status", b"0")]))
    kinds = [client.next_message(), client.next_message(), client.next_message()]
    assert [message and message.kind for message in kinds] == [control.ADOPTED, control.FINISHED, None]


def test_unknown_keys_are_not_minded() -> None:
    """A later version may add fields."""
    daemon = Conversation(DAEMON)
    message = hear(daemon, Conversation(CLIENT).send(control.HELLO, [("colour", b"blue"), ("pid", b"1")]), 100)
    assert message.number("pid") == 1


@pytest.mark.parametrize("state", control.TRANSITIONS)
@pytest.mark.parametrize("role", [CLIENT, DAEMON])
def test_the_table_is_the_law(state: str, role: str) -> None:
    """In each state each side may send what the table says, and what it may not send the other refuses to hear."""
    turn, after = control.TRANSITIONS[state]
    kinds = {kind for _, follow in control.TRANSITIONS.values() for kind in follow} | {"gibberish"}
    for kind in kinds:
        speaker, listener = Conversation(role), Conversation(CLIENT if role == DAEMON else DAEMON)
        speaker.state = listener.state = state
        body = b"message=%b\0" % kind.encode()
        listener.receive_data(b"%08x%b" % (len(body), body))
        if turn == role and kind in after:
            assert speaker.send(kind) == b"%08x%b" % (len(body), body)
            heard = listener.next_message()
            assert heard is not None
            assert speaker.state == listener.state == after[kind]
        else:
            with pytest.raises(LocalProtocolError):
                speaker.send(kind)
            with pytest.raises(RemoteProtocolError):
                listener.next_message()
            assert speaker.state == state


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\n",
        b"0000zzzz",
        b" 0000010",
        b"+0000010",
        b"ffffffff",
        b"00000000",
        b"00000003a=b",
        b"0000000ca=b\0message=\0",
        b"0000000dmessage=hello",
        b"00000012message=hello\0abc\0",
        b"00000015message=hello\0\xff\xfe=1\0\0\0",
        b"0000000emessage=\xff\xff\xff\xff\xff\0",
    ],
)
def test_junk_is_refused(junk: bytes) -> None:
    """Strangers, other protocols, lengths that are none, frames without a kind: an error, at once."""
    daemon = Conversation(DAEMON)
    daemon.receive_data(junk)
    with pytest.raises(RemoteProtocolError):
        daemon.next_message()


@given(st.binary(max_size=200))
def test_any_bytes_make_a_message_or_an_error(data: bytes) -> None:
    """No input makes anything else than a message, patience or RemoteProtocolError."""
    daemon = Conversation(DAEMON)
    daemon.receive_data(data)
    with suppress(RemoteProtocolError):
        daemon.next_message()


def test_a_value_with_a_nul_is_not_sent() -> None:
    """It would be two fields on the other side."""
    with pytest.raises(LocalProtocolError):
        Conversation(CLIENT).send(control.HELLO, [("cwd", b"/a\0env=B=1")])


@pytest.mark.parametrize("value", [None, b"", b"-1", b"1.5", b"0x10", b"1" * 21, b"\xb2"])
def test_a_number_is_digits(value: bytes | None) -> None:
    """What is not a non-negative decimal integer is refused."""
    with pytest.raises(RemoteProtocolError):
        Message(control.HELLO, [] if value is None else [("pid", value)]).number("pid")
