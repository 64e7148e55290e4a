"""What is encoded while it arrives is what the whole file would have been made into; what was dropped comes back."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.filters.sessions import Sessions
from tests.gitrepo import GitRepo
from theta_daemon.engine import Engine
from theta_daemon.errors import StoreError
from theta_daemon.filters import arriving
from theta_daemon.filters.ahead import Ahead
from theta_daemon.filters.arriving import ArrivingSpool
from theta_daemon.filters.batch import Prepared
from theta_daemon.filters.clean import begin, clean
from theta_daemon.filters.expecting import Match
from theta_daemon.filters.workspace import Workspace
from theta_daemon.pointer import parse
from theta_daemon.settings import Settings
from theta_daemon.store import pack
from theta_daemon.store.lfs import LfsStore
from theta_daemon.tensor import Buffer

LIMIT = 1 << 16
RANDOM = np.random.default_rng(8)
SMALL = {f"small.{number}": RANDOM.normal(size=1000 + number).astype("<f4") for number in range(300)}
MANY = SMALL | {
    "large": RANDOM.normal(size=2_200_000).astype("<f4"),
    "zeros": np.zeros(5000, "<f4"),
    "twin": SMALL["small.7"],
    "odd": RANDOM.integers(0, 255, 77, np.uint8),
    "words": RANDOM.integers(0, 1 << 16, 4099, np.uint16),
    "last": RANDOM.normal(size=2000).astype("<f4"),
    "none": np.zeros(0, "<f4"),
}
_NAMES = {"float32": "F32", "uint8": "U8", "uint16": "U16"}


def safetensors(arrays: dict[str, np.ndarray], gap: int = 0, metadata: dict[str, str] | None = None) -> bytes:
    """A file whose values lie in this order, each `gap` bytes after the one before."""
    header: dict[str, object] = {} if metadata is None else {"__metadata__": metadata}
    body = bytearray()
    for name, array in arrays.items():
        body += b"\1" * gap
        offsets = [len(body), len(body) + array.nbytes]
        header[name] = {"dtype": _NAMES[array.dtype.name], "shape": list(array.shape), "data_offsets": offsets}
        body += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + bytes(body)


WHOLE = safetensors(MANY)
SMALLER = safetensors(SMALL)


class Arrival(Sessions):
    """Sessions whose payloads arrive in packets and outgrow the memory soon."""

    step = 65_516
    took: bool

    def clean(self, path: str, data: bytes) -> bytes:
        with (
            self.workspace() as workspace,
            closing(
                ArrivingSpool(self.repo.path / ".git", lambda head: begin(workspace, path.encode(), head), LIMIT)
            ) as spool,
        ):
            for start in range(0, len(data), self.step):
                spool.write(memoryview(data)[start : start + self.step])
            self.took = isinstance(spool.taker, Ahead)
            return clean(workspace, path.encode(), spool)


@pytest.fixture
def two(short_dir: Path) -> tuple[Sessions, Arrival]:
    """The same twice: the whole file at once, and as it arrives."""
    made = []
    for name, kind in (("whole", Sessions), ("arriving", Arrival)):
        (short_dir / name).mkdir()
        repo = GitRepo(short_dir / name)
        repo("init", "-q")
        made.append(kind.new(repo))
    return made[0], made[1]  # type: ignore[return-value]


def same(two: tuple[Sessions, Arrival], path: str, data: bytes) -> bytes:
    """The pointer that both make, which gives the content back."""
    texts = {sessions.clean(path, data) for sessions in two}
    assert len(texts) == 1
    for sessions in two:
        sessions.forget()
        assert sessions.check_out({path: next(iter(texts))}) == {path: data}
    return next(iter(texts))


@pytest.mark.parametrize(("step", "room"), [(65_516, 64 << 20), (4_000_000, 1 << 20), (7_777, 1 << 20)])
def test_the_pointer_is_that_of_the_whole_file(
    two: tuple[Sessions, Arrival], monkeypatch: pytest.MonkeyPatch, step: int, room: int
) -> None:
    """Small and large values, twins, constants, empty ones; in memory and in files; the very same objects."""
    monkeypatch.setattr(arriving, "_ROOM_BYTES", room)
    monkeypatch.setattr(pack, "TARGET_BYTES", 1 << 20)
    two[1].step = step
    same(two, "model.safetensors", WHOLE)
    assert two[1].took
    assert [path.name for path in two[0].objects] == [path.name for path in two[1].objects]


@pytest.mark.parametrize(
    "edit",
    [
        pytest.param(lambda data: data + b"behind", id="trailing bytes"),
        pytest.param(lambda data: data[:-1], id="cut by a byte"),
        pytest.param(lambda data: data[: len(data) // 2], id="cut in the middle"),
        pytest.param(lambda data: data[:300_000], id="cut early"),
    ],
)
def test_another_ending_than_the_beginning_tells(two: tuple[Sessions, Arrival], edit: Callable[[bytes], bytes]) -> None:
    same(two, "model.safetensors", edit(WHOLE))
    assert not two[1].took


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(safetensors(MANY, gap=3), id="gaps"),
        pytest.param(safetensors(SMALL, metadata={"theta.recipe": "{}"}), id="a recipe"),
        pytest.param(safetensors({}) + bytes(200_000), id="no value"),
        pytest.param((1 << 40).to_bytes(8, "little") + b"{" + bytes(200_000), id="a header beyond all bounds"),
        pytest.param((90_000).to_bytes(8, "little") + b"{" * 90_000 + bytes(200_000), id="no header"),
        pytest.param(np.random.default_rng(3).bytes(300_000), id="no checkpoint"),
    ],
)
def test_what_needs_the_whole_file_waits_for_it(two: tuple[Sessions, Arrival], data: bytes) -> None:
    same(two, "model.safetensors", data)
    assert not two[1].took


def test_values_that_the_repository_has_are_not_stored_again(two: tuple[Sessions, Arrival]) -> None:
    """A copy under another name, and a copy with one value changed."""
    for sessions in two:
        sessions.commit(**{"one.safetensors": WHOLE})
    before = two[1].objects
    assert same(two, "two.safetensors", WHOLE) == two[1].repo.blob("one.safetensors")
    assert two[1].objects == before
    same(two, "three.safetensors", safetensors(MANY | {"small.3": SMALL["small.4"] + 1}))
    assert two[1].took
    assert sum(path.stat().st_size for path in set(two[1].objects) - set(before)) < 60_000
    assert [path.name for path in two[0].objects] == [path.name for path in two[1].objects]


def test_a_changed_file_is_compared_with_the_index_and_not_encoded_anew(two: tuple[Sessions, Arrival]) -> None:
    sessions = two[1]
    sessions.commit(**{"one.safetensors": WHOLE})
    changed = safetensors(MANY | {"odd": MANY["odd"] ^ 1})
    text = sessions.clean("one.safetensors", changed)
    assert not sessions.took
    assert text.count(b'"previous"') == 1
    assert sessions.check_out({"one.safetensors": text}) == {"one.safetensors": changed}


def test_records_that_vanish_before_they_are_needed_are_an_error(
    two: tuple[Sessions, Arrival], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody deletes objects while the file arrives, which then turns out to be another one than it seemed."""
    monkeypatch.setattr(pack, "TARGET_BYTES", 1 << 18)
    sessions = two[1]
    with (
        sessions.workspace() as workspace,
        closing(
            ArrivingSpool(sessions.repo.path / ".git", lambda head: begin(workspace, b"model", head), LIMIT)
        ) as spool,
    ):
        spool.write(SMALLER)
        assert spool.size > 1 << 20
        assert isinstance(spool.taker, Ahead)
        spool.taker.packing.finish()
        assert sessions.objects
        for path in sessions.objects:
            path.unlink()
        with pytest.raises(StoreError, match=r"cannot be rebuilt from the store: .*small") as caught:
            spool.write(b"behind")
        assert caught.value.hint
        with pytest.raises(ValueError, match="closed"):
            spool.read(0, 1)


