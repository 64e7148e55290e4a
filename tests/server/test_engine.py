"""The whole of it: the launcher as installed, the daemon with the real engine, git."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from tests.daemons import eventually
from tests.gitrepo import GitRepo
from theta_daemon import launcher
from theta_daemon.server import admin


@pytest.fixture
def installed(git: GitRepo, short_dir: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> GitRepo:
    """A repository with the filter configured, and daemons allowed."""
    monkeypatch.delenv("THETA_DAEMON")
    monkeypatch.setenv("THETA_IDLE_SECONDS", "30")
    monkeypatch.delenv("CI", raising=False)
    git.config("filter.theta.process", launcher.process_command(launcher.write_launcher(short_dir / "bin")))
    git.config("filter.theta.required", "true")
    git.write(".gitattributes", b"*.safetensors filter=theta -text\n")
    return git


def checkpoint(seed: int) -> bytes:
    """A safetensors file of one small tensor."""
    data = bytes((seed * index) & 0xFF for index in range(4096))
    header = b'{"w":{"dtype":"F32","shape":[1024],"data_offsets":[0,4096]}}'
    return struct.pack("<Q", len(header)) + header + data


def served() -> int:
    """Sessions that the daemon has served."""
    return sum(daemon.report["sessions_served"] for daemon in admin.status(os.environb))


def test_the_daemon_serves_git(installed: GitRepo) -> None:
    """Cold: in-process, and a daemon for the next. Warm: the daemon. Either way the bytes come back, status is silent."""
    versions = [checkpoint(seed) for seed in (3, 5, 7)]
    for number, content in enumerate(versions):
        installed.commit(str(number), **{"m.safetensors": content})
        eventually(lambda: admin.status(os.environb), "a daemon is there")
    before = served()
    for revision, content in (("HEAD~2", versions[0]), ("HEAD~1", versions[1]), ("HEAD", versions[2])):
        installed("checkout", revision, "--", "m.safetensors")
        assert installed.read("m.safetensors") == content
    eventually(lambda: served() >= before + 3, "the daemon served them")
    assert installed.status() == ""
    (daemon,) = admin.status(os.environb)
    assert daemon.report["host"]["counters"]


def test_never_in_the_configuration_is_respected(installed: GitRepo) -> None:
    """theta.daemon=never for one repository: the daemon declines it, and the result is the same."""
    admin.start(os.environb)
    installed.config("theta.daemon", "never")
    installed.commit("one", **{"m.safetensors": checkpoint(3)})
    (installed.path / "m.safetensors").unlink()
    installed("checkout", "--", "m.safetensors")
    assert installed.read("m.safetensors") == checkpoint(3)
    assert served() == 0


def test_two_work_trees_and_one_daemon(installed: GitRepo, short_dir: Path) -> None:
    """GIT_DIR and GIT_WORK_TREE of each caller count for that caller alone."""
    admin.start(os.environb)
    other = GitRepo(short_dir / "other")
    other.path.mkdir()
    env = {"GIT_DIR": str(short_dir / "other.git"), "GIT_WORK_TREE": str(other.path)}
    other("init", "-q", env=env)
    for key in ("filter.theta.process", "filter.theta.required"):
        other("config", key, installed.text("config", key), env=env)
    other.write(".gitattributes", b"*.safetensors filter=theta -text\n")
    for number, (repo, variables) in enumerate([(installed, {}), (other, env), (installed, {}), (other, env)]):
        repo.write(f"{number}.safetensors", checkpoint(number + 11))
        repo("add", "-A", env=variables, cwd=repo.path)
    for folder in (installed.path / ".git", short_dir / "other.git"):
        objects = [path for path in (folder / "lfs" / "objects").rglob("*") if path.is_file()]
        assert len(objects) >= 2
    assert served() >= 4
