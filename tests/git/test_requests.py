"""Every way in which git asks a filter: with and without a revision, with and without delay, with odd surroundings."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from tests.git.models import model
from tests.gitrepo import GitRepo

FIRST = model()
SECOND = FIRST.edit("embed.weight", 1).tune(2)


@pytest.fixture
def two(repo: GitRepo) -> GitRepo:
    """Two versions of `m`, and a file in a folder beside it; served by the daemon."""
    repo.commit("first", m=FIRST.bytes(), **{"sub/n": SECOND.npz()})
    repo.commit("second", m=SECOND.bytes())
    return repo


def member(archive: bytes, name: str) -> bytes:
    """A file of a tar archive."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        file = tar.extractfile(name)
        assert file is not None
        return file.read()


def test_archive_cat_file_and_checkout_index(two: GitRepo, short_dir: Path) -> None:
    """archive of a commit and of a tree; cat-file --filters; checkout-index to a prefix, all at once."""
    assert member(two("archive", "HEAD~1"), "m") == FIRST.bytes()
    assert member(two("archive", "HEAD~1^{tree}", "sub"), "sub/n") == SECOND.npz()
    assert two("cat-file", "--filters", "HEAD~1:m") == FIRST.bytes()
    two("checkout-index", "--all", f"--prefix={short_dir}/out/")
    assert (short_dir / "out" / "m").read_bytes() == SECOND.bytes()
    assert (short_dir / "out" / "sub" / "n").read_bytes() == SECOND.npz()


def test_archive_from_a_bare_repository(two: GitRepo, road: dict[str, str], short_dir: Path) -> None:
    """No work tree, no index, attributes from the archived tree; its objects come from where it was cloned from."""
    two("clone", "-q", "--bare", two.path, short_dir / "bare.git")
    bare = GitRepo(short_dir / "bare.git")
    assert member(bare("archive", "main", env=road), "m") == SECOND.bytes()
    assert member(bare("archive", "main~1", env=road), "sub/n") == SECOND.npz()


def test_external_diff(two: GitRepo, short_dir: Path) -> None:
    """An external diff program gets both versions as files."""
    tool = short_dir / "tool"
    tool.write_text(f'#!/bin/sh\ncat "$2" > {short_dir}/old\ncat "$5" > {short_dir}/new\n')
    tool.chmod(0o755)
    two("diff", "HEAD~1", "HEAD", "--", "m", env={"GIT_EXTERNAL_DIFF": str(tool)})
    assert (short_dir / "old").read_bytes() == FIRST.bytes()
    assert (short_dir / "new").read_bytes() == SECOND.bytes()


def test_apply_and_am_of_pointers(repo: GitRepo, short_dir: Path) -> None:
    """A patch of pointers, applied to files: git smudges and cleans without naming a revision."""
    repo.commit("first", m=FIRST.bytes())
    repo.commit("second", m=SECOND.bytes())
    text = repo("diff", "--no-textconv", "HEAD~1", "HEAD")
    mail = repo("format-patch", "--stdout", "-1", "HEAD")
    repo("reset", "-q", "--hard", "HEAD~1")
    repo("apply", "--index", data=text)
    assert repo.read("m") == SECOND.bytes()
    assert repo.status() == "M  m"
    repo("reset", "-q", "--hard")
    repo("am", "-q", data=mail)
    assert repo.read("m") == SECOND.bytes()
    assert repo.status() == ""


def test_renormalizing_merge(repo: GitRepo) -> None:
    """merge.renormalize smudges and cleans all stages of a path in one process."""
    repo.config("merge.renormalize", "true")
    repo.commit("base", m=FIRST.bytes())
    repo("checkout", "-q", "-b", "theirs")
    repo.commit("theirs", m=FIRST.edit("ids", 1).bytes(), n=SECOND.bytes())
    repo("checkout", "-q", "main")
    repo.commit("ours", o=SECOND.bytes())
    repo("merge", "-q", "--no-edit", "theirs")
    assert repo.read("m") == FIRST.edit("ids", 1).bytes()
    assert repo.read("n") == repo.read("o") == SECOND.bytes()
    assert repo.status() == ""


