"""What real training leaves behind: a LoRA run merged by torch, a fine-tuned model, a model that a recipe began."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.bert import Lora, train
from scripts import inputs
from tests.cli.theta import ok
from tests.gitrepo import GitRepo
from tests.hints.adapted import all_right, pointer, staged

WIDTH, WORDS, LAYERS, HEADS = 64, 300, 2, 4


def small_bert() -> dict[str, torch.Tensor]:
    """MiniLM's names with a few per cent of its size."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.empty(shape).normal_(0, 0.1, generator=generator)

    weights = {
        "embeddings.word_embeddings.weight": normal(WORDS, WIDTH),
        "embeddings.position_embeddings.weight": normal(32, WIDTH),
        "embeddings.token_type_embeddings.weight": normal(2, WIDTH),
    }
    shapes = {"attention.output.dense": (WIDTH, WIDTH), "output.dense": (WIDTH, 4 * WIDTH)}
    shapes |= {f"attention.self.{name}": (WIDTH, WIDTH) for name in ("query", "key", "value")}
    shapes["intermediate.dense"] = (4 * WIDTH, WIDTH)
    for layer in range(LAYERS):
        for name, shape in shapes.items():
            weights[f"encoder.layer.{layer}.{name}.weight"] = normal(*shape)
            weights[f"encoder.layer.{layer}.{name}.bias"] = torch.zeros(shape[0])
    norms = [f"encoder.layer.{layer}.{name}" for layer in range(LAYERS) for name in ("attention.output", "output")]
    for name in ["embeddings", *norms]:
        weights[f"{name}.LayerNorm.weight"] = torch.ones(WIDTH)
        weights[f"{name}.LayerNorm.bias"] = torch.zeros(WIDTH)
    return weights


@cache
def trained() -> tuple[dict[str, torch.Tensor], Lora, list[float]]:
    """An adapter after eight steps on pairs of like sentences. Nobody changes it."""
    weights = small_bert()
    generator = torch.Generator().manual_seed(1)
    batches = []
    for _ in range(8):
        left = torch.randint(0, WORDS, (8, 1, 12), generator=generator)
        right = torch.where(torch.rand(left.shape, generator=generator) < 0.5, left, (left + 1) % WORDS)
        batches.append((torch.cat([left, right], 1).reshape(16, 12), torch.ones(16, 12)))
    lora, losses = train(weights, batches, rank=4, alpha=8, rate=2e-2, heads=HEADS)
    return weights, lora, losses


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_torchs_merged_file_comes_back(models: GitRepo, short_dir: Path, dtype: torch.dtype) -> None:
    """Added with its adapter: every byte of torch's merged file, in a good deal less room than as a delta or dense."""
    weights, lora, losses = trained()
    assert losses[-1] < losses[0]
    weights = {name: tensor.to(dtype) for name, tensor in weights.items()}
    adapter = lora.save(short_dir / "adapter")
    target = models.path / "a.m"
    save_file(weights, target)
    versions = {models.commit("base"): target.read_bytes()}
    save_file(lora.merged(weights), target)
    digest = hashlib.sha256(target.read_bytes()).hexdigest()
    stored = {}
    for update in ("dense", "delta", "low-rank"):
        options = ["--update-data", str(adapter)] if update == "low-rank" else []
        ok(models, "add", "a.m", "--update-type", update, *options)
        found = staged(models).by_name
        changed = [found[f"{module}.weight"] for module in lora.factors]
        assert {parameter.update for parameter in changed} == {update}
        stored[update] = sum(parameter.stored for parameter in changed)
    assert stored["low-rank"] < 0.7 * min(stored["delta"], stored["dense"])
    versions[models.commit("merged")] = target.read_bytes()
    all_right(models, versions)
    other = models.clone(short_dir / "clone")
    assert hashlib.sha256(other.read("a.m")).hexdigest() == digest


def test_a_real_fine_tuned_model(models: GitRepo) -> None:
    """chgnet and its r2SCAN fine-tune as two commits: deltas where they win, dense where not, less in all than ZipNN's
    7,833,836 bytes for the tensors alone (benchmarks/finetune_pair.py)."""
    versions = {}
    for name in ("chgnet-0.3.0", "chgnet-r2scan"):
        content = inputs.path(name).read_bytes()
        versions[models.commit(name, **{"a.m": content})] = content
    kinds = {parameter.update for parameter in pointer(models).parameters}
    assert {"delta", "dense", "constant"} <= kinds
    objects = (models.path / ".git" / "lfs" / "objects").rglob("*")
    assert sum(path.stat().st_size for path in objects if path.is_file()) < 7_700_000
    all_right(models, versions)


RECIPE = """\
seed = 5
[[tensor]]
name = "w"
shape = [1500, 1000]
[[tensor]]
name = "half"
shape = [700, 900]
dtype = "BF16"
[[rule]]
pattern = "w"
type = "random"
generator = "mt19937"
distribution = "torch-uniform"
low = -0.1
high = 0.2
[[rule]]
type = "random"
generator = "philox"
distribution = "normal"
"""


def test_a_recipe_on_other_processors(models: GitRepo, short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of several chunks that no object holds: the same file from other processes with other instruction sets."""
    (short_dir / "r.toml").write_text(RECIPE)
    ok(models, "init-checkpoint", str(short_dir / "r.toml"), "-o", "a.m")
    content = models.read("a.m")
    models.commit("first")
    assert sum(pointer(models).objects.values()) < 1000
    monkeypatch.setenv("THETA_DAEMON", "never")
    for cpu in (
        {"ATEN_CPU_CAPABILITY": "default", "OPENBLAS_CORETYPE": "Prescott", "THETA_WORKERS": "1"},
        {"ATEN_CPU_CAPABILITY": "avx2", "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3", "THETA_WORKERS": "4"},
    ):
        (models.path / "a.m").unlink()
        models("checkout", "a.m", env=cpu)
        assert models.read("a.m") == content
