"""A checkout is one batch: every pointer of the past is read once, every update decoded once, all objects fetched at once."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemons import eventually
from tests.git.conftest import ATTRIBUTES
from tests.git.models import Model, model
from tests.gitrepo import GitRepo
from theta_daemon.pointer import Parameter, parse
from theta_daemon.server import admin

FILES = 10
COMMITS = 20


def counts() -> Counter[str]:
    """What the daemon has counted since it started."""
    (daemon,) = admin.status(os.environb)
    return Counter(daemon.report["host"]["counters"])


@pytest.fixture
def fresh(installed: None, runtime_dir: Path, git: GitRepo, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitRepo]:
    """A repository and a runtime directory without a daemon."""
    monkeypatch.setenv("THETA_DAEMON", "auto")
    monkeypatch.setenv("THETA_IDLE_SECONDS", "600")
    git.write(".gitattributes", ATTRIBUTES)
    git.config("theta.maxDepth", "100")
    git.commit("attributes")
    admin.start(os.environb)
    yield git
    admin.stop(os.environb)


def restart() -> None:
    """A daemon that remembers nothing."""
    admin.restart(os.environb)


def family(version: int) -> dict[str, Model]:
    """Ten checkpoints that share a backbone, each with a head of its own; every version edits both."""
    backbone = model()
    for number in range(version):
        backbone = backbone.edit("layer.0.weight", number)
    found = {}
    for index in range(FILES):
        one = backbone.put(head=model(100 + index).tensors["embed.weight"])
        for number in range(version):
            one = one.edit("head", 1000 * index + number)
        found[f"m{index}.safetensors"] = one
    return found


def walk(repo: GitRepo, parameter: Parameter, blobs: set[str], values: set[str]) -> None:
    """Collect the previous pointers and the values below one parameter, by what the pointers themselves say."""
    values.add(f"{parameter.digest} {parameter.shape}")
    while parameter.previous is not None:
        blobs.add(parameter.previous)
        found = parse(repo("cat-file", "blob", parameter.previous))
        assert found is not None
        parameter = found.by_name[parameter.base_name]
        values.add(f"{parameter.digest} {parameter.shape}")


def needed(repo: GitRepo, revision: str, names: Iterator[str] | list[str]) -> tuple[int, int]:
    """Distinct previous pointers, and distinct values, that these files are rebuilt from."""
    blobs: set[str] = set()
    values: set[str] = set()
    for name in names:
        pointer = parse(repo.blob(name, revision))
        assert pointer is not None
        for parameter in pointer.parameters:
            walk(repo, parameter, blobs, values)
    return len(blobs), len(values)


def test_ten_checkpoints_and_twenty_commits(fresh: GitRepo, short_dir: Path) -> None:
    """One checkout reads each distinct pointer of the history once, decodes each update once, in one plan."""
    for version in range(COMMITS):
        fresh.commit(f"version {version}", **{name: one.bytes() for name, one in family(version).items()})
    expected = family(COMMITS - 1)
    blobs, values = needed(fresh, "main", list(expected))
    assert blobs == FILES * (COMMITS - 1)
    fresh("checkout", "-q", f"main~{COMMITS}")
    assert not (fresh.path / "m0.safetensors").exists()
    restart()
    before = counts()
    fresh("checkout", "-q", "main")
    done = counts() - before
    assert {name: fresh.read(name) == one.bytes() for name, one in expected.items()} == dict.fromkeys(expected, True)
    assert done["blobs_read"] == blobs
    assert done["pointers_parsed"] == blobs + FILES
    assert done["updates_decoded"] == values
    assert done["plans"] == 1
    assert done["blobs_read.cat_file"] == 0

    # What was read is remembered: the next checkout parses nothing.
    before = counts()
    fresh("checkout", "-q", "main~1")
    done = counts() - before
    assert fresh.read("m3.safetensors") == family(COMMITS - 2)["m3.safetensors"].bytes()
    assert done["pointers_parsed"] == 0

    # A clone without objects fetches once.
    restart()
    before = counts()
    clone = fresh.clone(short_dir / "clone", "--branch", "main")
    done = counts() - before
    assert clone.read("m9.safetensors") == expected["m9.safetensors"].bytes()
    assert done["fetch.rounds"] == 1
    assert done["plans"] == 1
    assert done["updates_decoded"] == values


def test_a_deep_chain_of_one_file_is_decoded_link_by_link_once(fresh: GitRepo) -> None:
    """Twenty versions of a file: as many updates as links for the tensor that changed, one for each of the others."""
    version = model()
    for number in range(COMMITS):
        fresh.commit("version", m=version.bytes())
        version = version.edit("embed.weight", number)
    blobs, values = needed(fresh, "main", ["m"])
    assert (blobs, values) == (COMMITS - 1, COMMITS - 1 + len(version.tensors))
    (fresh.path / "m").unlink()
    restart()
    before = counts()
    fresh("checkout", "--", "m")
    done = counts() - before
    assert (done["blobs_read"], done["updates_decoded"], done["plans"]) == (blobs, values, 1)


def test_an_unchanged_file_is_cleaned_without_building_a_pointer(fresh: GitRepo) -> None:
    """git's many re-cleans cost a look-up: no parameter is encoded, no historical blob is read but HEAD's own."""
    fresh.commit("one", m=model().bytes())
    before = counts()
    for _ in range(3):
        (fresh.path / "m").touch()
        assert fresh.status() == ""
    eventually(lambda: (counts() - before)["cleans.known"] == 3, "three cleans")
    assert (counts() - before)["cleans.built"] == 0


def test_the_lineage_answers_where_history_does_not(fresh: GitRepo, short_dir: Path) -> None:
    """The counters say which source answered: git's objects in a full clone, the lineage object in a shallow one."""
    version = model()
    for number in range(4):
        fresh.commit("version", m=version.bytes())
        version = version.edit("embed.weight", number)
    shallow = short_dir / "shallow"
    restart()
    before = counts()
    fresh("clone", "-q", "--depth=1", f"file://{fresh.path}", shallow)
    done = counts() - before
    assert done["lineages_read"] == 1
    restart()
    before = counts()
    fresh.clone(short_dir / "full")
    done = counts() - before
    assert done["lineages_read"] == 0
    assert done["blobs_read.pygit2"] == 3
