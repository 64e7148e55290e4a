"""One file of ten cannot be rebuilt: the other nine can, and the message says what to do about the one."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.failures import forge
from tests.git.models import Model, model
from tests.gitrepo import GitRepo

NAMES = [f"m{number}" for number in range(10)]
BAD = "m4"
REMEDIES = rb"remedy: .*(git theta fetch|remove the object|add a remote)"

Damage = Callable[[Path, GitRepo], None]


def _missing(path: Path, repo: GitRepo) -> None:
    path.unlink()


def _truncated(path: Path, repo: GitRepo) -> None:
    data = path.read_bytes()
    _put(path, data[: len(data) // 2])


def _empty(path: Path, repo: GitRepo) -> None:
    _put(path, b"")


def _flipped(path: Path, repo: GitRepo) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 0x10
    _put(path, bytes(data))


def _another(path: Path, repo: GitRepo) -> None:
    other = forge.real_pointer(repo, "m5").parameters[0].object
    _put(path, forge.object_path(repo, other).read_bytes())


def _folder(path: Path, repo: GitRepo) -> None:
    path.unlink()
    path.mkdir()


def _put(path: Path, data: bytes) -> None:
    """Another file under that name, as a bad disk or a bad copy leaves one."""
    path.unlink()
    path.write_bytes(data)


@pytest.fixture
def ten(repo: GitRepo) -> dict[str, bytes]:
    """Ten checkpoints of an own pack each, each with its own values; then gone from the work tree."""
    seed = secrets.randbits(48)  # values that no other test has left in the daemon's cache
    files = {name: model(seed + number).bytes() for number, name in enumerate(NAMES)}
    repo.commit("ten", **files)
    for name in NAMES:
        (repo.path / name).unlink()
    return files


def nine_right(repo: GitRepo, files: dict[str, bytes]) -> None:
    """All files but the bad one are there, whole; the bad one is not there at all."""
    assert {name for name in NAMES if (repo.path / name).exists()} == set(NAMES) - {BAD}
    for name in NAMES:
        if name != BAD:
            assert repo.read(name) == files[name], name


def own_parameter(repo: GitRepo) -> tuple[str, str]:
    """A parameter of the bad file whose object no other file needs: its name and object."""
    others = {oid for name in NAMES if name != BAD for oid in forge.real_pointer(repo, name).objects}
    for parameter in forge.real_pointer(repo, BAD).parameters:
        if parameter.object not in others:
            return parameter.name, parameter.object
    raise AssertionError("no object of its own")


DAMAGES = [_missing, _truncated, _empty, _flipped, _another, _folder]
CASES = [("daemon", damage) for damage in DAMAGES] + [("never", _missing), ("never", _flipped)]


@pytest.mark.parametrize(("road", "damage"), CASES, indirect=["road"])
def test_nine_of_ten(repo: GitRepo, ten: dict[str, bytes], road: dict[str, str], damage: Damage) -> None:
    """Nine are written, git fails, file, parameter, object and remedy are named; after repair the next checkout is right."""
    _, oid = own_parameter(repo)
    path = forge.object_path(repo, oid)
    kept = path.read_bytes()
    damage(path, repo)
    done = repo.run("checkout", "--", ".", env=road)
    assert done.returncode != 0
    nine_right(repo, ten)
    assert BAD.encode() + b": " in done.stderr
    assert oid.encode() in done.stderr
    assert re.search(rb"parameter '[a-z0-9.]+'|skeleton", done.stderr)
    assert re.search(REMEDIES, done.stderr)
    assert done.stderr.count(b"theta-daemon: ") == 1, done.stderr.decode()
    if path.is_dir():
        path.rmdir()
    path.unlink(missing_ok=True)
    path.write_bytes(kept)
    repo("checkout", "--", ".", env=road)
    assert repo.read(BAD) == ten[BAD]
    assert repo.status() == ""


def test_an_unknown_update_type(repo: GitRepo, ten: dict[str, bytes]) -> None:
    """A pointer made with a plug-in that is not installed fails alone; parameter, type and remedy are named."""
    pointer = forge.real_pointer(repo, BAD)
    strange = replace(pointer.parameters[1], update="wavelet")
    text = replace(pointer, parameters=(pointer.parameters[0], strange, *pointer.parameters[2:])).encode()
    forge.plant(repo, **{BAD: text})
    done = repo.run("checkout", "--", ".")
    assert done.returncode != 0
    nine_right(repo, ten)
    for word in (BAD, repr(strange.name), "'wavelet'", "remedy: install"):
        assert word.encode() in done.stderr
    repo("checkout", "-q", "HEAD~1", "--", BAD)
    assert repo.read(BAD) == ten[BAD]


def test_whole_branches(repo: GitRepo, ten: dict[str, bytes]) -> None:
    """`git switch` to a branch with one bad file of ten writes nine, fails, and works once the object is back."""
    repo("checkout", "--", ".")
    repo("switch", "-q", "-c", "other")
    changed = {name: model(secrets.randbits(48)).bytes() for name in NAMES}
    repo.commit("changed", **changed)
    _, oid = own_parameter(repo)
    path = forge.object_path(repo, oid)
    repo("switch", "-q", "main")
    kept = path.read_bytes()
    path.unlink()
    done = repo.run("switch", "other")
    assert done.returncode != 0
    assert b"remedy: " in done.stderr
    nine_right(repo, changed)
    assert not (repo.path / ".git" / "index.lock").exists()
    path.write_bytes(kept)
    repo("checkout", "-q", "-f", "other")
    assert {name: repo.read(name) for name in NAMES} == changed
    assert repo.status() == ""


def test_a_file_larger_than_what_is_proven_first(repo: GitRepo) -> None:
    """A large file that fails in the middle leaves no half of itself behind, and the small one beside it is right."""
    from theta_daemon.filters import batch

    rng = np.random.default_rng(0)
    rows = batch.PROVE_BYTES // (1 << 20) + 8
    large = Model({f"t{i}": rng.integers(0, 255, 1 << 20, "u1") for i in range(rows)})
    small = model().bytes()
    repo.commit("one", large=large.bytes(), small=small)
    last = forge.real_pointer(repo, "large").parameters[-1]
    path = forge.object_path(repo, last.object)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    _put(path, bytes(data))
    for name in ("large", "small"):
        (repo.path / name).unlink()
    done = repo.run("checkout", "--", ".", env={"THETA_DAEMON": "never"})
    assert done.returncode != 0
    assert b"large: parameter" in done.stderr
    assert last.object.encode() in done.stderr
    assert not (repo.path / "large").exists()
    assert repo.read("small") == small
