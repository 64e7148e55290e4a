"""git's pkt-line: the bytes of a packet, and nothing of what packets mean.

    packet = LENGTH PAYLOAD     LENGTH: four hex digits that count themselves
    flush  = "0000"             ends a list of lines, and ends content

Rules
1. A payload has at most 65516 bytes (git: LARGE_PACKET_DATA_MAX).
2. A *line* is a payload that ends in one "\n"; exactly one is taken away, since a pathname may end in "\n" too.
3. Content is read as a stream: a packet that arrives in pieces is handed on in pieces, and full packets that were read into
   a `Scatter` as one. No byte of content is copied, but for what a `Scatter` was wrong about.
4. Content is sent as a list for `writev`: packet headers between views of the very buffer that was given.

Documentation/gitprotocol-common and pkt-line.c of git are the sources.
"""

from __future__ import annotations

from binascii import Error, unhexlify
from collections.abc import Iterable, Iterator
from enum import Enum
from typing import Final

from protocol.errors import LocalProtocolError, RemoteProtocolError

Buffer = bytes | bytearray | memoryview

HEADER_BYTES: Final = 4
MAX_PACKET: Final = 65520
MAX_PAYLOAD: Final = MAX_PACKET - HEADER_BYTES
FLUSH: Final = b"0000"


class Mark(Enum):
    """What a reader answers when it has no payload to give."""

    FLUSH = "flush"
    MORE = "more bytes are needed"


_FULL_HEADER: Final = b"%04x" % MAX_PACKET


def line(text: bytes) -> bytes:
    """The packet of one line. Raises LocalProtocolError when it does not fit."""
    if len(text) + 1 > MAX_PAYLOAD:
        raise LocalProtocolError(f"a line of {len(text)} bytes does not fit into a packet")
    return b"%04x%b\n" % (len(text) + 1 + HEADER_BYTES, text)


def lines(texts: Iterable[bytes]) -> bytes:
    """A whole list: the packets of its lines and the flush."""
    return b"".join(map(line, texts)) + FLUSH


def frames(content: Buffer) -> Iterator[Buffer]:
    """`content` as packets: header, view, header, view, … An empty content has no packet (and no flush)."""
    view = memoryview(content).cast("B")
    whole = len(view) - len(view) % MAX_PAYLOAD
    for start in range(0, whole, MAX_PAYLOAD):
        yield _FULL_HEADER
        yield view[start : start + MAX_PAYLOAD]
    if whole < len(view):
        yield b"%04x" % (len(view) - whole + HEADER_BYTES)
        yield view[whole:]


class Scatter:
    """Where to read a run of full packets, for `readv`: their payloads side by side into `room`, the headers elsewhere.

    `due`: bytes of the present packet that are still to come; 0 when a header is.
    """

    def __init__(self, room: memoryview, due: int) -> None:
        starts = range(due, len(room), MAX_PAYLOAD)
        self._room = room
        self._due = due
        self._heads = bytearray(HEADER_BYTES * len(starts))
        heads = memoryview(self._heads)
        self.buffers: list[memoryview] = [room[:due]] if due else []
        for number, start in enumerate(starts):
            self.buffers.append(heads[HEADER_BYTES * number : HEADER_BYTES * (number + 1)])
            self.buffers.append(room[start : start + MAX_PAYLOAD])

    def payload(self, count: int) -> tuple[memoryview, int] | None:
        """What the first `count` bytes read hold: payload, and how much is due then. None: other packets than expected."""
        if count <= self._due:
            return self._room[:count], self._due - count
        packets, part = divmod(count - self._due, MAX_PACKET)
        if 0 < part < HEADER_BYTES:
            return None
        heads = packets + bool(part)
        if self._heads[: HEADER_BYTES * heads] != _FULL_HEADER * heads:
            return None
        size = self._due + packets * MAX_PAYLOAD + max(0, part - HEADER_BYTES)
        return self._room[:size], MAX_PACKET - part if part else 0

    def raw(self, count: int) -> bytes:
        """The first `count` bytes as they came."""
        return b"".join(self.buffers)[:count]


