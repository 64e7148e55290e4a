"""What an object store promises, and what a record is. No git, no parameter is known here.

An *object* is immutable bytes named by their SHA-256 (64 lower-case hex digits). A *record* is a run of bytes inside an
object that is a pack; it can be read alone, in pieces.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final, Protocol

from theta_daemon.errors import MissingObjectError, PointerError, RecordError
from theta_daemon.tensor import Buffer

OBJECT_ID: Final = re.compile(r"[0-9a-f]{64}")


def object_id(text: str) -> str:
    """`text` if it is a well-formed object id; raises PointerError otherwise. The border check for all ids."""
    if OBJECT_ID.fullmatch(text) is None:
        raise PointerError(f"{text!r} is not an object id (64 lower-case hex digits)")
    return text


class Record(Protocol):
    """Bytes of one record. Reads are checked: a read outside the record raises RecordError."""

    @property
    def length(self) -> int:
        """Bytes of the record."""
        ...

    def read(self, offset: int, length: int) -> Buffer:
        """Exactly `length` bytes from `offset`. Thread-safe. Raises RecordError where the bytes are not there."""
        ...


class BytesRecord:
    """A record in memory."""

    def __init__(self, data: Buffer) -> None:
        self._data = memoryview(data)
        self.length = self._data.nbytes

    def read(self, offset: int, length: int) -> memoryview:
        """See `Record`."""
        if offset < 0 or length < 0 or offset + length > self.length:
            raise RecordError(f"the record has {self.length} bytes, {offset} to {offset + length} are asked for")
        return self._data[offset : offset + length]


class ObjectReader(Protocol):
    """Random access to one object; positional reads only, so threads may share it."""

    @property
    def size(self) -> int: ...

    def read(self, offset: int, length: int) -> Buffer:
        """Exactly `length` bytes. Raises RecordError when the object is shorter than that."""
        ...

    def close(self) -> None: ...


class ObjectWriter(Protocol):
    """One object being written. Nothing has a final name before `commit` returns."""

    def write(self, data: Buffer) -> None: ...

    def commit(self, expected: str | None = None) -> tuple[str, int]:
        """Make it durable and visible; its id and size. An object that is there already is a success.

        Raises StoreError, and RecordError when `expected` is given and is not its id; then nothing is left under a final
        name.
        """
        ...

    def abort(self) -> None:
        """Drop it. Safe to call twice, and after commit."""
        ...


class ObjectStore(ABC):
    """Objects by id. All methods may be called from any thread."""

    @abstractmethod
    def has(self, oid: str) -> bool:
        """Whether the object is here, as a regular file."""

    def holds(self, oid: str, size: int) -> bool:
        """Whether the object is here with that size. Cheap: what a crash cut short is found out, changed bytes are not."""
        try:
            reader = self.open(oid)
        except MissingObjectError:
            return False
        try:
            return reader.size == size
        finally:
            reader.close()

    @abstractmethod
    def open(self, oid: str) -> ObjectReader:
        """Raises MissingObjectError when it is not here, StoreError when it cannot be read."""

    @abstractmethod
    def writer(self) -> ObjectWriter:
        """Raises StoreError when the store cannot be written."""

    @abstractmethod
    def ids(self) -> Iterator[str]:
        """Ids of all objects here, in no particular order; other files are passed over."""
