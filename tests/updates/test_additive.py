"""Sparse additions as git-theta writes them: one addition an element, in the value's dtype, nothing else touched."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from theta_daemon.errors import HintError
from theta_daemon.tensor import DTYPES, TensorSpec, Words
from theta_daemon.testing.updates import BytesRecord, special_words
from theta_daemon.updates.base import Hint
from theta_daemon.updates.floats import Array
from theta_daemon.updates.sparse import Sparse

SPEC = TensorSpec(DTYPES["F32"], (4, 5))


def define(previous: Words, spec: TensorSpec = SPEC, **data: Any) -> Words | None:
    return Sparse().define(spec, previous, Hint("sparse", data))


@pytest.mark.parametrize(("name", "float_type"), [("F16", np.float16), ("F32", np.float32), ("F64", np.float64)])
def test_additions_are_the_dtypes_own(name: str, float_type: Any) -> None:
    """Each listed element is what numpy's addition in that dtype gives, rounding included."""
    rng = np.random.default_rng(1)
    spec = TensorSpec(DTYPES[name], (30, 40))
    numbers = rng.standard_normal(1200).astype(float_type)
    places = np.sort(rng.choice(1200, 500, replace=False))
    steps = (rng.standard_normal(500) * 1e-3).astype(float_type)
    value = define(
        numbers.view(spec.dtype.word_dtype), spec, data=steps, indices=places, indptr=[0, 500], shape=np.array([30, 40])
    )
    expected = numbers.copy()
    expected[places] += steps
    assert value is not None
    assert np.array_equal(value, expected.view(spec.dtype.word_dtype))


def test_the_others_keep_their_bits() -> None:
    """-0.0 and NaN payloads outside the list survive, and the new value is stored as a small sparse record."""
    spec = TensorSpec(DTYPES["F32"], (2000,))
    previous = special_words(spec.dtype, spec.words)
    value = define(previous, spec, data=np.array([1.5], np.float32), indices=np.array([1999]))
    assert value is not None
    assert np.array_equal(value[:-1], previous[:-1])
    record = Sparse().encode(spec, value, previous, None)
    assert record is not None
    assert len(record) < 60
    words = previous.copy()
    Sparse().open(spec, BytesRecord(record)).apply(0, spec.words, words)
    assert np.array_equal(words, value)


def test_rows_of_a_matrix() -> None:
    """A compressed matrix of the value's own rows means its rows and columns."""
    previous = np.zeros(20, "<u4")
    value = define(previous, data=np.array([1, 2, 3], np.float32), indices=[4, 0, 2], indptr=[0, 1, 1, 3, 3])
    assert value is not None
    assert np.flatnonzero(value).tolist() == [4, 10, 12]
    assert value.view("<f4")[[4, 10, 12]].tolist() == [1, 2, 3]


def test_integers_wrap_and_bfloat16_rounds() -> None:
    """Integer values take integer additions; bfloat16 ones come as an `Array`."""
    spec = TensorSpec(DTYPES["I8"], (3,))
    value = define(np.array([127, 0, 5], "<u1"), spec, data=np.array([1, -1]), indices=[0, 1])
    assert value is not None
    assert value.view("<i1").tolist() == [-128, -1, 5]
    short = TensorSpec(DTYPES["BF16"], (2,))
    steps = Array(TensorSpec(DTYPES["BF16"], (1,)), np.array([0x3B80], "<u2"))  # 2**-8: half a step at one
    value = define(np.array([0x3F80, 0x3F81], "<u2"), short, data=steps, indices=[1])
    assert value is not None
    assert value.tolist() == [0x3F80, 0x3F82]


def test_additions_for_another_value_do_not_apply() -> None:
    """Without data, for another shape or another number of rows: None."""
    previous = np.zeros(20, "<u4")
    one = np.ones(1, np.float32)
    assert define(previous) is None
    assert define(previous, data=one) is None
    assert define(previous, data=one, indices=[0], shape=[5, 4]) is None
    assert define(previous, data=one, indices=[0], indptr=[0, 1, 1]) is None


@pytest.mark.parametrize(
    "data",
    [
        {"data": np.ones(1, np.float32), "indices": [20]},
        {"data": np.ones(1, np.float32), "indices": [-1]},
        {"data": np.ones(1, np.float32), "indices": np.array([2**63], np.uint64)},
        {"data": np.ones(2, np.float32), "indices": [3, 3]},
        {"data": np.ones(2, np.float32), "indices": [3]},
        {"data": np.ones(1, np.float32), "indices": [0.5]},
        {"data": np.ones(1, np.float32), "indices": [0], "indptr": [0, 2]},
        {"data": np.ones(1, np.float32), "indices": [0], "indptr": [0, 3, -1, 1, 1]},
        {"data": np.array(["x"]), "indices": [0]},
    ],
)
def test_contradictions_are_hint_errors(data: dict[str, Any]) -> None:
    """Indices outside or twice, counts that differ, things that are no numbers."""
    with pytest.raises(HintError):
        define(np.zeros(20, "<u4"), **data)


@pytest.mark.parametrize("name", ["BOOL", "F8_E4M3", "C64"])
def test_dtypes_without_an_addition(name: str) -> None:
    """Refused, rather than some arithmetic of ours."""
    spec = TensorSpec(DTYPES[name], (3,))
    with pytest.raises(HintError):
        define(np.zeros(spec.words, spec.dtype.word_dtype), spec, data=np.ones(1, np.float32), indices=[0])
