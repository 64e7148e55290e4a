"""What a checkpoint format does: it finds where the parameters lie, and never loads or saves anything.

A checkpoint is a sequence of literal bytes and parameter extents. The literals become the skeleton; rebuilding is
concatenation. So headers, padding, zip structure and pickles come back untouched, and no framework is needed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import ClassVar, Final

from theta_daemon.errors import FormatError
from theta_daemon.jsonbounds import MAX_BRACKETS, MAX_COMMAS, MAX_FIELDS
from theta_daemon.store.skeleton import MAX_BYTES as MAX_LITERAL_BYTES
from theta_daemon.tensor import DTYPES, MAX_BYTES, Buffer, TensorSpec

MAX_PARAMETERS: Final = 1 << 16
"""A checkpoint of more is opaque: its pointer could grow beyond what git and `pointer.MAX_POINTER_BYTES` take."""

MAX_NAME_BYTES: Final = 8 << 20
"""Names and shapes of all parameters together, as a pointer spells them; for the same reason."""

MAX_DIMENSIONS: Final = 64

_PIECE_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class Extent:
    """One parameter: its name, its spec, and where its `spec.nbytes` raw bytes start in the file."""

    name: str
    spec: TensorSpec
    offset: int

    @property
    def end(self) -> int:
        return self.offset + self.spec.nbytes


class Source(ABC):
    """Random access to a checkpoint that lies in memory or in a spool file."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Bytes of the checkpoint."""

    @abstractmethod
    def read(self, offset: int, length: int) -> Buffer:
        """Exactly `length` bytes from `offset`. Raises ValueError outside the checkpoint."""

    def pieces(self, start: int = 0, stop: int | None = None) -> Iterator[Buffer]:
        """The bytes from `start` to `stop` (the end when None), a few megabytes at a time."""
        end = self.size if stop is None else stop
        for at in range(start, end, _PIECE_BYTES):
            yield self.read(at, min(_PIECE_BYTES, end - at))


class Format(ABC):
    """A checkpoint format. A plug-in registers a subclass under the entry point group `theta_daemon.formats`.

    Promises: `layout` only reads; runs no code that the file carries; allocates no more than a small multiple of the
    file's metadata; raises FormatError (and nothing else) for what is not this format or is odd in any way, so that the
    file is then stored as opaque.
    """

    name: ClassVar[str]
    """The name in pointers and in the attribute `theta-format`: lower case, digits and dashes."""

    @abstractmethod
    def matches(self, source: Source) -> bool:
        """Whether the first bytes look like this format. Cheap; never raises."""

    @abstractmethod
    def layout(self, source: Source) -> list[Extent]:
        """The parameters by ascending offset, without overlap, inside the file, with unique names."""


def checked(extents: Sequence[Extent], size: int) -> list[Extent]:
    """`extents` in file order, proven to lie inside `size` bytes, not to overlap and to have unique, usable names.

    Raises FormatError, also for what no pointer can hold.
    """
    if len(extents) > MAX_PARAMETERS:
        raise FormatError(f"{len(extents)} parameters are more than {MAX_PARAMETERS}")
    ordered = sorted((extent.offset, extent.end, index) for index, extent in enumerate(extents))
    if len({extent.name for extent in extents}) != len(ordered):
        raise FormatError("two parameters have the same name")
    found: list[Extent] = []
    position = 0
    spelled = 0
    for offset, end, index in ordered:
        extent = extents[index]
        if offset < position or end > size:
            raise FormatError(f"parameter {extent.name!r} overlaps another or lies outside the file")
        position = end
        shape = extent.spec.shape
        if len(shape) > MAX_DIMENSIONS or not all(type(side) is int and 0 <= side < MAX_BYTES for side in shape):
            raise FormatError(f"parameter {extent.name!r} has an impossible shape")
        if DTYPES.get(extent.spec.dtype.name) != extent.spec.dtype:
            raise FormatError(f"parameter {extent.name!r} has a dtype that pointers do not know")
        try:
            spelled += len(encode_basestring(extent.name).encode()) + 20 * len(shape)
        except UnicodeEncodeError as error:
            raise FormatError(f"parameter name {extent.name!r} is not Unicode text") from error
        found.append(extent)
    if spelled > MAX_NAME_BYTES:
        raise FormatError("the parameters' names and shapes are too long")
    if size - sum(extent.spec.nbytes for extent in extents) > MAX_LITERAL_BYTES:
        raise FormatError(f"more than {MAX_LITERAL_BYTES} bytes belong to no parameter")
    names = [extent.name for extent in extents]
    marks = [sum(name.count(mark) for name in names) for mark in "[{,:"]
    if marks[0] + marks[1] > MAX_BRACKETS // 4 or marks[2] > MAX_COMMAS // 4 or marks[3] > MAX_FIELDS // 8:
        raise FormatError("the parameters' names have more brackets, commas or colons than a pointer may have")
    return found
