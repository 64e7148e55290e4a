"""What this repository has seen: pointers by content, parameters by digest. A cache, nothing else.

Sqlite in the common directory, shared by all sessions and work trees. Every failure is a miss: a read-only or full disk, a
lock that another process holds, damage. A damaged file is removed and made again. Each row carries a checksum, so that a
row is what was remembered or it is not there. Rollback journal, not WAL, which needs shared memory and so no network file
system; no fsync, since what is lost is only asked again. The oldest rows go when there are too many.

What a row names may have left the store since (prune): who asks must look. Methods may be called from any thread.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import blake3
import zstandard
from pydantic import TypeAdapter, ValidationError

from theta_daemon.pointer import MAX_POINTER_BYTES, Parameter

SCHEMA: Final = 1
BUSY_SECONDS: Final = 0.05
MAX_POINTERS: Final = 10_000
MAX_PARAMETERS: Final = 200_000
MAX_FILE_BYTES: Final = 512 << 20
"""Above this the older half of the pointers goes."""

_CHECKSUM_BYTES: Final = 16
_BATCH: Final = 500
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS pointers (key TEXT PRIMARY KEY, value BLOB NOT NULL, turn INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS pointers_turn ON pointers (turn);
CREATE TABLE IF NOT EXISTS parameters (key TEXT PRIMARY KEY, value BLOB NOT NULL, turn INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS parameters_turn ON parameters (turn);
"""
_PARAMETER: Final = TypeAdapter(Parameter)
_T = TypeVar("_T")


