"""Why a parameter is stored as it is: the forms that it could have, with their sizes, worked out once more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from theta_daemon.filters.workspace import Workspace
from theta_daemon.formats.base import Extent, Source
from theta_daemon.pointer import Parameter, Pointer
from theta_daemon.tensor import TensorSpec, Words, as_words
from theta_daemon.updates.base import ChunkedUpdate, Update

WHOLE_BYTES: Final = 1 << 30
"""Forms that need the whole value in memory are not tried on larger ones."""


@dataclass(frozen=True, slots=True)
class Explained:
    """`sizes`: bytes by form, of those that can hold the value; `reason` in words. A kept record has no sizes."""

    parameter: Parameter
    sizes: Mapping[str, int]
    reason: str


@dataclass(frozen=True, slots=True)
class Version:
    """A checkpoint: its pointer and its rebuilt bytes."""

    pointer: Pointer
    content: Source

    def extents(self, workspace: Workspace) -> dict[str, Extent]:
        """Its parameters by name."""
        return {extent.name: extent for extent in workspace.registry.find_layout(self.content, self.pointer.format)[1]}

    def words(self, extent: Extent) -> Words:
        data = self.content.read(extent.offset, extent.spec.nbytes)
        return np.require(as_words(data, extent.spec.dtype), requirements="A")


def explain(workspace: Workspace, now: Version, before: Version | None) -> Iterator[Explained]:
    """Each parameter of `now`, which was added when HEAD had `before`. Raises ThetaError."""
    extents = now.extents(workspace)
    past = {} if before is None else before.extents(workspace)
    for parameter in now.pointer.parameters:
        previous = None if before is None else before.pointer.by_name.get(parameter.name)
        if previous is not None and (previous.digest, previous.spec) == (parameter.digest, parameter.spec):
            yield Explained(parameter, {}, "the value is the previous version's: its record is kept")
            continue
        extent = extents.get(parameter.name)
        if extent is None or extent.spec != parameter.spec:
            yield Explained(parameter, {}, f"this build lays {now.pointer.format} files out otherwise")
            continue
        usable = previous is not None and previous.spec == parameter.spec and parameter.name in past
        base = before.words(past[parameter.name]) if before is not None and usable else None
        sizes = _sizes(workspace, parameter.spec, now.words(extent), base)
        yield Explained(parameter, sizes, _reason(workspace, parameter, previous, sizes))


def _sizes(workspace: Workspace, spec: TensorSpec, value: Words, previous: Words | None) -> dict[str, int]:
    found = {}
    for update in workspace.registry.automatic_updates():
        if update.incremental and previous is None:
            continue
        size = _size(workspace, update, spec, value, previous if update.incremental else None)
        if size is not None:
            found[update.name] = size
    return found


def _size(workspace: Workspace, update: Update, spec: TensorSpec, value: Words, previous: Words | None) -> int | None:
    if not isinstance(update, ChunkedUpdate):
        record = update.encode(spec, value, previous, None) if spec.nbytes <= WHOLE_BYTES else None
        return None if record is None else len(record)

    def part(span: tuple[int, int]) -> int | None:
        start, stop = span
        data = update.encode_chunk(spec, value[start:stop], None if previous is None else previous[start:stop])
        return None if data is None else len(data)

    parts = list(workspace.machinery.pool.map(part, spec.spans()))
    sizes = [size for size in parts if size is not None]
    return sum(sizes) + 4 * spec.chunks + 8 if len(sizes) == len(parts) else None


def _reason(workspace: Workspace, parameter: Parameter, previous: Parameter | None, sizes: Mapping[str, int]) -> str:
    if parameter.update not in sizes:
        return "a hint asked for it, and it gives the value back"
    if parameter.stored <= min(sizes.values()):
        return "the smallest"
    incremental = previous is not None and len(sizes) > 1
    if incremental and previous is not None and parameter.previous is None:
        if previous.depth >= workspace.settings.max_depth:
            return f"the chain has reached its depth of {workspace.settings.max_depth}"
        if previous.chain_bytes + min(sizes.values()) > sizes.get("dense", 0):
            return "a chain would be larger than the value stored whole"
    return "a hint asked for it, or the repository had this value in this form"
