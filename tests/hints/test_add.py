"""`git theta add` with hints: what a checkpoint becomes, how it is stored, and what is left alone when it cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.theta import ok, theta
from tests.gitrepo import GitRepo
from tests.hints.adapted import (
    NAME,
    all_right,
    base,
    by_rule,
    factors,
    pointer,
    staged,
    updates,
    write_adapter,
    write_data,
)


def file_names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_factors_define_the_new_value(models: GitRepo, short_dir: Path) -> None:
    """The checkpoint is HEAD's: the file is rewritten by the documented rule, its mode kept, and git sees no change."""
    first = base()
    versions = {models.commit("one", **{"a.m": first.bytes()}): first.bytes()}
    (models.path / "a.m").chmod(0o755)
    models("commit", "-aqm", "mode", "--allow-empty")
    r, c = factors()
    data = write_data(short_dir / "f", {f"{NAME}/R": r, f"{NAME}/C": c, f"{NAME}/alpha": np.array(0.5, "<f4")})
    ok(models, "add", "a.m", "--update-type", "low-rank", "--update-data", str(data))
    expected = first.put(**{NAME: by_rule(first.tensors[NAME], r, c, 0.5)}).bytes()
    assert models.read("a.m") == expected
    assert models.text("status", "--porcelain") == "M  a.m"
    assert (models.path / "a.m").stat().st_mode & 0o777 == 0o755
    found = staged(models).by_name[NAME]
    assert found.update == "low-rank"
    assert found.stored < 4 * (r.size + c.size)
    assert file_names(models.path) == {".git", ".gitattributes", "a.m"}
    models("commit", "-qm", "two")
    versions[models.head()] = expected
    all_right(models, versions)


def test_a_recipe_does_not_undo_training(models: GitRepo, short_dir: Path) -> None:
    """Rules without data only say how values may be stored: HEAD's are not replaced by them, unless they say `define`."""
    first = base().bytes()
    models.commit("one", **{"a.m": first})
    rule = 'type = "random"\ngenerator = "philox"\ndistribution = "normal"\nseed = 1\n'
    (short_dir / "h.toml").write_text(f"[[rule]]\n{rule}")
    ok(models, "add", "a.m", "--hints", str(short_dir / "h.toml"))
    assert models.read("a.m") == first
    assert models.text("status", "--porcelain") == ""
    (short_dir / "h.toml").write_text(f"[[rule]]\ndefine = true\npattern = 'bias'\n{rule}")
    ok(models, "add", "a.m", "--hints", str(short_dir / "h.toml"))
    assert models.read("a.m") != first
    assert staged(models).by_name["bias"].update == "random"


@pytest.mark.parametrize("kind", ["peft", "peft-file", "ia3", "sparse", "constant"])
def test_other_data_defines_too(models: GitRepo, short_dir: Path, kind: str) -> None:
    """A PEFT adapter, ia3 scales, git-theta's sparse additions, a constant: by the types' own rules."""
    first = base()
    weight = first.tensors[NAME]
    models.commit("one", **{"a.m": first.bytes()})
    r, c = factors()
    options: list[str] = []
    if kind.startswith("peft"):
        data = write_adapter(short_dir / "f", {"block.0.lora_A.weight": c, "block.0.lora_B.weight": r}, lora_alpha=6)
        data = data / "adapter_model.safetensors" if kind == "peft-file" else data
        name, expected = "low-rank", by_rule(weight, r, c, 3.0)
    elif kind == "ia3":
        scale = (1 + r[:, :1]).astype("<f4")
        data = write_data(short_dir / "f", {f"{NAME}/ia3": scale})
        name, expected = "ia3", (weight.astype("f8") * scale.astype("f8")).astype("<f4")
    elif kind == "sparse":
        places = np.array([3, 70, 6000], "<i8")
        arrays = {"data": np.array([1, -2, 0.5], "<f4"), "indices": places, "indptr": np.array([0, 3], "<i8")}
        arrays["shape"] = np.array([1, weight.size], "<i8")
        data = write_data(short_dir / "f", {f"{NAME}/{key}": array for key, array in arrays.items()})
        name, expected = "sparse", weight.copy()
        expected.reshape(-1)[places] += arrays["data"]
    else:
        data, name, expected = None, "constant", np.full_like(weight, 0.25)
        rules = short_dir / "h.toml"
        rules.write_text(f'[[rule]]\npattern = "{NAME}"\ntype = "constant"\nvalue = 0.25\ndefine = true\n')
        options = ["--hints", str(rules)]
    if data is not None:
        options = ["--update-type", name, "--update-data", str(data)]
    ok(models, "add", *options, "a.m")
    assert models.read("a.m") == first.put(**{NAME: expected}).bytes()
    assert staged(models).by_name[NAME].update == name
    assert models.text("status", "--porcelain") == "M  a.m"


