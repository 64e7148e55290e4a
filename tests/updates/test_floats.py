"""The arithmetic that must give the same bits everywhere: exact widening, one rounding, one NaN."""

from __future__ import annotations

import struct
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from theta_daemon.errors import HintError
from theta_daemon.tensor import DTYPES, TensorSpec, Words
from theta_daemon.updates.floats import FLOATS, Array, Float64s, as_array, as_integers, narrow, widen

SHORT = ("F16", "BF16")


def narrowed(numbers: Float64s, name: str) -> Words:
    words = np.empty(numbers.size, DTYPES[name].word_dtype)
    narrow(numbers, DTYPES[name], words)
    return words


def finite(name: str) -> Words:
    """All non-negative finite bits of a 16-bit type, in order."""
    words = np.arange(1 << 15).astype("<u2")
    return words[np.isfinite(widen(words, DTYPES[name]))]


@pytest.mark.parametrize("name", SHORT)
def test_every_short_float_survives(name: str) -> None:
    """All 65,536 bit patterns, except that the NaNs become one."""
    words = np.arange(1 << 16).astype("<u2")
    numbers = widen(words, DTYPES[name])
    back = narrowed(numbers, name)
    nan = np.isnan(numbers)
    assert np.array_equal(back[~nan], words[~nan])
    assert set(back[nan].tolist()) == {0x7E00 if name == "F16" else 0x7FC0}


@pytest.mark.parametrize("name", SHORT)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_every_midpoint_goes_to_even(name: str, sign: float) -> None:
    """Between all neighbours, infinity included: the middle to the even one, a hair above up, a hair below down."""
    words = finite(name)
    numbers = widen(words, DTYPES[name])
    above = np.append(numbers[1:], 2 * numbers[-1] - numbers[-2])
    middle = (numbers + above) / 2
    flag = np.uint16(0x8000 if sign < 0 else 0)
    assert np.array_equal(narrowed(sign * middle, name), (words + (words & 1)) | flag)
    assert np.array_equal(narrowed(sign * np.nextafter(middle, 0), name), words | flag)
    assert np.array_equal(narrowed(sign * np.nextafter(middle, np.inf), name), (words + np.uint16(1)) | flag)


@given(st.floats(width=64, allow_nan=False), st.sampled_from(FLOATS))
def test_the_nearest_is_taken(number: float, name: str) -> None:
    """Any number: the result is as near as both of its neighbours are."""
    (word,) = narrowed(np.array([number]), name).tolist()
    near = np.array([word], DTYPES[name].word_dtype)
    result = float(widen(near, DTYPES[name])[0])
    assert np.signbit(result) == np.signbit(number)
    if not np.isfinite(result):
        return
    magnitude = (1 << (8 * near.itemsize - 1)) - 1
    for neighbour in (word - 1, word + 1):
        if word & magnitude or neighbour > word:
            other = float(widen(np.array([neighbour], near.dtype), DTYPES[name])[0])
            if np.isfinite(other):
                exact = Fraction(number)
                assert abs(exact - Fraction(result)) <= abs(exact - Fraction(other))


def test_no_rounding_through_float32() -> None:
    """A number just above a bfloat16 midpoint, by less than float32 shows, goes up."""
    number = 1 + 2.0**-8 + 2.0**-40
    assert np.float32(number) == np.float32(1 + 2.0**-8)
    assert narrowed(np.array([number]), "BF16").tolist() == [0x3F81]
    assert narrowed(np.array([1 + 2.0**-8]), "BF16").tolist() == [0x3F80]


@pytest.mark.parametrize("name", FLOATS)
def test_all_nans_are_one(name: str) -> None:
    """Payload, sign and kind of a NaN do not matter."""
    payloads = [0x7FF8 << 48, 0xFFF8 << 48, (0x7FF << 52) + 1, (1 << 64) - 1]
    numbers = np.frombuffer(struct.pack("<4Q", *payloads), "<f8")
    assert len(set(narrowed(numbers, name).tolist())) == 1
    assert np.isnan(widen(narrowed(numbers, name), DTYPES[name])).all()


def test_what_hints_may_bring() -> None:
    """numpy's floats as they are, integers where they are exact, bfloat16 as `Array`; all else is refused."""
    assert as_array(np.zeros((2, 3), np.float32)).spec == TensorSpec(DTYPES["F32"], (2, 3))
    assert as_array(np.arange(3, dtype=">f4")).float64().tolist() == [0, 1, 2]
    assert as_array(2).float64().tolist() == 2
    assert as_array(np.arange(6.0).reshape(2, 3).T).float64().tolist() == [[0, 3], [1, 4], [2, 5]]
    short = Array(TensorSpec(DTYPES["BF16"], (1,)), np.array([0x3F80], "<u2"))
    assert as_array(short).float64().tolist() == [1]
    for bad in ("x", [None], np.array([1j]), 2**63 + 1, Array(TensorSpec(DTYPES["I8"], (1,)), np.zeros(1, "<u1"))):
        with pytest.raises(HintError):
            as_array(bad)
    assert as_integers(np.array([1, -2])).tolist() == [1, -2]
    signed = Array(TensorSpec(DTYPES["I8"], (2, 1)), np.array([0xFF, 1], "<u1"))
    assert as_integers(signed).tolist() == [[-1], [1]]
    for bad in (np.array([0.5]), short):
        with pytest.raises(HintError):
            as_integers(bad)
