"""Random lives of a repository: commits, amends, rebases, branches, stashes, gc, prune, push, clone. No checkpoint that a
root reaches is ever lost, and no object that a root needs is pruned.

`THETA_MACHINE_COMMITS=300 pytest tests/remotes/test_machine.py` goes on until so many commits were made.
"""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path

import numpy as np
from blake3 import blake3
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.cli.theta import ok_json
from tests.git.models import Model, model
from tests.gitrepo import GitRepo
from theta_daemon.pointer import parse

WANTED_COMMITS = int(os.environ.get("THETA_MACHINE_COMMITS", "0"))
LONG = {"GIT_SEQUENCE_EDITOR": "sed -i 's/^pick/squash/;1s/^squash/pick/'", "GIT_EDITOR": "true"}


class Life(RuleBasedStateMachine):
    """`made` counts the versions of the checkpoint in all lives. What is committed is what was written, by its digest; that
    the pointer rebuilds to that digest is fsck's to prove, from the store alone.
    """

    def __init__(self, folder: Path, env: dict[str, str], made: list[int]) -> None:
        super().__init__()
        self.folder = folder
        self.env = env
        self.made = made
        self.model: Model = model()
        self.branches = count()
        self.clones = count()
        self.stashes = 0

    @initialize()
    def begin(self) -> None:
        life = self.folder / f"life-{len(self.made)}-{time.monotonic_ns()}"
        life.mkdir()
        self.life = life
        origin = GitRepo(life, self.env)
        origin("init", "-q", "--bare", life / "origin.git")
        (life / "repo").mkdir()
        self.repo = GitRepo(life / "repo", self.env)
        self.repo("init", "-q")
        self.repo("remote", "add", "origin", life / "origin.git")
        self.repo.write(".gitattributes", b"*.m filter=theta diff=theta merge=theta -text\n")
        self.commit(0)

    @rule(kind=st.integers(0, 3))
    def commit(self, kind: int) -> None:
        self.write(kind)
        self.repo("add", "-A")
        self.repo("commit", "-q", "--allow-empty", "-m", f"{len(self.made)}")
        self.here_now()

    @rule(kind=st.integers(0, 3))
    def amend(self, kind: int) -> None:
        self.write(kind)
        self.repo("commit", "-q", "-a", "--amend", "-m", "amended")
        self.here_now()

    @rule()
    def branch(self) -> None:
        self.repo("switch", "-q", "-c", f"b{next(self.branches)}")

    @rule(number=st.integers(0, 50))
    def switch(self, number: int) -> None:
        names = self.repo.text("for-each-ref", "--format=%(refname:short)", "refs/heads").split()
        self.repo("switch", "-q", names[number % len(names)])
        self.here_now()

    @rule(number=st.integers(0, 50))
    def delete(self, number: int) -> None:
        here = self.repo.text("branch", "--show-current")
        names = self.repo.text("for-each-ref", "--format=%(refname:short)", "refs/heads").split()
        others = [name for name in names if name != here]
        if others:
            self.repo("branch", "-q", "-D", others[number % len(others)])

    @rule()
    def squash(self) -> None:
        if int(self.repo.text("rev-list", "--count", "--first-parent", "HEAD")) > 3:
            before = self.repo.read("a.m")
            self.repo("rebase", "-q", "-i", "HEAD~2", env=LONG)
            assert self.repo.read("a.m") == before

    @rule(number=st.integers(0, 50))
    def rebase(self, number: int) -> None:
        names = self.repo.text("for-each-ref", "--format=%(refname:short)", "refs/heads").split()
        if self.repo.run("rebase", "-q", "-X", "theirs", names[number % len(names)]).returncode:
            self.repo("rebase", "--abort")
        self.here_now()

    @precondition(lambda self: self.stashes < 2)
    @rule(kind=st.integers(0, 3))
    def stash(self, kind: int) -> None:
        self.write(kind)
        if self.repo.status():
            self.repo("stash", "push", "-q")
            self.stashes += 1

    @precondition(lambda self: self.stashes)
    @rule()
    def unstash(self) -> None:
        self.stashes -= 1
        if self.repo.run("stash", "pop", "-q").returncode:
            self.repo("reset", "-q", "--hard")
            self.repo("stash", "drop", "-q")
        else:
            self.commit_all()

    @rule()
    def gc(self) -> None:
        self.forget_reflogs()
        self.repo("gc", "-q", "--prune=now")

    @rule(forget=st.booleans())
    def prune(self, forget: bool) -> None:
        if forget:
            self.forget_reflogs()
        past = time.time() - 100
        for path in (self.repo.path / ".git/lfs/objects").rglob("*"):
            os.utime(path, (past, past))
        ok_json(self.repo, "prune", "--grace", "50s", "--json")
        self.check(self.repo)

    @rule()
    def push(self) -> None:
        self.repo("push", "-q", "--force", "--all", "origin")

    @rule(depth=st.booleans())
    def clone(self, depth: bool) -> None:
        self.push()
        target = self.life / f"clone-{next(self.clones)}"
        branch = self.repo.text("branch", "--show-current")
        options = ["--depth", "1"] if depth else []
        url = f"file://{self.life / 'origin.git'}"
        self.repo("clone", "-q", "--branch", branch, *options, url, target)
        clone = GitRepo(target, self.env)
        assert clone.read("a.m") == self.repo.read("a.m")
        assert ok_json(clone, "fetch", "--all", "--json")["failed"] == {}
        self.check(clone)

    def teardown(self) -> None:
        if hasattr(self, "repo"):
            self.check(self.repo)
            self.push()

    def write(self, kind: int) -> None:
        self.made.append(1)
        number = len(self.made)
        match kind:
            case 0:
                self.model = self.model.tune(number)
            case 1:
                self.model = self.model.edit("embed.weight", number)
            case 2:
                self.model = self.model.retrain("layer.0.weight", number)
            case _:
                self.model = self.model.put(step=np.array(number, "<i8"))
        data = self.model.bytes()
        self.repo.write("a.m", data)

    def forget_reflogs(self) -> None:
        """But for the stash's, which is its list."""
        branches = self.repo.text("for-each-ref", "--format=%(refname)", "refs/heads").split()
        self.repo("reflog", "expire", "--expire=now", "--expire-unreachable=now", "HEAD", *branches)

    def commit_all(self) -> None:
        self.repo("add", "-A")
        self.repo("commit", "-q", "--allow-empty", "-m", "from the stash")

    def here_now(self) -> None:
        """What is in the work tree is what the commit's pointer says."""
        digest = blake3(self.repo.read("a.m")).hexdigest()
        pointer = parse(self.repo.blob("a.m"))
        assert pointer is not None
        assert pointer.digest == digest

    def check(self, repo: GitRepo) -> None:
        """Every checkpoint that a root reaches rebuilds to its digest, from the store alone."""
        report = ok_json(repo, "fsck", "--all", "--pointers", "--rebuild", "--json")
        assert report["problems"] == []
        assert report["pointers"] >= 1


def test_no_life_loses_a_checkpoint(here: GitRepo, short_dir: Path) -> None:
    """Whatever is done in whatever order, what any root reaches rebuilds, here and in clones."""
    made: list[int] = []
    examples, steps = (2, 12) if not WANTED_COMMITS else (5, 40)
    suppressed = list(HealthCheck)
    profile = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=suppressed,
        phases=[Phase.generate],
        database=None,
    )

    def new_life() -> Life:
        return Life(short_dir, dict(here.env), made)

    while True:
        run_state_machine_as_test(new_life, settings=profile)  # type: ignore[arg-type]
        if len(made) >= WANTED_COMMITS:
            break
    print(f"{len(made)} versions in lives of up to {steps} steps")
