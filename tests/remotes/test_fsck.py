"""Fsck finds what is wrong, says what it is for, and repairs it from the remote."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.cli.theta import ok_json, theta
from tests.git.models import model
from tests.gitrepo import GitRepo
from tests.remotes.sites import Site, stored, versions
from theta_daemon.pointer import parse


def objects(repo: GitRepo) -> Path:
    return repo.path / ".git/lfs/objects"


def place(repo: GitRepo, oid: str) -> Path:
    return objects(repo) / oid[:2] / oid[2:4] / oid


def flip(path: Path, offset: int) -> None:
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def newest(repo: GitRepo, seed: int) -> str:
    """The object with the skeleton of a commit's file, which no other file has."""
    return str(parse(repo.blob(f"{seed}.m")).skeleton.object)  # type: ignore[union-attr]


def kinds(repo: GitRepo, *options: str) -> list[tuple[str, str]]:
    """What fsck finds; its exit status says so too."""
    done = theta(repo, "fsck", "--json", *options)
    problems = [(one["kind"], one["name"]) for one in json.loads(done.stdout)["problems"]]
    assert done.returncode == bool(problems), done.stderr
    return sorted(problems)


def test_a_sound_repository(local: Site) -> None:
    """Nothing is wrong; every version of every ref, reflog and index is rebuilt."""
    versions(local.here, model(), 4)
    local.here.write("b.m", model(7).bytes())
    local.here("add", "b.m")
    told = ok_json(local.here, "fsck", "--all", "--objects", "--rebuild", "--json")
    assert (told["pointers"], told["rebuilt"], told["problems"]) == (5, 5, [])
    assert told["objects"] == len(stored(objects(local.here)))


def test_missing_damaged_repaired(local: Site) -> None:
    """An object that is gone, one that is cut short, one with a changed bit: each is found by what it takes to find it, all
    are fetched again. What no remote has is put back as it was, and named.
    """
    here = local.here
    for seed in range(4):
        here.commit(str(seed), **{f"{seed}.m": model(seed).bytes()})
    here("push", "-q", "origin", "main")
    gone, short, changed, alone = (newest(here, seed) for seed in range(4))
    place(here, gone).unlink()
    place(here, short).chmod(0o644)
    os.truncate(place(here, short), 100)
    flip(place(here, changed), 500)
    flip(place(here, alone), 500)
    (local.objects / alone[:2] / alone[2:4] / alone).unlink()
    lost = [("missing object", oid) for oid in (gone, short)]
    assert kinds(here, "--pointers") == sorted(lost)
    bad = [("damaged object", oid) for oid in (changed, alone)]
    assert kinds(here) == sorted(lost + bad)
    rebuilt = [kind for kind, _ in kinds(here, "--rebuild")]
    assert rebuilt.count("cannot be rebuilt") >= 2
    damaged = place(here, alone).read_bytes()
    assert kinds(here, "--repair") == sorted([("damaged object", alone), ("not repaired", alone)])
    assert place(here, alone).read_bytes() == damaged
    flip(place(here, alone), 500)
    assert kinds(here, "--all", "--objects", "--rebuild") == []


def test_pointers_that_are_wrong(here: GitRepo) -> None:
    """A pointer with a broken rule, one that lies about its digest; the others are checked all the same."""
    here.commit("good", **{"a.m": model().bytes()})
    text = here.blob("a.m")
    lying = text.replace(b'"digest":"', b'"digest":"0', 1).replace(b'"size":', b'"size":', 1)
    for name, data in (("b.m", text.replace(b'"format":', b'"form":')), ("c.m", lying)):
        blob = here("hash-object", "-w", "--stdin", data=data).decode().strip()
        here("update-index", "--add", "--cacheinfo", f"100644,{blob},{name}")
    found = kinds(here, "--rebuild")
    assert [kind for kind, _ in found] == ["bad pointer", "bad pointer"]


def test_caches_are_not_believed(local: Site) -> None:
    """A daemon that still has the values does not make a damaged store look sound."""
    here = local.here
    here.commit("one", **{"a.m": model().bytes()})
    (here.path / "a.m").unlink()
    here("checkout", "-q", "--", "a.m")
    for oid in stored(objects(here)):
        place(here, oid).unlink()
    assert [kind for kind, _ in kinds(here, "--rebuild")] == ["cannot be rebuilt", "missing object"]
