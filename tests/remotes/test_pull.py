"""Work trees with pointers in them: skipped on purpose, cleaned to themselves, filled in later."""

from __future__ import annotations

import os
import shutil

from tests.cli.theta import ok, ok_json, theta
from tests.git.models import model
from tests.remotes.sites import Site, versions
from tests.serving import fresh_daemon

SKIP = {"GIT_THETA_SKIP_SMUDGE": "1"}


def test_skipped_cleaned_filled(local: Site) -> None:
    """The clone has pointers (delayed or not) and is clean; adding them gives the very blob; pull fills in every file, in one
    round, executable bits and all, and git sees no change; a second pull does nothing.
    """
    here = local.here
    here.write("run.m", model(3).bytes()).chmod(0o755)
    made = versions(here, model(), 3)
    here("push", "-q", "origin", "main")
    clone = local.clone(env=SKIP)
    assert clone.read("a.m") == clone.blob("a.m")
    assert clone("cat-file", "--filters", "HEAD:a.m", env=SKIP) == clone.blob("a.m")
    os.utime(clone.path / "a.m", (1, 1))
    assert clone.status() == ""
    clone("add", "--renormalize", ".")
    assert clone.status() == ""
    told = ok_json(clone, "pull", "--json")
    assert sorted(told["files"]) == ["a.m", "run.m"]
    assert (told["rounds"], told["failed"]) == (1, {})
    assert told["requests"] == told["objects"] > 0
    assert clone.read("a.m") == list(made.values())[-1]
    assert clone.read("run.m") == model(3).bytes()
    assert os.access(clone.path / "run.m", os.X_OK)
    assert clone.status() == ""
    assert ok_json(clone, "pull", "--json")["files"] == []


def test_only_what_is_asked_for_and_nothing_of_the_users(local: Site) -> None:
    """Paths choose files; edited, deleted and staged files stay as they are."""
    here = local.here
    for name in "abcd":
        here.write(f"sub/{name}.m", model(ord(name)).bytes())
    here.commit("four")
    here("push", "-q", "origin", "main")
    clone = local.clone(env=SKIP)
    clone.write("sub/b.m", b"edited")
    (clone.path / "sub/c.m").unlink()
    assert ok_json(clone, "pull", "--json", "a.m", cwd=clone.path / "sub")["files"] == ["sub/a.m"]
    assert ok_json(clone, "pull", "--json")["files"] == ["sub/d.m"]
    assert clone.read("sub/b.m") == b"edited"
    assert not (clone.path / "sub/c.m").exists()
    assert clone.status().split() == ["M", "sub/b.m", "D", "sub/c.m"]


def test_a_file_that_cannot_be_had(local: Site) -> None:
    """It stays a pointer and is named; the others are filled in; the exit status is 1."""
    here = local.here
    here.commit("a", **{"a.m": model(1).bytes()})
    before = {path.name for path in (here.path / ".git/lfs/objects").rglob("*")}
    here.commit("b", **{"b.m": model(2).bytes()})
    here("push", "-q", "origin", "main")
    clone = local.clone(env=SKIP)
    lost = [path for path in local.objects.rglob("*") if path.is_file() and path.name not in before]
    for path in lost:
        path.unlink()
    done = theta(clone, "pull")
    assert done.returncode == 1
    assert b"b.m" in done.stderr
    assert clone.read("a.m") == model(1).bytes()
    assert clone.read("b.m") == clone.blob("b.m")
    assert clone.status() == ""


def test_fetch_of_revisions(local: Site, forgetful: dict[str, str]) -> None:
    """REV brings its own objects, --all those of everything, and then no remote is needed."""
    here = local.here
    made = versions(here, model(), 4)
    here("push", "-q", "origin", "main")
    clone = local.clone(env=SKIP)
    first = next(iter(made))
    assert ok_json(clone, "fetch", first, "--json")["pointers"] == 1
    assert ok_json(clone, "fetch", "--all", "--json")["pointers"] == 4
    assert ok_json(clone, "fetch", f"{first}..HEAD", "--json") | {"rounds": 0} == {
        "pointers": 3, "objects": 0, "bytes": 0, "rounds": 0, "requests": 0, "failed": {}
    }  # fmt: skip
    shutil.rmtree(local.bare)
    for commit, data in made.items():
        clone("checkout", "-q", "-f", commit, env=forgetful)
        assert clone.read("a.m") == data


def test_a_partial_clone_brings_its_pointers_at_once(local: Site) -> None:
    """--filter=blob:none: fetch --all reads every version's pointer, and every version then checks out."""
    here = local.here
    made = versions(here, model(), 4)
    here("push", "-q", "origin", "main")
    for key in ("allowFilter", "allowAnySHA1InWant"):
        here("-C", str(local.bare), "config", f"uploadpack.{key}", "true")
    local.url = f"file://{local.bare}"
    clone = local.clone("--filter=blob:none", env=SKIP)
    trace = clone.path.parent / "trace"
    ok(clone, "fetch", "--all", env={"GIT_TRACE2_EVENT": str(trace)})
    fetches = [line for line in trace.read_text().splitlines() if '"cmd_name"' in line and '"fetch"' in line]
    assert len(fetches) == 1
    with fresh_daemon(local.here.path.parent / "fresh") as env:
        for commit, data in made.items():
            clone("checkout", "-q", commit, env=env)
            assert clone.read("a.m") == data
