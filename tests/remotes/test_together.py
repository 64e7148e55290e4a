"""Processes that add, push, fetch and prune one store at once."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.cli.theta import ok_json
from tests.git.models import Model
from tests.gitrepo import GitRepo
from tests.remotes.sites import Site

ROUNDS = 3
"""The content of the first comes back in the third."""


def content(seed: int) -> bytes:
    values = np.random.default_rng(seed).standard_normal((30, 30)).astype("<f4")
    return Model({"weight": values}, {"seed": str(seed)}).bytes()


def repeat(stop: threading.Event, failures: list[str], where: Path, *command: str) -> Callable[[], None]:
    """Run a command again and again."""

    def run() -> None:
        while not stop.is_set():
            done = subprocess.run(command, cwd=where, capture_output=True, check=False)
            if done.returncode:
                failures.append(f"{command}: {done.stderr.decode(errors='replace')}")

    return run


def test_nothing_is_lost(local: Site) -> None:
    """While others prune (all that is older than two seconds), push and fetch, commits are made of content that comes, goes,
    and comes back; then every commit of every repository rebuilds, there too.
    """
    here = local.here
    here.commit("base", **{"a.m": content(0)})
    here("push", "-q", "origin", "main")
    linked = here.path.parent / "linked"
    here("worktree", "add", "-q", "-b", "other", linked)
    other = GitRepo(linked, here.env)
    stop = threading.Event()
    failures: list[str] = []
    busy = [
        repeat(stop, failures, here.path, "git", "theta", "prune", "--grace", "2s"),
        repeat(stop, failures, here.path, "git", "theta", "push", "origin", "--all"),
        repeat(stop, failures, linked, "git", "theta", "fetch", "--all"),
    ]
    threads = [threading.Thread(target=run) for run in busy]
    for thread in threads:
        thread.start()
    made: dict[str, bytes] = {}
    try:
        for number in range(1, ROUNDS + 1):
            for repo in (here, other):
                data = content(number)
                repo.write("gone.m", content(100 + number % 2))  # added, never committed, added again
                repo("add", "gone.m")
                repo("rm", "-q", "--cached", "gone.m")
                repo.write("a.m", data)
                repo("commit", "-q", "-a", "-m", str(number))
                made[repo.head()] = data
            here("push", "-q", "origin", "main")
    finally:
        stop.set()
        for thread in threads:
            thread.join(120)
    assert failures == []
    report = ok_json(here, "fsck", "--all", "--objects", "--rebuild", "--json")
    assert report["problems"] == []
    assert report["rebuilt"] >= ROUNDS
    here("push", "-q", "origin", "--all")
    clone = local.clone()
    for commit, data in made.items():
        clone("checkout", "-q", commit)
        assert clone.read("a.m") == data
