"""`git status` is silent right after every command that moves the work tree, and every file is what it should be.

All of this happens within a second or two, so most files are "racy" for git, which then cleans them again to see whether
they have changed: clean has to give the very pointer that git has.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.git.models import Model, model
from tests.gitrepo import GitRepo

FIRST = model()
SECOND = FIRST.edit("embed.weight", 1)
THIRD = SECOND.retrain("layer.0.weight", 2)
OTHER = FIRST.edit("ids", 3)


@pytest.fixture
def history(repo: GitRepo) -> GitRepo:
    """Three versions of `m` on main, a branch `other` from the first one, a second file `n` that no one changes."""
    repo.commit("first", m=FIRST.bytes(), n=OTHER.npz())
    repo("branch", "other")
    repo.commit("second", m=SECOND.bytes())
    repo.commit("third", m=THIRD.bytes())
    repo("checkout", "-q", "other")
    repo.commit("other", m=OTHER.bytes(), o=OTHER.bytes())
    repo("checkout", "-q", "main")
    return repo


def quiet(repo: GitRepo, version: Model, *, staged: Sequence[str] = (), unstaged: Sequence[str] = ()) -> None:
    """Git sees no change but these, and the file `m` is this version."""
    for _ in range(2):
        lines = repo.status().splitlines()
        assert [line[3:] for line in lines if line[0] != " "] == list(staged)
        assert [line[3:] for line in lines if line[1] != " "] == list(unstaged)
    assert repo.read("m") == version.bytes()


def test_commit(repo: GitRepo) -> None:
    """Also when the file is touched, or written again with the same bytes, within the same second."""
    for version in (FIRST, SECOND, THIRD):
        repo.commit("version", m=version.bytes())
        quiet(repo, version)
        repo.write("m", version.bytes())
        quiet(repo, version)
        (repo.path / "m").touch()
        quiet(repo, version)


def test_checkout_and_switch(history: GitRepo) -> None:
    """Branches, commits, forwards, backwards, and back again at once."""
    for revision, version in (("other", OTHER), ("main", THIRD), ("main~2", FIRST), ("main~1", SECOND)):
        history("checkout", "-q", revision)
        quiet(history, version)
    history("switch", "-q", "other")
    quiet(history, OTHER)
    history("switch", "-q", "--detach", "-")
    quiet(history, SECOND)


def test_reset(history: GitRepo) -> None:
    """hard: files and index; soft: neither, and the index keeps its pointer though HEAD is another; mixed: not the files."""
    history("reset", "-q", "--hard", "HEAD~1")
    quiet(history, SECOND)
    history("reset", "-q", "--hard", "other")
    quiet(history, OTHER)
    history("reset", "-q", "--hard", "main@{2}")
    quiet(history, THIRD)
    before = history.blob("m")
    history("reset", "-q", "--soft", "HEAD~2")
    quiet(history, THIRD, staged=["m"])
    history("add", "m")
    assert history("cat-file", "blob", ":m") == before
    history("reset", "-q", "--mixed")
    quiet(history, THIRD, unstaged=["m"])
    history("add", "m")
    quiet(history, THIRD, staged=["m"])
    history("commit", "-qm", "again")
    quiet(history, THIRD)


def test_restore_and_checkout_of_paths(history: GitRepo) -> None:
    """Files of other revisions, in the work tree, in the index, in both."""
    history("restore", "--source=other", "m")
    quiet(history, OTHER, unstaged=["m"])
    history("restore", "m")
    quiet(history, THIRD)
    history("restore", "--source=HEAD~2", "--staged", "--worktree", "m")
    quiet(history, FIRST, staged=["m"])
    history("checkout", "-q", "other", "--", "m", "o")
    quiet(history, OTHER, staged=["m", "o"])
    history("add", ".")
    assert history("cat-file", "blob", ":m") == history.blob("m", "other")
    history("reset", "-q", "--hard")
    (history.path / "m").unlink()
    history("checkout", "--", "m")
    quiet(history, THIRD)


def test_stash(history: GitRepo) -> None:
    """push, pop, and pop of a stash that holds an index of its own; two filters run at once in a push."""
    history.write("m", OTHER.bytes())
    history("stash", "push", "-q")
    quiet(history, THIRD)
    history("stash", "pop", "-q")
    quiet(history, OTHER, unstaged=["m"])
    history("add", "m")
    history.write("n", FIRST.bytes())
    history("stash", "push", "-q", "--include-untracked")
    quiet(history, THIRD)
    history("stash", "pop", "-q", "--index")
    quiet(history, OTHER, staged=["m"], unstaged=["n"])
    history("stash", "push", "-q", "--keep-index")
    quiet(history, OTHER, staged=["m"])
    history("reset", "-q", "--hard")
    history("stash", "apply", "-q")
    assert history.read("n") == FIRST.bytes()


def test_merge_and_fast_forward(history: GitRepo) -> None:
    """A branch that touched other files, and one that only has to move on."""
    history("checkout", "-q", "-b", "side", "main~2")
    history.commit("elsewhere", p=OTHER.bytes())
    history("merge", "-q", "--no-edit", "main")
    quiet(history, THIRD)
    assert history.read("p") == OTHER.bytes()
    history("checkout", "-q", "main")
    history("merge", "-q", "--ff-only", "side")
    quiet(history, THIRD)
    assert history.read("p") == OTHER.bytes()


def test_cherry_pick_of_two(history: GitRepo) -> None:
    """Two rounds in one filter process; and --no-commit, where index and HEAD differ."""
    history("checkout", "-q", "-b", "side", "main~2")
    history("cherry-pick", "main~1", "main")
    quiet(history, THIRD)
    history("reset", "-q", "--hard", "main~2")
    history("cherry-pick", "--no-commit", "main~1")
    quiet(history, SECOND, staged=["m"])
    history("add", "m")
    assert history("cat-file", "blob", ":m") == history.blob("m", "main~1")


def test_rebase_of_five_and_revert(repo: GitRepo) -> None:
    """Five commits moved onto another base, each right when visited afterwards; then the last one is taken back."""
    version = FIRST
    repo.commit("base", m=version.bytes())
    repo("checkout", "-q", "-b", "topic")
    versions = []
    for number in range(5):
        version = version.edit("embed.weight", number) if number % 2 else version.retrain("layer.0.weight", number)
        versions.append(version)
        repo.commit(f"topic {number}", m=version.bytes())
    repo("checkout", "-q", "main")
    repo.commit("elsewhere", n=OTHER.bytes())
    repo("checkout", "-q", "topic")
    repo("rebase", "-q", "main")
    quiet(repo, versions[4])
    assert repo.read("n") == OTHER.bytes()
    repo("revert", "--no-edit", "HEAD")
    quiet(repo, versions[3])
    for back in (2, 5, 1):
        repo("checkout", "-q", f"topic~{back}")
        quiet(repo, versions[5 - back])


def test_worktree_add(history: GitRepo, short_dir: Path) -> None:
    """A second work tree of the same repository: its own index and HEAD, the same objects."""
    history("worktree", "add", "-q", "--detach", short_dir / "second", "main~1")
    second = GitRepo(short_dir / "second")
    quiet(second, SECOND)
    second("checkout", "-q", "other")
    quiet(second, OTHER)
    second.write("m", FIRST.tune(5).bytes())
    second("commit", "-qam", "in the second")
    quiet(second, FIRST.tune(5))
    quiet(history, THIRD)
    history("reset", "-q", "--hard", "other")
    quiet(history, FIRST.tune(5))


def test_clone(history: GitRepo, short_dir: Path) -> None:
    """A clone that checks out at once, by branch and detached; its objects come from where it was cloned from."""
    for name, options in (("branch", ["--branch", "other"]), ("plain", [])):
        clone = history.clone(short_dir / name, *options)
        quiet(clone, OTHER if options else THIRD)
    history("tag", "old", "main~1")
    clone = history.clone(short_dir / "detached", "--branch", "old")
    quiet(clone, SECOND)


def test_renormalize(history: GitRepo) -> None:
    """Everything is cleaned again, and nothing changes."""
    history("add", "--renormalize", ".")
    quiet(history, THIRD)
    history("checkout", "-q", "other")
    history("add", "--renormalize", ".")
    quiet(history, OTHER)


def test_amend_and_commit_of_everything(history: GitRepo) -> None:
    """commit --amend and commit -a clean within the commit."""
    history.write("m", OTHER.bytes())
    history("commit", "-q", "--amend", "-am", "third, amended")
    quiet(history, OTHER)
    history.write("m", THIRD.bytes())
    history("commit", "-q", "--amend", "-am", "third, as before")
    quiet(history, THIRD)


def test_bisect(history: GitRepo) -> None:
    """A command that jumps about in history by itself."""
    history("bisect", "start", "main", "main~2")
    quiet(history, SECOND)
    history("bisect", "bad")
    history("bisect", "reset")
    quiet(history, THIRD)
