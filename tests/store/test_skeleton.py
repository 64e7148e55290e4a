"""Skeleton records: literals come back as they were; a stranger's record cannot make us allocate or misplace anything."""

from __future__ import annotations

import os
import struct

import pytest
import zstandard
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from theta_daemon.errors import RecordError
from theta_daemon.store.skeleton import (
    decode_skeleton,
    encode_skeleton,
    pack_literals,
    skeleton_digest,
    unpack_literals,
)


@given(st.lists(st.binary(max_size=200), min_size=1, max_size=10))
def test_literals_come_back(literals: list[bytes]) -> None:
    """Any literals, empty ones included, come back with their cuts; the bound may be met exactly."""
    total = sum(map(len, literals))
    assert [bytes(part) for part in decode_skeleton(encode_skeleton(literals), total, len(literals))] == literals


def test_a_large_header_is_squeezed() -> None:
    """Thirty thousand literals of alike text take a small part of their size."""
    literals = [f'"layer.{number}.weight":{{"dtype":"F32","shape":[384,384]}}'.encode() for number in range(30_000)]
    record = encode_skeleton([*literals, b""])
    assert len(record) < sum(map(len, literals)) / 5
    assert [bytes(part) for part in decode_skeleton(record, 1 << 30)] == [*literals, b""]


def test_the_bound_is_checked_before_anything_is_inflated() -> None:
    """A record that declares more than the caller allows is refused, as is a frame that holds more than is declared."""
    record = encode_skeleton([b"abc", b"de"])
    with pytest.raises(RecordError, match="room for 4"):
        decode_skeleton(record, 4)
    bomb = zstandard.ZstdCompressor().compress(bytes(100 << 20))
    forged = struct.pack("<BBHIQ", 1, 0, 0, 1, 5) + bomb
    with pytest.raises(RecordError, match="declared size"):
        decode_skeleton(forged, 1 << 40)
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(100 << 20))
    with pytest.raises(RecordError):
        decode_skeleton(forged[:16] + unsized, 1 << 40)


def test_a_wrong_number_of_literals_is_refused() -> None:
    """The caller's count of parameters decides how many literals there must be."""
    with pytest.raises(RecordError, match="2 literals where 3"):
        decode_skeleton(encode_skeleton([b"a", b"b"]), 10, 3)


@pytest.mark.parametrize("lengths", [(3, 3), (6, 0), ((1 << 64) - 1, 6), (0, 4)])
def test_lengths_that_do_not_add_up_are_refused(lengths: tuple[int, int]) -> None:
    """Cuts outside the literals' bytes are a RecordError."""
    payload = struct.pack("<2Q", *lengths) + b"abcde"
    forged = struct.pack("<BBHIQ", 1, 0, 0, 2, 5) + zstandard.ZstdCompressor().compress(payload)
    with pytest.raises(RecordError, match="add up"):
        decode_skeleton(forged, 100)


def test_damage_anywhere_is_an_error_or_changes_the_digest() -> None:
    """Each prefix, an extension, and each flipped bit: RecordError, or literals whose digest is another."""
    literals = [b"header" * 5, b"", os.urandom(20)]
    record = encode_skeleton(literals)
    right = skeleton_digest(literals)
    for length in range(len(record)):
        with pytest.raises(RecordError):
            decode_skeleton(record[:length], 1000)
    with pytest.raises(RecordError):
        decode_skeleton(record + b"\0", 1000)
    for bit in range(8 * len(record)):
        damaged = bytearray(record)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            found = decode_skeleton(damaged, 1000)
        except RecordError:
            continue
        # A bit of the frame that zstd ignores may leave the literals as they were; nothing else may.
        assert skeleton_digest(found) != right or [bytes(part) for part in found] == literals


def test_the_digest_covers_the_cuts() -> None:
    """The same bytes, cut elsewhere, are another skeleton."""
    assert skeleton_digest([b"ab", b"c"]) != skeleton_digest([b"a", b"bc"])
    assert skeleton_digest([b"ab", b"c"]) == skeleton_digest([memoryview(b"ab"), bytearray(b"c")])


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=6))
def test_the_packed_literals_are_what_the_digest_is_of(literals: list[bytes]) -> None:
    """Literals packed without compression come back, and their digest is the skeleton's: another cache may keep them."""
    packed = b"".join(pack_literals(literals))
    assert blake3(packed).hexdigest() == skeleton_digest(literals)
    assert [bytes(part) for part in unpack_literals(packed, len(literals))] == literals
    for wrong in (packed + b"\0", packed[:-1]):
        with pytest.raises(RecordError):
            unpack_literals(wrong, len(literals))
