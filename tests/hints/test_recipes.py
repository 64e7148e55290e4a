"""Checkpoints that are initialised by a recipe: made the same everywhere, added without their values, rebuilt to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.cli.theta import ok, theta
from tests.git.models import Array, Model, safetensors
from tests.gitrepo import GitRepo
from tests.hints.adapted import all_right, pointer, staged, updates
from theta_daemon.filters.hints import embedded
from theta_daemon.filters.recipe import METADATA_KEY
from theta_daemon.tensor import DTYPES, TensorSpec

RECIPE = """\
seed = 7
dtype = "F32"
[metadata]
run = "a"
[[tensor]]
name = "embed.weight"
shape = [300, 64]
[[tensor]]
name = "layer.weight"
shape = [64, 64]
dtype = "BF16"
[[tensor]]
name = "layer.bias"
shape = [64]
[[tensor]]
name = "layer.norm"
shape = [64]
dtype = "F16"
[[tensor]]
name = "empty"
shape = [0, 3]
[[tensor]]
name = "ids"
shape = [9]
dtype = "I64"
[[rule]]
pattern = "*.bias"
type = "constant"
value = 0
[[rule]]
pattern = "embed.*"
type = "random"
generator = "pcg64"
distribution = "trunc-normal"
std = 0.5
bounds = [-2, 2]
[[rule]]
pattern = "layer.weight"
type = "random"
generator = "philox"
distribution = "uniform"
gain = 1.0
fan = "out"
[[rule]]
type = "constant"
value = -3
"""


def write(folder: Path, text: str = RECIPE, name: str = "r.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_made_as_told(short_dir: Path) -> None:
    """Names, shapes, dtypes and distributions are the recipe's; the library reads the file; a second one has the same bytes."""
    recipe = write(short_dir)
    ok(short_dir, "init-checkpoint", str(recipe), "--output", "a")
    ok(short_dir, "init-checkpoint", "r.toml", "-o", "b")
    assert (short_dir / "a").read_bytes() == (short_dir / "b").read_bytes()
    (short_dir / "c.toml").write_text(RECIPE.replace("seed = 7", "seed = 8"))
    ok(short_dir, "init-checkpoint", "c.toml", "-o", "c")
    assert (short_dir / "a").read_bytes() != (short_dir / "c").read_bytes()
    found = load_file(short_dir / "a")
    assert {name: tuple(tensor.shape) for name, tensor in found.items()} == {
        "embed.weight": (300, 64),
        "layer.weight": (64, 64),
        "layer.bias": (64,),
        "layer.norm": (64,),
        "empty": (0, 3),
        "ids": (9,),
    }
    embed = found["embed.weight"]
    assert embed.abs().max() <= 1
    assert 0.42 < embed.std() < 0.46
    assert 0.9 * 3**0.5 / 8 < found["layer.weight"].abs().max() <= 3**0.5 / 8
    assert not found["layer.bias"].any()
    assert (found["ids"] == -3).all()
    assert (found["layer.norm"] == -3).all()


def test_added_without_values(models: GitRepo, short_dir: Path) -> None:
    """Plain `git add` recognises it; a training step is stored on top; every version comes back; all without a word."""
    ok(models, "init-checkpoint", str(write(short_dir)), "--output", "a.m")
    first = models.read("a.m")
    assert models.run("add", "a.m").stderr == b""
    kinds = {"embed.weight": "random", "layer.weight": "random", "layer.bias": "constant", "layer.norm": "constant"}
    assert kinds.items() <= updates(staged(models)).items()
    models("commit", "-qm", "one")
    assert sum(pointer(models).objects.values()) < 1500
    versions = {models.head(): first}
    data = bytearray(first)
    data[-400:-300] = bytes(100)
    second = bytes(data)
    models.write("a.m", second)
    assert models.run("add", "a.m").stderr == b""
    models("commit", "-qm", "two")
    versions[models.head()] = second
    all_right(models, versions)


def test_in_a_clone_without_caches(models: GitRepo, short_dir: Path) -> None:
    """Another clone, with the objects and nothing else, makes the same bytes."""
    ok(models, "init-checkpoint", str(write(short_dir)), "--output", "a.m")
    models.commit("one")
    other = models.clone(short_dir / "other")
    assert other.read("a.m") == models.read("a.m")


def test_values_that_no_recipe_makes(models: GitRepo, short_dir: Path) -> None:
    """A new checkpoint with values that its recipe does not make: stored dense, with a line that says so and why."""
    ok(models, "init-checkpoint", str(write(short_dir)), "--output", "a.m")
    data = bytearray(models.read("a.m"))
    layout = load_file(models.path / "a.m")
    at = bytes(data).index(layout["embed.weight"].numpy().tobytes())
    data[at + 77] ^= 1
    models.write("a.m", bytes(data))
    said = models.run("add", "a.m")
    assert said.returncode == 0
    assert said.stderr == (
        b"theta-daemon: a.m: stored as dense, not random, since the recipe does not make these bits: embed.weight\n"
    )
    assert updates(staged(models))["layer.weight"] == "random"
    models("commit", "-qm", "one")
    all_right(models, {models.head(): bytes(data)})


