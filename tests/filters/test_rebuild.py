"""Rebuilding: the same bytes whatever the budgets, threads, order and company; and with damage the right bytes or an error."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.filters.sessions import Sessions
from tests.git.models import Model, model
from tests.gitrepo import GitRepo
from theta_daemon.errors import ThetaError
from theta_daemon.filters import batch, rebuild, values
from theta_daemon.tensor import CHUNK_WORDS


def grown(sessions: Sessions, versions: int = 6) -> tuple[list[dict[str, bytes]], list[dict[str, bytes]]]:
    """Versions of three files with a common backbone and one tensor of several chunks: their bytes, and their pointers."""
    backbone = model().put(large=np.random.default_rng(1).standard_normal(CHUNK_WORDS + 5000).astype("<f4"))
    data, texts = [], []
    for number in range(versions):
        files = {f"f{index}": backbone.edit("ids", 10 * number + index).bytes() for index in range(3)}
        sessions.commit(**files)
        data.append(files)
        texts.append({name: sessions.repo.blob(name) for name in files})
        backbone = backbone.edit("large", number, 50).edit("embed.weight", number)
    return data, texts


def test_any_budget_gives_the_same_bytes(git: GitRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cache, a tiny one, no room to hold shared values, one worker, a narrow window: all versions are right, in any order."""
    sessions = Sessions.new(git)
    data, texts = grown(sessions)
    for tensor_cache, workers, hold, ahead in [
        (1 << 30, 4, None, None),
        (0, 1, 0, 1),
        (20_000, 2, 0, 1),
        (0, 4, None, 1),
    ]:
        with monkeypatch.context() as patch:
            if hold is not None:
                patch.setattr(values, "HOLD_BYTES", hold)
            if ahead is not None:
                patch.setattr(rebuild, "AHEAD_BYTES", ahead)
            other = Sessions.new(git, tensor_cache=tensor_cache, workers=workers)
            for number in (5, 0, 3, 4):
                assert other.check_out(texts[number]) == data[number]
            assert other.check_out(texts[2], delay=False) == data[2]
            mixed = {f"{name}-{number}": text for number in range(6) for name, text in texts[number].items()}
            expected = {f"{name}-{number}": text for number in range(6) for name, text in data[number].items()}
            assert other.check_out(mixed) == expected
            other.engine.close()


