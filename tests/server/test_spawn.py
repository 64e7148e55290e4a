"""Starting a daemon: nobody waits, at most one comes up, and it holds nothing of whoever started it."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import psutil

from tests.daemons import eventually
from tests.server.site import Site
from theta_daemon.server import spawn


def test_sixteen_at_once(site: Site) -> None:
    """Sixteen clients, no daemon: sixteen successes, and at most one daemon in the end."""
    os.environ["THETA_IDLE_SECONDS"] = "60"
    site.repo.write("a.bin", b"ONE")
    commands = [
        subprocess.Popen(
            ["git", "hash-object", "a.bin"], cwd=site.repo.path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(16)
    ]
    expected = site.repo("hash-object", "--stdin", data=b"one")
    for command in commands:
        out, err = command.communicate(timeout=120)
        assert (command.returncode, out, err) == (0, expected, b"")
    site.wait_for_socket()
    eventually(lambda: len(site.daemons()) == 1, "the losers of the race have gone")


def test_the_daemon_stands_alone(site: Site) -> None:
    """cwd is /, own session, standard descriptors on /dev/null, no other inherited one, nothing of GIT_* inside."""
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    site.repo.write("a.bin", b"ONE")
    subprocess.run(
        ["git", "add", "-A"],
        cwd=site.repo.path,
        env={**os.environ, "GIT_INDEX_FILE": ".git/other", "RUNNER_TRACKING_ID": "github_1"},
        pass_fds=[writer],
        check=True,
    )
    site.wait_for_socket()
    os.close(writer)
    assert os.read(reader, 1) == b""  # nobody has the other end any more
    os.close(reader)
    (daemon,) = site.daemons()
    assert daemon.cwd() == "/"
    assert os.getsid(daemon.pid) == daemon.pid
    environ = daemon.environ()
    assert not [name for name in environ if name.startswith("GIT_")]
    assert environ["RUNNER_TRACKING_ID"] == "github_1"
    site.repo("add", "-A")
    assert daemon.cwd() == "/"
    for number in (0, 1, 2):
        assert os.readlink(f"/proc/{daemon.pid}/fd/{number}") == "/dev/null"


def test_nobody_waits_for_a_cold_start(site: Site) -> None:
    """`out=$(git …)` and `git … 2>&1 | cat` return while the daemon that they started is still coming up."""
    os.environ["SLOW_START"] = "6"
    site.repo.write("a.bin", b"ONE")
    before = time.monotonic()
    script = 'out=$(git add -A 2>&1); git add -A 2>&1 | cat; echo "<$out>"'
    done = subprocess.run(["sh", "-c", script], cwd=site.repo.path, capture_output=True, check=True)
    assert time.monotonic() - before < 5
    assert done.stdout == b"<>\n"
    assert site.daemons()
    assert not os.path.exists(site.place().socket)


def test_nobody_starts_a_second_one_meanwhile(site: Site) -> None:
    """While a daemon is coming up, further commands start none."""
    os.environ["SLOW_START"] = "30"
    site.repo.write("a.bin", b"ONE")
    site.repo("add", "-A")
    eventually(lambda: spawn.under_way(site.place().lock), "the daemon has its claim")
    before = site.daemons()
    site.repo.write("b.bin", b"ONE")
    site.repo("add", "-A")
    assert site.daemons() == before
    assert len(before) == 1


def test_the_environment_is_scrubbed() -> None:
    """Git's variables and socket activation's go, all others stay."""
    environ = {
        b"GIT_DIR": b"x",
        b"GIT_CONFIG_COUNT": b"1",
        b"LISTEN_FDS": b"1",
        b"CI": b"1",
        b"LD_PRELOAD": b"x",
        b"GITHUB_ACTIONS": b"1",
    }
    assert spawn.scrubbed(environ) == {b"CI": b"1", b"GITHUB_ACTIONS": b"1"}


def test_what_cannot_be_started_is_not_an_error(short_dir: Path) -> None:
    """A missing interpreter costs the caller nothing but the daemon."""
    assert spawn.start(str(short_dir / "python"), [], {}) is None


def test_a_limited_starter_starts_nothing_for_others(site: Site) -> None:
    """Under a hard limit of file size, or `nice`, the command works and no daemon comes of it."""
    for prefix in ("ulimit -f 100000;", "ulimit -t 1000;", "renice -n 5 $$ > /dev/null;"):
        site.repo.write("a.bin", prefix.upper().encode())
        script = f"{prefix} git add -A"
        subprocess.run(["bash", "-c", script], cwd=site.repo.path, check=True)
        eventually(lambda: site.daemons() == [], "whoever was started has gone")
        assert not os.path.exists(site.place().lock)


def test_soft_limits_and_pinned_processors_are_lifted(site: Site) -> None:
    """What the starter set for itself only is undone in the daemon."""
    script = "ulimit -S -f 100000; ulimit -S -n 100; taskset -c 0 git add -A"
    site.repo.write("a.bin", b"ONE")
    subprocess.run(["bash", "-c", script], cwd=site.repo.path, check=True)
    site.wait_for_socket()
    (daemon,) = site.daemons()
    assert daemon.rlimit(psutil.RLIMIT_FSIZE)[0] == psutil.RLIM_INFINITY
    soft, hard = daemon.rlimit(psutil.RLIMIT_NOFILE)
    assert soft == hard
    assert len(daemon.cpu_affinity() or []) == len(os.sched_getaffinity(0))
