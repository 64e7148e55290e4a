"""numpy's files: every simple array under its name, everything else as the bytes it is."""

from __future__ import annotations

import io
import zipfile
from typing import Any, ClassVar

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from scripts import inputs
from theta_daemon.formats.base import Extent, Format
from theta_daemon.formats.npz import Npy, Npz
from theta_daemon.testing.formats import FormatContract, layout_or_none

ARRAYS: dict[str, Any] = {
    "weight": np.arange(12, dtype="<f4").reshape(3, 4),
    "scalar": np.float64(3.5),
    "empty": np.zeros((0, 3), dtype="<i8"),
    "flags": np.array([True, False]),
    "complex": np.ones(3, dtype="<c16"),
    "fortran": np.asfortranarray(np.arange(6, dtype="<u2").reshape(2, 3)),
    "big": np.arange(4, dtype=">f4"),
    "text": np.array(["a", "bcd"]),
    "records": np.zeros(2, dtype=[("x", "<f4"), ("y", "<i2")]),
    "objects": np.array([{"a": 1}, None], dtype=object),
    "dates": np.zeros(2, dtype="datetime64[s]"),
    "folder/näme": np.ones(2, dtype="<f2"),
}
SIMPLE = {
    "weight": ("F32", (3, 4)),
    "scalar": ("F64", ()),
    "empty": ("I64", (0, 3)),
    "flags": ("BOOL", (2,)),
    "complex": ("C128", (3,)),
    "fortran": ("U16", (3, 2)),
    "folder/näme": ("F16", (2,)),
}


def npz(arrays: dict[str, Any], *, compressed: bool = False) -> bytes:
    out = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(out, **arrays)
    return out.getvalue()


def npy(array: Any, **how: Any) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, np.asanyarray(array), **how)
    return out.getvalue()


def laid_out(candidate: Format, data: bytes) -> dict[str, Extent]:
    extents = layout_or_none(candidate, data)
    assert extents is not None
    return {extent.name: extent for extent in extents}


class TestNpz(FormatContract):
    format: ClassVar[Format] = Npz()

    @pytest.fixture(params=["mixed", "compressed", "real"])
    def sample(self, request: pytest.FixtureRequest) -> bytes:
        if request.param == "real":
            return inputs.path("g2p").read_bytes()
        return npz(ARRAYS, compressed=request.param == "compressed")


class TestNpy(FormatContract):
    format: ClassVar[Format] = Npy()

    @pytest.fixture(params=["simple", "objects"])
    def sample(self, request: pytest.FixtureRequest) -> bytes:
        return npy(ARRAYS["weight" if request.param == "simple" else "objects"])


def payload(array: Any) -> bytes:
    return bytes(np.asanyarray(array).tobytes("A"))


def test_kinds_of_arrays() -> None:
    """Simple arrays have their dtype and the shape in which their bytes lie; the others' payload is raw bytes."""
    data = npz(ARRAYS)
    extents = laid_out(Npz(), data)
    assert extents.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        extent = extents[name]
        if name in SIMPLE:
            assert (extent.spec.dtype.name, extent.spec.shape) == SIMPLE[name]
        else:
            assert (extent.spec.dtype.name, extent.spec.shape) == ("U8", (extent.spec.nbytes,))
        if name != "objects":
            assert data[extent.offset : extent.end] == payload(array)


def test_deflated_members() -> None:
    """A deflated member is one parameter of its compressed bytes, called as the member."""
    data = npz(ARRAYS, compressed=True)
    extents = laid_out(Npz(), data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert {name: e.spec.nbytes for name, e in extents.items()} == {
            info.filename: info.compress_size for info in archive.infolist()
        }
    assert {extent.spec.dtype.name for extent in extents.values()} == {"U8"}


def test_real_file() -> None:
    """The real npz's arrays are what numpy loads."""
    path = inputs.path("g2p")
    data = path.read_bytes()
    extents = laid_out(Npz(), data)
    with np.load(path) as arrays:
        assert set(extents) == set(arrays.files)
        for name, extent in extents.items():
            assert data[extent.offset : extent.end] == arrays[name].tobytes()
            assert extent.spec.shape == arrays[name].shape


@given(
    hnp.arrays(
        st.sampled_from(["<f2", "<f4", "<f8", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "|b1", "<c8"]),
        hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=4),
    ),
    st.booleans(),
    st.sampled_from([(1, 0), (2, 0), (3, 0)]),
)
def test_any_simple_array(array: np.ndarray[Any, Any], fortran: bool, version: tuple[int, int]) -> None:
    """Whatever numpy writes of a simple array, in each header version, is found with its bytes."""
    array = np.asfortranarray(array) if fortran else array
    data = npy(array, version=version)
    (extent,) = laid_out(Npy(), data).values()
    assert extent.spec.dtype.name != "U8" or array.dtype == np.uint8
    assert data[extent.offset : extent.end] == payload(array)
    assert extent.spec.elements == array.size


