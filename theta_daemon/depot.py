"""A repository with its objects and its remotes, for the commands that move and tend objects and rebuild nothing."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from theta_daemon.counters import Counters
from theta_daemon.history.cache import PointerCache
from theta_daemon.history.history import History
from theta_daemon.history.memo import Memo
from theta_daemon.history.repository import Repository
from theta_daemon.invocation import Invocation
from theta_daemon.settings import Settings
from theta_daemon.store.alternates import alternate_roots
from theta_daemon.store.lfs import LfsStore
from theta_daemon.store.modes import SharedMode, directory_mode, object_mode
from theta_daemon.transfer import Transfer


def open_store(repository: Repository, settings: Settings) -> LfsStore:
    """The repository's objects, written as its caller and its configuration want them."""
    invocation = repository.invocation
    return LfsStore(
        repository.objects_dir,
        umask=invocation.umask,
        shared=SharedMode.parse(repository.shared_mode),
        fsync=settings.fsync,
        alternates=alternate_roots(repository.common_dir, invocation.env.get("GIT_ALTERNATE_OBJECT_DIRECTORIES")),
    )


def open_memo(repository: Repository) -> Memo:
    """What the repository remembers of its pointers."""
    umask, shared = repository.invocation.umask, SharedMode.parse(repository.shared_mode)
    mode, directory = object_mode(umask, shared) | 0o600, directory_mode(umask, shared) | 0o700
    return Memo(repository.scratch_dir / "memo.sqlite", mode=mode, directory_mode=directory)


@dataclass(frozen=True, slots=True)
class Depot:
    """The means of one command."""

    invocation: Invocation
    repository: Repository
    settings: Settings
    store: LfsStore
    history: History
    transfer: Transfer
    counters: Counters

    @classmethod
    @contextmanager
    def open(cls, invocation: Invocation, stderr_fd: int | None = None) -> Iterator[Depot]:
        """The caller's. Raises RepositoryError, ConfigError."""
        repository = Repository.discover(invocation)
        if "GIT_DIR" not in invocation.env and repository.top != invocation.cwd:
            # Where git itself stands: the relative paths of remotes are meant from there.
            invocation = replace(invocation, cwd=repository.top)
            repository = replace(repository, invocation=invocation)
        settings = Settings.load(repository.config, invocation.env, repository.top)
        counters, stop = Counters(), threading.Event()
        store = open_store(repository, settings)
        transfer = Transfer(repository, settings, store, counters, stderr_fd, stop)
        with History(repository, invocation, PointerCache(), counters, stderr_fd, stop) as history:
            try:
                yield cls(invocation, repository, settings, store, history, transfer, counters)
            finally:
                stop.set()
