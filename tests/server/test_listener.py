"""The claim and the socket: one truth (a kernel lock), one inode, one path from birth."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.daemons import alive, eventually
from tests.server.site import FLAGS, Site
from theta_daemon import runtime
from theta_daemon.server import listener

UID = os.geteuid()


def place_in(directory: Path) -> runtime.Place:
    return runtime.Place(os.fsencode(directory / "run"), "0123456789abcdef")


def test_a_killed_daemon_leaves_nothing_to_be_wrong_about(site: Site) -> None:
    """kill -9: the next command works at once, and a new daemon takes the place of the dead one's socket."""
    first = site.start()
    first.kill()
    eventually(lambda: not alive(first), "the daemon is dead")
    assert os.path.exists(site.place().socket)
    os.environ["CI"] = "1"
    site.repo.commit("one", **{"a.bin": b"ONE"})
    assert site.repo.blob("a.bin") == b"one"
    del os.environ["CI"]
    site.repo.commit("two", **{"a.bin": b"TWO"})
    eventually(lambda: len(site.daemons()) == 1, "a new daemon")
    (second,) = site.daemons()

    def used() -> bool:
        site.repo.commit("more", **{"a.bin": os.urandom(8).hex().upper().encode()})
        return site.servers()[-1] == second.pid

    eventually(used, "the new daemon is used")


def test_one_claim_at_a_time(short_dir: Path) -> None:
    """The second to claim a place gets none, until the first lets go."""
    place = place_in(short_dir)
    first = listener.claim([place], UID)
    assert first is not None
    assert listener.claim([place], UID) is None
    first.close()
    second = listener.claim([place], UID)
    assert second is not None
    second.close()


def test_a_lock_that_was_swept_away_is_no_lock(short_dir: Path) -> None:
    """Who gets the lock of an unlinked file takes the new file instead."""
    place = place_in(short_dir)
    claim = listener.claim([place], UID)
    assert claim is not None
    os.unlink(place.lock)
    again = listener.lock_file(place)
    assert again is not None
    assert os.fstat(again).st_ino == os.stat(place.lock).st_ino
    os.close(again)
    claim.close()


def test_dead_builds_are_swept_up_and_living_ones_are_not(short_dir: Path) -> None:
    """What a dead daemon of another build left goes; the files of one that lives stay."""
    dead, living = (runtime.Place(os.fsencode(short_dir / "run"), build) for build in ("d" * 16, "e" * 16))
    for place in (dead, living):
        claim = listener.claim([place], UID)
        assert claim is not None
        listener.bind(place).close()
        if place is dead:
            claim.close()
        else:
            keeper = claim
    mine = listener.claim([place_in(short_dir)], UID)
    assert mine is not None
    listener.sweep(mine)
    names = {name.decode() for name in os.listdir(place.directory)}
    assert names == {f"v1-{'e' * 16}", f"v1-{'e' * 16}.lock", "v1-0123456789abcdef.lock"}
    mine.close()
    keeper.close()


def test_a_daemon_whose_directory_is_gone_goes(site: Site) -> None:
    """Nobody can find it any more, so it ends within a tick."""
    daemon = site.start()
    shutil.rmtree(site.runtime)
    eventually(lambda: not alive(daemon), "the daemon has gone", 30)


def test_a_stolen_socket_is_not_unlinked(site: Site) -> None:
    """Another's socket at our path: the daemon drains and leaves it there."""
    daemon = site.start()
    path = site.place().socket
    os.unlink(path)
    with socket.socket(socket.AF_UNIX) as thief:
        thief.bind(path)
        inode = os.stat(path).st_ino
        eventually(lambda: not alive(daemon), "the daemon has gone", 30)
        assert os.stat(path).st_ino == inode


def test_the_kernel_knows_the_socket_by_its_path(site: Site) -> None:
    """systemd-tmpfiles deletes sockets from /tmp whose path is not in /proc/net/unix; and it spares locked folders."""
    site.start()
    path = os.fsdecode(site.place().socket)
    listening = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()]
    assert path in listening
    taken = subprocess.run(["flock", "-n", "-x", str(site.runtime), "true"], check=False)
    assert taken.returncode != 0


def test_socket_activation(site: Site) -> None:
    """A listening socket from systemd: served, never bound or unlinked, its variables not passed on."""
    site.runtime.mkdir(exist_ok=True)
    path = site.place().socket
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen(8)
        # exec keeps the pid, so that LISTEN_PID can be known before the daemon starts
        script = 'exec env LISTEN_PID=$$ LISTEN_FDS=1 "$@" 3<&"$FD"'
        daemon = subprocess.Popen(
            ["bash", "-c", script, "-", sys.executable, *FLAGS, "-m", "theta_daemon.server"],
            env={**os.environ, "FD": str(listening.fileno()), "THETA_IDLE_SECONDS": "0.5"},
            pass_fds=[listening.fileno()],
        )
        site.repo.commit("one", **{"a.bin": b"ONE"})
        assert set(site.servers()) == {daemon.pid}
        assert daemon.wait(20) == 0  # idle: and nothing is lost by it
        assert os.path.exists(path)
        client = site.client({"THETA_DAEMON": "auto"})
        again = subprocess.Popen(
            ["bash", "-c", script, "-", sys.executable, *FLAGS, "-m", "theta_daemon.server"],
            env={**os.environ, "FD": str(listening.fileno())},
            pass_fds=[listening.fileno()],
        )
        client.communicate()
        eventually(lambda: again.poll() is not None or site.servers()[-1] in (again.pid, client.pid), "it was served")
        again.send_signal(signal.SIGTERM)
        assert again.wait(20) == 0
