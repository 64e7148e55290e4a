"""Fetch: all objects that the checkpoints of some revisions need, in one round a remote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from theta_daemon.depot import Depot
from theta_daemon.errors import ThetaError
from theta_daemon.history.git import git_child
from theta_daemon.history.reach import Reached, reach
from theta_daemon.upkeep.needs import Needs


@dataclass(frozen=True, slots=True)
class Fetched:
    """What was done: what the pointers need, the objects that came, and why the others did not."""

    needs: Needs
    came: Mapping[str, int]
    failed: Mapping[str, ThetaError]

    @property
    def nbytes(self) -> int:
        """Bytes that came."""
        return sum(self.came.values())


def revisions(depot: Depot, names: Sequence[str] | None, *, history: bool = False) -> Needs:
    """What the checkpoints need that are in these commits (None: all refs); with `history` in those before them, too.

    The pointers that a partial clone left with its remote are brought in one go. Raises RepositoryError.
    """
    walk = [] if history else ["--no-walk"]
    walk += ["--all"] if names is None else []
    reached = reach(depot.invocation, names or (), *walk)
    if reached.absent:
        _bring_blobs(depot, reached)
        reached = reach(depot.invocation, names or (), *walk)
    return Needs.of(depot.history, {**reached.blobs, **reached.absent}, fetch=True)


def bring(depot: Depot, needs: Needs) -> Fetched:
    """Bring what is missing of it into the store. Raises StoreError."""
    missing = needs.lacking(depot.store)
    failed = depot.transfer.fetch(missing) if missing else {}
    return Fetched(needs, {oid: size for oid, size in missing.items() if oid not in failed}, failed)


def _bring_blobs(depot: Depot, reached: Reached) -> None:
    """What git would fetch one by one, in one go (as promisor-remote.c does); whatever fails is met again by who needs it."""
    remote = depot.repository.promisor
    if remote:
        options = ["--no-tags", "--no-write-fetch-head", "--recurse-submodules=no", "--filter=blob:none", "--quiet"]
        command = ["-c", "fetch.negotiationAlgorithm=noop", "fetch", remote, *options, "--stdin"]
        listing = "".join(f"{oid}\n" for oid in reached.absent)
        git_child(command, depot.invocation, stdin=listing.encode(), stderr_fd=depot.transfer.stderr_fd)
