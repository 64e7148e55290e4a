"""The control messages between the thin client and the daemon.

A message is a frame: eight hex digits, the length of what follows; then fields `key=value`, each ended by a NUL byte (no
path, no environment entry can hold one). The first field is `message=KIND`. Rules:

1. Unknown keys are ignored, unknown kinds are errors: fields can be added without a new version.
2. What may follow what is the table below; nothing else is sent, anything else received is an error.
3. The three descriptors travel with `descriptors`, after the daemon has shown by `welcome` that it is alive, willing and of
   the same build. Before it has written `adopted` the daemon reads none of them, so that a client that sees `declined`,
   or the end of the stream without `adopted`, may still serve git itself.

    client: hello        version, build, cwd, dev, ino, mounts, umask, pid, env (once an entry, `NAME=VALUE`)
    daemon: welcome | declined (reason)
    client: descriptors  and with its bytes standard input, output and error
    daemon: adopted (session) | declined (reason)
    daemon: finished     status
    or
    client: status | stop (now)
    daemon: report       text (JSON)

Sans-IO. The thin client lives on the milliseconds that are not spent here: no import at all, not even `__future__`.
"""

VERSION = 1

MAX_BYTES = 64 << 20
"""No frame is longer. Linux passes at most 6 MiB of arguments and environment to a program (exec's `_STK_LIM / 4 * 3`)."""

CLIENT = "client"
DAEMON = "daemon"

HELLO = "hello"
WELCOME = "welcome"
DESCRIPTORS = "descriptors"
ADOPTED = "adopted"
DECLINED = "declined"
FINISHED = "finished"
STATUS = "status"
STOP = "stop"
REPORT = "report"

_HEADER_BYTES = 8

TRANSITIONS = {
    "start": (CLIENT, {HELLO: "greeted", STATUS: "asked", STOP: "asked"}),
    "greeted": (DAEMON, {WELCOME: "welcomed", DECLINED: "over"}),
    "welcomed": (CLIENT, {DESCRIPTORS: "handed"}),
    "handed": (DAEMON, {ADOPTED: "running", DECLINED: "over"}),
    "running": (DAEMON, {FINISHED: "over"}),
    "asked": (DAEMON, {REPORT: "over"}),
    "over": ("", {}),
}
"""By state: whose turn it is, and the state after each message that may come."""


class Message:
    """One message: its kind and its fields in order; a key may come more than once."""

    __slots__ = ("fields", "kind")

    def __init__(self, kind: str, fields: list[tuple[str, bytes]]) -> None:
        self.kind = kind
        self.fields = fields

    def get(self, key: str) -> bytes | None:
        """The first value of `key`."""
        for name, value in self.fields:
            if name == key:
                return value
        return None

    def all(self, key: str) -> list[bytes]:
        """Every value of `key`."""
        return [value for name, value in self.fields if name == key]

    def number(self, key: str) -> int:
        """The value of `key`, a non-negative decimal integer. Raises RemoteProtocolError when it is not one."""
        value = self.get(key)
        if value is None or not value.isdigit() or len(value) > 20:
            raise _remote(f"control message {self.kind!r}: {key!r} is {value!r}, not a number")
        return int(value)


class Conversation:
    """One end of one connection: bytes that arrived go in, messages come out, and the other way about."""

    def __init__(self, role: str) -> None:
        self.role = role
        self.state = "start"
        self._buffer = bytearray()

    def send(self, kind: str, fields: list[tuple[str, bytes]] | None = None) -> bytes:
        """The bytes of a message. Raises LocalProtocolError, the state unchanged, when it may not be sent now."""
        turn, after = TRANSITIONS[self.state]
        if turn != self.role or kind not in after:
            raise _local(f"control message {kind!r} may not be sent by the {self.role} when {self.state}")
        body = b"message=%b\0" % kind.encode()
        if fields:
            body += b"".join([b"%b=%b\0" % (key.encode(), value) for key, value in fields])
            if body.count(b"\0") != len(fields) + 1:
                raise _local(f"control message {kind!r}: a value holds a NUL byte")
        if len(body) > MAX_BYTES:
            raise _local(f"control message {kind!r} has {len(body)} bytes, more than {MAX_BYTES}")
        self.state = after[kind]
        return b"%08x%b" % (len(body), body)

    def receive_data(self, data: bytes) -> None:
        """Take bytes as they arrived, in pieces of any size."""
        self._buffer += data

    def next_message(self) -> Message | None:
        """The next whole message, or None when more bytes are needed. Raises RemoteProtocolError."""
        head = bytes(self._buffer[:_HEADER_BYTES])
        if head.strip(b"0123456789abcdef"):
            raise _remote(f"control frame starts with {head!r}, not with a length")
        if len(head) < _HEADER_BYTES:
            return None
        length = int(head, 16)
        if length > MAX_BYTES:
            raise _remote(f"control frame of {length} bytes, more than {MAX_BYTES}")
        if len(self._buffer) < _HEADER_BYTES + length:
            return None
        body = bytes(self._buffer[_HEADER_BYTES : _HEADER_BYTES + length])
        del self._buffer[: _HEADER_BYTES + length]
        message = _parse(body)
        turn, after = TRANSITIONS[self.state]
        if turn == self.role or message.kind not in after:
            raise _remote(f"control message {message.kind!r} came when {self.state}")
        self.state = after[message.kind]
        return message


def _parse(body: bytes) -> Message:
    if not body.startswith(b"message=") or not body.endswith(b"\0"):
        raise _remote("control frame without a message kind or its end")
    fields = []
    for entry in body[:-1].split(b"\0"):
        key, equals, value = entry.partition(b"=")
        if not equals or not key.isascii():
            raise _remote(f"control field {entry[:40]!r} is not key=value")
        fields.append((key.decode(), value))
    return Message(fields[0][1].decode("ascii", "replace"), fields[1:])


def _remote(text: str) -> Exception:
    from protocol.errors import RemoteProtocolError

    return RemoteProtocolError(text)


def _local(text: str) -> Exception:
    from protocol.errors import LocalProtocolError

    return LocalProtocolError(text)
