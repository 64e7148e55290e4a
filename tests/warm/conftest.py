"""One origin for all tests of this folder, copied for those that change it."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.theta import SCRIPTS
from tests.conftest import GITCONFIG
from tests.gitrepo import GitRepo
from tests.serving import start_daemon
from tests.warm.machines import ATTRIBUTES, Origin, Recorded, history

VERSIONS = 6


@pytest.fixture(scope="session")
def recorded(git_configuration: str, daemon_dir: Path) -> Iterator[Recorded]:
    """A repository of six versions of model.st, two clones, and the cache of their HEAD. Nobody changes them."""
    top = Path(tempfile.mkdtemp(prefix="w-", dir="/tmp"))
    (top / ".gitconfig").write_text(GITCONFIG + git_configuration)
    env = {"HOME": str(top), "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}", "LC_ALL": "C"}
    env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_THETA_SKIP_SMUDGE": "1"}
    served = {"THETA_DAEMON": "auto", "THETA_RUNTIME_DIR": str(daemon_dir)}
    start_daemon(daemon_dir, THETA_IDLE_SECONDS="600")
    path = top / "origin"
    versions = history(VERSIONS)

    def git(*args: str, number: int = 0) -> None:
        dates = {f"GIT_{who}_DATE": f"2026-01-0{number + 1}T00:00:00Z" for who in ("AUTHOR", "COMMITTER")}
        subprocess.run(["git", *args], cwd=path, env={**env, **served, **dates}, check=True, capture_output=True)

    path.mkdir()
    git("init", "-q")
    (path / ".gitattributes").write_bytes(ATTRIBUTES)
    (path / "notes.txt").write_text("no checkpoint\n" * 20)
    for number, version in enumerate(versions):
        (path / "model.st").write_bytes(version)
        git("add", "-A", number=number)
        git("commit", "-q", "-m", f"version {number}", number=number)
    git("clone", "-q", "--depth=1", f"file://{path}", "../clone")
    git("clone", "-q", f"file://{path}", "../whole")
    git("-C", "../clone", "theta", "warm", "--cache-dir", str(top / "cache"))
    shutil.rmtree(top / "clone" / ".git" / "lfs")
    yield Recorded(path, versions, top / "clone", top / "whole", top / "cache", served)
    shutil.rmtree(top)


@pytest.fixture
def origin(recorded: Recorded, git_configuration: str, short_dir: Path) -> Origin:
    """The test's own copy of the repository."""
    path = short_dir / "origin"
    shutil.copytree(recorded.repository, path, symlinks=True)
    home = short_dir / "home-origin"
    home.mkdir()
    (home / ".gitconfig").write_text(GITCONFIG + git_configuration)
    return Origin(GitRepo(path, {"HOME": str(home)}), short_dir, GITCONFIG + git_configuration, recorded)
