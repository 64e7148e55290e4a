"""PyTorch's zips: named and shaped as `torch.load` would, without torch and without running what they carry."""

from __future__ import annotations

import io
import os
import pickle
import struct
import subprocess
import sys
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from scripts import inputs
from theta_daemon.errors import FormatError
from theta_daemon.formats import pickle_reader
from theta_daemon.formats.base import Extent, Format
from theta_daemon.formats.torch_zip import TorchZip
from theta_daemon.testing.formats import FormatContract, layout_or_none

REAL = ["chgnet-0.2.0", "chgnet-0.3.0", "chgnet-r2scan"]


def saved(value: Any) -> bytes:
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def laid_out(data: bytes) -> dict[str, Extent]:
    extents = layout_or_none(TorchZip(), data)
    assert extents is not None
    return {extent.name: extent for extent in extents}


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """What a trainer saves: model, optimizer, EMA copy."""
    path = tmp_path / "training.pt"
    inputs.torch_checkpoint(path, seed=3, width=5)
    return path


def tensors_below(value: Any, path: str = "") -> dict[str, torch.Tensor]:
    """Every tensor of nested dicts, lists and tuples under its path: the oracle for names."""
    if isinstance(value, torch.Tensor):
        return {path: value}
    found: dict[str, torch.Tensor] = {}
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, child in below:
        found |= tensors_below(child, f"{path}.{key}" if path else str(key))
    return found


def raw(tensor: torch.Tensor) -> bytes:
    """The bytes of the tensor's storage."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage()).numpy().tobytes()


class TestTorchZip(FormatContract):
    format: ClassVar[Format] = TorchZip()

    @pytest.fixture(params=["training", "jit", *REAL[-1:]])
    def sample(self, request: pytest.FixtureRequest, training: Path) -> bytes:
        if request.param == "training":
            return training.read_bytes()
        return inputs.path("silero-jit" if request.param == "jit" else request.param).read_bytes()


def test_training_state(training: Path) -> None:
    """Model, optimizer and EMA tensors have the names, shapes and bytes that torch gives them."""
    data = training.read_bytes()
    extents = laid_out(data)
    expected = tensors_below(torch.load(training))
    assert extents.keys() == expected.keys()
    for name, tensor in expected.items():
        extent = extents[name]
        assert extent.spec.shape == tuple(tensor.shape)
        assert data[extent.offset : extent.end] == raw(tensor)


@pytest.mark.parametrize("name", REAL)
def test_real_checkpoints(name: str) -> None:
    """Three real training checkpoints of three PyTorch versions: each tensor's name leads to its very bytes."""
    path = inputs.path(name)
    data = path.read_bytes()
    extents = laid_out(data)
    expected = tensors_below(torch.load(path, map_location="cpu", weights_only=False))
    assert len(extents) > 280
    assert sum(extent.spec.nbytes for extent in extents.values()) > 0.96 * len(data)
    assert set(extents) <= set(expected)
    for key, extent in extents.items():
        assert data[extent.offset : extent.end] == raw(expected[key])
        assert extent.spec.shape == tuple(expected[key].shape)
    shared = {tensor.data_ptr() for tensor in expected.values() if tensor.numel()}
    assert len(shared) == sum(1 for extent in extents.values() if extent.spec.nbytes)


def test_dtypes() -> None:
    """Each dtype is recognised, those without a storage class of their own included."""
    names = {
        "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32",
        "int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL", "complex64": "C64", "complex128": "C128",
        "uint16": "U16", "uint32": "U32", "uint64": "U64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
        "float8_e4m3fnuz": "F8_E4M3FNUZ", "float8_e5m2fnuz": "F8_E5M2FNUZ",
    }  # fmt: skip
    data = saved({name: torch.ones(2, 3).to(getattr(torch, name)) for name in names})
    assert {name: e.spec.dtype.name for name, e in laid_out(data).items()} == names
    assert all(extent.spec.shape == (2, 3) for extent in laid_out(data).values())


