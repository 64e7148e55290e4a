"""Objects in memory: a reader, and the contract of `base` without a disk, for tests of the layers above."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from theta_daemon.errors import MissingObjectError, RecordError
from theta_daemon.store.base import ObjectReader, ObjectStore, ObjectWriter, object_id
from theta_daemon.tensor import Buffer


class MemoryStore(ObjectStore):
    """Objects in a dictionary, `objects`, which a test may look at and damage."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}

    def has(self, oid: str) -> bool:
        return object_id(oid) in self.objects

    def open(self, oid: str) -> ObjectReader:
        data = self.objects.get(object_id(oid))
        if data is None:
            raise MissingObjectError(f"object {oid} is not in memory")
        return MemoryReader(data)

    def writer(self) -> ObjectWriter:
        return _MemoryWriter(self)

    def ids(self) -> Iterator[str]:
        return iter(list(self.objects))

    def put(self, data: Buffer) -> str:
        """Store `data` as one object; its id."""
        writer = self.writer()
        writer.write(data)
        return writer.commit()[0]


class MemoryReader(ObjectReader):
    """An object in memory. What is read are views of it."""

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data)

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, offset: int, length: int) -> memoryview:
        if offset < 0 or length < 0 or offset + length > len(self._data):
            raise RecordError(f"the object ends before byte {offset + length}")
        return self._data[offset : offset + length]

    def close(self) -> None:
        pass


class _MemoryWriter(ObjectWriter):
    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._parts: list[bytes] | None = []

    def write(self, data: Buffer) -> None:
        if self._parts is None:
            raise ValueError("this object is committed or aborted")
        self._parts.append(bytes(data))

    def commit(self, expected: str | None = None) -> tuple[str, int]:
        if self._parts is None:
            raise ValueError("this object is committed or aborted")
        data = b"".join(self._parts)
        self._parts = None
        oid = hashlib.sha256(data).hexdigest()
        if expected not in (None, oid):
            raise RecordError(f"what came as object {expected} is another one, {oid}")
        self._store.objects[oid] = data
        return oid, len(data)

    def abort(self) -> None:
        self._parts = None
