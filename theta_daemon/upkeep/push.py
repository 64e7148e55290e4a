"""Push: the objects of all pointers that a remote is about to get, before it gets them.

What the remote's own refs reach it has, says git; whether it has their objects too, the remote itself is asked: a push
that once went past the hook is made good by the next one. A remote is never left without an object that a pushed pointer
needs: what is neither here nor there is named, and nothing is pushed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from theta_daemon.depot import Depot
from theta_daemon.errors import MissingObjectError, RemoteError
from theta_daemon.history.git import git_child
from theta_daemon.history.reach import reach
from theta_daemon.store.remote import Remote
from theta_daemon.store.remote.progress import TerminalProgress
from theta_daemon.upkeep.needs import Needs

_HINT: Final = "fetch them with `git theta fetch --all` from where they are, or push without them by `git -c theta.allowIncompletePush=true push`"


@dataclass(frozen=True, slots=True)
class Push:
    """What goes to the git remote `name` (a name or a URL): the tips, and what is known of the refs that are there."""

    name: str
    tips: Sequence[str]
    there: Sequence[str] = ()
    url: str | None = None


@dataclass(frozen=True, slots=True)
class Pushed:
    """What was done: pointers that are new to the remote, what they need, and what of it was nowhere to be had."""

    needs: Needs
    left_out: dict[str, int]
    nbytes: int


def new_to_remote(depot: Depot, push: Push) -> Needs:
    """What the pointers need that the remote does not have yet. Raises RepositoryError."""
    tips = [tip for tip in push.tips if tip]
    if not tips:
        return Needs()
    there = [
        oid for oid in dict.fromkeys([*push.there, *refs_there(depot, push.url or push.name)]) if depot.history.has(oid)
    ]
    reached = reach(depot.invocation, [*tips, *(f"^{oid}" for oid in there)])
    # What git left with its promisor is pushed with git's own objects, wherever they go.
    return Needs.of(depot.history, {**reached.blobs, **_promised(depot, reached.absent)}, fetch=True)


def run(depot: Depot, push: Push, *, dry_run: bool = False) -> Pushed:
    """Bring the objects there. Raises MissingObjectError, RemoteError, StoreError, RepositoryError."""
    needs = new_to_remote(depot, push)
    if not needs.objects:
        return Pushed(needs, {}, 0)
    remote = depot.transfer.push_remote(push.name, push.url)
    left_out = _nowhere(depot, push, remote, needs)
    if left_out and not depot.settings.allow_incomplete_push:
        raise MissingObjectError(
            f"nothing was pushed: {len(left_out)} objects are neither here nor at {push.name}: {needs.named(left_out)}",
            _HINT,
        )
    absent = needs.lacking(depot.store)
    wanted = {oid: size for oid, size in needs.objects.items() if oid not in absent}
    if dry_run or not wanted:
        return Pushed(needs, left_out, sum(wanted.values()))
    with TerminalProgress(depot.transfer.stderr_fd, f"Pushing to {push.name}", wanted) as progress:
        report = remote.push(wanted, depot.store, progress)
    if report.failed:
        reason = next(iter(report.failed.values()))
        raise RemoteError(
            f"{len(report.failed)} of {len(wanted)} objects could not be pushed to {push.name}: "
            f"{needs.named(report.failed)}: {reason}",
            "push again: what has arrived is not sent twice",
        )
    return Pushed(needs, left_out, report.moved_bytes)


def refs_there(depot: Depot, name: str) -> list[str]:
    """What the remote's refs are now; nothing where it cannot be asked (then more is looked at than need be)."""
    done = git_child(["ls-remote", "--quiet", "--", name], depot.invocation)
    lines = done.out.splitlines() if done.status == 0 else []
    return [line.partition(b"\t")[0].decode() for line in lines if b"\t" in line]


def _nowhere(depot: Depot, push: Push, remote: Remote, needs: Needs) -> dict[str, int]:
    """The objects that are neither here nor at the remote."""
    absent = needs.lacking(depot.store)
    if not absent:
        return {}
    there = remote.has(absent)
    if there is None:
        # It cannot tell: then what the pointers that it has need counts as being there.
        oids = [oid for oid in [*push.there, *refs_there(depot, push.url or push.name)] if depot.history.has(oid)]
        old = Needs.of(depot.history, reach(depot.invocation, oids).blobs) if oids else Needs()
        there = frozenset(old.objects)
    return {oid: size for oid, size in absent.items() if oid not in there}


def _promised(depot: Depot, absent: Mapping[str, bytes]) -> Mapping[str, bytes]:
    return absent if depot.repository.promisor is not None else {}
