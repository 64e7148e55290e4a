"""This process as the caller of the layers below, and the past of the repository it stands in."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from theta_daemon.counters import Counters
from theta_daemon.errors import ThetaError
from theta_daemon.history.cache import PointerCache
from theta_daemon.history.history import History
from theta_daemon.history.repository import Repository
from theta_daemon.invocation import Invocation

STDERR = 2


def caller() -> Invocation:
    """The invocation of this process. Before any thread starts: the umask can only be read by setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    try:
        cwd = Path.cwd()
    except OSError as error:
        raise ThetaError(f"the current folder cannot be used: {error.strerror}", "change to another folder") from error
    return Invocation(cwd, dict(os.environ), umask, os.geteuid())


@contextmanager
def open_history(invocation: Invocation | None = None) -> Iterator[History]:
    """The history of the caller's repository. Raises RepositoryError where there is none."""
    who = invocation or caller()
    with History(Repository.discover(who), who, PointerCache(), Counters(), STDERR) as history:
        yield history
