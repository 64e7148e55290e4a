"""Checkpoints travel by git push and git clone alone, through every kind of remote; and what breaks on the way."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.theta import ok, ok_json
from tests.git.models import model
from tests.gitrepo import GitRepo
from tests.remotes.sites import GET_OBJECT, PUT_OBJECT, S3_ENV, LfsRuns, Site, stored, versions
from tests.serving import fresh_daemon


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_every_version_comes_back(site: Site) -> None:
    """Pushed from A by `git push`, cloned in B: every version has the bytes that were added. A second push sends nothing."""
    made = versions(site.here, model(), 5)
    site.here("push", "-q", "origin", "main")
    assert stored(site.objects) == stored(site.here.path / ".git/lfs/objects")
    first = site.requests()
    clone = site.clone()
    for commit, data in made.items():
        clone("checkout", "-q", commit)
        assert sha256(clone.read("a.m")) == sha256(data)
        assert clone.status() == ""
    site.requests()
    site.here.commit("text only", **{"readme.txt": b"text"})
    site.here("push", "-q", "origin", "main")
    assert [line for line in site.requests() if line.startswith("PUT")] == []
    if site.kind in PUT_OBJECT:
        assert any(line.startswith("PUT") for line in first)


NOTHING_TO_FETCH = {"pointers": 1, "objects": 0, "bytes": 0, "rounds": 0, "requests": 0, "failed": {}}


def fetched(folder: Path, env: dict[str, str]) -> dict[str, int]:
    """What the daemon of a runtime folder says that it has fetched."""
    (report,) = json.loads(ok(folder, "daemon", "status", "--json", env=env))
    counters = report["host"]["counters"]
    return {name: counters.get(f"fetch.{name}", 0) for name in ("rounds", "requests", "objects", "bytes")}


def test_a_clone_of_depth_one(
    site: Site, monkeypatch: pytest.MonkeyPatch, record_testsuite_property: Callable[[str, object], None]
) -> None:
    """The whole file, by lineage, in one round: each object is asked for once, and nothing else is missing afterwards. The
    daemon tells how much it asked for, its servers and git-lfs agree, and a longer history takes no more.
    """
    runs = LfsRuns.watched(site.here.path.parent / "watched")
    monkeypatch.setenv("PATH", f"{runs.log.parent}{os.pathsep}{os.environ['PATH']}")
    site.here("config", "theta.maxDepth", "2")
    versions(site.here, model(), 6)
    table = []
    for count in (12, 18):
        *_, (_, newest) = versions(site.here, model(count), 6).items()
        site.here("push", "-q", "origin", "main")
        site.requests()
        runs.seen()
        folder = site.here.path.parent / f"fresh-{count}"
        with fresh_daemon(folder) as env:
            clone = site.clone("--depth", "1", "--no-local", env=env)
            told = fetched(folder, env)
        assert clone.text("rev-list", "--count", "HEAD") == "1"
        assert sha256(clone.read("a.m")) == sha256(newest)
        asked, lfs = site.requests(), [command for command in runs.seen() if command in ("fetch", "pull", "smudge")]
        table.append({"versions": count, **told, "of the server": len(asked)})
        store = clone.path / ".git/lfs/objects"
        objects = stored(store)
        assert clone.status() == ""
        assert ok_json(clone, "fetch", "--json") == NOTHING_TO_FETCH
        by_lfs = site.kind in ("lfs-file", "http")
        assert told == {
            "rounds": 1,
            "requests": 1 if by_lfs else len(objects),
            "objects": len(objects),
            "bytes": sum((store / oid[:2] / oid[2:4] / oid).stat().st_size for oid in objects),
        }
        assert lfs == (["fetch"] if by_lfs else [])
        gets = sorted(line.rsplit("/", 1)[1] for line in asked if line.startswith("GET"))
        rest = [line for line in asked if not line.startswith("GET")]
        assert gets == (sorted(objects) if site.front is not None else [])
        assert rest == (["POST /org/models.git/info/lfs/objects/batch"] if site.kind == "http" else [])
    for row in table:
        print(f"{site.kind:8}", *(f"{name}: {number:,}" for name, number in row.items()), sep="  ")
        record_testsuite_property(f"a clone of depth 1 from {site.kind}, {row['versions']} versions", row)
    short, long = table
    for name in ("requests", "objects", "of the server"):
        assert long[name] == short[name]


@pytest.mark.parametrize("options", [["--filter=blob:none"], ["--single-branch", "--depth", "2"]])
def test_clones_without_history(local: Site, options: list[str]) -> None:
    """A partial and a shallow clone: the whole file, and then every file of every version that git can name."""
    made = versions(local.here, model(), 6)
    local.here("push", "-q", "origin", "main")
    local.here("-C", str(local.bare), "config", "uploadpack.allowFilter", "true")
    local.here("-C", str(local.bare), "config", "uploadpack.allowAnySHA1InWant", "true")
    local.url = f"file://{local.bare}"
    clone = local.clone(*options)
    assert clone.read("a.m") == list(made.values())[-1]
    assert clone.status() == ""
    with fresh_daemon(local.here.path.parent / "fresh") as env:
        for commit in reversed(clone.text("rev-list", "HEAD").split()):
            clone("checkout", "-q", commit, env=env)
            if commit in made:
                assert clone.read("a.m") == made[commit]


def test_grafted_amended_squashed(local: Site) -> None:
    """The history that an update was built on is cut off, or replaced, and collected: the newest file is whole, here and in
    a clone.
    """
    here = local.here
    *_, (_, newest) = versions(here, model(), 4).items()
    here("commit", "-q", "--amend", "-m", "amended")
    here("replace", "--graft", "HEAD")
    here("reset", "-q", "--soft", here.text("commit-tree", "-m", "squashed", "HEAD^{tree}"))
    here("replace", "-d", *here.text("replace", "-l").split())
    here("reflog", "expire", "--expire=now", "--all")
    (here.path / ".git/ORIG_HEAD").unlink(missing_ok=True)
    here("gc", "-q", "--prune=now")
    assert here.text("rev-list", "--count", "--all") == "1"
    assert (
        ok_json(here, "prune", "--grace", "0s", "--json")["removed"]
        .keys()
        .isdisjoint(ok_json(here, "show", "HEAD:a.m", "--json")["objects"])
    )
    (here.path / "a.m").unlink()
    here("checkout", "-q", "--", "a.m", env={"THETA_DAEMON": "never"})
    assert here.read("a.m") == newest
    here("push", "-q", "origin", "main")
    assert local.clone("--single-branch").read("a.m") == newest


@pytest.mark.parametrize(
    ("site", "faults"),
    [
        pytest.param("http", ["drop", "truncate", "corrupt", 500, 403], id="http"),
        pytest.param("s3", ["truncate", "corrupt", 403], id="s3"),
        pytest.param("s3", ["drop", 500], id="s3-retried"),
    ],
    indirect=["site"],
)
def test_a_clone_over_a_connection_that_breaks(site: Site, faults: list[str | int]) -> None:
    """A clear error that names file and object, nothing half-written, and the next try completes and asks only for what is
    missing.
    """
    made = versions(site.here, model(), 3)
    newest = list(made.values())[-1]
    site.here("push", "-q", "origin", "main")
    victim = max(stored(site.here.path / ".git/lfs/objects"))
    assert site.front is not None
    for fault in faults:

        def breaking(method: str, path: str, fault: str | int = fault) -> str | int | None:
            return fault if method == "GET" and victim in path else None

        site.front.fault = breaking
        done, clone = site.try_clone()
        store = clone.path / ".git/lfs/objects"
        assert done.returncode != 0, fault
        assert victim.encode() in done.stderr
        assert b"a.m" in done.stderr
        assert b"Traceback" not in done.stderr
        assert stored(store) <= stored(site.here.path / ".git/lfs/objects") - {victim}
        for oid in stored(store):
            assert sha256((store / oid[:2] / oid[2:4] / oid).read_bytes()) == oid
        assert [path for path in (clone.path / ".git/lfs/tmp").rglob("*") if path.is_file()] == []
        had = stored(store)
        site.front.fault = lambda _method, _path: None
        site.requests()
        clone("checkout", "-q", "-f", "HEAD", "--", ".", env=site.forgetful)
        assert clone.read("a.m") == newest
        asked = {line.rsplit("/", 1)[1] for line in site.requests() if line.startswith("GET")}
        assert asked == stored(store) - had
        assert victim in asked


@pytest.mark.parametrize(("site", "fault"), [("http", 500), ("s3", 403)], indirect=["site"])
def test_a_push_that_the_server_refuses(site: Site, fault: int) -> None:
    """Git does not push the refs; the next push sends only what is missing."""
    versions(site.here, model(), 3)
    objects = stored(site.here.path / ".git/lfs/objects")
    victim = max(objects)
    assert site.front is not None
    site.front.fault = lambda method, path: fault if method == "PUT" and victim in path else None
    done = site.here.run("push", "-q", "origin", "main")
    assert done.returncode != 0
    assert b"Traceback" not in done.stderr
    assert site.here("ls-remote", "origin") == b""
    site.front.fault = lambda _method, _path: None
    site.requests()
    missing = objects - stored(site.objects)
    site.here("push", "-q", "origin", "main")
    sent = [line for line in site.requests() if line.startswith("PUT")]
    assert len(sent) == len(missing)
    assert stored(site.objects) >= objects


def test_git_lfs_moves_our_objects(local: Site) -> None:
    """Over file:// with the git-lfs client: it pushes and checks our objects as its own, and a clone finds them."""
    site = local
    made = versions(site.here, model(), 3)
    objects = stored(site.here.path / ".git/lfs/objects")
    site.here("remote", "set-url", "origin", f"file://{site.bare}")
    listing = "".join(f"{oid}\n" for oid in sorted(objects)).encode()
    site.here("lfs", "push", "--object-id", "origin", "--stdin", data=listing)
    assert stored(site.objects) == objects
    site.here("push", "-q", "--no-verify", "origin", "main")
    assert site.clone().read("a.m") == list(made.values())[-1]


def test_an_object_store_for_every_remote(here: GitRepo, local: Site) -> None:
    """theta.remote stands alone: objects go to that folder, not to git's remote."""
    folder = here.path.parent / "shared"
    here("config", "--global", "theta.remote", f"file://{folder}")
    versions(here, model(), 2)
    here("push", "-q", "origin", "main")
    assert stored(folder) == stored(here.path / ".git/lfs/objects")
    assert stored(local.objects) == set()
    assert local.clone().read("a.m") == here.read("a.m")


def test_what_the_servers_need_is_not_inherited() -> None:
    """The tests' credentials end with their servers."""
    assert not set(S3_ENV) & set(os.environ)
    assert GET_OBJECT.keys() == PUT_OBJECT.keys()
