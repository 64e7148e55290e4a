"""The plan of a checkout: every value that is needed, how each is obtained, and from which records. Pure: no I/O.

The walk goes back by pointer, not by parameter. `Planner.wanted` names the previous pointers that the values found so far
need; the caller reads each once, for all parameters and files, and hands it to `supply`, until nothing is wanted. Where a
previous pointer cannot be had, the chain continues in the lineage of the file that needs it (`wanted_lineages`).

Rules: values with equal digests are one node, whatever their file, name or version; a node whose value is at hand ends the
walk; the walk is iterative, and depths fall by one at each step, so that no history can make it loop; a file that cannot
be rebuilt is in `Plan.failed` (the caller tries it once more in a plan of its own: what it shared may have been at fault).
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from theta_daemon.errors import MissingHistoryError, ThetaError
from theta_daemon.history.lineage import Lineage
from theta_daemon.pointer import Parameter, Pointer, RecordRef
from theta_daemon.tensor import TensorSpec


@dataclass(frozen=True, slots=True)
class Node:
    """One value. `key` is its digest where that is known; `base` the key of the previous value, None if self-contained."""

    key: str
    spec: TensorSpec
    update: str
    ref: RecordRef
    base: str | None
    digest: str | None
    name: str


@dataclass(frozen=True, slots=True)
class FilePlan:
    """A checkpoint to rebuild: the keys of its parameters' values in file order."""

    pathname: bytes
    pointer: Pointer
    keys: tuple[str, ...]


@dataclass(slots=True)
class Plan:
    """What `Planner.plan` found. `uses` counts the readers of each node: files and later updates."""

    files: dict[bytes, FilePlan] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    uses: Counter[str] = field(default_factory=Counter)
    failed: dict[bytes, ThetaError] = field(default_factory=dict)

    def chain(self, key: str, at_hand: Callable[[str], bool]) -> list[Node]:
        """The nodes from the one after the first value at hand (or from the self-contained base) up to `key`."""
        nodes: list[Node] = []
        current: str | None = key
        while current is not None and not at_hand(current):
            node = self.nodes[current]
            nodes.append(node)
            current = node.base
        nodes.reverse()
        return nodes

    def objects(self, pathname: bytes) -> set[str]:
        """Ids of all objects that rebuilding this file reads."""
        plan = self.files[pathname]
        found = set() if plan.pointer.skeleton is None else {plan.pointer.skeleton.object}
        seen: set[str] = set()
        for key in plan.keys:
            current: str | None = key
            while current is not None and current not in seen and current in self.nodes:
                seen.add(current)
                found.add(self.nodes[current].ref.object)
                current = self.nodes[current].base
        return found


@dataclass(frozen=True, slots=True)
class _Origin:
    """The file and parameter for whose sake a step is walked, and how many steps below it."""

    pathname: bytes
    name: str
    steps: int


@dataclass(slots=True)
class _Draft:
    """A node whose previous value is still to be found."""

    parameter: Parameter
    origin: _Origin


