"""What `git theta install` writes, and one daemon that all tests of a process may share: fixtures, for every folder.

A git command that is served by a daemon costs 30 ms of processor, one that becomes the filter itself 700.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.cli.theta import SCRIPTS
from tests.daemons import daemons, end
from theta_daemon.server import admin


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


@contextmanager
def runtime_dir() -> Iterator[Path]:
    """A runtime directory; the daemons in it end with it."""
    path = Path(tempfile.mkdtemp(prefix="r-", dir="/tmp"))
    yield path
    end(daemons(THETA_RUNTIME_DIR=str(path)))
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="session")
def daemon_dir(no_daemon_is_left: None) -> Iterator[Path]:
    """The runtime directory of a daemon that all tests of this process share."""
    with runtime_dir() as path:
        yield path


def start_daemon(directory: Path, **variables: str) -> psutil.Process:
    """The daemon of `directory`; a new one where the last has gone (it goes when the code under it is edited)."""
    variables = {"THETA_DAEMON": "auto", **variables, "THETA_RUNTIME_DIR": str(directory)}
    environment = {**os.environb, **{name.encode(): os.fsencode(value) for name, value in variables.items()}}
    return psutil.Process(admin.start(environment).report["pid"])


@pytest.fixture
def shared_daemon(clean_environment: Path, daemon_dir: Path, monkeypatch: pytest.MonkeyPatch) -> psutil.Process:
    """A daemon serves the test; it has served others before."""
    monkeypatch.setenv("THETA_DAEMON", "auto")
    monkeypatch.setenv("THETA_RUNTIME_DIR", str(daemon_dir))
    monkeypatch.setenv("THETA_IDLE_SECONDS", "600")
    monkeypatch.delenv("CI", raising=False)
    return start_daemon(daemon_dir)


@contextmanager
def fresh_daemon(directory: Path) -> Iterator[dict[str, str]]:
    """A daemon that has seen nothing; what makes git use it. Worth its start for three commands and more."""
    start_daemon(directory)
    try:
        yield {"THETA_DAEMON": "always", "THETA_RUNTIME_DIR": str(directory)}
    finally:
        end(daemons(THETA_RUNTIME_DIR=str(directory)))


@pytest.fixture(scope="session")
def forgetful_dir(no_daemon_is_left: None) -> Iterator[Path]:
    """The runtime directory of a second daemon that all tests of this process share."""
    with runtime_dir() as path:
        yield path


@pytest.fixture
def forgetful(clean_environment: Path, forgetful_dir: Path) -> dict[str, str]:
    """What makes git use a daemon that keeps no value: each file is rebuilt from the repository's own objects.

    It remembers pointers, by their blobs' ids. Where the history itself may be missing, take `fresh_daemon` or none.
    """
    env = {"THETA_RUNTIME_DIR": str(forgetful_dir), "THETA_DAEMON": "always", "THETA_TENSOR_CACHE": "0"}
    start_daemon(forgetful_dir, THETA_IDLE_SECONDS="600", **env)
    return env
