"""Prune: objects that nothing in the repository can need any more.

Rules, each of which alone would keep an object:
- only packs of ours are looked at; other files in the folder belong to git-lfs, and stay;
- every id in any pointer that a root reaches is needed, whether the pointer makes sense or not, git-lfs's pointers included;
- what was written or named anew within the grace period stays, and its age is looked at again when it is out of sight;
- roots that appear while the others are walked are walked too, until there are no new ones;
- where the roots cannot be known (a partial clone's missing pointers, a folder that other repositories use too), only what
  a remote surely has may go (`verify`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from theta_daemon.depot import Depot, open_memo
from theta_daemon.errors import MissingObjectError, RemoteError, RepositoryError, StoreError
from theta_daemon.history import roots
from theta_daemon.history.cache import PointerCache
from theta_daemon.history.history import History
from theta_daemon.history.reach import reach
from theta_daemon.store.lfs import LfsStore
from theta_daemon.store.pack import MAGIC

GRACE_SECONDS: Final = 14 * 24 * 3600.0
"""Younger objects stay: as git's own gc.pruneExpire."""

_ID: Final = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_POINTERS: Final = (b'{"theta-pointer":', b"version https://git-lfs", b"version https://hawser")
_MAX_ROUNDS: Final = 20

Progress = Callable[[str, int, int], None]
"""Told what is being looked at, how much of it has been, and how much there is."""


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune found: sizes by id. `kept`: needed objects; `young`: not needed, but within the grace period;
    `removed`: gone (or would go); `unverified`: not needed, but not surely at the remote."""

    kept: Mapping[str, int]
    young: Mapping[str, int]
    removed: Mapping[str, int]
    unverified: Mapping[str, int]


class Prune:
    """One prune of the caller's repository."""

    def __init__(self, depot: Depot, progress: Progress) -> None:
        self._depot = depot
        self._progress = progress
        self._repository = roots.unreplaced(depot.repository)

    def run(self, *, grace_seconds: float = GRACE_SECONDS, dry_run: bool = False, verify: str | None = None) -> Pruned:
        """Remove what nobody needs. `verify`: the name of a remote that must have it (its default when empty).

        Raises RepositoryError when the roots cannot be known, RemoteError, StoreError.
        """
        depot = self._depot
        older_than = time.time() - grace_seconds
        if not dry_run:
            depot.store.put_back()
        # Packs first: what is written after this listing is not looked at.
        listed = dict(packs(depot.store))
        with History(self._repository, self._repository.invocation, PointerCache(), depot.counters) as history:
            needed = self._needed(history, sure=verify is None)
            kept = {oid: size for oid, (size, _) in listed.items() if oid in needed}
            loose = {oid: entry for oid, entry in listed.items() if oid not in needed}
            young = {oid: size for oid, (size, modified) in loose.items() if modified >= older_than}
            old = {oid: size for oid, (size, _) in loose.items() if oid not in young}
            there = old.keys() if verify is None else self._verified(old, verify or None, dry_run=dry_run)
            removed = {oid: size for oid, size in old.items() if oid in there}
            unverified = {oid: size for oid, size in old.items() if oid not in there}
            if not dry_run and removed:
                if verify is not None:
                    needed = self._needed(history, sure=False)  # asking a remote takes its time
                # What the memo remembers must be gone before its objects are.
                open_memo(depot.repository).clear()
                removed = {
                    oid: size
                    for oid, size in removed.items()
                    if oid not in needed and depot.store.remove(oid, older_than)
                }
        return Pruned(kept, young, removed, unverified)

    def _needed(self, history: History, *, sure: bool) -> frozenset[str]:
        """The ids in all pointers that the roots reach. With `sure` a pointer that cannot be read is an error."""
        self._check_folder(sure=sure)
        needed: set[str] = set()
        seen: set[str] = set()
        before: roots.Roots | None = None
        for _ in range(_MAX_ROUNDS):
            now = roots.find(self._repository)
            if before is not None and now.tips <= before.tips and now.indexes == before.indexes:
                return frozenset(needed)
            if before is None:
                found = roots.reached(self._repository, history, now)
            else:
                fresh = sorted(tip for tip in now.tips - before.tips if history.has(tip))
                found = reach(self._repository.invocation, fresh, "--indexed-objects")
            if found.absent and sure:
                raise RepositoryError(
                    f"{len(found.absent)} objects of this repository's history are not here, so it cannot be known what "
                    "their checkpoints need",
                    "prune what a remote has with --verify-remote, or see `git fsck`",
                )
            for count, (oid, path) in enumerate(found.blobs.items(), 1):
                self._progress("files", count, len(found.blobs))
                if oid not in seen:
                    seen.add(oid)
                    needed.update(_ids(history.blob(oid, fetch=False), oid, path))
            before = now
        raise RepositoryError("the refs of this repository do not stop changing", "prune when it is quiet")

    def _check_folder(self, *, sure: bool) -> None:
        root, own = self._depot.store.root.resolve(), self._repository.common_dir.resolve()
        if sure and not root.is_relative_to(own):
            raise RepositoryError(
                f"the objects are in {root}, which other repositories may use too: what they need cannot be known",
                "prune what a remote has with --verify-remote",
            )

    def _verified(self, old: Mapping[str, int], name: str | None, *, dry_run: bool) -> frozenset[str]:
        """Those that the remote surely has. One that cannot tell gets what it lacks, and then has them all."""
        if not old:
            return frozenset()
        transfer = self._depot.transfer
        remote = transfer.push_remote(name or transfer.push_name())
        there = remote.has(old)
        if there is None and dry_run:
            return frozenset(old)
        if there is None:
            try:
                report = remote.push(old, self._depot.store)
            except MissingObjectError as error:
                raise RemoteError(error.message) from error  # another prune was quicker
            there = frozenset(old) - report.failed.keys()
        return there


def packs(store: LfsStore) -> Iterator[tuple[str, tuple[int, float]]]:
    """Our packs in the store's own folder: sizes and ages by id."""
    for oid in store.ids():
        path = store.path(oid)
        try:
            status = path.stat()
            with path.open("rb") as file:
                head = file.read(len(MAGIC))
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StoreError(f"cannot read {path}: {error.strerror}", "check its owner and permissions") from error
        if head == MAGIC:
            yield oid, (status.st_size, status.st_mtime)


def _ids(text: bytes | None, oid: str, path: bytes) -> Iterator[str]:
    """Everything that may be an object's id in a text that looks like any kind of pointer."""
    if text is None:
        where = path.decode(errors="backslashreplace")
        raise RepositoryError(
            f"blob {oid} ({where}) cannot be read, so it cannot be known what it needs", "see `git fsck`"
        )
    if any(mark in text for mark in _POINTERS):
        yield from (found.decode() for found in _ID.findall(text))
