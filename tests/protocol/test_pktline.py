"""Packets: lengths, newlines, and content that is never copied."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import LocalProtocolError
from protocol.pktline import FLUSH, MAX_PACKET, MAX_PAYLOAD, Buffer, Mark, PacketReader, Scatter, frames, line, lines


def contents(reader: PacketReader) -> bytes | None:
    """The pieces up to the flush, joined; None when the flush is not there."""
    joined = b""
    while not isinstance(piece := reader.content(), Mark):
        assert piece
        joined += piece
    return joined if piece is Mark.FLUSH else None


@given(st.binary(max_size=50))
def test_a_line_loses_exactly_one_newline(text: bytes) -> None:
    """Whatever is in it, newlines at its end included, comes back."""
    reader = PacketReader()
    reader.feed(line(text))
    assert reader.line() == text
    assert reader.between_packets


def test_a_line_may_come_without_a_newline() -> None:
    """git's documentation says that lines end in one; who forgets it is understood."""
    reader = PacketReader()
    reader.feed(b"0007abc")
    assert reader.line() == b"abc"


def test_a_line_that_does_not_fit_is_refused() -> None:
    """The newline counts."""
    assert len(line(b"x" * (MAX_PAYLOAD - 1))) == 65520
    with pytest.raises(LocalProtocolError):
        line(b"x" * MAX_PAYLOAD)


@pytest.mark.parametrize("size", [0, 1, MAX_PAYLOAD - 1, MAX_PAYLOAD, MAX_PAYLOAD + 1, 3 * MAX_PAYLOAD, 200_001])
def test_content_of_any_size_comes_back(size: int) -> None:
    """Around the packet's limit above all."""
    data = bytes(index % 251 for index in range(size))
    packed = list(frames(data))
    assert all(len(payload) <= MAX_PAYLOAD for payload in packed[1::2])
    reader = PacketReader()
    reader.feed(b"".join(packed) + FLUSH)
    assert contents(reader) == data


def test_content_is_sent_without_a_copy() -> None:
    """Every second buffer is a view of the very memory that was given, whatever its item type."""
    memory = bytearray(3 * MAX_PAYLOAD + 4)
    memory = memory[: len(memory) - len(memory) % 8]
    packed = list(frames(memoryview(memory).cast("Q")))
    memory[:] = b"\x07" * len(memory)
    assert b"".join(packed[1::2]) == memory
    assert [bytes(header) for header in packed[::2]] == [b"fff0"] * 3 + [b"%04x" % (len(memory) - 3 * MAX_PAYLOAD + 4)]


def test_content_is_received_without_a_copy() -> None:
    """A piece is a view of the buffer that was fed, also in the middle of a packet."""
    buffer = bytearray(b"0008ab")
    reader = PacketReader()
    reader.feed(buffer)
    piece = reader.content()
    assert isinstance(piece, memoryview)
    buffer[4:6] = b"xy"
    assert bytes(piece) == b"xy"
    assert reader.content() is Mark.MORE
    reader.feed(b"cd0000")
    assert contents(reader) == b"cd"


@given(
    payloads=st.lists(st.binary(max_size=20), max_size=8),
    places=st.lists(st.integers(0, 200), max_size=30),
)
def test_any_cut_gives_the_same_content(payloads: list[bytes], places: list[int]) -> None:
    """Empty packets too: they end nothing."""
    raw = b"".join(b"%04x" % (len(payload) + 4) + payload for payload in payloads) + FLUSH
    reader, joined, ended = PacketReader(), b"", 0
    for start, stop in zip([0, *sorted(places)], [*sorted(places), len(raw)], strict=True):
        buffer = bytearray(raw[start:stop])
        reader.feed(buffer)
        while not isinstance(piece := reader.content(), Mark):
            joined += piece
        ended += piece is Mark.FLUSH
        buffer[:] = b"\xff" * len(buffer)
    assert joined == b"".join(payloads)
    assert ended == 1
    assert reader.between_packets


@given(
    st.lists(st.sampled_from([MAX_PAYLOAD, 70_000, 5, 200_000]), min_size=1, max_size=4),
    st.lists(st.integers(0, 600_000), max_size=5),
)
def test_pieces_at_once_are_the_same_content(sizes: list[int], places: list[int]) -> None:
    """Full packets and others, cut anywhere: what is not plain content is left to the other ways of reading."""
    payloads = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    data = b"".join(bytes(part) for payload in payloads for part in frames(payload)) + FLUSH + line(b"next")
    reader = PacketReader()
    joined, ended = b"", False
    cuts = sorted({0, len(data), *(place for place in places if place < len(data))})
    for start, stop in itertools.pairwise(cuts):
        reader.feed(data[start:stop])
        while not ended:
            joined += b"".join(reader.pieces())
            piece = reader.content()
            ended = piece is Mark.FLUSH
            if isinstance(piece, Mark):
                break
            joined += piece
    assert joined == b"".join(payloads)
    assert reader.line() == b"next"
    assert reader.between_packets


