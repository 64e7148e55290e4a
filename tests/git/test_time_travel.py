"""Any version from any other, whatever happened to the commits in between."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.git.models import model
from tests.gitrepo import GitRepo
from theta_daemon.pointer import Pointer, parse

VERSIONS = 20


@dataclass(frozen=True)
class Chain:
    """A repository, its commits in order, and the bytes of each."""

    repo: GitRepo
    commits: list[str]
    data: list[bytes]

    def visit(self, repo: GitRepo, numbers: Iterator[int] | range | list[int]) -> None:
        """Each of these versions is right at the first command that asks for it."""
        for number in numbers:
            repo("checkout", "-q", self.commits[number])
            assert repo.read("m") == self.data[number], f"version {number}"
        assert repo.status() == ""


def pointer(repo: GitRepo, revision: str) -> Pointer:
    found = parse(repo.blob("m", revision))
    assert found is not None
    return found


@pytest.fixture
def chain(repo: GitRepo) -> Chain:
    """Twenty versions with updates of all kinds on top of each other."""
    return grow(repo)


def grow(repo: GitRepo, versions: int = VERSIONS) -> Chain:
    version = model()
    commits, data = [], []
    for number in range(versions):
        # Sparse edits in between keep the chains of the large tensors long.
        version = version.step(number) if number % 3 == 0 else version.edit("embed.weight", number)
        data.append(version.bytes())
        commits.append(repo.commit(f"version {number}", m=data[-1]))
    return Chain(repo, commits, data)


def with_objects(source: GitRepo, destination: Path, *options: str) -> GitRepo:
    """A clone that is given the objects, and nothing else."""
    source("clone", "-q", "--no-checkout", *options, f"file://{source.path}", destination)
    shutil.copytree(source.path / ".git" / "lfs", destination / ".git" / "lfs")
    clone = GitRepo(destination)
    clone("remote", "remove", "origin")
    return clone


def test_any_version_from_any_other(chain: Chain) -> None:
    """A random walk through all versions; the updates are of every automatic kind, and chains are deep."""
    kinds = {parameter.update for commit in chain.commits for parameter in pointer(chain.repo, commit).parameters}
    assert kinds >= {"dense", "constant", "sparse", "delta"}
    assert max(parameter.depth for commit in chain.commits for parameter in pointer(chain.repo, commit).parameters) > 5
    walk = list(range(VERSIONS))
    random.Random(1).shuffle(walk)
    chain.visit(chain.repo, walk)


def test_a_cold_start_at_every_age(chain: Chain, short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without daemon, caches and memo: a process that knows nothing rebuilds any version."""
    monkeypatch.setenv("THETA_DAEMON", "never")
    chain.visit(with_objects(chain.repo, short_dir / "clone"), [19, 7, 0])


def test_after_the_commits_in_between_are_gone(chain: Chain) -> None:
    """amend, a squashing rebase, reflog expire and gc --prune=now: what was committed is still right, in a fresh clone too."""
    repo = chain.repo
    last = model(7).tune(1).put(extra=model().tensors["embed.weight"]).bytes()
    repo.write("m", last)
    repo("commit", "-q", "--amend", "-am", "amended")
    editor = "sed -i -e '2,$s/^pick/squash/'"
    repo("rebase", "-q", "-i", chain.commits[9], env={"GIT_SEQUENCE_EDITOR": editor, "GIT_EDITOR": "true"})
    assert repo.read("m") == last
    assert repo.text("rev-list", "--count", "HEAD") == "12"
    squashed = repo.head()
    repo("checkout", "-q", "--orphan", "alone", chain.commits[9])
    repo("commit", "-qm", "version 9 without a past")
    repo("branch", "-q", "-D", "main")
    repo("tag", "squashed", squashed)
    repo("reflog", "expire", "--expire=now", "--expire-unreachable=now", "--all")
    repo("gc", "-q", "--prune=now")
    assert repo.run("cat-file", "-e", chain.commits[15]).returncode != 0
    chain.visit(repo, [*range(10), 3])
    repo("checkout", "-q", "squashed")
    assert repo.read("m") == last
    repo("checkout", "-q", "alone")
    assert repo.read("m") == chain.data[9]
    clone = with_objects(repo, repo.path.with_name("clone"))
    chain.visit(clone, [9, 0, 5])


