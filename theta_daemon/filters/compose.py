"""Puts a pointer together from its parameters: the closure of objects, the table of previous pointers, the lineage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from theta_daemon.filters.plan import Plan
from theta_daemon.history.lineage import Lineage, Step
from theta_daemon.pointer import Parameter, Pointer, RecordRef, SkeletonRef


@dataclass(frozen=True, slots=True)
class Facts:
    """What a pointer says of the checkpoint as a whole."""

    format: str
    size: int
    digest: str


def lineage_of(keys: Mapping[str, str], plan: Plan) -> Lineage:
    """The steps below each incremental parameter; `keys` gives, by its name, the key of its previous value in `plan`."""
    by_key: dict[str, tuple[Step, ...]] = {}
    for key in set(keys.values()):
        nodes = plan.chain(key, lambda _: False)
        by_key[key] = tuple(Step(node.update, node.ref.object, node.ref.record) for node in reversed(nodes))
    return Lineage({name: by_key[key] for name, key in keys.items()})


def compose(
    facts: Facts,
    skeleton: SkeletonRef | None,
    parameters: Sequence[Parameter],
    lineage: RecordRef | None,
    below: frozenset[str],
    commits: Mapping[str, str],
    size_of: Callable[[str], int],
) -> Pointer:
    """The pointer. `below`: the objects that the lineage names; `commits`: the commit of each previous pointer."""
    needed = set(below) | {parameter.object for parameter in parameters}
    needed |= {ref.object for ref in (skeleton, lineage) if ref is not None}
    previous = {parameter.previous for parameter in parameters if parameter.previous is not None}
    return Pointer(
        format=facts.format,
        size=facts.size,
        digest=facts.digest,
        skeleton=skeleton,
        lineage=lineage,
        history={blob: commits[blob] for blob in sorted(previous)},
        objects={oid: size_of(oid) for oid in sorted(needed)},
        parameters=tuple(parameters),
    )
