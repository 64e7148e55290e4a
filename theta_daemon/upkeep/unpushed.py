"""What a push would bring, as far as can be told without asking anybody: by the refs that the last fetch or push saw."""

from __future__ import annotations

from dataclasses import dataclass

from theta_daemon.history.git import git_child
from theta_daemon.history.history import History
from theta_daemon.history.reach import reach
from theta_daemon.upkeep.needs import Needs


@dataclass(frozen=True, slots=True)
class Unpushed:
    """`pointers`: how many are new to the remote; `objects`: sizes by id of what they need and older ones did not."""

    remote: str
    pointers: int
    objects: dict[str, int]


def unpushed(history: History, remote: str) -> Unpushed:
    """What `remote` (a name) lacks of HEAD. Raises RepositoryError."""
    invocation = history.repository.invocation
    head = history.resolve("HEAD")
    if head is None:
        return Unpushed(remote, 0, {})
    refs = git_child(["for-each-ref", "--format=%(objectname)", f"refs/remotes/{remote}/"], invocation)
    there = list(dict.fromkeys(refs.out.decode().split()))
    needs = Needs.of(history, reach(invocation, [head, *(f"^{oid}" for oid in there)]).blobs)
    if not needs.objects or not there:
        return Unpushed(remote, len(needs.pointers), needs.objects)
    # A chain goes on from the commits where what is new begins: their pointers' objects are there.
    boundary = git_child(["rev-list", "--boundary", head, "--not", *there], invocation).out.decode().split()
    edges = [line[1:] for line in boundary if line.startswith("-")]
    old = Needs.of(history, reach(invocation, edges, "--no-walk").blobs) if edges else Needs()
    fresh = {oid: size for oid, size in needs.objects.items() if oid not in old.objects}
    return Unpushed(remote, len(needs.pointers), fresh)
