"""Object folders of the repositories that this one borrows from (`git clone --shared`, `--reference`, worktree pools).

git writes their object databases into `objects/info/alternates`; their git-lfs objects lie beside, as git-lfs itself
assumes. Reading only: a borrowed object can vanish with its owner, exactly as git's own can.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from theta_daemon.errors import StoreError

_MAX_LEVELS: Final = 5
"""As git's own limit (object-file.c): alternates of alternates, no further."""


def alternate_roots(common_dir: Path, extra: str | None = None) -> tuple[Path, ...]:
    """Roots of `lfs/objects` kind that exist, nearest first. `extra` is the caller's GIT_ALTERNATE_OBJECT_DIRECTORIES.

    Raises StoreError when the list is there but cannot be read.
    """
    found: dict[Path, None] = {}
    seen = {common_dir / "objects"}
    level = [Path(entry) for entry in (extra or "").split(os.pathsep) if entry]
    level += _listed(common_dir / "objects")
    for _ in range(_MAX_LEVELS):
        following: list[Path] = []
        for database in level:
            if database in seen:
                continue
            seen.add(database)
            root = database.parent / "lfs" / "objects"
            if root.is_dir():
                found[root] = None
            following += _listed(database)
        level = following
    return tuple(found)


def _listed(database: Path) -> list[Path]:
    path = database / "info" / "alternates"
    try:
        lines = path.read_bytes().split(b"\n")
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror}", "check its owner and permissions") from error
    entries = [os.fsdecode(_unquoted(line)) for line in lines if line.strip() and not line.startswith(b"#")]
    return [Path(os.path.normpath(database / entry)) for entry in entries]


def _unquoted(line: bytes) -> bytes:
    # git quotes as C does when a path has odd bytes; octal escapes and the backslash cover what paths really hold.
    if not (line.startswith(b'"') and line.endswith(b'"') and len(line) > 1):
        return line
    return line[1:-1].decode("latin-1").encode("latin-1").decode("unicode_escape").encode("latin-1")
