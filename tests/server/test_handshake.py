"""Before `adopted` anything may go wrong, and git's pipes are untouched; after it nobody else holds them."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from protocol import control
from tests.daemons import eventually
from tests.gitside import GitSide
from tests.server.site import Site
from tests.server.speaker import Speaker

SETTLING_SECONDS = 0.05

STREAM = b"0016git-filter-client\n000eversion=2\n0000"


def descriptors(process: psutil.Process) -> list[str]:
    """What a process has open, but for its own log's position in life."""
    folder = Path(f"/proc/{process.pid}/fd")
    return sorted(os.readlink(folder / name) for name in os.listdir(folder) if (folder / name).is_symlink())


def at_rest(process: psutil.Process) -> list[str]:
    """What a daemon has open once its last connection has been let go."""
    last: list[str] = []

    def same() -> bool:
        nonlocal last
        time.sleep(SETTLING_SECONDS)
        before, last = last, descriptors(process)
        return before == last and process.num_threads() == 1

    eventually(same, "the daemon is at rest")
    return last


def test_everything_that_makes_a_daemon_decline(site: Site) -> None:
    """Another version, another build, a directory that is elsewhere, gone or relative: declined, with the reason."""
    site.start()
    here = site.repo.path
    cases: list[tuple[dict[str, bytes], bytes]] = [
        ({"version": b"2"}, b"build"),
        ({"build": b"0" * 16}, b"build"),
        ({"ino": b"1"}, b"another one"),
        ({"dev": b"12345"}, b"another one"),
        ({"mounts": b"mnt:[1]"}, b"mounts"),
        ({"cwd": b"/nonexistent"}, b"not visible"),
        ({"cwd": b"repo"}, b"absolute"),
        ({"cwd": b""}, b"absolute"),
    ]
    for changes, reason in cases:
        with Speaker(site.place()) as speaker:
            answer = speaker.hello(here, **changes)
            assert answer.kind == control.DECLINED
            assert reason in (answer.get("reason") or b""), changes
    with Speaker(site.place()) as speaker:
        assert speaker.hello(here, {"DECLINE": "never"}).get("reason") == b"never"
    with Speaker(site.place()) as speaker:
        assert speaker.hello(here).kind == control.WELCOME


def test_a_twin_directory_in_a_container_is_declined(site: Site) -> None:
    """Same path, other files (a container that shares the runtime directory): (device, inode) tell them apart."""
    if os.geteuid() != 0:
        pytest.skip("needs a mount")
    daemon = site.start()
    twin = site.directory / "twin"
    subprocess.run(["cp", "-a", str(site.repo.path), str(twin)], check=True)
    script = f"mount --bind {twin} {site.repo.path} && cd {site.repo.path} && echo ONE > a.bin && git add a.bin"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], capture_output=True, check=False)
    if b"unshare" in done.stderr or b"mount" in done.stderr:
        pytest.skip(f"no mount namespaces here: {done.stderr!r}")
    assert done.returncode == 0, done.stderr
    assert site.servers()
    assert daemon.pid not in site.servers()


@pytest.mark.parametrize("count", [0, 1, 2, 4, 16, 40, 200])
def test_a_wrong_number_of_descriptors_is_refused(site: Site, count: int) -> None:
    """Not three, or cut off: all are closed, the session is declined, the daemon keeps none."""
    daemon = site.start()
    before = at_rest(daemon)
    reader, writer = os.pipe()
    with Speaker(site.place()) as speaker:
        assert speaker.hello(site.repo.path).kind == control.WELCOME
        answer = speaker.descriptors([writer] * count)
        assert answer.kind == control.DECLINED
    os.close(writer)
    assert os.read(reader, 1) == b""
    os.close(reader)
    eventually(lambda: descriptors(daemon) == before, "nothing is left open")


@pytest.mark.parametrize("end", ["declined", "hung up", "junk"])
def test_nothing_is_read_before_adopted(site: Site, end: str) -> None:
    """However the handshake fails, what git wrote is still in the pipe, and its flags are as they were."""
    daemon = site.start()
    reader, writer = os.pipe()
    os.write(writer, STREAM)
    flags = [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in (reader, writer)]
    with Speaker(site.place()) as speaker:
        speaker.hello(site.repo.path)
        if end == "declined":
            assert speaker.descriptors([reader, writer]).kind == control.DECLINED
        elif end == "hung up":
            speaker.socket.shutdown(socket.SHUT_RDWR)
        else:
            speaker.socket.sendmsg(
                [b"nonsense"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, reader.to_bytes(4, "little"))]
            )
            with pytest.raises(EOFError):
                speaker.receive()
    assert os.read(reader, 1 << 16) == STREAM
    assert flags == [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in (reader, writer)]
    assert daemon.is_running()
    os.close(reader)
    os.close(writer)


def test_flags_of_the_passed_descriptors_stay(site: Site) -> None:
    """O_NONBLOCK belongs to the open file, so to git and the shell too: never set, in a session or after."""
    site.start()
    client = site.client()
    assert client.stdin is not None
    assert client.stdout is not None
    assert client.stderr is not None
    fds = [client.stdin.fileno(), client.stdout.fileno(), client.stderr.fileno()]
    flags = [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in fds]
    git = GitSide(os.dup(fds[0]), os.dup(fds[1]))
    git.handshake()
    assert git.clean(b"a.bin", [b"ONE"]).content == b"one"
    assert flags == [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in fds]
    git.close()
    client.stdin.close()
    assert client.wait(20) == 0, client.stderr.read()
    client.stdout.close()
    client.stderr.close()