class PacketReader:
    """Bytes in, packets out; by line or by piece of content, as the caller's state asks.

    `feed` keeps a view of the caller's buffer. The caller may use the buffer again once a read method returned
    Mark.MORE (nothing of it is referred to any more) or once `detach` was called.
    """

    def __init__(self) -> None:
        self._view = memoryview(b"")
        self._partial = bytearray()  # the beginning of a header or of a line that is not complete
        self._payload: int | None = None  # bytes still to come of the packet whose header was read
        self._full = False  # whether that packet, or the last one, is as long as one can be

    @property
    def due(self) -> int | None:
        """For a `Scatter`: bytes to come of a run of full packets before the next header; None: no use to expect any."""
        return None if self._view or self._partial or not self._full else self._payload or 0

    def feed_scattered(self, scatter: Scatter, count: int) -> None:
        """`count` more bytes, read into a `Scatter` that was made for what was `due`."""
        found = scatter.payload(count)
        if found is None:
            self.feed(scatter.raw(count))
            return
        # From here on as if it were one packet.
        self._view, due = found
        self._payload = (len(self._view) + due) or None

    def feed(self, data: Buffer) -> None:
        """More bytes; earlier ones that were not read yet stay in front."""
        more = memoryview(data).cast("B")
        self._view = memoryview(bytes(self._view) + more) if self._view else more

    def detach(self) -> None:
        """Copy what was not read yet, so that the caller may use its buffer again."""
        self._view = memoryview(bytes(self._view))

    @property
    def between_packets(self) -> bool:
        """Whether no byte waits and no packet is half read."""
        return not self._view and not self._partial and self._payload is None

    def line(self) -> bytes | Mark:
        """The next line without its newline."""
        length = self._open()
        if isinstance(length, Mark):
            return length
        if (payload := self._take(length)) is None:
            return Mark.MORE
        self._payload = None
        return payload.removesuffix(b"\n")

    def content(self) -> memoryview | Mark:
        """The next piece of content, never empty: a view of the buffer that was fed."""
        while True:
            length = self._open()
            if isinstance(length, Mark):
                return length
            piece = self._view[:length]
            self._view = self._view[len(piece) :]
            self._payload = (length - len(piece)) or None
            if piece:
                return piece
            if length:  # an empty packet is no end of content: git reads on, and so do we
                return Mark.MORE

    def pieces(self) -> list[memoryview]:
        """All content that can be told to be such at once, as `content` would give it; never a flush."""
        found: list[memoryview] = []
        view, left, at, end = self._view, self._payload, 0, len(self._view)
        while not self._partial and at < end:
            if left is None:
                header = bytes(view[at : at + HEADER_BYTES])
                if header != _FULL_HEADER:
                    break
                at += HEADER_BYTES
                left = MAX_PAYLOAD
                self._full = True
            if piece := view[at : at + left]:
                found.append(piece)
                at += len(piece)
                left = (left - len(piece)) or None
        self._view, self._payload = view[at:] if at < end else memoryview(b""), left
        return found

    def _open(self) -> int | Mark:
        """Bytes still to come of the current packet; reads the next header between packets."""
        if self._payload is not None:
            return self._payload
        if (header := self._take(HEADER_BYTES)) is None:
            return Mark.MORE
        try:
            length = int.from_bytes(unhexlify(header), "big")
        except Error:
            raise RemoteProtocolError(f"{header!r} is not the length of a packet") from None
        if length == 0:
            self._full = False
            return Mark.FLUSH
        if not HEADER_BYTES <= length <= MAX_PACKET:
            raise RemoteProtocolError(f"{header!r} is no length that a packet can have here")
        self._payload = length - HEADER_BYTES
        self._full = length == MAX_PACKET
        return self._payload

    def _take(self, count: int) -> bytes | None:
        """Exactly `count` bytes, copied; None, with what there is put aside, when they are not all here."""
        piece = self._view[: count - len(self._partial)]
        self._view = self._view[len(piece) :]
        if len(piece) == count:
            return bytes(piece)
        self._partial += piece
        if len(self._partial) < count:
            return None
        whole = bytes(self._partial)
        self._partial.clear()
        return whole
