"""What can be reached from revisions: the blobs that may be pointers, and what git itself lacks.

`git rev-list --objects` walks, so that git alone decides what a revision, a range, a reflog or a graft means. Nothing is
fetched by a walk: what a partial clone left with its remote is listed as absent. Paths are for messages (git gives one of
them for each blob).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from theta_daemon.errors import RepositoryError
from theta_daemon.history.git import git_child
from theta_daemon.history.history import History
from theta_daemon.invocation import Invocation
from theta_daemon.pointer import MAX_POINTER_BYTES, looks_like_pointer

_MIN_POINTER_BYTES: Final = 64
"""No pointer, theta's or git-lfs's, is shorter."""


@dataclass(frozen=True, slots=True)
class Reached:
    """`blobs`: those of a pointer's size, with a path of each. `absent`: objects that git does not have here, with paths."""

    blobs: Mapping[str, bytes]
    absent: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A blob that starts as a pointer does, and one of its paths."""

    blob: str
    path: bytes
    text: bytes


def reach(
    invocation: Invocation, revisions: Sequence[str], *options: str, extra_env: Mapping[str, str] | None = None
) -> Reached:
    """Everything reachable from `revisions` (as rev-list understands them: `^X`, `A..B`) under rev-list's `options`.

    Raises RepositoryError for what git does not understand.
    """
    named: dict[str, bytes] = {}
    absent: dict[str, bytes] = {}
    command = ["rev-list", "--objects", "--missing=print", *options, "--stdin"]
    listing = _ask(command, invocation, "".join(f"{revision}\n" for revision in revisions), extra_env)
    for line in listing.splitlines():
        oid, _, path = line.partition(b" ")
        if oid.startswith(b"?"):
            absent[oid[1:].decode()] = path
        else:
            named.setdefault(oid.decode(), path)
    if not named:
        return Reached({}, absent)
    command = ["cat-file", "--batch-check=%(objecttype) %(objectsize) %(objectname)", "--buffer"]
    blobs: dict[str, bytes] = {}
    for line in _ask(command, invocation, "".join(f"{oid}\n" for oid in named), extra_env).splitlines():
        if line.endswith(b" missing"):
            lost = line.split()[0].decode()
            absent[lost] = named[lost]
            continue
        kind, size, name = line.split()
        if kind == b"blob" and _MIN_POINTER_BYTES <= int(size) <= MAX_POINTER_BYTES:
            blobs[name.decode()] = named[name.decode()]
    return Reached(blobs, absent)


def candidates(history: History, blobs: Mapping[str, bytes], *, fetch: bool = False) -> Iterator[Candidate]:
    """Those of `blobs` (paths by id) that start as pointers do. With `fetch` git may ask a partial clone's remote."""
    for oid, path in blobs.items():
        text = history.blob(oid, fetch=fetch)
        if text is not None and looks_like_pointer(text):
            yield Candidate(oid, path, text)


def _ask(
    command: Sequence[str], invocation: Invocation, listing: str, extra_env: Mapping[str, str] | None = None
) -> bytes:
    done = git_child(command, invocation, stdin=listing.encode(errors="surrogateescape"), extra_env=extra_env)
    if done.status != 0:
        raise RepositoryError(done.complaint or f"git {command[0]} failed", "check the revisions with `git rev-parse`")
    return done.out
