"""A repository whose files named *.m are checkpoints, served by the shared daemon: hints travel with each request."""

from __future__ import annotations

import psutil
import pytest

from tests.git.conftest import daemon_dir, git_configuration, installed, shared_daemon
from tests.gitrepo import GitRepo

__all__ = ["daemon_dir", "git_configuration", "installed", "shared_daemon"]


@pytest.fixture
def models(installed: None, shared_daemon: psutil.Process, git: GitRepo) -> GitRepo:
    git.commit("attributes", **{".gitattributes": b"*.m filter=theta diff=theta merge=theta -text\n"})
    return git
