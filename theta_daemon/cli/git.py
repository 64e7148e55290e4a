"""Asking git, as a child in the caller's own cwd and environment, so that git judges configuration, ownership and paths.

For commands of the command line only; sessions of the filter have `theta_daemon.history`.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from theta_daemon.errors import RepositoryError, ThetaError

Argument = str | bytes | Path


def ask(
    *arguments: Argument,
    data: bytes | None = None,
    statuses: tuple[int, ...] = (0,),
    env: Mapping[str, str] | None = None,
) -> bytes:
    """stdout of `git ARGUMENTS`. Raises RepositoryError with git's own words when it ends with another status."""
    return _run(arguments, data, statuses, env).stdout


def try_ask(*arguments: Argument) -> bytes | None:
    """stdout of `git ARGUMENTS`, None when git says no (whatever the reason)."""
    done = _run(arguments, None, None, None)
    return done.stdout if done.returncode == 0 else None


def _run(
    arguments: tuple[Argument, ...],
    data: bytes | None,
    statuses: tuple[int, ...] | None,
    env: Mapping[str, str] | None,
) -> subprocess.CompletedProcess[bytes]:
    try:
        done = subprocess.run(
            ["git", *arguments],
            input=data,
            stdin=subprocess.DEVNULL if data is None else None,
            capture_output=True,
            check=False,
            env=env,
        )
    except FileNotFoundError:
        raise ThetaError("git is not on the PATH", "install git") from None
    if statuses is not None and done.returncode not in statuses:
        words = os.fsdecode(done.stderr).strip() or f"git {arguments[0]!s} ended with status {done.returncode}"
        raise RepositoryError(words)
    return done


def fields(output: bytes) -> list[bytes]:
    """The NUL-terminated fields of a `-z` output."""
    return output.split(b"\0")[:-1]


def top_level() -> Path:
    """The top of the work tree. Raises RepositoryError where there is none."""
    return Path(os.fsdecode(ask("rev-parse", "--show-toplevel").removesuffix(b"\n")))


def prefix() -> bytes:
    """The cwd below the top of the work tree, empty or ending in a slash."""
    return ask("rev-parse", "--show-prefix").removesuffix(b"\n")


def attributes(
    paths: Iterable[bytes],
    *names: str,
    options: tuple[str, ...] = (),
    arguments: tuple[str, ...] = (),
    env: Mapping[str, str] | None = None,
) -> Iterator[tuple[bytes, str, str]]:
    """(path, attribute, value) for each of `paths`, relative to the top of the work tree, in order.

    `options` are git's own, `arguments` those of check-attr.
    """
    listing = b"".join(path + b"\0" for path in paths)
    if not listing:
        return
    where = try_ask("rev-parse", "--show-toplevel")
    folder: tuple[Argument, ...] = () if where is None else ("-C", where.removesuffix(b"\n"))
    command = ("check-attr", "-z", "--stdin", *arguments, *names)
    output = fields(ask(*folder, *options, *command, data=listing, env=env))
    for at in range(0, len(output), 3):
        path, name, value = output[at : at + 3]
        yield path, name.decode(), value.decode(errors="surrogateescape")
