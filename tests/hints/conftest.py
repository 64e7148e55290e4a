"""A repository whose files named *.m are checkpoints, served by the shared daemon: hints travel with each request."""

from __future__ import annotations

import psutil
import pytest

from tests.gitrepo import GitRepo


@pytest.fixture
def models(installed: None, shared_daemon: psutil.Process, git: GitRepo) -> GitRepo:
    git.commit("attributes", **{".gitattributes": b"*.m filter=theta diff=theta merge=theta -text\n"})
    return git
