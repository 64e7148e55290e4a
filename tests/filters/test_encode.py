"""The choice of a form: the smallest that is exact, the same with any number of threads, and never a wrong one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from theta_daemon import registry
from theta_daemon.counters import Counters
from theta_daemon.filters import encode
from theta_daemon.filters.chain import Chain
from theta_daemon.filters.encode import Encoder, Previous
from theta_daemon.filters.forms import Encoded
from theta_daemon.filters.plan import Node
from theta_daemon.pointer import Parameter, RecordRef
from theta_daemon.store.base import BytesRecord, Record
from theta_daemon.tensor import CHUNK_WORDS, DTYPES, Buffer, TensorSpec, Words

OBJECT = "0" * 64
REF = RecordRef(OBJECT, 0)


class Shelf:
    """Records by reference, in memory."""

    def __init__(self, *records: bytes) -> None:
        self.records = list(records)

    def record(self, ref: RecordRef) -> Record:
        return BytesRecord(self.records[ref.record])


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


def spec_of(words: Words, dtype: str = "F32") -> TensorSpec:
    return TensorSpec(DTYPES[dtype], (len(words),))


def decoded(spec: TensorSpec, encoded: Encoded, before: Words | None) -> Words:
    """What a record gives."""
    words = np.zeros(spec.words, spec.dtype.word_dtype) if before is None else before.copy()
    registry.registry().update(encoded.update).open(spec, BytesRecord(joined(encoded.parts))).apply(
        0, spec.words, words
    )
    return words


def joined(parts: Iterable[Buffer]) -> bytes:
    return b"".join(bytes(part) for part in parts)


def previous(words: Words, spec: TensorSpec, *, depth: int = 0, chain: int = 0, digest: str | None = None) -> Previous:
    """`words` as the previous value, on `depth` updates of `chain` bytes."""
    shelf = Shelf(joined(Encoder(registry.registry(), ThreadPoolExecutor(1), 16).whole(spec, words, None).parts))
    update = registry.registry().update
    found = digest or blake3(words.tobytes()).hexdigest()
    node = Node("key", spec, "dense" if len(np.unique(words)) > 1 else "constant", REF, None, found, "name")
    parameter = Parameter("name", spec.dtype.name, spec.shape, found, "dense", OBJECT, 0, 1)
    if depth:
        parameter = replace(parameter, depth=depth, chain=max(chain, 1), previous="0" * 40)
    return Previous(parameter, "0" * 40, Chain([node], None, shelf, update, Counters()))


def encoder(pool: ThreadPoolExecutor, max_depth: int = 16) -> Encoder:
    return Encoder(registry.registry(), pool, max_depth)


def floats(count: int, seed: int = 0) -> Words:
    return np.random.default_rng(seed).standard_normal(count).astype("<f4").view("<u4")


@given(
    st.sampled_from(["F32", "BF16", "U8", "F64"]),
    st.lists(st.integers(0, 255), max_size=60),
    st.integers(0, 3),
    st.integers(0, 1000),
)
def test_any_value_on_any_other_comes_back(dtype: str, bits: list[int], kind: int, seed: int) -> None:
    """Whatever the value and the one before: the chosen record gives the value back, bit for bit."""
    kept = DTYPES[dtype]
    rng = np.random.default_rng(seed)
    value = np.array(bits, kept.word_dtype) << np.uint8(rng.integers(0, 8 * kept.word_bytes - 7))
    spec = TensorSpec(kept, value.shape)
    before: Words | None = None
    if kind == 1:
        before = value ^ value.dtype.type(1)
    elif kind == 2:
        before = value.copy()
        before[: len(before) // 3] = 7
    elif kind == 3:
        before = rng.integers(0, 255, len(value)).astype(value.dtype)
    with ThreadPoolExecutor(1) as one:
        found = encoder(one).whole(spec, value, None if before is None else previous(before, spec))
    assert np.array_equal(decoded(spec, found, before), value)


def test_the_smallest_form_is_taken(pool: ThreadPoolExecutor) -> None:
    """Equal elements: constant; few changes: sparse; small changes everywhere: delta; another value: dense."""
    value = floats(20_000)
    spec = spec_of(value)
    few, near = value.copy(), (value.view("<f4") * np.float32(1.00001)).view("<u4")
    few[[5, 700, 9000]] ^= 0xFF00
    chosen = {
        name: encoder(pool).whole(spec, new, previous(value, spec)).update
        for name, new in {"one": np.full_like(value, 9), "few": few, "near": near, "new": floats(20_000, 9)}.items()
    }
    assert chosen == {"one": "constant", "few": "sparse", "near": "delta", "new": "dense"}


def test_chains_stop_at_the_depth_and_the_size_that_they_are_worth(pool: ThreadPoolExecutor) -> None:
    """At the maximal depth, or when the updates together outweigh the value, the record is self-contained."""
    value = floats(5000)
    spec = spec_of(value)
    edited = value.copy()
    edited[7] = 0
    assert encoder(pool).whole(spec, edited, previous(value, spec, depth=15)).incremental
    assert not encoder(pool).whole(spec, edited, previous(value, spec, depth=16)).incremental
    assert not encoder(pool).whole(spec, edited, previous(value, spec, depth=1, chain=30_000)).incremental
    assert not encoder(pool, 0).whole(spec, edited, previous(value, spec)).incremental


def test_a_previous_value_that_is_not_what_it_should_be_is_not_built_on(pool: ThreadPoolExecutor) -> None:
    """A damaged object below: its digest is wrong, so the record is self-contained and right."""
    value = floats(5000)
    spec = spec_of(value)
    edited = value.copy()
    edited[7] = 0
    found = encoder(pool).whole(spec, edited, previous(value, spec, digest="f" * 64))
    assert not found.incremental
    assert np.array_equal(decoded(spec, found, None), edited)
    large = floats(CHUNK_WORDS + 10)
    wide = spec_of(large)
    changed = large.copy()
    changed[3] = 0
    found = encoder(pool).large(wide, lambda a, b: changed[a:b], previous(large, wide, digest="f" * 64))
    assert not found.incremental


@pytest.mark.parametrize("kept", [encode.KEPT_BYTES, 1], ids=["all chunks compared", "a sample compared"])
def test_large_values_are_encoded_chunk_by_chunk(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """Values of several chunks: every form comes back, and the record is the one that one thread makes."""
    monkeypatch.setattr(encode, "KEPT_BYTES", kept)
    value = floats(CHUNK_WORDS + 1000)
    spec = spec_of(value)
    few, near = value.copy(), (value.view("<f4") * np.float32(1.00001)).view("<u4")
    few[::5000] ^= 0xFF00
    base = previous(value, spec)
    cases = {"constant": np.full_like(value, 9), "sparse": few, "delta": near, "dense": floats(len(value), 9)}
    with ThreadPoolExecutor(1) as alone:
        for form, new in cases.items():
            found = encoder(pool).large(spec, lambda a, b, new=new: new[a:b], base)  # type: ignore[misc]
            data = joined(found.parts)
            assert (found.update, found.failed) == (form, False)
            found.parts = [data]
            assert np.array_equal(decoded(spec, found, value if found.incremental else None), new)
            again = encoder(alone).large(spec, lambda a, b, new=new: new[a:b], base)  # type: ignore[misc]
            assert joined(again.parts) == data


def test_a_form_that_the_sample_promised_and_a_chunk_breaks_is_given_up(
    pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks outside the sample that cannot hold the form make the record fail, and dense takes over."""
    monkeypatch.setattr(encode, "KEPT_BYTES", 1)
    monkeypatch.setattr(encode, "_SAMPLE_CHUNKS", 1)
    value = floats(2 * CHUNK_WORDS)
    spec = spec_of(value)
    new = value.copy()
    new[[CHUNK_WORDS + 5, CHUNK_WORDS + 9]] = 0  # in the sample, the second chunk, sparse looks best
    new[: CHUNK_WORDS // 2] = floats(CHUNK_WORDS // 2, 7)
    found = encoder(pool).large(spec, lambda a, b: new[a:b], previous(value, spec))
    data = joined(found.parts)
    if found.failed:
        found = encoder(pool).dense(spec, lambda a, b: new[a:b])
        data = joined(found.parts)
    found.parts = [data]
    assert np.array_equal(decoded(spec, found, value if found.incremental else None), new)
