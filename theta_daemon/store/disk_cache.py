"""Rebuilt values on disk, by digest: makes the next checkout instant, also on another machine, in another process, offline.

```
<folder>/CACHEDIR.TAG            backup programs pass it over
<folder>/v1/ab/<digest>          a value's raw bytes
<folder>/v1/ab/<digest>.planes   the same, compressed (`cached_value`)
<folder>/v1/ab/<random>.tmp      being written
```

Rules:
- Nothing in here is ever trusted: a value is what has the digest it is called by (BLAKE3), computed at each reading. What
  is truncated, changed, foreign or of another type is no entry; it is deleted where that is possible, and written anew.
- Nothing in here is ever needed: no failure to write, read or delete is an error, only a count. It may vanish at any time.
- No locks: entries appear by rename and go by unlink, whoever else does the same at the same time. Who has an entry open
  keeps it.
- The budget bounds the bytes of all entries, the least recently used go first (modification times, renewed by use). Other
  processes' writing shows at the next survey, so the budget may be exceeded by what they write in between.
- Portable: digests and raw bytes; no path, owner, machine or repository in it. Can be saved and restored as a folder.
"""

from __future__ import annotations

import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from os.path import isfile
from pathlib import Path
from typing import Final

from theta_daemon.errors import RecordError, StoreError
from theta_daemon.store.base import OBJECT_ID
from theta_daemon.store.cache_writer import TEMPORARY, EntryWriter
from theta_daemon.store.cached_value import CachedValue
from theta_daemon.store.disk import FileReader
from theta_daemon.tensor import Buffer

COMPRESSED: Final = ".planes"
VERSION: Final = "v1"
_TAG: Final = (
    b"Signature: 8a477f597d28d172789f06886806bc55\n# Rebuilt parameters of theta-daemon; may be deleted at any time.\n"
)
_LOW_MARK: Final = 0.9
"""An eviction goes down to this part of the budget, so that not every value starts one."""
_SURVEY_PART: Final = 16
"""Others' writing is looked at after each 1/16 of the budget that we write ourselves."""
_ABANDONED_SECONDS: Final = 3600
_RENEWED_SECONDS: Final = 60
"""Use renews the time of an entry that is older than this: readers of one cache need not all write to it."""


