"""SIGKILL of the daemon, of the client and of git, in the middle of real work: nothing hangs, nothing is half there."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import psutil
import pytest

from tests.daemons import eventually
from tests.failures.victims import Victim, client_of, ended, sessions
from tests.git.models import Model, model
from theta_daemon.filters.batch import PROVE_BYTES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="work in progress is seen in /proc")

ROWS = 12
"""Tensors of 4 MiB in a file that takes a while."""


def large(seed: int) -> bytes:
    """Values that cannot be compressed."""
    rng = np.random.default_rng(seed)
    return Model({f"t{i}": rng.integers(0, 1 << 32, 1 << 20, "<u4").view("<f4") for i in range(ROWS)}).bytes()


def monotonous() -> bytes:
    """A file that is quickly stored, and larger than what is proven before it is handed to git."""
    return Model({f"t{i}": np.full(1 << 20, i, "<f4") for i in range(PROVE_BYTES // (1 << 22) + 2)}).bytes()


def has_read(git: subprocess.Popen[bytes], nbytes: int = 12 << 20) -> bool:
    """Whether git has so much of a file in its memory."""
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(git.pid).memory_info().rss > nbytes)
    return False


Aim = Callable[[Victim, "subprocess.Popen[bytes]"], psutil.Process]
"""Whom to kill; found before the moment comes."""


def at_daemon(victim: Victim, git: subprocess.Popen[bytes]) -> psutil.Process:
    (daemon,) = victim.daemons()
    return daemon


def at_client(victim: Victim, git: subprocess.Popen[bytes]) -> psutil.Process:
    return client_of(git)


def at_git(victim: Victim, git: subprocess.Popen[bytes]) -> psutil.Process:
    return psutil.Process(git.pid)


AIMS = [at_daemon, at_client, at_git]


def check_end(victim: Victim, git: subprocess.Popen[bytes], aim: Aim) -> None:
    """The command fails soon, and says what to do if it can; what is stored is whole; the daemon is free again."""
    status, stderr = ended(git)
    assert status != 0
    if aim is at_daemon:
        assert b"run the command again" in stderr
    victim.objects_are_whole()
    if aim is not at_daemon:
        eventually(lambda: sessions(victim) == 0, "the daemon has given up the session")
        eventually(lambda: not victim.temporaries(), "unfinished objects are gone")
    if aim is at_git:
        (victim.repo.path / ".git" / "index.lock").unlink(missing_ok=True)  # as git itself asks its user to


@pytest.mark.parametrize("aim", AIMS)
def test_in_clean(victim: Victim, aim: Aim) -> None:
    """While objects are being written: no partial one under a final name, and adding again stores the file."""
    data = large(1)
    victim.repo.write("m", data)
    with victim.running("add", "m") as git:
        target = aim(victim, git)
        eventually(victim.temporaries, "an object is being written")
        target.kill()
        check_end(victim, git, aim)
    victim.repo("add", "m")
    victim.repo("commit", "-q", "-m", "m")
    (victim.repo.path / "m").unlink()
    victim.repo("checkout", "--", "m")
    assert victim.repo.read("m") == data
    assert victim.repo.status() == ""


@pytest.mark.parametrize("aim", AIMS)
def test_in_smudge(victim: Victim, aim: Aim) -> None:
    """While git reads a file's content: the file is not there, or it is whole; checking out again makes it right."""
    data = large(2)
    victim.repo.commit("m", m=data)
    (victim.repo.path / "m").unlink()
    with victim.running("checkout", "--", "m") as git:
        target = aim(victim, git)
        eventually(lambda: has_read(git), "git has a part of the file")
        target.kill()
        check_end(victim, git, aim)
    assert not (victim.repo.path / "m").exists()
    victim.repo("checkout", "--", "m")
    assert victim.repo.read("m") == data
    assert victim.repo.status() == ""


@pytest.mark.parametrize("aim", AIMS)
def test_between_rounds(victim: Victim, aim: Aim) -> None:
    """When some files of a batch are written and others are not: those that are there are whole; again, and all are."""
    repo = victim.repo
    files = {"a": model().bytes(), "b": monotonous(), "c": model(1).bytes()}
    repo("switch", "-q", "-c", "models")
    repo.commit("models", **files)
    repo("switch", "-q", "main")
    with victim.running("switch", "models") as git:
        target = aim(victim, git)
        eventually((repo.path / "c").exists, "the small files are written")
        target.kill()
        check_end(victim, git, aim)
    assert repo.read("a") == files["a"]
    assert not (repo.path / "b").exists()
    repo("switch", "-q", "-f", "models")
    assert {name: repo.read(name) for name in files} == files
    assert repo.status() == ""
