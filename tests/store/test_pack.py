"""Packs: what goes in comes out, and no damage or malice gets past the reader."""

from __future__ import annotations

import hashlib
import os
import struct
import threading
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from theta_daemon.errors import MissingObjectError, RecordError
from theta_daemon.pointer import RecordRef
from theta_daemon.store.lfs import LfsStore
from theta_daemon.store.memory import MemoryStore
from theta_daemon.store.pack import FOOTER, HEAD, MAGIC, MAX_RECORDS, SMALL_BYTES, PackReader, Packs, PackWriter


def pack(records: list[bytes], store: MemoryStore | None = None) -> tuple[MemoryStore, str]:
    store = store or MemoryStore()
    writer = PackWriter(store.writer())
    for record in records:
        writer.add([record])
    return store, writer.finish()[0]


def opened(data: bytes) -> PackReader:
    store = MemoryStore()
    oid = store.put(data)
    return PackReader(store.open(oid), oid)


def contents(reader: PackReader) -> list[bytes]:
    return [bytes(reader.record(i).read(0, reader.record(i).length)) for i in range(len(reader))]


@given(st.lists(st.lists(st.binary(max_size=300), max_size=4), max_size=12))
def test_records_come_back_in_order(records: list[list[bytes]]) -> None:
    """Records of any number, size and pieces (none too) come back whole, added at once or bit by bit."""
    store = MemoryStore()
    writer = PackWriter(store.writer())
    for number, parts in enumerate(records):
        if number % 2:
            writer.add(parts)
            continue
        for part in parts:
            writer.add([part], ends=False)
        writer.add([])
    oid, size = writer.finish()
    assert size == len(store.objects[oid])
    reader = PackReader(store.open(oid), oid)
    assert contents(reader) == [b"".join(parts) for parts in records]


def test_a_record_is_read_in_pieces() -> None:
    """Any part of a record can be had alone, nothing beyond it."""
    store, oid = pack([b"before", b"0123456789", b"after"])
    record = PackReader(store.open(oid), oid).record(1)
    assert record.length == 10
    assert record.read(3, 4) == b"3456"
    assert record.read(10, 0) == b""
    for offset, length in [(0, 11), (10, 1), (-1, 1), (5, -1), (11, 0), (1 << 63, 1)]:
        with pytest.raises(RecordError, match=f"{oid}.*record 1"):
            record.read(offset, length)


@pytest.mark.parametrize("index", [-1, 3, 1 << 40])
def test_a_record_out_of_range_is_named(index: int) -> None:
    """An index that the pack does not have is a RecordError with object, index and count."""
    store, oid = pack([b"a", b"b", b"c"])
    with pytest.raises(RecordError, match=f"{oid}.*{index}.*3"):
        PackReader(store.open(oid), oid).record(index)


def test_a_pack_cut_at_any_byte_is_found_out() -> None:
    """Every proper prefix of a pack, and every extension, is refused when it is opened."""
    store, oid = pack([b"abc" * 20, b"", b"xyz"])
    data = store.objects[oid]
    for length in range(len(data)):
        with pytest.raises(RecordError):
            opened(data[:length])
    with pytest.raises(RecordError):
        opened(data + b"\0")
    assert len(opened(data)) == 3


def test_a_flipped_bit_never_moves_a_record() -> None:
    """A bit flipped outside the records is refused at once; inside one it changes that record's bytes only."""
    store, oid = pack([b"abc" * 5, b"", b"xyz"])
    data = store.objects[oid]
    good = contents(opened(data))
    start, end = HEAD.size, HEAD.size + sum(map(len, good))
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        if start <= bit // 8 < end:
            assert [len(record) for record in contents(opened(bytes(damaged)))] == [15, 0, 3]
        else:
            with pytest.raises(RecordError):
                opened(bytes(damaged))


def forged(body: bytes, ends: list[int], **footer: int) -> bytes:
    """A pack with a consistent checksum, whatever else is wrong with it."""
    index = struct.pack(f"<{len(ends)}Q", *ends)
    fields = {"start": HEAD.size + len(body), "count": len(ends), "crc": zlib.crc32(index), "version": 1, "zero": 0}
    return HEAD.pack(MAGIC, 1, 0) + body + index + FOOTER.pack(*(fields | footer).values(), MAGIC)


@pytest.mark.parametrize(
    "data",
    [
        forged(b"abcdef", [22, 18, 22]),  # goes backwards: would overlap
        forged(b"abcdef", [10, 22]),  # the first record would begin inside the head
        forged(b"abcdef", [16, 23]),  # reaches into the index
        forged(b"abcdef", [16, 21]),  # bytes that belong to no record
        forged(b"abcdef", [16, (1 << 64) - 1, 22]),
        forged(b"abcdef", [22], count=(1 << 32) - 1),
        forged(b"abcdef", [22], count=0),
        forged(b"abcdef", [22], start=(1 << 64) - 8),
        forged(b"abcdef", [22], start=0, count=5),
        forged(b"abcdef", [22], version=2),
        forged(b"abcdef", [22], zero=1),
        forged(b"abcdef", [22], crc=0),
        b"",
        b"\0" * 48,
        MAGIC * 100,
        b"version https://git-lfs.github.com/spec/v1\n" * 3,
    ],
)
def test_forged_packs_are_refused(data: bytes) -> None:
    """An index that lies about places, counts or sizes is a RecordError, before anything large is allocated."""
    with pytest.raises(RecordError):
        opened(data)


