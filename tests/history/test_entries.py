"""What is staged and what is committed for a path: what git says, for every kind of index, HEAD and name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.gitrepo import GitRepo
from tests.history.past import past
from theta_daemon.counters import Counters
from theta_daemon.history import trees
from theta_daemon.history.cache import PointerCache
from theta_daemon.history.history import HeadEntry, History
from theta_daemon.history.index import IndexEntry
from theta_daemon.history.memo import Memo
from theta_daemon.history.repository import Repository
from theta_daemon.invocation import Invocation

ODD_NAMES = [
    b"plain",
    b"with space",
    b"a=b",
    b"new\nline",
    b'tab\tand"quote',
    b"\xff\xfe not utf-8",
    "Käse/日本".encode(),
    b"-dash",
    b":(top)magic",
    b"star*",
    b"sub/[x]/deep",
]

INDEXES = {
    "ordinary": (),
    "version 4": (("update-index", "--index-version", "4"),),
    "split": (("config", "core.splitIndex", "true"), ("update-index", "--split-index")),
    "untracked cache": (("update-index", "--force-untracked-cache"), ("status",)),
    "fsmonitor": (("config", "core.fsmonitor", "true-is-no-hook"), ("update-index", "--fsmonitor")),
    "many threads": (("config", "index.threads", "4"), ("update-index", "--refresh")),
    "without checksum": (("config", "index.skipHash", "true"), ("update-index", "--force-write-index")),
}


def _blobs(repo: GitRepo) -> dict[bytes, str]:
    listing = repo("ls-files", "-s", "-z").split(b"\0")[:-1]
    return {line.partition(b"\t")[2]: line.split()[1].decode() for line in listing}


@pytest.mark.parametrize("kind", INDEXES)
@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_entries_of_every_name_in_every_kind_of_index(short_dir: Path, kind: str, object_format: str) -> None:
    """Odd names, sub-directories, all index versions and extensions: the staged and the committed blob are git's."""
    repo = GitRepo(short_dir)
    repo("init", "-q", f"--object-format={object_format}")
    for number, name in enumerate(ODD_NAMES):
        repo.write(name, b"%d" % number)
    repo.commit()
    for command in INDEXES[kind]:
        repo.run(*command)
    repo.write("plain", b"staged")
    repo("add", "plain")
    with past(repo) as history:
        for number, name in enumerate(ODD_NAMES):
            committed = history.blob_id(b"%d" % number)
            staged = history.blob_id(b"staged") if name == b"plain" else committed
            assert history.index_entry(name) == IndexEntry(staged, unmerged=False)
            assert history.head_entry(name) == HeadEntry(repo.head(), committed)
        for absent in (b"absent", b"sub", b"sub/[x]", b"plain/x", b"", b"/", b"sub//[x]/deep", b"../plain", b"PLAIN"):
            assert history.index_entry(absent) is None
            assert history.head_entry(absent) is None


def test_a_sparse_index_still_has_all_files(git: GitRepo) -> None:
    """Files whose directory the sparse index holds as one entry are found."""
    git.write("in/file", b"1")
    git.write("out/deep/file", b"2")
    git.commit()
    git("sparse-checkout", "set", "--cone", "--sparse-index", "in")
    with past(git) as history:
        assert history.index_entry(b"in/file") == IndexEntry(history.blob_id(b"1"), unmerged=False)
        assert history.index_entry(b"out/deep/file") == IndexEntry(history.blob_id(b"2"), unmerged=False)


