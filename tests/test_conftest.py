"""The fixtures keep what they promise."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.git.models import model
from tests.gitrepo import GitRepo


def test_the_environment_names_no_git_but_our_own() -> None:
    """A test sees only the one GIT_ variable that shuts the system configuration out."""
    assert [name for name in os.environ if name.startswith("GIT_")] == ["GIT_CONFIG_NOSYSTEM"]
    assert os.environ["HOME"].startswith("/tmp/h-")


def test_git_commits_and_clones_in_a_short_folder(git: GitRepo, short_dir: Path) -> None:
    """The repository is usable at once, and a clone of it gives the same bytes back."""
    git.commit("first", a=b"one\r\n")
    clone = git.clone(short_dir / "clone")
    assert clone.read("a") == git.read("a") == b"one\r\n"
    assert clone.head() == git.head()
    assert git.status() == ""
    assert len(str(git.path)) < 40


@given(st.binary())
def test_property_tests_may_stand_on_the_clean_environment(data: bytes) -> None:
    """The automatic fixture does not trip hypothesis' health checks."""
    assert bytes(data) == data


def test_a_daemon_that_keeps_no_value_needs_the_objects(
    installed: None, forgetful: dict[str, str], git: GitRepo
) -> None:
    """It may stand in for a filter process of the command's own: what it has just written itself it cannot write again."""
    repo = GitRepo(git.path, forgetful)
    repo.commit("one", **{".gitattributes": b"*.m filter=theta -text\n", "a.m": model().bytes()})
    for _ in range(2):
        (repo.path / "a.m").unlink()
        repo("checkout", "--", "a.m")
        assert repo.read("a.m") == model().bytes()
    shutil.rmtree(repo.path / ".git" / "lfs")
    (repo.path / "a.m").unlink()
    assert repo.run("checkout", "--", "a.m").returncode != 0
    assert not (repo.path / "a.m").exists()
