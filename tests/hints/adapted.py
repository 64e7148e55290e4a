"""Models and what adapts them: factors, scales and PEFT adapters as files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.git.models import Array, Model, safetensors
from tests.gitrepo import GitRepo
from theta_daemon.pointer import Pointer, parse

NAME = "block.0.weight"
ROWS, COLUMNS, RANK = 96, 64, 2


def base(seed: int = 0) -> Model:
    """Attention, a feed-forward matrix, an embedding, a bias and a norm."""
    rng = np.random.default_rng(seed)

    def floats(*shape: int) -> Array:
        return (0.05 * rng.standard_normal(shape)).astype("<f4")

    return Model(
        {
            NAME: floats(ROWS, COLUMNS),
            "block.1.weight": floats(ROWS, COLUMNS),
            "embed.weight": floats(200, 32),
            "bias": floats(ROWS),
            "norm": np.ones(COLUMNS, "<f4"),
        }
    )


def factors(seed: int = 1, rows: int = ROWS, columns: int = COLUMNS, rank: int = RANK) -> tuple[Array, Array]:
    """R and C."""
    rng = np.random.default_rng(seed)
    return (
        (0.1 * rng.standard_normal((rows, rank))).astype("<f4"),
        (0.1 * rng.standard_normal((rank, columns))).astype("<f4"),
    )


def by_rule(weight: Array, r: Array, c: Array, scale: float) -> Array:
    """weight + scale · R C in the documented order, written down once more: float64, ascending k, one rounding."""
    total = np.multiply(r[:, :1].astype("f8"), c[:1].astype("f8"))
    for k in range(1, r.shape[1]):
        total = np.add(total, np.multiply(r[:, k : k + 1].astype("f8"), c[k : k + 1].astype("f8")))
    merged: Array = np.add(np.multiply(total, scale), weight.astype("f8")).astype(weight.dtype)
    return merged


def write_data(path: Path, arrays: Mapping[str, Array]) -> Path:
    path.write_bytes(safetensors(arrays))
    return path


def write_adapter(folder: Path, arrays: Mapping[str, Array], **config: Any) -> Path:
    """A PEFT adapter, as the library saves it."""
    folder.mkdir()
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": 2 * RANK, "fan_in_fan_out": False} | config
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    write_data(folder / "adapter_model.safetensors", {f"base_model.model.{name}": a for name, a in arrays.items()})
    return folder


def pointer(repo: GitRepo, path: str = "a.m", revision: str = "HEAD") -> Pointer:
    found = parse(repo.blob(path, revision))
    assert found is not None
    return found


def staged(repo: GitRepo, path: str = "a.m") -> Pointer:
    found = parse(repo("cat-file", "blob", f":{path}"))
    assert found is not None
    return found


def updates(found: Pointer) -> dict[str, str]:
    """Types by parameter."""
    return {parameter.name: parameter.update for parameter in found.parameters}


def all_right(repo: GitRepo, versions: Mapping[str, bytes], path: str = "a.m") -> None:
    """Every commit gives its version, from the last one back and from the first one on."""
    for commits in (reversed(list(versions)), iter(versions)):
        for commit in commits:
            repo("checkout", "-q", commit)
            assert repo.read(path) == versions[commit]
    assert repo.status() == ""
