"""Plug-ins: the example package under tests/plugin_example, built and installed as a user would, and broken ones."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import GITCONFIG
from tests.gitrepo import GitRepo
from tests.hints import environments
from tests.hints.adapted import pointer, staged, updates
from tests.hints.environments import Environment
from tests.plugin_example.theta_example.formats import Wts, encode
from tests.plugin_example.theta_example.updates import Negated
from theta_daemon.tensor import CHUNK_WORDS, DTYPES, TensorSpec
from theta_daemon.testing.formats import FormatContract
from theta_daemon.testing.updates import Case, UpdateContract, special_words
from theta_daemon.updates.base import Update


class TestNegatedKeepsTheContract(UpdateContract):
    """What docs/plugins.md tells an author to do."""

    def make(self) -> Update:
        return Negated()

    def cases(self) -> Iterator[Case]:
        for name, size in (("F32", 33), ("BF16", CHUNK_WORDS + 5), ("F64", 3), ("C64", 4)):
            spec = TensorSpec(DTYPES[name], (size,))
            previous = special_words(spec.dtype, spec.words)
            yield Case(spec, previous, previous ^ spec.dtype.word_dtype.type(1 << (8 * spec.dtype.word_bytes - 1)))


class TestWtsKeepsTheContract(FormatContract):
    """The same for the format."""

    format = Wts()

    @pytest.fixture
    def sample(self) -> bytes:
        return encode({"a": np.arange(40, dtype="<f4").tobytes(), "b": b"", "c": bytes(8)})


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="e-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Environment:
    """Without plug-ins."""
    (folder / "plain").mkdir()
    return environments.make(folder / "plain", GITCONFIG)


@pytest.fixture(scope="module")
def example(folder: Path) -> Environment:
    """With the example package."""
    (folder / "example").mkdir()
    made = environments.make(folder / "example", GITCONFIG)
    environments.install_example(made, folder / "example")
    return made


@pytest.fixture(scope="module")
def broken(folder: Path) -> Environment:
    """With a package that is broken in every way."""
    (folder / "broken").mkdir()
    made = environments.make(folder / "broken", GITCONFIG)
    environments.install_broken(made)
    return made


@pytest.fixture
def tracked(git: GitRepo) -> GitRepo:
    git.write(".gitattributes", b"*.m filter=theta diff=theta merge=theta -text\n")
    return git


def wts(sign: float) -> bytes:
    """A file whose one large tensor is random and whose other is small."""
    values = (sign * np.random.default_rng(0).standard_normal(5000)).astype("<f4")
    return encode({"weights": values.tobytes(), "scale": np.ones(4, "<f4").tobytes()})


def test_the_example_in_a_repository(tracked: GitRepo, example: Environment, plain: Environment) -> None:
    """git uses the installed format and, where it is smallest, the installed update type; who lacks it is told which and why."""
    repo = GitRepo(tracked.path, example.variables)
    repo.commit("one", **{"a.m": wts(1)})
    repo.commit("two", **{"a.m": wts(-1)})
    found = pointer(repo)
    assert found.format == "wts"
    assert updates(found) == {"weights": "negated", "scale": "constant"}
    assert found.by_name["weights"].stored < 20
    repo("checkout", "-q", "HEAD~1")
    assert repo.read("a.m") == wts(1)
    repo("checkout", "-q", "main")
    assert repo.read("a.m") == wts(-1)
    assert repo.status() == ""

    other = GitRepo(tracked.path, plain.variables)
    (other.path / "a.m").unlink()
    said = other.run("checkout", "a.m")
    assert said.returncode != 0
    assert not (other.path / "a.m").exists()
    words = said.stderr.decode()
    for word in ("a.m", "'weights'", "'negated'", "install the package"):
        assert word in words
    # What needs no plug-in to be rebuilt needs none: the format is only asked when a file is added.
    other("checkout", "-q", "HEAD~1")
    assert other.read("a.m") == wts(1)
    other.write("b.m", wts(2))
    other("add", "b.m")
    assert staged(other, "b.m").format == "opaque"


def test_a_hint_for_a_plug_in(tracked: GitRepo, example: Environment, plain: Environment) -> None:
    """`--update-type` takes it where it is installed, and is an error where it is not."""
    repo = GitRepo(tracked.path, example.variables)
    repo.commit("one", **{"a.m": wts(1)})
    repo.write("a.m", wts(-1))
    assert plain.theta(repo, "add", "a.m", "--update-type", "negated").returncode == 1
    assert repo.text("diff", "--cached", "--name-only") == ""
    done = example.theta(repo, "add", "a.m", "--update-type", "negated")
    assert done.returncode == 0, done.stderr
    assert updates(staged(repo))["weights"] == "negated"


def test_broken_plug_ins_break_only_what_names_them(tracked: GitRepo, broken: Environment) -> None:
    """Unloadable and crashing plug-ins are passed over by those who did not ask; who asks is told whose fault it is."""
    repo = GitRepo(tracked.path, broken.variables)
    values = np.random.default_rng(0).standard_normal(100).astype("<f4")
    repo.commit("one", **{"a.m": encode({"w": values.tobytes()})})
    repo.commit("two", **{"a.m": encode({"w": (values + 1).tobytes()})})
    assert set(updates(pointer(repo)).values()) <= {"dense", "delta", "sparse"}
    repo("checkout", "-q", "HEAD~1")
    assert repo.read("a.m") == encode({"w": values.tobytes()})
    repo("checkout", "-q", "main")

    repo.write("a.m", encode({"w": (values + 2).tobytes()}))
    said = repo.run("add", "a.m", env={"GIT_THETA_UPDATE_TYPE": "unloadable"})
    assert said.returncode != 0
    assert repo.text("diff", "--cached", "--name-only") == ""
    for word in (b"'unloadable'", b"broken-package", b"broken_plugins_missing"):
        assert word in said.stderr
    said = repo.run("add", "a.m", env={"GIT_THETA_UPDATE_TYPE": "crashing"})
    assert said.returncode == 0
    assert b"not crashing, since it failed (RuntimeError: out of order)" in said.stderr

    repo.write(".gitattributes", b"*.m filter=theta -text\nb.m theta-format=unloadable\n")
    repo.write("b.m", values.tobytes())
    said = repo.run("add", "b.m")
    assert said.returncode != 0
    assert b"broken-package" in said.stderr
