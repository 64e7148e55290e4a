"""Made-up pasts: pointers that lead to each other, and what evaluating a chain of their records gives.

A record here is nothing but its address. What it *does* is written down beside it: from which value to which it leads. So a
plan can be carried out without bytes, and is right exactly if every chain ends in the value it promises.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from theta_daemon.errors import ThetaError
from theta_daemon.filters.plan import Node, Plan, Planner, value_key
from theta_daemon.history.lineage import Lineage, Step
from theta_daemon.pointer import Parameter, Pointer, RecordRef

NAMES = ("a", "b", "c")
VALUES = 4
"""Few values: they come back again and again, each as the base of the other at different times."""


def hexed(text: str, length: int = 64) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:length]


@dataclass
class Past:
    """Versions of one file, oldest first, each built on the one before where it is incremental."""

    pointers: list[Pointer] = field(default_factory=list)
    blobs: list[str] = field(default_factory=list)
    records: dict[RecordRef, tuple[str | None, str]] = field(default_factory=dict)
    """What each record does: from which value (None: from nothing) to which."""

    lineages: list[dict[str, tuple[Step, ...]]] = field(default_factory=list)

    def add(self, values: Mapping[str, tuple[int, bool]], salt: str = "") -> None:
        """One more version: by name, which value, and whether it is incremental where it can be."""
        number = len(self.pointers)
        oid = hexed(f"object {salt} {number}")
        history: dict[str, str] = {}
        parameters = []
        steps: dict[str, tuple[Step, ...]] = {}
        for record, (name, (value, incremental)) in enumerate(values.items()):
            digest = hexed(f"value {value}")
            ref = RecordRef(oid, record)
            before = self.pointers[-1].by_name.get(name) if self.pointers else None
            if not incremental or before is None:
                self.records[ref] = (None, digest)
                parameters.append(Parameter(name, "U8", (1,), digest, "dense", oid, record, 1))
                continue
            self.records[ref] = (before.digest, digest)
            blob = self.blobs[-1]
            history[blob] = hexed(f"commit {salt} {number}", 40)
            parameters.append(
                Parameter(
                    name, "U8", (1,), digest, "sparse", oid, record, 1, before.depth + 1, before.chain_bytes + 1, blob
                )
            )
            below = self.lineages[-1].get(name, ())
            steps[name] = (Step(before.update, before.object, before.record), *below)
        lineage = RecordRef(hexed(f"lineage {salt} {number}"), 0) if history else None
        objects = {parameter.object: 9 for parameter in parameters} | ({} if lineage is None else {lineage.object: 9})
        self.pointers.append(
            Pointer("opaque", len(parameters), "0" * 64, None, lineage, history, objects, tuple(parameters))
        )
        self.blobs.append(hexed(f"blob {salt} {number}", 40))
        self.lineages.append(steps)


@st.composite
def pasts(draw: st.DrawFn, salt: str = "") -> Past:
    """A random past of up to eight versions of up to three parameters, which come and go."""
    past = Past()
    version = st.dictionaries(st.sampled_from(NAMES), st.tuples(st.integers(0, VALUES - 1), st.booleans()), min_size=1)
    for values in draw(st.lists(version, min_size=1, max_size=8)):
        past.add(values, salt)
    return past


def walk(planner: Planner, pasts: Sequence[Past], missing: set[str]) -> int:
    """Supply what the planner wants, except the blobs that are missing; how many rounds that took."""
    known = {blob: pointer for past in pasts for blob, pointer in zip(past.blobs, past.pointers, strict=True)}
    rounds = 0
    while wanted := planner.wanted():
        rounds += 1
        assert rounds < 1000
        assert len(set(wanted)) == len(wanted)
        for blob in wanted:
            planner.supply(blob, None if blob in missing else known[blob])
    return rounds


def lineage_of(past: Past, number: int) -> Lineage | None:
    """The lineage of one version as its record says it."""
    steps = past.lineages[number]
    return Lineage(steps) if steps else None


def evaluate(chain: Sequence[Node], past_records: Mapping[RecordRef, tuple[str | None, str]], start: str | None) -> str:
    """The digest that the chain leads to. Raises ThetaError where a record does not fit what is below it."""
    current = start
    for node in chain:
        base, result = past_records[RecordRef(node.ref.object, node.ref.record)]
        if base != current and base is not None:
            raise ThetaError(f"{node} applied to {current}")
        current = result
    assert current is not None
    return current


def check(plan: Plan, pathname: bytes, records: Mapping[RecordRef, tuple[str | None, str]]) -> None:
    """Every value of the file comes out right."""
    file = plan.files[pathname]
    for parameter, key in zip(file.pointer.parameters, file.keys, strict=True):
        assert key == value_key(parameter.digest, parameter.spec)
        chain = plan.chain(key, lambda _: False)
        assert len(chain) <= 9
        assert chain[0].base is None
        assert evaluate(chain, records, None) == parameter.digest