def test_submodule(two: GitRepo, short_dir: Path) -> None:
    """A submodule has its repository elsewhere; commands work from inside and from the superproject."""
    upper = short_dir / "super"
    upper.mkdir()
    outer = GitRepo(upper)
    outer("init", "-q")
    outer("submodule", "--quiet", "add", two.path, "inner")
    outer.commit("with a submodule")
    inner = GitRepo(upper / "inner")
    assert inner.read("m") == SECOND.bytes()
    inner("checkout", "-q", "HEAD~1")
    assert inner.read("m") == FIRST.bytes()
    inner.write("m", SECOND.tune(9).bytes())
    inner("commit", "-qam", "inside")
    outer.commit("moved on")
    inner("checkout", "-q", "HEAD~2")
    outer("submodule", "--quiet", "update")
    assert inner.read("m") == SECOND.tune(9).bytes()
    assert inner.status() == outer.status() == ""
    assert (upper / ".git" / "modules" / "inner" / "lfs" / "objects").is_dir()


def test_another_index(two: GitRepo) -> None:
    """GIT_INDEX_FILE, relative and absolute: clean looks for the pointer where the caller does."""
    index = {"GIT_INDEX_FILE": ".git/other-index"}
    two("read-tree", "HEAD~1", env=index)
    two("checkout-index", "--force", "m", env=index)
    assert two.read("m") == FIRST.bytes()
    assert two.status() == " M m"
    two("add", "m", env=index)
    assert two("cat-file", "blob", ":m", env=index) == two.blob("m", "HEAD~1")
    third = SECOND.tune(4).bytes()
    two.write("m", third)
    elsewhere = {"GIT_INDEX_FILE": str(two.path / ".git" / "third-index")}
    two("read-tree", "HEAD", env=elsewhere)
    two("add", "m", env=elsewhere)
    assert two("diff", "--cached", "--name-only") == b""
    tree = two.text("write-tree", env=elsewhere)
    two("reset", "-q", "--hard")
    two("read-tree", "-u", "--reset", tree)
    assert two.read("m") == third


def test_from_a_folder_and_from_outside(two: GitRepo) -> None:
    """The caller's directory, -C, --git-dir and --work-tree do not change what is found."""
    (two.path / "m").unlink()
    two("checkout", "--", "../m", cwd=two.path / "sub")
    assert two.read("m") == SECOND.bytes()
    (two.path / "m").unlink()
    outside = two.path.parent
    two("--git-dir", two.path / ".git", "--work-tree", two.path, "checkout", "HEAD~1", "--", "m", cwd=outside)
    assert two.read("m") == FIRST.bytes()
    two("-C", two.path, "checkout", "-q", "HEAD", "--", "m", cwd=outside)
    two.write("sub/new", FIRST.bytes())
    two("add", "new", cwd=two.path / "sub")
    assert two("cat-file", "blob", ":sub/new") == two.blob("m", "HEAD~1")


def test_options_of_one_command(two: GitRepo) -> None:
    """-c settings reach the filter: GIT_CONFIG_PARAMETERS is the caller's."""
    two("-c", "theta.skipSmudge=true", "checkout", "-q", "HEAD~1")
    assert two.read("m") == two.blob("m")
    two("checkout", "-q", "main")
    assert two.read("m") == SECOND.bytes()
    done = two.run("-c", "theta.maxDepth=many", "checkout", "-q", "HEAD~1")
    assert done.returncode != 0
    assert b"theta.maxdepth" in done.stderr.lower()


def test_sparse_checkout_and_skipped_entries(two: GitRepo) -> None:
    """Files that come and go with the sparse patterns."""
    two("sparse-checkout", "set", "--no-cone", "/sub/", "/.gitattributes")
    assert not (two.path / "m").exists()
    two("checkout", "-q", "HEAD~1")
    two("sparse-checkout", "disable")
    assert two.read("m") == FIRST.bytes()
    assert two.status() == ""


def test_read_only_callers(two: GitRepo) -> None:
    """blame, grep and log -p look at checkpoints without failing."""
    two("grep", "-c", "theta", "HEAD", "--", "m")
    two("log", "-p", "--stat")
    two("blame", "m")
    two("show", "--no-textconv", "HEAD")
    assert two.status() == ""
    assert os.path.exists(two.path / "m")
