"""What does a LoRA fine-tuning cost in the repository, merged by torch, and does torch's file come back?

MiniLM is trained for some steps with LoRA on query and value (`bert`), merged by torch in fp32, bf16 and fp16, and added with
its adapter; the same merged file is added dense, as delta and with no hint for comparison. Printed are the bytes stored for
the parameters that changed. Prints a table; fails if any SHA-256 differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from benchmarks.bert import Lora, Weights, batches, train
from benchmarks.sites import Repository, Site
from scripts import inputs

RANK, ALPHA, RATE = 8, 16, 1e-3
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


def main() -> None:
    """Train, merge, add, check out; print what it cost."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="two steps, fp32 only")
    options = parser.parse_args()
    weights = load_file(inputs.path("minilm"))
    vocabulary = inputs.path("minilm-vocab").read_text(encoding="utf-8").splitlines()
    steps = 2 if options.quick else 40
    lora, losses = train(weights, batches(vocabulary, steps, 16), rank=RANK, alpha=ALPHA, rate=RATE)
    tail = sum(losses[-steps // 6 or -1 :]) / len(losses[-steps // 6 or -1 :])
    print(f"{steps} steps of AdamW, rank {RANK}, alpha {ALPHA}: loss {losses[0]:.3f} → {tail:.3f}")
    print(f"{'merged by torch in':20}{'raw':>12}{'dense':>12}{'delta':>12}{'adapter':>12}{'defined':>12}")
    with Site() as site:
        adapter = lora.save(site.top / "adapter")
        for name in ["F32"] if options.quick else DTYPES:
            figures = one(site, {k: _cast(v, DTYPES[name]) for k, v in weights.items()}, lora, adapter, name)
            print(f"{name:20}" + "".join(f"{figure:>12,}" for figure in figures), flush=True)
    print("bytes stored for the changed parameters; torch's own file came back each time, SHA-256 compared")


def one(site: Site, weights: Weights, lora: Lora, adapter: Path, name: str) -> list[int]:
    """Raw bytes of the changed parameters, then those stored: dense, delta, with the adapter, defined by the adapter."""
    base = site.top / f"{name}.base"
    merged = site.top / f"{name}.merged"
    save_file(dict(weights), base, {"format": "pt"})
    save_file(lora.merged(weights), merged, {"format": "pt"})
    changed = {f"{module}.weight" for module in lora.factors}
    figures = [sum(weights[parameter].nbytes for parameter in changed)]
    hints = {
        "dense": ["--update-type", "dense"],
        "delta": ["--update-type", "delta"],
        "low-rank": ["--update-type", "low-rank", "--update-data", str(adapter)],
    }
    for update, options in hints.items():
        repository = site.repository(f"{name}-{update}")
        target = repository.path / "model.safetensors"
        target.write_bytes(base.read_bytes())
        first = repository.commit("base")
        target.write_bytes(merged.read_bytes())
        repository.git("theta", "add", target.name, *options)
        figures.append(_stored(repository, changed, update))
        second = repository.commit("merged")
        for commit, source in ((first, base), (second, merged)):
            repository.git("checkout", "-q", commit)
            assert _sha256(target) == _sha256(source), f"{name} {update}: another file came back"
        if update == "low-rank":
            repository.git("checkout", "-q", first)
            repository.git("theta", "add", target.name, *options)
            figures.append(_stored(repository, changed, update))
            defined = _sha256(target)
            repository.git("commit", "-q", "-m", "defined")
            target.unlink()
            repository.git("checkout", target.name)
            assert _sha256(target) == defined, f"{name}: the defined file changed"
    return figures


def _stored(repository: Repository, names: set[str], update: str) -> int:
    shown = json.loads(repository.git("theta", "show", "model.safetensors", "--json"))
    parameters = [parameter for parameter in shown["parameters"] if parameter["name"] in names]
    assert {parameter["update"] for parameter in parameters} == {update}
    return sum(parameter["stored"] for parameter in parameters)


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