def test_merged_weights_keep_their_bits(models: GitRepo, short_dir: Path) -> None:
    """The file holds what a framework merged, which rounds otherwise: factors and a residual give its bits, in less room."""
    first = base()
    models.commit("one", **{"a.m": first.bytes()})
    r, c = factors()
    merged = first.put(**{NAME: first.tensors[NAME] + np.float32(2) * (r @ c)}).bytes()
    models.write("a.m", merged)
    data = write_data(short_dir / "f", {f"{NAME}/R": r, f"{NAME}/C": c, f"{NAME}/alpha": np.array(2, "<f4")})
    ok(models, "add", "a.m", "--update-type", "low-rank", "--update-data", str(data))
    assert models.read("a.m") == merged
    hinted = staged(models).by_name[NAME]
    models("reset", "-q")
    models("add", "a.m", env={"GIT_THETA_UPDATE_TYPE": "delta"})
    assert (hinted.update, staged(models).by_name[NAME].update) == ("low-rank", "delta")
    assert hinted.stored < staged(models).by_name[NAME].stored / 2


def test_a_second_time_changes_nothing(models: GitRepo, short_dir: Path) -> None:
    """Staged and not committed: the same command again does not add the factors twice, nor change the pointer."""
    models.commit("one", **{"a.m": base().bytes()})
    r, c = factors()
    data = write_data(short_dir / "f", {f"{NAME}/R": r, f"{NAME}/C": c})
    command = ["add", "a.m", "--update-type", "low-rank", "--update-data", str(data)]
    ok(models, *command)
    once = models.read("a.m"), models("cat-file", "blob", ":a.m")
    ok(models, *command)
    assert (models.read("a.m"), models("cat-file", "blob", ":a.m")) == once


def test_plain_add_then_hinted_add(models: GitRepo, short_dir: Path) -> None:
    """What was staged without hints is stored anew with them; afterwards git's own re-cleans find the hinted pointer."""
    first = base()
    models.commit("one", **{"a.m": first.bytes()})
    r, c = factors()
    merged = first.put(**{NAME: by_rule(first.tensors[NAME], r, c, 1.0)}).bytes()
    models.write("a.m", merged)
    models("add", "a.m")
    assert staged(models).by_name[NAME].update == "delta"
    data = write_data(short_dir / "f", {f"{NAME}/R": r, f"{NAME}/C": c})
    ok(models, "add", "a.m", "--update-type", "low-rank", "--update-data", str(data))
    assert staged(models).by_name[NAME].update == "low-rank"
    hinted = models("cat-file", "blob", ":a.m")
    (models.path / "a.m").touch()
    models("add", "a.m")
    assert models("cat-file", "blob", ":a.m") == hinted


def test_several_files_from_a_folder(models: GitRepo, short_dir: Path) -> None:
    """Paths, patterns, data and hints are relative to where the command runs; each rule speaks of its files."""
    first = base()
    models.commit("one", **{"sub/a.m": first.bytes(), "b.m": first.bytes()})
    r, c = factors()
    write_data(models.path / "sub" / "f.txt", {f"{NAME}/R": r, f"{NAME}/C": c})
    (models.path / "sub" / "h.toml").write_text(
        '[[rule]]\nfiles = "sub/*"\ntype = "low-rank"\ndata = "f.txt"\n[[rule]]\nfiles = "b.m"\n'
        'pattern = "bias"\ntype = "constant"\nvalue = 1\ndefine = true\n'
    )
    ok(models, "add", "--hints", "h.toml", "a.m", "../b.m", cwd=models.path / "sub")
    merged = by_rule(first.tensors[NAME], r, c, 1.0)
    assert models.read("sub/a.m") == first.put(**{NAME: merged}).bytes()
    assert models.read("b.m") == first.put(bias=np.ones_like(first.tensors["bias"])).bytes()
    assert staged(models, "b.m").by_name[NAME].update == "dense"


def test_one_commit_of_many_types(models: GitRepo, short_dir: Path) -> None:
    """A hints file gives each kind of parameter its type: dense, sparse, low-rank, ia3 and constant in one commit."""
    first = base()
    models.commit("one", **{"a.m": first.bytes()})
    r, c = factors()
    scale = (1 + factors(7)[0][:, :1]).astype("<f4")
    write_data(short_dir / "f", {f"{NAME}/R": r, f"{NAME}/C": c, "block.1.weight/ia3": scale})
    rules = [
        {"pattern": NAME, "type": "low-rank", "data": "f"},
        {"pattern": "block.1.*", "type": "ia3", "data": "f"},
        {"pattern": "embed.*", "type": "sparse"},
        {"pattern": "bias", "type": "dense"},
    ]
    (short_dir / "h.json").write_text(json.dumps({"rule": rules}))
    second = first.put(
        **{
            NAME: by_rule(first.tensors[NAME], r, c, 1.0),
            "block.1.weight": first.tensors["block.1.weight"] * scale,
            "bias": first.tensors["bias"] + np.float32(1e-4),
            "norm": np.full_like(first.tensors["norm"], 3),
        }
    ).edit("embed.weight", 5, 40)
    models.write("a.m", second.bytes())
    ok(models, "add", "a.m", "--hints", str(short_dir / "h.json"))
    assert updates(staged(models)) == {
        NAME: "low-rank",
        "block.1.weight": "ia3",
        "embed.weight": "sparse",
        "bias": "dense",
        "norm": "constant",
    }


