"""The integer difference: a bijection in the order of numbers, and what is chosen for a chunk."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from theta_daemon.tensor import CHUNK_WORDS, DTYPES, Kind, TensorSpec, Words
from theta_daemon.testing.updates import special_words
from theta_daemon.updates.choose import encode_forms, smallest, totals
from theta_daemon.updates.delta import DELTA, Delta, add_folded, fold_difference, smallest_change
from theta_daemon.updates.sparse import LISTED, REPLACED, Sparse


def folded(value: Words, previous: Words, kind: Kind) -> Words:
    out = np.empty_like(value)
    fold_difference(value, previous, kind, out)
    return out


@pytest.mark.parametrize("kind", Kind)
@pytest.mark.parametrize("width", [1, 2, 4, 8])
@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_any_pair_of_bits(kind: Kind, width: int, value: int, previous: int) -> None:
    """From any bits to any bits."""
    mask = (1 << 8 * width) - 1
    after = np.array([value & mask, previous & mask], f"<u{width}")
    before = after[::-1].copy()
    words = before.copy()
    add_folded(words, folded(after, before, kind), kind)
    assert words.tolist() == after.tolist()


@pytest.mark.parametrize("kind", Kind)
def test_every_pair_of_bytes(kind: Kind) -> None:
    """All 65,536 pairs of one-byte words; each previous value sees 256 different differences."""
    value, previous = (grid.ravel().astype(np.uint8) for grid in np.meshgrid(np.arange(256), np.arange(256)))
    difference = folded(value, previous, kind)
    assert all(len(set(row)) == 256 for row in difference.reshape(256, 256).tolist())
    words = previous.copy()
    add_folded(words, difference, kind)
    assert np.array_equal(words, value)


@pytest.mark.parametrize(("float_type", "width"), [("<f2", 2), ("<f4", 4), ("<f8", 8)])
def test_neighbours_are_one_apart(float_type: str, width: int) -> None:
    """A step to the next float, across zero and between exponents, is a difference of one, two when folded."""
    numbers: Any = np.array([1.0, -1.0, 0.0, 2.0, -4.0, 1e-4, -1e-7, 0.5], float_type)
    up = np.nextafter(numbers, np.array(np.inf, float_type))
    words = numbers.view(f"<u{width}")
    steps = folded(up.view(f"<u{width}"), words, Kind.FLOAT)
    assert steps.tolist() == [2] * len(numbers)
    assert folded(words, up.view(f"<u{width}"), Kind.FLOAT).tolist() == [1] * len(numbers)


def test_integers_keep_their_differences() -> None:
    """-1 after 0 is a difference of minus one, for signed words; for unsigned ones the wrapped difference is."""
    value, previous = np.array([0xFFFF, 0, 7], "<u2"), np.array([0, 0xFFFF, 4], "<u2")
    assert folded(value, previous, Kind.SIGNED).tolist() == [1, 2, 6]
    assert folded(value, previous, Kind.UNSIGNED).tolist() == [1, 2, 6]


def weights(seed: int, count: int = CHUNK_WORDS) -> Any:
    return (np.random.default_rng(seed).standard_normal(count) * 0.03).astype("<f4")


def check(spec: TensorSpec, value: Words, previous: Words) -> dict[str, bytes]:
    """The forms of one chunk, each decoded and compared."""
    forms = encode_forms(spec, value, previous)
    for name, update in (("sparse", Sparse()), ("delta", Delta())):
        if name in forms:
            words = previous.copy()
            update.decode_chunk(spec, forms[name], words)
            assert words.tobytes() == value.tobytes()
    return forms


F32 = TensorSpec(DTYPES["F32"], (CHUNK_WORDS,))


def test_few_changes_are_listed() -> None:
    """One word in a thousand replaced: a list, by far the smallest, and nothing else is encoded."""
    previous = weights(1).view("<u4")
    value = previous.copy()
    value[::1000] = special_words(F32.dtype, value[::1000].size)
    forms = check(F32, value, previous)
    assert set(forms) == {"sparse", "delta"}
    assert forms["sparse"][0] == LISTED
    assert len(forms["sparse"]) < 0.002 * F32.nbytes


def test_a_light_training_is_a_difference() -> None:
    """All words a little changed: differences, smaller than dense; dense is not even encoded."""
    before = weights(1)
    value = (before + np.random.default_rng(2).normal(0, 1e-5, CHUNK_WORDS)).astype("<f4").view("<u4")
    forms = check(F32, value, before.view("<u4"))
    assert set(forms) == {"delta"}
    assert forms["delta"][0] == DELTA
    assert len(forms["delta"]) < 0.55 * F32.nbytes


def test_another_training_is_replaced() -> None:
    """Unrelated weights: dense wins, by the one byte that an incremental form adds to it."""
    forms = check(F32, weights(3).view("<u4"), weights(1).view("<u4"))
    assert forms["delta"][0] == REPLACED
    assert len(forms["delta"]) == len(forms["sparse"]) == len(forms["dense"]) + 1
    assert smallest([{name: len(part) for name, part in forms.items()}]) == "dense"


def test_one_replaced_chunk_does_not_rule_out_sparse() -> None:
    """A value with one chunk all new and the others untouched costs that chunk."""
    spec = TensorSpec(DTYPES["F32"], (3 * CHUNK_WORDS,))
    previous = weights(1, spec.words).view("<u4")
    value = previous.copy()
    value[CHUNK_WORDS : 2 * CHUNK_WORDS] = weights(9).view("<u4")
    chunks = [encode_forms(spec, value[start:stop], previous[start:stop]) for start, stop in spec.spans()]
    sizes = [{name: len(part) for name, part in chunk.items()} for chunk in chunks]
    assert smallest(sizes) == "sparse"
    assert totals(sizes)["sparse"] < 0.85 * F32.nbytes


@pytest.mark.parametrize("count", [1, 300, 40_000])
@pytest.mark.parametrize("name", DTYPES)
def test_the_smallest_part_never_loses_to_a_single_form(name: str, count: int) -> None:
    """Of all forms of a chunk, delta's part is the smallest, for each dtype and kind of change."""
    dtype = DTYPES[name]
    spec = TensorSpec(dtype, (count,))
    previous = special_words(dtype, spec.words, 1)
    near = previous + dtype.word_dtype.type(1)
    few = previous.copy()
    few[::50] ^= dtype.word_dtype.type(5)
    for value in (near, few, special_words(dtype, spec.words, 2)):
        forms = check(spec, value, previous)
        assert len(forms["delta"]) <= min(map(len, forms.values())) + 1
        assert smallest_change(spec, value, previous).part == Delta().encode_chunk(spec, value, previous)


def test_forms_that_a_chunk_lacks_are_out() -> None:
    """Only what all chunks have is compared; of equal sums the self-contained one is taken; no chunk at all is dense."""
    assert totals([{"dense": 5, "delta": 2}, {"sparse": 1, "delta": 2}]) == {"delta": 4}
    assert smallest([{"delta": 4, "sparse": 4, "dense": 4}]) == "dense"
    assert smallest([{"delta": 4, "sparse": 4}]) == "sparse"
    assert smallest([]) == "dense"
