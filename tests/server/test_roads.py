"""The two roads of a session: through the daemon, and in-process when there is none that wants to."""

from __future__ import annotations

import os
import subprocess

from tests.daemons import eventually
from tests.server.site import Site


def test_with_a_daemon_the_daemon_serves(site: Site) -> None:
    """add, status and checkout go through one daemon, which writes to git itself; the client exits with its status."""
    daemon = site.start()
    site.repo.write("a.bin", b"ONE")
    site.repo.commit("one")
    assert site.repo.blob("a.bin") == b"one"
    (site.repo.path / "a.bin").unlink()
    site.repo("checkout", "--", "a.bin")
    assert site.repo.read("a.bin") == b"ONE"
    assert set(site.servers()) == {daemon.pid}


def test_without_a_daemon_the_client_becomes_the_filter(site: Site) -> None:
    """No daemon, none to be started: same result, served by the client's own process."""
    os.environ["CI"] = "1"
    site.repo.write("a.bin", b"ONE")
    site.repo.commit("one")
    assert site.repo.blob("a.bin") == b"one"
    assert site.servers()
    assert site.daemons() == []


def test_no_daemon_is_started_in_ci_but_for_always(site: Site) -> None:
    """`CI` set: no daemon after the command; THETA_DAEMON=always: the user wants it there too."""
    os.environ["CI"] = "true"
    site.repo.commit("one", **{"a.bin": b"ONE"})
    assert site.daemons() == []
    os.environ["THETA_DAEMON"] = "always"
    site.repo.commit("two", **{"a.bin": b"TWO"})
    site.wait_for_socket()
    assert len(site.daemons()) == 1


def test_never_means_never(site: Site) -> None:
    """THETA_DAEMON=never: a daemon that is there is not used, and none is started."""
    daemon = site.start()
    os.environ["THETA_DAEMON"] = "never"
    site.repo.commit("one", **{"a.bin": b"ONE"})
    assert daemon.pid not in site.servers()
    assert site.servers()


def test_a_daemon_is_started_for_the_next_command(site: Site) -> None:
    """The first command serves itself and starts a daemon, the next one finds it."""
    site.repo.write("a.bin", b"ONE")
    site.repo("add", "a.bin")
    first = set(site.servers())
    site.wait_for_socket()
    (daemon,) = site.daemons()
    assert daemon.pid not in first
    site.repo.write("a.bin", b"TWO")
    site.repo("add", "a.bin")
    assert daemon.pid in site.servers()


def test_a_declined_caller_serves_itself(site: Site) -> None:
    """A daemon that has a reason not to (the caller's configuration says never) leaves the pipes untouched."""
    daemon = site.start()
    os.environ["DECLINE"] = "theta.daemon is never"
    site.repo.commit("one", **{"a.bin": b"ONE"})
    assert site.repo.blob("a.bin") == b"one"
    assert daemon.pid not in site.servers()


def test_the_session_sees_its_caller(site: Site) -> None:
    """cwd, umask and environment in the invocation are the caller's, not the daemon's."""
    site.start()
    subprocess.run(
        ["sh", "-c", "umask 027; exec git add -A"],
        cwd=site.repo.path,
        env={**os.environ, "MARKER": "Grüße = \udcff\n"},
        check=True,
    )
    site.repo.write("a.bin", b"ONE")
    subprocess.run(
        ["sh", "-c", "umask 027; exec git add -A"], cwd=site.repo.path, env={**os.environ, "MARKER": "mine"}, check=True
    )
    told = f"{site.repo.path} 27 mine"
    eventually(lambda: any(told in line for line in site.trace()), f"{told!r} is told")


def test_a_failing_session_fails_the_command(site: Site) -> None:
    """A fault of the host is told on the user's stderr, git fails, and the daemon lives."""
    daemon = site.start()
    site.repo.write("a.bin", b"ONE")
    done = site.repo.run("add", "-A", env={"EXPLODE": "1"})
    assert done.returncode == 128
    assert b"internal error" in done.stderr
    site.repo("add", "-A")
    assert daemon.pid in site.servers()
