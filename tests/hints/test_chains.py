"""Chains of updates: where they end, how they are re-based, what they never reach across, and why a type was chosen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.cli.theta import ok, ok_json, theta
from tests.git.models import Model
from tests.gitrepo import GitRepo
from tests.hints.adapted import NAME, all_right, base, by_rule, factors, pointer, staged, updates, write_data


def low_rank_steps(models: GitRepo, folder: Path, count: int) -> dict[str, bytes]:
    """A first version and `count` low-rank updates of it, each committed."""
    model = base()
    versions = {models.commit("first", **{"a.m": model.bytes()}): model.bytes()}
    for number in range(count):
        r, c = factors(number + 10)
        data = write_data(folder / "f", {f"{NAME}/R": r, f"{NAME}/C": c})
        ok(models, "add", "a.m", "--update-type", "low-rank", "--update-data", str(data))
        model = model.put(**{NAME: by_rule(model.tensors[NAME], r, c, 1.0)})
        models("commit", "-qm", str(number))
        versions[models.head()] = model.bytes()
    return versions


def test_depth_is_capped_for_hints_too(
    models: GitRepo, short_dir: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """With theta.maxDepth 2 every third low-rank update is stored whole instead, with a line that says why."""
    monkeypatch.setenv("THETA_MAX_DEPTH", "2")
    versions = low_rank_steps(models, short_dir, 4)
    depths = [pointer(models, revision=commit).by_name[NAME].depth for commit in versions]
    assert depths == [0, 1, 2, 0, 1]
    assert capfd.readouterr().err.count("not low-rank, since the chain has reached its depth of 2") == 1
    all_right(models, versions)


def test_a_chain_ends_at_whatever_stands_alone(models: GitRepo, short_dir: Path) -> None:
    """Low-rank on dense, sparse on low-rank, a constant, ia3 on the constant: nothing below the constant is needed."""
    versions = low_rank_steps(models, short_dir, 2)
    model = base().put(**{NAME: np.full((96, 64), 0.5, "<f4")})
    versions[models.commit("constant", **{"a.m": model.bytes()})] = model.bytes()
    scale = (1 + factors(3)[0][:, :1]).astype("<f4")
    data = write_data(short_dir / "f", {f"{NAME}/ia3": scale})
    ok(models, "add", "a.m", "--update-type", "ia3", "--update-data", str(data))
    models("commit", "-qm", "ia3")
    model = model.put(**{NAME: model.tensors[NAME] * scale})
    versions[models.head()] = model.bytes()
    edited = model.edit(NAME, 3, 20)
    versions[models.commit("edit", **{"a.m": edited.bytes()})] = edited.bytes()
    found = pointer(models)
    assert (found.by_name[NAME].update, found.by_name[NAME].depth) == ("sparse", 2)
    old = {parameter.object for parameter in pointer(models, revision="HEAD~3").parameters if parameter.name == NAME}
    assert not old & set(found.objects)
    all_right(models, versions)


def test_squash(models: GitRepo, short_dir: Path) -> None:
    """The index's checkpoint stands on its own, its bytes and the work tree as they were; an edited file stays edited."""
    versions = low_rank_steps(models, short_dir, 3)
    last = models.read("a.m")
    before = pointer(models)
    stat = (models.path / "a.m").stat()
    assert "1 parameters stored whole" in ok(models, "squash")
    after = staged(models)
    assert (after.digest, after.lineage, dict(after.history)) == (before.digest, None, {})
    assert all(parameter.previous is None for parameter in after.parameters)
    assert {name: updates(after)[name] for name in updates(after) if name != NAME} == {
        name: updates(before)[name] for name in updates(before) if name != NAME
    }
    assert models.text("status", "--porcelain") == "M  a.m"
    assert (models.path / "a.m").stat().st_mtime_ns == stat.st_mtime_ns
    models("commit", "-qm", "squash")
    versions[models.head()] = last
    assert "nothing to do" in ok(models, "squash", "a.m")
    all_right(models, versions)
    # What only the past needs can go: the squashed version is whole without it.
    root = models.path / ".git" / "lfs" / "objects"
    for path in root.glob("??/??/*"):
        if path.name not in after.objects:
            path.unlink()
    (models.path / "a.m").unlink()
    models("checkout", "-q", "a.m", env={"THETA_DAEMON": "never"})
    assert models.read("a.m") == last


def test_squash_with_an_edited_file(models: GitRepo, short_dir: Path) -> None:
    """The work tree's edits are not staged by it; unknown paths are errors."""
    low_rank_steps(models, short_dir, 1)
    digest = pointer(models).digest
    models.write("a.m", base(9).bytes())
    ok(models, "squash", "a.m", cwd=models.path)
    assert staged(models).digest == digest
    assert staged(models).lineage is None
    assert models.read("a.m") == base(9).bytes()
    assert models.text("status", "--porcelain") == "MM a.m"
    assert theta(models, "squash", "nowhere").returncode == 1


