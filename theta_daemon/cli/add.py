"""`git theta add`: `git add`, with room for hints about how parameters shall be stored."""

from __future__ import annotations

import subprocess
from typing import Annotated

import typer


def add(arguments: Annotated[list[str] | None, typer.Argument(metavar="[GIT-ADD-ARGUMENT]...")] = None) -> int:
    """Add files as `git add` does, with all its options. The exit status is git's."""
    return subprocess.run(["git", "add", *(arguments or [])], check=False).returncode
