"""The plan: whatever the past looks like, a planned file comes out right, and the walk ends."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tests.filters.pasts import Past, check, evaluate, hexed, lineage_of, pasts, walk
from theta_daemon.filters.plan import Planner, value_key
from theta_daemon.history.lineage import Lineage, Step


def nothing(_key: str, _digest: str) -> bool:
    return False


@given(pasts("x"), pasts("y"), st.data())
def test_all_files_of_a_checkout_come_out_right(one: Past, other: Past, data: st.DataObject) -> None:
    """Versions of two files with common values, planned together: nothing fails, every chain gives its value."""
    planner = Planner(nothing)
    picked = [(past, data.draw(st.integers(0, len(past.pointers) - 1))) for past in (one, other)]
    for index, (past, number) in enumerate(picked):
        planner.add(b"%d" % index, past.pointers[number])
    walk(planner, [one, other], set())
    assert planner.wanted_lineages() == {}
    plan = planner.plan()
    assert plan.failed == {}
    for index in range(2):
        check(plan, b"%d" % index, one.records | other.records)


@given(pasts(), st.data())
def test_the_lineage_stands_in_for_any_gap(past: Past, data: st.DataObject) -> None:
    """Any previous pointers may be missing: with the file's lineage it comes out right all the same."""
    missing = data.draw(st.sets(st.sampled_from(past.blobs)))
    number = data.draw(st.integers(0, len(past.pointers) - 1))
    planner = Planner(nothing)
    planner.add(b"file", past.pointers[number])
    walk(planner, [past], missing)
    for pathname in planner.wanted_lineages():
        planner.supply_lineage(pathname, lineage_of(past, number))
    plan = planner.plan()
    assert plan.failed == {}
    check(plan, b"file", past.records)


@given(pasts(), st.data())
def test_without_lineage_a_gap_fails_that_file_alone(past: Past, data: st.DataObject) -> None:
    """A file is planned right, or it has failed with words that say what is missing; it is never planned wrong."""
    missing = data.draw(st.sets(st.sampled_from(past.blobs)))
    numbers = data.draw(st.sets(st.integers(0, len(past.pointers) - 1), min_size=1))
    planner = Planner(nothing)
    for number in numbers:
        planner.add(b"%d" % number, past.pointers[number])
    walk(planner, [past], missing)
    for pathname in list(planner.wanted_lineages()):
        planner.supply_lineage(pathname, None)
    plan = planner.plan()
    for number in numbers:
        name = b"%d" % number
        assert (name in plan.failed) != (name in plan.files)
        if name in plan.files:
            check(plan, name, past.records)
        else:
            assert "previous value" in plan.failed[name].message
            needs = {parameter.previous for pointer in past.pointers for parameter in pointer.parameters}
            assert needs & missing


@given(pasts("x"), pasts("y"), st.data())
def test_values_at_hand_end_the_walk(one: Past, other: Past, data: st.DataObject) -> None:
    """What the cache has is neither walked nor decoded, and what stands on it comes out right."""
    cached = data.draw(st.sets(st.sampled_from([hexed(f"value {value}") for value in range(4)])))
    planner = Planner(lambda _key, digest: digest in cached)
    for name, past in ((b"x", one), (b"y", other)):
        planner.add(name, past.pointers[-1])
    walk(planner, [one, other], set())
    plan = planner.plan()
    assert plan.failed == {}
    records = one.records | other.records
    at_hand = {value_key(digest, one.pointers[0].parameters[0].spec): digest for digest in cached}
    for file in plan.files.values():
        for parameter, key in zip(file.pointer.parameters, file.keys, strict=True):
            chain = plan.chain(key, at_hand.__contains__)
            if key in at_hand:
                assert chain == []
                continue
            base = chain[0].base
            assert evaluate(chain, records, None if base is None else at_hand[base]) == parameter.digest


