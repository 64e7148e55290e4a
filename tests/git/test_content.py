"""How parameters come, go and come back: whatever changes, every version is right and nothing is stored twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from tests.git.models import Model, model
from tests.gitrepo import GitRepo
from theta_daemon.pointer import Pointer, parse


def pointer(repo: GitRepo, path: str, revision: str = "HEAD") -> Pointer:
    found = parse(repo.blob(path, revision))
    assert found is not None
    return found


def update(repo: GitRepo, name: str, revision: str = "HEAD", path: str = "m") -> str:
    """How one parameter is stored."""
    return pointer(repo, path, revision).by_name[name].update


def all_right(repo: GitRepo, versions: dict[str, bytes], path: str = "m") -> None:
    """Every commit gives its version, here from the last back, and from the first on in a clone without caches."""
    other = repo.clone(repo.path.with_name(f"{repo.path.name}-clone"), "--no-checkout")
    shutil.copytree(repo.path / ".git" / "lfs", other.path / ".git" / "lfs")
    for place, commits in ((repo, reversed(versions)), (other, iter(versions))):
        for commit in commits:
            place("checkout", "-q", commit)
            assert place.read(path) == versions[commit]
        assert place.status() == ""


def test_a_value_that_comes_back(repo: GitRepo) -> None:
    """A, B, A, B: the values come back, and so do the records."""
    first = model()
    second = first.tune(1)
    versions = {}
    for number, version in enumerate([first, second, first, second]):
        data = version.bytes()
        versions[repo.commit(str(number), m=data)] = data
    assert repo.blob("m", "HEAD") == repo.blob("m", "HEAD~2")
    all_right(repo, versions)


def test_some_values_come_back_while_others_move_on(repo: GitRepo) -> None:
    """A parameter that returns to a value from the middle of a chain keeps that value's record and its history."""
    versions = {}
    history = [model()]
    name = "embed.weight"
    for number in range(1, 4):
        history.append(history[-1].edit(name, number))
    mixed = history[3].put(**{name: history[1].tensors[name]}).edit("ids", 9)
    onwards = mixed.edit(name, 10)
    for number, version in enumerate([*history, mixed, onwards, onwards.put(**{name: history[2].tensors[name]})]):
        data = version.bytes()
        versions[repo.commit(str(number), m=data)] = data
    returned = pointer(repo, "m", "HEAD~2").by_name[name]
    assert returned.ref == pointer(repo, "m", "HEAD~5").by_name[name].ref
    all_right(repo, versions)


def test_a_renamed_file_goes_on(repo: GitRepo) -> None:
    """After `git mv` the unchanged parameters keep their records, also when some change in the same commit."""
    first = model()
    versions = {repo.commit("one", m=first.bytes()): first.bytes()}
    second = first.tune(1)
    versions[repo.commit("two", m=second.bytes())] = second.bytes()
    repo("mv", "m", "n")
    third = second.retrain("layer.0.weight", 5)
    repo.commit("three", n=third.bytes())
    before, after = pointer(repo, "m", "HEAD~1"), pointer(repo, "n")
    same = [name for name in after.by_name if name != "layer.0.weight"]
    # What the memo alone knows is used where it stands on its own; the others are encoded afresh.
    alone = [name for name in same if before.by_name[name].previous is None]
    assert alone
    assert all(after.by_name[name].ref == before.by_name[name].ref for name in alone)
    all_right(repo, versions)
    repo("checkout", "-q", "main")
    assert repo.read("n") == third.bytes()


def test_equal_tensors_are_stored_once(repo: GitRepo) -> None:
    """The same value under several names and in several files has one record."""
    array = np.random.default_rng(0).standard_normal((40, 50)).astype("<f4")
    repo.commit("one", m=Model({"a": array, "b": array}).bytes())
    found = pointer(repo, "m").by_name
    assert found["a"].ref == found["b"].ref
    repo.commit("two", n=Model({"x": array, "new": array + 1}).bytes())
    assert pointer(repo, "n").by_name["x"].ref == found["a"].ref
    changed = Model({"a": array, "b": array + np.float32(1e-3), "c": array.reshape(50, 40)})
    versions = {repo.head(): repo.read("m")}
    versions[repo.commit("three", m=changed.bytes())] = changed.bytes()
    all_right(repo, versions)


def test_another_shape_or_type_under_the_same_name(repo: GitRepo) -> None:
    """No update leads across a change of shape or dtype, and none is needed to come back."""
    array = np.random.default_rng(0).standard_normal((40, 50)).astype("<f4")
    shapes = [array, array.reshape(50, 40), array.astype("<f2"), array.astype("<f8"), array[:20], array]
    versions = {}
    for number, value in enumerate(shapes):
        data = Model({"a": value, "b": array + number}).bytes()
        versions[repo.commit(str(number), m=data)] = data
        assert pointer(repo, "m").by_name["a"].previous is None
    all_right(repo, versions)


