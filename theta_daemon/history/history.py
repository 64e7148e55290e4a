"""The past of a repository for one session: pointers by blob id, entries by path.

One interface over the sources, cheapest first: the LRU of parsed pointers, libgit2, a git child. One lock makes every
method safe from any thread; pointers are parsed under it, so that no session parses one twice. Counted: `blobs_read`
(and `.pygit2`, `.cat_file`), `pointers_parsed`, `pointer_cache.hits`, `pointer_cache.misses`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Final, Self

from cachetools import LRUCache

from theta_daemon.counters import Counters
from theta_daemon.history import refs, trees
from theta_daemon.history.cache import PointerCache
from theta_daemon.history.git import git_child
from theta_daemon.history.index import Index, IndexEntry
from theta_daemon.history.objects import Objects, object_id
from theta_daemon.history.repository import Repository
from theta_daemon.invocation import Invocation
from theta_daemon.pointer import MAX_POINTER_BYTES, Pointer, parse

_MAX_OBJECT_BYTES: Final = 256 << 20
"""No commit, tag or tree is larger."""

_KEPT_TREES: Final = 64
_MAX_TAGS: Final = 16
_UNSET: Final = frozenset({b"unspecified", b"unset"})


@dataclass(frozen=True, slots=True)
class HeadEntry:
    """A regular file in a commit."""

    commit: str
    blob: str


class History:
    """What one session may know of its repository's past. `cache` is shared by all sessions, `counters` are its own.

    When `cancelled` is set, what waits for git gets None, and so does all that would have to ask it later.
    """

    def __init__(
        self,
        repository: Repository,
        invocation: Invocation,
        cache: PointerCache,
        counters: Counters,
        stderr_fd: int | None = None,
        cancelled: threading.Event | None = None,
    ) -> None:
        self.repository = repository
        self._invocation = invocation
        self._counters = counters
        self._lock = threading.RLock()
        self._stops = (threading.Event(), cancelled or threading.Event())
        stopped = partial(_any_set, self._stops)  # not a method: a session's objects go with it
        self._objects = Objects(repository, invocation, stderr_fd, stopped)
        # Where ids are replaced, an id does not name its content, and what this session reads is no other one's business.
        self._cache = PointerCache() if self._objects.replaced else cache
        self._index = Index(repository, invocation)
        self._stderr_fd = stderr_fd
        self._trees: LRUCache[str, Mapping[bytes, trees.TreeEntry]] = LRUCache(_KEPT_TREES)
        self._roots: LRUCache[str, str] = LRUCache(_KEPT_TREES)

    def blob(self, blob_id: str, *, fetch: bool = True) -> bytes | None:
        """A blob's content; None when git does not have it, or when it is too large to be a pointer.

        Without `fetch` a partial clone does not ask its remote for it.
        """
        with self._lock:
            found = self._objects.read(blob_id, MAX_POINTER_BYTES, fetch=fetch)
            if found is None or found.kind != "blob":
                return None
            self._counters.add("blobs_read")
            self._counters.add(f"blobs_read.{found.source}")
            return found.data

    def object(self, oid: str) -> tuple[str, bytes] | None:
        """Kind and bytes of a commit, tag or tree; None when git does not have it here."""
        with self._lock:
            found = self._objects.read(oid, _MAX_OBJECT_BYTES, fetch=False)
            return None if found is None else (found.kind, found.data)

    def has(self, oid: str) -> bool:
        """Whether git has this object, of whatever kind, here."""
        with self._lock:
            return self._objects.has(oid)

    def pointer(self, blob_id: str, *, fetch: bool = True) -> Pointer | None:
        """The pointer that a blob is; None when the blob is not to be had or is no pointer. Raises PointerError.

        `fetch` as for `blob`.
        """
        with self._lock:
            pointer = self._cached(blob_id)
            if pointer is not None:
                return pointer
            text = self.blob(blob_id, fetch=fetch)
            return None if text is None else self._parse(blob_id, text)

    def pointer_of(self, text: bytes) -> tuple[str, Pointer | None]:
        """The blob id and the pointer of a text that git hands over; None when it is no pointer. Raises PointerError."""
        blob_id = self.blob_id(text)
        with self._lock:
            return blob_id, self._cached(blob_id) or self._parse(blob_id, text)

    def blob_id(self, data: bytes) -> str:
        """The id that `data` has as a blob in this repository."""
        return object_id(self.repository.object_format, "blob", data)

    def index_entry(self, pathname: bytes) -> IndexEntry | None:
        """What is staged for `pathname` (relative to the top of the work tree) in the caller's index."""
        with self._lock:
            return self._index.entry(pathname)

    def resolved_conflict(self, pathname: bytes) -> bool:
        """Whether the caller's index remembers a conflict over `pathname` that has been resolved."""
        with self._lock:
            return self._index.resolved(pathname)

    def head_entry(self, pathname: bytes) -> HeadEntry | None:
        """The file `pathname` at HEAD, as HEAD is now; None when there is none or HEAD has no commit."""
        with self._lock:
            commit = refs.head(self.repository, self._invocation)
            return None if commit is None else self._entry(commit, pathname)

    def commit_entry(self, revision: str, pathname: bytes) -> HeadEntry | None:
        """The file `pathname` in a revision, which may also be the id of a tree (then that stands as the commit)."""
        with self._lock:
            if not self._objects.well_formed(revision):
                commit = self.resolve(revision)
                return None if commit is None else self._entry(commit, pathname)
            return self._entry(revision, pathname)

    def resolve(self, revision: str) -> str | None:
        """The id of the commit that `revision` means to git; None when it means none."""
        with self._lock:
            if revision == "HEAD":
                return refs.head(self.repository, self._invocation)
            return refs.resolve(revision, self._invocation)

    def attribute(self, pathname: bytes, name: str) -> str | None:
        """The value git gives the attribute `name` of a path: "set", or its text; None when unset or unspecified."""
        top = self.repository.work_tree
        path = pathname if top is None else bytes(top) + b"/" + pathname
        done = git_child(["check-attr", "-z", name, "--", path], self._invocation, stderr_fd=self._stderr_fd)
        fields = done.out.split(b"\0")
        if done.status != 0 or len(fields) != 4 or fields[2] in _UNSET:
            return None
        return fields[2].decode(errors="surrogateescape")

    def close(self) -> None:
        """End the git child, let go of the packs. From any thread, also while another one waits for git: that gets None."""
        self._stops[0].set()
        with self._lock:
            self._objects.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _cached(self, blob_id: str) -> Pointer | None:
        pointer = self._cache.get(blob_id)
        self._counters.add("pointer_cache.misses" if pointer is None else "pointer_cache.hits")
        return pointer

    def _parse(self, blob_id: str, text: bytes) -> Pointer | None:
        pointer = parse(text)
        if pointer is not None:
            self._counters.add("pointers_parsed")
            self._cache.put(blob_id, pointer)
        return pointer

    def _entry(self, commit: str, pathname: bytes) -> HeadEntry | None:
        try:
            tree = self._root(commit)
            *directories, name = pathname.split(b"/")
            for directory in directories:
                entry = None if tree is None else self._tree(tree).get(directory)
                tree = entry.oid if entry is not None and entry.is_tree else None
            found = None if tree is None else self._tree(tree).get(name)
        except ValueError:
            return None
        return HeadEntry(commit, found.oid) if found is not None and found.is_file else None

    def _root(self, commit: str) -> str | None:
        """The tree of a commit, a tag or a tree."""
        root = self._roots.get(commit)
        oid = commit
        for _ in range(_MAX_TAGS):
            if root is not None:
                break
            found = self._objects.read(oid, _MAX_OBJECT_BYTES)
            if found is None or found.kind == "blob":
                return None
            if found.kind == "tree":
                root = oid
            else:
                oid = trees.target(found.data)
        if root is not None:
            self._roots[commit] = root
        return root

    def _tree(self, oid: str) -> Mapping[bytes, trees.TreeEntry]:
        tree = self._trees.get(oid)
        if tree is None:
            found = self._objects.read(oid, _MAX_OBJECT_BYTES)
            tree = trees.entries(found.data, len(oid) // 2) if found is not None and found.kind == "tree" else {}
            if found is not None:
                self._trees[oid] = tree
        return tree


def _any_set(events: Iterable[threading.Event]) -> bool:
    return any(event.is_set() for event in events)