def test_the_history_is_gone_altogether(chain: Chain, short_dir: Path) -> None:
    """Depth-1 clone, pruned original: chains are followed through the lineage, also when a new version is built on them."""
    clone = with_objects(chain.repo, short_dir / "shallow", "--depth=1")
    assert clone.text("rev-list", "--count", "HEAD") == "1"
    assert any(parameter.depth > 0 for parameter in pointer(clone, "HEAD").parameters)
    clone("checkout", "-q", "HEAD")
    clone("reset", "-q", "--hard")
    assert clone.read("m") == chain.data[-1]
    assert clone.status() == ""
    version = model()
    for number in range(VERSIONS):
        version = version.step(number) if number % 3 == 0 else version.edit("embed.weight", number)
    onwards = version.edit("embed.weight", 99)
    assert version.bytes() == chain.data[-1]
    clone.commit("onwards", m=onwards.bytes())
    assert pointer(clone, "HEAD").by_name["embed.weight"].depth > 1
    again = with_objects(clone, short_dir / "again", "--depth=1")
    again("reset", "-q", "--hard")
    assert again.read("m") == onwards.bytes()
    clone.write("m", chain.data[-1])
    clone("add", "m")
    returned = parse(clone("cat-file", "blob", ":m"))
    assert returned is not None
    assert returned.parameters == pointer(chain.repo, "main").parameters


def test_a_pointer_names_all_that_it_needs(chain: Chain, short_dir: Path) -> None:
    """A pointer, the objects that it lists, and nothing else in the world: the checkpoint comes back."""
    for number in (19, 12, 5):
        text = chain.repo.blob("m", chain.commits[number])
        found = parse(text)
        assert found is not None
        path = short_dir / f"alone-{number}"
        path.mkdir()
        alone = GitRepo(path)
        alone("init", "-q")
        alone.commit("one", m=text)  # no attribute yet: git stores what it is given
        for oid, size in found.objects.items():
            place = Path(".git", "lfs", "objects", oid[:2], oid[2:4], oid)
            (path / place).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(chain.repo.path / place, path / place)
            assert (path / place).stat().st_size == size
        alone.write(".gitattributes", b"m filter=theta -text\n")
        (path / "m").unlink()
        alone("checkout", "--", "m")
        assert alone.read("m") == chain.data[number]
        assert alone.status() == "?? .gitattributes"


def test_a_shallow_clone_that_grows(chain: Chain, short_dir: Path) -> None:
    """After --deepen and --unshallow the older versions are there and right."""
    destination = short_dir / "shallow"
    chain.repo("clone", "-q", "--depth=1", f"file://{chain.repo.path}", destination)
    clone = GitRepo(destination)
    assert clone.read("m") == chain.data[-1]
    clone("fetch", "-q", "--deepen=5")
    chain.visit(clone, [15, 18])
    clone("fetch", "-q", "--unshallow")
    chain.visit(clone, [0, 11, 19])


def test_a_partial_clone(chain: Chain, short_dir: Path) -> None:
    """Blobs that git fetches on demand are fetched for the history too."""
    chain.repo.config("uploadpack.allowFilter", "true")
    destination = short_dir / "partial"
    chain.repo("clone", "-q", "--filter=blob:none", f"file://{chain.repo.path}", destination)
    clone = GitRepo(destination)
    assert clone.read("m") == chain.data[-1]
    chain.visit(clone, [4, 12])


def test_replaced_and_grafted_history(chain: Chain) -> None:
    """A commit that git shows with another parent changes nothing about the files."""
    repo = chain.repo
    repo("replace", "--graft", chain.commits[12], chain.commits[2])
    assert repo.text("rev-list", "--count", "main") == "12"  # 0 to 2, 12 to 19, and the attributes
    chain.visit(repo, [12, 5, 19, 13])


def test_repositories_of_sha256(installed: None, shared_daemon: object, short_dir: Path) -> None:
    """What libgit2 cannot open is read through git itself."""
    path = short_dir / "sha256"
    path.mkdir()
    repo = GitRepo(path)
    repo("init", "-q", "--object-format=sha256")
    repo.write(".gitattributes", b"m filter=theta -text\n")
    chain = grow(repo, 6)
    assert len(chain.commits[0]) == 64
    chain.visit(repo, [0, 5, 2, 4])
