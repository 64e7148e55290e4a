"""The three-way merge of checkpoints, parameter by parameter: like git's of lines, and never a mixture nobody wrote."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from theta_daemon.filters.merge import Conflict, Merged, Side, merge, merge_literals
from theta_daemon.filters.merge_zip import intact, merge_skeletons
from theta_daemon.formats.base import Source
from theta_daemon.formats.npz import Npz
from theta_daemon.pointer import Parameter, Pointer, SkeletonRef
from theta_daemon.tensor import Buffer

OBJECT = "a" * 64


def hexed(text: str) -> str:
    return text.encode().hex().ljust(64, "0")[:64]


def pointer(skeleton: str, values: Mapping[str, str], *, kind: str = "safetensors", elements: int = 2) -> Pointer:
    """A pointer whose parameters have `values` (any texts: equal texts are equal values)."""
    parameters = tuple(
        Parameter(name, "F32", (elements,), hexed(value), "dense", OBJECT, index, 8)
        for index, (name, value) in enumerate(values.items())
    )
    return Pointer(
        format=kind,
        size=10 + 4 * elements * len(parameters),
        digest=hexed(skeleton + repr(values)),
        skeleton=SkeletonRef(OBJECT, 99, hexed(skeleton), 5),
        lineage=None,
        history={},
        objects={OBJECT: 1000},
        parameters=parameters,
    )


def sides(outcome: Merged | Conflict) -> dict[str, Side]:
    assert isinstance(outcome, Merged), outcome
    return {choice.parameter.name: choice.side for choice in outcome.choices}


NAMES = ("a", "b", "c")
VALUES = st.tuples(*(st.sampled_from("012") for _ in NAMES)).map(lambda values: dict(zip(NAMES, values, strict=True)))


@given(VALUES, VALUES, VALUES)
def test_every_value_is_merged_by_gits_rule(base: dict[str, str], ours: dict[str, str], theirs: dict[str, str]) -> None:
    """Changed on one side: that side's; changed to the same: fine; else a conflict that names exactly the disputed ones."""
    disputed = tuple(name for name in NAMES if len({base[name], ours[name], theirs[name]}) == 3)
    outcome = merge(pointer("s", base), pointer("s", ours), pointer("s", theirs))
    if disputed:
        assert outcome == Conflict(disputed)
        return
    assert isinstance(outcome, Merged)
    for choice in outcome.choices:
        name = choice.parameter.name
        wanted = theirs[name] if ours[name] == base[name] else ours[name]
        assert choice.parameter.digest == hexed(wanted)
        assert choice.parameter == pointer("s", ours if choice.side is Side.OURS else theirs).by_name[name]
    assert [choice.parameter.name for choice in outcome.choices] == list(NAMES)


@given(VALUES, VALUES, VALUES)
def test_the_sides_may_be_exchanged(base: dict[str, str], ours: dict[str, str], theirs: dict[str, str]) -> None:
    """Which branch is merged into which changes neither the values nor the conflicts."""
    there = merge(pointer("s", base), pointer("s", ours), pointer("s", theirs))
    back = merge(pointer("s", base), pointer("s", theirs), pointer("s", ours))
    if isinstance(there, Conflict) or isinstance(back, Conflict):
        assert there == back
        return
    assert [one.parameter.digest for one in there.choices] == [one.parameter.digest for one in back.choices]


def test_storage_does_not_count_as_change() -> None:
    """A value that one side merely stores otherwise is unchanged: the other side's new value is taken."""
    base = pointer("s", {"a": "0", "b": "0"})
    restored = Pointer(
        **{
            **{name: getattr(base, name) for name in ("format", "size", "skeleton", "lineage", "history")},
            "objects": {OBJECT: 1000, "b" * 64: 7},
            "digest": hexed("new"),
            "parameters": (Parameter("a", "F32", (2,), hexed("0"), "constant", "b" * 64, 0, 4), base.parameters[1]),
        }
    )
    theirs = pointer("s", {"a": "1", "b": "0"})
    assert sides(merge(base, restored, theirs)) == {"a": Side.THEIRS, "b": Side.OURS}


def test_added_and_removed_parameters_follow_the_skeleton_that_changed() -> None:
    """One side adds and removes, the other changes a value: both are in the result, in the order of the new skeleton."""
    base = pointer("s", {"a": "0", "b": "0", "c": "0"})
    ours = pointer("t", {"new": "1", "c": "0", "a": "0"})
    theirs = pointer("s", {"a": "0", "b": "0", "c": "2"})
    outcome = merge(base, ours, theirs)
    assert isinstance(outcome, Merged)
    assert outcome.skeleton is Side.OURS
    assert [(one.parameter.name, one.parameter.digest) for one in outcome.choices] == [
        ("new", hexed("1")),
        ("c", hexed("2")),
        ("a", hexed("0")),
    ]


