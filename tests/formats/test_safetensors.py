"""safetensors: laid out exactly as the library reads it, or refused."""

from __future__ import annotations

import json
import math
import time
from typing import Any, ClassVar

import hypothesis.strategies as st
import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import given

from scripts import inputs
from theta_daemon.errors import FormatError
from theta_daemon.formats.base import MAX_PARAMETERS, Format
from theta_daemon.formats.safetensors import Safetensors
from theta_daemon.tensor import DTYPES
from theta_daemon.testing.formats import BytesSource, FormatContract, layout_or_none


def file(header: Any, data: bytes = b"", *, pad: int = 0) -> bytes:
    """A safetensors file with this header (an object, or its very text)."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * pad
    return len(text).to_bytes(8, "little") + text + data


def entry(begin: int, end: int, dtype: str = "U8", shape: list[Any] | None = None) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


ODD = file(
    {
        "z": entry(8, 16, "F16", [2, 2]),
        "__metadata__": {"note": 'a "quoted" text, with [brackets]'},
        "": entry(0, 4, "F32", []),
        "empty": entry(16, 16, "I64", [3, 0, 2]),
        "a.ü\n": entry(20, 21, "BOOL", [1]),
        "sub-byte": entry(21, 24, "F4", [6]),
    },
    bytes(range(30)),
    pad=7,
)


class TestSafetensors(FormatContract):
    format: ClassVar[Format] = Safetensors()

    @pytest.fixture(params=["odd", "real"])
    def sample(self, request: pytest.FixtureRequest) -> bytes:
        return ODD if request.param == "odd" else inputs.path("silero").read_bytes()


def test_oddities_are_laid_out() -> None:
    """Unsorted keys, blanks, gaps, an empty name, zero-size tensors, unknown dtypes and trailing bytes are all fine."""
    extents = Safetensors().layout(BytesSource(ODD))
    found = [(e.name, e.spec.dtype.name, e.spec.shape) for e in extents]
    assert found == [
        ("", "F32", ()),
        ("z", "F16", (2, 2)),
        ("empty", "I64", (3, 0, 2)),
        ("a.ü\n", "BOOL", (1,)),
        ("sub-byte", "U8", (3,)),
    ]
    start = len(ODD) - 30
    assert [e.offset - start for e in extents] == [0, 8, 16, 20, 21]


def test_empty_header() -> None:
    """A file without tensors is all skeleton."""
    assert Safetensors().layout(BytesSource(file({}))) == []


@pytest.mark.parametrize("name", ["minilm", "minilm-bf16", "wordllama", "silero"])
def test_real_files_as_the_library_reads_them(name: str) -> None:
    """In real files every extent holds the bytes, dtype and shape that the library finds under that name."""
    data = inputs.path(name).read_bytes()
    extents = {extent.name: extent for extent in Safetensors().layout(BytesSource(data))}
    theirs = dict(safetensors.deserialize(data))  # type: ignore[no-untyped-call]
    assert extents.keys() == theirs.keys()
    for key, tensor in theirs.items():
        extent = extents[key]
        assert (extent.spec.dtype.name, list(extent.spec.shape)) == (tensor["dtype"], tensor["shape"])
        assert data[extent.offset : extent.end] == tensor["data"]


ARRAYS = st.dictionaries(
    st.text(max_size=12),
    st.tuples(
        st.sampled_from(["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "?", "c8"]),
        st.lists(st.integers(0, 4), max_size=4),
    ),
    min_size=1,  # without tensors but with metadata the library (0.8) writes a header that is no JSON
    max_size=8,
).filter(lambda arrays: "__metadata__" not in arrays)


@given(ARRAYS, st.dictionaries(st.text(), st.text(), max_size=3) | st.none())
def test_written_by_the_library(arrays: dict[str, tuple[str, list[int]]], metadata: dict[str, str] | None) -> None:
    """Whatever the library writes is laid out: same names, shapes and bytes."""
    dice = np.random.default_rng(7)
    tensors = {
        name: np.frombuffer(dice.bytes(math.prod(shape) * np.dtype(dtype).itemsize), dtype=dtype).reshape(shape)
        for name, (dtype, shape) in arrays.items()
    }
    data = safetensors.numpy.save(tensors, metadata)
    extents = layout_or_none(Safetensors(), data)
    assert extents is not None
    assert {e.name: e.spec.shape for e in extents} == {name: array.shape for name, array in tensors.items()}
    for extent in extents:
        assert data[extent.offset : extent.end] == tensors[extent.name].tobytes()


HOSTILE = {
    "header length 2^63": (1 << 63).to_bytes(8, "little") + b"{}",
    "header length beyond the file": (1000).to_bytes(8, "little") + b"{}",
    "header length over the limit": (100_000_001).to_bytes(8, "little") + b"{}" + bytes(100),
    "duplicate keys": file(
        b'{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}',
        b"xy",
    ),
    "duplicate keys in an entry": file(b'{"a":{"dtype":"U8","dtype":"I8","shape":[1],"data_offsets":[0,1]}}', b"x"),
    "overlap": file({"a": entry(0, 4), "b": entry(3, 6)}, bytes(6)),
    "the same place twice": file({"a": entry(0, 4), "b": entry(0, 4)}, bytes(4)),
    "data beyond the file": file({"a": entry(0, 5)}, bytes(4)),
    "offsets backwards": file({"a": entry(4, 0, shape=[0])}, bytes(4)),
    "offset 2^63": file({"a": entry(1 << 63, (1 << 63) + 1)}, bytes(4)),
    "negative offset": file({"a": entry(-8, -4)}, bytes(4)),
    "shape that disagrees": file({"a": entry(0, 4, "F32", [2])}, bytes(4)),
    "shape with true": file({"a": entry(0, 1, "U8", [True])}, bytes(4)),
    "shape of floats": file({"a": entry(0, 1, "U8", [1.0])}, bytes(4)),
    "shape of 65 dimensions": file({"a": entry(0, 1, "U8", [1] * 65)}, bytes(4)),
    "shape 2^62 times 0": file({"a": entry(0, 0, "U8", [1 << 62, 0])}, bytes(4)),
    "three offsets": file({"a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1, 2]}}, bytes(4)),
    "no dtype": file({"a": {"shape": [1], "data_offsets": [0, 1]}}, bytes(4)),
    "entry is a list": file({"a": []}),
    "nesting bomb": file(b'{"a":' + b"[" * 500_000 + b"]" * 500_000 + b"}"),
    "object bomb": file(b'{"a":' * 300_000 + b"1" + b"}" * 300_000),
    "item bomb": file(b'{"a":[' + b"[]," * 3_000_000 + b"[]]}"),
    "digit bomb": file(b'{"a":' + b"9" * 1_000_000 + b"}"),
    "NaN": file(b'{"a":NaN}'),
    "cut off": file(b'{"a":{"dtype":"U8"'),
    "not UTF-8": file(b'{"\xff":1}'),
    "lone surrogate": file(b'{"\\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}', b"x"),
    "junk behind the object": file(b"{}{}"),
    "too many parameters": file(
        {str(i): entry(i, i + 1) for i in range(MAX_PARAMETERS + 1)}, bytes(MAX_PARAMETERS + 1)
    ),
    "names too long": file({str(i) + "x" * 100_000: entry(i, i + 1) for i in range(90)}, bytes(90)),
    "names that JSON makes too long": file({str(i) + "\0" * 20_000: entry(i, i + 1) for i in range(90)}, bytes(90)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers_are_refused(name: str) -> None:
    """A header that lies or explodes is refused with FormatError (the file becomes opaque), soon."""
    begun = time.process_time()
    with pytest.raises(FormatError):
        Safetensors().layout(BytesSource(HOSTILE[name]))
    assert time.process_time() - begun < 5


def test_many_tensors() -> None:
    """30,000 tensors are laid out in far less time than reading them takes, and only the header is read."""
    header = {f"model.layers.{i}.mlp.experts.weight": entry(16 * i, 16 * i + 16, "F32", [2, 2]) for i in range(30_000)}
    source = BytesSource(file(header, bytes(16 * 30_000)))
    begun = time.process_time()
    assert len(Safetensors().layout(source)) == 30_000
    assert time.process_time() - begun < 5  # 0.3 s on an idle core
    assert source.bytes_read < source.size - 16 * 30_000 + 100


def test_dtypes_of_the_library() -> None:
    """Every whole-byte dtype of the format is known with its size."""
    sizes = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E5M2": 1, "F8_E4M3": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2}
    sizes |= {"BF16": 2, "I32": 4, "U32": 4, "F32": 4, "F64": 8, "I64": 8, "U64": 8, "C64": 8}
    assert {name: DTYPES[name].itemsize for name in sizes} == sizes
