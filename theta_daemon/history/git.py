"""Git as a child process: how every `git` of this package is started.

Rules: an argument list, never a shell; the caller's environment exactly, and the caller's cwd, so that git finds the
repository, the configuration and the ownership rules (safe.directory) that the caller would; what git says on stderr
goes to the caller's descriptor where one is given, else it is captured. Git itself judges; nothing here does.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from theta_daemon.errors import ConfigError, RepositoryError
from theta_daemon.invocation import Invocation

INSTALL_HINT: Final = "install git and see that it is in PATH"

Config = Mapping[str, Sequence[str]]
"""All values of each configuration key, the last one wins. Section and variable of a key are lower case."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What a child left: its exit status, its stdout, and its stderr (empty when that went to the caller)."""

    status: int
    out: bytes
    err: bytes

    @property
    def complaint(self) -> str:
        """What git said on stderr, for a message."""
        return self.err.decode(errors="replace").strip()


def git_child(
    arguments: Sequence[str | bytes],
    invocation: Invocation,
    *,
    stdin: bytes = b"",
    stderr_fd: int | None = None,
    extra_env: Mapping[str, str] | None = None,
) -> Finished:
    """Run `git ARGUMENTS` as the caller would and wait for it. Any exit status is an answer.

    Raises RepositoryError when git cannot be started.
    """
    try:
        done = subprocess.run(
            ["git", *arguments],
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if stderr_fd is None else stderr_fd,
            cwd=invocation.cwd,
            env=child_env(invocation, extra_env),
            check=False,
        )
    except OSError as error:
        raise RepositoryError(f"git cannot be started: {error}", INSTALL_HINT) from error
    return Finished(done.returncode, done.stdout, done.stderr or b"")


def child_env(invocation: Invocation, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The caller's environment, plus the few variables that only mean something to the child."""
    return {**invocation.env, **(extra or {})}


def read_config(invocation: Invocation) -> dict[str, list[str]]:
    """All of git's configuration as the caller would see it: files, includes, `-c`, GIT_CONFIG_*.

    A key without a value is git's way to say true. Works outside of repositories too. Raises ConfigError.
    """
    done = git_child(["config", "--list", "-z"], invocation)
    if done.status != 0:
        raise ConfigError(f"git config: {done.complaint}", "see `git config --list`")
    config: dict[str, list[str]] = {}
    for item in done.out.split(b"\0")[:-1]:
        key, newline, value = item.decode(errors="surrogateescape").partition("\n")
        config.setdefault(key, []).append(value if newline else "true")
    return config