def test_views_and_tied_weights() -> None:
    """Tensors that share a storage are one parameter under the first one's name, flat unless the first covers it."""
    base = torch.arange(12.0).reshape(3, 4)
    data = saved(
        {"tied": base, "again": base, "view": base[1:], "part": torch.arange(6)[2:], "turned": torch.ones(2, 3).t()}
    )
    found = {name: extent.spec.shape for name, extent in laid_out(data).items()}
    assert found == {"tied": (3, 4), "part": (6,), "turned": (6,)}


def test_module_and_odd_containers() -> None:
    """A pickled module's tensors have its state dict's names; other objects' tensors are found by attribute and index."""
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    with pytest.warns(UserWarning, match="Sparse invariant"):
        sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1]]), torch.tensor([1.0, 2.0]), (3,))
    data = saved(
        {
            "net": module,
            ("a", 1): torch.ones(1),
            3: [torch.nn.Parameter(torch.ones(2))],
            "sparse": sparse,
            None: (torch.zeros(3), {True: torch.zeros(4)}),
        }
    )
    names = set(laid_out(data))
    assert {f"net.{name}" for name in module.state_dict()} <= names
    assert {"key", "3.0", "None.0", "None.1.True"} <= names
    assert len(names) == len(module.state_dict()) + 6


def test_names_stay_unique() -> None:
    """Where two paths spell the same, the later storage's member is added; the first keeps its name."""
    names = list(laid_out(saved({"a.b": torch.zeros(1), "a": {"b": torch.ones(2)}, "c": torch.ones(3)})))
    assert names == ["a.b", "a.b (data/1)", "c"]


def test_storages_without_tensor() -> None:
    """What no tensor names is called after its member, without the archive's own name."""
    data = saved([torch.ones(3).untyped_storage(), torch.zeros(2)])
    assert set(laid_out(data)) == {"data/0", "1"}


