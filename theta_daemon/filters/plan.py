"""The plan of a checkout: every value that is needed, how each is obtained, and from which records. Pure: no I/O.

The walk goes back by pointer, not by parameter. `Planner.wanted` names the previous pointers that the values found so far
need; the caller reads each once, for all parameters and files, and hands it to `supply`, until nothing is wanted. Where a
previous pointer cannot be had, the chain continues in the lineage of the file that needs it (`wanted_lineages`).

Rules: equal values are one node, whatever their file, name or version; a node whose value is at hand ends the
walk; the walk is iterative, and depths fall by one at each step, so that no history can make it loop; a file that cannot
be rebuilt is in `Plan.failed` (the caller tries it once more in a plan of its own: what it shared may have been at fault).
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from theta_daemon.errors import MissingHistoryError, ThetaError
from theta_daemon.history.lineage import Lineage
from theta_daemon.pointer import MAX_DEPTH, Located, Parameter, Pointer, RecordRef
from theta_daemon.tensor import TensorSpec


def value_key(digest: str, spec: TensorSpec) -> str:
    """What names a value in a plan. Equal bytes of another dtype or shape are another value: they cut into other chunks."""
    return f"{digest} {spec.label}"


class Node(NamedTuple):
    """One value. `base` is the key of the previous value, None if self-contained; `digest` None for lineage's steps.

    A tuple, since a deep chain's plan has tens of thousands of them.
    """

    key: str
    spec: TensorSpec
    update: str
    ref: Located
    base: str | None
    digest: str | None
    name: str


@dataclass(frozen=True, slots=True)
class FilePlan:
    """A checkpoint to rebuild: the keys of its parameters' values in file order, and of its skeleton if that is at hand."""

    pathname: bytes
    pointer: Pointer
    keys: tuple[str, ...]
    skeleton: str | None = None


@dataclass(slots=True)
class Plan:
    """What `Planner.plan` found. `uses` counts the readers of each node: files and later updates."""

    files: dict[bytes, FilePlan] = field(default_factory=dict)
    nodes: dict[str, Node] = field(default_factory=dict)
    uses: Counter[str] = field(default_factory=Counter)
    failed: dict[bytes, ThetaError] = field(default_factory=dict)
    _needs: dict[bytes, tuple[set[str], dict[str, str]]] = field(default_factory=dict)

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

    def below(self, key: str) -> Iterator[str]:
        """The keys of the values that `key` is made from, at hand or not."""
        node = self.nodes.get(key)
        while node is not None and node.base is not None:
            yield node.base
            node = self.nodes.get(node.base)

    def objects(self, pathname: bytes) -> set[str]:
        """Ids of all objects that rebuilding this file reads."""
        return self._needs[pathname][0]

    def reader_of(self, pathname: bytes, oid: str) -> str:
        """Which part of the file needs the object, in words."""
        plan = self.files[pathname]
        for parameter, key in zip(plan.pointer.parameters, plan.keys, strict=True):
            current: str | None = key
            while current is not None and current in self.nodes:
                if self.nodes[current].ref.object == oid:
                    return f"parameter {parameter.name!r}"
                current = self.nodes[current].base
        return "skeleton"

    def updates(self, pathname: bytes) -> dict[str, str]:
        """The update types that rebuilding this file needs, each with the name of a parameter that needs it."""
        return self._needs[pathname][1]

    def survey(self) -> None:
        """Find what the files need and count readers, once the nodes are complete: one walk for each file."""
        nodes = self.nodes
        counted: set[str] = set()
        readers: list[str] = []
        for pathname, plan in self.files.items():
            skeleton = plan.pointer.skeleton
            objects = set() if skeleton is None or plan.skeleton is not None else {skeleton.object}
            updates: dict[str, str] = {}
            seen: set[str] = set()
            for parameter, key in zip(plan.pointer.parameters, plan.keys, strict=True):
                readers.append(key)
                current: str | None = key
                while current is not None and current not in seen:
                    node = nodes.get(current)
                    if node is None:
                        break
                    seen.add(current)
                    objects.add(node.ref.object)
                    if node.update not in updates:
                        updates[node.update] = parameter.name
                    if node.base is not None and current not in counted:
                        readers.append(node.base)
                    current = node.base
            counted |= seen
            self._needs[pathname] = objects, updates
        self.uses.update(readers)


