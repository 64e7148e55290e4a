"""Everything of a repository that must not be lost: what git's own garbage collection keeps, and some more.

Refs, reflogs, the stash (a ref with a reflog), and of every work tree: HEAD, the index with all its stages, and what an
operation under way has noted (MERGE_HEAD, a rebase's orig-head, its list, its autostash, bisect's refs). Replaced objects
count beside their replacements. Nothing is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from theta_daemon.errors import RepositoryError
from theta_daemon.history.git import git_child
from theta_daemon.history.history import History
from theta_daemon.history.reach import Reached, reach
from theta_daemon.history.repository import Repository

_ID: Final = re.compile(rb"(?<![0-9a-f])(?:[0-9a-f]{64}|[0-9a-f]{40})(?![0-9a-f])")
_FOLDERS: Final = ("rebase-merge", "rebase-apply", "sequencer", "refs")
"""Below a work tree's git directory: what it alone has."""

_MAX_NOTE_BYTES: Final = 4 << 20
_EVERYTHING: Final = ("--all", "--reflog", "--indexed-objects")
_UNREPLACED: Final = {"GIT_NO_REPLACE_OBJECTS": "1"}


@dataclass(frozen=True, slots=True)
class Roots:
    """`tips`: ids of what refs, reflogs, HEADs and notes name. `indexes`: a state of each index file."""

    tips: frozenset[str]
    indexes: frozenset[tuple[str, int, int, int]]


def unreplaced(repository: Repository) -> Repository:
    """The repository for a caller who sees objects as they are, and every work tree's own index."""
    invocation = repository.invocation
    env = {name: value for name, value in invocation.env.items() if name != "GIT_INDEX_FILE"}
    return replace(repository, invocation=replace(invocation, env={**env, **_UNREPLACED}))


def find(repository: Repository) -> Roots:
    """The roots now. Raises RepositoryError where git's own files cannot be read: then nothing may be thrown away."""
    invocation = repository.invocation
    tips: set[str] = set()
    for command in (
        ["for-each-ref", "--format=%(objectname)"],
        ["rev-list", "--no-walk=unsorted", "--all", "--reflog"],
    ):
        done = git_child(command, invocation)
        if done.status != 0:
            raise RepositoryError(done.complaint or f"git {command[0]} failed")
        tips.update(done.out.decode().split())
    indexes: set[tuple[str, int, int, int]] = set()
    try:
        for git_dir in _git_dirs(repository):
            tips.update(_noted(git_dir))
            indexes.update(_index_states(git_dir))
    except OSError as error:
        raise RepositoryError(f"{error.filename} cannot be read: {error.strerror}") from error
    return Roots(frozenset(tips), frozenset(indexes))


def reached(repository: Repository, history: History, roots: Roots) -> Reached:
    """All that the roots reach, and the indexes as they are at this moment. Raises RepositoryError."""
    tips = sorted(tip for tip in roots.tips if history.has(tip))
    return reach(repository.invocation, tips, *_EVERYTHING)


def _git_dirs(repository: Repository) -> Iterator[Path]:
    """The git directories of all work trees, those whose folder is on another disk too."""
    yield repository.common_dir
    linked = repository.common_dir / "worktrees"
    if linked.is_dir():
        yield from (path for path in linked.iterdir() if path.is_dir())


def _noted(git_dir: Path) -> Iterator[str]:
    """Ids in the files of a work tree's git directory: HEAD and the like, operations under way, its own refs."""
    files = [path for path in git_dir.iterdir() if path.name.isupper() or path.name.endswith("HEAD")]
    for folder in _FOLDERS:
        files += (git_dir / folder).rglob("*")
    for path in files:
        if path.is_file() and path.stat().st_size <= _MAX_NOTE_BYTES:
            yield from (found.decode() for found in _ID.findall(path.read_bytes()))


def _index_states(git_dir: Path) -> Iterator[tuple[str, int, int, int]]:
    for path in git_dir.glob("index*"):
        status = path.stat()
        yield str(path), status.st_ino, status.st_size, status.st_mtime_ns
