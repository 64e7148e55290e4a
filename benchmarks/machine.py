"""On which machine, with which programs, figures were had."""

from __future__ import annotations

import os
import platform
import subprocess
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from theta_daemon.settings import memory_bytes, usable_cpus

TOP = Path(__file__).resolve().parent.parent


def describe() -> dict[str, str]:
    """What a reader needs to judge the figures by."""
    return {
        "processor": f"{usable_cpus()} x {_processor()}",
        "memory": f"{memory_bytes() / (1 << 30):.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "git": _version("git", "--version"),
        "git-lfs": _version("git-lfs", "--version"),
        "libraries": ", ".join(
            f"{name} {metadata.version(name)}" for name in ("numpy", "zstandard", "blake3", "pygit2")
        ),
        "commit": _version("git", "-C", str(TOP), "describe", "--always", "--dirty"),
        "load at the start": f"{os.getloadavg()[0]:.1f}",
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }


def _processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "none"
    return done.stdout.split("\n")[0].removeprefix("git version ").removeprefix("git-lfs/").split(" (")[0]