class Planner:
    """Collects the files of a checkout and walks their chains back. `at_hand(key, digest)`: that value, or skeleton, needs no
    record.
    """

    def __init__(self, at_hand: Callable[[str, str], bool]) -> None:
        self._at_hand = at_hand
        self._files: dict[bytes, Pointer] = {}
        self._skeletons: dict[bytes, str] = {}
        self._failed: dict[bytes, ThetaError] = {}
        self._drafts: dict[str, Parameter] = {}
        self._links: dict[str, str | None] = {}
        self._frontier: dict[str, list[str]] = defaultdict(list)
        self._nodes: dict[str, Node] = {}

    def add(self, pathname: bytes, pointer: Pointer) -> None:
        """A checkpoint to rebuild."""
        self._files[pathname] = pointer
        if pointer.skeleton is not None:
            key = f"skeleton {pointer.skeleton.digest}"
            if self._at_hand(key, pointer.skeleton.digest):
                self._skeletons[pathname] = key
        for parameter in pointer.parameters:
            self.add_value(parameter)

    def add_value(self, parameter: Parameter) -> None:
        """A value whose chain is of interest."""
        self._add(value_key(parameter.digest, parameter.spec), parameter)

    def _add(self, key: str, parameter: Parameter) -> None:
        known = self._drafts.get(key)
        # A value that comes back (A, B, A again) is met at several depths: the lowest wins, so links always lead to lower
        # depths and cannot form a cycle.
        if (known is not None and known.depth <= parameter.depth) or self._at_hand(key, parameter.digest):
            return
        self._drafts[key] = parameter
        self._links.pop(key, None)
        if parameter.previous is not None:
            self._frontier[parameter.previous].append(key)

    def wanted(self) -> list[str]:
        """Blob ids of the previous pointers needed next, each named once."""
        return list(self._frontier)

    def supply(self, blob: str, pointer: Pointer | None) -> None:
        """The previous pointer `blob`, or None where it cannot be had or is not a valid one."""
        keys = self._frontier.pop(blob, ())
        if pointer is None:
            return
        drafts, links, by_name = self._drafts, self._links, pointer.by_name
        for key in keys:
            draft = drafts[key]
            if draft.previous != blob:
                continue  # a shorter chain to the same value was found since
            found = by_name.get(draft.name if draft.base is None else draft.base)
            if found is None or found.depth != draft.depth - 1:
                continue
            if found.dtype == draft.dtype and found.shape == draft.shape:
                links[key] = below = found.digest + key[len(draft.digest) :]  # dtype and shape are the same
                self._add(below, found)

    def broken(self, pathname: bytes) -> list[Parameter]:
        """The file's parameters whose chain does not reach a self-contained value, once nothing is wanted."""
        if all(key in self._links for key, draft in self._drafts.items() if draft.depth):
            return []
        return [
            parameter
            for parameter in self._files[pathname].parameters
            if self.gap(value_key(parameter.digest, parameter.spec)) is not None
        ]

    def gap(self, key: str) -> Parameter | None:
        """The value on this one's chain whose previous value was not found; None when the chain is whole."""
        current: str | None = key
        while current is not None and current in self._drafts:
            draft = self._drafts[current]
            if draft.depth and current not in self._links:
                return draft
            current = self._links.get(current)
        return None

    def shortest(self, key: str) -> Parameter | None:
        """The entry for this value with the fewest updates below it; None when its chain is not whole."""
        draft = self._drafts.get(key)
        return None if draft is None or self.gap(key) is not None else draft

    def wanted_lineages(self) -> dict[bytes, RecordRef]:
        """The lineage records needed, by file, once no previous pointer is wanted."""
        wanted = {pathname: pointer.lineage for pathname, pointer in self._files.items() if self.broken(pathname)}
        return {pathname: lineage for pathname, lineage in wanted.items() if lineage is not None}

    def supply_lineage(self, pathname: bytes, lineage: Lineage | None) -> None:
        """The lineage of one file, or None where it cannot be had. Replaces the file's broken chains as a whole."""
        for parameter in self.broken(pathname):
            steps = () if lineage is None else lineage.steps.get(parameter.name, ())
            if not 0 < len(steps) <= MAX_DEPTH:
                self.fail(pathname, self._no_history(parameter))
                return
            base: str | None = None
            for step in reversed(steps):
                ref = RecordRef(step.object, step.record)
                address = f"{step.update} {ref.object} {ref.record} {parameter.dtype} {parameter.shape} {base}"
                key = "lineage:" + hashlib.sha256(address.encode()).hexdigest()
                self._nodes[key] = Node(key, parameter.spec, step.update, ref, base, None, parameter.name)
                base = key
            key = value_key(parameter.digest, parameter.spec)
            self._drafts[key] = parameter
            self._links[key] = base

    def fail(self, pathname: bytes, error: ThetaError) -> None:
        """This file cannot be rebuilt; the others can."""
        self._failed.setdefault(pathname, error)

    def plan(self) -> Plan:
        """The plan, once nothing is wanted any more."""
        plan = Plan(nodes=dict(self._nodes), failed=dict(self._failed))
        for key, draft in self._drafts.items():
            base = self._links.get(key)
            if draft.depth == 0 or base is not None:
                plan.nodes[key] = Node(key, draft.spec, draft.update, draft, base, draft.digest, draft.name)
        for pathname, pointer in self._files.items():
            if pathname not in plan.failed:
                keys = tuple(value_key(parameter.digest, parameter.spec) for parameter in pointer.parameters)
                plan.files[pathname] = FilePlan(pathname, pointer, keys, self._skeletons.get(pathname))
        plan.survey()
        return plan

    def _no_history(self, parameter: Parameter) -> MissingHistoryError:
        gap = self.gap(value_key(parameter.digest, parameter.spec)) or parameter
        return MissingHistoryError(
            f"parameter {parameter.name!r}: its previous value is in pointer {gap.previous}, which git's history does not "
            "have, and the lineage object does not help",
            "run `git fetch --unshallow`, or fetch the objects from a remote that has them with `git theta fetch`",
        )
