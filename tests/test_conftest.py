"""The fixtures keep what they promise."""

from __future__ import annotations

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

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
