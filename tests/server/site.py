"""A user's machine in small: a runtime directory, a launcher, a repository whose filter is the stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from protocol import control
from tests.daemons import daemons, eventually
from tests.gitrepo import GitRepo
from tests.server.speaker import Speaker
from theta_daemon import runtime
from theta_daemon.runtime import Place

TOP = Path(__file__).resolve().parents[2]
STAND_IN = Path(__file__).with_name("stand_in.py")
FLAGS = [str(STAND_IN)]


def launcher_text(top: Path, stand_in: Path) -> str:
    """A launcher of the client in `top`, with the stand-in behind it."""
    return f"""\
#!{sys.executable} -IS
import sys
sys.path += [{str(top)!r}]
from theta_daemon.client import main
main({sys.executable!r}, {[str(stand_in)]!r})
"""


@dataclass(frozen=True)
class Site:
    """`git` runs in `repo` with the stand-in as filter of every file `*.bin`."""

    directory: Path
    launcher: Path
    repo: GitRepo
    trace_file: Path

    @classmethod
    def make(cls, directory: Path, repo: GitRepo) -> Site:
        """In `directory`, around `repo`, which becomes one with three committed versions of nothing."""
        launcher = directory / "filter"
        launcher.write_text(launcher_text(TOP, STAND_IN))
        launcher.chmod(0o755)
        trace_file = directory / "trace"
        trace_file.touch()
        os.environ["TRACE"] = str(trace_file)
        os.environ["PYTHONPATH"] = str(TOP)
        os.environ["THETA_DAEMON"] = "auto"
        os.environ.pop("CI", None)
        repo.config("filter.theta.process", str(launcher))
        repo.config("filter.theta.required", "true")
        repo.write(".gitattributes", b"*.bin filter=theta -text\n")
        return cls(directory, launcher, repo, trace_file)

    @property
    def runtime(self) -> Path:
        return Path(os.environ["THETA_RUNTIME_DIR"])

    def place(self) -> Place:
        """Where a daemon of the launcher's build listens."""
        return runtime.Place(os.fsencode(self.runtime), runtime.build_id(sys.executable))

    def start(self, **variables: str) -> psutil.Process:
        """A daemon that listens; returns when it does."""
        process = self.launch(**variables)
        self.wait_for_socket()
        return psutil.Process(process.pid)

    def launch(self, **variables: str) -> subprocess.Popen[bytes]:
        """A daemon on its way."""
        process = subprocess.Popen(
            [sys.executable, *FLAGS, "-m", "theta_daemon.server"],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _children.append(process)
        return process

    def wait_for_socket(self) -> None:
        """Until a daemon answers."""
        eventually(self.answers, "the daemon answers")

    def answers(self) -> bool:
        """Whether a daemon says how it is."""
        try:
            with Speaker(self.place()) as speaker:
                return speaker.ask(control.STATUS).kind == control.REPORT
        except (OSError, EOFError):
            return False

    def daemons(self) -> list[psutil.Process]:
        return daemons(THETA_RUNTIME_DIR=str(self.runtime))

    def trace(self) -> list[str]:
        """What sessions have told, in order."""
        return self.trace_file.read_text().splitlines()

    def servers(self) -> list[int]:
        """The pids that served sessions, in order."""
        return [int(line.split()[1]) for line in self.trace() if line.startswith("session ")]

    def saw(self, line: str) -> None:
        """Wait until a session has told this."""
        eventually(lambda: line in self.trace(), f"{line!r} in {self.trace()}")

    def client(self, env: Mapping[str, str] | None = None, **options: int | None) -> subprocess.Popen[bytes]:
        """The launcher as git starts it, its three descriptors pipes (or as `options` say)."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        return subprocess.Popen(
            [str(self.launcher)],
            cwd=self.repo.path,
            env={**os.environ, **(env or {})},
            stdin=pipes["stdin"],
            stdout=pipes["stdout"],
            stderr=pipes["stderr"],
        )


_children: list[subprocess.Popen[bytes]] = []


def reap() -> None:
    """Wait for daemons that were started as children of the tests and have ended."""
    deadline = time.monotonic() + 10
    for child in _children:
        child.wait(max(0.0, deadline - time.monotonic()))
    _children.clear()