def test_the_index_is_read_again_only_when_it_changed(git: GitRepo) -> None:
    """A changed index is seen at once; an unchanged one needs no second child, even where only git can read it."""
    git.commit(f=b"1")
    git("update-index", "--split-index")
    env = dict(os.environ)
    invocation = Invocation(git.path, env, 0o022, os.getuid())
    with History(Repository.discover(invocation), invocation, PointerCache(), Counters()) as history:
        assert history.index_entry(b"f") == IndexEntry(history.blob_id(b"1"), unmerged=False)
        env["PATH"] = "/nonexistent"
        assert history.index_entry(b"f") == IndexEntry(history.blob_id(b"1"), unmerged=False)
        env["PATH"] = os.environ["PATH"]
        for number in range(2, 6):
            git.write("f", b"%d" % number)
            git("add", "f")
            assert history.index_entry(b"f") == IndexEntry(history.blob_id(b"%d" % number), unmerged=False)
        git("rm", "-q", "--cached", "f")
        assert history.index_entry(b"f") is None


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_unmerged_entries_say_so(short_dir: Path, object_format: str) -> None:
    """Of a conflict our side is named, else theirs, and the entry is unmerged until it is added."""
    repo = GitRepo(short_dir)
    repo("init", "-q", "-b", "main", f"--object-format={object_format}")
    repo.commit(both=b"base", gone=b"base", ours=b"same")
    repo("checkout", "-q", "-b", "side")
    repo.commit(both=b"theirs", gone=b"theirs")
    repo("checkout", "-q", "main")
    (repo.path / "gone").unlink()
    repo.commit(both=b"ours")
    assert repo.run("merge", "side").returncode == 1
    with past(repo) as history:
        assert history.index_entry(b"both") == IndexEntry(history.blob_id(b"ours"), unmerged=True)
        assert history.index_entry(b"gone") == IndexEntry(history.blob_id(b"theirs"), unmerged=True)
        assert history.index_entry(b"ours") == IndexEntry(history.blob_id(b"same"), unmerged=False)
        repo.write("both", b"solved")
        repo("add", "both")
        assert history.index_entry(b"both") == IndexEntry(history.blob_id(b"solved"), unmerged=False)


def test_the_callers_index_is_used(git: GitRepo) -> None:
    """GIT_INDEX_FILE, relative to the top as stash sets it, or absolute; one that is not there is empty."""
    git.commit(f=b"1")
    git.write("f", b"2")
    for name in ("other-index", str(git.path.parent / "absolute-index")):
        env = {"GIT_INDEX_FILE": name}
        with past(git, env) as history:
            assert history.index_entry(b"f") is None
            git("add", "f", env=env)
            assert history.index_entry(b"f") == IndexEntry(history.blob_id(b"2"), unmerged=False)
    with past(git) as history:
        assert history.index_entry(b"f") == IndexEntry(history.blob_id(b"1"), unmerged=False)


def test_only_regular_files_are_entries(git: GitRepo) -> None:
    """Symbolic links and submodules are none; executables are."""
    git.commit()
    git.write("run", b"x").chmod(0o755)
    (git.path / "link").symlink_to("run")
    git("clone", "-q", ".", "inner")
    git.run("add", "inner")
    git.commit()
    assert {b"run", b"link", b"inner"} <= _blobs(git).keys()
    with past(git) as history:
        for entry in (history.index_entry, history.head_entry):
            assert entry(b"link") is None
            assert entry(b"inner") is None
            assert entry(b"run") is not None


def test_an_intent_to_add_has_nothing_staged(git: GitRepo) -> None:
    """`git add -N` stages the empty blob."""
    git.write("f", b"x")
    git("add", "-N", "f")
    with past(git) as history:
        assert history.index_entry(b"f") == IndexEntry(history.blob_id(b""), unmerged=False)


