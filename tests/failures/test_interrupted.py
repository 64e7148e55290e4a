"""Ctrl-C, readers that go away, and sessions that run at the same time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from blake3 import blake3

from tests.daemons import eventually
from tests.failures.forge import store
from tests.failures.test_killed import has_read, large
from tests.failures.victims import Victim, ended, sessions
from tests.git.models import model
from tests.gitrepo import GitRepo
from theta_daemon.pointer import parse


def interrupt(victim: Victim, git: subprocess.Popen[bytes]) -> None:
    """What a terminal does at Ctrl-C; then all ends quietly, and nothing stays behind."""
    os.killpg(git.pid, signal.SIGINT)
    _, stderr = ended(git)
    assert b"Traceback" not in stderr
    assert b"internal error" not in stderr
    victim.objects_are_whole()
    eventually(lambda: sessions(victim) == 0, "the daemon has given up the session")
    assert victim.daemons(), "the daemon lives"
    assert not (victim.repo.path / ".git" / "index.lock").exists()


def test_ctrl_c_during_add(victim: Victim, road: dict[str, str]) -> None:
    """Unfinished objects go, no partial one stays; adding again works."""
    data = large(11)
    victim.repo.write("m", data)
    with victim.running("add", "m", env=road) as git:
        eventually(victim.temporaries, "an object is being written")
        interrupt(victim, git)
    victim.repo("add", "m")
    victim.repo("commit", "-q", "-m", "m")
    (victim.repo.path / "m").unlink()
    victim.repo("checkout", "--", "m")
    assert victim.repo.read("m") == data


IN_A_DESTRUCTOR = """
import os, signal
from theta_daemon.inprocess import interruptible

class Freed:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000):
            pass

cancelled = interruptible()
Freed()
print(cancelled.is_set())
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(1000):
        pass
except KeyboardInterrupt:
    print("raised")
class Faulty:
    def __del__(self):
        raise ValueError("a fault of ours")
Faulty()
"""


def test_ctrl_c_in_a_destructor_is_neither_lost_nor_shown() -> None:
    """libgit2's objects have destructors, in which Python can raise nothing; other faults in one are still shown."""
    done = subprocess.run([sys.executable, "-c", IN_A_DESTRUCTOR], capture_output=True, text=True, check=True)
    assert done.stdout == "True\nraised\n"
    assert "KeyboardInterrupt" not in done.stderr
    assert "a fault of ours" in done.stderr


def test_ctrl_c_during_checkout(victim: Victim, road: dict[str, str]) -> None:
    """The file is not there; checking out again makes it right."""
    data = large(12)
    victim.repo.commit("m", m=data)
    (victim.repo.path / "m").unlink()
    with victim.running("checkout", "--", "m", env=road) as git:
        eventually(lambda: has_read(git), "git has a part of the file")
        interrupt(victim, git)
    victim.repo("checkout", "--", "m")
    assert victim.repo.read("m") == data
    assert victim.repo.status() == ""


def test_nobody_reads_to_the_end(repo: GitRepo, road: dict[str, str]) -> None:
    """`git … | head -c 10`: git ends by SIGPIPE or in peace, without a word of ours; the next command works."""
    data = large(13)
    repo.commit("m", m=data)
    env = {**os.environ, **road}
    for command in ("cat-file --filters HEAD:m", "archive HEAD m", "show HEAD:m"):
        pipeline = f"git {command} | head -c 10"
        done = subprocess.run(
            ["sh", "-c", pipeline], cwd=repo.path, env=env, capture_output=True, check=False, timeout=60
        )
        assert len(done.stdout) == 10
        assert b"theta-daemon" not in done.stderr
        assert b"Traceback" not in done.stderr
    (repo.path / "m").unlink()
    repo("checkout", "--", "m")
    assert repo.read("m") == data


def test_stdin_ends_early(victim: Victim) -> None:
    """A filter whose git goes away in the middle of a payload ends with an error, stores nothing and leaves nothing."""
    launcher = victim.repo.text("config", "filter.theta.process")
    start = (
        b"0016git-filter-client\n000eversion=2\n00000015capability=clean\n00000012command=clean\n000fpathname=m\n0000"
    )
    for payload in (b"", start[:30], start, start + b"fff0" + bytes(60_000)):
        done = subprocess.run(
            [launcher], input=payload, cwd=victim.repo.path, capture_output=True, check=False, timeout=60
        )
        assert done.returncode == (1 if payload else done.returncode)
        assert b"Traceback" not in done.stderr
    eventually(lambda: sessions(victim) == 0, "the daemon has given up the sessions")
    assert victim.temporaries() == []
    victim.repo.commit("one", m=model().bytes())


