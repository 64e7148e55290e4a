"""Whatever machine cleans a file again, whatever it remembers: the same content is the same pointer."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.git.models import Model, model
from tests.gitrepo import GitRepo

VERSION = model(rows=2000).put(big=np.random.default_rng(5).standard_normal(1_200_000).astype("<f4"))
NEXT = VERSION.edit("big", 1, count=500).tune(2)


def forget(repo: GitRepo) -> None:
    """Everything that may be deleted at any time."""
    shutil.rmtree(repo.path / ".git" / "theta", ignore_errors=True)


@pytest.mark.parametrize("workers", ["1", "4"])
def test_another_machine_stores_the_same(
    repo: GitRepo, short_dir: Path, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    """Two commits made afresh elsewhere with one thread or four, without caches: the same pointers, the same objects."""
    monkeypatch.setenv("GIT_COMMITTER_DATE", "2024-01-01T00:00:00Z")
    monkeypatch.setenv("GIT_AUTHOR_DATE", "2024-01-01T00:00:00Z")
    repo("commit", "-q", "--amend", "--reset-author", "-m", "attributes")
    start = repo.head()
    for version in (VERSION, NEXT):
        repo.commit("version", m=version.bytes())
    other = repo.clone(short_dir / "other")
    other("reset", "-q", "--hard", start)
    shutil.rmtree(other.path / ".git" / "lfs", ignore_errors=True)
    forget(other)
    other("remote", "remove", "origin")
    monkeypatch.setenv("THETA_DAEMON", "never")
    monkeypatch.setenv("THETA_WORKERS", workers)
    for version in (VERSION, NEXT):
        forget(other)
        other.commit("version", m=version.bytes())
    assert other.head() == repo.head()
    names = [{path.name for path in (place.path / ".git/lfs/objects").rglob("*")} for place in (repo, other)]
    assert names[0] == names[1]


def test_a_clean_without_memory_gives_the_index_its_pointer(repo: GitRepo) -> None:
    """The memo gone, HEAD elsewhere, objects gone: git's own pointer is found by the content's digest."""
    repo.commit("one", m=VERSION.bytes())
    repo.commit("two", m=NEXT.bytes())
    repo("reset", "-q", "--soft", "HEAD~1")
    staged = repo("cat-file", "blob", ":m")
    forget(repo)
    shutil.move(repo.path / ".git" / "lfs", repo.path.parent / "lfs")
    (repo.path / "m").touch()
    assert repo.status() == "M  m"
    repo("add", "--renormalize", "m")
    assert repo("cat-file", "blob", ":m") == staged
    repo.write("m", VERSION.bytes())
    repo("add", "m")
    assert repo("cat-file", "blob", ":m") == repo.blob("m")


def test_smudge_smudge_clean(repo: GitRepo) -> None:
    """git's own rules: clean of a clean is that clean, and what comes back from a checkout is cleaned to its pointer."""
    for data in (VERSION.bytes(), Model().bytes(), b"opaque", b""):
        repo.write("m", data)
        repo("add", "m")
        text = repo("cat-file", "blob", ":m")
        forget(repo)
        assert repo("hash-object", "--path=m", "--stdin", data=data) == repo("rev-parse", ":m")
        assert repo("hash-object", "--path=m", "--stdin", data=text) == repo("rev-parse", ":m")


def test_content_that_was_checked_out_here_has_the_pointer_it_came_from(repo: GitRepo, short_dir: Path) -> None:
    """A clone that restores an old version and adds it: the old pointer, though neither index nor HEAD have it."""
    repo.commit("one", m=VERSION.bytes())
    repo.commit("two", m=NEXT.bytes())
    clone = repo.clone(short_dir / "clone")
    clone("restore", "--source=HEAD~1", "m")
    clone("add", "m")
    assert clone("diff", "--cached", "--name-only", "HEAD~1") == b""
    assert clone("cat-file", "blob", ":m") == repo.blob("m", "HEAD~1")
