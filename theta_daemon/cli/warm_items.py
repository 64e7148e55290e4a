"""Which checkpoints a set of revisions has, newest first. Git resolves the revisions."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Sequence
from dataclasses import dataclass, field

from theta_daemon.cli import git
from theta_daemon.cli.output import shown
from theta_daemon.errors import PointerError, ThetaError
from theta_daemon.filters.batch import Wanted
from theta_daemon.filters.warm import Item
from theta_daemon.history.history import History
from theta_daemon.history.reach import candidates, reach
from theta_daemon.invocation import Invocation


@dataclass(frozen=True, slots=True)
class Found:
    """The pointers of some commits, newest first, and what looks like one and is damaged, with the reason."""

    items: list[Item] = field(default_factory=list)
    damaged: dict[bytes, str] = field(default_factory=dict)


def commits(revisions: Sequence[str], *, everything: bool, depth: int | None) -> list[str]:
    """The ids of the commits that are meant: the last `depth` of each revision (1), all of a range unless `depth` says less.

    Raises ThetaError for a revision that git does not know.
    """
    names = list(revisions)
    if everything:
        names += git.ask("rev-list", "--no-walk", "--branches", "--tags", "--remotes").decode().split()
    found: dict[str, None] = {}
    for name in names or ["HEAD"]:
        ranged = ".." in name
        count = depth if ranged or depth is not None else 1
        limit = [] if count is None else [f"--max-count={count}"]
        listing = git.try_ask("rev-list", *limit, "--end-of-options", name, "--")
        if listing is None:
            git.ask("rev-parse", "--git-dir")
            raise ThetaError(f"git knows no revision {shown(name)}", "fetch it, or see `git branch --all`")
        found.update(dict.fromkeys(listing.decode().split()))
    return list(found)


def items(
    history: History, invocation: Invocation, commit_ids: Sequence[str], patterns: Sequence[str], *, fetch: bool
) -> Found:
    """The pointers that these commits contain, under one of their paths. `fetch`: git may ask a partial clone's remote."""
    found = Found()
    if not commit_ids:
        return found
    reached = reach(invocation, commit_ids, "--no-walk")  # git gives the trees in the commits' order, newest first
    blobs = {oid: path for oid, path in [*reached.blobs.items(), *reached.absent.items()] if _matches(path, patterns)}
    for candidate in candidates(history, blobs, fetch=fetch):
        try:
            _, pointer = history.pointer_of(candidate.text)
        except PointerError as error:
            found.damaged[candidate.path] = error.message
            continue
        if pointer is not None:
            found.items.append(Item(candidate.path, Wanted(candidate.blob, pointer)))
    return found


def _matches(path: bytes, patterns: Sequence[str]) -> bool:
    """Whether a path (from the top) is one of `patterns`, is below one, or matches one, as in git's plain pathspecs."""
    if not patterns:
        return True
    here = os.fsdecode(git.prefix() if any(not pattern.startswith(":/") for pattern in patterns) else b"")
    name = os.fsdecode(path)
    for pattern in patterns:
        whole = pattern[2:] if pattern.startswith(":/") else os.path.normpath(here + pattern) if pattern else here
        if whole in ("", ".", name) or name.startswith(whole.rstrip("/") + "/") or fnmatch.fnmatchcase(name, whole):
            return True
    return False
