"""show, ls-files and status: what git stores instead of checkpoints."""

from __future__ import annotations

import shutil

import numpy as np

from tests.cli.theta import ok, ok_json, theta
from tests.git.models import model
from tests.gitrepo import GitRepo
from theta_daemon.pointer import parse

BASE = model()
NEXT = BASE.edit("embed.weight", 1)


def test_show_is_the_pointer_as_a_table(models: GitRepo) -> None:
    """Every parameter with dtype, shape, update, depth and sizes; the same numbers in JSON as in the pointer."""
    models.commit("one", **{"d/a.m": BASE.bytes()})
    models.commit("two", **{"d/a.m": NEXT.bytes()})
    pointer = parse(models.blob("d/a.m"))
    assert pointer is not None
    text = ok(models, "show", "a.m", cwd=models.path / "d")
    [line] = [line for line in text.splitlines() if line.startswith("embed.weight")]
    assert line.split()[1:7] == ["F32", "64", "×", "32", "sparse", "1"]
    assert "total" in text
    shown = ok_json(models, "show", "--json", "HEAD:d/a.m")
    assert [one["name"] for one in shown["parameters"]] == [one.name for one in pointer.parameters]
    assert [one["stored"] for one in shown["parameters"]] == [one.stored for one in pointer.parameters]
    assert [one["raw"] for one in shown["parameters"]] == [one.spec.nbytes for one in pointer.parameters]
    assert (shown["size"], shown["digest"], shown["objects"]) == (pointer.size, pointer.digest, pointer.objects)
    old = ok_json(models, "show", "--json", "HEAD~1:d/a.m")
    assert {one["depth"] for one in old["parameters"]} == {0}


def test_show_of_what_is_no_pointer(models: GitRepo) -> None:
    """A file that git holds as it is, or that is not there, ends with 1 and a sentence."""
    models.commit("one", **{"raw.txt": b"raw"})
    for name in ("raw.txt", "HEAD:raw.txt", "none.m", "HEAD:none.m"):
        done = theta(models, "show", name)
        assert done.returncode == 1
        assert b"Traceback" not in done.stderr
        assert name.rpartition(":")[2].encode() in done.stderr


def test_ls_files_of_index_and_revision(models: GitRepo) -> None:
    """The checkpoints by git's attributes, as they were in the revision asked for; odd names survive JSON."""
    models.commit("one", **{"a.m": BASE.bytes(), "line\nbreak.m": NEXT.bytes(), "raw.txt": b"raw"})
    models.commit("two", **{"a.m": NEXT.bytes(), ".gitattributes": b"a.m filter=theta\n", "d/b.m": b"raw now"})
    assert [one["path"] for one in ok_json(models, "ls-files", "--json")] == ["a.m"]
    old = ok_json(models, "ls-files", "--json", "--ref", "HEAD~1")
    assert [one["path"] for one in old] == ["a.m", "line\nbreak.m"]
    assert [one["size"] for one in old] == [len(BASE.bytes()), len(NEXT.bytes())]
    assert "raw.txt" not in ok(models, "ls-files")
    bare = GitRepo(models.path.parent / "bare")
    models("clone", "-q", "--bare", models.path, bare.path)
    assert ok_json(bare, "ls-files", "--json", "--ref", "main~1") == old
    assert theta(models, "ls-files", "--ref", "nowhere").returncode == 1


def test_a_damaged_pointer_is_named(models: GitRepo) -> None:
    """ls-files goes on over a pointer that breaks a rule, names it, and ends with 1."""
    models.commit("one", **{"a.m": BASE.bytes(), "b.m": NEXT.bytes()})
    models.write("broken", models.blob("a.m").replace(b'"F32"', b'"F31"', 1))
    blob = models.text("hash-object", "-w", "--no-filters", "broken")
    models("update-index", "--cacheinfo", f"100644,{blob},a.m")
    done = theta(models, "ls-files")
    assert done.returncode == 1
    assert b"a.m" in done.stderr
    assert b"b.m" in done.stdout


def test_status_tells_the_next_commit(models: GitRepo) -> None:
    """Staged changes by parameter, edits, files stored raw, and objects that are not here."""
    models.commit("one", **{"a.m": BASE.bytes(), "edited.m": BASE.bytes(), "e.m": b""})
    models.write("a.m", NEXT.put(new=np.ones(3, "<f4")).without("norm").bytes())
    models("add", "a.m")
    models.write("edited.m", NEXT.bytes())
    models.write("raw", b"raw")
    blob = models.text("hash-object", "-w", "--no-filters", "raw")
    models("update-index", "--add", "--cacheinfo", f"100644,{blob},raw.m")
    found = ok_json(models, "status", "--json")
    [staged] = found["staged"]
    assert (staged["path"], staged["changed"], staged["added"], staged["removed"]) == (
        "a.m",
        ["embed.weight"],
        ["new"],
        ["norm"],
    )
    assert "edited.m" in found["edited"]
    assert "a.m" not in found["edited"]
    assert found["raw"] == ["raw.m"]
    assert found["missing_objects"] == {}
    assert found["configured"]
    assert "1 changed, 1 added, 1 removed" in ok(models, "status")
    shutil.rmtree(models.path / ".git/lfs/objects")
    assert ok_json(models, "status", "--json")["missing_objects"]


def test_status_names_the_disputed_parameters(models: GitRepo) -> None:
    """During a conflicting merge status says which parameters both sides changed."""
    models.commit("one", **{"a.m": BASE.bytes()})
    models("checkout", "-q", "-b", "side")
    models.commit("side", **{"a.m": BASE.edit("ids", 5).edit("step", 5, 1).bytes()})
    models("checkout", "-q", "main")
    models.commit("two", **{"a.m": NEXT.edit("ids", 6).bytes()})
    assert models.run("merge", "side").returncode == 1
    assert ok_json(models, "status", "--json")["conflicts"] == {"a.m": ["ids"]}
    assert "both sides changed ids" in ok(models, "status")
