"""What every object store promises, on each of them. The contract is checked past the store where that is possible."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from theta_daemon.errors import MissingObjectError, PointerError, RecordError
from theta_daemon.store.base import ObjectStore
from theta_daemon.store.lfs import LfsStore
from theta_daemon.store.memory import MemoryStore

Make = Callable[[], ObjectStore]


@pytest.fixture(params=["lfs", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return LfsStore(tmp_path / "lfs" / "objects", umask=0o022) if request.param == "lfs" else MemoryStore()


def put(store: ObjectStore, *parts: bytes) -> str:
    writer = store.writer()
    for part in parts:
        writer.write(part)
    return writer.commit()[0]


def test_the_id_is_the_sha256_of_what_was_written_in_whatever_pieces(store: ObjectStore) -> None:
    """An object written in pieces of any size has the SHA-256 and the size of the whole, and comes back."""
    data = os.urandom(3 << 20)
    writer = store.writer()
    for part in (data[:1], b"", memoryview(data)[1:70000], bytearray(data[70000:])):
        writer.write(part)
    assert writer.commit() == (hashlib.sha256(data).hexdigest(), len(data))
    reader = store.open(hashlib.sha256(data).hexdigest())
    assert reader.size == len(data)
    assert reader.read(0, len(data)) == data
    assert reader.read(69990, 20) == data[69990:70010]
    reader.close()


def test_the_empty_object_is_an_object(store: ObjectStore) -> None:
    """No bytes at all can be stored and read."""
    oid = put(store)
    assert store.has(oid)
    assert store.open(oid).read(0, 0) == b""


def test_nothing_is_there_before_commit_or_after_abort(store: ObjectStore) -> None:
    """An object that is being written or was dropped cannot be seen; abort may come twice and after commit."""
    oid = hashlib.sha256(b"abc").hexdigest()
    writer = store.writer()
    writer.write(b"abc")
    assert not store.has(oid)
    writer.abort()
    writer.abort()
    assert not store.has(oid)
    assert list(store.ids()) == []
    with pytest.raises(ValueError, match="committed or aborted"):
        writer.write(b"more")
    again = store.writer()
    again.write(b"abc")
    again.commit()
    again.abort()
    assert store.has(oid)


def test_writing_an_object_twice_is_a_success(store: ObjectStore) -> None:
    """An id that exists already is no error."""
    assert put(store, b"same") == put(store, b"sa", b"me")
    assert len(list(store.ids())) == 1


def test_an_object_is_held_only_with_its_size(store: ObjectStore) -> None:
    """`holds` is true for exactly the object's size."""
    oid = put(store, b"12345")
    assert [store.holds(oid, size) for size in (0, 4, 5, 6)] == [False, False, True, False]
    assert not store.holds("0" * 64, 0)


def test_ids_lists_exactly_the_objects(store: ObjectStore) -> None:
    """`ids` gives every object's id and nothing else."""
    oids = {put(store, bytes([number])) for number in range(20)}
    assert sorted(store.ids()) == sorted(oids)


def test_a_missing_object_is_named(store: ObjectStore) -> None:
    """Opening what is not there raises MissingObjectError with the id and a way out."""
    with pytest.raises(MissingObjectError, match="0" * 64):
        store.open("0" * 64)
    assert not store.has("0" * 64)


@pytest.mark.parametrize("oid", ["", "../" * 20, "A" * 64, "0" * 63, "0" * 65, "../../" + "0" * 58, "0" * 63 + "\n"])
def test_malformed_ids_never_become_paths(store: ObjectStore, oid: str) -> None:
    """Ids with dots, slashes, capitals or a wrong length are refused at the border."""
    with pytest.raises(PointerError):
        store.open(oid)
    with pytest.raises(PointerError):
        store.has(oid)


@pytest.mark.parametrize(("offset", "length"), [(0, 6), (5, 1), (6, 0), (-1, 2), (0, -1), (1 << 63, 1), (0, 1 << 63)])
def test_reads_outside_an_object_are_refused(store: ObjectStore, offset: int, length: int) -> None:
    """A read that leaves the object raises RecordError instead of giving less."""
    reader = store.open(put(store, b"12345"))
    with pytest.raises(RecordError):
        reader.read(offset, length)


def test_threads_share_a_reader(store: ObjectStore) -> None:
    """Positional reads of eight threads on one reader do not disturb each other."""
    data = os.urandom(1 << 20)
    reader = store.open(put(store, data))
    wrong: list[int] = []

    def check(seed: int) -> None:
        for step in range(200):
            offset = (seed * 7919 + step * 104729) % (len(data) - 4096)
            if reader.read(offset, 4096) != data[offset : offset + 4096]:
                wrong.append(offset)

    threads = [threading.Thread(target=check, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
