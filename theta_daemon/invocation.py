"""Who calls, and from where: all that a session may know of its caller's process.

Nothing below the edges reads the environment, the cwd or the umask of the process it happens to run in: the daemon's own
mean nothing. Ground layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Invocation:
    """The caller's process. `cwd` is absolute; `env` is exactly the caller's environment (surrogateescape text)."""

    cwd: Path
    env: Mapping[str, str]
    umask: int
    uid: int

    def path(self, value: str | Path) -> Path:
        """`value` as the caller means it: relative to the caller's cwd."""
        return self.cwd / value
