"""git's pkt-line: the bytes of a packet, and nothing of what packets mean.

    packet = LENGTH PAYLOAD     LENGTH: four hex digits that count themselves
    flush  = "0000"             ends a list of lines, and ends content

Rules
1. A payload has at most 65516 bytes (git: LARGE_PACKET_DATA_MAX).
2. A *line* is a payload that ends in one "\n"; exactly one is taken away, since a pathname may end in "\n" too.
3. Content is read as a stream: a packet that arrives in pieces is handed on in pieces. No byte of content is copied.
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


class PacketReader:
    """Bytes in, packets out; by line or by piece of content, as the caller's state asks.

    `feed` keeps a view of the caller's buffer. The caller may use the buffer again once a read method returned
    Mark.MORE (nothing of it is referred to any more) or once `detach` was called.
    """

    def __init__(self) -> None:
        self._view = memoryview(b"")
        self._partial = bytearray()  # the beginning of a header or of a line that is not complete
        self._payload: int | None = None  # bytes still to come of the packet whose header was read

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
            return Mark.FLUSH
        if not HEADER_BYTES <= length <= MAX_PACKET:
            raise RemoteProtocolError(f"{header!r} is no length that a packet can have here")
        self._payload = length - HEADER_BYTES
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
