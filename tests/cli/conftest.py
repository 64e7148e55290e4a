"""A repository whose user has run `git theta install` and tracks models."""

from __future__ import annotations

import pytest

from tests.git.conftest import git_configuration, installed
from tests.gitrepo import GitRepo

__all__ = ["git_configuration", "installed"]


@pytest.fixture
def models(installed: None, git: GitRepo) -> GitRepo:
    """Files named *.m are checkpoints, filtered without a daemon."""
    git.commit("attributes", **{".gitattributes": b"*.m filter=theta diff=theta merge=theta -text\n"})
    return git
