"""What does the first commit of a run from scratch cost: 500 MB that a recipe initialised?

A GPT-like model of 125 million parameters is made by `git theta init-checkpoint`, added and committed; then the file is checked
out again in other processes under other CPU settings. Prints seconds and bytes; fails if a SHA-256 differs or the objects take
10 KB or more.
"""

from __future__ import annotations

import argparse
import hashlib
import time
from pathlib import Path
from typing import Any

from benchmarks.sites import Site

LIMIT_BYTES = 10_000
CPUS: tuple[dict[str, Any], ...] = (
    {"ATEN_CPU_CAPABILITY": "default", "OPENBLAS_CORETYPE": "Prescott", "THETA_WORKERS": "1"},
    {"ATEN_CPU_CAPABILITY": "avx2", "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3", "OMP_NUM_THREADS": "1"},
)


def recipe(layers: int, width: int, words: int) -> str:
    """GPT-2's initialisation: normal with deviation 0.02, residual projections smaller, norms one, biases zero."""
    lines = ["seed = 1234", 'dtype = "F32"']

    def tensor(name: str, *shape: int) -> None:
        lines.extend(["[[tensor]]", f'name = "{name}"', f"shape = {list(shape)}"])

    tensor("wte.weight", words, width)
    tensor("wpe.weight", 1024, width)
    for layer in range(layers):
        for name, rows in (("attn.qkv", 3 * width), ("attn.proj", width), ("mlp.fc", 4 * width)):
            tensor(f"h.{layer}.{name}.weight", rows, width)
            tensor(f"h.{layer}.{name}.bias", rows)
        tensor(f"h.{layer}.mlp.proj.weight", width, 4 * width)
        tensor(f"h.{layer}.mlp.proj.bias", width)
        for norm in ("ln_1", "ln_2"):
            tensor(f"h.{layer}.{norm}.weight", width)
            tensor(f"h.{layer}.{norm}.bias", width)
    normal = 'type = "random"\ngenerator = "philox"\ndistribution = "normal"\nstd = '
    rules = [
        'pattern = "*.bias"\ntype = "constant"\nvalue = 0.0',
        'pattern = "*.ln_?.weight"\ntype = "constant"\nvalue = 1.0',
        f'pattern = "*.proj.weight"\n{normal}{0.02 / (2 * layers) ** 0.5}',
        f'pattern = "*"\n{normal}0.02',
    ]
    return "\n".join([*lines, *(f"[[rule]]\n{rule}" for rule in rules), ""])


def main() -> None:
    """Make, add, drop, check out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one small layer")
    options = parser.parse_args()
    with Site() as site:
        (site.top / "recipe.toml").write_text(recipe(1, 64, 500) if options.quick else recipe(12, 768, 50257))
        repository = site.repository("scratch")
        target = repository.path / "model.safetensors"
        start = time.monotonic()
        repository.git("theta", "init-checkpoint", str(site.top / "recipe.toml"), "--output", target.name)
        made = time.monotonic()
        repository.commit("first")
        added = time.monotonic()
        digest, nbytes = _sha256(target), target.stat().st_size
        stored = repository.object_bytes()
        pointer = len(repository.git("cat-file", "blob", "HEAD:model.safetensors"))
        print(
            f"checkpoint {nbytes:,} bytes; objects {stored:,} bytes; pointer {pointer:,} bytes before git compresses it"
        )
        print(f"made in {made - start:.1f} s, added and committed in {added - made:.1f} s")
        for cpu in CPUS:
            target.unlink()
            start = time.monotonic()
            repository.git("checkout", target.name, **cpu)
            print(f"checked out in {time.monotonic() - start:.1f} s with {cpu}")
            assert _sha256(target) == digest, "another file came back"
        assert stored < LIMIT_BYTES, f"{stored} bytes of objects"


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


if __name__ == "__main__":
    main()
