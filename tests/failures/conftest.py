"""The fixtures of tests/git: a repository whose files are checkpoints, with a daemon and without one; and a daemon to kill."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.failures.victims import Victim
from tests.git.conftest import ATTRIBUTES, repo, road
from tests.gitrepo import GitRepo
from tests.serving import start_daemon

__all__ = ["repo", "road"]


@pytest.fixture(autouse=True)
def durable(clean_environment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects are written as they are for a user, synced: what fails there is told, and what is killed there is whole."""
    monkeypatch.setenv("THETA_FSYNC", "true")


@pytest.fixture
def victim(installed: None, runtime_dir: Path, git: GitRepo, monkeypatch: pytest.MonkeyPatch) -> Victim:
    """A repository served by a daemon of its own, which may be killed; no other is started in its place."""
    monkeypatch.setenv("THETA_DAEMON", "auto")
    monkeypatch.setenv("CI", "1")
    monkeypatch.setenv("THETA_IDLE_SECONDS", "600")
    start_daemon(runtime_dir)
    git.write(".gitattributes", ATTRIBUTES)
    git.commit("attributes")
    return Victim(git, runtime_dir, start_daemon)
