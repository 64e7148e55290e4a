"""Checkpoints made to harm who adds them: kept as they are, run by nobody, given back byte for byte."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from pathlib import Path

import psutil

from tests.failures import forge
from tests.gitrepo import GitRepo
from theta_daemon.store.skeleton import MAX_BYTES


class Exploit:
    """Unpickled the usual way it runs a command."""

    def __init__(self, witness: Path) -> None:
        self._command = f"touch {witness}"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self._command,)


def torch_zip(pickled: bytes, **members: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        for name, data in members.items():
            archive.writestr(f"archive/{name}", data)
        archive.writestr("archive/version", b"3\n")
    return file.getvalue()


def safetensors(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def entry(start: int, end: int, dtype: str = "U8", shape: object = None) -> dict[str, object]:
    return {"dtype": dtype, "shape": [end - start] if shape is None else shape, "data_offsets": [start, end]}


def hostile(witness: Path) -> dict[str, bytes]:
    """Files by name."""
    data = bytes(range(256))
    exploit = pickle.dumps(Exploit(witness), protocol=2)
    headers = {
        "overlap": {"a": entry(0, 200), "b": entry(100, 256)},
        "beyond": {"a": entry(0, 1 << 40)},
        "backwards": {"a": {"dtype": "U8", "shape": [10], "data_offsets": [10, 0]}},
        "enormous": {"a": entry(0, 256, "F64", [1 << 62, 1 << 62])},
        "negative": {"a": entry(0, 256, "U8", [-256, -1])},
        "zero": {"a": entry(0, 0, "U8", [0, 1 << 62]), "b": entry(0, 256)},
        "typed": {"a": entry(0, 256, "__import__('os')")},
        "escapes": {"\x1b]0;owned\x07\x00\n../../etc/passwd": entry(0, 256)},
        "surrogate": {"\ud800": entry(0, 256)},
    }
    files = {name: safetensors(json.dumps(header).encode(), data) for name, header in headers.items()}
    twice = f'{{"a":{json.dumps(entry(0, 128))},"a":{json.dumps(entry(128, 256))}}}'.encode()
    files |= {
        "length": safetensors(b"{}", data, 1 << 63),
        "most": safetensors(b"{}", data, (1 << 64) - 1),
        "twice": safetensors(twice, data),
        "nested": safetensors(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", data),
        "brackets": safetensors(json.dumps({"[" * 3_000_000: entry(0, 256)}).encode(), data),
        "exploit.pt": torch_zip(exploit, **{"data/0": data}),
        "raw.pkl": exploit,
        "recursive.pt": torch_zip(b"\x80\x02]q\x00h\x00a.", **{"data/0": data}),
        "opcodes.pt": torch_zip(b"\x80\x02" + b"(" * 200_000 + b".", **{"data/0": data}),
        "halved.pt": torch_zip(pickle.dumps({}), **{"data/0": data})[:-40],
        "like": b'{"theta-pointer":1,' + b"[" * 100_000,
        "pointer": b'{"theta-pointer":1,"format":"../../../etc/passwd"}\n',
    }
    return files


def test_they_come_back(repo: GitRepo, shared_daemon: psutil.Process, short_dir: Path) -> None:
    """Added, committed, checked out again: the same bytes, nothing was run, the daemon lives."""
    witness = short_dir / "witness"
    files = hostile(witness)
    repo.commit("hostile", **files)
    for name in files:
        (repo.path / name).unlink()
    repo("checkout", "--", ".")
    assert {name: repo.read(name) for name in files} == files
    assert not witness.exists()
    assert shared_daemon.is_running()
    formats = {name: forge.real_pointer(repo, name).format for name in files}
    assert {name for name, format_name in formats.items() if format_name != "opaque"} <= {
        "exploit.pt",
        "recursive.pt",
        "opcodes.pt",
        "zero",
        "escapes",
        "typed",
    }
    assert repo.status() == ""


def test_a_file_that_is_all_gap(repo: GitRepo, shared_daemon: psutil.Process) -> None:
    """A safetensors file of which hardly a byte is a tensor is opaque: a skeleton of that size would be held in memory."""
    size = MAX_BYTES + (2 << 20)
    header = json.dumps({"a": entry(0, 16)}).encode()
    path = repo.path / "gap"
    with path.open("wb") as file:
        file.write(safetensors(header, bytes(16)))
        file.truncate(size)
    repo("add", "gap")
    repo("commit", "-q", "-m", "gap")
    assert forge.real_pointer(repo, "gap").format == "opaque"
    path.unlink()
    repo("checkout", "--", "gap")
    assert path.stat().st_size == size
    with path.open("rb") as file:
        assert file.read(8 + len(header)) == safetensors(header)
        assert all(block.count(0) == len(block) for block in iter(lambda: file.read(1 << 20), b""))