def test_stale_bases_are_never_used(models: GitRepo, short_dir: Path) -> None:
    """Removed and added again, renamed, reshaped, recast, moved to another file: no update reaches across, hinted or not."""
    r, c = factors()
    write_data(short_dir / "f", {f"{NAME}/R": r, f"{NAME}/C": c, "other/R": r, "other/C": c})
    hint = {"GIT_THETA_UPDATE_TYPE": "low-rank", "GIT_THETA_UPDATE_DATA_PATH": str(short_dir / "f")}
    first = base()
    weight = first.tensors[NAME]
    merged = by_rule(weight, r, c, 1.0)
    steps: list[tuple[str, Model]] = [
        ("a.m", first),
        ("a.m", first.without(NAME)),
        ("a.m", first.put(**{NAME: merged})),
        ("a.m", first.without(NAME).put(other=by_rule(merged, r, c, 1.0))),
        ("a.m", first.put(**{NAME: weight.reshape(64, 96) + np.float32(1)})),
        ("a.m", first.put(**{NAME: (weight + 2).astype("<f8")})),
    ]
    versions = {}
    for number, (path, model) in enumerate(steps):
        models.write(path, model.bytes())
        models("add", path, env=hint)
        models("commit", "-qm", str(number))
        versions[models.head()] = model.bytes()
        found = pointer(models, path).by_name
        assert all(found[name].previous is None for name in (NAME, "other") if name in found)
    models("mv", "a.m", "b.m")
    moved = steps[-1][1].edit("bias", 1, 30).bytes()
    models.write("b.m", moved)
    models("add", "b.m", env=hint)
    models("commit", "-qm", "moved")
    assert pointer(models, "b.m").by_name["bias"].previous is None
    assert models.read("b.m") == moved
    models("checkout", "-q", "HEAD~1")
    all_right(models, versions)
    models("checkout", "-q", "main")
    assert models.read("b.m") == moved


def test_explain(models: GitRepo, short_dir: Path) -> None:
    """Each parameter's possible forms with their sizes, and why it has the one it has; of the index and of revisions."""
    first = base()
    models.commit("one", **{"a.m": first.bytes()})
    r, c = factors()
    data = write_data(short_dir / "f", {f"{NAME}/R": r, f"{NAME}/C": c})
    ok(models, "add", "a.m", "--update-type", "low-rank", "--update-data", str(data))
    second = first.put(**{NAME: by_rule(first.tensors[NAME], r, c, 1.0)}).edit("embed.weight", 1, 9)
    second = second.put(bias=first.tensors["bias"] + np.float32(1e-5), norm=np.full(64, 2, "<f4"))
    models.write("a.m", second.bytes())
    ok(models, "add", "a.m", "--update-type", "low-rank", "--update-data", str(data))
    in_index = {one["name"]: one for one in ok_json(models, "show", "a.m", "--explain", "--json")}
    assert in_index[NAME]["reason"] == "a hint asked for it, and it gives the value back"
    assert {"dense", "sparse", "delta"} <= set(in_index[NAME]["candidates"])
    assert in_index[NAME]["stored"] < min(in_index[NAME]["candidates"].values())
    for name, update in {"embed.weight": "sparse", "bias": "delta", "norm": "constant"}.items():
        assert in_index[name]["update"] == update
        assert in_index[name]["reason"] == "the smallest"
        assert in_index[name]["candidates"][update] == in_index[name]["stored"]
    assert "previous version's" in in_index["block.1.weight"]["reason"]
    models("commit", "-qm", "two")
    assert {one["name"]: one for one in ok_json(models, "show", "a.m", "--explain", "--json")} == in_index
    third = second.retrain("bias", 3).bytes()
    models.commit("three", **{"a.m": third})
    assert {one["name"]: one for one in ok_json(models, "show", "HEAD~1:a.m", "--explain", "--json")} == in_index
    table = ok(models, "show", "HEAD~2:a.m", "--explain")
    assert "the smallest" in table
    assert "sparse" not in table


def test_explain_tells_a_capped_chain(models: GitRepo, short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only the cap stands in the way of something smaller, that is the reason."""
    monkeypatch.setenv("THETA_MAX_DEPTH", "1")
    model = base()
    for number in range(3):
        models.commit(str(number), **{"a.m": model.bytes()})
        model = model.edit(NAME, number, 5)
    (one,) = [one for one in ok_json(models, "show", "a.m", "--explain", "--json") if one["name"] == NAME]
    assert (one["update"], one["reason"]) == ("dense", "the chain has reached its depth of 1")
    assert one["candidates"]["sparse"] < one["stored"] / 10
