"""The commands as a user runs them: the installed executables, in a repository, as children."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from tests.gitrepo import GitRepo

SCRIPTS = Path(sysconfig.get_path("scripts"))


def theta(
    repo: GitRepo | Path,
    *args: str | bytes,
    data: bytes = b"",
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """`git theta ARGS` through git itself; whatever it says."""
    path = dict(os.environ)
    path["PATH"] = f"{SCRIPTS}{os.pathsep}{path['PATH']}"
    where = repo.path if isinstance(repo, GitRepo) else repo
    overlay = repo.env if isinstance(repo, GitRepo) else {}
    return subprocess.run(
        ["git", "theta", *args],
        input=data,
        capture_output=True,
        check=False,
        cwd=cwd or where,
        env={**path, **overlay, **(env or {})},
        timeout=120,
    )


def ok(repo: GitRepo | Path, *args: str | bytes, cwd: Path | None = None, env: dict[str, str] | None = None) -> str:
    """stdout of a command that must succeed."""
    done = theta(repo, *args, cwd=cwd, env=env)
    assert done.returncode == 0, done.stderr.decode(errors="replace")
    return done.stdout.decode(errors="surrogateescape")


def ok_json(repo: GitRepo | Path, *args: str | bytes, cwd: Path | None = None) -> Any:
    """The JSON document that a command prints."""
    return json.loads(ok(repo, *args, cwd=cwd))