class Planner:
    """Collects the files of a checkout and walks their chains back. `at_hand(digest)`: that value needs no record."""

    def __init__(self, at_hand: Callable[[str], bool]) -> None:
        self._at_hand = at_hand
        self._files: dict[bytes, Pointer] = {}
        self._failed: dict[bytes, ThetaError] = {}
        self._drafts: dict[str, _Draft] = {}
        self._links: dict[str, str | None] = {}
        self._frontier: dict[str, list[str]] = defaultdict(list)
        self._orphans: dict[bytes, list[str]] = defaultdict(list)
        self._nodes: dict[str, Node] = {}

    def add(self, pathname: bytes, pointer: Pointer) -> None:
        """A checkpoint to rebuild."""
        self._files[pathname] = pointer
        for parameter in pointer.parameters:
            self._visit(parameter, _Origin(pathname, parameter.name, 0))

    def wanted(self) -> list[str]:
        """Blob ids of the previous pointers needed next, each named once."""
        return list(self._frontier)

    def supply(self, blob: str, pointer: Pointer | None) -> None:
        """The previous pointer `blob`, or None where it cannot be had or is not a valid one."""
        for key in self._frontier.pop(blob, ()):
            draft = self._drafts[key]
            if draft.parameter.previous != blob:
                continue  # a shorter chain to the same value was found since
            found = None if pointer is None else pointer.by_name.get(draft.parameter.base_name)
            if found is None or found.spec != draft.parameter.spec or found.depth != draft.parameter.depth - 1:
                self._orphans[draft.origin.pathname].append(key)
                continue
            self._links[key] = found.digest
            origin = draft.origin
            self._visit(found, _Origin(origin.pathname, origin.name, origin.steps + 1))

    def wanted_lineages(self) -> dict[bytes, RecordRef]:
        """The lineage records needed, by file, once no previous pointer is wanted."""
        lineages = {pathname: self._files[pathname].lineage for pathname in self._orphans}
        return {pathname: lineage for pathname, lineage in lineages.items() if lineage is not None}

    def supply_lineage(self, pathname: bytes, lineage: Lineage | None) -> None:
        """The lineage of one file, or None where it cannot be had."""
        for key in self._orphans.pop(pathname, ()):
            draft = self._drafts[key]
            if draft.origin.pathname != pathname or draft.parameter.depth == 0 or key in self._links:
                continue
            steps = () if lineage is None else lineage.steps.get(draft.origin.name, ())[draft.origin.steps :]
            if len(steps) != draft.parameter.depth:
                self._fail_orphan(pathname, draft)
                continue
            base: str | None = None
            for step in reversed(steps):
                ref = RecordRef(step.object, step.record)
                address = f"{step.update} {ref.object} {ref.record} {draft.parameter.dtype} {base}"
                node_key = "lineage:" + hashlib.sha256(address.encode()).hexdigest()
                spec = draft.parameter.spec
                self._nodes[node_key] = Node(node_key, spec, step.update, ref, base, None, draft.origin.name)
                base = node_key
            self._links[key] = base

    def fail(self, pathname: bytes, error: ThetaError) -> None:
        """This file cannot be rebuilt; the others can."""
        self._failed.setdefault(pathname, error)

    def plan(self) -> Plan:
        """The plan, once nothing is wanted any more."""
        plan = Plan(nodes=dict(self._nodes), failed=dict(self._failed))
        for key, draft in self._drafts.items():
            parameter = draft.parameter
            base = self._links.get(key)
            if parameter.depth == 0 or base is not None:
                plan.nodes[key] = Node(
                    key, parameter.spec, parameter.update, parameter.ref, base, parameter.digest, parameter.name
                )
        for pathname, pointer in self._files.items():
            if pathname not in plan.failed:
                keys = tuple(parameter.digest for parameter in pointer.parameters)
                plan.files[pathname] = FilePlan(pathname, pointer, keys)
        self._count_uses(plan)
        return plan

    def _visit(self, parameter: Parameter, origin: _Origin) -> None:
        key = parameter.digest
        known = self._drafts.get(key)
        # A value that comes back (A, B, A again) is met at several depths: the lowest wins, so links always lead to lower
        # depths and cannot form a cycle.
        if (known is not None and known.parameter.depth <= parameter.depth) or self._at_hand(key):
            return
        self._drafts[key] = _Draft(parameter, origin)
        self._links.pop(key, None)
        if parameter.previous is not None:
            self._frontier[parameter.previous].append(key)

    def _fail_orphan(self, pathname: bytes, draft: _Draft) -> None:
        parameter = draft.parameter
        self.fail(
            pathname,
            MissingHistoryError(
                f"parameter {parameter.name!r}: the previous value is in pointer {parameter.previous}, which neither "
                "git's history nor the lineage object gives",
                "run `git fetch --unshallow`, or fetch the objects from a remote that has them",
            ),
        )

    def _count_uses(self, plan: Plan) -> None:
        stack = [key for file in plan.files.values() for key in file.keys]
        plan.uses.update(stack)
        seen: set[str] = set()
        while stack:
            key = stack.pop()
            if key in seen or key not in plan.nodes:
                continue
            seen.add(key)
            base = plan.nodes[key].base
            if base is not None:
                plan.uses[base] += 1
                stack.append(base)


def resolve(
    planner: Planner,
    pointers: Callable[[Iterable[str]], Mapping[str, Pointer | None]],
) -> None:
    """Drive `planner` until no previous pointer is wanted; `pointers` reads some by blob id."""
    while wanted := planner.wanted():
        found = pointers(wanted)
        for blob in wanted:
            planner.supply(blob, found.get(blob))
