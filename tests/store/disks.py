"""Small file systems for tests that need a full or a read-only disk."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def tiny_disk(path: Path, size: str = "3m") -> Iterator[None]:
    """A file system of that size at `path`; skips the test where none can be mounted."""
    path.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", path], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("cannot mount a file system here")
    try:
        yield
    finally:
        subprocess.run(["umount", path], check=True)
