"""Full disks, read-only stores and repositories: a clear error, nothing by halves, and the next command works."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.failures import disks
from tests.git.models import Model, model
from tests.gitrepo import GitRepo

pytestmark = pytest.mark.skipif(shutil.which("mount") is None or sys.platform != "linux", reason="mounts file systems")


def noise(nbytes: int, seed: int = 0) -> bytes:
    """A checkpoint that cannot be compressed."""
    rng = np.random.default_rng(seed)
    return Model({f"t{i}": rng.integers(0, 256, 1 << 20, "u1") for i in range(nbytes >> 20)}).bytes()


def check_store(directory: Path) -> list[Path]:
    """The objects there: each is what its name says, and nothing else lies about."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    for path in files:
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name
    return files


@pytest.mark.parametrize("options", ["size=4m", "size=64m,nr_inodes=4"])
def test_a_full_store(either: GitRepo, short_dir: Path, options: str) -> None:
    """No space, no inodes: add fails, names path and remedy, leaves no object; with space it works, and a checkout too."""
    with disks.mounted(short_dir / "disk", options) as disk:
        either.config("lfs.storage", str(disk))
        data = noise(12 << 20)
        either.write("m", data)
        done = either.run("add", "m", timeout_seconds=60)
        assert done.returncode != 0
        assert b"m: cannot " in done.stderr
        assert bytes(disk) in done.stderr
        assert b"remedy: free some space" in done.stderr or b"remedy: check space" in done.stderr
        assert done.stderr.count(b"theta-daemon: ") == 1
        assert check_store(disk) == []
        assert not (either.path / ".git" / "index.lock").exists()
        small = model().bytes()
        disks.remount(disk, "size=64m,nr_inodes=1000")
        either.commit("now", m=data, small=small)
        assert check_store(disk)
        for name in ("m", "small"):
            (either.path / name).unlink()
        either("checkout", "--", ".")
        assert (either.read("m"), either.read("small")) == (data, small)
        assert either.status() == ""


def test_a_full_disk(repo: GitRepo, short_dir: Path) -> None:
    """Work tree, objects and all on one disk that is full: add and checkout fail with reasons; with space both work."""
    with disks.mounted(short_dir / "disk", "size=60m") as disk:
        small = GitRepo(disk / "repo", repo.env)
        repo.clone(small.path)
        data = noise(40 << 20)
        small.write("m", data)
        done = small.run("add", "m", timeout_seconds=60)
        assert done.returncode != 0
        assert b"No space left on device" in done.stderr
        assert b"remedy: free some space" in done.stderr
        check_store(small.path / ".git" / "lfs")
        disks.remount(disk, "size=400m")
        small("add", "m")
        small("commit", "-q", "-m", "m")
        (small.path / "m").unlink()
        disks.remount(disk, "size=70m")
        done = small.run("checkout", "--", "m", timeout_seconds=60)
        assert done.returncode != 0
        disks.remount(disk, "size=400m")
        small("checkout", "--", "m")
        assert small.read("m") == data
        assert small.status() == ""


def test_a_read_only_store(either: GitRepo) -> None:
    """Nothing can be added, with path and remedy named; everything can be checked out."""
    first, second = model().bytes(), model(1).bytes()
    either.commit("first", m=first)
    (either.path / "m").unlink()
    with disks.read_only(either.path / ".git" / "lfs"):
        either("checkout", "--", "m")
        assert either.read("m") == first
        either.write("m", second)
        done = either.run("add", "m")
        assert done.returncode != 0
        assert b"m: cannot " in done.stderr
        assert b"/.git/lfs" in done.stderr
        assert b"remedy: the file system is read-only" in done.stderr
    either("add", "m")
    assert either.status() == "M  m"


def test_a_read_only_repository(either: GitRepo, short_dir: Path) -> None:
    """All that only reads works: archive, cat-file, checkout-index elsewhere, status of a touched large file."""
    large = Model({"a": np.arange(9 << 20, dtype="<f4")}).bytes()
    small = model().bytes()
    either.commit("first", m=small, large=large)
    os.utime(either.path / "large", (1, 1))
    with disks.read_only(either.path / ".git"):
        assert either("cat-file", "--filters", "HEAD:m") == small
        assert either.text("status", "--porcelain") == ""
        out = short_dir / "out"
        out.mkdir()
        either("checkout-index", "-a", f"--prefix={out}/")
        assert (out / "m").read_bytes() == small
        assert (out / "large").read_bytes() == large
        archive = either("archive", "HEAD", "m")
        member = subprocess.run(["tar", "-xO", "m"], input=archive, capture_output=True, check=True).stdout
        assert member == small
