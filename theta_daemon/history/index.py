"""The index's entry for a path: what git would say is staged.

libgit2 reads the ordinary index; for all others (split, sparse, sha256, extensions it does not know, names it cannot
hold) `git ls-files` lists the whole index once. Both are kept until the file changes, so that asking for each of a
thousand files is cheap. Not thread-safe: `History` holds the lock.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import pygit2

from theta_daemon.history.git import git_child
from theta_daemon.history.repository import Repository
from theta_daemon.invocation import Invocation

_REGULAR: Final = 0o100000
_TYPE: Final = 0o170000
_STAGES: Final = (b"2", b"3", b"1")
"""Which side stands for an unmerged path: ours, else theirs, else their ancestor."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A regular file in the index. Of an unmerged path `blob` is our side, else theirs, else the ancestor."""

    blob: str
    unmerged: bool


_Lookup = Callable[[bytes], IndexEntry | None]


class Index:
    """The index of one caller."""

    def __init__(self, repository: Repository, invocation: Invocation) -> None:
        self._repository = repository
        self._invocation = invocation
        self._state: tuple[int, ...] | None = None
        self._lookup: _Lookup = _nothing
        self._resolved: frozenset[bytes] | None = None

    def entry(self, pathname: bytes) -> IndexEntry | None:
        """The entry of `pathname` (relative to the top of the work tree); None for none, or not a regular file."""
        if not self._current():
            return None
        try:
            return self._lookup(pathname)
        except (UnicodeError, ValueError):
            self._lookup = self._listing()
            return self._lookup(pathname)

    def resolved(self, pathname: bytes) -> bool:
        """Whether the index remembers a conflict over `pathname` that was resolved (`git checkout -m` brings it back)."""
        if not self._current():
            return False
        if self._resolved is None:
            self._resolved = self._undoable()
        return pathname in self._resolved

    def _current(self) -> bool:
        """Open the index anew if it has changed; whether there is one."""
        try:
            stat = self._repository.index_file.stat()
        except FileNotFoundError:
            return False
        state = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
        if state != self._state:
            self._lookup = self._open()
            self._resolved = None
            self._state = state
        return True

    def _undoable(self) -> frozenset[bytes]:
        """The paths in the index's resolve-undo extension. Few have one, and then its name is somewhere in the file."""
        try:
            if b"REUC" not in self._repository.index_file.read_bytes():
                return frozenset()
        except OSError:
            return frozenset()
        found = self._ls_files("--resolve-undo")
        return frozenset(line.partition(b"\t")[2] for line in found.split(b"\0")[:-1])

    def _open(self) -> _Lookup:
        if not self._repository.odb_readable:
            return self._listing()
        try:
            index = _Index(str(self._repository.index_file))
            index.read()
        except (pygit2.GitError, OSError, UnicodeError, ValueError):
            return self._listing()
        return lambda pathname: _from_libgit2(index, pathname)

    def _listing(self) -> _Lookup:
        return _parse(self._ls_files("-s")).get

    def _ls_files(self, what: str) -> bytes:
        found = git_child(
            ["ls-files", what, "-z", "--full-name", "--", ":/"],
            self._invocation,
            extra_env={"GIT_LITERAL_PATHSPECS": "0"},
        )
        return found.out if found.status == 0 else b""


class _Index(pygit2.Index):
    """pygit2's, whose `__del__` fails noisily when the file could not be opened."""

    def __del__(self) -> None:
        if hasattr(self, "_index"):
            super().__del__()


def _nothing(_: bytes) -> IndexEntry | None:
    return None


def _from_libgit2(index: pygit2.Index, pathname: bytes) -> IndexEntry | None:
    name = os.fsdecode(pathname)
    conflicts = index.conflicts
    if conflicts is not None and name in conflicts:
        ancestor, ours, theirs = conflicts[name]
        entry, unmerged = ours or theirs or ancestor, True
    elif name in index:
        entry, unmerged = index[name], False
    else:
        return None
    return IndexEntry(str(entry.id), unmerged) if entry.mode & _TYPE == _REGULAR else None


def _parse(listing: bytes) -> Mapping[bytes, IndexEntry]:
    """The entries of `git ls-files -s -z`: mode, blob, stage, a tab, the name."""
    entries: dict[bytes, IndexEntry] = {}
    ranks: dict[bytes, int] = {}
    for line in listing.split(b"\0")[:-1]:
        head, _, name = line.partition(b"\t")
        mode, blob, stage = head.split(b" ")
        if int(mode, 8) & _TYPE != _REGULAR:
            continue
        rank = _STAGES.index(stage) if stage in _STAGES else -1
        if name not in ranks or rank < ranks[name]:
            ranks[name] = rank
            entries[name] = IndexEntry(blob.decode(), rank >= 0)
    return entries