def test_the_forger_can_also_make_an_honest_pack() -> None:
    """(So the cases above fail for their own reason.)"""
    assert contents(opened(forged(b"abcdef", [16, 19, 22]))) == [b"", b"abc", b"def"]


def test_too_many_records_are_refused_on_both_sides() -> None:
    """An index beyond the limit is refused by its count alone."""
    data = forged(b"", [HEAD.size] * 3, count=MAX_RECORDS + 1)
    with pytest.raises(RecordError):
        opened(data)


def test_an_unknown_version_asks_for_an_update() -> None:
    """A pack of a later version says so instead of calling itself damaged."""
    with pytest.raises(RecordError, match="version 2 is unknown") as failure:
        opened(forged(b"abc", [19], version=2))
    assert "update" in (failure.value.hint or "")


def test_packs_opens_each_object_once(tmp_path: Path) -> None:
    """The records of a pack come from one open reader, the least recently used one is closed beyond the limit."""
    store = LfsStore(tmp_path / "objects", umask=0o022, fsync=False)
    oids = []
    for number in range(10):
        writer = PackWriter(store.writer())
        writer.add([bytes([number])])
        writer.add([b"second"])
        oids.append(writer.finish()[0])
    packs = Packs(store, max_open=3, held_bytes=0)
    before = len(os.listdir("/proc/self/fd"))
    kept = packs.record(RecordRef(oids[0], 0))
    for _ in range(3):
        for oid in oids:
            assert packs.record(RecordRef(oid, 1)).read(0, 6) == b"second"
    assert len(os.listdir("/proc/self/fd")) == before + 3 + 1
    assert kept.read(0, 1) == b"\0"  # its pack was forgotten long ago, but is still open for it
    del kept
    packs.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_small_packs_are_read_once_and_hold_no_descriptor(tmp_path: Path) -> None:
    """As many as there is room for are held, however many those are; a large one, and the rest, are read from their files."""
    store = LfsStore(tmp_path / "objects", umask=0o022, fsync=False)
    oids = []
    for size in [SMALL_BYTES, *range(1, 300)]:
        writer = PackWriter(store.writer())
        writer.add([bytes(size)])
        oids.append(writer.finish()[0])
    packs = Packs(store, max_open=2, held_bytes=sum(store.open(oid).size for oid in oids[1:290]))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(2):
        for size, oid in enumerate(oids):
            record = packs.record(RecordRef(oid, 0))
            assert record.read(0, record.length) == bytes(size or SMALL_BYTES)
    del record
    assert len(os.listdir("/proc/self/fd")) == before + 2
    for oid in oids:
        store.path(oid).unlink()
    for oid in oids[1:290]:
        assert packs.record(RecordRef(oid, 0)).read(0, 1) == b"\0"
    packs.forget(oids[1])
    with pytest.raises(MissingObjectError):
        packs.record(RecordRef(oids[1], 0))


def test_an_empty_pack_is_held_too() -> None:
    """A pack without a record is opened once like any other, and takes its room once."""
    store, oid = pack([])
    packs = Packs(store)
    for _ in range(3):
        with pytest.raises(RecordError, match="out of range"):
            packs.record(RecordRef(oid, 0))
        store.objects.pop(oid, None)  # what is held does not ask the store


def test_packs_says_what_is_missing_or_malformed() -> None:
    """A missing object is MissingObjectError with its id, one that is no pack RecordError; both can come right later."""
    store = MemoryStore()
    packs = Packs(store)
    good, oid = pack([b"abc"])
    with pytest.raises(MissingObjectError, match=oid):
        packs.record(RecordRef(oid, 0))
    store.objects[oid] = good.objects[oid][:-1]
    with pytest.raises(RecordError, match=oid):
        packs.record(RecordRef(oid, 0))
    store.objects[oid] = good.objects[oid]
    assert packs.record(RecordRef(oid, 0)).read(0, 3) == b"abc"
    store.objects[oid] = pack([b"new"])[0].objects[pack([b"new"])[1]]
    packs.forget(oid)
    assert packs.record(RecordRef(oid, 0)).read(0, 3) == b"new"


def test_threads_share_packs() -> None:
    """Eight threads that read from more packs than may be open get the right records."""
    store = MemoryStore()
    oids = [pack([bytes([number]) * 100, bytes([number + 100]) * 50], store)[1] for number in range(20)]
    packs = Packs(store, max_open=2, held_bytes=300)
    wrong: list[int] = []

    def work(seed: int) -> None:
        for step in range(300):
            number = (seed + step * 7) % 20
            if packs.record(RecordRef(oids[number], 1)).read(0, 50) != bytes([number + 100]) * 50:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_the_format_is_pinned() -> None:
    """The bytes of a small pack are exactly these: changing the format needs a new version."""
    store, oid = pack([b"one", b"", b"three"])
    assert hashlib.sha256(store.objects[oid]).hexdigest() == oid
    assert store.objects[oid] == bytes.fromhex(
        "895448455441 0d0a0100000000000000"
        "6f6e657468726565"
        "130000000000000013000000000000001800000000000000"
        "180000000000000003000000"
    ) + struct.pack("<III8s", zlib.crc32(struct.pack("<3Q", 19, 19, 24)), 1, 0, MAGIC)
