"""What prune removes, and everything that it must not."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from tests.cli.theta import ok, ok_json, theta
from tests.git.models import Model, model
from tests.gitrepo import GitRepo
from tests.remotes.sites import Site, stored, versions
from theta_daemon.store.lfs import LfsStore

NOW = ("prune", "--grace", "0s")


def objects(repo: GitRepo) -> Path:
    return repo.path / ".git/lfs/objects"


def content(seed: int) -> bytes:
    """Content that shares no object with that of other seeds."""
    values = np.random.default_rng(seed).standard_normal((40, 30)).astype("<f4")
    return Model({"weight": values}, {"seed": str(seed)}).bytes()


def needs(repo: GitRepo, name: str) -> set[str]:
    return set(ok_json(repo, "show", name, "--json")["objects"])


def age(repo: GitRepo) -> None:
    """All objects are a month old."""
    month_ago = time.time() - 30 * 24 * 3600
    for path in objects(repo).rglob("*"):
        os.utime(path, (month_ago, month_ago))


def test_every_root_keeps_its_objects(here: GitRepo, forgetful: dict[str, str]) -> None:
    """A branch, a tag, a reflog, the stash, the index, another work tree's index and detached HEAD, a merge under way: what
    only one of them reaches stays; what none reaches goes; all that stayed checks out.
    """
    kept: dict[str, bytes] = {}
    here.commit("base", **{"a.m": content(0)})

    def commit(seed: int, *switch: str) -> str:
        here("switch", "-q", *switch)
        kept[here.commit(str(seed), **{"a.m": content(seed)})] = content(seed)
        return here.head()

    commit(1, "-c", "branch", "main")
    commit(2, "--detach", "main")
    here("tag", "-a", "-m", "tag", "v1")
    commit(3, "--detach", "main")  # left to the reflog of HEAD
    here("switch", "-q", "main")
    here.write("a.m", content(4))
    here("stash", "push", "-q")
    linked = here.path.parent / "linked"
    here("worktree", "add", "-q", "--detach", linked, "main")
    other = GitRepo(linked, here.env)
    kept[other.commit("6", **{"a.m": content(6)})] = content(6)
    (here.path / ".git/worktrees/linked/logs/HEAD").unlink()
    other.write("w.m", content(7))
    other("add", "w.m")
    here("switch", "-q", "-c", "lost", "main")
    here.commit("lost", **{"l.m": content(8)})
    gone = needs(here, "l.m") - needs(here, "a.m")
    here("switch", "-q", "main")
    here("branch", "-q", "-D", "lost")
    drop_reflog(here, "lost")
    here.write("staged.m", content(5))
    here("add", "staged.m")
    age(here)
    staged, indexed = needs(here, "staged.m"), needs(other, "w.m")
    told = ok_json(here, "prune", "--dry-run", "--json")
    assert set(told["removed"]) == gone
    assert gone <= stored(objects(here))
    assert set(ok_json(here, "prune", "--json")["removed"]) == gone
    assert not gone & stored(objects(here))
    assert staged | indexed <= stored(objects(here))
    here("commit", "-q", "-m", "staged")
    for revision, data in kept.items():
        here("checkout", "-q", revision, env=forgetful)
        assert here.read("a.m") == data
    here("switch", "-q", "main")
    here("stash", "pop", "-q")
    assert here.read("a.m") == content(4)
    assert here.read("staged.m") == content(5)


def drop_reflog(repo: GitRepo, subject: str) -> None:
    """Forget, in HEAD's reflog, the commits with this subject."""
    log = repo.path / ".git/logs/HEAD"
    lines = log.read_text().splitlines(keepends=True)
    ids = {line.split()[1] for line in lines if line.endswith(f"commit: {subject}\n")}
    log.write_text("".join(line for line in lines if not set(line.split()[:2]) & ids))


def test_the_young_stay(here: GitRepo, forgetful: dict[str, str]) -> None:
    """Within the grace period nothing goes, and content that is added again has its old objects kept: they are young anew."""
    here.commit("base", **{"a.m": content(0)})
    here.write("b.m", content(1))
    here("add", "b.m")
    objects_of_b = needs(here, "b.m")
    here("rm", "-q", "--cached", "b.m")
    told = ok_json(here, "prune", "--json")
    assert (set(told["young"]), told["removed"]) == (objects_of_b, {})
    age(here)
    here("add", "b.m")  # the memo knows its pointer
    here("rm", "-q", "--cached", "b.m")
    assert set(ok_json(here, "prune", "--json")["young"]) == objects_of_b
    age(here)
    assert set(ok_json(here, "prune", "--json")["removed"]) == objects_of_b
    here("add", "b.m")  # the memo is as empty as the store
    here("commit", "-q", "-m", "b")
    (here.path / "b.m").unlink()
    here("checkout", "-q", "--", "b.m", env=forgetful)
    assert here.read("b.m") == content(1)


