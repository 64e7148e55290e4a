"""Which of the automatic updates is smallest, from the encoded chunks of a value. Pure and deterministic.

`encode_forms` encodes one chunk in every form that may win, `smallest` compares the sums over all chunks. A form that a
chunk lacks is out for the whole value, which is safe: a delta chunk is the smallest of listed, replaced and difference, so
delta never loses to sparse, nor by more than a byte a chunk to dense.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from theta_daemon.codec import encode_planes
from theta_daemon.tensor import Kind, TensorSpec, Words
from theta_daemon.updates.delta import DELTA, smallest_change

ORDER = ("dense", "sparse", "delta")
"""Of equal sizes the first is taken: self-contained before incremental, cheap before expensive."""


def encode_forms(spec: TensorSpec, value: Words, previous: Words | None) -> dict[str, bytes]:
    """The parts of one chunk by name of the update; names that cannot win are left out.

    Without a previous value that is dense; with one, delta is always there.
    """
    if previous is None:
        return {"dense": encode_planes(value, rotate=spec.dtype.kind is Kind.FLOAT)}
    change = smallest_change(spec, value, previous)
    forms = {} if change.dense is None else {"dense": change.dense}
    if change.part[:1] != bytes((DELTA,)):
        forms["sparse"] = change.part
    return forms | {"delta": change.part}


def totals(sizes: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The bytes of each form that all chunks have, given each chunk's sizes by form."""
    sums: dict[str, int] | None = None
    for chunk in sizes:
        sums = dict(chunk) if sums is None else {name: sums[name] + chunk[name] for name in sums if name in chunk}
    return sums or {}


def smallest(sizes: Iterable[Mapping[str, int]]) -> str:
    """The name of the form with the smallest sum; dense for a value without chunks."""
    sums = totals(sizes)
    return min(sums, key=lambda name: (sums[name], ORDER.index(name)), default="dense")
