"""Real git with theta-daemon installed for the test's own user, and the two roads a filter can take."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cli.theta import SCRIPTS
from tests.daemons import daemons, end
from tests.gitrepo import GitRepo
from theta_daemon.server import admin

ATTRIBUTES = b"""\
* filter=theta diff=theta merge=theta -text
.git* !filter !diff !merge text
*.txt !filter !diff !merge text
"""


@pytest.fixture(scope="session")
def git_configuration() -> str:
    """What `git theta install` writes into its user's configuration."""
    home = Path(tempfile.mkdtemp(prefix="h-", dir="/tmp"))
    try:
        environment = {"HOME": str(home), "PATH": os.environ["PATH"], "LC_ALL": "C"}
        subprocess.run([SCRIPTS / "git-theta", "install"], env=environment, check=True, capture_output=True)
        return (home / ".gitconfig").read_text()
    finally:
        shutil.rmtree(home)


@pytest.fixture
def installed(clean_environment: Path, git_configuration: str) -> None:
    """The test's user has run `git theta install`."""
    with (clean_environment / ".gitconfig").open("a") as file:
        file.write(git_configuration)


@pytest.fixture(scope="session")
def daemon_dir(no_daemon_is_left: None) -> Iterator[Path]:
    """The runtime directory of a daemon that all tests of this process share."""
    path = Path(tempfile.mkdtemp(prefix="r-", dir="/tmp"))
    yield path
    end(daemons(THETA_RUNTIME_DIR=str(path)))
    shutil.rmtree(path, ignore_errors=True)


def start_daemon(directory: Path) -> psutil.Process:
    """The daemon of `directory`; a new one where the last has gone (it goes when the code under it is edited)."""
    environment = {**os.environb, b"THETA_RUNTIME_DIR": os.fsencode(directory), b"THETA_DAEMON": b"auto"}
    return psutil.Process(admin.start(environment).report["pid"])


@pytest.fixture
def shared_daemon(clean_environment: Path, daemon_dir: Path, monkeypatch: pytest.MonkeyPatch) -> psutil.Process:
    """A daemon serves the test; it has served others before."""
    monkeypatch.setenv("THETA_DAEMON", "auto")
    monkeypatch.setenv("THETA_RUNTIME_DIR", str(daemon_dir))
    monkeypatch.setenv("THETA_IDLE_SECONDS", "600")
    monkeypatch.delenv("CI", raising=False)
    return start_daemon(daemon_dir)


@pytest.fixture
def repo(installed: None, shared_daemon: psutil.Process, git: GitRepo) -> GitRepo:
    """An empty repository where every file but *.txt is a checkpoint, served by the shared daemon."""
    git.write(".gitattributes", ATTRIBUTES)
    git.commit("attributes")
    return git


@pytest.fixture(params=["daemon", "never"])
def either(request: pytest.FixtureRequest, repo: GitRepo, monkeypatch: pytest.MonkeyPatch) -> GitRepo:
    """Like `repo`, with the daemon and without."""
    if request.param == "never":
        monkeypatch.setenv("THETA_DAEMON", "never")
    return repo
