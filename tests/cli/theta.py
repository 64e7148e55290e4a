"""The commands as a user runs them. `theta` calls the entry point in this process, which saves its start-up; `executable`
is the real thing, through git."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from tests.gitrepo import GitRepo
from theta_daemon.cli import filter_once, main

SCRIPTS = Path(sysconfig.get_path("scripts"))

Done = subprocess.CompletedProcess[bytes]


def called(entry: Callable[[], int], arguments: list[str], where: Path, env: Mapping[str, str], data: bytes) -> Done:
    """What an executable's entry point does with these arguments, in this folder and environment."""
    out, err = io.BytesIO(), io.BytesIO()
    before = Path.cwd()
    with (
        patch.dict(os.environ, env),
        patch.object(sys, "argv", arguments),
        patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(data))),
        patch.object(sys, "stdout", io.TextIOWrapper(out, write_through=True)) as stdout,
        patch.object(sys, "stderr", io.TextIOWrapper(err, write_through=True)) as stderr,
    ):
        os.chdir(where)
        try:
            status = entry()
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        finally:
            os.chdir(before)
            for stream in (stdout, stderr):
                stream.flush()
                stream.detach()
    return Done(arguments, status, out.getvalue(), err.getvalue())


def theta(
    repo: GitRepo | Path, *args: str | bytes, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Done:
    """`git theta ARGS`; whatever it says."""
    where, overlay = (repo.path, repo.env) if isinstance(repo, GitRepo) else (repo, {})
    arguments = [str(SCRIPTS / "git-theta"), *(os.fsdecode(argument) for argument in args)]
    return called(main, arguments, cwd or where, {**overlay, **(env or {})}, b"")


def once(repo: GitRepo, *args: str | bytes, data: bytes = b"") -> Done:
    """`git-theta-filter ARGS` with `data` on stdin."""
    arguments = [str(SCRIPTS / "git-theta-filter"), *(os.fsdecode(argument) for argument in args)]
    return called(filter_once.main, arguments, repo.path, {}, data)


def executable(where: Path, *args: str, env: Mapping[str, str] | None = None) -> Done:
    """`git theta ARGS` through git itself, with exactly the environment `env` where one is given."""
    path = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["git", "theta", *args],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        cwd=where,
        env={**(os.environ if env is None else env), "PATH": path},
        timeout=120,
    )


def ok(repo: GitRepo | Path, *args: str | bytes, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> str:
    """stdout of a command that must succeed."""
    done = theta(repo, *args, cwd=cwd, env=env)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode(errors="surrogateescape")


def ok_json(repo: GitRepo | Path, *args: str | bytes, cwd: Path | None = None) -> Any:
    """The JSON document that a command prints."""
    return json.loads(ok(repo, *args, cwd=cwd))
