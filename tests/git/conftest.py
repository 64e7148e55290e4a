"""Real git with theta-daemon installed for the test's own user, and the two roads a filter can take."""

from __future__ import annotations

import psutil
import pytest

from tests.gitrepo import GitRepo

ATTRIBUTES = b"""\
* filter=theta diff=theta merge=theta -text
.git* !filter !diff !merge text
*.txt !filter !diff !merge text
"""


@pytest.fixture
def repo(installed: None, shared_daemon: psutil.Process, git: GitRepo) -> GitRepo:
    """An empty repository where every file but *.txt is a checkpoint, served by the shared daemon."""
    git.write(".gitattributes", ATTRIBUTES)
    git.commit("attributes")
    return git


@pytest.fixture(params=["daemon", "never"])
def road(request: pytest.FixtureRequest) -> dict[str, str]:
    """For `env=` of the commands under test alone, in a repository that is made and looked at by the daemon."""
    return {} if request.param == "daemon" else {"THETA_DAEMON": "never"}


@pytest.fixture(params=["daemon", "never"])
def either(request: pytest.FixtureRequest, repo: GitRepo, monkeypatch: pytest.MonkeyPatch) -> GitRepo:
    """Like `repo`, with the daemon and without."""
    if request.param == "never":
        monkeypatch.setenv("THETA_DAEMON", "never")
    return repo
