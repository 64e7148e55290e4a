"""A place to measure in: a HOME of its own, repositories with one filter each, daemons of its own. All of it goes at the end.

Nothing of the caller's git configuration or environment gets in. A daemon is told from another by its runtime directory; a
lane that is to be served by one names it, and `Daemon.served` proves that it was (a client falls back silently).
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from blake3 import blake3

from benchmarks import null_filter
from benchmarks.measure import CommandError, Cost, measure
from theta_daemon.server import admin

BINARIES = Path(sys.executable).parent
_KEPT = ("LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE")


class Site:
    """The place. `top` is a fresh folder under THETA_BENCH_DIR, or under the folder for temporary files."""

    def __init__(self) -> None:
        self.top = Path(tempfile.mkdtemp(prefix="theta-bench-", dir=os.environ.get("THETA_BENCH_DIR")))
        self._daemons: dict[str, Daemon] = {}
        self._moments = itertools.count(1_000_000_000)
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self.environment = {
            **kept,
            "PATH": f"{BINARIES}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(self.top / "home"),
            "THETA_RUNTIME_DIR": str(self.top / "run"),
            "THETA_DAEMON": "never",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
        }
        for folder in ("home", "run"):
            (self.top / folder).mkdir(mode=0o700)
        config = {"user.name": "bench", "user.email": "bench@localhost", "gc.auto": "0", "init.defaultBranch": "main"}
        config["advice.detachedHead"] = "false"
        for key, value in config.items():
            self._command("git", "config", "--global", key, value)
        self._command("git", "theta", "install")
        if shutil.which("git-lfs"):
            self._command("git", "lfs", "install", "--skip-repo")

    @property
    def has_lfs(self) -> bool:
        """Whether git-lfs can be compared with."""
        return shutil.which("git-lfs") is not None

    def repository(self, name: str, filter_name: str = "theta", attributes: str = "*.safetensors") -> Repository:
        """A new repository with one filter: theta, lfs or null (which smudges from the folder `content`)."""
        path = self.top / name
        path.mkdir()
        repository = Repository(path, self.environment)
        repository.git("init", "-q")
        if filter_name == "null":
            repository.content.mkdir()
            options = null_filter.options(repository.content, "null")
            for option in options[1::2]:
                key, _, value = option.partition("=")
                repository.git("config", key, value)
        (path / ".gitattributes").write_text(f"{attributes} filter={filter_name} -text\n")
        repository.git("add", ".gitattributes")
        repository.git("commit", "-q", "-m", "attributes")
        return repository

    def daemon(self, name: str, **environment: str) -> Daemon:
        """The daemon of that name, started if it does not run. `environment` is what it starts with."""
        found = self._daemons.get(name)
        if found is None:
            folder = self.top / f"run-{name}"
            folder.mkdir(mode=0o700, exist_ok=True)
            served = {**environment, "THETA_RUNTIME_DIR": str(folder), "THETA_DAEMON": "auto"}
            found = self._daemons[name] = Daemon({**self.environment, **served})
        found.start()
        return found

    def touch(self, path: Path) -> None:
        """Give a file a modification time that none had before, so that git looks at its content again."""
        moment = next(self._moments)
        os.utime(path, (moment, moment))

    def close(self) -> None:
        for daemon in self._daemons.values():
            with suppress(CommandError):  # the others are to end all the same, and the place is to go
                daemon.stop()
        shutil.rmtree(self.top, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _command(self, *command: str) -> None:
        subprocess.run(command, cwd=self.top, env=self.environment, check=True, stdout=subprocess.DEVNULL)


@dataclass(slots=True)
class Daemon:
    """One resident, alone in its runtime directory."""

    environment: Mapping[str, str]
    pid: int | None = None

    def start(self) -> None:
        if self.pid is None:
            self._theta("start")
            self.pid = int(self.status()["pid"])

    def stop(self) -> None:
        """End it. Also after it has ended by itself."""
        if self.pid is not None:
            self._theta("stop", "--now")
            self.pid = None

    def restart(self) -> None:
        """A fresh one: nothing cached."""
        self.stop()
        self.start()

    @property
    def cached_bytes(self) -> int:
        """What its tensor cache holds."""
        return int(self.status()["host"]["tensor_cache"]["size_bytes"])

    def status(self) -> dict[str, Any]:
        """What it says of itself. Raises CommandError when it has ended."""
        answers = admin.status({os.fsencode(key): os.fsencode(value) for key, value in self.environment.items()})
        for one in answers:
            if self.pid in (None, one.report["pid"]):
                return dict(one.report)
        raise CommandError("the daemon has ended (has its code changed since it started?)")

    def counters(self) -> dict[str, int]:
        """Its counts since it started."""
        return dict(self.status()["host"]["counters"])

    def served(self) -> int:
        """Sessions it has had and has: one is counted for good a moment after git has its answer."""
        status = self.status()
        return int(status["sessions_served"]) + int(status["sessions"])

    def _theta(self, *arguments: str) -> str:
        command = ["git", "theta", "daemon", *arguments]
        done = subprocess.run(command, env=dict(self.environment), cwd="/", capture_output=True, text=True, check=False)
        if done.returncode:
            raise CommandError(f"{command}: {done.stderr or done.stdout}")
        return done.stdout


@dataclass(frozen=True, slots=True)
class Repository:
    """A work tree. Commands run in-process unless a daemon is named."""

    path: Path
    environment: Mapping[str, str]
    extra: Mapping[str, str] = field(default_factory=dict)

    @property
    def content(self) -> Path:
        """Where a null filter finds its answers."""
        return self.path / ".git" / "content"

    @property
    def objects(self) -> Path:
        return self.path / ".git" / "lfs" / "objects"

    def git(
        self,
        *arguments: str,
        daemon: Daemon | None = None,
        env: Mapping[str, str] | None = None,
        **environment: str,
    ) -> str:
        """stdout of a command that must succeed. `env` and `environment` are laid over the place's."""
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.path,
            env={**self._environment(daemon), **(env or {}), **environment},
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise CommandError(f"git {arguments} ended with {done.returncode}: {done.stderr}")
        return done.stdout.strip()

    def measure(
        self,
        *arguments: str,
        daemon: Daemon | None = None,
        memory: bool = True,
        env: Mapping[str, str] | None = None,
        **environment: str,
    ) -> Cost:
        """The cost of a git command. Raises CommandError when the daemon that was named did not serve it."""
        before = None if daemon is None else daemon.served()
        command = ["git", *arguments]
        environ = {**self._environment(daemon), **(env or {}), **environment}
        pid = None if daemon is None else daemon.pid
        cost = measure(command, self.path, environ, daemon=pid, memory=memory)
        if daemon is not None and daemon.served() == before:
            raise CommandError(f"git {arguments}: the daemon did not serve (has its code changed since it started?)")
        return cost

    def commit(self, message: str, *, daemon: Daemon | None = None, env: Mapping[str, str] | None = None) -> str:
        """Add everything and commit; the commit's id."""
        self.git("add", "-A", daemon=daemon, env=env)
        self.git("commit", "-q", "--allow-empty", "-m", message, daemon=daemon)
        return self.git("rev-parse", "HEAD")

    def object_bytes(self) -> int:
        """Bytes in the store of objects."""
        return sum(path.stat().st_size for path in self.objects.rglob("*") if path.is_file())

    def drop_objects(self, *, but: set[Path]) -> None:
        """Forget objects, but those, and what is remembered of content, as if it had never been added."""
        for path in list(self.objects.rglob("*")):
            if path.is_file() and path not in but:
                path.unlink()
        for memo in (self.path / ".git" / "theta").glob("memo.sqlite*"):
            memo.unlink()

    def _environment(self, daemon: Daemon | None) -> dict[str, str]:
        chosen = self.environment if daemon is None else daemon.environment
        return {**chosen, **self.extra}


def link(source: Path, target: Path) -> None:
    """`target` becomes another name of `source`, at once."""
    temporary = target.with_name(target.name + ".link")
    temporary.unlink(missing_ok=True)
    os.link(source, temporary)
    temporary.rename(target)


def digest(path: Path) -> str:
    """BLAKE3 of a file, by all processors."""
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()


class WrongBytesError(AssertionError):
    """A file that came back is not the one that was added."""


def expect(path: Path, wanted: str) -> None:
    """Raises WrongBytesError unless the file has this digest."""
    if digest(path) != wanted:
        raise WrongBytesError(f"{path} is not the file that was added")


@contextmanager
def site() -> Iterator[Site]:
    """A place for one benchmark."""
    with Site() as place:
        yield place