def test_appended_arrays() -> None:
    """Of several arrays saved to one .npy the first is the parameter, the rest is skeleton."""
    first, second = npy(ARRAYS["weight"]), npy(ARRAYS["flags"])
    (extent,) = laid_out(Npy(), first + second).values()
    assert extent.end == len(first)


def _header(text: str, version: bytes = b"\x01\x00") -> bytes:
    head = text.encode("latin-1")
    length = len(head).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + version + length + head + bytes(64)


REFUSED = {
    "version 9": _header("{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }", b"\x09\x00"),
    "header beyond the file": b"\x93NUMPY\x01\x00\xff\xff" + bytes(20),
    "header of 2^32 bytes": b"\x93NUMPY\x02\x00\xff\xff\xff\xff" + bytes(20),
    "nothing behind the magic": b"\x93NUMPY\x01\x00",
}
RAW = {
    "code for a header": _header("__import__('os').system('false')"),
    "negative size": _header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }"),
    "size beyond the file": _header("{'descr': '<f4', 'fortran_order': False, 'shape': (17,), }"),
    "size 2^63": _header("{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775808,), }"),
    "sizes whose product overflows": _header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {(2**40,) * 9}, }}"),
    "size 2^62 times 0": _header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': (0, {2**62}), }}"),
    "65 dimensions": _header(f"{{'descr': '<f4', 'fortran_order': False, 'shape': {(1,) * 65}, }}"),
    "digits that would make a regex backtrack": _header(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1" * 9000 + "!"
    ),
    "unknown dtype": _header("{'descr': '<f3', 'fortran_order': False, 'shape': (2,), }"),
    "nested": _header("{'descr': " + "[" * 5000 + "}"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_malformed_headers(name: str) -> None:
    """An array header that cannot be is refused alone and raw bytes inside an archive."""
    assert layout_or_none(Npy(), REFUSED[name]) is None
    (extent,) = laid_out(Npz(), zipped({"a.npy": REFUSED[name]})).values()
    assert (extent.name, extent.spec.nbytes) == ("a.npy", len(REFUSED[name]))


@pytest.mark.parametrize("name", RAW)
def test_lying_headers(name: str) -> None:
    """A header of another form, or that lies about sizes, leaves the payload as raw bytes."""
    (extent,) = laid_out(Npy(), RAW[name]).values()
    assert (extent.spec.dtype.name, extent.spec.shape) == ("U8", (64,))


def zipped(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def test_payload_of_another_length() -> None:
    """A member that holds more than its array says is raw bytes, all of it."""
    (extent,) = laid_out(Npz(), zipped({"a.npy": npy(ARRAYS["weight"]) + b"more"})).values()
    assert (extent.name, extent.spec.dtype.name, extent.spec.nbytes) == ("a", "U8", 52)


def test_python_2_header() -> None:
    """Sizes as Python 2 wrote them (`256L`) are understood."""
    (extent,) = laid_out(Npy(), _header("{'descr': '<f4', 'fortran_order': False, 'shape': (16L,), }   \n")).values()
    assert (extent.spec.dtype.name, extent.spec.shape) == ("F32", (16,))


def test_a_zip_without_arrays_is_none() -> None:
    """Any other zip is not this format."""
    assert layout_or_none(Npz(), zipped({"readme.txt": b"hello"})) is None


def test_same_name_twice() -> None:
    """`x` deflated under the name `a` and stored as `a.npy` would collide: refused, so opaque."""
    assert layout_or_none(Npz(), zipped({"a.npy": npy(ARRAYS["weight"]), "a": b"x"})) is None