def test_large_files_are_streamed_and_small_ones_proven_first(git: GitRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small files in groups, then the large ones, the failing one last; everything that can be right is."""
    sessions = Sessions.new(git)
    small = {f"s{index}": model(index).bytes() for index in range(5)}
    large = {f"a{index}": model(index, rows=400).bytes() for index in range(3)}
    sessions.commit(**small, **large)
    bad = Model({"x": np.random.default_rng(3).standard_normal(50)}).bytes()
    before = set(sessions.objects)
    sessions.commit(m=bad)
    (alone,) = set(sessions.objects) - before
    texts = {name: git.blob(name) for name in ("m", *large, *small)}
    monkeypatch.setattr(batch, "PROVE_BYTES", len(small["s0"]) * 2 + 100)
    sessions.forget()
    overwrite(alone, bytes(200))
    found = sessions.check_out(texts)
    error = found.pop("m")
    assert found == {**small, **large}
    assert list(found) == [*small, *large]
    assert isinstance(error, ThetaError)
    assert alone.name in error.message


def test_many_sessions_at_once(git: GitRepo) -> None:
    """Eight threads check out different versions through one engine with a small cache: each gets its own, exactly."""
    sessions = Sessions.new(git)
    data, texts = grown(sessions)
    shared = Sessions.new(git, tensor_cache=3_000_000, workers=2)
    order = [random.Random(7).randrange(6) for _ in range(24)]
    with ThreadPoolExecutor(8) as threads:
        for number, found in zip(order, threads.map(lambda n: shared.check_out(texts[n]), order), strict=True):
            assert found == data[number]


Damage = Callable[[bytes, random.Random], bytes]


def flip(data: bytes, rng: random.Random) -> bytes:
    """One bit is another."""
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def cut(data: bytes, rng: random.Random) -> bytes:
    """The end is missing."""
    return data[: rng.randrange(len(data))]


def zero(data: bytes, rng: random.Random) -> bytes:
    """A block was never written."""
    place = rng.randrange(len(data))
    return data[:place] + bytes(min(512, len(data) - place)) + data[place + 512 :]


def shuffle(data: bytes, rng: random.Random) -> bytes:
    """Two blocks have changed places."""
    half = len(data) // 2
    return data[half:] + data[:half]


@pytest.mark.parametrize("proven", [False, True], ids=["a new process", "a process that knows the pointers"])
@pytest.mark.parametrize("damage", [flip, cut, zero, shuffle])
def test_damaged_objects_never_make_a_wrong_file(git: GitRepo, damage: Damage, proven: bool) -> None:
    """Whatever happens to an object's bytes: each file comes out exactly as it was added, or with an error; and clean,
    which may build on the damage, stores what it was given all the same."""
    sessions = Sessions.new(git, tensor_cache=0, workers=1)
    current = model(rows=20)
    versions: dict[str, bytes] = {}
    texts: dict[str, bytes] = {}
    for number in range(4):
        current = current.step(number)
        versions[f"v{number}"] = current.bytes()
        sessions.commit(m=current.bytes())
        texts[f"v{number}"] = git.blob("m")
    sessions.engine.close()
    rng = random.Random(proven)
    for path in sessions.objects:
        whole = path.read_bytes()
        for _ in range(3):
            again = Sessions.new(git, tensor_cache=0, workers=1)
            if proven:
                assert again.check_out(texts) == versions
            overwrite(path, damage(whole, rng))
            failed = set()
            for name, found in again.check_out(texts).items():
                if isinstance(found, ThetaError):
                    failed.add(name)
                else:
                    assert found == versions[name]
            new = current.edit("embed.weight", rng.randrange(1000)).bytes()
            text = again.clean("m", new)
            rebuilt = again.check_out({"new": text})["new"]
            assert rebuilt == new or isinstance(rebuilt, ThetaError)
            overwrite(path, whole)
            assert again.check_out(texts) == versions
            assert again.check_out({"new": text})["new"] == new
            again.engine.close()


@pytest.mark.parametrize("proven", [False, True], ids=["a new process", "a process that knows the pointers"])
def test_an_object_that_stands_for_another_is_found_out(git: GitRepo, proven: bool) -> None:
    """A whole, well-formed object under another one's name, its skeleton of the right size: an error, not its header."""
    sessions = Sessions.new(git, tensor_cache=0)
    versions = [replace(model(), metadata={"seed": seed}).bytes() for seed in "123"]
    objects: list[set[Path]] = []
    for version in versions:
        sessions.commit(m=version)
        objects.append(set(sessions.objects))
    texts = {str(number): git.blob("m", f"HEAD~{2 - number}") for number in range(3)}
    (second,), (third,) = objects[1] - objects[0], objects[2] - objects[1]
    if not proven:
        sessions.forget()
    assert not proven or sessions.check_out(texts) == {str(number): versions[number] for number in range(3)}
    overwrite(second, third.read_bytes())
    found = sessions.check_out(texts)
    assert (found["0"], found["2"]) == (versions[0], versions[2])
    error = found["1"]
    assert isinstance(error, ThetaError)
    assert second.name in error.message
    assert error.hint


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o600)
    path.write_bytes(data)


def test_shared_values_of_files_that_fail_alone(git: GitRepo) -> None:
    """A file whose pointer lies about a value that others share does not take them with it."""
    sessions = Sessions.new(git)
    one = model()
    sessions.commit(a=one.bytes(), b=one.edit("ids", 1).bytes(), c=Model({"x": one.tensors["embed.weight"]}).bytes())
    texts = {name: git.blob(name) for name in "abc"}
    expected = {"a": one.bytes(), "b": one.edit("ids", 1).bytes()}
    record = b'"record":1,"stored"'
    assert texts["c"].count(record) >= 1
    texts["c"] = texts["c"].replace(record, b'"record":4,"stored"')
    sessions.forget()
    for order in ("cab", "abc"):
        found = sessions.check_out({name: texts[name] for name in order})
        assert {name: found[name] for name in "ab"} == expected
