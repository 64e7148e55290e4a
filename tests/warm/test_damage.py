"""A cache damaged in many ways: right files where the objects can be had, a clear error where not, no noise in status."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from blake3 import blake3

from tests.cli.theta import SCRIPTS
from tests.daemons import eventually
from tests.store.disks import tiny_disk
from tests.warm.machines import Machine, Origin


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    if data:
        data[len(data) // 2] ^= 1
        path.write_bytes(data)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def foreign(path: Path) -> None:
    path.write_bytes(b"\x7fELF" + os.urandom(100))


def same_size(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def exchanged(path: Path) -> None:
    """The largest entry's content under every name."""
    largest = max(path.parent.parent.glob("*/*"), key=lambda other: other.stat().st_size)
    if largest != path:
        shutil.copyfile(largest, path)


def linked(path: Path) -> None:
    target = path.parents[3] / f"outside-{path.name}"
    path.rename(target)
    path.symlink_to(target)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def removed(path: Path) -> None:
    path.unlink()


DAMAGES = [truncate, flip, empty, foreign, same_size, exchanged, linked, folder, removed]


def right(machine: Machine, origin: Origin) -> None:
    """The checkout gives the right file, says nothing of the cache, and git sees no change."""
    done = machine.checkout()
    assert done.returncode == 0, done.stderr
    assert b"theta" not in done.stderr
    assert machine.repo.read("model.st") == origin.versions[-1]
    assert machine.status() == ""


@pytest.mark.parametrize("damage", DAMAGES)
def test_every_entry_damaged(origin: Origin, damage: Callable[[Path], None]) -> None:
    """All entries damaged alike: the checkout fetches what it needs and is right; afterwards all entries are right."""
    machine = origin.machine("a", warm=True)
    names = {path.name for path in machine.entries()}
    for path in machine.entries():
        damage(path)
    right(machine, origin)
    assert {path.name for path in machine.entries()} == names
    for path in machine.entries():
        assert blake3(path.read_bytes()).hexdigest() == path.name


def test_one_large_entry_damaged(origin: Origin) -> None:
    """Only the value of several chunks: the first byte of it is not handed out before it was found out."""
    machine = origin.machine("a", warm=True)
    largest = max(machine.entries(), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[-1] ^= 0x80
    largest.write_bytes(data)
    right(machine, origin)


def test_damaged_and_offline_is_a_clear_error(origin: Origin) -> None:
    """Neither the entry nor its object can be had: an error that names file, parameter and remedy; nothing is written."""
    machine = origin.machine("a", warm=True)
    machine.forget()
    origin.hide()
    flip(max(machine.entries(), key=lambda path: path.stat().st_size))
    done = machine.checkout()
    assert done.returncode != 0
    for part in (b"model.st", b"'embed'", b"object ", b"remedy"):
        assert part in done.stderr
    assert not (machine.repo.path / "model.st").exists()


def test_others_entries(origin: Origin) -> None:
    """Another user's cache, whose entries may not be read nor its folders written: rebuilt, silently."""
    setpriv = shutil.which("setpriv")
    if os.geteuid() != 0 or setpriv is None:
        pytest.skip("needs root, to give files away and to do without its powers")
    machine = origin.machine("a", warm=True)
    for path in (machine.cache, *machine.cache.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o600)
        os.chown(path, 12345, 12345)
    (machine.repo.path / "model.st").unlink()
    powerless = [setpriv, "--bounding-set=-dac_override,-dac_read_search,-fowner"]
    done = subprocess.run(
        [*powerless, "git", "checkout", "--", "model.st"],
        cwd=machine.repo.path,
        env={**os.environ, **machine.repo.env},
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"theta" not in done.stderr
    assert machine.repo.read("model.st") == origin.versions[-1]
    assert (machine.repo.path / ".git" / "lfs" / "objects").is_dir()
    assert all(path.stat().st_uid == 12345 for path in machine.entries())


def test_a_read_only_cache(origin: Origin) -> None:
    """A cache on a read-only file system serves what is right in it, and what is not is rebuilt each time."""
    machine = origin.machine("a")
    with tiny_disk(origin.top / "disk", "32m"):
        place = origin.top / "disk" / "cache"
        machine.warm("--cache-dir", str(place))
        flip(max(place.glob("v1/*/*"), key=lambda path: path.stat().st_size))
        subprocess.run(["mount", "-o", "remount,ro", origin.top / "disk"], check=True)
        machine.forget()
        for _ in range(2):
            done = machine.checkout(env={"THETA_CACHE_DIR": str(place)})
            assert done.returncode == 0, done.stderr
            assert machine.repo.read("model.st") == origin.versions[-1]
        report = machine.warm("--cache-dir", str(place), status=1)
        assert "space" in report["failed"][next(iter(report["failed"]))]


def test_a_full_disk(origin: Origin) -> None:
    """No space for the cache: warming says so and fails, checkouts are right all the same."""
    machine = origin.machine("a")
    with tiny_disk(origin.top / "disk", "1m"):
        place = origin.top / "disk" / "cache"
        report = machine.warm("--cache-dir", str(place), status=1)
        assert "could not be kept" in next(iter(report["failed"].values()))
        done = machine.checkout(env={"THETA_CACHE_DIR": str(place)})
        assert done.returncode == 0, done.stderr
        assert machine.repo.read("model.st") == origin.versions[-1]
        assert not list(place.rglob("*.tmp"))


def warming(machine: Machine, *args: str) -> subprocess.Popen[bytes]:
    """A warmer that runs beside the test."""
    path = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(
        [SCRIPTS / "git-theta", "warm", *args],
        cwd=machine.repo.path,
        env={**os.environ, **machine.repo.env, "PATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_two_warmers_at_once(origin: Origin) -> None:
    """Two processes warm the same revisions into one folder at once: both succeed, each value is there once, and right."""
    machine = origin.machine("a", whole=True)
    both = [warming(machine, "--depth", "6") for _ in range(2)]
    for process in both:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, (out, err)
    assert not list(machine.cache.rglob("*.tmp"))
    machine.forget()
    origin.hide()
    right(machine, origin)
    report = machine.warm("--depth", "6", "--offline")
    assert report["tensors_built"] == 0


def test_a_killed_warmer(origin: Origin) -> None:
    """kill -9 as soon as the first entries are there: no noise, nothing wrong, and the next one does only the rest."""
    machine = origin.machine("a", whole=True)
    process = warming(machine, "--depth", "6")
    eventually(lambda: len(machine.entries()) >= 3 or process.poll() is not None, "entries appear")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    right(machine, origin)
    report = machine.warm("--depth", "6")
    assert report["tensors_there"] >= 3
    assert report["files_warm"] == 6
    machine.forget()
    origin.hide()
    right(machine, origin)


def test_removed_while_in_use(origin: Origin) -> None:
    """The folder is deleted again and again while files are checked out: every one of them is right."""
    machine = origin.machine("a", whole=True)
    for _ in range(3):
        machine.warm()
        (machine.repo.path / "model.st").unlink(missing_ok=True)
        with subprocess.Popen(
            ["git", "checkout", "--", "model.st"], cwd=machine.repo.path, env={**os.environ, **machine.repo.env}
        ) as checkout:
            while checkout.poll() is None:
                shutil.rmtree(machine.cache, ignore_errors=True)
        assert checkout.returncode == 0
        assert machine.repo.read("model.st") == origin.versions[-1]
