"""Small and read-only file systems, for who may mount them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def mounted(directory: Path, options: str) -> Iterator[Path]:
    """A new tmpfs there; skips the test where that is not allowed."""
    directory.mkdir(parents=True, exist_ok=True)
    _mount("-t", "tmpfs", "-o", options, "none", str(directory))
    try:
        yield directory
    finally:
        _unmount(directory)


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """The folder's file system is read-only below it."""
    _mount("--bind", str(directory), str(directory))
    try:
        _mount("-o", "remount,bind,ro", str(directory))
        yield
    finally:
        _unmount(directory)


def remount(directory: Path, options: str) -> None:
    """Other options for a mounted file system."""
    _mount("-o", f"remount,{options}", str(directory))


def _mount(*arguments: str) -> None:
    done = subprocess.run(["mount", *arguments], capture_output=True, check=False, text=True)
    if done.returncode:
        pytest.skip(f"cannot mount here: {done.stderr.strip()}")


def _unmount(directory: Path) -> None:
    # Lazily: a daemon may still have a file open there for a moment.
    subprocess.run(["umount", "-l", directory], check=False, capture_output=True)
