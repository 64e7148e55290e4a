"""`[REV:]PATH` on a command line: which blob it means. Git resolves it, with all its spellings."""

from __future__ import annotations

import os
from dataclasses import dataclass

from theta_daemon.cli import git
from theta_daemon.cli.output import shown
from theta_daemon.errors import ThetaError


@dataclass(frozen=True, slots=True)
class Named:
    """A blob and the path (from the top of the work tree) under which it was asked for; of a `revision`, or the index."""

    blob: str
    path: bytes
    revision: bool = False


def find(name: str) -> Named:
    """The blob that `name` means: a path in the index (relative to the cwd), else REV:PATH as git understands it.

    Raises ThetaError.
    """
    inside = git.try_ask("rev-parse", "--is-inside-work-tree") == b"true\n"
    if inside:
        relative = os.path.relpath(name) if name.startswith("/") else name
        blob = git.try_ask("rev-parse", "--quiet", "--verify", "--end-of-options", f":./{relative}")
        if blob is not None:
            path = os.path.normpath(git.prefix() + os.fsencode(relative))
            return Named(_blob(blob, name), path)
    revision, colon, path_text = name.partition(":")
    if not colon:
        raise ThetaError(f"{shown(name)} is not in the index", "add it, or name a revision: REV:PATH")
    blob = git.try_ask("rev-parse", "--quiet", "--verify", "--end-of-options", name)
    if blob is None:
        git.ask("rev-parse", "--git-dir")  # without a repository git says so
        where = "the index" if revision in {"", "0", "1", "2", "3"} else f"revision {shown(revision)}"
        raise ThetaError(f"{where} has no file {shown(path_text)}", "see `git theta ls-files --ref REV`")
    path = os.fsencode(path_text)
    if not revision and path[1:2] == b":" and path[:1] in b"0123":
        path = path[2:]
    if inside and path.startswith((b"./", b"../")):
        path = os.path.normpath(git.prefix() + path)
    return Named(_blob(blob, name), path, bool(revision) and revision not in {"0", "1", "2", "3"})


def _blob(answer: bytes, name: str) -> str:
    oid = answer.decode().strip()
    if git.ask("cat-file", "-t", oid).strip() != b"blob":
        raise ThetaError(f"{shown(name)} is a folder, not a file")
    return oid
