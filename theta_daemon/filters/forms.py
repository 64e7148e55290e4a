"""Single forms of a value, each decoded again and compared before it counts.

Knows spans and who runs them; not which form to prefer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np

from theta_daemon.codec import equal
from theta_daemon.formats.base import Source
from theta_daemon.store.base import BytesRecord
from theta_daemon.tensor import Buffer, TensorSpec, Words
from theta_daemon.updates.base import ChunkedUpdate, Decoder, Hint, Update, chunked_trailer
from theta_daemon.updates.defined import Described

R = TypeVar("R")

ReadWords = Callable[[int, int], Words]
"""Words [start:stop] of the value that is being added."""


def words_in(source: Source, spec: TensorSpec, offset: int) -> ReadWords:
    """How to read the words of a value that begins at byte `offset` of `source`; they are aligned."""
    dtype = spec.dtype

    def read(start: int, stop: int) -> Words:
        data = source.read(offset + start * dtype.word_bytes, (stop - start) * dtype.word_bytes)
        return np.require(np.frombuffer(data, dtype.word_dtype), requirements="A")

    return read


class Run(Protocol):
    """Calls over spans, in order, here or by the pool."""

    def __call__(self, call: Callable[[int, int], R], spans: Sequence[tuple[int, int]]) -> Iterator[R]: ...


def here(call: Callable[[int, int], R], spans: Sequence[tuple[int, int]]) -> Iterator[R]:
    """A `Run` in the calling thread."""
    return (call(*span) for span in spans)


@dataclass(slots=True)
class Encoded:
    """A record to be written. `parts` may compute while it is iterated; `failed` is then set where it did not hold."""

    update: str
    incremental: bool
    parts: Iterable[Buffer]
    candidates: dict[str, int] = field(default_factory=dict)
    failed: bool = False
    unmet: str | None = None
    """Why a hint was not followed, if it was not."""


def holds(update: ChunkedUpdate, spec: TensorSpec, part: bytes, value: Words, previous: Words | None) -> bool:
    """Whether `part` gives `value` back."""
    words = previous.copy() if update.incremental and previous is not None else np.empty_like(value)
    update.decode_chunk(spec, part, words)
    return equal(words, value)


def whole_form(
    update: Update, spec: TensorSpec, value: Words, previous: Words | None, hint: Hint | None
) -> Encoded | None:
    """`update`'s record of a value in memory, if it gives the value back."""
    if update.incremental and previous is None:
        return None
    before = previous if update.incremental else None
    record = update.encode(spec, value, before, hint)
    if record is None:
        return None
    words = np.empty_like(value) if before is None else before.copy()
    update.open(spec, BytesRecord(record)).apply(0, spec.words, words)
    if not equal(words, value):
        return None
    return Encoded(update.name, update.incremental, [record], {update.name: len(record)})


def chunked_form(
    update: ChunkedUpdate, spec: TensorSpec, read: ReadWords, before: Words | None, run: Run
) -> Encoded | None:
    """The record of an update type that looks at nothing but chunks; `before` are the previous value's words."""

    def encode(start: int, stop: int) -> bytes | None:
        value = read(start, stop)
        previous = None if before is None else before[start:stop]
        part = update.encode_chunk(spec, value, previous)
        return part if part is not None and holds(update, spec, part, value, previous) else None

    parts: list[Buffer] = []
    lengths = []
    for part in run(encode, list(spec.spans())):
        if part is None:
            return None
        parts.append(part)
        lengths.append(len(part))
    parts.append(chunked_trailer(spec, lengths))
    return Encoded(update.name, update.incremental, parts, {update.name: sum(map(len, parts))})


def described_form(
    update: Update, described: Described, spec: TensorSpec, read: ReadWords, hint: Hint, run: Run
) -> Encoded | None:
    """The record that the hint alone makes, if it gives the value; `described` is `update`."""
    spans = list(spec.spans())
    for record in described.records(spec, hint) if spans else ():
        decoder = update.open(spec, BytesRecord(record))

        def same(start: int, stop: int, decoder: Decoder = decoder) -> bool:
            words = np.empty(stop - start, spec.dtype.word_dtype)
            decoder.apply(start, stop, words)
            return equal(words, read(start, stop))

        if same(*spans[0]) and all(run(same, spans[1:])):
            return Encoded(update.name, False, [record], {update.name: len(record)})
    return None