def test_head_is_what_it_is_now(git: GitRepo) -> None:
    """Unborn, on a branch, packed, detached, on an orphan, moved by a rebase: head_entry follows without being told."""
    with past(git, {"PATH": "/nonexistent"}) as history:
        assert history.head_entry(b"f") is None
        first = git.commit(f=b"1")
        assert history.head_entry(b"f") == HeadEntry(first, history.blob_id(b"1"))
        second = git.commit(f=b"2")
        git("pack-refs", "--all")
        git("gc", "-q")
        assert history.head_entry(b"f") == HeadEntry(second, history.blob_id(b"2"))
        git("checkout", "-q", first)
        assert history.head_entry(b"f") == HeadEntry(first, history.blob_id(b"1"))
        git("checkout", "-q", "-b", "name/with/slashes-ü")
        assert history.head_entry(b"f") == HeadEntry(first, history.blob_id(b"1"))
        git("checkout", "-q", "--orphan", "new")
        assert history.head_entry(b"f") is None
        git("symbolic-ref", "refs/heads/alias", "refs/heads/main")
        git("symbolic-ref", "HEAD", "refs/heads/alias")
        assert history.head_entry(b"f") == HeadEntry(second, history.blob_id(b"2"))


def test_each_work_tree_has_its_own_head_and_index(git: GitRepo) -> None:
    """Linked work trees see their HEAD and their index, not the main one's."""
    first = git.commit(f=b"1")
    git("worktree", "add", "-q", "--detach", "../other", first)
    second = git.commit(f=b"2")
    with past(git) as here, past(git.path.parent / "other") as there:
        assert here.head_entry(b"f") == HeadEntry(second, here.blob_id(b"2"))
        assert there.head_entry(b"f") == HeadEntry(first, there.blob_id(b"1"))
        assert there.index_entry(b"f") == IndexEntry(there.blob_id(b"1"), unmerged=False)


def test_entries_of_any_revision(git: GitRepo) -> None:
    """A revision may be a name, an abbreviation, a tag of a tag, a commit's id or a tree's id."""
    first = git.commit(f=b"1")
    git("tag", "-a", "-m", "x", "inner")
    git("tag", "-a", "-m", "x", "outer", "inner")
    git.commit(f=b"2")
    tree = git.text("rev-parse", f"{first}^{{tree}}")
    tag = git.text("rev-parse", "outer")
    with past(git) as history:
        blob = history.blob_id(b"1")
        for revision in ("HEAD~1", first, first[:10], "outer", "inner", "main@{1}"):
            assert history.commit_entry(revision, b"f") == HeadEntry(first, blob)
        assert history.commit_entry(tag, b"f") == HeadEntry(tag, blob)
        assert history.commit_entry(tree, b"f") == HeadEntry(tree, blob)
        for revision in ("none", "", "--all", "HEAD:f", "0" * 40, blob, "-h", "HEAD~9"):
            assert history.commit_entry(revision, b"f") is None
        assert history.resolve("HEAD") == git.head()
        assert history.resolve("outer") == first
        assert history.resolve("none") is None


def test_attributes_are_gits(git: GitRepo) -> None:
    """Values, set, unset, macros, sub-directories, quoted and odd names, from any directory: what `git check-attr` says."""
    git.write(
        ".gitattributes",
        b'[attr]odd theta-format=npz\n*.pt theta-format=opaque\n"with space" odd\n*.bin theta-format\n*.raw -theta-format\n',
    )
    git.write("sub/.gitattributes", b"x.pt !theta-format\n\xff\xfe theta-format=npz\n-dash odd\n")
    expected = {
        b"a.pt": "opaque",
        b"sub/a.pt": "opaque",
        b"sub/x.pt": None,
        b"with space": "npz",
        b"a.bin": "set",
        b"a.raw": None,
        b"sub/\xff\xfe": "npz",
        b"sub/-dash": "npz",
        b"none": None,
    }
    for cwd in (git.path, git.path / "sub"):
        with past(cwd) as history:
            assert {name: history.attribute(name, "theta-format") for name in expected} == expected


def test_attributes_follow_the_file_while_a_session_lasts(git: GitRepo) -> None:
    """A .gitattributes that changes between two questions changes the answer."""
    with past(git) as history:
        assert history.attribute(b"f", "theta-format") is None
        git.write(".gitattributes", b"f theta-format=npz\n")
        assert history.attribute(b"f", "theta-format") == "npz"