def test_stash_holds_two_filters(repo: GitRepo, road: dict[str, str]) -> None:
    """`git stash push` and `pop` of several files, which have two sessions open at once, end and are right."""
    first, second = ({f"m{i}": model(10 * turn + i).bytes() for i in range(4)} for turn in range(2))
    repo.commit("first", **first)
    for name, data in second.items():
        repo.write(name, data)
    repo("stash", "push", "-q", env=road)
    assert {name: repo.read(name) for name in first} == first
    repo("stash", "pop", "-q", env=road)
    assert {name: repo.read(name) for name in second} == second


def at_once(calls: list[Callable[[], object]]) -> None:
    """All calls, each in a thread, from one moment on; raises what the first that failed raised."""
    gate = threading.Barrier(len(calls))
    errors: list[BaseException] = []

    def call(one: Callable[[], object]) -> None:
        try:
            gate.wait()
            one()
        except BaseException as error:
            errors.append(error)

    with ExitStack() as stack:
        for one in calls:
            thread = threading.Thread(target=call, args=(one,))
            thread.start()
            stack.callback(thread.join)
    if errors:
        raise errors[0]


def test_two_worktrees_add_the_same(repo: GitRepo, road: dict[str, str], short_dir: Path) -> None:
    """Two `git add` of the same new content at once, in two work trees of one repository: whole pointers, whole objects.

    Not one pointer: the one that comes second may already know some records of the first one's, and write the others.
    """
    trees = [GitRepo(short_dir / f"tree{number}", repo.env) for number in range(2)]
    for number, tree in enumerate(trees):
        repo("worktree", "add", "-q", "-b", f"branch{number}", tree.path)
    for turn in range(3):
        data = model(100 + turn).bytes()
        for tree in trees:
            tree.write("m", data)
        at_once([partial(tree, "add", "m", env=road) for tree in trees])
        for tree in trees:
            pointer = parse(tree("cat-file", "blob", ":m"))
            assert pointer is not None
            assert (pointer.digest, pointer.size) == (blake3(data).hexdigest(), len(data))
            assert all(store(repo).holds(oid, size) for oid, size in pointer.objects.items())
        for tree in trees:
            tree("commit", "-q", "-m", str(turn))
            (tree.path / "m").unlink()
            tree("checkout", "--", "m")
            assert tree.read("m") == data


def test_two_repositories_at_once(repo: GitRepo, short_dir: Path) -> None:
    """Checkouts in two repositories through one daemon, with the same and with other content, do not mix."""
    other = repo.clone(short_dir / "other")
    versions: dict[str, list[bytes]] = {"repo": [], "other": []}
    for name, one in (("repo", repo), ("other", other)):
        for number in range(4):
            data = model(number if number % 2 else hash(name) % 1000).edit("embed.weight", number).bytes()
            versions[name].append(data)
            one.commit(str(number), m=data)

    def visit(one: GitRepo, datas: list[bytes]) -> None:
        for number in (3, 0, 2, 1, 3):
            one("checkout", "-q", "--detach", f"main~{3 - number}")
            assert one.read("m") == datas[number]

    at_once([lambda: visit(repo, versions["repo"]), lambda: visit(other, versions["other"])])


def test_add_while_git_collects_garbage(repo: GitRepo, road: dict[str, str]) -> None:
    """`git gc --prune=now` beside `git add`: what was added is there, and every version checks out afterwards."""
    versions = {}
    for turn in range(3):
        data = model(200 + turn).bytes()
        repo.write("m", data)
        at_once([lambda: repo("add", "m", env=road), lambda: repo.run("gc", "-q", "--prune=now")])
        repo("commit", "-q", "-m", str(turn))
        versions[repo.head()] = data
    for commit, data in versions.items():
        repo("checkout", "-q", commit)
        assert repo.read("m") == data
        assert repo.status() == ""
