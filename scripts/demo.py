"""The main job on a real checkpoint, step by step; run by scripts/demo, which sets everything up.

Works in a temporary folder with a HOME and a daemon of its own, and removes both. Exits with 1 if any file ever comes back
with other bytes than were added.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

BINARIES = Path(sys.executable).parent
FILE = "model.safetensors"


class Demo:
    """A repository with its own HOME, and the table of what was done in it."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self.work = top / "repository"
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("GIT_", "THETA_"))},
            "PATH": f"{BINARIES}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(top / "home"),
            "XDG_CONFIG_HOME": str(top / "home" / ".config"),
            "THETA_RUNTIME_DIR": str(top / "run"),
            "THETA_DAEMON": "always",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_AUTHOR_NAME": "demo",
            "GIT_AUTHOR_EMAIL": "demo@localhost",
            "GIT_COMMITTER_NAME": "demo",
            "GIT_COMMITTER_EMAIL": "demo@localhost",
        }
        for folder in (self.work, top / "home", top / "run"):
            folder.mkdir(mode=0o700)
        self.table = Table("step", "seconds", "stored +", "raw", "updates", "SHA-256")
        self.sums: dict[str, str] = {}
        self.stored = 0
        self.wrong = 0

    def git(self, *arguments: str) -> str:
        done = subprocess.run(
            ["git", *arguments], cwd=self.work, env=self.environment, check=True, stdout=subprocess.PIPE, text=True
        )
        return done.stdout

    def commit(self, name: str, what: str, change: Callable[[Path], None]) -> None:
        """Change the checkpoint, add and commit it on a branch of its own name."""
        change(self.work / FILE)
        self.sums[name] = digest(self.work / FILE)
        start = time.perf_counter()
        self.git("add", ".")
        seconds = time.perf_counter() - start
        self.git("commit", "-q", "-m", what)
        self.git("branch", name)
        self.row(f"add, commit: {what}", seconds, name)

    def switch(self, name: str) -> None:
        start = time.perf_counter()
        self.git("switch", "-q", name)
        self.row(f"switch to {name!r}", time.perf_counter() - start, name)

    def row(self, step: str, seconds: float, name: str) -> None:
        before, self.stored = self.stored, self.object_bytes()
        right = digest(self.work / FILE) == self.sums[name] and not self.git("status", "--porcelain")
        self.wrong += not right
        self.table.add_row(
            step,
            f"{seconds:.2f}",
            f"{(self.stored - before) / 1e6:,.2f} MB",
            f"{(self.work / FILE).stat().st_size / 1e6:,.1f} MB",
            self.updates(),
            f"{self.sums[name][:8]} {'came back, status clean' if right else 'WRONG'}",
        )

    def object_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.work / ".git" / "lfs").rglob("*") if path.is_file())

    def updates(self) -> str:
        shown = json.loads(self.git("theta", "show", "--json", FILE))
        counts = Counter(parameter["update"] for parameter in shown["parameters"])
        return ", ".join(f"{count} {update}" for update, count in counts.most_common())


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def parameters(path: Path) -> Iterator[dict[str, np.ndarray]]:
    """The F32 tensors of a safetensors file as arrays that write through to it."""
    data = np.memmap(path, mode="r+")
    (length,) = struct.unpack("<Q", data[:8].tobytes())
    header = json.loads(data[8 : 8 + length].tobytes())
    tensors = {}
    for name, entry in header.items():
        if name != "__metadata__" and entry["dtype"] == "F32":
            start, stop = (8 + length + offset for offset in entry["data_offsets"])
            tensors[name] = data[start:stop].view("<f4")
    yield tensors
    data.flush()


def retrain_one(path: Path) -> None:
    with parameters(path) as tensors:
        weights = tensors["encoder.layer.3.output.dense.weight"]
        weights[:] = np.random.default_rng(1).normal(0, 0.03, weights.size)


def edit_sparsely(path: Path) -> None:
    generator = np.random.default_rng(2)
    with parameters(path) as tensors:
        for weights in tensors.values():
            places = generator.choice(weights.size, max(1, weights.size // 1000), replace=False)
            weights[places] += np.float32(0.01)


def fine_tune(path: Path) -> None:
    generator = np.random.default_rng(3)
    with parameters(path) as tensors:
        for weights in tensors.values():
            weights[:] += generator.normal(0, 1e-5, weights.size).astype("f4")


def main() -> int:
    console = Console(width=max(140, Console().width))
    checkpoint = Path(sys.argv[1])
    top = Path(tempfile.mkdtemp(prefix="theta-demo-", dir="/tmp"))
    try:
        demo = Demo(top)
        demo.git("init", "-q")
        demo.git("theta", "install", "--local")
        demo.git("theta", "daemon", "start")
        demo.git("theta", "track", "*.safetensors")
        demo.commit("first", "all-MiniLM-L6-v2 as published", lambda path: _copy(checkpoint, path))
        demo.commit("retrained", "one tensor retrained", retrain_one)
        demo.commit("sparse", "0.1 % of each tensor edited", edit_sparsely)
        demo.commit("tuned", "all tensors fine-tuned lightly", fine_tune)
        for name in ("first", "tuned", "sparse", "retrained", "tuned", "first"):
            demo.switch(name)
        console.print(demo.table)
        raw = len(demo.sums) * checkpoint.stat().st_size
        console.print(
            f"{len(demo.sums)} versions, {raw / 1e6:,.1f} MB raw, {demo.stored / 1e6:,.1f} MB stored "
            f"({demo.stored / raw:.1%}); every checkout {'came back byte for byte' if not demo.wrong else 'was checked'}"
        )
        if demo.wrong:
            console.print(f"[red]{demo.wrong} steps were WRONG[/red]")
        demo.git("theta", "daemon", "stop")
        return 1 if demo.wrong else 0
    finally:
        shutil.rmtree(top)


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)


if __name__ == "__main__":
    sys.exit(main())
