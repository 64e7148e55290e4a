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
def test_a_full_store(repo: GitRepo, road: dict[str, str], short_dir: Path, options: str) -> None:
    """No space, no inodes: add fails, names path and remedy, leaves no object; with space it works, and a checkout too."""
    with disks.mounted(short_dir / "disk", options) as disk:
        repo.config("lfs.storage", str(disk))
        data = noise(12 << 20)
        repo.write("m", data)
        done = repo.run("add", "m", env=road, timeout_seconds=60)
        assert done.returncode != 0
        assert b"m: cannot " in done.stderr
        assert bytes(disk) in done.stderr
        assert b"remedy: free some space" in done.stderr or b"remedy: check space" in done.stderr
        assert done.stderr.count(b"theta-daemon: ") == 1
        assert check_store(disk) == []
        assert not (repo.path / ".git" / "index.lock").exists()
        small = model().bytes()
        disks.remount(disk, "size=64m,nr_inodes=1000")
        repo.commit("now", m=data, small=small)
        assert check_store(disk)
        for name in ("m", "small"):
            (repo.path / name).unlink()
        repo("checkout", "--", ".")
        assert (repo.read("m"), repo.read("small")) == (data, small)
        assert repo.status() == ""


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


def test_a_read_only_store(repo: GitRepo, road: dict[str, str]) -> None:
    """Nothing can be added, with path and remedy named; everything can be checked out."""
    first, second = model().bytes(), model(1).bytes()
    repo.commit("first", m=first)
    (repo.path / "m").unlink()
    with disks.read_only(repo.path / ".git" / "lfs"):
        repo("checkout", "--", "m", env=road)
        assert repo.read("m") == first
        repo.write("m", second)
        done = repo.run("add", "m", env=road)
        assert done.returncode != 0
        assert b"m: cannot " in done.stderr
        assert b"/.git/lfs" in done.stderr
        assert b"remedy: the file system is read-only" in done.stderr
    repo("add", "m")
    assert repo.status() == "M  m"


def test_a_read_only_repository(repo: GitRepo, road: dict[str, str], short_dir: Path) -> None:
    """All that only reads works: archive, cat-file, checkout-index elsewhere, status of a touched large file."""
    large = Model({"a": np.arange(9 << 20, dtype="<f4")}).bytes()
    small = model().bytes()
    repo.commit("first", m=small, large=large)
    os.utime(repo.path / "large", (1, 1))
    with disks.read_only(repo.path / ".git"):
        assert repo("cat-file", "--filters", "HEAD:m", env=road) == small
        assert repo.text("status", "--porcelain", env=road) == ""
        out = short_dir / "out"
        out.mkdir()
        repo("checkout-index", "-a", f"--prefix={out}/", env=road)
        assert (out / "m").read_bytes() == small
        assert (out / "large").read_bytes() == large
        archive = repo("archive", "HEAD", "m", env=road)
        member = subprocess.run(["tar", "-xO", "m"], input=archive, capture_output=True, check=True).stdout
        assert member == small