def test_removed_here_and_changed_there_is_a_conflict() -> None:
    """A parameter that one side removed and the other changed is named."""
    base = pointer("s", {"a": "0", "b": "0"})
    outcome = merge(base, pointer("t", {"a": "0"}), pointer("s", {"a": "0", "b": "1"}))
    assert outcome == Conflict(("b",))


def test_skeletons_changed_on_both_sides_conflict() -> None:
    """Two different headers are not mixed, whichever parameters changed."""
    base = pointer("s", {"a": "0", "b": "0"})
    outcome = merge(base, pointer("t", {"a": "1", "b": "0"}), pointer("u", {"a": "0", "b": "1"}))
    assert isinstance(outcome, Conflict)
    assert "skeleton" in outcome.reasons[0]


def test_a_value_that_does_not_fit_the_merged_skeleton_is_a_conflict() -> None:
    """A reshaped parameter of one side and a skeleton of the other do not make a file."""
    base = pointer("s", {"a": "0", "b": "0"})
    ours = pointer("s", {"a": "1", "b": "0"}, elements=3)
    theirs = pointer("t", {"a": "0", "b": "0"})
    assert isinstance(merge(base, ours, theirs), Conflict)


def test_without_an_ancestor_only_equal_values_merge() -> None:
    """Both sides added the file: the same content is fine, anything else is a conflict."""
    ours = pointer("s", {"a": "0", "b": "0"})
    assert sides(merge(None, ours, pointer("s", {"a": "0", "b": "0"}))) == {"a": Side.OURS, "b": Side.OURS}
    assert merge(None, ours, pointer("s", {"a": "0", "b": "1"})) == Conflict(("b",))


def test_another_format_is_a_conflict() -> None:
    """A file that became another format on one side is not merged with parameters of the old one."""
    base, ours = pointer("s", {"a": "0"}), pointer("s", {"a": "1"})
    outcome = merge(base, ours, pointer("s", {"a": "2"}, kind="npz"))
    assert isinstance(outcome, Conflict)
    assert "format" in outcome.reasons[0]


@given(st.binary(min_size=1, max_size=40), st.data())
def test_literals_merge_only_where_changes_lie_apart(base: bytes, data: st.DataObject) -> None:
    """Every byte of a merged literal is one side's change or the base; two different changes never make one."""
    change = st.dictionaries(st.integers(0, len(base) - 1), st.integers(0, 255), max_size=3)
    ours, theirs = bytearray(base), bytearray(base)
    for target in (ours, theirs):
        for at, byte in data.draw(change).items():
            target[at] = byte
    merged = merge_literals([base], [bytes(ours)], [bytes(theirs)])
    mine = {at for at in range(len(base)) if ours[at] != base[at] and ours[at] != theirs[at]}
    other = {at for at in range(len(base)) if theirs[at] != base[at] and ours[at] != theirs[at]}
    if any(abs(one - two) < 4 for one in mine for two in other):
        assert merged is None
        return
    assert merged is not None
    assert merged[0] == bytes(theirs[at] if at in other else ours[at] for at in range(len(base)))


class Bytes(Source):
    """A checkpoint in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, offset: int, length: int) -> Buffer:
        assert 0 <= offset <= offset + length <= len(self._data)
        return memoryview(self._data)[offset : offset + length]


def archive(**arrays: float) -> Bytes:
    """An npz file with one array of ten equal numbers for each name."""
    file = io.BytesIO()
    np.savez(file, **{name: np.full(10, value) for name, value in arrays.items()})  # type: ignore[arg-type]
    return Bytes(file.getvalue())


def laid(source: Bytes) -> tuple[Source, dict[str, object]]:
    return source, {extent.name: extent for extent in Npz().layout(source)}


def test_zip_checksums_of_both_sides_are_merged() -> None:
    """Two sides that changed different arrays of an npz: the merged skeleton is that of the file with both changes."""
    base, ours, theirs = archive(a=0, b=0), archive(a=1, b=0), archive(a=0, b=2)
    literals = merge_skeletons(laid(base), laid(ours), laid(theirs))  # type: ignore[arg-type]
    wanted = archive(a=1, b=2)
    assert literals is not None
    position, expected = 0, []
    for extent in Npz().layout(wanted):
        expected.append(bytes(wanted.read(position, extent.offset - position)))
        position = extent.end
    expected.append(bytes(wanted.read(position, wanted.size - position)))
    assert literals == expected


def test_a_wrong_checksum_is_noticed() -> None:
    """`intact` is false exactly when a stored member does not have its checksum."""
    good = archive(a=1, b=2)
    assert intact(good)
    broken = bytearray(good.read(0, good.size))
    extent = Npz().layout(good)[0]
    broken[extent.offset] ^= 1
    assert not intact(Bytes(bytes(broken)))
    with zipfile.ZipFile(io.BytesIO(bytes(broken))) as file:
        assert file.testzip() is not None
