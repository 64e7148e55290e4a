"""Commands that give a checkpoint's bytes or its pointer: cat, and the filter one file at a time."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from tests.cli.theta import ok, once, theta
from tests.git.models import model
from tests.gitrepo import GitRepo
from theta_daemon.pointer import looks_like_pointer, parse

BASE = model()
NEXT = BASE.edit("embed.weight", 1)


def test_cat_gives_any_revision_without_touching_anything(models: GitRepo) -> None:
    """Index, branches, commits, from a folder, by every spelling git knows; raw files too; the work tree stays."""
    models.commit("one", **{"d/a.m": BASE.bytes(), "raw.txt": b"raw", "e.m": b""})
    models.commit("two", **{"d/a.m": NEXT.bytes()})
    models.write("d/a.m", b"edited")
    folder = models.path / "d"
    for name, where, wanted in (
        ("HEAD:d/a.m", models.path, NEXT.bytes()),
        ("main~1:./a.m", folder, BASE.bytes()),
        ("a.m", folder, NEXT.bytes()),
        (":0:d/a.m", models.path, NEXT.bytes()),
        ("HEAD:raw.txt", folder, b"raw"),
        ("HEAD:e.m", folder, b""),
    ):
        assert theta(models, "cat", name, cwd=where).stdout == wanted, name
    assert models.read("d/a.m") == b"edited"


def test_cat_writes_a_file_whole_or_not_at_all(models: GitRepo) -> None:
    """--output replaces a file only by complete, proven content, keeps its mode, and leaves nothing else behind."""
    models.commit("one", **{"a.m": BASE.bytes()})
    models.commit("two", **{"a.m": NEXT.bytes()})
    target = models.path / "out.bin"
    target.write_bytes(b"old")
    target.chmod(0o640)
    ok(models, "cat", "HEAD~1:a.m", "--output", "out.bin")
    assert target.read_bytes() == BASE.bytes()
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    pointer = parse(models.blob("a.m"))
    assert pointer is not None
    for oid in pointer.objects:
        path = models.path / ".git/lfs/objects" / oid[:2] / oid[2:4] / oid
        path.chmod(0o644)
        path.write_bytes(bytes(len(path.read_bytes())))
    before = sorted(os.listdir(models.path))
    done = theta(models, "cat", "HEAD:a.m", "--output", "out.bin")
    assert done.returncode == 1
    assert b"HEAD:a.m" in done.stderr
    assert b"remedy" in done.stderr
    assert target.read_bytes() == BASE.bytes()
    assert sorted(os.listdir(models.path)) == before


@pytest.mark.parametrize("name", ["HEAD:none.m", "nowhere:a.m", "none.m", "HEAD:d", "--", ""])
def test_cat_of_nothing_is_an_error(models: GitRepo, name: str) -> None:
    """What names no file ends with 1 or 2, says so in a line, and writes no byte."""
    models.commit("one", **{"d/a.m": BASE.bytes()})
    done = theta(models, "cat", name)
    assert done.returncode in (1, 2)
    assert done.stdout == b""
    assert done.stderr
    assert b"Traceback" not in done.stderr


def test_the_filter_for_one_file(models: GitRepo) -> None:
    """clean gives the pointer that git add stores, smudge the very bytes; both are their own repetition."""
    models.commit("one", **{"a.m": BASE.bytes()})
    cleaned = once(models, "clean", "a.m", data=BASE.bytes())
    assert cleaned.stdout == models.blob("a.m")
    assert once(models, "clean", "a.m", data=cleaned.stdout).stdout == cleaned.stdout
    assert once(models, "smudge", "a.m", data=cleaned.stdout).stdout == BASE.bytes()
    assert once(models, "clean", "empty").stdout == once(models, "smudge", "empty").stdout == b""
    raw = once(models, "smudge", "a.m", data=b"not a pointer")
    assert (raw.returncode, raw.stdout) == (0, b"not a pointer")
    assert raw.stderr


def test_the_filter_takes_any_path_and_no_options(models: GitRepo) -> None:
    """A path may look like an option or be no text at all; wrong usage is 2 and writes no content."""
    for path in (b"--help", b"-h", b"caf\xe9 \n"):
        assert looks_like_pointer(once(models, "clean", path, data=BASE.bytes()).stdout)
    assert once(models, "--help").returncode == 0
    for arguments in ([], ["clean"], ["stain", "a"], ["clean", "a", "b"]):
        done = once(models, *arguments, data=b"x")
        assert (done.returncode, done.stdout) == (2, b"")


def test_git_without_the_process_protocol(models: GitRepo) -> None:
    """With only clean and smudge configured git stores and checks out the same."""
    models("config", "--global", "--unset", "filter.theta.process")
    models.commit("one", **{"odd '$HOME' %f.m": BASE.bytes()})
    assert looks_like_pointer(models.blob("odd '$HOME' %f.m"))
    (models.path / "odd '$HOME' %f.m").unlink()
    models("checkout", "--", ".")
    assert models.read("odd '$HOME' %f.m") == BASE.bytes()
    assert models.status() == ""


def test_a_damaged_pointer_fails_the_one_file_filter(models: GitRepo) -> None:
    """smudge of a pointer that contradicts itself ends with 1, names the file and the field, and hands out nothing."""
    text = once(models, "clean", "a.m", data=BASE.bytes()).stdout
    broken = text.replace(b'"size":', b'"size":9', 1)
    done = once(models, "smudge", "a.m", data=broken)
    assert done.returncode == 1
    assert done.stdout == b""
    assert b"a.m" in done.stderr


def test_output_to_a_place_that_cannot_be(models: GitRepo, short_dir: Path) -> None:
    """A folder that is not there is an error with its name; a device takes the bytes."""
    models.commit("one", **{"a.m": BASE.bytes()})
    done = theta(models, "cat", "a.m", "-o", str(short_dir / "none" / "out"))
    assert done.returncode == 1
    assert b"none" in done.stderr
    assert b"Traceback" not in done.stderr
    assert theta(models, "cat", "a.m", "-o", "/dev/null").returncode == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