@contextmanager
def arrived(sessions: Arrival, path: str, data: bytes) -> Iterator[tuple[Workspace, ArrivingSpool]]:
    """A payload that has come, before it is answered."""
    with (
        sessions.workspace() as workspace,
        closing(
            ArrivingSpool(sessions.repo.path / ".git", lambda head: begin(workspace, path.encode(), head), LIMIT)
        ) as spool,
    ):
        spool.write(data)
        yield workspace, spool


@pytest.fixture
def staged(two: tuple[Sessions, Arrival], monkeypatch: pytest.MonkeyPatch) -> Arrival:
    """The index has the file, HEAD has not, and the caller wants it otherwise: all of it is needed again."""
    sessions = two[1]
    text = sessions.clean("one.safetensors", SMALLER)
    sessions.commit(**{"another.safetensors": SMALLER})
    sessions.repo.write("one.safetensors", text)
    sessions.repo("add", "one.safetensors")
    monkeypatch.setenv("GIT_THETA_UPDATE_TYPE", "dense")
    return sessions


def test_what_fails_to_be_made_again_is_an_error_and_no_shorter_file(
    staged: Arrival, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain exception in the middle of it; formats that are asked then must not hide it."""
    stream = Prepared.stream

    def failing(prepared: Prepared, pathname: bytes) -> Iterator[Buffer]:
        yield next(iter(stream(prepared, pathname)))
        raise MemoryError

    with arrived(staged, "one.safetensors", SMALLER) as (workspace, spool):
        assert isinstance(spool.taker, Match)
        monkeypatch.setattr(Prepared, "stream", failing)
        with pytest.raises(MemoryError):
            clean(workspace, b"one.safetensors", spool)
        with pytest.raises(ValueError, match="closed"):
            spool.read(0, 1)


def test_one_worker_is_enough_to_make_all_of_it_again(staged: Arrival) -> None:
    """Nobody in the pool waits for the pool: kept whole, the file is read by its workers alone."""
    staged.repo.write(".git/info/attributes", b"*.safetensors theta-format=opaque\n")
    staged.engine.close()
    staged.engine = Engine(Settings(tensor_cache=0, workers=1), resident=True)
    text = staged.clean("one.safetensors", SMALLER)
    assert b'"opaque"' in text
    assert staged.check_out({"one.safetensors": text}) == {"one.safetensors": SMALLER}


def test_a_dropped_value_that_the_store_no_longer_has_right_is_never_taken_for_the_new_one(
    two: tuple[Sessions, Arrival],
) -> None:
    """The value before the first change is made again from an object with a wrong bit, in its last chunk and in others."""
    arrival = two[1]
    values = {"large": MANY["large"], "small": RANDOM.normal(size=400_000).astype("<f4")}
    arrival.commit(**{"m.safetensors": safetensors(values)})
    changed = safetensors(values | {"small": values["small"] + 1})
    refused = 0
    for path in arrival.objects:
        path.chmod(0o644)
        whole = path.read_bytes()
        for place in (len(whole) // 3, len(whole) * 3 // 5, len(whole) * 4 // 5):
            rotten = bytearray(whole)
            rotten[place] ^= 4
            path.write_bytes(rotten)
            arrival.forget()
            text = b""
            with suppress(StoreError):
                text = arrival.clean("m.safetensors", changed)
            path.write_bytes(whole)
            refused += not text
            if text:  # the bit was in what is new
                assert arrival.check_out({"m.safetensors": text}) == {"m.safetensors": changed}
    assert refused
    arrival.forget()
    text = arrival.clean("m.safetensors", changed)
    assert arrival.check_out({"m.safetensors": text}) == {"m.safetensors": changed}


def test_a_lineage_that_lacks_a_parameter_is_no_reason_to_drop_anything(two: tuple[Sessions, Arrival]) -> None:
    """A pointer of somebody else's making in the index: new content is added all the same."""
    arrival = two[1]
    values = {"large": MANY["large"], "small": SMALL["small.7"]}
    arrival.commit(**{"m.safetensors": safetensors(values)})
    values |= {"large": values["large"].copy()}
    values["large"][::500] += 1
    pointer = parse(arrival.clean("m.safetensors", safetensors(values)))
    assert pointer is not None
    assert pointer.lineage is not None
    blob = "1" * 40
    parameters = [
        replace(parameter, name="other", base="large", previous=blob) if parameter.previous else parameter
        for parameter in pointer.parameters
    ]
    made_up = replace(pointer, parameters=tuple(parameters), history={blob: "2" * 40}, seal=None)
    arrival.repo.commit("made up", **{"m.safetensors": made_up.encode()})
    arrival.forget()
    values["small"] = values["small"] + 1
    content = safetensors(values)
    text = arrival.clean("m.safetensors", content)
    assert arrival.check_out({"m.safetensors": text}) == {"m.safetensors": content}


def test_a_memo_that_is_locked_at_the_end_costs_time_only(two: tuple[Sessions, Arrival]) -> None:
    """What was left out because the memo knew it is encoded after all; all workers read at once what is made again."""
    sessions = two[1]
    sessions.clean("one.safetensors", WHOLE)
    changed = safetensors(MANY | {"odd": MANY["odd"] ^ 1})
    with arrived(sessions, "two.safetensors", changed) as (workspace, spool):
        assert isinstance(spool.taker, Ahead)
        memo = sessions.repo.path / ".git" / "theta" / "memo.sqlite"
        assert memo.exists()
        with closing(sqlite3.connect(memo)) as other:
            other.execute("BEGIN EXCLUSIVE")
            text = clean(workspace, b"two.safetensors", spool)
    assert sessions.check_out({"two.safetensors": text}) == {"two.safetensors": changed}


def test_known_content_is_added_where_nothing_can_be_written(
    two: tuple[Sessions, Arrival], monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = two[1]
    text = sessions.clean("one.safetensors", WHOLE)
    monkeypatch.setattr(LfsStore, "writer", lambda _: pytest.fail("nothing is new"))
    assert sessions.clean("two.safetensors", WHOLE) == text


def test_a_pack_that_is_removed_while_the_file_arrives_is_an_error(
    two: tuple[Sessions, Arrival], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No pointer named it yet, so a prune without grace may take it."""
    monkeypatch.setattr(pack, "TARGET_BYTES", 1 << 18)
    with arrived(two[1], "one.safetensors", SMALLER) as (workspace, spool):
        assert isinstance(spool.taker, Ahead)
        spool.taker.packing.finish()
        two[1].objects[0].unlink()
        with pytest.raises(StoreError, match="was removed while the file was added"):
            clean(workspace, b"one.safetensors", spool)
