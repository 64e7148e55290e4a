"""A repository's directories, read from the file system by git's own rules (git's setup.c), without a child process.

Whatever is not plainly one of the ordinary cases raises `Odd`: then git has to be asked. Knows nothing of objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pygit2

from theta_daemon.invocation import Invocation

_MAX_GITFILE_BYTES: Final = 1 << 16
_TRUE: Final = frozenset({"true", "yes", "on", "1", ""})
_FALSE: Final = frozenset({"false", "no", "off", "0"})


class Odd(Exception):  # noqa: N818  (a question for git, not an error)
    """Not one of the ordinary cases."""


@dataclass(frozen=True, slots=True)
class Found:
    """The directories, absolute, and the extensions of the repository format, in lower case."""

    git_dir: Path
    common_dir: Path
    work_tree: Path | None
    extensions: Mapping[str, str]


def find(invocation: Invocation) -> Found:
    """The caller's repository. Raises Odd or OSError when git should be asked."""
    env = invocation.env
    if env.get("GIT_DIR"):
        return _explicit(invocation)
    if env.get("GIT_CEILING_DIRECTORIES") or env.get("GIT_WORK_TREE") or env.get("GIT_COMMON_DIR"):
        raise Odd
    device = invocation.cwd.stat().st_dev
    for directory in (invocation.cwd, *invocation.cwd.parents):
        stat = directory.stat()
        if stat.st_dev != device:
            raise Odd  # GIT_DISCOVERY_ACROSS_FILESYSTEM
        dot_git = directory / ".git"
        if not dot_git.exists():
            if (directory / "HEAD").exists() and (directory / "objects").exists():
                raise Odd  # bare, or the caller stands inside a .git directory
            continue
        git_dir = _follow(dot_git)
        owners = {stat.st_uid, dot_git.stat().st_uid, git_dir.stat().st_uid}
        if owners != {invocation.uid}:
            raise Odd  # safe.directory is git's to judge
        common_dir = _common_dir(git_dir, None)
        settings = _Settings(git_dir, common_dir)
        if settings.bare:
            raise Odd
        return Found(git_dir, common_dir, settings.work_tree or directory, settings.extensions)
    raise Odd


def _explicit(invocation: Invocation) -> Found:
    env = invocation.env
    git_dir = _follow(invocation.path(env["GIT_DIR"]))
    common = env.get("GIT_COMMON_DIR")
    common_dir = _common_dir(git_dir, invocation.path(common) if common else None)
    settings = _Settings(git_dir, common_dir)
    work_tree: Path | None
    if env.get("GIT_WORK_TREE"):
        work_tree = invocation.path(env["GIT_WORK_TREE"]).resolve()
    elif settings.bare:
        work_tree = None
    elif "GIT_IMPLICIT_WORK_TREE" in env:
        raise Odd
    else:
        work_tree = settings.work_tree or invocation.cwd
    return Found(git_dir, common_dir, work_tree, settings.extensions)


def _follow(path: Path) -> Path:
    """The directory that a `.git` directory or a `.git` file means."""
    if path.is_file():
        with path.open("rb") as file:
            text = file.read(_MAX_GITFILE_BYTES + 1)
        if not text.startswith(b"gitdir: ") or len(text) > _MAX_GITFILE_BYTES:
            raise Odd
        path = path.parent / text[8:].rstrip(b"\r\n").decode(errors="surrogateescape")
    if not path.is_dir():
        raise Odd
    return path.resolve()


def _common_dir(git_dir: Path, given: Path | None) -> Path:
    file = git_dir / "commondir"
    if given is None and file.exists():
        given = git_dir / file.read_bytes().rstrip(b"\r\n").decode(errors="surrogateescape")
    common_dir = git_dir if given is None else given.resolve()
    head = git_dir / "HEAD"
    if not (head.is_file() or head.is_symlink()) or not (common_dir / "objects").is_dir():
        raise Odd
    if not (common_dir / "refs").is_dir():
        raise Odd
    return common_dir


class _Settings:
    """What the repository's own configuration says of its format, read as git does before all other configuration."""

    def __init__(self, git_dir: Path, common_dir: Path) -> None:
        values = _read(common_dir / "config")
        linked = git_dir != common_dir
        if _boolean(values.get("extensions.worktreeconfig", "false")):
            values |= _read(git_dir / "config.worktree")
            linked = False
        self.extensions = {key[11:]: value.lower() for key, value in values.items() if key.startswith("extensions.")}
        self.bare = not linked and _boolean(values.get("core.bare", "false"))
        self.work_tree: Path | None = None
        if not linked and "core.worktree" in values:
            self.work_tree = (git_dir / values["core.worktree"]).resolve()
        if self.bare and self.work_tree is not None:
            raise Odd


def _read(path: Path) -> dict[str, str]:
    if not path.exists():
        return {}
    try:
        return {entry.name: entry.value or "true" for entry in pygit2.Config(str(path))}
    except (pygit2.GitError, UnicodeError, ValueError) as error:
        raise Odd from error


def _boolean(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise Odd
