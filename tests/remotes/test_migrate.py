"""From raw files and git-lfs to checkpoints: what comes out is what went in, and nothing of the old is lost."""

from __future__ import annotations

import shutil

from tests.cli.theta import ok, ok_json, theta
from tests.git.models import model
from tests.gitrepo import GitRepo
from tests.remotes.sites import stored

LFS_LINE = b"*.w filter=lfs diff=lfs merge=lfs -text\n"


def lfs_history(here: GitRepo, tracked: bool = True) -> dict[str, dict[str, bytes]]:
    """A branch, a merge and a tag with files *.w that git-lfs (or git itself) stores; all files by revision."""
    if tracked:
        here("lfs", "install", "--local", "--skip-repo")
        here.commit("track", **{".gitattributes": LFS_LINE, "empty.w": b""})
    base = model()
    here.commit("one", **{"a.w": base.bytes(), "keep.txt": b"text\n"})
    here("switch", "-q", "-c", "side")
    here.commit("side", **{"sub/b.w": base.retrain("embed.weight", 5).bytes()})
    here("switch", "-q", "main")
    here.commit("two", **{"a.w": base.tune(3).bytes()})
    here("merge", "-q", "--no-edit", "side")
    here("tag", "-a", "-m", "a tag", "v1", "main~1")
    here.commit("three", **{"a.w": base.tune(3).edit("layer.0.weight", 4).bytes()})
    found = {}
    for revision in ("main", "main~1", "main~2", "side", "v1"):
        here("checkout", "-q", revision)
        found[revision] = {name: here.read(name) for name in ("a.w", "sub/b.w") if (here.path / name).exists()}
    here("switch", "-q", "main")
    return found


def test_a_whole_history_of_git_lfs(here: GitRepo, forgetful: dict[str, str]) -> None:
    """Every revision's files are the same bytes, stored as checkpoints; messages, authors and dates stay; the work tree is
    clean and untouched; the old refs are backups; a dry run told the sizes and changed nothing.
    """
    found = lfs_history(here)
    told = "--format=%an %ae %at %cn %ct %s"
    log = here("log", told, "main", "side", "v1")
    refs = here("for-each-ref")
    plan = ok_json(here, "migrate", "import", "*.w", "--history", "--dry-run", "--json")
    assert here("for-each-ref") == refs
    assert plan["files"] == 4
    assert 0 < plan["after"] < plan["before"]
    before = stored(here.path / ".git/lfs/objects")
    done = ok_json(here, "migrate", "import", "*.w", "--history", "--json")
    assert (done["files"], done["before"], done["after"]) == (plan["files"], plan["before"], plan["after"])
    assert here.status() == ""
    assert here.read(".gitattributes") == b"*.w filter=theta diff=theta merge=theta -text\n"
    assert here("log", told, "main", "side", "v1") == log
    assert before <= stored(here.path / ".git/lfs/objects")
    for revision, files in found.items():
        here("checkout", "-q", revision, env=forgetful)
        assert {name: here.read(name) for name in files} == files
        assert here("cat-file", "blob", f"{revision}:a.w").startswith(b'{"theta-pointer":')
        assert here.status() == ""
    old = [line.split() for line in refs.decode().splitlines()]
    for oid, _, name in old:
        assert here.text("rev-parse", f"refs/theta-backup/1/{name.removeprefix('refs/')}") == oid
    assert ok_json(here, "fsck", "--all", "--rebuild", "--json")["problems"] == []
    here("switch", "-q", "main")
    assert ok_json(here, "migrate", "import", "*.w", "--history", "--json")["commits"] == 0


def test_raw_history_and_odd_commits(here: GitRepo, forgetful: dict[str, str]) -> None:
    """Files in git itself, an executable one, a symbolic link of a matching name, a commit without a message: what does not
    match keeps its id, and so does every commit before the first file that matches.
    """
    first = here.head()
    data = model().bytes()
    here.write("run.w", data).chmod(0o755)
    (here.path / "link.w").symlink_to("run.w")
    here("add", "-A")
    here("commit", "-q", "--allow-empty-message", "-m", "")
    here.commit("x", **{"run.w": model().tune(1).bytes()})
    blob = here.text("rev-parse", "HEAD:link.w")
    ok(here, "migrate", "import", "*.w", "--history")
    assert here.text("rev-list", "--max-parents=0", "HEAD") == first
    assert here("ls-tree", "HEAD", "run.w").startswith(b"100755 ")
    assert here.text("rev-parse", "HEAD:link.w") == blob
    assert here.status() == ""
    here("checkout", "-q", "HEAD~1", env=forgetful)
    assert here.read("run.w") == data


def test_the_index_alone(here: GitRepo, forgetful: dict[str, str]) -> None:
    """Without --history: staged as checkpoints, edits in the work tree are left, git-lfs's texts become files."""
    found = lfs_history(here)
    here.write("sub/b.w", b"edited")
    (here.path / "a.w").write_bytes(here.blob("a.w"))
    head = here.head()
    told = ok_json(here, "migrate", "import", "*.w", "--json")
    assert told["files"] == 2
    assert here.head() == head
    assert here.read("a.w") == found["main"]["a.w"]
    assert here.read("sub/b.w") == b"edited"
    assert here.status().splitlines() == ["M  .gitattributes", "M  a.w", "MM sub/b.w"]
    here("commit", "-q", "-m", "checkpoints")
    here("checkout", "-q", "--", ".", env=forgetful)
    assert here.read("sub/b.w") == found["main"]["sub/b.w"]
    assert here.status() == ""


def test_it_refuses_before_it_begins(here: GitRepo) -> None:
    """Uncommitted changes, another work tree, a git-lfs object that is nowhere: told, and nothing is changed."""
    lfs_history(here)
    refs = here("for-each-ref")
    here.write("keep.txt", b"changed\n")
    assert b"not committed" in theta(here, "migrate", "import", "*.w", "--history").stderr
    here("checkout", "-q", "--", "keep.txt")
    linked = here.path.parent / "linked"
    here("worktree", "add", "-q", "--detach", linked)
    assert theta(here, "migrate", "import", "*.w", "--history").returncode == 1
    here("worktree", "remove", "--force", linked)
    shutil.rmtree(here.path / ".git/lfs/objects")
    for options in ((), ("--history",), ("--history", "--dry-run")):
        done = theta(here, "migrate", "import", "*.w", *options)
        assert done.returncode == 1
        assert b"git-lfs object" in done.stderr
        assert b".w" in done.stderr
    assert here("for-each-ref") == refs
    assert here.status() == ""
