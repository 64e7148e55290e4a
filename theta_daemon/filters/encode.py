"""From a value to the smallest record that gives it back bit for bit.

Whatever form is chosen, the record is decoded again and compared with the value before it counts; a form that does not
hold falls to the next, and dense always holds. The choice depends on the value, the previous value and the settings alone,
never on threads or caches.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

import numpy as np
from blake3 import blake3

from theta_daemon.errors import HintError, RecordError, ThetaError
from theta_daemon.filters.chain import Chain
from theta_daemon.filters.digests import OrderedDigest
from theta_daemon.filters.forms import Encoded, ReadWords, Run, chunked_form, described_form, here, holds, whole_form
from theta_daemon.pointer import Parameter
from theta_daemon.tensor import Buffer, TensorSpec, Words
from theta_daemon.updates.base import ChunkedUpdate, Hint, Update, chunked_trailer
from theta_daemon.updates.choose import encode_forms, smallest, totals
from theta_daemon.updates.constant import Constant
from theta_daemon.updates.defined import Described

R = TypeVar("R")

_log: Final = logging.getLogger(__name__)

KEPT_BYTES: Final = 64 << 20
"""Up to this size every form of a value is encoded in full to find the smallest; beyond it, of a sample of chunks."""

HINTED_BYTES: Final = 1 << 30
"""Hints of larger values are not tried, unless the hint alone makes the record: the value and the previous one are in memory."""

_SAMPLE_CHUNKS: Final = 16
_AHEAD_CHUNKS: Final = 8
_BUILT_IN: Final = frozenset({"dense", "constant", "sparse", "delta"})


class Updates(Protocol):
    """The registry, as far as it is needed here."""

    def update(self, name: str) -> Update: ...

    def automatic_updates(self) -> list[Update]: ...


@dataclass(frozen=True, slots=True)
class Previous:
    """The value that an incremental update may build on: its entry in pointer `blob`, and how to read it."""

    parameter: Parameter
    blob: str
    chain: Chain


class Encoder:
    """Chooses and encodes; `pool` runs the chunks of large values (never call `large` from one of its workers)."""

    def __init__(self, updates: Updates, pool: ThreadPoolExecutor, max_depth: int) -> None:
        self._updates = updates
        self._pool = pool
        self._max_depth = max_depth
        self._constant = Constant()

    def whole(self, spec: TensorSpec, value: Words, previous: Previous | None, hint: Hint | None = None) -> Encoded:
        """The record for a value in memory; for workers. Raises HintError for a hint of an unknown type."""
        room = self._deep_enough(previous)
        before = self._read_previous(spec, previous) if room else None
        if hint is None:
            return self._whole(spec, value, previous if room else None, before)

        read: ReadWords = lambda start, stop: value[start:stop]  # noqa: E731
        hinted = self._hinted(spec, read, previous, before, hint, here)
        if isinstance(hinted, Encoded):
            return hinted
        encoded = self._whole(spec, value, previous if room else None, before)
        encoded.unmet = hinted
        return encoded

    def _whole(self, spec: TensorSpec, value: Words, previous: Previous | None, before: Words | None) -> Encoded:
        """The smallest of the automatic forms."""
        element = self._constant.element(spec, value)
        if element is not None:
            return Encoded("constant", False, [self._constant.record(spec, element)])
        spans = list(spec.spans())

        def forms(base: Words | None) -> list[dict[str, bytes]]:
            return [self._forms(spec, value[a:b], None if base is None else base[a:b]) for a, b in spans]

        encoded = self._best(spec, forms(before), lambda: forms(None), previous)
        for update in self._updates.automatic_updates():
            if update.name not in _BUILT_IN:
                try:
                    other = whole_form(update, spec, value, before, None)
                except Exception:  # noqa: BLE001 - a plug-in that nobody asked for must not make `git add` fail
                    _log.warning("update type %s failed and is passed over", update.name, exc_info=True)
                    continue
                if other is not None and sum(map(len, other.parts)) < sum(map(len, encoded.parts)):
                    encoded = other
        return encoded

    def large(self, spec: TensorSpec, read: ReadWords, previous: Previous | None, hint: Hint | None = None) -> Encoded:
        """The record for a value of many chunks, by the pool; for session threads."""
        if hint is None:
            return self._large(spec, read, previous)
        incremental = self._updates.update(hint.update).incremental
        before = self._read_previous(spec, previous) if incremental and self._deep_enough(previous) else None
        hinted = self._hinted(spec, read, previous, before, hint, self._map)
        if isinstance(hinted, Encoded):
            return hinted
        del before  # as large as the value
        encoded = self._large(spec, read, previous)
        encoded.unmet = hinted
        return encoded

    def _hinted(
        self,
        spec: TensorSpec,
        read: ReadWords,
        previous: Previous | None,
        before: Words | None,
        hint: Hint,
        run: Run,
    ) -> Encoded | str:
        """The record that the hint asks for, or why there is none. `before` are the previous value's words."""
        update = self._updates.update(hint.update)
        if isinstance(update, Described):
            found = described_form(self._updates.update(hint.update), update, spec, read, hint, run)
            return found or "the recipe does not make these bits"
        if not update.incremental:
            previous = None
        elif previous is None:
            return "there is no previous value of the same dtype and shape"
        elif not self._deep_enough(previous):
            return f"the chain has reached its depth of {self._max_depth}"
        elif before is None:
            return "the previous value cannot be rebuilt"
        if spec.nbytes > HINTED_BYTES:
            return f"it is larger than {HINTED_BYTES >> 20} MiB"
        try:
            if isinstance(update, ChunkedUpdate) and update.name in _BUILT_IN:
                encoded = chunked_form(update, spec, read, before, run)
            else:
                encoded = whole_form(update, spec, read(0, spec.words), before, hint)
        except HintError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a plug-in raises, another form holds
            _log.warning("update type %s failed", update.name, exc_info=True)
            return f"it failed ({type(error).__name__}: {error})"
        if encoded is None:
            return "it cannot hold these bits, or would not be smaller"
        if previous is not None and previous.parameter.chain_bytes + encoded.candidates[update.name] > spec.nbytes:
            return "the chain would be larger than the value"
        return encoded

    def _large(self, spec: TensorSpec, read: ReadWords, previous: Previous | None) -> Encoded:
        """The smallest of the automatic forms."""
        constant = self._large_constant(spec, read)
        if constant is not None:
            return constant
        before = previous if self._deep_enough(previous) and self._proven(spec, previous) else None
        spans = list(spec.spans())
        everything = spec.nbytes <= KEPT_BYTES
        step = 1 if everything else -(-len(spans) // _SAMPLE_CHUNKS)

        def forms(start: int, stop: int) -> dict[str, bytes]:
            return self._forms(spec, read(start, stop), _fill(spec, before, start, stop))

        sample = spans[step // 2 :: step]

        def densely(start: int, stop: int) -> dict[str, bytes]:
            return self._forms(spec, read(start, stop), None)

        best = self._best(spec, list(self._map(forms, sample)), lambda: list(self._map(densely, sample)), before)
        best = self._large_plugin(spec, read, before, sample, best)
        if everything and best.update in _BUILT_IN:
            return best
        update = self._updates.update(best.update)
        if not isinstance(update, ChunkedUpdate):
            raise TypeError(f"{update.name} cannot be written chunk by chunk")
        encoded = Encoded(best.update, best.incremental, [], best.candidates)
        encoded.parts = self._stream(encoded, update, spec, read, before)
        return encoded

    def _large_plugin(
        self,
        spec: TensorSpec,
        read: ReadWords,
        before: Previous | None,
        sample: Sequence[tuple[int, int]],
        best: Encoded,
    ) -> Encoded:
        """`best`, or an automatic plug-in's form that beats it on the sample; only those that work by chunks are asked."""
        for update in self._updates.automatic_updates():
            if update.name in _BUILT_IN or not isinstance(update, ChunkedUpdate) or (update.incremental and not before):
                continue

            def length(start: int, stop: int, update: ChunkedUpdate = update) -> int | None:
                value = read(start, stop)
                previous = _fill(spec, before, start, stop) if update.incremental else None
                part = update.encode_chunk(spec, value, previous)
                return len(part) if part is not None and holds(update, spec, part, value, previous) else None

            total = 0
            try:
                for size in self._map(length, sample):
                    if size is None:
                        break
                    total += size
                else:
                    if total < best.candidates[best.update]:
                        best = Encoded(update.name, update.incremental, [], {**best.candidates, update.name: total})
            except Exception:  # noqa: BLE001 - see `_whole`
                _log.warning("update type %s failed and is passed over", update.name, exc_info=True)
        return best

    def dense(self, spec: TensorSpec, read: ReadWords) -> Encoded:
        """The record of last resort for a large value."""
        update = self._updates.update("dense")
        encoded = Encoded("dense", False, [])
        if isinstance(update, ChunkedUpdate):
            encoded.parts = self._stream(encoded, update, spec, read, None)
        return encoded

    def _stream(
        self, encoded: Encoded, update: ChunkedUpdate, spec: TensorSpec, read: ReadWords, before: Previous | None
    ) -> Iterator[Buffer]:
        def encode(start: int, stop: int) -> bytes | None:
            value = read(start, stop)
            previous = _fill(spec, before, start, stop) if update.incremental else None
            try:
                part = update.encode_chunk(spec, value, previous)
                return part if part is not None and holds(update, spec, part, value, previous) else None
            except Exception:
                if update.name in _BUILT_IN:
                    raise
                _log.warning("update type %s failed", update.name, exc_info=True)
                return None

        lengths = []
        for part in self._map(encode, list(spec.spans())):
            if part is None:
                encoded.failed = True
                return
            lengths.append(len(part))
            yield part
        yield chunked_trailer(spec, lengths)

    def _best(
        self,
        spec: TensorSpec,
        chunks: Sequence[dict[str, bytes]],
        densely: Callable[[], Sequence[dict[str, bytes]]],
        previous: Previous | None,
    ) -> Encoded:
        """The smallest of the forms that all chunks have, but dense where a chain is no gain any more.

        A chain is none when its updates are together larger than the value; half the raw size is a bound below which the
        dense size need not be worked out. `chunks` may be a sample of all, and `parts` are then only the sample's.
        """
        best = _smallest(spec, chunks)
        if not best.incremental or previous is None:
            return best
        chain = previous.parameter.chain_bytes * len(chunks) // spec.chunks + best.candidates[best.update]
        if chain <= spec.nbytes // 2 * len(chunks) // spec.chunks or chain <= best.candidates.get("dense", 0):
            return best
        dense = _smallest(spec, densely())
        return dense if dense.candidates["dense"] < chain else best

    def _forms(self, spec: TensorSpec, value: Words, previous: Words | None) -> dict[str, bytes]:
        """The forms of one chunk that give it back."""
        forms = encode_forms(spec, value, previous)
        kept = {}
        for name, part in forms.items():
            update = self._updates.update(name)
            if isinstance(update, ChunkedUpdate) and holds(update, spec, part, value, previous):
                kept[name] = part
        if not kept:
            raise RecordError("a value could not be encoded so that it comes back", "report this as a bug")
        return kept

    def _read_previous(self, spec: TensorSpec, previous: Previous | None) -> Words | None:
        """The whole previous value, if it can be had and is the one that was added."""
        if previous is None:
            return None
        words = np.empty(spec.words, spec.dtype.word_dtype)
        try:
            previous.chain.fill(spec, 0, spec.words, words)
        except ThetaError:
            return None
        return words if blake3(words.view(np.uint8).data).hexdigest() == previous.parameter.digest else None

    def _proven(self, spec: TensorSpec, previous: Previous | None) -> bool:
        """Whether a large previous value can be had and is the one that was added."""
        if previous is None or not previous.chain.chunked:
            return False
        digest = OrderedDigest(spec.chunks)

        def fill(start: int, stop: int) -> None:
            words = np.empty(stop - start, spec.dtype.word_dtype)
            previous.chain.fill(spec, start, stop, words)
            digest.put(spec.chunk_index(start), words.view(np.uint8).data)

        try:
            for _ in self._map(fill, list(spec.spans())):
                pass
        except ThetaError:
            return False
        return digest.hexdigest() == previous.parameter.digest

    def _large_constant(self, spec: TensorSpec, read: ReadWords) -> Encoded | None:
        element: bytes | None = None
        for start, stop in spec.spans():
            found = self._constant.element(spec, read(start, stop))
            if found is None or (element is not None and found != element):
                return None
            element = found
        return None if element is None else Encoded("constant", False, [self._constant.record(spec, element)])

    def _deep_enough(self, previous: Previous | None) -> bool:
        """Whether there is a previous value with room for one more update on top."""
        return previous is not None and previous.parameter.depth < self._max_depth

    def _map(self, call: Callable[[int, int], R], spans: Sequence[tuple[int, int]]) -> Iterator[R]:
        """`call` over `spans` in order, a few ahead."""
        window: deque[Future[R]] = deque()
        try:
            for span in spans:
                window.append(self._pool.submit(call, *span))
                if len(window) > _AHEAD_CHUNKS:
                    yield window.popleft().result()
            while window:
                yield window.popleft().result()
        finally:
            for future in window:
                future.cancel()


def _fill(spec: TensorSpec, previous: Previous | None, start: int, stop: int) -> Words | None:
    if previous is None:
        return None
    words = np.empty(stop - start, spec.dtype.word_dtype)
    previous.chain.fill(spec, start, stop, words)
    return words


def _smallest(spec: TensorSpec, chunks: Sequence[dict[str, bytes]]) -> Encoded:
    lengths = [{name: len(part) for name, part in chunk.items()} for chunk in chunks]
    name = smallest(lengths)
    parts: list[Buffer] = [chunk[name] for chunk in chunks]
    parts.append(chunked_trailer(spec, [len(part) for part in parts]))
    return Encoded(name, name != "dense", parts, totals(lengths))
