"""Checkouts on a warmed machine: the same bytes, with neither objects nor history nor remote."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.serving import start_daemon
from tests.warm.machines import Machine, Origin


def quiet(done: subprocess.CompletedProcess[bytes]) -> bool:
    """It went well, and said nothing but git's own words."""
    return done.returncode == 0 and b"theta" not in done.stderr


def test_offline_after_warming(origin: Origin) -> None:
    """Depth-1 clone, warmed, objects lost, remote gone: the checkout gives the bytes that were added, status is clean."""
    machine = origin.machine("a", warm=True)
    machine.forget()
    origin.hide()
    assert quiet(machine.checkout())
    assert machine.repo.read("model.st") == origin.versions[-1]
    assert machine.status() == ""
    assert not list((machine.repo.path / ".git" / "lfs").rglob("*"))


def test_any_warmed_revision_is_there_whatever_its_depth(origin: Origin) -> None:
    """All six versions of a chain warmed at once: each comes back offline, from a clone whose objects are gone."""
    machine = origin.machine("a", whole=True)
    report = machine.warm("--depth", "6")
    assert (report["files"], report["files_warm"]) == (6, 6)
    machine.forget()
    origin.hide()
    for back, version in enumerate(reversed(origin.versions)):
        done = machine.repo.run("checkout", "-f", f"HEAD~{min(back, 1)}")
        assert quiet(done), done.stderr
        assert quiet(machine.checkout())
        assert machine.repo.read("model.st") == version


def test_the_daemon_uses_a_cache_that_another_job_filled(
    origin: Origin, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A daemon that ran before the cache was made, with another HOME, reads the caller's cache: no blob, no object."""
    monkeypatch.setenv("CI", "1")
    monkeypatch.setenv("THETA_IDLE_SECONDS", "600")
    start_daemon(runtime_dir)
    machine = origin.machine("a", warm=True)
    machine.forget()
    origin.hide()
    env = {"THETA_DAEMON": "auto"}

    def counters() -> dict[str, int]:
        (daemon,) = json.loads(machine.theta("daemon", "status", "--json", env=env).stdout)
        found: dict[str, int] = daemon["host"]["counters"]
        return found

    before = counters()
    assert quiet(machine.checkout(env=env))
    after = counters()
    assert machine.repo.read("model.st") == origin.versions[-1]
    assert after.get("disk_cache.hits", 0) > before.get("disk_cache.hits", 0)
    for name in ("blobs_read", "fetch.rounds", "updates_decoded"):
        assert after.get(name, 0) == before.get(name, 0), name


def test_a_cache_saved_by_one_machine_serves_another(origin: Origin) -> None:
    """The folder copied as an archive to another HOME and path, with other owners and times, serves there."""
    one, other = origin.machine("a", warm=True), origin.machine("b")
    archive = origin.top / "cache.tar"
    subprocess.run(["tar", "-C", one.cache, "-cf", archive, "."], check=True)
    place = other.home / "restored"
    place.mkdir()
    subprocess.run(["tar", "-C", place, "-xf", archive, "--no-same-owner", "--touch"], check=True)
    origin.hide()
    assert quiet(other.checkout(env={"THETA_CACHE_DIR": str(place)}))
    assert other.repo.read("model.st") == origin.versions[-1]


def test_checkouts_fill_a_configured_cache(origin: Origin) -> None:
    """With theta.cacheDir set a plain checkout leaves its values there, and the next one needs nothing else."""
    machine = origin.machine("a")
    machine.repo.config("theta.cacheDir", str(machine.cache))
    assert quiet(machine.checkout())
    machine.forget()
    origin.hide()
    assert quiet(machine.checkout())
    assert machine.repo.read("model.st") == origin.versions[-1]


def test_without_a_cache_nothing_is_written(origin: Origin) -> None:
    """Nobody asked for a cache: a checkout makes none, and theta.diskCache=0 keeps it off even where one is."""
    machine = origin.machine("a")
    assert quiet(machine.checkout())
    assert not machine.cache.exists()
    machine.warm()
    machine.repo.config("theta.diskCache", "0")
    machine.forget()
    origin.hide()
    assert machine.checkout().returncode != 0


@pytest.mark.parametrize("reading", ["true", "false"])
def test_a_compressed_cache(origin: Origin, reading: str) -> None:
    """Compressed entries are smaller and give the same bytes, whatever the reader's own setting."""
    raw, small = origin.machine("a", warm=True), origin.machine("b")
    small.warm(env={"THETA_CACHE_COMPRESSION": "true"})
    sizes = [sum(path.stat().st_size for path in machine.entries()) for machine in (raw, small)]
    assert sizes[1] < 0.95 * sizes[0]
    small.forget()
    origin.hide()
    assert quiet(small.checkout(env={"THETA_CACHE_COMPRESSION": reading}))
    assert small.repo.read("model.st") == origin.versions[-1]


def test_a_partly_warmed_checkout_fetches_only_what_it_lacks(origin: Origin) -> None:
    """A cache of the version before: the checkout rebuilds what has changed, on top of what the cache has."""
    machine = origin.machine("a", whole=True)
    machine.warm("HEAD~1")
    machine.forget()
    assert quiet(machine.checkout())
    assert machine.repo.read("model.st") == origin.versions[-1]
    fetched = [path for path in (machine.repo.path / ".git" / "lfs" / "objects").rglob("*") if path.is_file()]
    everything = [path for path in (origin.repo.path / ".git" / "lfs" / "objects").rglob("*") if path.is_file()]
    assert 0 < sum(path.stat().st_size for path in fetched) < 0.1 * sum(path.stat().st_size for path in everything)


def test_values_that_two_repositories_share(origin: Origin) -> None:
    """What one repository's checkouts left in the user's cache serves another repository with the same values."""
    machine = origin.machine("a", warm=True)
    shutil.copytree(machine.repo.path, machine.repo.path.with_name("twin"))
    twin = Machine(
        type(machine.repo)(machine.repo.path.with_name("twin"), machine.repo.env), machine.home, machine.served
    )
    twin.forget()
    origin.hide()
    assert quiet(twin.checkout())
    assert twin.repo.read("model.st") == origin.versions[-1]
