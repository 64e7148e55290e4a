"""No layout that a pointer could not hold, or that would not give the file back, gets past `checked`."""

from __future__ import annotations

import pytest

from theta_daemon.errors import FormatError
from theta_daemon.formats.base import MAX_NAME_BYTES, MAX_PARAMETERS, Extent, checked
from theta_daemon.pointer import MAX_POINTER_BYTES, Parameter
from theta_daemon.tensor import DTYPES, DType, Kind, TensorSpec, flat_bytes


def extent(name: str, offset: int, size: int) -> Extent:
    return Extent(name, flat_bytes(size), offset)


def test_order_and_empty_extents() -> None:
    """Extents come out in file order; empty ones may lie between and beside others."""
    a, b, empty, last = extent("a", 4, 4), extent("b", 0, 4), extent("c", 4, 0), extent("d", 8, 0)
    assert checked([a, last, b, empty], 8) == [b, empty, a, last]


BAD = {
    "overlap": [extent("a", 0, 5), extent("b", 4, 2)],
    "outside": [extent("a", 4, 5)],
    "before the file": [extent("a", -1, 2)],
    "empty one inside another": [extent("a", 0, 8), extent("b", 4, 0)],
    "empty one outside": [extent("a", 9, 0)],
    "same name": [extent("a", 0, 1), extent("a", 1, 1)],
    "lone surrogate": [extent("\ud800", 0, 1)],
    "65 dimensions": [Extent("a", TensorSpec(DTYPES["U8"], (1,) * 65), 0)],
    "two negative sides": [Extent("a", TensorSpec(DTYPES["U8"], (-2, -4)), 0)],
    "side 2^62": [Extent("a", TensorSpec(DTYPES["U8"], (1 << 62, 0)), 0)],
    "side that is true": [Extent("a", TensorSpec(DTYPES["U8"], (True,)), 0)],
    "dtype of its own": [Extent("a", TensorSpec(DType("F4", 1, Kind.FLOAT), (1,)), 0)],
    "known dtype of another size": [Extent("a", TensorSpec(DType("F32", 2, Kind.FLOAT), (1,)), 0)],
}


@pytest.mark.parametrize("name", BAD)
def test_bad_layouts(name: str) -> None:
    """Overlaps, impossible places, shapes, dtypes and names are refused."""
    with pytest.raises(FormatError):
        checked(BAD[name], 8)


def test_largest_layout_fits_a_pointer() -> None:
    """As many parameters as a layout may have, with the longest names, each with a history of its own, fit a pointer."""
    digest, blob, commit = "a" * 64, "b" * 64, "c" * 64
    parameter = Parameter(
        name="", dtype="F8_E4M3FNUZ", shape=(1,), digest=digest, update="low-rank", object=digest, record=1 << 31,
        stored=1 << 40, depth=1000, chain=1 << 41, previous=blob, base="",
    )  # fmt: skip
    lines = [parameter.line(), f'"{blob}":"{commit}"', f'"{digest}":{1 << 40}']
    each = sum(len(line) + len(",\n") for line in lines)
    assert each * MAX_PARAMETERS + 2 * MAX_NAME_BYTES < MAX_POINTER_BYTES - (1 << 20)


def test_too_many_parameters() -> None:
    """One parameter more than a layout may have is refused."""
    assert (
        len(checked([extent(str(index), index, 1) for index in range(MAX_PARAMETERS)], MAX_PARAMETERS))
        == MAX_PARAMETERS
    )
    with pytest.raises(FormatError):
        checked([extent(str(index), index, 1) for index in range(MAX_PARAMETERS + 1)], MAX_PARAMETERS + 1)
