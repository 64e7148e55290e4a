"""Packs of one add: records where they were promised, durable at the end, nothing left of what was given up."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from theta_daemon.errors import StoreError
from theta_daemon.filters.packing import Packing, ref
from theta_daemon.store import pack
from theta_daemon.store.base import ObjectWriter
from theta_daemon.store.memory import MemoryStore
from theta_daemon.store.pack import Packs
from theta_daemon.tensor import Buffer


def test_every_record_is_where_its_slot_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records fill one pack after the other; each is found by its slot, once the packs have names."""
    monkeypatch.setattr(pack, "TARGET_BYTES", 1000)
    store = MemoryStore()
    records = [[b"x" * 7, os.urandom(size)] for size in (10, 900, 200, 0, 5000, 3, 999)]
    with Packing(store) as packing:
        slots = [packing.add(record) for record in records]
        packs = packing.finish()
    assert len(packs) > 2
    assert {oid: len(data) for oid, data in store.objects.items()} == dict(packs)
    opened = Packs(store)
    for slot, record in zip(slots, records, strict=True):
        found = opened.record(ref(slot, packs))
        assert found.length == slot.stored == sum(map(len, record))
        assert bytes(found.read(0, found.length)) == b"".join(record)


def test_nothing_to_store_makes_no_object() -> None:
    """No record, no pack."""
    store = MemoryStore()
    with Packing(store) as packing:
        assert packing.finish() == []
    assert store.objects == {}


def test_a_failure_leaves_no_half_pack() -> None:
    """When something goes wrong in between, what was begun is dropped."""
    store = MemoryStore()

    def failing() -> Iterator[Buffer]:
        yield b"half a record"
        raise ZeroDivisionError

    with Packing(store) as packing:
        packing.add([b"one"])
        with pytest.raises(ZeroDivisionError):
            packing.add(failing())
    assert store.objects == {}


def test_a_store_that_cannot_commit_is_told() -> None:
    """An error in the background comes out of finish, before anything is answered."""

    class Full(MemoryStore):
        def writer(self) -> ObjectWriter:
            return FullWriter()

    class FullWriter(ObjectWriter):
        def write(self, data: Buffer) -> None:
            pass

        def commit(self, expected: str | None = None) -> tuple[str, int]:
            raise StoreError("no space left")

        def abort(self) -> None:
            pass

    with Packing(Full()) as packing:
        packing.add([b"one"])
        with pytest.raises(StoreError, match="no space left"):
            packing.finish()


def test_the_same_records_make_the_same_packs() -> None:
    """Ids depend on the records and their order alone."""
    found = []
    for _ in range(2):
        store = MemoryStore()
        with Packing(store) as packing:
            for number in range(50):
                packing.add([b"%d" % number])
            found.append(packing.finish())
    assert found[0] == found[1]
