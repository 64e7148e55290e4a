"""What `git theta daemon` does, around the real daemon with the real engine."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from tests.daemons import alive, daemons, eventually
from tests.server.site import Site
from theta_daemon.runtime import Place
from theta_daemon.server import admin, listener, spawn


@pytest.fixture
def environ(runtime_dir: Path) -> dict[bytes, bytes]:
    """A caller's environment with a place of its own; the daemon idles out after a while."""
    return {**os.environb, b"THETA_DAEMON": b"auto", b"THETA_IDLE_SECONDS": b"30"}


def test_start_status_restart_stop(environ: dict[bytes, bytes], runtime_dir: Path) -> None:
    """Start waits until it serves; start again finds it; status knows it; restart is another; stop leaves none."""
    assert admin.status(environ) == []
    started = admin.start(environ)
    assert started.current
    assert started.report["state"] == "serving"
    assert admin.start(environ).report["pid"] == started.report["pid"]
    (daemon,) = admin.status(environ)
    report = daemon.report
    assert report["pid"] == started.report["pid"]
    assert report["sessions"] == 0
    assert report["uptime_seconds"] >= 0
    assert report["resident_bytes"] > 1 << 20
    assert report["idle_seconds"] == 30
    assert "tensor_cache" in report["host"]
    again = admin.restart(environ)
    assert again.report["pid"] != report["pid"]
    (process,) = daemons(THETA_RUNTIME_DIR=str(runtime_dir))
    assert admin.stop(environ) == 1
    assert admin.status(environ) == []
    claim = listener.claim(admin.current_places(environ), os.geteuid())
    assert claim is not None, "stop returned before the lock was free"
    claim.close()
    eventually(lambda: not alive(process), "it has ended")
    assert admin.stop(environ) == 0
    assert "serving at" in admin.logs(environ)


def test_stop_waits_for_sessions_and_now_does_not(site: Site) -> None:
    """A session that goes on keeps `stop` waiting, up to a limit; `now` ends it."""
    site.start()
    client = site.client()
    eventually(lambda: site.servers() or _adopted(site), "a session runs")
    with pytest.raises(admin.DaemonError, match="busy"):
        admin.stop(os.environb, timeout_seconds=0.3)
    (daemon,) = admin.status(os.environb)
    assert (daemon.report["state"], daemon.report["sessions"]) == ("draining", 1)
    before = time.monotonic()
    assert admin.stop(os.environb, now=True) == 1
    assert time.monotonic() - before < 10
    client.communicate(timeout=20)
    assert client.returncode != 0


def _adopted(site: Site) -> bool:
    return any(daemon.report["sessions"] for daemon in admin.status(os.environb))


def test_stop_reaches_a_daemon_that_is_coming_up(site: Site) -> None:
    """It cannot hear yet, but holds its claim: stop waits for it and then ends it."""
    site.launch(SLOW_START="1.5")
    eventually(lambda: spawn.under_way(site.place().lock), "it has its claim")
    assert admin.status(os.environb) == []
    assert admin.stop(os.environb) == 1
    eventually(lambda: site.daemons() == [], "it has ended")


def test_a_daemon_of_another_build_is_found_and_stopped(site: Site) -> None:
    """After an upgrade the old daemon is still this user's: status shows it as not current, stop ends it."""
    site.start()
    old = site.place()
    other = Place(old.directory, "0" * 16)
    os.rename(old.lock, other.lock)
    os.rename(old.socket, other.socket)
    (found,) = admin.status(os.environb)
    assert not found.current
    assert found.report["build"] == old.build
    assert admin.stop(os.environb) == 1
    assert site.daemons() == []


def test_strangers_in_the_directory_are_passed_over(environ: dict[bytes, bytes], runtime_dir: Path) -> None:
    """Dead sockets, mute listeners that hang up, other files: no daemon, no error."""
    (runtime_dir / "v1-file").touch()
    dead = socket.socket(socket.AF_UNIX)
    dead.bind(str(runtime_dir / "v1-dead"))
    dead.close()
    (runtime_dir / "v1-dead.lock").touch()
    assert admin.status(environ) == []
    assert admin.stop(environ) == 0


def test_a_daemon_that_may_not_be_is_told(environ: dict[bytes, bytes], clean_environment: Path) -> None:
    """theta.daemon=never in the user's configuration: start says that it ended, and where to read why."""
    with (clean_environment / ".gitconfig").open("a") as file:
        file.write("[theta]\n\tdaemon = never\n")
    environ[b"THETA_DAEMON"] = b""
    with pytest.raises(admin.DaemonError):
        admin.start(environ)
    assert "never" in admin.logs(environ)