@dataclass(frozen=True, slots=True)
class DiskCacheStats:
    """What was done through this object, and what the folder held at the last survey plus what was written since."""

    budget_bytes: int
    size_bytes: int
    hits: int = 0
    misses: int = 0
    rejected: int = 0
    """Entries that were not what they were called."""
    written: int = 0
    unwritten: int = 0
    """Values that could not be kept: no space, no permission."""
    evictions: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the cache. `used` is its modification time in seconds."""

    path: Path
    digest: str
    size: int
    used: float


class DiskCache:
    """The cache in `folder`, within `budget_bytes` (0: nothing is written). Thread-safe; any number of processes share it."""

    def __init__(self, folder: Path, budget_bytes: int, *, umask: int = 0o077, compress: bool = False) -> None:
        self.folder = folder
        self.budget_bytes = budget_bytes
        self._values = folder / VERSION
        self._umask = umask
        self._compress = compress
        self._lock = threading.Lock()
        self._size: int | None = None  # of all entries, as far as known; None before the first survey
        self._since_survey = 0
        self._rejected: set[str] = set()
        self._counts: Counter[str] = Counter()

    def get(self, digest: str, nbytes: int) -> memoryview | None:
        """The whole value of `nbytes` bytes, verified; None when it is not here."""
        value = self._lookup(digest, nbytes)
        if value is None:
            return None
        try:
            data = value.whole(digest)
        except (RecordError, StoreError, MemoryError):
            self._reject(digest)
            return None
        finally:
            value.close()
        self._used(digest, value.modified_seconds)
        return data

    def open(self, digest: str, nbytes: int) -> CachedValue | None:
        """The value to be read in pieces, verified before this returns, without ever holding all of it."""
        value = self._lookup(digest, nbytes)
        if value is None:
            return None
        try:
            value.verify(digest)
        except (RecordError, StoreError):
            value.close()
            self._reject(digest)
            return None
        self._used(digest, value.modified_seconds)
        return value

    def has(self, digest: str) -> bool:
        """Whether there is an entry of that name which was not found to be something else. Says nothing about what is in it."""
        return digest not in self._rejected and any(map(isfile, self._names(digest)))

    def size_of(self, digest: str) -> int | None:
        """Bytes that the entry takes; None when there is none."""
        for path in self._paths(digest):
            with suppress(OSError):
                return path.stat().st_size
        return None

    def renew(self, digest: str) -> None:
        """Make the entry the last to be evicted."""
        for path in self._paths(digest):
            with suppress(OSError):
                os.utime(path)
                return

    def put(self, digest: str, value: Buffer, word_bytes: int = 1) -> bool:
        """Keep `value`, whose digest the caller has checked; whether it is here now. Words of `word_bytes` compress best so."""
        nbytes = memoryview(value).nbytes
        if nbytes <= self.budget_bytes and self.has(digest):
            return True
        writer = self.writer(digest, nbytes, word_bytes)
        if writer is None:
            return False
        writer.write(0, value)
        return self.commit(digest, writer)

    def writer(self, digest: str, nbytes: int, word_bytes: int = 1) -> EntryWriter | None:
        """For a value that comes in pieces; None when it is too large or cannot be written. Goes to `commit` or is aborted."""
        if nbytes > self.budget_bytes:
            return None
        raw, compressed = self._paths(digest)
        try:
            if self._make_room(nbytes):
                self._make_folder(raw.parent)
                mode = 0o666 & ~self._umask
                if self._compress:
                    return EntryWriter(compressed, nbytes, mode, compress_words=word_bytes)
                return EntryWriter(raw, nbytes, mode)
        except OSError:
            pass
        self._count(unwritten=1)
        return None

    def commit(self, digest: str, writer: EntryWriter) -> bool:
        """Give what `writer` holds its name, once its digest is known to be right; whether that was possible."""
        if not writer.commit():
            self._count(unwritten=1)
            return False
        self._count(written=1)
        with self._lock:
            self._rejected.discard(digest)
            self._size = (self._size or 0) + writer.size
            self._since_survey += writer.size
        return True

    def trim(self, to_bytes: int) -> DiskCacheStats:
        """Survey the folder and delete the least recently used entries until at most `to_bytes` are left."""
        entries = sorted(self.entries(), key=lambda entry: entry.used)
        size = sum(entry.size for entry in entries)
        evicted = 0
        for entry in entries:
            if size <= to_bytes:
                break
            with suppress(OSError):
                entry.path.unlink()
                evicted += 1
                size -= entry.size
        with self._lock:
            self._size = size
            self._since_survey = 0
        self._count(evictions=evicted)
        return self.stats()

    def entries(self) -> Iterator[Entry]:
        """All entries, in no order. Abandoned temporary files are deleted on the way."""
        for folder in _scan(self._values):
            if not folder.is_dir(follow_symlinks=False) or len(folder.name) != 2:
                continue
            for file in _scan(Path(folder.path)):
                entry = self._entry(file)
                if entry is not None:
                    yield entry

    def stats(self) -> DiskCacheStats:
        with self._lock:
            return DiskCacheStats(self.budget_bytes, self._size or 0, **self._counts)

    def _entry(self, file: os.DirEntry[str]) -> Entry | None:
        try:
            status = file.stat(follow_symlinks=False)
        except OSError:
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        if file.name.endswith(TEMPORARY):
            if status.st_mtime < time.time() - _ABANDONED_SECONDS:
                with suppress(OSError):
                    Path(file.path).unlink()
            return None
        digest = file.name.removesuffix(COMPRESSED)
        if OBJECT_ID.fullmatch(digest) is None:
            return None
        return Entry(Path(file.path), digest, status.st_size, status.st_mtime)

    def _names(self, digest: str) -> tuple[str, str]:
        """Where the entry is, raw and compressed. As texts: there are thousands in a checkout."""
        if OBJECT_ID.fullmatch(digest) is None:
            raise ValueError(f"{digest!r} is not a digest")
        raw = f"{self._values}{os.sep}{digest[:2]}{os.sep}{digest}"
        return raw, raw + COMPRESSED

    def _paths(self, digest: str) -> tuple[Path, Path]:
        raw, compressed = self._names(digest)
        return Path(raw), Path(compressed)

    def _lookup(self, digest: str, nbytes: int) -> CachedValue | None:
        for path, compressed in zip(self._names(digest), (False, True), strict=True):
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY)
            except FileNotFoundError:
                continue
            except OSError:  # a link, somebody else's, a bad disk
                self._reject(digest)
                continue
            reader = FileReader(fd, path)
            with suppress(RecordError, StoreError):
                if reader.regular:
                    return CachedValue(reader, nbytes, compressed=compressed)
            reader.close()
            self._reject(digest)
        self._count(misses=1)
        return None

    def _reject(self, digest: str) -> None:
        self._count(rejected=1)
        paths = self._paths(digest)
        for path in paths:
            with suppress(OSError):
                path.unlink()
            with suppress(OSError):
                path.rmdir()
        with self._lock:
            if any(os.path.lexists(path) for path in paths):  # we may not delete it
                self._rejected.add(digest)

    def _used(self, digest: str, before: float) -> None:
        self._count(hits=1)
        if not time.time() - _RENEWED_SECONDS < before <= time.time():
            self.renew(digest)

    def _make_room(self, size: int) -> bool:
        with self._lock:
            known, since = self._size, self._since_survey
        if known is None or since + size > self.budget_bytes // _SURVEY_PART:
            known = self.trim(self.budget_bytes).size_bytes
        if known + size > self.budget_bytes:
            known = self.trim(int(max(0, min(self.budget_bytes * _LOW_MARK, self.budget_bytes - size)))).size_bytes
        return known + size <= self.budget_bytes

    def _make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            return
        if not self.folder.is_dir():
            # Private, unless its owner made it beforehand to share it: models in here may not be everybody's.
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                self.folder.mkdir(0o700)
            with suppress(OSError):
                (self.folder / "CACHEDIR.TAG").write_bytes(_TAG)
        for path in (self._values, folder):
            with suppress(FileExistsError):
                path.mkdir(0o700)
                path.chmod(stat.S_IMODE(path.stat().st_mode) & stat.S_ISGID | (0o777 & ~self._umask))

    def _count(self, **amounts: int) -> None:
        with self._lock:
            self._counts.update(amounts)


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []
