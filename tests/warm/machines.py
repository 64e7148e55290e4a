"""A repository with some history, and machines that clone it: each with a HOME, a path and a cache of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.cli.theta import theta
from tests.git.models import Model
from tests.gitrepo import GitRepo

ATTRIBUTES = b"*.st filter=theta diff=theta merge=theta -text\n"
CHUNKED = 700_000
"""Elements of a value that has two chunks."""


def start_model() -> Model:
    """A value of several chunks, small ones, an empty one."""
    rng = np.random.default_rng(7)
    return Model(
        {
            "embed": rng.standard_normal((CHUNKED // 100, 100)).astype("<f4"),
            "layer.weight": rng.standard_normal((64, 64)).astype("<f4"),
            "layer.bias": rng.standard_normal(64).astype("<f4"),
            "norm": np.ones(64, "<f4"),
            "empty": np.zeros((0, 3), "<f4"),
        }
    )


def history(count: int) -> list[bytes]:
    """Versions of a file: sparse edits of the large value and of a small one, each on top of the last."""
    model = start_model()
    versions = [model.bytes()]
    for number in range(1, count):
        model = model.edit("embed", number, 50).edit("layer.weight", number, 5)
        versions.append(model.bytes())
    return versions


@dataclass(frozen=True)
class Machine:
    """A clone with a HOME of its own, served without a daemon unless `env` says otherwise; `served` makes git use one."""

    repo: GitRepo
    home: Path
    served: Mapping[str, str]

    def theta(self, *args: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
        """`git theta ARGS`; its start-up is proven by the recipes and by what runs at a terminal or is killed."""
        return theta(self.repo, *args, env=env)

    def warm(self, *args: str, status: int = 0, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        """`git theta warm ARGS`: its report."""
        done = self.theta("warm", "--json", "-", *args, env=env)
        assert done.returncode == status, (done.returncode, done.stdout, done.stderr)
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    def key(self, *args: str) -> str:
        done = self.theta("warm", "--key", *args)
        assert done.returncode == 0, done.stderr
        return done.stdout.decode().strip()

    def status(self) -> str:
        """`git status --porcelain`, by the daemon where git wants to see a file's pointer again."""
        return self.repo.text("status", "--porcelain", env=self.served)

    @property
    def cache(self) -> Path:
        """Where its disk cache is by default."""
        return self.home / ".cache" / "theta-daemon"

    def entries(self) -> list[Path]:
        """The files of its disk cache that hold values, in no order."""
        return [path for path in self.cache.glob("v1/*/*") if path.is_file() or path.is_symlink()]

    def forget(self) -> None:
        """Lose the objects that were fetched."""
        shutil.rmtree(self.repo.path / ".git" / "lfs", ignore_errors=True)

    def checkout(self, *names: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
        """Write these files (all that are tracked when none is named) anew."""
        listed = names or self.repo.text("ls-files", "*.st").split("\n")
        for name in listed:
            (self.repo.path / name).unlink(missing_ok=True)
        return self.repo.run("checkout", "--", *listed, env=env)


@dataclass(frozen=True)
class Recorded:
    """What is made once: the repository, its versions, a clone of depth 1 and a whole one, both with pointers, the cache of
    their HEAD; and what makes git use the daemon that made all this.
    """

    repository: Path
    versions: Sequence[bytes]
    clone: Path
    whole: Path
    cache: Path
    served: Mapping[str, str]


@dataclass(frozen=True)
class Origin:
    """The repository that is cloned, and every version of its file `model.st`, oldest first."""

    repo: GitRepo
    top: Path
    configuration: str
    recorded: Recorded

    @property
    def versions(self) -> Sequence[bytes]:
        return self.recorded.versions

    def machine(self, name: str, *, warm: bool = False, whole: bool = False) -> Machine:
        """A fresh machine: clone of depth 1 (or `whole`), pointers in the work tree, filter installed, nothing fetched.

        `warm`: its cache is that of HEAD, else it has none.
        """
        home = self.top / f"home-{name}"
        home.mkdir()
        (home / ".gitconfig").write_text(self.configuration)
        clone = self.top / name / "somewhere"
        machine = Machine(GitRepo(clone, {"HOME": str(home), "THETA_DAEMON": "never"}), home, self.recorded.served)
        shutil.copytree(self.recorded.whole if whole else self.recorded.clone, clone, symlinks=True)
        machine.repo("remote", "set-url", "origin", f"file://{self.repo.path}")
        machine.status()  # from here on the index knows the copied files
        if warm:
            shutil.copytree(self.recorded.cache, machine.cache)
        return machine

    def clone(self, target: Path, env: Mapping[str, str], *options: str) -> None:
        """A clone whose work tree has pointers."""
        skip = {**env, **self.recorded.served, "GIT_THETA_SKIP_SMUDGE": "1"}
        self.repo("clone", "-q", *options, f"file://{self.repo.path}", target, env=skip)

    def hide(self) -> None:
        """No network: the repository is not where it was."""
        self.repo.path.rename(self.repo.path.with_name("moved"))