def test_damaged_trees_and_commits_are_errors_not_answers() -> None:
    """Bytes that are not wholly entries, and commits without a tree, raise ValueError."""
    good = b"100644 a\0" + bytes(20) + b"40000 b\0" + b"\1" * 20
    assert trees.entries(good, 20)[b"b"] == trees.TreeEntry(0o40000, "01" * 20)
    for end in (1, 8, 9, 28, 30, len(good) - 1):
        with pytest.raises(ValueError, match="damaged"):
            trees.entries(good[:end], 20)
    with pytest.raises(ValueError, match="damaged"):
        trees.target(b"author x\n")


def test_reftable_repositories_are_read_through_git(short_dir: Path) -> None:
    """Where git keeps its refs in a reftable, HEAD and blobs are still found."""
    repo = GitRepo(short_dir)
    if repo.run("init", "-q", "--ref-format=reftable").returncode != 0:
        pytest.skip("this git does not know reftable")
    commit = repo.commit(f=b"1")
    with past(repo) as history:
        assert history.head_entry(b"f") == HeadEntry(commit, history.blob_id(b"1"))
        assert history.blob(history.blob_id(b"1")) == b"1"


@pytest.mark.parametrize("split", [False, True])
def test_paths_are_relative_to_the_top_wherever_the_caller_stands(git: GitRepo, *, split: bool) -> None:
    """From a sub-directory, and with a relative GIT_DIR there, entries are still those of the whole work tree."""
    git.write("sub/file", b"1")
    commit = git.commit(f=b"2")
    if split:
        git("update-index", "--split-index")
    for cwd, env in ((git.path / "sub", {}), (git.path / "sub", {"GIT_DIR": "../.git", "GIT_WORK_TREE": ".."})):
        with past(cwd, env) as history:
            for name, data in ((b"sub/file", b"1"), (b"f", b"2")):
                assert history.index_entry(name) == IndexEntry(history.blob_id(data), unmerged=False)
                assert history.head_entry(name) == HeadEntry(commit, history.blob_id(data))
            assert history.index_entry(b"file") is None


def test_a_bare_repository_has_commits_and_no_index(git: GitRepo) -> None:
    """As `git archive` runs the filter there: HEAD and blobs are found, nothing is staged, no attribute is set."""
    git.write(".gitattributes", b"* theta-format=npz\n")
    commit = git.commit(f=b"1")
    git("clone", "-q", "--bare", ".", "../bare")
    with past(git.path.parent / "bare", {"GIT_DIR": "."}) as history:
        assert history.head_entry(b"f") == HeadEntry(commit, history.blob_id(b"1"))
        assert history.blob(history.blob_id(b"1")) == b"1"
        assert history.index_entry(b"f") is None
        assert history.attribute(b"f", "theta-format") is None


@pytest.mark.parametrize("name", [b"not utf-8 \xff", b"new\nline", b"per%20cent?#x", "Käse".encode()])
def test_a_repository_may_have_any_name(short_dir: Path, name: bytes) -> None:
    """Repository, index, objects, attributes and memo work in a directory of any name, linked work trees too."""
    repo = GitRepo(Path(os.fsdecode(os.fsencode(short_dir) + b"/" + name)))
    repo.path.mkdir()
    repo("init", "-q")
    repo.write(".gitattributes", b"f theta-format=npz\n")
    commit = repo.commit(f=b"1")
    repo("worktree", "add", "-q", "--detach", "linked")
    for top in (repo.path, repo.path / "linked"):
        with past(top) as history:
            assert history.repository.work_tree == top
            assert history.index_entry(b"f") == IndexEntry(history.blob_id(b"1"), unmerged=False)
            assert history.head_entry(b"f") == HeadEntry(commit, history.blob_id(b"1"))
            assert history.blob(history.blob_id(b"1")) == b"1"
            assert history.attribute(b"f", "theta-format") == "npz"
            memo = Memo(history.repository.scratch_dir / "memo.sqlite")
            memo.remember("key", b"text")
            memo.close()
            assert memo.pointer("key") == b"text"
            memo.close()