def test_factors_are_found_on_request(models: GitRepo, capfd: pytest.CaptureFixture[str]) -> None:
    """`--rank N` finds factors of what was trained; parameters that have none are stored otherwise, with a line each kind."""
    first = base()
    models.commit("one", **{"a.m": first.bytes()})
    r, c = factors()
    second = first.put(**{NAME: first.tensors[NAME] + r @ c, "bias": first.tensors["bias"] + 1})
    models.write("a.m", second.bytes())
    ok(models, "add", "a.m", "--update-type", "low-rank", "--rank", str(r.shape[1]))
    assert staged(models).by_name[NAME].update == "low-rank"
    (line,) = capfd.readouterr().err.splitlines()
    assert "a.m: stored as" in line
    assert line.endswith(": bias")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--update-type", "lowrank"], "'lowrank' is not known"),
        (["--update-type", "low-rank", "--update-data", "nowhere"], "No such file"),
        (["--hints", "nowhere.toml"], "No such file"),
        (["--hints", "bad.toml"], "bad.toml"),
        (["--hints", "extra.json"], "type"),
        (["--update-type", "low-rank", "--update-data", "wrong"], "does not fit parameter 'block.0.weight'"),
        (["--update-type", "low-rank", "--update-data", "other"], "no checkpoint has a parameter"),
        (["--update-type", "low-rank", "--update-options", "[]"], "not a JSON object"),
        (["--update-type", "random", "--update-options", '{"seed": -1}'], "recipe"),
        (["--update-type", "low-rank", "--update-data", "text"], "not a checkpoint of a known format"),
    ],
)
def test_mistakes_are_errors_before_anything(models: GitRepo, options: list[str], words: str) -> None:
    """Unknown types, missing or malformed files, data that fits nothing: status 1, nothing staged, no file touched."""
    first = base()
    models.commit("one", **{"a.m": first.bytes(), "b.m": first.bytes()})
    edited = first.edit("bias", 1).bytes()
    models.write("b.m", edited)
    r, c = factors()
    write_data(models.path / "wrong", {f"{NAME}/R": r[:-1], f"{NAME}/C": c})
    write_data(models.path / "other", {"blocks/R": r, "blocks/C": c})
    models.write("bad.toml", b"[[rule]\n")
    models.write("extra.json", b'{"rule": [{"pattern": "*"}]}')
    models.write("text", b"no checkpoint")
    said = theta(models, "add", "b.m", "a.m", *options)
    assert said.returncode == 1
    assert words in said.stderr.decode()
    assert models.text("diff", "--cached", "--name-only") == ""
    assert models.read("a.m") == first.bytes()
    assert models.read("b.m") == edited


def test_usage(models: GitRepo, short_dir: Path) -> None:
    """Data without a type, hints without a file, and hints for files that are no checkpoints."""
    models.commit("one", **{"a.m": base().bytes(), "plain.txt": b"text"})
    assert theta(models, "add", "a.m", "--rank", "3").returncode == 2
    assert theta(models, "add", "--update-type", "dense").returncode == 2
    said = theta(models, "add", "plain.txt", "--update-type", "dense")
    assert said.returncode == 1
    assert b"no checkpoint is called plain.txt" in said.stderr


def test_a_failing_git_gets_nothing(models: GitRepo, short_dir: Path) -> None:
    """When git cannot take the new version the work tree has the old one again; a dry run never touches it."""
    first = base()
    models.commit("one", **{"a.m": first.bytes()})
    r, c = factors()
    data = write_data(short_dir / "f", {f"{NAME}/R": r, f"{NAME}/C": c})
    command = ["add", "a.m", "--update-type", "low-rank", "--update-data", str(data)]
    models.write(".git/index.lock", b"")
    assert theta(models, *command).returncode == 128
    assert models.read("a.m") == first.bytes()
    (models.path / ".git" / "index.lock").unlink()
    ok(models, *command, "--dry-run")
    assert models.read("a.m") == first.bytes()
    assert file_names(models.path) == {".git", ".gitattributes", "a.m"}


def test_a_whole_tensor_in_an_adapter(models: GitRepo, short_dir: Path) -> None:
    """What an adapter trained beside its factors (`modules_to_save`) becomes the parameter's value."""
    first = base()
    models.commit("one", **{"a.m": first.bytes()})
    r, c = factors()
    head = np.arange(96, dtype="<f4")
    arrays: dict[str, Any] = {"block.0.lora_A.weight": c, "block.0.lora_B.weight": r, "bias": head}
    adapter = write_adapter(short_dir / "f", arrays, lora_alpha=2)
    ok(models, "add", "a.m", "--update-type", "low-rank", "--update-data", str(adapter))
    assert models.read("a.m") == first.put(**{NAME: by_rule(first.tensors[NAME], r, c, 1.0), "bias": head}).bytes()
    models("commit", "-qm", "two")
    assert pointer(models).by_name["bias"].update in {"dense", "delta"}