def test_torchscript() -> None:
    """A TorchScript archive's parameters and constants are found; its code stays in the skeleton."""
    path = inputs.path("silero-jit")
    data = path.read_bytes()
    extents = laid_out(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the archives outlive the API
        module = torch.jit.load(str(path))  # type: ignore[no-untyped-call]
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        assert data[extents[name].offset : extents[name].end] == tensor.detach().numpy().tobytes()
    assert "constants.0" in extents


def rezipped(data: bytes, change: Callable[[zipfile.ZipInfo], bytes | None] = lambda _: None, **how: Any) -> bytes:
    """The archive written anew by Python; `change` may give a member other contents, `how` goes to ZipFile."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(how.pop("sink", out), "w", **how) as new:
        for info in old.infolist():
            other = change(info)
            with new.open(info.filename, "w", force_zip64=how.get("force", False)) as member:
                member.write(old.read(info) if other is None else other)
    return out.getvalue()


class Pipe(io.RawIOBase):
    """A sink that cannot seek, which makes zipfile write data descriptors."""

    def __init__(self) -> None:
        self.data = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.data += data
        return len(data)


def contents(data: bytes) -> dict[str, bytes]:
    return {name: data[extent.offset : extent.end] for name, extent in laid_out(data).items()}


def test_zip_layouts(training: Path) -> None:
    """Alignment, zip64 fields and data descriptors change nothing about what is found."""
    data = training.read_bytes()
    expected = contents(data)
    assert contents(rezipped(data)) == expected
    pipe = Pipe()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(pipe, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info))
    assert contents(bytes(pipe.data)) == expected
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        new.comment = b"a comment with PK\x05\x06 in it"
        for info in old.infolist():
            with new.open(info.filename, "w", force_zip64=True) as member:
                member.write(old.read(info))
    assert contents(out.getvalue()) == expected


def test_compressed_members_stay_in_the_skeleton() -> None:
    """A storage that somebody deflated is no parameter; a deflated data.pkl makes the file opaque."""
    data = saved({"a": torch.zeros(100), "b": torch.ones(100)})
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            new.writestr(info.filename, old.read(info), 8 if info.filename.endswith("data/0") else 0)
    assert list(laid_out(out.getvalue())) == ["b"]
    assert layout_or_none(TorchZip(), rezipped(data, compression=8)) is None


def test_big_endian() -> None:
    """Storages of a big-endian machine are raw bytes under their names."""
    data = rezipped(saved({"a": torch.ones(3)}), lambda info: b"big" if info.filename.endswith("byteorder") else None)
    assert [(name, e.spec.dtype.name, e.spec.shape) for name, e in laid_out(data).items()] == [("a", "U8", (12,))]


def test_needs_no_torch() -> None:
    """A torch file is laid out in a process that never imports torch."""
    code = (
        "import sys; from theta_daemon.registry import find_layout; from theta_daemon.testing.formats import BytesSource\n"
        "name, extents = find_layout(BytesSource(open(sys.argv[1], 'rb').read()))\n"
        "assert name == 'torch-zip' and len(extents) > 280, (name, len(extents)); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, inputs.path("chgnet-0.2.0")], check=True)


def archive(data_pkl: bytes, storages: dict[str, bytes] | None = None) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("archive/data.pkl", data_pkl)
        for name, data in (storages or {"0": bytes(8)}).items():
            file.writestr(f"archive/data/{name}", data)
    return out.getvalue()


class Runs:
    """Unpickling it runs a command."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


def test_no_code_is_run(tmp_path: Path) -> None:
    """A pickle that runs a command when loaded is laid out or refused, and runs nothing."""
    marker = tmp_path / "ran"
    bomb = pickle.dumps({"a": Runs(f"touch {marker}")})
    pickle.loads(bomb)
    assert marker.exists(), "the bomb must work for the test to mean anything"
    marker.unlink()
    assert layout_or_none(TorchZip(), archive(bomb)) is not None
    assert not marker.exists()


def _storage(key: str, size: int = 2) -> bytes:
    return (
        b"(X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\0"
        + key.encode()
        + b"X\x03\0\0\0cpuK"
        + bytes([size])
        + b"tQ"
    )


HOSTILE_REFUSED = {
    "empty": b"",
    "cut off": b"\x80\x02}",
    "no stop": b"\x80\x02N",
    "stack underflow": b"\x80\x02R.",
    "pop from nothing": b"0.",
    "tuple underflow": b"K\x01\x87.",
    "call underflow": b")R.",
    "mark missing": b"t.",
    "memo missing": b"h\x05.",
    "unknown opcode": b"\xff.",
    "extension registry": b"\x82\x01.",
    "out-of-band buffer": b"\x97.",
    "string of 2^63 bytes": b"\x8d" + struct.pack("<Q", 1 << 63) + b".",
    "long of 2^31 digits": b"\x8b" + struct.pack("<i", -1) + b".",
    "text long": b"L" + b"9" * 100_000 + b"L\n.",
    "odd dict": b"(K\x01d.",
    "items of a number": b"K\x01(K\x01K\x02u.",
    "append to a tuple": b")K\x01a.",
    "state of a list": b"]}b.",
    "class name of numbers": b"K\x01K\x02\x93.",
    "not a pickle": b"\x00" * 100,
}


@pytest.mark.parametrize("name", HOSTILE_REFUSED)
def test_malformed_pickles_are_refused(name: str) -> None:
    """A pickle that is broken or asks for what the machine lacks is a FormatError."""
    with pytest.raises(FormatError):
        pickle_reader.read(HOSTILE_REFUSED[name])
    assert layout_or_none(TorchZip(), archive(HOSTILE_REFUSED[name])) is None


def test_work_is_bounded() -> None:
    """A pickle of more opcodes than the limit is refused there, however harmless they are."""
    assert pickle_reader.read(b"N0" * 50 + b"N.", max_opcodes=102) is None
    with pytest.raises(FormatError, match="too long"):
        pickle_reader.read(b"N0" * 50 + b"N.", max_opcodes=101)


HOSTILE_BOUNDED = {
    "memo 2^31": b"Nr\xff\xff\xff\xff0N.",
    "deep lists": b"]" * 100_000 + b"a" * 99_999 + b".",
    "deep tuples": b")" + b"\x85" * 100_000 + b".",
    "deep tuple around a tensor": b"ctorch._utils\n_rebuild_tensor_v2\n(" + _storage("0") + b"K\0K\x02\x85K\x01\x85tR" + b"\x85" * 100_000 + b".",
    "wide then shared": b"(" + b"Nq\x00" + b"h\x00" * 100_000 + b"l.",
    "billion laughs": b")q\x00" + b"".join(b"(" + b"h" + bytes([i]) * 1 + (b"h" + bytes([i])) * 9 + b"tq" + bytes([i + 1]) for i in range(100)) + b".",
    "list in itself": b"]q\x00h\x00a.",
    "dict in itself": b"}q\x00h\x00h\x00s.",
    "object in its own state": b"cx\ny\n)Rq\x00h\x00b.",
    "chain of states": b"cx\ny\n)R" + b"}b" * 100_000 + b".",
    "storage as its own key": b"(X\x07\0\0\0storageNNtQq\x00Q.",
    "shape of huge sizes": b"cx\ny\n(" + _storage("0") + b"K\0" + (b"\x8a\x09" + b"\xff" * 8 + b"\0") + b"\x85K\x01\x85tR.",
    "shape of negative sizes": b"cx\ny\n(" + _storage("0") + b"K\0J\xff\xff\xff\xff\x85K\x01\x85tR.",
    "shape of text": b"cx\ny\n(" + _storage("0") + b"K\0X\x01\0\0\0a\x85K\x01\x85tR.",
    "storage with a strange key": b"cx\ny\n(" + _storage("/") + b"K\0)\x29tR.",
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE_BOUNDED)
def test_pickle_bombs_are_bounded(name: str) -> None:
    """Deep, cyclic, shared and absurd pickles take neither the stack nor much time; the storage keeps its bytes."""
    begun = time.process_time()
    extents = laid_out(archive(HOSTILE_BOUNDED[name]))
    assert time.process_time() - begun < 20
    assert [extent.spec.nbytes for extent in extents.values()] == [8]


def test_wrong_sizes_are_raw_bytes() -> None:
    """A storage whose bytes are no whole number of its elements is raw bytes; one of another length is flat."""
    pickled = b"}X\x01\0\0\0actorch._utils\n_rebuild_tensor_v2\n(" + _storage("0") + b"K\0K\x02\x85K\x01\x85tRs."
    for size, dtype, shape in [(8, "F32", (2,)), (12, "F32", (3,)), (7, "U8", (7,)), (0, "F32", (0,))]:
        (found,) = laid_out(archive(pickled, {"0": bytes(size)})).values()
        assert (found.name, found.spec.dtype.name, found.spec.shape) == ("a", dtype, shape)


def test_long_and_odd_names() -> None:
    """Path names that are too long, not text, or not Unicode never reach a pointer."""
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + _storage("0") + b"K\0K\x02\x85K\x01\x85tR"

    def named(key: bytes) -> str:
        (name,) = laid_out(archive(b"}" + key + tensor + b"s."))
        return name

    assert named(b"X" + struct.pack("<I", 600) + b"n" * 600) == "data/0"
    assert named(b"\x8b" + struct.pack("<i", 5000) + b"\x7f" * 5000) == "large"
    assert named(b"K\x05") == "5"
    surrogate = b"X\x03\0\0\0\xed\xa0\x80"
    assert layout_or_none(TorchZip(), archive(b"}" + surrogate + tensor + b"s.")) is None
