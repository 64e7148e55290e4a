"""What a process keeps between sessions: the pool, the caches, the counts. And a session's handler on top of it.

The daemon has one engine for everybody, the in-process filter one for itself; they differ in nothing but how long it lives
and how much it may remember. Nothing here reads the process's own environment, cwd or umask.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Final

from cachetools import LRUCache

from protocol.events import Command, Request
from theta_daemon import registry, session
from theta_daemon.counters import Counters
from theta_daemon.errors import ThetaError
from theta_daemon.filters.machinery import Machinery
from theta_daemon.filters.proven import LastingProven, ProvenPointers
from theta_daemon.filters.smudge import Smudger
from theta_daemon.filters.spool import Spool
from theta_daemon.filters.workspace import Workspace
from theta_daemon.history.cache import PointerCache
from theta_daemon.history.history import History
from theta_daemon.history.memo import Memo
from theta_daemon.history.repository import Repository
from theta_daemon.invocation import Invocation
from theta_daemon.settings import DaemonMode, Settings, usable_cpus
from theta_daemon.store.alternates import alternate_roots
from theta_daemon.store.cache_place import CachePlace, cache_place
from theta_daemon.store.disk_cache import DiskCache
from theta_daemon.store.lfs import LfsStore
from theta_daemon.store.modes import SharedMode, directory_mode, object_mode
from theta_daemon.store.pack import Packs
from theta_daemon.store.tensor_cache import TensorCache
from theta_daemon.transfer import Transfer

if TYPE_CHECKING:
    from theta_daemon.filters.hints import Hints

_TRANSIENT_CACHE_BYTES: Final = 256 << 20
"""A process that ends with its git command remembers no more than this."""

_PROVEN_POINTERS: Final = 4096
_DISK_CACHES: Final = 16
"""Disk caches that callers use, each of which knows what its folder holds."""
_ACCEPTED: Final = 64
"""Callers accepted and not served yet."""


class Engine:
    """Serves any number of sessions at once. `resident`: it outlives them, so the whole tensor cache is worth having."""

    def __init__(self, settings: Settings, *, resident: bool = False) -> None:
        budget = settings.tensor_cache if resident else min(settings.tensor_cache, _TRANSIENT_CACHE_BYTES)
        self.tensors = TensorCache(budget)
        self.pointers = PointerCache()
        self.counters = Counters()
        self._lock = threading.Lock()
        self._workers = settings.workers or usable_cpus()
        self._pool = ThreadPoolExecutor(self._workers, "theta-worker")
        self._proven = ProvenPointers(_PROVEN_POINTERS)
        self._resident = resident
        self._disks: LRUCache[CachePlace, DiskCache] = LRUCache(_DISK_CACHES)
        self._accepted: LRUCache[int, _Place] = LRUCache(_ACCEPTED)

    def accepts(self, invocation: Invocation) -> str | None:
        """A reason not to serve this caller, or None."""
        try:
            place = _Place.of(invocation)
        except ThetaError as error:
            return error.message  # the in-process filter says it to the user
        if place.settings.daemon is DaemonMode.NEVER:
            return "theta.daemon is never"
        with self._lock:
            self._accepted[id(invocation)] = place
        return None

    def serve(
        self,
        invocation: Invocation,
        stdin_fd: int,
        stdout_fd: int,
        stderr_fd: int,
        cancelled: threading.Event | None = None,
    ) -> int:
        """One whole conversation with git; the exit status of the filter process."""

        def report(text: str) -> None:
            os.write(stderr_fd, f"theta-daemon: {text}\n".encode(errors="backslashreplace"))

        cancelled = cancelled or threading.Event()
        try:
            with self.workspace(invocation, report, stderr_fd, cancelled) as workspace:
                return session.run(stdin_fd, stdout_fd, _Handler(workspace), report, cancelled)
        except ThetaError as error:
            report(error.describe())
            return 1

    @contextmanager
    def workspace(
        self,
        invocation: Invocation,
        report: Callable[[str], None],
        stderr_fd: int | None = None,
        cancelled: threading.Event | None = None,
    ) -> Iterator[Workspace]:
        """The means of one session. Raises RepositoryError, ConfigError."""
        place = self._place(invocation)
        repository, settings = place.repository, place.settings
        cancelled = cancelled or threading.Event()
        shared = SharedMode.parse(repository.shared_mode)
        counters = Counters(self.counters)
        store = LfsStore(
            repository.objects_dir,
            umask=invocation.umask,
            shared=shared,
            fsync=settings.fsync,
            alternates=alternate_roots(repository.common_dir, invocation.env.get("GIT_ALTERNATE_OBJECT_DIRECTORIES")),
        )
        packs = Packs(store)
        known = registry.registry()
        memo = Memo(
            repository.scratch_dir / "memo.sqlite",
            mode=object_mode(invocation.umask, shared) | 0o600,
            directory_mode=directory_mode(invocation.umask, shared) | 0o700,
        )
        history = History(repository, invocation, self.pointers, counters, stderr_fd, cancelled)
        disk = self._disk_cache(settings, invocation)
        machinery = Machinery(
            self._pool, self.tensors, packs, known.update, counters, cancelled, disk, remembers=self._resident
        )
        transfer = Transfer(repository, settings, store, counters, stderr_fd, cancelled)
        try:
            yield Workspace(
                invocation,
                settings,
                repository,
                history,
                store,
                memo,
                known,
                machinery,
                self._proven if disk is None else LastingProven(self._proven, disk),
                report,
                transfer.fetch,
                cache(partial(_hints, invocation, known)),
            )
        finally:
            history.close()
            packs.close()
            memo.close()

    def _disk_cache(self, settings: Settings, invocation: Invocation) -> DiskCache | None:
        where = cache_place(settings, invocation.env, invocation.umask)
        if where is None:
            return None
        with self._lock:
            disk = self._disks.get(where)
            if disk is None:
                self._disks[where] = disk = where.open()
            return disk

    def _place(self, invocation: Invocation) -> _Place:
        """What `accepts` found for this caller, or found now: git's configuration costs a child process."""
        with self._lock:
            place = self._accepted.pop(id(invocation), None)
        return place if place is not None and place.invocation is invocation else _Place.of(invocation)

    def _disk_caches(self) -> list[DiskCache]:
        with self._lock:
            return list(self._disks.values())

    def status(self) -> dict[str, object]:
        """Caches and counts as JSON values."""
        return {
            "workers": self._workers,
            "tensor_cache": asdict(self.tensors.stats()),
            "pointer_cache": asdict(self.pointers.stats()),
            "disk_caches": {str(disk.folder): asdict(disk.stats()) for disk in self._disk_caches()},
            "counters": self.counters.snapshot(),
        }

    def busy(self) -> bool:
        """Nothing outlives a session."""
        return False

    def close(self) -> None:
        """End the pool."""
        self._pool.shutdown(wait=False, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class _Place:
    """A caller's repository and settings. Holds the caller, so that its `id` stays its own."""

    invocation: Invocation
    repository: Repository
    settings: Settings

    @classmethod
    def of(cls, invocation: Invocation) -> _Place:
        """Raises RepositoryError, ConfigError."""
        repository = Repository.discover(invocation)
        return cls(invocation, repository, Settings.load(repository.config, invocation.env, repository.top))


def import_everything() -> None:
    """What sessions would import when they need it; for a process that has many, and shall not mix two versions of the code."""
    for name in ("filters.clean", "filters.hints", "store.remote", "upkeep.hook"):
        import_module(f"theta_daemon.{name}")


def _hints(invocation: Invocation, known: registry.Registry) -> Hints:
    from theta_daemon.filters.hints import Hints

    return Hints.load(invocation, known.update)


class _Handler:
    """Answers git's requests for one session (`session.Handler`).

    What only a clean needs is imported by the first one: most commands that start a filter of their own check out.
    """

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._smudger = Smudger(workspace)

    def open_sink(self, request: Request) -> Spool:
        directory = self._workspace.repository.spool_dir
        if request.command is Command.CLEAN:
            from theta_daemon.filters.arriving import ArrivingSpool
            from theta_daemon.filters.clean import begin

            return ArrivingSpool(directory, lambda beginning: begin(self._workspace, request.pathname, beginning))
        return Spool(directory)

    def answer(self, request: Request, sink: Spool) -> session.Content | session.Delayed:
        if request.command is Command.CLEAN:
            from theta_daemon.filters.clean import clean

            return [clean(self._workspace, request.pathname, sink)]
        content = self._smudger.smudge(request, sink)
        return session.Delayed.DELAYED if content is None else content

    def available(self) -> list[bytes]:
        return self._smudger.available()

    def close(self) -> None:
        self._smudger.close()
        if self._workspace.machinery.counters.get("cleans.built"):
            from theta_daemon.upkeep.hook import ensure

            ensure(self._workspace.repository, self._workspace.report)