def pour(data: memoryview, buffers: list[memoryview], count: int) -> int:
    """What `readv` does with the beginning of a stream that has `count` bytes."""
    left = min(count, len(data))
    at = 0
    for buffer in buffers:
        part = data[at : min(at + len(buffer), left)]
        buffer[: len(part)] = part
        at += len(part)
    return at


@given(
    sizes=st.lists(st.sampled_from([MAX_PAYLOAD] * 6 + [0, 1, 3, 4, 5000, MAX_PAYLOAD - 1]), max_size=8),
    reads=st.lists(
        st.tuples(st.integers(1, 4 * MAX_PACKET), st.integers(1, 5 * MAX_PACKET) | st.sampled_from([1, 2, 3, 4, 5])),
        min_size=1,
        max_size=20,
    ),
)
def test_scattered_content_is_the_same(sizes: list[int], reads: list[tuple[int, int]]) -> None:
    """Whatever packets come, in whatever portions, into whatever rooms; and what follows the flush is understood."""
    wanted = bytes(index % 251 for index in range(sum(sizes)))
    stream, at = b"", 0
    for size in sizes:
        stream += b"%04x" % (size + 4) + wanted[at : at + size]
        at += size
    data = memoryview(stream + FLUSH + line(b"next") + FLUSH)
    reader = PacketReader()
    found = b""
    flushed = False
    for room_bytes, count in itertools.cycle(reads):
        due = None if flushed else reader.due
        if due is None:
            reader.feed(data[:count])
            data = data[count:]
        else:
            scatter = Scatter(memoryview(bytearray(room_bytes)), due)
            got = pour(data, scatter.buffers, count)
            data = data[got:]
            reader.feed_scattered(scatter, got)
        while not flushed:
            found += b"".join(reader.pieces())
            piece = reader.content()
            if piece is Mark.MORE:
                break
            if piece is Mark.FLUSH:
                flushed = True
            else:
                assert isinstance(piece, memoryview)
                found += piece
        if flushed and not data:
            break
    assert found == wanted
    assert reader.line() == b"next"
    assert reader.line() is Mark.FLUSH
    assert reader.between_packets


def test_full_packets_that_are_scattered_are_one_piece() -> None:
    """That is what it is for: no copy, no call for each packet; only a shorter packet is copied."""
    content = bytes(range(256)) * 2048
    stream = memoryview(b"".join(frames(content)) + FLUSH)
    reader = PacketReader()
    reader.feed(stream[: 100 + 4])
    assert reader.content() == content[:100]
    memory = bytearray(8 * MAX_PAYLOAD)
    at = 104
    got = bytearray(content[:100])
    for count in (5 * MAX_PACKET + 10, 2 * MAX_PACKET, len(stream)):
        due = reader.due
        assert due is not None
        scatter = Scatter(memoryview(memory), due)
        number = pour(stream[at:], scatter.buffers, count)
        at += number
        reader.feed_scattered(scatter, number)
        pieces = reader.pieces()
        if number == count:
            (piece,) = pieces
            assert piece.obj is memory
        got += b"".join(pieces)
        while isinstance(piece := reader.content(), memoryview):
            got += piece
    assert got == content


def test_a_list_ends_in_a_flush() -> None:
    """An empty list is nothing but that."""
    assert lines([]) == b"0000"
    assert lines([b"a", b"b\n"]) == b"0006a\n0007b\n\n0000"


@pytest.mark.parametrize("header", [b"000F", b"000f"])
def test_the_case_of_a_length_does_not_matter(header: bytes) -> None:
    """git reads both."""
    reader = PacketReader()
    reader.feed(header + b"eleven byte" + FLUSH)
    assert contents(reader) == b"eleven byte"


def test_detached_bytes_survive_their_buffer() -> None:
    """After `detach` the caller may use its buffer again."""
    buffer: Buffer = bytearray(line(b"first") + line(b"second"))
    reader = PacketReader()
    reader.feed(buffer)
    assert reader.line() == b"first"
    reader.detach()
    assert isinstance(buffer, bytearray)
    buffer[:] = b"\xff" * len(buffer)
    assert reader.line() == b"second"
