"""Death at any moment, of the daemon, the client, git, or all by Ctrl-C: a failed command at most, never a hang."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.daemons import alive, eventually
from tests.gitside import GitSide
from tests.server.site import Site

AT = {"clean": "clean a.bin", "smudge": "smudge a.bin", "list": "list"}
PROMPT_SECONDS = 60.0
"""A command whose other side has died has ended after that: at once, but the machine may be busy. A hang lasts for ever."""


@pytest.fixture
def waiting(
    site: Site, request: pytest.FixtureRequest
) -> Iterator[tuple[Site, psutil.Process, subprocess.Popen[bytes]]]:
    """A git command of its own process group that waits in the daemon, in the state that the test's `state` names."""
    state: str = request.getfixturevalue("state")
    gate = site.directory / "gate"
    gate.touch()
    content = b"gate=%b TEXT" % os.fsencode(str(gate))
    site.repo.write("a.bin", content.upper().replace(os.fsencode(str(gate)).upper(), os.fsencode(str(gate))))
    os.environ["CI"] = "1"
    site.repo.commit("one")
    del os.environ["CI"]
    daemon = site.start()
    gate.unlink()
    site.trace_file.write_text("")
    if state == "clean":
        site.repo.write("a.bin", content + b" more")
        arguments = ["add", "a.bin"]
    else:
        (site.repo.path / "a.bin").unlink()
        arguments = ["checkout", "--", "a.bin"] if state == "list" else ["cat-file", "--filters", "HEAD:a.bin"]
    command = subprocess.Popen(
        ["git", *arguments],
        cwd=site.repo.path,
        env={**os.environ, "DELAY": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    site.saw(AT[state])
    yield site, daemon, command
    gate.touch()
    with suppress(ProcessLookupError):
        os.killpg(command.pid, signal.SIGKILL)
    command.communicate(timeout=20)


def clients(site: Site) -> list[psutil.Process]:
    """Living thin clients of this site."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if str(site.launcher) in process.cmdline() and alive(process):
                found.append(process)
    return found


def works(site: Site) -> None:
    """The next commands do."""
    (site.directory / "gate").touch()
    with suppress(FileNotFoundError):
        (site.repo.path / ".git" / "index.lock").unlink()
    site.repo.write("b.bin", b"NEXT")
    site.repo("add", "-A")
    assert site.repo("cat-file", "blob", ":b.bin") == b"next"
    (site.repo.path / "b.bin").unlink()
    site.repo("checkout", "--", "b.bin")
    assert site.repo.read("b.bin") == b"NEXT"


def serves(site: Site, daemon: psutil.Process) -> None:
    """The next commands work, and the daemon serves them: at once, but a client does not wait for one that is out of breath."""

    def by_it() -> bool:
        works(site)
        assert alive(daemon)
        return site.servers()[-1] == daemon.pid

    eventually(by_it, "the daemon serves")


Waiting = tuple[Site, psutil.Process, "subprocess.Popen[bytes]"]


@pytest.mark.parametrize("state", AT)
def test_the_daemon_is_killed(waiting: Waiting, state: str) -> None:
    """SIGKILL in clean, smudge and a delayed batch: git fails at once with one line that says what to do, and the next works."""
    site, daemon, command = waiting
    daemon.kill()
    _, err = command.communicate(timeout=PROMPT_SECONDS)
    assert command.returncode != 0
    assert err.count(b"theta-daemon: the daemon ended in the middle of this command; run the command again\n") == 1
    assert b"Traceback" not in err
    assert clients(site) == []
    works(site)


@pytest.mark.parametrize("state", AT)
def test_the_client_is_killed(waiting: Waiting, state: str) -> None:
    """Only the client dies: the daemon lets go of git's pipes, git fails, the session ends, the daemon lives."""
    site, daemon, command = waiting
    (client,) = clients(site)
    client.kill()
    command.communicate(timeout=PROMPT_SECONDS)
    assert command.returncode != 0
    site.saw("end 1")
    eventually(lambda: daemon.num_threads() == 1, "the session's thread has ended")
    serves(site, daemon)


@pytest.mark.parametrize("state", AT)
def test_git_is_killed(waiting: Waiting, state: str) -> None:
    """git dies: session and client end, also in the middle of a computation; the daemon lives."""
    site, daemon, command = waiting
    command.kill()
    command.communicate(timeout=PROMPT_SECONDS)
    eventually(lambda: clients(site) == [], "the client has ended")
    eventually(lambda: daemon.num_threads() == 1, "the session's thread has ended")
    serves(site, daemon)


@pytest.mark.parametrize("state", AT)
def test_ctrl_c(waiting: Waiting, state: str) -> None:
    """SIGINT to the process group, as a terminal sends it: git and client die without a traceback, the daemon lives."""
    site, daemon, command = waiting
    os.killpg(command.pid, signal.SIGINT)
    _, err = command.communicate(timeout=PROMPT_SECONDS)
    assert command.returncode != 0
    assert b"Traceback" not in err
    eventually(lambda: clients(site) == [], "the client has ended")
    site.saw("end 1")
    eventually(lambda: daemon.num_threads() == 1, "the session's thread has ended")
    serves(site, daemon)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGPIPE])
