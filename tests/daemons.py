"""Daemons in tests: a place of their own, a mark by which they are found again, and a check that none is left alive.

Processes are told by a variable in their environment and ended by pid, never by name.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

MARK = "TEST_RUN_OF_DAEMONS"


def daemons(**variables: str) -> list[psutil.Process]:
    """Living daemons whose environment has these variables."""
    found = []
    for process in psutil.process_iter():
        try:
            if alive(process) and "theta_daemon.server" in process.cmdline():
                environ = process.environ()
                if all(environ.get(name) == value for name, value in variables.items()):
                    found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def eventually(condition: Callable[[], object], what: str, seconds: float = 60) -> None:
    """Wait for a condition that must come; fail with `what` when it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.01)


def end(processes: list[psutil.Process]) -> None:
    """Ask them to end, then make them."""
    for process in processes:
        with_gone(process.terminate)
    deadline = time.monotonic() + 30
    while any(alive(process) for process in processes) and time.monotonic() < deadline:
        time.sleep(0.01)
    for process in processes:
        if alive(process):
            with_gone(process.kill)


def alive(process: psutil.Process) -> bool:
    """Whether it runs; one that its parent has not waited for has ended."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def with_gone(action: Callable[[], None]) -> None:
    """The action on a process that may have ended meanwhile."""
    with suppress(psutil.NoSuchProcess):
        action()


@pytest.fixture(autouse=True, scope="session")
def no_daemon_is_left() -> Iterator[None]:
    """Fails the run when a daemon that one of its tests started is alive at the end."""
    run = uuid.uuid4().hex
    os.environ[MARK] = run
    yield
    left = daemons(**{MARK: run})
    told = [(process.pid, process.cmdline()) for process in left]
    end(left)
    del os.environ[MARK]
    assert not told, f"daemons were left alive: {told}"


@pytest.fixture
def runtime_dir(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A private, short THETA_RUNTIME_DIR, set for this test; daemons there are ended with it, and do not idle out before."""
    path = Path(tempfile.mkdtemp(prefix="r-", dir="/tmp"))
    monkeypatch.setenv("THETA_RUNTIME_DIR", str(path))
    monkeypatch.setenv("THETA_IDLE_SECONDS", "300")
    yield path
    end(daemons(THETA_RUNTIME_DIR=str(path)))
    shutil.rmtree(path, ignore_errors=True)
