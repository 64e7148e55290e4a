"""`git theta merge-driver ANCESTOR OURS THEIRS PATH`: git's merge driver for checkpoints.

Git hands over three temporary files and takes what is in OURS afterwards as the result. Exit status 0: merged; 1: conflict,
and OURS is as it was, which git then leaves in the work tree. Anything that goes wrong is a conflict too, with a message: no
half-merged file is ever the result.

The files hold pointers; with merge.renormalize, or where an older commit has the checkpoint itself, they may hold checkpoints,
which are cleaned first. The merged checkpoint is put together from the rebuilt sides and cleaned like any other, so its
pointer stands on its own: all parts of it are known to the store, and proven by their digests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from theta_daemon.cli.content import File
from theta_daemon.cli.exits import DONE, FAILED, USAGE, complain
from theta_daemon.cli.output import shown
from theta_daemon.errors import ThetaError
from theta_daemon.filters.merge import Conflict, Merged, Side, merge
from theta_daemon.pointer import Pointer, parse
from theta_daemon.registry import find_layout

if TYPE_CHECKING:
    from theta_daemon.cli.filtering import Filter
    from theta_daemon.filters.spool import Spool
    from theta_daemon.formats.base import Extent
    from theta_daemon.tensor import Buffer

_LISTED = 20
"""Parameters of a conflict that are named; the rest is counted."""


def run(arguments: list[str]) -> int:
    """Merge; the exit status."""
    if len(arguments) != 4:
        complain("usage: git theta merge-driver ANCESTOR OURS THEIRS PATH")
        return USAGE
    files = [Path(argument) for argument in arguments[:3]]
    path = os.fsencode(arguments[3])
    try:
        with ExitStack() as stack:
            text = _Merge(stack, path, *files).text()
    except ThetaError as error:
        complain(f"{shown(path)} is left as ours: {error.describe()}")
        return FAILED
    if isinstance(text, Conflict):
        _tell(path, text)
        return FAILED
    result = files[1].with_name(f"{files[1].name}.theta")
    try:
        result.write_bytes(text)
        result.replace(files[1])  # at once: after a failure git must find ours
    finally:
        result.unlink(missing_ok=True)
    return DONE


@dataclass(frozen=True, slots=True)
class _Version:
    """One side: the text that git stores, and the pointer that it is (None: an empty file)."""

    text: bytes
    pointer: Pointer | None


class _Merge:
    """One file's merge."""

    def __init__(self, stack: ExitStack, path: bytes, base: Path, ours: Path, theirs: Path) -> None:
        self._stack = stack
        self._path = path
        self._base, self._ours, self._theirs = (self._version(file) for file in (base, ours, theirs))

    def text(self) -> bytes | Conflict:
        """The pointer of the merged checkpoint."""
        ours, theirs = self._ours.pointer, self._theirs.pointer
        if ours is None or theirs is None:
            return self._with_an_empty_side()
        outcome = merge(self._base.pointer, ours, theirs)
        if isinstance(outcome, Conflict):
            return outcome
        whole = {outcome.skeleton, *(choice.side for choice in outcome.choices)}
        if whole == {Side.OURS}:
            return self._ours.text
        if whole == {Side.THEIRS}:
            return self._theirs.text
        return self._composed(outcome)

    @cached_property
    def _filter(self) -> Filter:
        """Made when something must be rebuilt or cleaned: most merges and conflicts are decided by the pointers alone."""
        from theta_daemon.cli.filtering import filtering

        return self._stack.enter_context(filtering())

    def _version(self, path: Path) -> _Version:
        with File(path) as file:
            if file.size == 0:
                return _Version(b"", None)
            pointer = file.pointer()
            if pointer is not None:
                return _Version(file.read(0, file.size), pointer)
            with closing(self._filter.spool()) as content:
                for piece in file.pieces():
                    content.write(piece)
                text = self._filter.clean(self._path, content)
        return _Version(text, parse(text))

    def _with_an_empty_side(self) -> bytes | Conflict:
        """An empty file has no parameters to merge: whole files only."""
        base, ours, theirs = self._base.text, self._ours.text, self._theirs.text
        if theirs in (ours, base):
            return ours
        if ours == base:
            return theirs
        return Conflict((), ("one side is empty, the other changed",))

    def _composed(self, merged: Merged) -> bytes | Conflict:
        """The parameters of both sides in the skeleton that was chosen, as one new checkpoint."""
        from theta_daemon.filters.merge_zip import intact, merge_skeletons

        with ExitStack() as stack:
            sides = {
                Side.OURS: stack.enter_context(closing(self._rebuilt(self._ours))),
                Side.THEIRS: stack.enter_context(closing(self._rebuilt(self._theirs))),
            }
            layouts = {side: self._layout(spool, self._pointer(side)) for side, spool in sides.items()}
            if merged.skeleton is None:
                base = stack.enter_context(closing(self._rebuilt(self._base)))
                both = merge_skeletons(
                    (base, self._layout(base, self._base.pointer)),
                    (sides[Side.OURS], layouts[Side.OURS]),
                    (sides[Side.THEIRS], layouts[Side.THEIRS]),
                )
                if both is None:
                    return Conflict((), ("both sides changed the skeleton (metadata or structure)",))
                literals: Sequence[Buffer] = both
            else:
                literals = _literals(sides[merged.skeleton], layouts[merged.skeleton])
            content = stack.enter_context(closing(self._filter.spool()))
            for piece in _interleaved(merged, literals, sides, layouts):
                content.write(piece)
            if merged.skeleton is None and not intact(content):
                return Conflict((), ("both sides changed the skeleton, and the checksums do not merge",))
            return self._filter.clean(self._path, content)

    def _pointer(self, side: Side) -> Pointer | None:
        return (self._ours if side is Side.OURS else self._theirs).pointer

    def _rebuilt(self, version: _Version) -> Spool:
        """The checkpoint of a pointer."""
        spool = self._filter.spool()
        try:
            for piece in self._filter.smudge(self._path, [version.text]):
                spool.write(piece)
        except BaseException:
            spool.close()
            raise
        return spool

    def _layout(self, spool: Spool, pointer: Pointer | None) -> Mapping[str, Extent]:
        """Where the pointer's parameters are in its rebuilt checkpoint, in file order."""
        if pointer is None:
            return {}
        _, extents = find_layout(spool, pointer.format)
        found = {extent.name: extent for extent in extents}
        specs = {name: parameter.spec for name, parameter in pointer.by_name.items()}
        if {name: extent.spec for name, extent in found.items()} != specs or list(found) != list(specs):
            raise ThetaError(
                f"format {pointer.format} lays the file out in another way than when it was added",
                "take one side as a whole: git checkout --ours or --theirs",
            )
        return found


