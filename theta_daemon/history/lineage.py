"""The lineage: how each incremental parameter comes to its previous value, for when git does not have the history.

For every incremental parameter of one pointer, by its name there: the steps from its previous value (depth - 1) down to
the self-contained base (depth 0), nothing else. dtype and shape are the parameter's own, and its digest proves the result,
so no digest stands here.

The record is zstd of one canonical JSON object. Chains are linked nodes, bases first, so that parameters with a common
chain, and a chain and its own beginning, share them: `nodes` holds [update, object, record, node below or null], where
update and object are positions in their tables and a node below has a smaller position than the node above it. So there
are no cycles, and a small record never stands for a huge amount of steps: `Lineage.steps` walks the nodes when asked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Final, Literal

import pydantic
import zstandard
from pydantic import ConfigDict, FailFast, Field, StringConstraints, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as validated

from theta_daemon.errors import RecordError
from theta_daemon.jsonbounds import first_error, too_much
from theta_daemon.pointer import MAX_DEPTH, Parameter
from theta_daemon.tensor import Buffer

LEVEL: Final = 9
MAX_BYTES: Final = 64 << 20
"""No lineage is larger when decoded, whatever the caller allows."""

MAX_NODES: Final = 3 << 19
"""A checkpoint of 65,536 parameters may have a chain of 16 for each of them."""

_REMEDY: Final = "fetch the object again, or the history of this repository (git fetch --unshallow)"


@dataclass(frozen=True, slots=True)
class Step:
    """One update on the way down: its type, and its record."""

    update: str
    object: str
    record: int


@dataclass(frozen=True, slots=True)
class Lineage:
    """`steps` by the name of the incremental parameter: from its previous value down to the self-contained base."""

    steps: Mapping[str, Sequence[Step]]

    def encode(self) -> bytes:
        """The record. The same steps give the same bytes."""
        return zstandard.ZstdCompressor(level=LEVEL).compress(_wire(self.steps))

    @property
    def objects(self) -> frozenset[str]:
        """The ids of all objects that the steps name."""
        if isinstance(self.steps, _Chains):
            return frozenset(self.steps.wire.objects)
        return frozenset(step.object for steps in self.steps.values() for step in steps)

    @property
    def updates(self) -> frozenset[str]:
        """The update types of all steps."""
        if isinstance(self.steps, _Chains):
            return frozenset(self.steps.wire.updates)
        return frozenset(step.update for steps in self.steps.values() for step in steps)


def steps_below(previous: Parameter, below: Sequence[Step] = ()) -> tuple[Step, ...]:
    """The steps of a parameter whose previous value is `previous`; `below` are those of `previous` itself."""
    return (Step(previous.update, previous.object, previous.record), *below)


def decode(data: Buffer, max_bytes: int = MAX_BYTES) -> Lineage:
    """The lineage in a record of at most `max_bytes` when expanded. Raises RecordError for anything else."""
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= min(max_bytes, MAX_BYTES):
            raise RecordError(f"lineage: {size} bytes when expanded, at most {max_bytes} can be right", _REMEDY)
        text = zstandard.ZstdDecompressor().decompress(data, max_output_size=size, allow_extra_data=False)
        if too_much(text, brackets=MAX_NODES, commas=4 * MAX_NODES):
            raise RecordError("lineage: more entries than a lineage may have", _REMEDY)
        wire = _adapter().validate_json(text)
    except zstandard.ZstdError as error:
        raise RecordError(f"lineage: {error}", _REMEDY) from error
    except ValidationError as error:
        where, what, _ = first_error(error)
        raise RecordError(f"lineage: field {where}: {what}", _REMEDY) from error
    return Lineage(_Chains(wire))


_STRICT: Final = ConfigDict(
    strict=True, extra="forbid", validate_by_name=True, validate_by_alias=True, defer_build=True
)
_Hex64 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
_Word = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,63}$")]
_Position = Annotated[int, Field(ge=0, lt=1 << 32)]
_Node = tuple[_Position, _Position, _Position, _Position | None]


@validated(frozen=True, slots=True, config=_STRICT)
class _Wire:
    """The JSON object, checked field by field."""

    objects: Annotated[tuple[_Hex64, ...], FailFast()]
    updates: Annotated[tuple[_Word, ...], FailFast()]
    nodes: Annotated[tuple[_Node, ...], FailFast()]
    parameters: Annotated[tuple[tuple[str, _Position], ...], FailFast()]
    version: Annotated[Literal[1], Field(validation_alias="theta-lineage")] = 1


@cache
def _adapter() -> TypeAdapter[_Wire]:
    """Made when the first lineage is read: most commands read none."""
    return TypeAdapter(_Wire)


class _Chains(Mapping[str, Sequence[Step]]):
    """The steps of a decoded record; a chain is put together when it is asked for."""

    def __init__(self, wire: _Wire) -> None:
        depths: list[int] = []
        for position, (update, oid, _, below) in enumerate(wire.nodes):
            if update >= len(wire.updates) or oid >= len(wire.objects):
                raise RecordError(f"lineage: node {position} names a table entry that is not there", _REMEDY)
            if below is not None and below >= position:
                raise RecordError(f"lineage: node {position} does not lead down", _REMEDY)
            depths.append(0 if below is None else depths[below] + 1)
            if depths[-1] >= MAX_DEPTH:
                raise RecordError(f"lineage: node {position} is deeper than {MAX_DEPTH} steps", _REMEDY)
        self._top = dict(wire.parameters)
        if len(self._top) != len(wire.parameters):
            raise RecordError("lineage: a parameter stands there twice", _REMEDY)
        if any(node >= len(wire.nodes) for node in self._top.values()):
            raise RecordError("lineage: a parameter names a node that is not there", _REMEDY)
        self.wire = wire

    def __getitem__(self, name: str) -> Sequence[Step]:
        position: int | None = self._top[name]
        steps = []
        while position is not None:
            update, oid, record, position = self.wire.nodes[position]
            steps.append(Step(self.wire.updates[update], self.wire.objects[oid], record))
        return tuple(steps)

    def __contains__(self, name: object) -> bool:
        return name in self._top

    def __iter__(self) -> Iterator[str]:
        return iter(self._top)

    def __len__(self) -> int:
        return len(self._top)


def _wire(chains: Mapping[str, Sequence[Step]]) -> bytes:
    objects = {oid: position for position, oid in enumerate(sorted({s.object for c in chains.values() for s in c}))}
    updates = {name: position for position, name in enumerate(sorted({s.update for c in chains.values() for s in c}))}
    nodes: dict[_Node, int] = {}
    parameters = []
    for name, steps in sorted(chains.items()):
        if not 0 < len(steps) <= MAX_DEPTH:
            raise ValueError(f"{name}: {len(steps)} steps")
        below: int | None = None
        for step in reversed(steps):
            node = (updates[step.update], objects[step.object], step.record, below)
            below = nodes.setdefault(node, len(nodes))
        assert below is not None  # noqa: S101  (there is at least one step)
        parameters.append((name, below))
    wire = {
        "theta-lineage": 1,
        "objects": list(objects),
        "updates": list(updates),
        "nodes": list(nodes),
        "parameters": parameters,
    }
    return pydantic.TypeAdapter(dict).dump_json(wire)
