"""How much memory does the filter take for a checkpoint of 4 GB?

One checkpoint of many tensors and one that is a single tensor, each in two versions (a few values in a thousand changed), are
added and checked out through a daemon with a tensor cache of 256 MiB, and without a daemon. Printed is the high-water mark of
the process that did the work (the kernel's VmHWM), less its configured cache. git itself holds every file that it writes; that
is git's memory, and not counted.

Run it: `python -m benchmarks.memory` (12 GB below THETA_BENCH_DIR or /tmp, and some minutes); `--quick`: 400 MB.
"""

from __future__ import annotations

import argparse
import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.sites import Daemon, Repository, digest, expect, site

FILE = "model.safetensors"
TENSOR_CACHE = 256 << 20
BOUND = 1_500_000_000
"""What a checkpoint of 4 GB may take beyond the configured cache."""

_PIECE = 1 << 24


def main() -> int:
    """Exit status 1 when a figure is beyond the bound."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="400 MB instead of 4 GB")
    nbytes = 400_000_000 if parser.parse_args().quick else 4_000_000_000
    worst = 0
    print(f"{nbytes / 1e9:g} GB; MB resident at the peak, beyond a tensor cache of {TENSOR_CACHE >> 20} MiB\n")
    print(f"{'checkpoint':12} {'filter':10} {'step':28} {'seconds':>8} {'MB':>8}")
    for shape, tensor_bytes in (("many", 16_000_000), ("one", nbytes)):
        for road in ("daemon", "in-process"):
            for step, seconds, peak in _steps(nbytes, tensor_bytes, with_daemon=road == "daemon"):
                beyond = peak - TENSOR_CACHE
                worst = max(worst, beyond)
                print(f"{shape:12} {road:10} {step:28} {seconds:8.1f} {beyond / 1e6:8.0f}", flush=True)
    print(f"\nthe most: {worst / 1e6:.0f} MB, the bound: {BOUND / 1e6:.0f} MB")
    return 0 if worst <= BOUND else 1


def _steps(nbytes: int, tensor_bytes: int, *, with_daemon: bool) -> Iterator[tuple[str, float, int]]:
    """What each step took: its name, seconds, peak bytes."""
    with site() as place:
        place.environment["THETA_TENSOR_CACHE"] = str(TENSOR_CACHE)
        place.environment["THETA_FSYNC"] = "false"  # how fast the disk is, is another question
        repository = place.repository("memory")
        daemon = place.daemon("memory") if with_daemon else None
        file = repository.path / FILE
        write(file, nbytes, tensor_bytes)
        yield _measured("add", repository, daemon, "add", FILE)
        repository.git("commit", "-q", "-m", "first", daemon=daemon)
        first = digest(file)
        edit(file)
        yield _measured("add an edited version", repository, daemon, "add", FILE)
        repository.git("commit", "-q", "-m", "second", daemon=daemon)
        second = digest(file)
        for revision, wanted in (("HEAD~1", first), ("main", second)):
            file.unlink()
            if daemon is not None:
                daemon.restart()
            yield _measured(f"check out {revision}", repository, daemon, "checkout", "-q", "-f", revision)
            expect(file, wanted)


def _measured(step: str, repository: Repository, daemon: Daemon | None, *command: str) -> tuple[str, float, int]:
    cost = repository.measure(*command, daemon=daemon)
    return step, cost.seconds, cost.peak_bytes


def write(path: Path, nbytes: int, tensor_bytes: int) -> None:
    """A safetensors file of BF16 tensors with a normal distribution: as compressible as real ones."""
    generator = np.random.default_rng(0)
    count = -(-nbytes // tensor_bytes)
    header = {
        f"layer.{number}": {
            "dtype": "BF16",
            "shape": [tensor_bytes // 2],
            "data_offsets": [number * tensor_bytes, (number + 1) * tensor_bytes],
        }
        for number in range(count)
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    piece = (generator.standard_normal(_PIECE, dtype=np.float32).view("<u4") >> np.uint32(16)).astype("<u2")
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        left = count * tensor_bytes
        while left > 0:
            block = (piece ^ generator.integers(0, 128, dtype="<u2")).tobytes()[:left]
            file.write(block)
            left -= len(block)


def edit(path: Path) -> None:
    """Change three words in a thousand, all over the file but in its header."""
    words = np.memmap(path, "<u2", "r+", offset=path.stat().st_size % 2)
    generator = np.random.default_rng(1)
    start = 1 << 17
    for position in range(start, words.size, _PIECE):
        part = words[position : position + _PIECE]
        places = generator.integers(0, part.size, part.size * 3 // 1000)
        part[places] ^= np.uint16(5)
    words.flush()


if __name__ == "__main__":
    sys.exit(main())
