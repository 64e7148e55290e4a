"""What HEAD means now: read from git's files, since HEAD moves while a session lasts; git is asked where they are not."""

from __future__ import annotations

import re
from typing import Final

from theta_daemon.history.git import git_child
from theta_daemon.history.repository import Repository
from theta_daemon.invocation import Invocation

_ID: Final = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64})\s*")
_SYMBOLIC: Final = re.compile(rb"ref:\s*(refs/[^\0\n]+?)\s*")
_OWN: Final = (b"refs/bisect/", b"refs/worktree/", b"refs/rewritten/")
"""Refs that each work tree has for itself."""
_MAX_LINKS: Final = 5


def head(repository: Repository, invocation: Invocation) -> str | None:
    """The commit that HEAD is; None when the branch has no commit yet."""
    if not repository.refs_in_files:
        return resolve("HEAD", invocation)
    try:
        text = (repository.git_dir / "HEAD").read_bytes()
        for _ in range(_MAX_LINKS):
            commit = _ID.fullmatch(text)
            if commit is not None:
                return commit.group(1).decode()
            link = _SYMBOLIC.fullmatch(text)
            if link is None or b".." in link.group(1):
                break
            found = _read(repository, link.group(1))
            if found is None:
                return None
            text = found
    except OSError:
        pass
    return resolve("HEAD", invocation)


def resolve(revision: str, invocation: Invocation) -> str | None:
    """The commit that git says `revision` is."""
    done = git_child(["rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"], invocation)
    return done.out.decode().strip() if done.status == 0 else None


def _read(repository: Repository, name: bytes) -> bytes | None:
    """The text of a ref: its own file, else its line in packed-refs."""
    directory = repository.git_dir if name.startswith(_OWN) else repository.common_dir
    try:
        return (directory / name.decode(errors="surrogateescape")).read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        pass
    try:
        packed = (repository.common_dir / "packed-refs").read_bytes()
    except FileNotFoundError:
        return None
    match = re.search(rb"^([0-9a-f]{40,64}) " + re.escape(name) + rb"$", packed, re.MULTILINE)
    return None if match is None else match.group(1)