@given(pasts(), st.integers(0, 7))
def test_every_reader_of_a_value_is_counted(past: Past, last: int) -> None:
    """`uses` is the number of files' places and of updates that read a value: the last one lets it go."""
    planner = Planner(nothing)
    for number, pointer in enumerate(past.pointers[: last + 1]):
        planner.add(b"%d" % number, pointer)
    walk(planner, [past], set())
    plan = planner.plan()
    readers = Counter(key for file in plan.files.values() for key in file.keys)
    reached: set[str] = set()
    for key in readers:
        reached.update(node.key for node in plan.chain(key, lambda _: False))
    readers.update(base for key in reached if (base := plan.nodes[key].base) is not None)
    assert plan.uses == readers


def test_each_pointer_of_a_long_past_is_asked_for_once() -> None:
    """Ten files on one past of twenty versions: nineteen pointers, each wanted in one round only."""
    past = Past()
    for number in range(20):
        past.add({"a": (number, True), "b": (100 + number, True)})
    planner = Planner(nothing)
    for index in range(10):
        planner.add(b"%d" % index, past.pointers[-1])
    asked: list[str] = []
    while wanted := planner.wanted():
        asked += wanted
        for blob in wanted:
            planner.supply(blob, past.pointers[past.blobs.index(blob)])
    assert sorted(asked) == sorted(past.blobs[:-1])
    assert len(planner.plan().nodes) == 40


def test_a_pointer_that_lies_about_its_depth_is_no_road() -> None:
    """A previous pointer whose entry has another depth than promised is as good as missing; nothing loops."""
    past = Past()
    for number in range(4):
        past.add({"a": (number, True)})
    liar = past.pointers[3]  # says depth 3 where depth 0 is expected
    planner = Planner(nothing)
    planner.add(b"file", past.pointers[1])
    for blob in planner.wanted():
        planner.supply(blob, liar)
    assert planner.wanted() == []
    assert set(planner.wanted_lineages()) == {b"file"}
    planner.supply_lineage(b"file", lineage_of(past, 1))
    check(planner.plan(), b"file", past.records)


def test_a_pointer_that_names_itself_ends() -> None:
    """Two pointers each other's previous: depths cannot both fall, so the walk ends in an error."""
    past = Past()
    for number in range(3):
        past.add({"a": (number % 2, True)})
    planner = Planner(nothing)
    planner.add(b"file", past.pointers[2])
    for _ in range(10):
        for blob in planner.wanted():
            planner.supply(blob, past.pointers[2])
    assert planner.wanted() == []
    for name in planner.wanted_lineages():
        planner.supply_lineage(name, None)
    assert set(planner.plan().failed) == {b"file"}


def test_a_lineage_of_another_file_or_length_is_refused_or_found_out() -> None:
    """No steps, or more than any chain may have: the file fails; a wrong step is left to the digest to find."""
    past = Past()
    for number in range(3):
        past.add({"a": (number, True)})
    for steps in ({}, {"other": (Step("dense", "0" * 64, 0),)}, {"a": (Step("dense", "0" * 64, 0),) * 1025}):
        planner = Planner(nothing)
        planner.add(b"file", past.pointers[2])
        walk(planner, [past], set(past.blobs))
        planner.supply_lineage(b"file", Lineage(steps))
        assert set(planner.plan().failed) == {b"file"}


def test_what_a_file_reads() -> None:
    """The objects, update types and readers that a plan names for a file are those of its chains and its skeleton."""
    past = Past()
    for number in range(3):
        past.add({"a": (number, number > 0), "b": (7, False)})
    planner = Planner(nothing)
    planner.add(b"file", past.pointers[-1])
    walk(planner, [past], set())
    plan = planner.plan()
    objects = [pointer.parameters[0].object for pointer in past.pointers]
    assert plan.objects(b"file") == set(objects)
    assert set(plan.updates(b"file")) == {"dense", "sparse"}
    assert plan.reader_of(b"file", objects[0]) == "parameter 'a'"
