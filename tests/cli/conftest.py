"""A repository whose user has run `git theta install` and tracks models."""

from __future__ import annotations

import psutil
import pytest

from tests.gitrepo import GitRepo


@pytest.fixture
def models(installed: None, shared_daemon: psutil.Process, git: GitRepo) -> GitRepo:
    """Files named *.m are checkpoints. Git's filter is the shared daemon; the commands under test ask no daemon."""
    git.commit("attributes", **{".gitattributes": b"*.m filter=theta diff=theta merge=theta -text\n"})
    return git