def test_signals_that_are_not_for_the_daemon(site: Site, number: signal.Signals) -> None:
    """SIGINT, SIGHUP and SIGPIPE do not end it."""
    daemon = site.start()
    daemon.send_signal(number)
    site.repo.commit("one", **{"a.bin": b"ONE"})
    assert daemon.pid in site.servers()


def test_a_session_that_waits_for_git_ends_with_the_client(site: Site) -> None:
    """The client dies while the daemon blocks in `read` on git's pipe, which stays open: the thread ends all the same."""
    daemon = site.start()
    client = site.client()
    assert client.stdin is not None
    assert client.stdout is not None
    git = GitSide(os.dup(client.stdin.fileno()), os.dup(client.stdout.fileno()))
    git.handshake()
    assert git.clean(b"a.bin", [b"ONE"]).content == b"one"
    assert daemon.num_threads() == 2
    client.kill()
    eventually(lambda: daemon.num_threads() == 1, "the session's thread has ended")
    with pytest.raises(BrokenPipeError):
        eventually(lambda: os.write(client.stdin.fileno(), b"0000") == 0, "nobody reads")  # type: ignore[union-attr]
    git.close()
    client.communicate()


def test_a_session_that_waits_to_write_ends_with_the_client(site: Site) -> None:
    """The client dies while the daemon blocks in `write` on a full pipe that nobody reads: the thread ends all the same."""
    daemon = site.start()
    client = site.client()
    assert client.stdin is not None
    assert client.stdout is not None
    git = GitSide(os.dup(client.stdin.fileno()), os.dup(client.stdout.fileno()))
    git.handshake()
    content = bytes(4 << 20)
    sender = os.fdopen(os.dup(client.stdin.fileno()), "wb")
    sender.write(b"0013command=smudge\n000f")
    sender.write(b"pathname=a\n0000")
    for start in range(0, len(content), 65000):
        piece = content[start : start + 65000]
        sender.write(b"%04x%b" % (len(piece) + 4, piece))
    sender.write(b"0000")
    sender.flush()
    site.saw("smudge a")
    thread = daemon.threads()[-1].id
    wchan = Path(f"/proc/{daemon.pid}/task/{thread}/wchan")
    eventually(lambda: "pipe" in wchan.read_text(), f"it blocks in a pipe: {wchan.read_text()}")
    client.kill()
    eventually(lambda: daemon.num_threads() == 1, "the session's thread has ended")
    sender.close()
    git.close()
    client.communicate()


def test_a_command_at_a_terminal(site: Site) -> None:
    """Started from an interactive terminal, the daemon outlives the hang-up of it."""
    leader, follower = pty.openpty()
    site.repo.write("a.bin", b"ONE")
    command = subprocess.Popen(
        ["git", "add", "-A"],
        cwd=site.repo.path,
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    assert command.wait(60) == 0
    os.close(leader)
    site.wait_for_socket()
    (daemon,) = site.daemons()
    assert os.getsid(daemon.pid) == daemon.pid


def test_the_end_of_a_session_is_quick(site: Site) -> None:
    """git waits for the filter to exit: from its last word to the client's exit takes milliseconds."""
    site.start()
    taken = []
    for _ in range(30):
        client = site.client()
        assert client.stdin is not None
        assert client.stdout is not None
        git = GitSide(os.dup(client.stdin.fileno()), os.dup(client.stdout.fileno()))
        git.handshake()
        client.stdin.close()
        assert client.stderr is not None
        before = time.perf_counter()
        git.close()
        os.waitid(os.P_PID, client.pid, os.WEXITED | os.WNOWAIT)
        taken.append(time.perf_counter() - before)
        client.wait()
        client.stdout.close()
        client.stderr.close()
    assert min(taken) < 0.002, f"{min(taken) * 1e3:.2f} ms at best"