def test_what_is_not_ours_stays(here: GitRepo) -> None:
    """git-lfs's objects in the same folder, a pack of ours that a git-lfs pointer names, and files of other names."""
    here.commit("base", **{"a.m": content(0)})
    store = LfsStore(objects(here), umask=0o022)
    writer = store.writer()
    writer.write(b"a picture of git-lfs")
    theirs, _ = writer.commit()
    here.write("b.m", content(1))
    here("add", "b.m")
    (pack,) = needs(here, "b.m")
    data = store.path(pack).read_bytes()
    here("rm", "-q", "--cached", "b.m")
    text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{pack}\nsize {len(data)}\n"
    here.commit("as git-lfs's", **{"c.bin": text.encode()})
    (objects(here) / "aa").mkdir(exist_ok=True)
    (objects(here) / "aa" / "note").write_bytes(data)
    age(here)
    assert ok_json(here, *NOW, "--json")["removed"] == {}
    assert {theirs, pack} <= stored(objects(here))
    assert hashlib.sha256(store.path(pack).read_bytes()).hexdigest() == pack


def test_where_the_roots_cannot_be_known(local: Site) -> None:
    """A partial clone, and a folder that other repositories use: only what the remote has may go."""
    here = local.here
    versions(here, model(), 2)
    here("push", "-q", "origin", "main")
    here("-C", str(local.bare), "config", "uploadpack.allowFilter", "true")
    local.url = f"file://{local.bare}"
    partial = local.clone("--filter=blob:none")
    partial.write("x.m", content(9))
    partial("add", "x.m")
    mine = needs(partial, "x.m")
    partial("rm", "-q", "--cached", "x.m")
    age(partial)
    done = theta(partial, "prune")
    assert done.returncode == 1
    assert b"--verify-remote" in done.stderr
    told = ok_json(partial, "prune", "--verify-remote", "--json")
    assert (set(told["unverified"]), told["removed"]) == (mine, {})
    here.config("lfs.storage", str(here.path.parent / "elsewhere"))
    shutil.copytree(objects(here), here.path.parent / "elsewhere/objects")
    assert theta(here, "prune", "--dry-run").returncode == 1


@pytest.mark.parametrize("site", ["http", "s3"], indirect=True)
def test_verified_by_a_server(site: Site) -> None:
    """--verify-remote: what the server has goes; a git-lfs server gets what it lacks first. What goes can be had again."""
    here = site.here
    here.commit("base", **{"a.m": content(0)})
    here("push", "-q", "origin", "main")
    for number in (1, 2):
        here.write(f"{number}.m", content(number))
        here("add", f"{number}.m")
    there, only_here = needs(here, "1.m"), needs(here, "2.m")
    site.here("commit", "-q", "-m", "pushed", "1.m")
    here("push", "-q", "origin", "main:gone")
    here("reset", "-q", "--hard", "HEAD^")
    here("push", "-q", "origin", ":gone")
    here("reflog", "expire", "--expire=now", "--all")
    (here.path / ".git/ORIG_HEAD").unlink(missing_ok=True)
    age(here)
    told = ok_json(here, "prune", "--verify-remote", "--json")
    if site.kind == "http":
        assert set(told["removed"]) == there | only_here
        assert only_here <= stored(site.objects)
    else:
        assert set(told["removed"]) == there
        assert set(told["unverified"]) == only_here
    assert not there & stored(objects(here))


def test_a_prune_that_was_killed(here: GitRepo, forgetful: dict[str, str]) -> None:
    """What it had moved out of sight gets its name back."""
    here.commit("base", **{"a.m": content(0)})
    store = LfsStore(objects(here), umask=0o022)
    (oid,) = needs(here, "a.m")
    store.path(oid).rename(store.path(oid).with_name(f"theta-{oid}.tmp"))
    ok(here, "prune")
    (here.path / "a.m").unlink()
    here("checkout", "-q", "--", "a.m", env=forgetful)
    assert here.read("a.m") == content(0)


def test_a_damaged_history_stops_it(here: GitRepo) -> None:
    """Git has lost a blob of its own: nothing is removed, and the reason is told."""
    here.commit("base", **{"a.m": content(0)})
    blob = here.text("rev-parse", "HEAD:a.m")
    path = here.path / ".git/objects" / blob[:2] / blob[2:]
    path.unlink()
    before = stored(objects(here))
    age(here)
    assert theta(here, *NOW).returncode == 1
    assert stored(objects(here)) == before
    assert subprocess.run(["git", "theta", "prune", "--grace", "soon"], cwd=here.path, check=False).returncode == 2