@pytest.mark.parametrize("order", ["consecutive", "per-rule"])
def test_what_torch_initialised(models: GitRepo, short_dir: Path, order: str) -> None:
    """A model that torch made after `manual_seed`, as hints to a checkpoint of torch's: the default of its linear layers."""
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Linear(30, 20))
    torch.save(model.state_dict(), models.path / "a.m")
    torch_rule = 'type = "random"\ngenerator = "mt19937"\ndistribution = "torch-uniform"\n'
    if order == "consecutive":
        shapes = (("0", 1 / 40**0.5), ("1", 1 / 30**0.5))
        rules = [f'[[rule]]\npattern = "{at}.*"\n{torch_rule}low = {-bound}\nhigh = {bound}\n' for at, bound in shapes]
        text = 'seed = 3\nstreams = "consecutive"\n' + "".join(rules)
        random = {"0.weight", "0.bias", "1.weight", "1.bias"}
    else:
        text = f"[[rule]]\npattern = '0.weight'\n{torch_rule}seed = 3\ngain = {3**-0.5}\n"
        random = {"0.weight"}
    said = models.run("add", "a.m", env={"GIT_THETA_HINTS": str(write(short_dir, text))})
    assert (said.returncode, said.stderr) == (0, b"")
    assert {name for name, update in updates(staged(models)).items() if update == "random"} == random


def test_what_is_not_portable_is_stored_dense(models: GitRepo, short_dir: Path) -> None:
    """torch's normal distribution differs between processors: the rule that names it falls back and says so."""
    torch.manual_seed(3)
    data = safetensors({"w": torch.randn(64, 64).numpy()})
    models.write("a.m", data)
    rule = 'type = "random"\ngenerator = "mt19937"\ndistribution = "normal"\nseed = 3\n'
    said = models.run("add", "a.m", env={"GIT_THETA_HINTS": str(write(short_dir, f"[[rule]]\n{rule}"))})
    assert b"stored as dense, not random, since the recipe does not make these bits: w" in said.stderr
    assert updates(staged(models)) == {"w": "dense"}


def test_a_template_gives_the_tensors(short_dir: Path) -> None:
    """Names, shapes and dtypes of a checkpoint that is there, in JSON."""
    template = Model({"a.weight": np.zeros((8, 4), "<f4"), "b": np.zeros(3, "<f8")}).bytes()
    (short_dir / "t").write_bytes(template)
    rule = {"type": "random", "generator": "mt19937", "distribution": "uniform"}
    write(short_dir, json.dumps({"template": "t", "seed": 1, "rule": [rule]}), "r.json")
    ok(short_dir, "init-checkpoint", "r.json", "-o", "a")
    found = load_file(short_dir / "a")
    assert {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in found.items()} == {
        "a.weight": ((8, 4), torch.float32),
        "b": ((3,), torch.float64),
    }


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        ("seed = 7", "seed = 7\nsteps = 3", "steps"),
        ('name = "ids"', 'name = "empty"', "stands there twice"),
        ('dtype = "BF16"', 'dtype = "F12"', "'F12' is not known"),
        ("shape = [300, 64]", "shape = [300, -64]", "impossible"),
        ('type = "constant"\nvalue = -3', 'type = "constant"\nvalue = 0.5', "0.5 is no value for dtype I64"),
        ("value = -3\n", 'pattern = "x"\nvalue = -3\n', "no rule initialises tensor 'ids'"),
        ('generator = "pcg64"', 'generator = "xorshift"', "generator"),
        ("bounds = [-2, 2]", "bounds = [2]", "bounds are two numbers"),
        ('fan = "out"', 'fan = "up"', "none of in, out, mean"),
        ('pattern = "layer.weight"', 'pattern = "layer.[wn]*"', "has no fan"),
        ('seed = 7\ndtype = "F32"', 'dtype = "F32"', "seed"),
        ("[[rule]]", "[[rules]]", "rule"),
    ],
)
def test_mistakes_name_themselves(short_dir: Path, before: str, after: str, words: str) -> None:
    """What a recipe gets wrong is said, and no file is written."""
    assert before in RECIPE
    write(short_dir, RECIPE.replace(before, after))
    said = theta(short_dir, "init-checkpoint", "r.toml", "--output", "a")
    assert said.returncode == 1
    assert words in said.stderr.decode()
    assert {path.name for path in short_dir.iterdir()} == {"r.toml"}


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "[" * 60_000,
        "{}",
        '{"rule": []}',
        '{"rule": [{"pattern": "*", "type": "dense"}]}',
        '{"rule": [{"pattern": "*", "type": "random", "gain": "x", "distribution": "normal"}]}',
        json.dumps({"seed": 1, "rule": [{"pattern": "*" * 1000, "type": "random"}] * 256}),
        json.dumps({"rule": [{"type": "constant", "value": 0, "x": "y" * 100_000}]}),
    ],
)
def test_recipes_of_strangers(text: str) -> None:
    """A checkpoint may carry anything under the recipe's key: it is no recipe, or one that costs little."""
    specs = {f"a{number}": TensorSpec(DTYPES["F32"], (2,)) for number in range(5000)}
    found = embedded(text, specs)
    assert found == {} or all(hint.update == "random" for hint in found.values())


@pytest.mark.parametrize(
    "rule",
    [
        {"type": "random", "generator": "philox", "distribution": "uniform", "high": "x"},
        {"type": "random"},
        {"type": "random", "generator": "mt19937", "distribution": "uniform", "skip": 1 << 61},
    ],
)
def test_a_strangers_recipe_never_stops_an_add(models: GitRepo, rule: dict[str, object]) -> None:
    """A carried recipe with impossible options is passed over: the file is added like any other."""
    text = json.dumps({"seed": 1, "rule": [rule]})
    values: Array = np.arange(64, dtype="<f4")
    models.write("a.m", safetensors({"a": values}, {METADATA_KEY: text}))
    assert models.run("add", "a.m").returncode == 0
    assert updates(staged(models)) == {"a": "dense"}
