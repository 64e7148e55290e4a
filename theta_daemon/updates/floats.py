"""Arithmetic with the same bits on every machine: widen to float64, separate IEEE operations there, one rounding back.

Rules:

- only `+ - × ÷ √` of numpy, each a ufunc of its own (a compiler cannot fuse two of them), never a product of matrices, a sum or a
  function of the C library: those differ between CPUs, thread counts and versions;
- every step back to a shorter type is one rounding to nearest, ties to even, straight from float64: through float32 it
  would be two;
- a NaN has one form only, because processors disagree on the sign and the payload of NaNs that they make.

Knows bits and dtypes; no update, no record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from theta_daemon.codec import THREAD
from theta_daemon.errors import HintError
from theta_daemon.tensor import DTYPES, DType, Kind, TensorSpec, Words

Float64s = npt.NDArray[np.float64]

_MANTISSA_BITS: Final = {"F16": 10, "BF16": 7}
_EXPONENT_BITS: Final = {"F16": 5, "BF16": 8}

FloatName = Literal["F64", "F32", "F16", "BF16"]
FLOATS: Final[tuple[FloatName, ...]] = get_args(FloatName)
"""The dtypes this arithmetic is for."""

_EXACT: Final = 1 << 53
"""Integers up to here are float64s."""

_QUIET_NAN: Final = {"F64": 0x7FF8 << 48, "F32": 0x7FC00000, "F16": 0x7E00, "BF16": 0x7FC0}
_ABOVE_INFINITY: Final = {"F64": 0x7FF << 53, "F32": 0xFF << 24, "F16": 0x1F << 11, "BF16": 0xFF << 8}
"""Infinity's bits without the sign, doubled; what is above is a NaN."""


@dataclass(frozen=True, slots=True)
class Array:
    """A value that a hint or a record brings along: spec and words."""

    spec: TensorSpec
    words: Words

    @property
    def float_name(self) -> FloatName:
        """The dtype's name; only for arrays that `as_array` made or whose dtype was looked up by such a name."""
        return cast(FloatName, self.spec.dtype.name)

    def float64(self) -> Float64s:
        """The value's numbers in its shape; exact."""
        return widen(self.words, self.spec.dtype).reshape(self.spec.shape)


def as_array(data: Any) -> Array:
    """`data`, an `Array`, or a numpy array or number that is a float, as an `Array`. Raises HintError for others.

    Integers and Python numbers become F64 where that is exact.
    """
    if isinstance(data, Array):
        if data.spec.dtype.name not in FLOATS:
            raise HintError(f"an array of dtype {data.spec.dtype.name} where floats are needed")
        return data
    array = np.asarray(data)
    names = {"float64": "F64", "float32": "F32", "float16": "F16"}
    name = names.get(array.dtype.name)
    if name is None:
        if array.dtype.kind not in "iu" or np.any((array > _EXACT) | (array < -_EXACT)):
            raise HintError(f"an array of numpy dtype {array.dtype} where floats are needed")
        array, name = array.astype(np.float64), "F64"
    dtype = DTYPES[name]
    little = np.ascontiguousarray(array, array.dtype.newbyteorder("<"))
    return Array(TensorSpec(dtype, array.shape), little.reshape(-1).view(dtype.word_dtype))


def as_integers(data: Any) -> npt.NDArray[Any]:
    """`data`, an `Array` or a numpy array of integers, as a numpy array. Raises HintError for others."""
    if isinstance(data, Array):
        kinds = {Kind.SIGNED: "i", Kind.UNSIGNED: "u"}
        if data.spec.dtype.kind not in kinds or data.spec.dtype.name == "BOOL":
            raise HintError(f"an array of dtype {data.spec.dtype.name} where integers are needed")
        return data.words.view(f"<{kinds[data.spec.dtype.kind]}{data.spec.dtype.word_bytes}").reshape(data.spec.shape)
    array: npt.NDArray[Any] = np.asarray(data)
    if array.size and array.dtype.kind not in "iu":
        raise HintError(f"an array of numpy dtype {array.dtype} where integers are needed")
    return array


def widen(words: Words, dtype: DType, numbers: Float64s | None = None) -> Float64s:
    """The numbers that `words` of a dtype in `FLOATS` stand for, into `numbers` if given; exact."""
    if numbers is None:
        numbers = np.empty(words.size, np.float64)
    with np.errstate(all="ignore"), THREAD.temporaries():
        if dtype.name == "BF16":
            single = THREAD.take(words.size, 4)
            np.copyto(single, words)
            np.left_shift(single, np.uint32(16), out=single)
            np.copyto(numbers, single.view("<f4"))
        else:
            np.copyto(numbers, words.view(f"<f{dtype.word_bytes}"))
    return numbers


def narrow(numbers: Float64s, dtype: DType, words: Words) -> None:
    """Fill `words` with `numbers`, flat, rounded once to nearest even."""
    if dtype.name == "F64":
        words[:] = numbers.view("<u8")
    elif dtype.name == "F32":
        with np.errstate(all="ignore"):
            words[:] = numbers.astype("<f4").view("<u4")
    else:
        with THREAD.temporaries():
            words[:] = _round(numbers, _MANTISSA_BITS[dtype.name], _EXPONENT_BITS[dtype.name])
    kind = words.dtype.type
    with np.errstate(over="ignore"):
        words[words + words > kind(_ABOVE_INFINITY[dtype.name])] = kind(_QUIET_NAN[dtype.name])


def _round(numbers: Float64s, mantissa: int, exponent: int) -> Words:
    """The bits of the nearest floats of one sign bit, `exponent` and `mantissa` bits, on integers; NaNs stay some NaN."""
    bits = numbers.view("<u8")
    bias = (1 << (exponent - 1)) - 1
    drop = np.uint64(52 - mantissa)
    magnitude, rounded = THREAD.take(bits.size, 8), THREAD.take(bits.size, 8)
    np.bitwise_and(bits, np.uint64((1 << 63) - 1), out=magnitude)
    np.right_shift(magnitude, drop, out=rounded)
    rounded &= np.uint64(1)  # ties go to even: what lies half-way goes up only from an odd one
    rounded += magnitude
    rounded += np.uint64((1 << (51 - mantissa)) - 1)
    rounded >>= drop
    rounded -= np.uint64((1023 - bias) << mantissa)
    small = np.flatnonzero(magnitude < np.uint64((1024 - bias) << 52))
    if small.size:
        rounded[small] = _round_subnormal(magnitude[small], np.uint64(1024 - bias), drop)
    too_large = np.uint64((1024 + bias) << 52)
    if magnitude.max(initial=0) >= too_large:
        infinity = np.uint64(((1 << exponent) - 1) << mantissa)
        rounded[magnitude >= too_large] = infinity
        rounded[magnitude > np.uint64(0x7FF << 52)] = infinity + np.uint64(1)
    words: Words = rounded.astype("<u2")
    words |= bits.view("<u2")[3::4] & np.uint16(0x8000)
    return words


def _round_subnormal(magnitude: Words, normal: np.uint64, drop: np.uint64) -> Words:
    """Below the smallest normal number (float64's exponent `normal`) steps are equal: the mantissa in such steps."""
    one = np.uint64(1)
    whole = (magnitude & np.uint64((1 << 52) - 1)) | np.uint64(1 << 52)
    # 54 places leave less than half a step; float64's own subnormals are far below all of this.
    shift = np.minimum(normal - (magnitude >> np.uint64(52)) + drop, np.uint64(54))
    half = (one << (shift - one)) - one
    result: Words = (whole + half + ((whole >> shift) & one)) >> shift
    return result
