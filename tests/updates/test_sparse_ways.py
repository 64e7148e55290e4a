"""Lists of changes: the compiled way and numpy's give the same values, and refuse the same records."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from theta_daemon import codec
from theta_daemon.errors import RecordError
from theta_daemon.tensor import DTYPES, TensorSpec, Words
from theta_daemon.updates.sparse import LISTED, Sparse

NAMES = ("F32", "BF16", "I32", "F64", "U8", "I16")


def edited(name: str, count: int, share: float, seed: int) -> tuple[TensorSpec, Words, Words]:
    """A spec, a value, and the value before, of which about `share` has changed."""
    spec = TensorSpec(DTYPES[name], (count,))
    random = np.random.default_rng(seed)
    previous = np.frombuffer(random.bytes(spec.nbytes), spec.dtype.word_dtype)
    changed = random.random(count) < share
    changed[int(random.integers(count))] = True
    value = np.where(changed, ~previous, previous)
    return spec, value, previous


def outcome(spec: TensorSpec, data: bytes, previous: Words) -> bytes | str:
    """The value that `data` makes of `previous`, or what is wrong with it."""
    words = previous.copy()
    try:
        Sparse().decode_chunk(spec, data, words)
    except RecordError as error:
        assert words.tobytes() == previous.tobytes(), "a refused record has changed something"
        return error.message
    return words.tobytes()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("count", "share"), [(1, 1), (5, 0.1), (70, 0.01), (100_000, 0.001), (100_000, 0.2), (1 << 19, 0.24)]
)
def test_both_ways_apply_a_list(name: str, count: int, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few changes and many, with planes of all three kinds."""
    if codec._planes is None:
        pytest.skip("no compiler, so the package was installed without it")
    spec, value, previous = edited(name, count, share, count)
    data = Sparse().encode_chunk(spec, value, previous)
    assert data is not None
    if 1 < count * share < 0.25 * count:
        assert data[0] == LISTED
    assert outcome(spec, data, previous) == value.tobytes()
    monkeypatch.setattr(codec, "_planes", None)
    assert outcome(spec, data, previous) == value.tobytes()


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_both_ways_refuse_the_same_lists(data: st.DataObject) -> None:
    """Bytes changed, left out and added anywhere: the same value or the same words of refusal, and no crash."""
    name = data.draw(st.sampled_from(NAMES))
    spec, value, previous = edited(name, data.draw(st.sampled_from([3, 300, 3000])), 0.05, data.draw(st.integers(0, 9)))
    part = Sparse().encode_chunk(spec, value, previous)
    assert part
    record = bytearray(part)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, min(len(record), data.draw(st.sampled_from([12, 4000])))))
        record[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    ways = codec._planes
    compiled = outcome(spec, bytes(record), previous)
    try:
        codec._planes = None  # type: ignore[assignment]
        assert outcome(spec, bytes(record), previous) == compiled
    finally:
        codec._planes = ways
