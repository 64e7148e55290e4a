"""The normal distribution's quantile with the same bits everywhere: only + - × ÷ √, each its own operation.

Wichura's algorithm AS 241 (Applied Statistics 37, 1988; about 16 digits), with a logarithm of our own, because the C
library's differs between systems.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from theta_daemon.updates.floats import Float64s

Polynomial = tuple[float, ...]

_CENTRE: Final[tuple[Polynomial, Polynomial]] = (
    (
        2.5090809287301226727e3,
        3.3430575583588128105e4,
        6.7265770927008700853e4,
        4.5921953931549871457e4,
        1.3731693765509461125e4,
        1.9715909503065514427e3,
        1.3314166789178437745e2,
        3.3871328727963666080e0,
    ),
    (
        5.2264952788528545610e3,
        2.8729085735721942674e4,
        3.9307895800092710610e4,
        2.1213794301586595867e4,
        5.3941960214247511077e3,
        6.8718700749205790830e2,
        4.2313330701600911252e1,
        1.0,
    ),
)
_MIDDLE: Final[tuple[Polynomial, Polynomial]] = (
    (
        7.74545014278341407640e-4,
        2.27238449892691845833e-2,
        2.41780725177450611770e-1,
        1.27045825245236838258e0,
        3.64784832476320460504e0,
        5.76949722146069140550e0,
        4.63033784615654529590e0,
        1.42343711074968357734e0,
    ),
    (
        1.05075007164441684324e-9,
        5.47593808499534494600e-4,
        1.51986665636164571966e-2,
        1.48103976427480074590e-1,
        6.89767334985100004550e-1,
        1.67638483018380384940e0,
        2.05319162663775882187e0,
        1.0,
    ),
)
_FAR: Final[tuple[Polynomial, Polynomial]] = (
    (
        2.01033439929228813265e-7,
        2.71155556874348757815e-5,
        1.24266094738807843860e-3,
        2.65321895265761230930e-2,
        2.96560571828504891230e-1,
        1.78482653991729133580e0,
        5.46378491116411436990e0,
        6.65790464350110377720e0,
    ),
    (
        2.04426310338993978564e-15,
        1.42151175831644588870e-7,
        1.84631831751005468180e-5,
        7.86869131145613259100e-4,
        1.48753612908506148525e-2,
        1.36929880922735805310e-1,
        5.99832206555887937690e-1,
        1.0,
    ),
)
_LOG_2: Final = 0.693147180559945309417
_LOG_TERMS: Final = 12
"""Terms of the series for the logarithm; enough for |s| <= 0.172."""


def normal_quantile(probability: Float64s) -> Float64s:
    """The numbers below which a standard normal variable is with `probability`, each in the open interval (0, 1)."""
    offset = probability - 0.5
    x = np.multiply(offset, offset)
    np.subtract(0.180625, x, out=x)
    result = _ratio(_CENTRE, x)
    np.multiply(offset, result, out=result)
    # Outside of the centre, some 15 % of all, what was just computed does not count.
    far = np.flatnonzero(np.abs(offset) > 0.425)
    tail = probability[far]
    upper = offset[far] > 0
    tail = np.where(upper, 1.0 - tail, tail)
    root = np.sqrt(-_log(tail))
    size = _ratio(_MIDDLE, root - 1.6)
    farther = np.flatnonzero(root > 5.0)
    if farther.size:
        size[farther] = _ratio(_FAR, root[farther] - 5.0)
    result[far] = np.where(upper, size, -size)
    return result


def _ratio(polynomials: tuple[Polynomial, Polynomial], x: Float64s) -> Float64s:
    above, below = (_horner(polynomial, x) for polynomial in polynomials)
    return np.divide(above, below, out=above)


def _horner(coefficients: Polynomial, x: Float64s) -> Float64s:
    total = np.multiply(coefficients[0], x)
    np.add(total, coefficients[1], out=total)
    for coefficient in coefficients[2:]:
        np.multiply(total, x, out=total)
        np.add(total, coefficient, out=total)
    return total


_SERIES: Final = tuple(1.0 / (2 * k + 1) for k in range(_LOG_TERMS, -1, -1))


def _log(x: Float64s) -> Float64s:
    """The natural logarithm of positive normal numbers: 2 artanh((m - 1) / (m + 1)) + e log 2, m near 1."""
    bits = x.view("<u8")
    exponent = (bits >> np.uint64(52)).astype(np.int64) - 1023
    mantissa = ((bits & np.uint64((1 << 52) - 1)) | np.uint64(1023 << 52)).view("<f8")
    high = mantissa > 1.4142135623730951
    mantissa = np.where(high, mantissa * 0.5, mantissa)
    exponent += high
    s = (mantissa - 1.0) / (mantissa + 1.0)
    series = _horner(_SERIES, s * s)
    return 2.0 * s * series + exponent * _LOG_2
