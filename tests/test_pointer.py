"""Pointers: one canonical text, and for each way to be wrong an error that names the field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from theta_daemon.errors import PointerError
from theta_daemon.pointer import (
    MAX_POINTER_BYTES,
    Parameter,
    Pointer,
    RecordRef,
    SkeletonRef,
    newer_version,
    parse,
)
from theta_daemon.tensor import DTYPES

PACK, OLD, DIGEST = "a" * 64, "b" * 64, "c" * 64
BLOB, COMMIT = "d" * 40, "e" * 40


def sample() -> Pointer:
    """A dense parameter, and one that is an update of another's previous value."""
    return Pointer(
        format="safetensors",
        size=30,
        digest=DIGEST,
        skeleton=SkeletonRef(PACK, 0, DIGEST, 40),
        lineage=RecordRef(PACK, 3),
        history={BLOB: COMMIT},
        objects={PACK: 1000, OLD: 500},
        parameters=(
            Parameter("layer.weight", "F32", (2, 2), DIGEST, "dense", PACK, 1, 17),
            Parameter(
                "layer.bias", "BF16", (3,), OLD, "sparse", PACK, 2, 9, depth=2, chain=20, previous=BLOB, base="old.bias"
            ),
        ),
    )


def changed(change: Callable[[dict[str, Any]], None]) -> bytes:
    """The sample's text after `change`, written by somebody who knows how to seal it."""
    document = json.loads(sample().encode())
    change(document)
    document.pop("seal", None)
    lines = json.dumps(document, separators=(",", ":")).replace('{"theta-pointer":1,', '{"theta-pointer":1,\n', 1)
    return lines.encode()


def test_a_pointer_reads_back_as_itself_and_writes_the_same_bytes() -> None:
    text = sample().encode()
    pointer = parse(text)
    assert pointer == sample()
    assert pointer is not None
    assert pointer.encode() == text
    assert pointer.by_name["layer.bias"].base_name == "old.bias"
    assert [ref.record for ref in pointer.refs] == [1, 2, 0, 3]


def test_a_changed_parameter_is_one_changed_line_beside_the_file_s_own() -> None:
    other = Pointer(
        **{name: getattr(sample(), name) for name in ("format", "size", "skeleton", "lineage", "history", "objects")},
        digest=OLD,
        parameters=(
            Parameter("layer.weight", "F32", (2, 2), OLD, "dense", PACK, 1, 17),
            sample().parameters[1],
        ),
    )
    before, after = sample().encode().splitlines(), other.encode().splitlines()
    different = [line.split(b":")[0] for line, new in zip(before, after, strict=True) if line != new]
    assert different == [b'"digest"', b'{"name"', b'"seal"']


@given(
    st.lists(
        st.tuples(
            st.text(st.characters(exclude_categories=["Cs"])),
            st.sampled_from(sorted(DTYPES)),
            st.lists(st.integers(0, 9), max_size=4),
        ),
        unique_by=lambda entry: entry[0],
        max_size=8,
    )
)
def test_any_names_dtypes_and_shapes_come_back(entries: list[tuple[str, str, list[int]]]) -> None:
    """Names with quotes, newlines, control characters and any script are data like others."""
    parameters = tuple(
        Parameter(name, dtype, tuple(shape), DIGEST, "dense", PACK, 1, 1) for name, dtype, shape in entries
    )
    size = sum(parameter.spec.nbytes for parameter in parameters)
    pointer = Pointer("opaque", size, DIGEST, None, None, {}, {PACK: 1} if entries else {}, parameters)
    text = pointer.encode()
    assert parse(text) == pointer
    assert len(text.splitlines()) >= len(entries)
    assert all(json.loads(line.rstrip(b",")) for line in text.split(b"\n") if line.startswith(b'{"name"'))


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"version https://git-lfs.github.com/spec/v1\n",
        b'{"theta-pointer"',
        sample().encode()[:-1][:-30],
        b"<<<<<<< ours\n" + sample().encode(),
        sample().encode().replace(b'"digest"', b'<<<<<<< ours\n"digest"', 1),
        b'{"theta-pointer":1,' + b" " * MAX_POINTER_BYTES + b"}",
    ],
)
def test_what_is_damaged_or_something_else_is_no_pointer(text: bytes) -> None:
    assert parse(text) is None


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("format", lambda d: d.update(format="No Such Word")),
        ("size", lambda d: d.update(size=-1)),
        ("size", lambda d: d.update(size=1 << 63)),
        ("size", lambda d: d.update(size=30.0)),
        ("digest", lambda d: d.update(digest="c" * 63)),
        ("digest", lambda d: d.update(digest="C" * 64)),
        ("extra", lambda d: d.update(extra=1)),
        ("history", lambda d: d.update(history={"x": COMMIT})),
        ("objects", lambda d: d.update(objects={"../../../etc/passwd": 1})),
        ("objects", lambda d: d.update(objects={PACK: 1000}) or d["parameters"][0].update(object=OLD)),
        ("lineage", lambda d: d.update(lineage=None)),
        ("parameters", lambda d: d["parameters"][1].update(name="layer.weight")),
        ("dtype", lambda d: d["parameters"][0].update(dtype="F31")),
        ("shape", lambda d: d["parameters"][0].update(shape=[1 << 61, 1 << 61])),
        ("shape", lambda d: d["parameters"][0].update(shape=[-2, -2])),
        ("shape", lambda d: d["parameters"][0].update(shape=[1] * 65)),
        ("update", lambda d: d["parameters"][0].update(update="../x")),
        ("object", lambda d: d["parameters"][0].update(object="../" + "a" * 61)),
        ("record", lambda d: d["parameters"][0].update(record=-1)),
        ("depth", lambda d: d["parameters"][1].update(depth=0)),
        ("depth", lambda d: d["parameters"][1].update(depth=5000)),
        ("chain", lambda d: d["parameters"][1].update(chain=8)),
        ("previous", lambda d: d["parameters"][1].update(previous="f" * 40)),
        ("previous", lambda d: d["parameters"][1].update(previous="not an id")),
        ("previous", lambda d: d["parameters"][0].update(depth=1)),
        ("size", lambda d: d.update(skeleton=None)),
        ("seal", lambda d: d.pop("seal")),
    ],
)
def test_a_broken_rule_is_an_error_that_names_the_field(field: str, change: Callable[[dict[str, Any]], None]) -> None:
    with pytest.raises(PointerError, match=rf"\b{field}\b") as caught:
        parse(changed(change))
    assert caught.value.hint is not None or field not in {"seal"}


def test_lines_of_two_pointers_are_no_pointer_of_either() -> None:
    """What a text merge or an editor puts together is refused, even where each line is valid."""
    text = sample().encode()
    mixed = re.sub(rb'"size":30', b'"size":31', text)
    with pytest.raises(PointerError, match="seal"):
        parse(mixed)


def test_later_versions_are_recognised_and_refused() -> None:
    text = sample().encode().replace(b'{"theta-pointer":1,', b'{"theta-pointer":2,', 1)
    assert newer_version(text)
    assert not newer_version(sample().encode())
    with pytest.raises(PointerError, match="theta-pointer") as caught:
        parse(text)
    assert caught.value.hint == "update theta-daemon"
