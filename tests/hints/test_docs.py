"""What docs/updates.md and docs/recipes.md show is true: their documents are read and do what stands beside them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.cli.theta import ok, theta
from tests.git.models import Model
from tests.gitrepo import GitRepo
from tests.hints.adapted import RANK, factors, staged, updates, write_adapter

DOCS = Path(__file__).resolve().parent.parent.parent / "docs"


def blocks(name: str) -> list[str]:
    """The TOML documents of a page."""
    return re.findall(r"```toml\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.DOTALL)


def test_the_recipe(short_dir: Path) -> None:
    """Makes the template's tensors and its own."""
    (short_dir / "recipe.toml").write_text(blocks("recipes.md")[0].replace("30522", "305"))
    (short_dir / "other.safetensors").write_bytes(Model({"layer.bias": np.ones(5, "<f4")}).bytes())
    ok(short_dir, "init-checkpoint", "recipe.toml", "--output", "model.safetensors")
    assert len((short_dir / "model.safetensors").read_bytes()) > 305 * 384 * 2


def test_the_recipe_for_torch(models: GitRepo) -> None:
    """A network of linear layers with torch's default initialisation is stored as random."""
    (models.path / "recipe.toml").write_text(blocks("recipes.md")[1])
    torch.manual_seed(3)
    torch.save(torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(3))).state_dict(), models.path / "a.m")
    ok(models, "add", "a.m", "--hints", "recipe.toml")
    assert set(updates(staged(models)).values()) == {"random"}


def test_the_hints_file(models: GitRepo) -> None:
    """Rules with data, prefix, paths and options."""
    (models.path / "hints.toml").write_text(blocks("updates.md")[0])
    rng = np.random.default_rng(0)
    weight, embed, head = (rng.standard_normal(shape).astype("<f4") for shape in ((96, 64), (300, 8), (200, 160)))
    model = Model({"model.mlp.weight": weight, "embed": embed, "head.weight": head})
    models.commit("one", **{"checkpoints/a.m": model.bytes()})
    r, c = factors()
    write_adapter(models.path / "adapter", {"mlp.lora_A.weight": c, "mlp.lora_B.weight": r}, lora_alpha=RANK)
    (left, right) = factors(2, 200, 160, 8)
    tuned = model.put(**{"model.mlp.weight": weight + r @ c, "head.weight": head + left @ right}).edit("embed", 1)
    models.write("checkpoints/a.m", tuned.bytes())
    ok(models, "add", "checkpoints/a.m", "--hints", "hints.toml")
    found = updates(staged(models, "checkpoints/a.m"))
    assert found == {"model.mlp.weight": "low-rank", "embed": "sparse", "head.weight": "low-rank"}


@pytest.mark.parametrize("command", ["add", "init-checkpoint", "squash", "show"])
def test_help(short_dir: Path, command: str) -> None:
    """Every option that the pages name is in the command's help."""
    said = theta(short_dir, command, "--help")
    assert said.returncode == 0
    named = {
        "add": ("--update-type", "--update-data", "--update-options", "--rank", "--hints"),
        "init-checkpoint": ("--output",),
        "squash": ("work tree",),
        "show": ("--explain",),
    }
    for option in named[command]:
        assert option in said.stdout.decode()