def test_the_client_keeps_none_of_gits_pipes(site: Site) -> None:
    """Once adopted, the client holds /dev/null for git's two pipes: the daemon's end is the end of the conversation."""
    site.start()
    client = site.client()
    assert client.stdin is not None
    assert client.stdout is not None
    git = GitSide(os.dup(client.stdin.fileno()), os.dup(client.stdout.fileno()))
    git.handshake()
    give_up = time.monotonic() + 20  # the daemon may answer before the client has let go
    while (held := [os.readlink(f"/proc/{client.pid}/fd/{number}") for number in (0, 1)]) != ["/dev/null"] * 2:
        assert time.monotonic() < give_up, held
        time.sleep(0.01)
    git.close()
    client.communicate(timeout=20)


def test_a_thousand_sessions_leave_the_table_of_descriptors_as_it_was(site: Site) -> None:
    """Half of the sessions fail, in every way there is; the daemon's descriptors and threads are as before."""
    daemon = site.start(THETA_IDLE_SECONDS="60")
    site.trace_file.unlink()
    before = at_rest(daemon)
    env = {"TRACE": "/dev/null"}
    null = os.open("/dev/null", os.O_RDWR)
    good = 0
    for number in range(1000):
        reader, writer = os.pipe()
        with Speaker(site.place()) as speaker:
            if number % 8 == 1:
                speaker.socket.sendall(b"junk, not hex")
            elif number % 8 == 3:
                speaker.hello(site.repo.path, {**env, "EXPLODE": "1"})
                speaker.descriptors([reader, null, null])
            elif number % 8 == 5:
                speaker.hello(site.repo.path, env)
                speaker.descriptors([reader] * 5)
            elif number % 8 == 7:
                speaker.hello(site.repo.path, env)
                speaker.pass_descriptors([reader, null, null])
            else:
                speaker.hello(site.repo.path, env)
                assert speaker.descriptors([reader, null, null]).kind == control.ADOPTED
                os.close(writer)
                assert speaker.receive().kind == control.FINISHED
                writer = -1
                good += 1
        if writer >= 0:
            os.close(writer)
        os.close(reader)
    os.close(null)
    assert good == 500
    eventually(lambda: descriptors(daemon) == before, f"{descriptors(daemon)} is {before}")
    eventually(lambda: daemon.num_threads() <= 2, "the sessions' threads have ended")


def test_another_users_listener_is_ignored(site: Site) -> None:
    """In a shared place, whoever listens must be ours: otherwise nothing is sent, not even the greeting."""
    if os.geteuid() != 0:
        pytest.skip("needs root to listen as another user")
    os.environ["CI"] = "1"
    path = os.fsdecode(site.place().socket)
    code = (
        "import os, socket, sys; s = socket.socket(socket.AF_UNIX); s.bind(sys.argv[1])\n"
        "os.setgroups([]); os.setgid(12345); os.setuid(12345); s.listen(8)\n"  # SO_PEERCRED is who called listen
        "print('ready', flush=True); c, _ = s.accept(); print(c.recv(100), flush=True)\n"
    )

    stranger = subprocess.Popen([sys.executable, "-E", "-c", code, path], stdout=subprocess.PIPE)
    assert stranger.stdout is not None
    assert stranger.stdout.readline() == b"ready\n"
    site.repo.commit("one", **{"a.bin": b"ONE"})
    assert site.repo.blob("a.bin") == b"one"
    assert stranger.communicate(timeout=20)[0] == b"b''\n"


def test_a_silent_daemon_costs_patience_not_the_command(site: Site) -> None:
    """A listener that never answers (a stopped process): after three seconds the client serves itself."""
    with socket.socket(socket.AF_UNIX) as mute:
        mute.bind(site.place().socket)
        mute.listen(8)
        site.repo.write("a.bin", b"ONE")
        site.repo("add", "-A")
    assert site.repo.text("ls-files") == ".gitattributes\na.bin"
    assert site.servers()


def test_a_daemon_that_dies_in_the_handshake_costs_nothing(site: Site) -> None:
    """The stream ends after the greeting, or after the descriptors: the client serves itself, nothing was read."""
    for stage in (control.HELLO, control.WELCOME, control.DESCRIPTORS):
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(site.place().socket)
            listening.listen(8)
            thread = threading.Thread(target=die_after, args=(listening, stage))
            thread.start()
            site.repo.write("a.bin", stage.upper().encode())
            site.repo("add", "-A")
            thread.join()
        os.unlink(site.place().socket)
        assert site.repo("cat-file", "blob", ":a.bin") == stage.encode()


def die_after(listening: socket.socket, stage: str) -> None:
    """Be a daemon up to a stage of the handshake."""
    connection, _ = listening.accept()
    with connection:
        talk = control.Conversation(control.DAEMON)
        heard = b""
        while heard != stage.encode():
            talk.receive_data(connection.recv(1 << 20))
            message = talk.next_message()
            if message is not None:
                heard = message.kind.encode()
                if stage != control.HELLO and heard == control.HELLO.encode():
                    connection.sendall(talk.send(control.WELCOME))
                    if stage == control.WELCOME:
                        return
