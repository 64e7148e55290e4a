"""Conflicts over checkpoints: nothing is mixed, nothing crashes, either side can be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.git.models import model
from tests.gitrepo import GitRepo

BASE = model()
OURS = BASE.edit("embed.weight", 1)
THEIRS = BASE.edit("embed.weight", 2)
LOCK = Path(".git") / "index.lock"


@pytest.fixture(params=["driver", "no driver"])
def conflict(request: pytest.FixtureRequest, repo: GitRepo) -> GitRepo:
    """A merge that stopped: both sides changed the same parameter of `m`, and of `n` beside it."""
    if request.param == "no driver":
        repo.config("merge.theta.driver", "false")
    repo.commit("base", m=BASE.bytes(), n=BASE.npz())
    repo("checkout", "-q", "-b", "theirs")
    repo.commit("theirs", m=THEIRS.bytes(), n=THEIRS.npz())
    repo("checkout", "-q", "main")
    repo.commit("ours", m=OURS.bytes(), n=OURS.npz())
    assert repo.run("merge", "-q", "theirs").returncode == 1
    assert repo.status().splitlines() == ["UU m", "UU n"]
    return repo


def test_ours_and_theirs(conflict: GitRepo) -> None:
    """Either side is had whole, again and again, and the merge can be finished with it."""
    for _ in range(2):
        conflict("checkout", "--theirs", "--", "m", "n")
        assert (conflict.read("m"), conflict.read("n")) == (THEIRS.bytes(), THEIRS.npz())
        conflict("checkout", "--ours", "--", "m", "n")
        assert (conflict.read("m"), conflict.read("n")) == (OURS.bytes(), OURS.npz())
    conflict("checkout", "--theirs", "--", "m")
    assert conflict.read("m") == THEIRS.bytes()
    conflict("add", "m", "n")
    conflict("commit", "-q", "--no-edit")
    assert conflict.blob("m") == conflict.blob("m", "theirs")
    assert conflict.blob("n") == conflict.blob("n", "HEAD~1")
    assert conflict.status() == ""


@pytest.mark.parametrize("option", ["-m", "--conflict=diff3"])
def test_the_conflict_is_written_again(conflict: GitRepo, option: str) -> None:
    """`checkout -m` rewrites the conflict; git is not made to crash, and leaves no lock behind."""
    for paths in (["m"], ["m", "n"], ["."]):
        done = conflict.run("checkout", option, "--", *paths)
        assert done.returncode in {0, 1}, done.stderr
        assert not (conflict.path / LOCK).exists()
    conflict("checkout", "--ours", "--", "m")
    assert conflict.read("m") == OURS.bytes()


def test_a_resolved_conflict_is_brought_back(conflict: GitRepo) -> None:
    """`checkout -m` of a path that was resolved and added: git makes the conflict anew from what the index remembers."""
    conflict("checkout", "--theirs", "--", "m", "n")
    conflict("add", "m", "n")
    done = conflict.run("checkout", "-m", "--", "m", "n")
    assert done.returncode in {0, 1}, done.stderr
    assert not (conflict.path / LOCK).exists()
    assert conflict.status().splitlines() == ["UU m", "UU n"]
    conflict("checkout", "--theirs", "--", "m", "n")
    assert (conflict.read("m"), conflict.read("n")) == (THEIRS.bytes(), THEIRS.npz())


def test_abort(conflict: GitRepo) -> None:
    """Everything is as it was before the merge."""
    conflict("merge", "--abort")
    assert (conflict.read("m"), conflict.read("n")) == (OURS.bytes(), OURS.npz())
    assert conflict.status() == ""


def test_stages_can_be_read(conflict: GitRepo, short_dir: Path) -> None:
    """checkout-index of each stage, and cat-file --filters."""
    for stage, version in ((1, BASE), (2, OURS), (3, THEIRS)):
        name = conflict.text("checkout-index", f"--stage={stage}", "--temp", "m").split("\t")[0]
        assert conflict.read(name) == version.bytes()
        assert conflict("cat-file", "--filters", f":{stage}:m") == version.bytes()


def test_switching_with_local_changes(repo: GitRepo) -> None:
    """checkout -m BRANCH carries an edit along; where both changed the file, either version can be had afterwards."""
    repo.commit("base", m=BASE.bytes(), n=BASE.npz())
    repo("checkout", "-q", "-b", "other")
    repo.commit("other", n=THEIRS.npz())
    repo("checkout", "-q", "main")
    repo.write("m", OURS.bytes())
    repo("checkout", "-q", "other")
    assert (repo.read("m"), repo.read("n")) == (OURS.bytes(), THEIRS.npz())
    assert repo.status() == " M m"
    repo("commit", "-qam", "m too")
    repo("checkout", "-q", "main")
    repo.write("m", THEIRS.bytes())
    done = repo.run("checkout", "-m", "other")
    assert done.returncode in {0, 1}, done.stderr
    assert not (repo.path / LOCK).exists()
    repo("checkout", "-q", "-f", "other")
    assert repo.read("m") == OURS.bytes()


def test_deleted_here_changed_there(repo: GitRepo) -> None:
    """The version that was changed is left in the work tree."""
    repo.commit("base", m=BASE.bytes())
    repo("checkout", "-q", "-b", "theirs")
    repo.commit("theirs", m=THEIRS.bytes())
    repo("checkout", "-q", "main")
    repo("rm", "-q", "m")
    repo("commit", "-qm", "deleted")
    assert repo.run("merge", "-q", "theirs").returncode == 1
    assert repo.read("m") == THEIRS.bytes()
    repo("add", "m")
    repo("commit", "-q", "--no-edit")
    assert repo.blob("m") == repo.blob("m", "theirs")
