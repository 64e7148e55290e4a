"""The three-way merge of checkpoints, parameter by parameter. Pure: pointers in, a choice of sides out.

Git's own rules, with a parameter where git has a line: what changed on one side is taken from that side, what changed on
both sides to the same value is fine, everything else is a conflict. "Changed" is said by the digest of the value, never by
how it is stored. The skeleton (header, order, names) is one more such part: it decides which parameters there are and where,
so the parameters that were chosen must be just those that it has room for.

Some formats write checksums of the parameters into the skeleton (zip: CRC-32), so that two sides that changed different
parameters always both changed the skeleton. `merge_literals` merges such skeletons byte by byte, where the changes of the
two sides lie apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

import numpy as np

from theta_daemon.pointer import Parameter, Pointer
from theta_daemon.tensor import Buffer

CHECKSUMMED: Final = frozenset({"torch-zip", "npz"})
"""Formats whose skeletons hold checksums of the parameters."""

_APART_BYTES: Final = 4
"""Changes nearer to each other than a CRC-32 is long may be parts of one number."""

_Value = tuple[str, tuple[int, ...], str]


class Side(Enum):
    """Whose version."""

    OURS = "ours"
    THEIRS = "theirs"


@dataclass(frozen=True, slots=True)
class Choice:
    """A parameter of the merged checkpoint, and the side whose value it has."""

    parameter: Parameter
    side: Side


@dataclass(frozen=True, slots=True)
class Merged:
    """A merge without conflict: the parameters in file order.

    `skeleton` is the side it comes from, None when both changed it and the literals themselves are to be merged.
    """

    skeleton: Side | None
    choices: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Conflict:
    """What cannot be merged: parameters that both sides changed, and anything else in words."""

    parameters: tuple[str, ...]
    reasons: tuple[str, ...] = ()


def merge(base: Pointer | None, ours: Pointer, theirs: Pointer) -> Merged | Conflict:
    """The merge of `ours` and `theirs`, whose common ancestor is `base` (None: both added the file)."""
    if ours.digest == theirs.digest or (base is not None and theirs.digest == base.digest):
        return _whole(ours, Side.OURS)
    if base is not None and ours.digest == base.digest:
        return _whole(theirs, Side.THEIRS)
    if ours.format != theirs.format or (base is not None and base.format != ours.format):
        return Conflict((), (f"the format changed ({ours.format} and {theirs.format})",))
    sides, disputed = _parameters(base, ours, theirs)
    if disputed:
        return Conflict(disputed)
    return _laid_out(base, ours, theirs, sides)


def _whole(pointer: Pointer, side: Side) -> Merged:
    return Merged(side, tuple(Choice(parameter, side) for parameter in pointer.parameters))


def _parameters(base: Pointer | None, ours: Pointer, theirs: Pointer) -> tuple[dict[str, Side], tuple[str, ...]]:
    """The side of each parameter that stays, and the names of those on which the sides disagree."""
    sides: dict[str, Side] = {}
    disputed: list[str] = []
    for name in dict.fromkeys([*ours.by_name, *theirs.by_name]):
        old, our, their = (_value(pointer, name) for pointer in (base, ours, theirs))
        if their in (our, old):
            chosen, value = Side.OURS, our
        elif our == old:
            chosen, value = Side.THEIRS, their
        else:
            disputed.append(name)
            continue
        if value is not None:
            sides[name] = chosen
    return sides, tuple(disputed)


def _laid_out(base: Pointer | None, ours: Pointer, theirs: Pointer, sides: dict[str, Side]) -> Merged | Conflict:
    """The chosen parameters in the merged skeleton."""
    skeleton = _skeleton_side(base, ours, theirs)
    if skeleton is None and (base is None or ours.format not in CHECKSUMMED):
        return Conflict((), ("both sides changed the skeleton (header, metadata or the set of parameters)",))
    layout = theirs if skeleton is Side.THEIRS else ours
    versions = {Side.OURS: ours, Side.THEIRS: theirs}
    choices = tuple(Choice(versions[side].by_name[name], side) for name, side in sides.items())
    chosen = {choice.parameter.name: choice for choice in choices}
    misfits = [
        name
        for name in dict.fromkeys([*layout.by_name, *chosen])
        if name not in chosen or name not in layout.by_name or chosen[name].parameter.spec != layout.by_name[name].spec
    ]
    if misfits:
        return Conflict(tuple(misfits), ("the merged skeleton has no place for these parameters as they are",))
    return Merged(skeleton, tuple(chosen[parameter.name] for parameter in layout.parameters))


def _skeleton_side(base: Pointer | None, ours: Pointer, theirs: Pointer) -> Side | None:
    old, our, their = (_skeleton(pointer) for pointer in (base, ours, theirs))
    if their in (our, old):
        return Side.OURS
    return Side.THEIRS if our == old else None


def _value(pointer: Pointer | None, name: str) -> _Value | None:
    parameter = None if pointer is None else pointer.by_name.get(name)
    return None if parameter is None else (parameter.dtype, parameter.shape, parameter.digest)


def _skeleton(pointer: Pointer | None) -> str | None:
    """The skeleton's digest; the empty text where there are no literals, None where there is no file."""
    if pointer is None:
        return None
    return "" if pointer.skeleton is None else pointer.skeleton.digest


def merge_literals(base: Sequence[Buffer], ours: Sequence[Buffer], theirs: Sequence[Buffer]) -> list[bytes] | None:
    """The literals with the changes of both sides; None where their lengths differ or the changes are not apart."""
    if not len(base) == len(ours) == len(theirs):
        return None
    merged: list[bytes] = []
    for parts in zip(base, ours, theirs, strict=True):
        old, our, their = (np.frombuffer(part, np.uint8) for part in parts)
        if not old.size == our.size == their.size:
            return None
        by_us, by_them = our != old, their != old
        disputed = by_us & by_them & (our != their)
        if disputed.any() or (_near(by_us & (our != their)) & by_them & (our != their)).any():
            return None
        merged.append(np.where(by_them, their, our).tobytes())
    return merged


def _near(changed: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Where a change is fewer than `_APART_BYTES` bytes away."""
    near = changed.copy()
    for distance in range(1, _APART_BYTES):
        near[distance:] |= changed[:-distance]
        near[:-distance] |= changed[distance:]
    return near
