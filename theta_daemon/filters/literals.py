"""A checkpoint's bytes between its parameters, out of its skeleton's record."""

from __future__ import annotations

from typing import Final

from theta_daemon.errors import DigestError, RecordError, ThetaError
from theta_daemon.filters.chain import Records
from theta_daemon.pointer import Pointer
from theta_daemon.store.skeleton import MAX_RECORD_BYTES, decode_skeleton, skeleton_digest

_REMEDY: Final = "an object is damaged: run `git theta fsck --repair`, or remove the object and fetch it again with `git theta fetch`"


def room(pointer: Pointer) -> int:
    """How many bytes all literals have together."""
    return pointer.size - sum(parameter.spec.nbytes for parameter in pointer.parameters)


def read_literals(pointer: Pointer, records: Records) -> list[memoryview]:
    """One before each parameter and one after the last, checked. Raises ThetaError."""
    skeleton = pointer.skeleton
    count = len(pointer.parameters) + 1
    if skeleton is None:
        return [memoryview(b"")] * count
    try:
        record = records.record(skeleton.ref)
        if record.length != skeleton.stored:
            raise RecordError("the record's size is not the one in the pointer")
        if record.length > MAX_RECORD_BYTES:
            raise RecordError(f"{record.length} bytes are too many for a skeleton")
        literals = decode_skeleton(record.read(0, record.length), room(pointer), count)
        if skeleton_digest(literals) != skeleton.digest:
            raise DigestError("the rebuilt skeleton is not the one that was added", _REMEDY)
        if sum(literal.nbytes for literal in literals) != room(pointer):
            raise RecordError("its size does not fit the pointer's")
    except ThetaError as error:
        raise error.within(f"skeleton, object {skeleton.object}") from error
    return literals