def _tell(path: bytes, conflict: Conflict) -> None:
    """Say what is in conflict, and what to do."""
    complain(f"CONFLICT in {shown(path)}, left as ours")
    for reason in conflict.reasons:
        complain(f"  {reason}")
    what = "parameter" if conflict.reasons else "both sides changed parameter"
    for name in conflict.parameters[:_LISTED]:
        complain(f"  {what} {shown(name)}")
    if len(conflict.parameters) > _LISTED:
        complain(f"  and {len(conflict.parameters) - _LISTED} more")
    complain("  remedy: git checkout --ours or --theirs, or write the merged checkpoint yourself; then git add")


def _literals(spool: Spool, layout: Mapping[str, Extent]) -> list[Buffer]:
    """The bytes before each parameter, and after the last."""
    literals: list[Buffer] = []
    position = 0
    for extent in layout.values():
        literals.append(spool.read(position, extent.offset - position))
        position = extent.end
    literals.append(spool.read(position, spool.size - position))
    return literals


def _interleaved(
    merged: Merged,
    literals: Sequence[Buffer],
    sides: Mapping[Side, Spool],
    layouts: Mapping[Side, Mapping[str, Extent]],
) -> Iterator[Buffer]:
    """The merged checkpoint's bytes in order."""
    for literal, choice in zip(literals, merged.choices, strict=False):
        yield literal
        extent = layouts[choice.side][choice.parameter.name]
        for start in range(extent.offset, extent.end, 1 << 22):
            yield sides[choice.side].read(start, min(1 << 22, extent.end - start))
    yield literals[-1]
