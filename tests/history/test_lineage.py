"""The lineage record: the same steps back, shared chains stored once, and nothing hostile gets through."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Mapping, Sequence

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from theta_daemon.errors import RecordError
from theta_daemon.history.lineage import Lineage, Step, decode, steps_below
from theta_daemon.pointer import MAX_DEPTH, Parameter

STEPS = st.builds(
    Step,
    st.sampled_from(["dense", "delta", "sparse", "low-rank"]),
    st.sampled_from(["a" * 64, "b" * 64, "0123456789abcdef" * 4]),
    st.integers(0, (1 << 32) - 1),
)
CHAINS = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.lists(STEPS, min_size=1, max_size=6))


def _record(**changes: object) -> bytes:
    wire: dict[str, object] = {
        "theta-lineage": 1,
        "objects": ["a" * 64],
        "updates": ["dense"],
        "nodes": [[0, 0, 0, None], [0, 0, 1, 0]],
        "parameters": [["p", 1]],
    }
    return zstandard.compress(json.dumps(wire | changes).encode())


@given(CHAINS)
def test_the_steps_come_back(chains: Mapping[str, Sequence[Step]]) -> None:
    """Any chains of any names are the same after encode and decode, and so are the objects they name."""
    lineage = Lineage({name: tuple(steps) for name, steps in chains.items()})
    back = decode(lineage.encode())
    assert dict(back.steps) == dict(lineage.steps)
    assert back.objects == lineage.objects


@given(CHAINS)
def test_the_record_depends_on_the_steps_alone(chains: Mapping[str, Sequence[Step]]) -> None:
    """Order of insertion and a trip through decode change no byte."""
    record = Lineage(chains).encode()
    assert Lineage(dict(reversed(list(chains.items())))).encode() == record
    assert decode(record).encode() == record


def test_shared_chains_are_stored_once() -> None:
    """A thousand parameters of depth 100 that share all but the first step take little more than one chain."""
    shared = (*(Step("delta", "a" * 64, record) for record in range(99)), Step("dense", "b" * 64, 0))
    one = Lineage({"layer.0": shared}).encode()
    many = Lineage({f"layer.{number}": (Step("sparse", "c" * 64, number), *shared) for number in range(1000)}).encode()
    assert len(many) < len(one) + 1000 * 12
    assert decode(many).steps["layer.999"][1:] == shared


def test_steps_below_a_previous_parameter() -> None:
    """The first step is the previous value's own record."""
    base = Parameter("w", "F32", (1,), "0" * 64, "dense", "a" * 64, 3, 4)
    assert steps_below(base) == (Step("dense", "a" * 64, 3),)
    assert steps_below(base, [Step("dense", "b" * 64, 0)]) == (Step("dense", "a" * 64, 3), Step("dense", "b" * 64, 0))


def test_a_valid_record_written_by_hand_is_read() -> None:
    """The record all hostile ones are made from is itself right."""
    assert decode(_record()).steps["p"] == (Step("dense", "a" * 64, 1), Step("dense", "a" * 64, 0))


@pytest.mark.parametrize(
    "changes",
    [
        {"theta-lineage": 2},
        {"surplus": 1},
        {"objects": ["../../../etc/passwd"]},
        {"objects": ["A" * 64]},
        {"objects": []},
        {"updates": ["Dense; rm"]},
        {"updates": []},
        {"nodes": [[0, 0, 0, 0]], "parameters": [["p", 0]]},
        {"nodes": [[0, 0, 0, 1], [0, 0, 1, 0]]},
        {"nodes": [[0, 0, 0, None], [0, 0, 1, 7]]},
        {"nodes": [[0, 0, 0, None], [0, 0, 1, -1]]},
        {"nodes": [[0, 0, 1 << 32, None], [0, 0, 1, 0]]},
        {"nodes": [[0, 0, 0.0, None], [0, 0, 1, 0]]},
        {"nodes": [[0, 0, True, None], [0, 0, 1, 0]]},
        {"nodes": [[0, 0, 0], [0, 0, 1, 0]]},
        {"nodes": [[1, 0, 0, None], [0, 0, 1, 0]]},
        {"nodes": [[0, 1, 0, None], [0, 0, 1, 0]]},
        {"nodes": [[0, 0, 0, below - 1 if below else None] for below in range(MAX_DEPTH + 1)]},
        {"parameters": [["p", 2]]},
        {"parameters": [["p", 1], ["p", 0]]},
        {"parameters": {"p": 1}},
        {"parameters": [[1, 1]]},
    ],
    ids=str,
)
def test_records_that_break_a_rule_are_errors(changes: Mapping[str, object]) -> None:
    """Unknown versions and fields, bad ids, cycles, positions out of range, endless depth: a RecordError each."""
    with pytest.raises(RecordError, match="lineage"):
        decode(_record(**changes))


def test_every_truncation_and_bit_flip_is_an_error_or_harmless() -> None:
    """Damage never ends in anything but a RecordError or a lineage, and never in a hang."""
    good = Lineage({"w": (Step("delta", "a" * 64, 1), Step("dense", "b" * 64, 0))}).encode()
    for end in range(len(good)):
        with pytest.raises(RecordError):
            decode(good[:end])
    with pytest.raises(RecordError):
        decode(good + b"\0")
    for position in range(len(good)):
        for bit in range(8):
            damaged = bytearray(good)
            damaged[position] ^= 1 << bit
            try:
                found = decode(bytes(damaged))
            except RecordError:
                continue
            assert all(len(found.steps[name]) <= MAX_DEPTH for name in found.steps)


def test_a_bomb_is_refused_before_it_expands() -> None:
    """Records that say they are large, do not say, or nest without end cost no memory to speak of."""
    bomb = zstandard.compress(bytes(256 << 20))
    unsaid = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 20))
    nested = zstandard.compress(b"[" * 1_000_000)
    tracemalloc.start()
    try:
        for record in (bomb, unsaid, nested, b"", b"\0" * 100):
            with pytest.raises(RecordError, match="lineage"):
                decode(record)
        with pytest.raises(RecordError, match="at most 10"):
            decode(_record(), max_bytes=10)
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_a_small_record_never_stands_for_a_huge_amount_of_steps() -> None:
    """Twenty thousand names on one deepest chain are decoded without putting the chains together."""
    nodes = [[0, 0, 0, below - 1 if below else None] for below in range(MAX_DEPTH)]
    names = [[str(number), MAX_DEPTH - 1] for number in range(20_000)]
    tracemalloc.start()
    try:
        lineage = decode(_record(nodes=nodes, parameters=names))
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert len(lineage.steps["5"]) == MAX_DEPTH
