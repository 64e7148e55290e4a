"""What a push brings along, when it refuses, and the hook that makes `git push` do it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.theta import ok, ok_json, theta
from tests.git.models import model
from tests.gitrepo import GitRepo
from tests.remotes.sites import Site, stored, versions

HOOK = '#!/bin/sh\necho "$1" >> seen\ncat >> seen\n'


def objects_of(repo: GitRepo) -> Path:
    return repo.path / ".git" / "lfs" / "objects"


def needed(repo: GitRepo, revision: str = "HEAD") -> set[str]:
    """The objects that a.m of a revision needs."""
    return set(ok_json(repo, "show", f"{revision}:a.m", "--json")["objects"])


def test_a_branch_a_tag_a_merge_an_amended_commit(local: Site) -> None:
    """Whatever is pushed, the objects of just that are there afterwards, and each checks out in a clone."""
    here = local.here
    base = model()
    here.commit("one", **{"a.m": base.bytes()})
    here("switch", "-q", "-c", "side")
    here.commit("side", **{"a.m": base.retrain("embed.weight", 5).bytes()})
    here("switch", "-q", "-c", "other", "main")
    here.commit("other", **{"b.m": base.retrain("layer.0.weight", 6).bytes()})
    here("push", "-q", "origin", "main")
    assert stored(local.objects) == needed(here, "main")
    here("tag", "-a", "v1", "-m", "only a tag", "side")
    here("push", "-q", "origin", "v1")
    assert stored(local.objects) == needed(here, "main") | needed(here, "side")
    here("merge", "-q", "--no-edit", "side")
    here.commit("then", **{"a.m": base.retrain("embed.weight", 5).tune(7).bytes()})
    here("commit", "-q", "--amend", "-m", "amended")
    here("push", "-q", "origin", "other:refs/heads/new")
    assert stored(local.objects) == stored(objects_of(here))
    clone = local.clone("--branch", "new")
    assert clone.read("a.m") == here.read("a.m")
    assert clone.read("b.m") == here.read("b.m")


def test_a_remote_by_url_and_a_deleted_branch(local: Site) -> None:
    """A path instead of a name; deleting a branch, and pushing what is there already, push nothing and do not fail."""
    here = local.here
    versions(here, model(), 2)
    here("remote", "remove", "origin")
    here("push", "-q", str(local.bare), "main", "main:gone")
    assert stored(local.objects) == stored(objects_of(here))
    here("push", "-q", str(local.bare), ":gone")
    here("push", "-q", "../origin.git", "main")


def test_it_refuses_what_is_nowhere(local: Site) -> None:
    """An object that is neither here nor there: it is named with its file, and no ref is pushed; the setting overrides."""
    here = local.here
    versions(here, model(), 2)
    lost = max(stored(objects_of(here)))
    kept = here.path.parent / "kept"
    shutil.move(next(objects_of(here).rglob(lost)), kept)
    done = here.run("push", "-q", "origin", "main")
    assert done.returncode != 0
    assert lost.encode() in done.stderr
    assert b"a.m" in done.stderr
    assert b"allowIncompletePush" in done.stderr
    assert here("ls-remote", "origin") == b""
    assert stored(local.objects) == set()
    assert theta(here, "push", "origin").returncode == 1
    here("-c", "theta.allowIncompletePush=true", "push", "-q", "origin", "main")
    assert stored(local.objects) == stored(objects_of(here))
    shutil.move(kept, objects_of(here) / lost[:2] / lost[2:4] / lost)
    here.commit("more", **{"a.m": model().tune(50).bytes()})
    here("push", "-q", "origin", "main")
    assert needed(here) <= stored(local.objects)


def test_what_the_remote_has_need_not_be_here(local: Site) -> None:
    """A clone that fetched only what it needed pushes on: what is missing here is there."""
    here = local.here
    made = versions(here, model(), 3)
    here("push", "-q", "origin", "main")
    clone = local.clone()
    shutil.rmtree(objects_of(clone))
    (clone.path / "a.m").write_bytes(model().retrain("embed.weight", 77).bytes())
    clone("commit", "-q", "-am", "from the clone")
    clone("push", "-q", "origin", "HEAD:more")
    here("fetch", "-q")
    here("checkout", "-q", "origin/more")
    assert here.read("a.m") == clone.read("a.m")
    assert len(made) == 3


def test_a_push_past_the_hook_is_made_good(local: Site) -> None:
    """Objects that an earlier `push --no-verify` left behind go along with what builds on them."""
    here = local.here
    versions(here, model(), 2)
    here("push", "-q", "--no-verify", "origin", "main")
    assert stored(local.objects) == set()
    here.commit("small", **{"a.m": model().step(0).step(1).edit("layer.0.weight", 3).bytes()})
    here("push", "-q", "origin", "main")
    assert needed(here) <= stored(local.objects)


def test_git_theta_push(local: Site) -> None:
    """The command pushes objects without refs; a dry run, nothing; then git push has nothing to send."""
    here = local.here
    versions(here, model(), 2)
    told = ok_json(here, "push", "--dry-run", "--json")
    assert (told["pointers"], told["objects"]) == (2, len(stored(objects_of(here))))
    assert stored(local.objects) == set()
    status = ok_json(here, "status", "--json")["to_push"]
    assert (status["pointers"], status["objects"]) == (2, told["objects"])
    ok(here, "push", "origin", "main")
    assert stored(local.objects) == stored(objects_of(here))
    assert here("ls-remote", "origin") == b""
    here("push", "-q", "origin", "main")
    assert "nothing to push" in ok(here, "push")
    assert ok_json(here, "status", "--json")["to_push"]["pointers"] == 0


def test_the_users_own_hook_still_runs(local: Site, installed: None) -> None:
    """Moved aside it sees the same lines, and its no is a no; uninstalling puts it back, byte for byte."""
    here = local.here
    hook = here.path / ".git/hooks/pre-push"
    hook.unlink(missing_ok=True)
    hook.write_text(HOOK)
    hook.chmod(0o755)
    ok(here, "install")
    versions(here, model(), 1)
    here("push", "-q", "origin", "main")
    seen = (here.path / "seen").read_text().splitlines()
    assert seen[0] == "origin"
    assert seen[1].startswith("refs/heads/main ")
    assert len(seen) == 2
    assert stored(local.objects) == stored(objects_of(here))
    ok(here, "install")
    aside = hook.with_name("pre-push.before-theta")
    assert aside.read_text() == HOOK
    aside.write_text("#!/bin/sh\nexit 3\n")
    here.commit("two", **{"a.m": model().tune(3).bytes()})
    assert here.run("push", "-q", "origin", "main").returncode != 0
    aside.write_text(HOOK)
    ok(here, "uninstall")
    assert hook.read_text() == HOOK
    assert not aside.exists()


def test_a_hook_that_runs_what_was_before_it(local: Site) -> None:
    """Another tool moved our hook aside and runs it; installed again, each of the two runs and none for ever."""
    here = local.here
    hook = here.path / ".git/hooks/pre-push"
    ok(here, "install")
    hook.rename(hook.with_name("pre-push.legacy"))
    hook.write_text('#!/bin/sh\necho ran >> seen\nexec "$0.legacy" "$@"\n'.replace("$0", "${0%/*}/pre-push"))
    hook.chmod(0o755)
    ok(here, "install")
    versions(here, model(), 1)
    here("push", "-q", "origin", "main")
    assert (here.path / "seen").read_text() == "ran\n"
    assert stored(local.objects) == stored(objects_of(here))


def test_git_lfs_beside_us(local: Site) -> None:
    """Files of git-lfs in a repository that had our hook first: their objects are pushed too."""
    here = local.here
    ok(here, "install")
    here("lfs", "install", "--local", "--skip-repo")
    here("lfs", "track", "*.bin")
    picture = b"a picture"
    here.commit("both", **{"x.bin": picture, "a.m": model().bytes()})
    here("push", "-q", "origin", "main")
    assert stored(local.objects) == stored(objects_of(here))
    assert len([path for path in local.objects.rglob("*") if path.is_file() and path.read_bytes() == picture]) == 1


def test_where_hooks_are(local: Site) -> None:
    """core.hooksPath is honoured; a fresh clone has the hook from its first new checkpoint on, unless the folder is tracked."""
    here = local.here
    versions(here, model(), 1)
    assert (here.path / ".git/hooks/pre-push").exists()
    (here.path / ".git/hooks/pre-push").unlink()
    here.config("core.hooksPath", "hooks of mine")
    here.write("a.m", model().tune(9).bytes())
    done = here.run("add", "a.m")
    assert b"pre-push hook is missing" in done.stderr
    assert not (here.path / "hooks of mine").exists()
    ok(here, "install")
    assert (here.path / "hooks of mine/pre-push").exists()
    here("commit", "-qm", "two")
    here("push", "-q", "origin", "main")
    assert stored(local.objects) == stored(objects_of(here))


def test_without_the_program_nothing_is_left_behind(local: Site) -> None:
    """The hook outlives the program: the push fails and says what to do."""
    here = local.here
    versions(here, model(), 1)
    here.config("theta.command", "/gone/git-theta")
    done = here.run("push", "-q", "origin", "main")
    assert done.returncode != 0
    assert b"git theta install" in done.stderr
    assert here("ls-remote", "origin") == b""


@pytest.mark.parametrize("where", ["sub", "."])
def test_relative_remotes_mean_the_top(local: Site, where: str) -> None:
    """A remote with a relative path is the same from every folder."""
    here = local.here
    here("remote", "set-url", "origin", "../origin.git")
    here.write("sub/a.m", model().bytes())
    here.commit("one")
    ok(here, "push", cwd=here.path / where)
    assert stored(local.objects) == stored(objects_of(here))
