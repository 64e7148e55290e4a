"""Two repositories, one with theta-daemon and one without, get the same commands: git must behave the same in both.

Random walks over the commands of everyday work; after each of them work tree, status and exit status are compared.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from tests.git.models import Model, model
from tests.gitrepo import GitRepo
from tests.history.past import caller
from theta_daemon.depot import Depot
from theta_daemon.tensor import CHUNK_WORDS
from theta_daemon.upkeep.prune import Prune

STEPS = int(os.environ.get("WALK_STEPS", "30"))
FILES = ("a", "b", "deep/c")


@dataclass
class Pair:
    """The repository under test, its shadow, and the versions of checkpoints so far."""

    repo: GitRepo
    shadow: GitRepo
    rng: random.Random
    versions: list[Model] = field(default_factory=lambda: [model()])
    log: list[str] = field(default_factory=list)

    def git(self, *args: str) -> None:
        """The command in both; what is left in the work trees, in status and of branches must agree."""
        self.log.append(" ".join(args))
        alone = {"THETA_DAEMON": "never", "THETA_WORKERS": "1"} if self.rng.random() < 0.1 else {}
        found, wanted = self.repo.run(*args, env=alone), self.shadow.run(*args)
        assert found.returncode == wanted.returncode, (found.stderr, wanted.stderr, self.log)
        assert not (self.repo.path / ".git" / "index.lock").exists(), self.log
        self.compare()

    def compare(self) -> None:
        first, second = (tree(place.path) for place in (self.repo, self.shadow))
        assert first.keys() == second.keys(), self.log
        different = [name for name in first if first[name] != second[name]]
        assert not different, (different, self.log)
        # Pointers resemble each other more than checkpoints do, so git takes other files for renamed ones.
        status = [place.text("status", "--porcelain", "--no-renames") for place in (self.repo, self.shadow)]
        assert status[0] == status[1], self.log

    def write(self, name: str, data: bytes) -> None:
        self.log.append(f"write {name}")
        for place in (self.repo, self.shadow):
            place.write(name, data)

    def edit(self) -> None:
        """A new version of a file, or an old one again, or something else altogether."""
        kind = self.rng.randrange(10)
        if kind < 7:
            self.versions.append(self.rng.choice(self.versions[-3:]).step(self.rng.randrange(1000)))
        name = self.rng.choice(FILES)
        version = self.rng.choice(self.versions)
        data = {7: version.npz(), 8: self.rng.randbytes(5000), 9: b""}.get(kind, self.versions[-1].bytes())
        self.write(name, data if kind > 6 or self.rng.random() < 0.7 else version.bytes())

    def remove(self) -> None:
        name = self.rng.choice(FILES)
        self.log.append(f"remove {name}")
        for place in (self.repo, self.shadow):
            (place.path / name).unlink(missing_ok=True)

    def forget(self) -> None:
        """What may be deleted at any time is."""
        self.log.append("forget")
        shutil.rmtree(self.repo.path / ".git" / "theta", ignore_errors=True)

    def prune(self) -> None:
        """Objects that no ref, reflog, stash or index can need go; none that is needed may."""
        self.log.append("prune")
        with Depot.open(caller(self.repo.path), None) as depot:
            Prune(depot, lambda *_: None).run(grace_seconds=0)

    def revision(self) -> str:
        """A commit that both have, by a name that both know."""
        count = int(self.shadow.text("rev-list", "--count", "HEAD"))
        return f"HEAD~{self.rng.randrange(min(count, 6))}"

    def branch(self) -> str:
        names = self.shadow.text("for-each-ref", "--format=%(refname:short)", "refs/heads").split()
        return self.rng.choice(names)

    def unfinished(self) -> bool:
        """Whether a command stopped in the middle."""
        names = ("MERGE_HEAD", "rebase-merge", "CHERRY_PICK_HEAD")
        unmerged = self.shadow.text("diff", "--name-only", "--diff-filter=U")
        return bool(unmerged) or any((self.shadow.path / ".git" / name).exists() for name in names)

    def settle(self) -> None:
        """Leave whatever a command left unfinished."""
        for command in ("merge", "cherry-pick", "revert", "rebase"):
            if self.shadow.run(command, "--abort").returncode == 0:
                self.repo.run(command, "--abort")
        for place in (self.repo, self.shadow):
            place.run("reset", "-q", "--hard")
        self.compare()


def tree(path: Path) -> dict[str, bytes]:
    """All files of a work tree."""
    return {
        os.path.relpath(os.path.join(folder, name), path): Path(folder, name).read_bytes()
        for folder, folders, names in os.walk(path)
        if ".git" not in folder.split(os.sep)[len(path.parts) :]
        for name in names
    }


def moves(pair: Pair) -> list[Callable[[], None]]:
    """What may come next; commands that merge contents are not among them: theta merges better than git does."""
    git, rng = pair.git, pair.rng
    return [
        pair.edit,
        pair.edit,
        pair.remove,
        pair.forget,
        pair.prune,
        lambda: git("add", "-A"),
        lambda: git("commit", "-q", "-m", "one"),
        lambda: git("commit", "-q", "-a", "-m", "all"),
        lambda: git("commit", "-q", "--amend", "-a", "-m", "amended"),
        lambda: git("checkout", "-q", pair.branch()),
        lambda: git("checkout", "-q", "-f", pair.branch()),
        lambda: git("checkout", "-q", "-b", f"b{len(pair.log)}", pair.revision()),
        lambda: git("checkout", "-q", pair.revision(), "--", "a"),
        lambda: git("restore", f"--source={pair.revision()}", "."),
        lambda: git("restore", "--staged", "."),
        lambda: git("reset", "-q", rng.choice(["--hard", "--soft", "--mixed"]), pair.revision()),
        lambda: git("stash", "push", "-q", *rng.choice([[], ["-u"], ["--keep-index"]])),
        lambda: git("stash", "pop", "-q", *rng.choice([[], ["--index"]])),
        lambda: git("mv", *rng.sample(FILES, 2)),
        lambda: git("rm", "-q", "-f", rng.choice(FILES)),
        lambda: git("clean", "-q", "-f", "-d"),
        lambda: git("merge", "-q", "--ff-only", pair.branch()),
        lambda: git("merge", "-q", "-s", "ours", "--no-edit", pair.branch()),
        lambda: git("add", "--renormalize", "."),
        lambda: git("rebase", "-q", "--onto", pair.revision(), "HEAD~1"),
        lambda: git("gc", "-q", "--prune=now"),
        lambda: git("checkout-index", "-q", "-f", "-a"),
        lambda: git("read-tree", "-u", "--reset", pair.branch()),
    ]


@pytest.mark.parametrize("seed", os.environ.get("WALK_SEEDS", "1 2").split())
def test_git_behaves_as_without_the_filter(
    installed: None, shared_daemon: object, git: GitRepo, short_dir: Path, seed: str
) -> None:
    """A random walk: every command ends as it does in the shadow, with the same files and the same status."""
    (short_dir / "shadow").mkdir()
    shadow = GitRepo(short_dir / "shadow")
    shadow("init", "-q")
    for place, attributes in ((git, b"* filter=theta merge=theta -text\n"), (shadow, b"* -merge -text\n")):
        place.config("theta.maxDepth", "5")
        (place.path / ".git" / "info").mkdir(exist_ok=True)
        (place.path / ".git" / "info" / "attributes").write_bytes(attributes)
    pair = Pair(git, shadow, random.Random(int(seed)))
    if int(seed) % 2 == 0:
        pair.versions = [model().put(large=np.random.default_rng(0).standard_normal(CHUNK_WORDS + 99).astype("<f4"))]
    for _ in range(3):
        pair.edit()
        pair.git("add", "-A")
        pair.git("commit", "-q", "--allow-empty", "-m", "start")
    for _ in range(STEPS):
        pair.rng.choice(moves(pair))()
        if pair.unfinished():
            pair.settle()
    pair.settle()
    assert git.text("log", "--format=%s") == shadow.text("log", "--format=%s")
