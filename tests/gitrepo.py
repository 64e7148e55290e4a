"""Real git in a work tree of its own, for tests. Asks nothing of theta-daemon."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class GitRepo:
    """A work tree at `path`, already initialised. `env` is laid over the (cleaned) environment of the test."""

    path: Path
    env: Mapping[str, str] = field(default_factory=dict)

    def run(
        self,
        *args: str | bytes | Path,
        data: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout_seconds: float = 120,
    ) -> subprocess.CompletedProcess[bytes]:
        """Whatever git says: returncode, stdout and stderr as bytes, never an exception for a failing command."""
        return subprocess.run(
            ["git", *args],
            input=b"" if data is None else data,
            capture_output=True,
            check=False,
            cwd=cwd or self.path,
            env={**os.environ, **self.env, **(env or {})},
            timeout=timeout_seconds,
        )

    def __call__(
        self,
        *args: str | bytes | Path,
        data: bytes | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> bytes:
        """stdout of a command that must succeed and must not complain about the filter protocol."""
        done = self.run(*args, data=data, env=env, cwd=cwd)
        assert done.returncode == 0, f"git {args} ended with {done.returncode}: {done.stderr.decode(errors='replace')}"
        return done.stdout

    def text(self, *args: str | bytes | Path, env: Mapping[str, str] | None = None) -> str:
        """stdout of a command that must succeed, decoded, without the last newline."""
        return self(*args, env=env).decode().removesuffix("\n")

    def config(self, key: str, value: str) -> None:
        """Set a local configuration key."""
        self("config", key, value)

    def write(self, name: str | bytes, data: bytes) -> Path:
        """A file of the work tree; folders are made. `name` may be any bytes a path may hold."""
        path = self.path / os.fsdecode(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        return path

    def read(self, name: str | bytes) -> bytes:
        """The bytes of a file of the work tree."""
        return (self.path / os.fsdecode(name)).read_bytes()

    def commit(self, message: str = "commit", **files: bytes) -> str:
        """Write `files`, add everything, commit (an empty commit is fine); the commit's id."""
        for name, data in files.items():
            self.write(name, data)
        self("add", "-A")
        self("commit", "-q", "--allow-empty", "-m", message)
        return self.head()

    def head(self) -> str:
        """The id of HEAD."""
        return self.text("rev-parse", "HEAD")

    def blob(self, path: str, revision: str = "HEAD") -> bytes:
        """What git itself stores for `path`: the pointer's text, where it is a pointer."""
        return self("cat-file", "blob", f"{revision}:{path}")

    def status(self) -> str:
        """`git status --porcelain`; empty when git sees no change."""
        return self.text("status", "--porcelain")

    def clone(self, destination: Path, *options: str) -> GitRepo:
        """A clone of this repository with the same environment."""
        self("clone", "-q", *options, self.path, destination)
        return GitRepo(destination, self.env)
