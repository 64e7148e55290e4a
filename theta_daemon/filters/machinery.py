"""What all rebuilding in a process shares, and a session's own part of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from theta_daemon.counters import Counters
from theta_daemon.errors import ThetaError
from theta_daemon.filters.chain import Records, Updates
from theta_daemon.store.disk_cache import DiskCache
from theta_daemon.store.tensor_cache import TensorCache

P = ParamSpec("P")
T = TypeVar("T")


class CancelledSessionError(ThetaError):
    """The session is over: git or the client has gone."""

    def __init__(self, message: str = "cancelled", hint: str | None = None) -> None:
        super().__init__(message, hint)


@dataclass(frozen=True, slots=True)
class Machinery:
    """What all rebuilding in a process shares. `cancelled` is a session's."""

    pool: ThreadPoolExecutor
    tensors: TensorCache
    records: Records
    updates: Updates
    counters: Counters
    cancelled: threading.Event
    disk: DiskCache | None = None
    """The caller's disk cache."""
    remembers: bool = False
    """Whether what is read from disk is worth keeping in memory: the process outlives its sessions."""
    warms: bool = False
    """Whether values are wanted on disk, not in memory: what is there only is rebuilt, and shared values wait on disk."""

    def submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """The call in the pool, unless the session is cancelled meanwhile."""

        def run() -> T:
            if self.cancelled.is_set():
                raise CancelledSessionError
            return call(*args, **kwargs)

        return self.pool.submit(run)
