"""git commands that are caught in the middle of their work, so that something can be killed there.

A command is caught by what it has done so far, never by time: its filter is stopped (SIGSTOP) as soon as it has got so far,
or a pipe that nobody reads holds it.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.daemons import alive, daemons, eventually
from tests.gitrepo import GitRepo
from theta_daemon.server import admin

END_SECONDS = 60
"""A command whose filter was killed has ended after that (much sooner; the machine may be busy)."""


@dataclass(frozen=True)
class Victim:
    """A repository and its daemon."""

    repo: GitRepo
    runtime_dir: Path
    start: Callable[[Path], psutil.Process]

    @property
    def daemon(self) -> psutil.Process:
        """The daemon that serves; a new one where the last was killed."""
        return self.start(self.runtime_dir)

    def daemons(self) -> list[psutil.Process]:
        return daemons(THETA_RUNTIME_DIR=str(self.runtime_dir))

    @contextmanager
    def running(self, *args: str, env: Mapping[str, str] | None = None) -> Iterator[subprocess.Popen[bytes]]:
        """A git command in a process group of its own; it is ended with the block."""
        with subprocess.Popen(
            ["git", *args],
            cwd=self.repo.path,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        ) as git:
            try:
                yield git
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(git.pid, signal.SIGKILL)

    def temporaries(self) -> list[Path]:
        """Objects that are being written."""
        return list((self.repo.path / ".git" / "lfs").rglob("theta-*.tmp"))

    def objects_are_whole(self) -> None:
        """Every file under a final name holds the bytes that the name says."""
        for path in (self.repo.path / ".git" / "lfs" / "objects").rglob("*"):
            if path.is_file() and not path.name.endswith(".tmp"):
                assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


def client_of(git: subprocess.Popen[bytes]) -> psutil.Process:
    """The filter process that git started: the thin client, or the filter itself."""

    def find() -> list[psutil.Process]:
        with suppress(psutil.NoSuchProcess):
            return [
                child
                for child in psutil.Process(git.pid).children(recursive=True)
                if alive(child) and any("theta-filter" in part or "theta_daemon" in part for part in child.cmdline())
            ]
        return []

    eventually(find, "git has started its filter")
    return find()[0]


def ended(git: subprocess.Popen[bytes]) -> tuple[int, bytes]:
    """Wait for its end, which must come: exit status and stderr."""
    _, stderr = git.communicate(timeout=END_SECONDS)
    return git.returncode, stderr


def sessions(victim: Victim) -> int:
    """Sessions that the daemon is serving now."""
    environ = {**os.environb, b"THETA_RUNTIME_DIR": os.fsencode(victim.runtime_dir)}
    return sum(int(found.report["sessions"]) for found in admin.status(environ))