class Memo:
    """The memo in the file `path`, made with `mode` when something is first remembered."""

    def __init__(
        self,
        path: Path,
        *,
        mode: int = 0o600,
        directory_mode: int = 0o700,
        max_pointers: int = MAX_POINTERS,
        max_parameters: int = MAX_PARAMETERS,
    ) -> None:
        self._path = path
        self._mode = mode
        self._directory_mode = directory_mode
        self._limits = {"pointers": max_pointers, "parameters": max_parameters}
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        self._inode: tuple[int, int] | None = None

    def pointer(self, key: str) -> bytes | None:
        """The text of the pointer that was remembered for `key` (a content's digest and what else made the pointer)."""
        value = self._read("pointers", [key]).get(key)
        if value is None:
            return None
        try:
            if not 0 <= zstandard.frame_content_size(value) <= MAX_POINTER_BYTES:
                return None
            return zstandard.ZstdDecompressor().decompress(value)
        except zstandard.ZstdError:
            return None

    def remember(self, key: str, text: bytes) -> None:
        """Remember the pointer of `key`."""
        self.remember_all({key: text})

    def remember_all(self, texts: Mapping[str, bytes]) -> None:
        """Remember pointers by key, all at once. What is remembered so already costs no writing: git may be waiting."""
        compressor = zstandard.ZstdCompressor()
        rows = {key: compressor.compress(text) for key, text in texts.items()}
        known = self._read("pointers", list(rows))
        self._write("pointers", [(key, value) for key, value in rows.items() if known.get(key) != value])

    def parameters(self, digests: Iterable[str]) -> dict[str, Parameter]:
        """A parameter, wherever it was, for each of `digests` that is known. dtype and shape may differ from yours."""
        found = {}
        for digest, value in self._read("parameters", list(dict.fromkeys(digests))).items():
            with contextlib.suppress(ValidationError):
                parameter = _PARAMETER.validate_json(value)
                if parameter.digest == digest:
                    found[digest] = parameter
        return found

    def remember_parameters(self, parameters: Iterable[Parameter]) -> None:
        """Remember where these parameters' records are."""
        self._write("parameters", [(parameter.digest, parameter.line().encode()) for parameter in parameters])

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._forget_file()

    def close(self) -> None:
        """Let go of the file; the next call opens it again."""
        with self._lock:
            self._disconnect()

    def _read(self, table: str, keys: Sequence[str]) -> dict[str, bytes]:
        def select(database: sqlite3.Connection) -> dict[str, bytes]:
            found = {}
            for start in range(0, len(keys), _BATCH):
                some = keys[start : start + _BATCH]
                marks = ",".join("?" * len(some))
                rows = database.execute(f"SELECT key, value FROM {table} WHERE key IN ({marks})", some)  # noqa: S608
                for key, value in rows:
                    if isinstance(value, bytes) and value[:_CHECKSUM_BYTES] == _checksum(key, value[_CHECKSUM_BYTES:]):
                        found[key] = value[_CHECKSUM_BYTES:]
            return found

        if not keys:
            return {}
        return self._attempt(select, create=False) or {}

    def _write(self, table: str, rows: Sequence[tuple[str, bytes]]) -> None:
        def insert(database: sqlite3.Connection) -> None:
            database.execute("BEGIN IMMEDIATE")
            try:
                turn = database.execute(f"SELECT coalesce(max(turn), 0) + 1 FROM {table}").fetchone()[0]  # noqa: S608
                database.executemany(
                    f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)",  # noqa: S608
                    [(key, _checksum(key, value) + value, turn) for key, value in rows],
                )
                self._make_room(database, table)
                database.execute("COMMIT")
            except sqlite3.Error:
                with contextlib.suppress(sqlite3.Error):
                    database.execute("ROLLBACK")
                raise

        if rows:
            self._attempt(insert, create=True)

    def _make_room(self, database: sqlite3.Connection, table: str) -> None:
        count = database.execute(f"SELECT count(*) FROM {table}").fetchone()[0]  # noqa: S608
        surplus = count - self._limits[table]
        if surplus > 0:
            # A tenth more than needed, so that a full memo does not do this for every row.
            surplus += self._limits[table] // 10
        pages, free, size = (
            database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
        )
        if table == "pointers" and (pages - free) * size > MAX_FILE_BYTES:
            surplus = max(surplus, count // 2 + 1)
        if surplus > 0:
            database.execute(
                f"DELETE FROM {table} WHERE key IN (SELECT key FROM {table} ORDER BY turn LIMIT ?)",  # noqa: S608
                [surplus],
            )

    def _attempt(self, work: Callable[[sqlite3.Connection], _T], *, create: bool) -> _T | None:
        """What `work` gives, or None when anything is in the way."""
        with self._lock:
            try:
                database = self._connect(create=create)
                return None if database is None else work(database)
            except sqlite3.OperationalError:
                self._disconnect()  # locked, full, read-only: another time
            except (sqlite3.DatabaseError, OverflowError):
                self._forget_file()  # damaged, or another program's
            except OSError:
                self._disconnect()
            return None

    def _connect(self, *, create: bool) -> sqlite3.Connection | None:
        try:
            inode = _inode(self._path)
        except FileNotFoundError:
            self._disconnect()
            if not create:
                return None
            self._create()
            inode = _inode(self._path)
        if self._database is not None and inode == self._inode:
            return self._database
        self._disconnect()
        uri = f"{self._path.absolute().as_uri()}?mode=rw"
        database = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            database.execute("PRAGMA trusted_schema = OFF")
            database.execute("PRAGMA synchronous = OFF")
            version = database.execute("PRAGMA user_version").fetchone()[0]
            if version == 0 and create:
                database.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")
            elif version == 0:
                database.close()
                return None
            elif version != SCHEMA:
                raise sqlite3.DatabaseError("another version's memo")  # noqa: TRY301
        except BaseException:
            database.close()
            raise
        self._database, self._inode = database, inode
        return database

    def _create(self) -> None:
        """An empty file with the right mode; sqlite's own files beside it take it over."""
        if not self._path.parent.is_dir():
            with contextlib.suppress(FileExistsError):
                self._path.parent.mkdir(mode=0o700)
                self._path.parent.chmod(self._directory_mode)
        with contextlib.suppress(FileExistsError):
            descriptor = os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                os.fchmod(descriptor, self._mode)
            finally:
                os.close(descriptor)

    def _disconnect(self) -> None:
        database, self._database, self._inode = self._database, None, None
        if database is not None:
            with contextlib.suppress(sqlite3.Error):
                database.close()

    def _forget_file(self) -> None:
        self._disconnect()
        for path in (self._path, self._path.with_name(self._path.name + "-journal")):
            with contextlib.suppress(OSError):
                path.unlink()


def _checksum(key: str, value: bytes) -> bytes:
    return blake3.blake3(key.encode() + b"\0" + value).digest(_CHECKSUM_BYTES)


def _inode(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino
