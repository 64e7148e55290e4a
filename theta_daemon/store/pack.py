"""Packs: objects that hold many records, so that a model of a thousand tensors travels as tens of files.

```
magic 8 | version <u4 | zero <u4          16 bytes
records, one after the other
ends of the records, <u8 each             the index
index offset <u8 | count <u4 | CRC-32 of the index <u4 | version <u4 | zero <u4 | magic 8     32 bytes
```

The index is at the end so that a pack can be streamed. A record starts where the one before ends, so records cannot
overlap; all sizes must add up to the object's size exactly, so a truncated pack is always found out. The records' own
bytes are vouched for by whoever knows their digest. Records are read by positional reads, never mapped: a file that is
cut short under a map kills the process.
"""

from __future__ import annotations

import struct
import threading
import zlib
from array import array
from collections.abc import Iterable
from typing import Final

import numpy as np
from cachetools import LRUCache

from theta_daemon.errors import RecordError
from theta_daemon.pointer import Located
from theta_daemon.store.base import ObjectReader, ObjectStore, ObjectWriter, Record
from theta_daemon.store.memory import MemoryReader
from theta_daemon.tensor import Buffer

MAGIC: Final = b"\x89THETA\r\n"
VERSION: Final = 1
HEAD: Final = struct.Struct("<8sII")
FOOTER: Final = struct.Struct("<QIIII8s")
MAX_RECORDS: Final = 1 << 22
"""A pack has at most so many records: bounds the index that a stranger's pack makes us hold (32 MiB)."""

SMALL_BYTES: Final = 4 << 20
"""Packs up to this size are read as wholes: updates are small, many, and all of a pack's are wanted."""

HELD_BYTES: Final = 64 << 20
"""Small packs that are held in memory; what comes after them is read from its file."""

TARGET_BYTES: Final = 64 << 20
"""Writers close a pack when it has reached this size."""


class PackWriter:
    """Writes one pack into `writer`, which is aborted when anything fails. For one thread."""

    def __init__(self, writer: ObjectWriter) -> None:
        self._writer = writer
        self._ends: list[int] = []
        self._position = HEAD.size
        writer.write(HEAD.pack(MAGIC, VERSION, 0))

    def add(self, parts: Iterable[Buffer], *, ends: bool = True) -> None:
        """Append a record made of `parts`, or the beginning of one, if it does not end with them."""
        for part in parts:
            self._writer.write(part)
            self._position += memoryview(part).nbytes
        if ends:
            self._ends.append(self._position)

    def finish(self) -> tuple[str, int]:
        """Write the index and commit: the object's id and size. Raises StoreError."""
        index = struct.pack(f"<{len(self._ends)}Q", *self._ends)
        self._writer.write(index)
        self._writer.write(FOOTER.pack(self._position, len(self._ends), zlib.crc32(index), VERSION, 0, MAGIC))
        return self._writer.commit()

    def abort(self) -> None:
        """Drop the pack. Safe after finish."""
        self._writer.abort()


class PackReader:
    """The records of one pack. Thread-safe. Raises RecordError when the object is not a whole pack."""

    def __init__(self, reader: ObjectReader, oid: str) -> None:
        self._reader = reader
        self._oid = oid
        if reader.size < HEAD.size + FOOTER.size:
            raise self._damaged(f"{reader.size} bytes are too few for a pack")
        head = HEAD.unpack(reader.read(0, HEAD.size))
        footer_offset = reader.size - FOOTER.size
        start, count, checksum, version, zero, magic = FOOTER.unpack(reader.read(footer_offset, FOOTER.size))
        if head[0] != MAGIC or magic != MAGIC:
            raise self._damaged("it does not start and end as a pack does")
        if head[1] != VERSION or version != VERSION:
            raise RecordError(f"object {oid}: pack version {max(head[1], version)} is unknown", "update theta-daemon")
        if head[2] or zero or count > MAX_RECORDS or start + 8 * count != footer_offset:
            raise self._damaged("its index does not fit its size")
        index = reader.read(start, 8 * count)
        if zlib.crc32(index) != checksum:
            raise self._damaged("its index has a wrong checksum")
        # An array, not a tuple of int objects: a hostile index costs 8 bytes an entry, not 40.
        self._ends = array("Q", [HEAD.size])
        self._ends.frombytes(np.frombuffer(index, "<u8").astype(np.uint64).tobytes())
        ends = np.frombuffer(self._ends, np.uint64)
        if ends[-1] != start or bool(np.any(ends[:-1] > ends[1:])):
            raise self._damaged("its index is not in order")

    def __len__(self) -> int:
        return len(self._ends) - 1

    def record(self, index: int) -> Record:
        """Record `index`. Raises RecordError when there is none."""
        ends = self._ends
        if not 0 <= index < len(ends) - 1:
            raise RecordError(f"object {self._oid}: record {index} is out of range, the pack has {len(self)}")
        start, end = ends[index], ends[index + 1]
        return PackRecord(self._reader, self._oid, index, start, end - start)

    def _damaged(self, what: str) -> RecordError:
        hint = "the object is damaged: remove it and fetch it again with `git theta fetch`"
        return RecordError(f"object {self._oid} is not a whole pack: {what}", hint)


class PackRecord:
    """One record (see `base.Record`). Holds its reader, so that a forgotten pack stays open while it is read."""

    __slots__ = ("_index", "_oid", "_reader", "_start", "length")

    def __init__(self, reader: ObjectReader, oid: str, index: int, start: int, length: int) -> None:
        self._reader = reader
        self._oid = oid
        self._index = index
        self._start = start
        self.length = length

    def read(self, offset: int, length: int) -> Buffer:
        if offset < 0 or length < 0 or offset + length > self.length:
            raise RecordError(
                f"object {self._oid}: record {self._index} has {self.length} bytes, "
                f"but bytes {offset} to {offset + length} are asked for"
            )
        return self._reader.read(self._start + offset, length)


class Packs:
    """Opened packs of a store, the least recently used forgotten first. Thread-safe.

    A forgotten pack's descriptor closes with the last record that still refers to it. Small packs are held in memory
    instead, up to `held_bytes` of them. A chain goes through its packs once for each parameter: `max_open` should not be
    less than a chain is deep.
    """

    def __init__(self, store: ObjectStore, max_open: int = 128, held_bytes: int = HELD_BYTES) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._open: LRUCache[str, PackReader] = LRUCache(max_open)
        self._held: dict[str, PackReader] = {}
        self._room = held_bytes

    def record(self, ref: Located) -> Record:
        """Raises MissingObjectError when the object is not in the store, RecordError when it is malformed."""
        return self._pack(ref.object).record(ref.record)

    def _pack(self, oid: str) -> PackReader:
        with self._lock:
            pack = self._held.get(oid)
            if pack is None:  # not `or`: a pack without a record is false
                pack = self._open.get(oid)
        if pack is None:
            reader = self._store.open(oid)
            size = reader.size
            held = size <= SMALL_BYTES and self._take_room(size)
            try:
                if held:
                    data = reader.read(0, size)
                    reader.close()
                    reader = MemoryReader(data)
                pack = PackReader(reader, oid)
            except BaseException:
                reader.close()
                if held:
                    self._take_room(-size)
                raise
            with self._lock:  # two threads may both have opened it: either will do
                if held:
                    self._room += size if oid in self._held else 0
                    self._held[oid] = pack
                else:
                    self._open[oid] = pack
        return pack

    def _take_room(self, size: int) -> bool:
        with self._lock:
            if size > self._room:
                return False
            self._room -= size
            return True

    def forget(self, oid: str) -> None:
        """Read this object anew next time: it proved damaged, or was replaced."""
        with self._lock:
            self._held.pop(oid, None)
            self._open.pop(oid, None)

    def close(self) -> None:
        """Forget all packs."""
        with self._lock:
            self._held.clear()
            self._open.clear()