def test_a_name_that_goes_and_comes_back(repo: GitRepo) -> None:
    """A parameter that was removed and is added again, with its old value and with a new one."""
    first = model()
    steps = [first, first.without("layer.0.weight"), first, first.without("ids"), first.tune(3)]
    versions = {}
    for number, version in enumerate(steps):
        data = version.bytes()
        versions[repo.commit(str(number), m=data)] = data
    assert (
        pointer(repo, "m", "HEAD~2").by_name["layer.0.weight"] == pointer(repo, "m", "HEAD~4").by_name["layer.0.weight"]
    )
    all_right(repo, versions)


def test_a_file_that_changes_its_kind(repo: GitRepo) -> None:
    """safetensors, then npz, then text, then empty, then safetensors again, all under one name."""
    first = model()
    kinds = [first.bytes(), first.npz(), b"just text\n", b"", first.tune(1).bytes(), b"\0" * 5000, first.bytes()]
    versions = {repo.commit(str(number), m=data): data for number, data in enumerate(kinds)}
    all_right(repo, versions)


def test_constants_are_no_longer_than_a_line(repo: GitRepo) -> None:
    """Ones and zeros take a few bytes."""
    repo.commit("one", m=Model({"a": np.ones(100_000, "<f4"), "b": np.full(9, 7, "<i8")}).bytes())
    assert {p.update for p in pointer(repo, "m").parameters} == {"constant"}
    assert sum(p.stored for p in pointer(repo, "m").parameters) < 60


def test_chains_end(repo: GitRepo) -> None:
    """theta.maxDepth updates on top of each other, then a self-contained record; all versions are right."""
    repo.config("theta.maxDepth", "3")
    version = model()
    versions = {}
    depths = []
    for number in range(9):
        data = version.bytes()
        versions[repo.commit(str(number), m=data)] = data
        depths.append(pointer(repo, "m").by_name["embed.weight"].depth)
        version = version.edit("embed.weight", number)
    assert depths == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    all_right(repo, versions)


def test_a_pointer_is_cleaned_to_itself(repo: GitRepo, short_dir: Path) -> None:
    """A pointer in the work tree, left there by a checkout that skipped smudging, is added as what it is."""
    data = model().bytes()
    repo.commit("one", m=data)
    text = repo.blob("m")
    (repo.path / "m").unlink()
    repo("checkout", "--", "m", env={"GIT_THETA_SKIP_SMUDGE": "1"})
    assert repo.read("m") == text
    assert repo.status() == ""
    repo.write("other", text)
    repo("add", "other")
    assert repo("cat-file", "blob", ":other") == text
    (repo.path / "m").unlink()
    repo("checkout", "--", "m")
    assert repo.read("m") == data


def test_what_looks_like_a_pointer_and_is_none(repo: GitRepo) -> None:
    """Halves of pointers, text with conflict marks and pointers that break a rule come back as they were added."""
    repo.commit("one", m=model().bytes())
    text = repo.blob("m")
    odd = {
        "half": text[: len(text) // 2],
        "conflict": b"<<<<<<< ours\n" + text + b"=======\n" + text + b">>>>>>> theirs\n",
        "inside": text.replace(b'"size"', b'<<<<<<< ours\n"size"'),
        "rule": text.replace(b'"dtype":"F32"', b'"dtype":"F31"'),
        "trailing": text + b"x",
        "prefix": b'{"theta-pointer":',
        "newer": b'{"theta-pointer":2,' + bytes(range(256)),
    }
    odd_commit = repo.commit("odd", **odd)
    repo("checkout", "-q", "HEAD~1")
    repo("checkout", "-q", odd_commit)
    assert {name: repo.read(name) for name in odd} == odd
    assert repo.status() == ""


def test_raw_files_from_before_the_filter(repo: GitRepo) -> None:
    """A checkpoint that was committed without the filter is checked out as it is, with a warning; renormalize cures it."""
    data = model().bytes()
    repo.write(".gitattributes", b"")
    repo.commit("raw", m=data)
    repo.write(".gitattributes", b"m filter=theta -text\n")
    repo("add", ".gitattributes")
    repo("commit", "-qm", "track")
    (repo.path / "m").unlink()
    done = repo.run("checkout", "HEAD", "--", "m")
    assert done.returncode == 0
    assert b"m" in done.stderr
    assert b"renormalize" in done.stderr
    assert repo.read("m") == data
    repo("add", "--renormalize", ".")
    repo("commit", "-qm", "cured")
    assert parse(repo.blob("m")) is not None
    assert repo.status() == ""
    assert repo.read("m") == data


def test_files_that_git_reads_stay_readable(repo: GitRepo) -> None:
    """A pattern that takes in .gitattributes itself does not make a pointer of it: every clone must read it."""
    repo.write(".gitattributes", b"* filter=theta -text\n")
    repo.write("sub/.gitignore", b"*.tmp\n")
    repo("add", "-A")
    repo("commit", "-q", "-m", "all")
    assert repo.blob(".gitattributes", "HEAD") == b"* filter=theta -text\n"
    assert repo.blob("sub/.gitignore", "HEAD") == b"*.tmp\n"
    assert repo.text("status", "--porcelain") == ""
